"""After requests that nobody should send the server lives, and its answers are as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from experiment.client import Prompt
from experiment.server import Server
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import StartServer, make_prefixes
from tests.engine.hostile import (
    CANCELLED,
    CONTEXT,
    SLOTS,
    Case,
    cases,
    complaints,
    hostile,
    problem,
    send,
)

REQUESTS, PARTS = 400, 5
"""`./inv test --soak` makes 20,000."""
FLAGS = ("--parallel", str(SLOTS), "--kv-unified")


@dataclass(frozen=True)
class Target:
    """A server with several slots, its prompts, and what an ordinary request of it gives."""

    server: Server
    cases: tuple[Case, ...]
    probe: Prompt
    truth: dict[int, float]

    def check(self) -> None:
        """The server lives, and an ordinary request that may reuse a slot's prompt is answered.

        What is reused was decoded in other batches, so the numbers are close, not equal.
        """
        self.server.check()
        again = top_tokens(ask(self.server.client, self.probe, cache_prompt=True))
        best = sorted(self.truth, key=self.truth.__getitem__)[-4:]
        assert {token: again.get(token) for token in best} == pytest.approx(
            {token: self.truth[token] for token in best}, abs=0.3
        )


@pytest.fixture(scope="module")
def target(start_server: StartServer) -> Iterator[Target]:
    with start_server(*FLAGS, context=CONTEXT) as server:
        prefixes = make_prefixes(server.client, max_depth=CONTEXT)
        probe = prompt(prefixes, 300)
        truth = top_tokens(ask(server.client, probe))
        made = Target(server, cases(server.client, prefixes), probe, truth)
        yield made
        made.check()
    assert complaints(server.log_text()) == []


@pytest.fixture(scope="module")
def statuses() -> dict[int, int]:
    return {}


@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_requests_are_answered(target: Target, statuses: dict[int, int], part: int) -> None:
    @seed(part)
    @settings(
        max_examples=REQUESTS // PARTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def one(chance: Random) -> None:
        request = hostile(chance, target.cases)
        note(repr(request))
        status, body = send(target.server.client, request)
        statuses[status] = statuses.get(status, 0) + 1
        assert problem(request, status, body) is None
        target.server.check()

    one()
    target.check()


def test_they_get_far_and_fail(statuses: dict[int, int]) -> None:
    # The generator would be worthless if nothing it makes got through, or everything did.
    assert statuses[200] > REQUESTS / 10
    assert statuses[400] > REQUESTS / 10
    assert statuses[CANCELLED] > REQUESTS / 100

"""Twenty thousand requests that nobody should send, and what memory ten thousand of them leave."""

from __future__ import annotations

import os
import time
from random import Random

import psutil
import pytest

from experiment.build import Build
from experiment.server import Server
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import make_prefixes
from tests.engine.hostile import (
    CANCELLED,
    CONTEXT,
    SLOTS,
    cases,
    complaints,
    hostile,
    problem,
    send,
)
from tests.soak.conftest import StartBuild

REQUESTS = int(os.environ.get("PREFIX_REPLAY_SOAK_REQUESTS", "20000"))
SANITIZED = REQUESTS // 10
"""The build with sanitizers takes some ten times as long for each."""
PROBE_EVERY = 200
SEED = int(os.environ.get("PREFIX_REPLAY_SOAK_SEED", str(int(time.time()))))

ORDINARY = max(1000, REQUESTS // 2)
WARM = ORDINARY // 5
FLAT = 0.02


@pytest.mark.parametrize("vision", [True, False], ids=["with images", "text only"])
@pytest.mark.parametrize(("kind", "requests"), [("checked", REQUESTS), ("sanitized", SANITIZED)])
def test_hostile_requests(
    kind: str, requests: int, vision: bool, start: StartBuild, request: pytest.FixtureRequest
) -> None:
    made: Build = request.getfixturevalue(kind)
    more = ("--parallel", str(SLOTS), "--kv-unified", *(() if vision else ("--no-mmproj",)))
    # Half of the requests each: a model with a vision tower takes other paths through the server.
    with start(made, *more, context=CONTEXT) as server:
        prefixes = make_prefixes(server.client, max_depth=CONTEXT)
        known = cases(server.client, prefixes, images=vision)
        probe = prompt(prefixes, 300)
        truth = top_tokens(ask(server.client, probe))
        chance = Random(SEED)
        statuses: dict[int, int] = {}
        for number in range(requests // 2):
            asked = hostile(chance, known)
            status, body = send(server.client, asked)
            statuses[status] = statuses.get(status, 0) + 1
            told = f"request {number} of seed {SEED}: {asked}"
            assert problem(asked, status, body) is None, told
            server.check()
            if number % PROBE_EVERY == PROBE_EVERY - 1:
                assert_same(top_tokens(ask(server.client, probe, cache_prompt=True)), truth, told)
    assert complaints(server.log_text()) == []
    assert min(statuses[200], statuses[400]) > requests / 20
    assert statuses[CANCELLED] > requests / 100


def assert_same(found: dict[int, float], truth: dict[int, float], told: str) -> None:
    best = sorted(truth, key=truth.__getitem__)[-4:]
    assert {token: found.get(token) for token in best} == pytest.approx(
        {token: truth[token] for token in best}, abs=0.3
    ), told


def test_memory_stays_where_it_is(checked: Build, start: StartBuild) -> None:
    """Resident memory is flat over ten thousand requests of all kinds, after a fifth of them."""
    # Room for few saved states: it is full, and stays so, before anything is compared.
    flags = ("--parallel", str(SLOTS), "--kv-unified", "--prefix-ram", "32")
    with start(checked, *flags, context=CONTEXT) as server:
        prefixes = make_prefixes(server.client, max_depth=CONTEXT)
        known = cases(server.client, prefixes)
        chance = Random(SEED)
        sizes: list[int] = []
        for number in range(ORDINARY):
            send(server.client, hostile(chance, known))
            if number >= WARM and number % (ORDINARY // 50) == 0:
                sizes.append(resident(server))
        server.check()
    first, last = sorted(sizes[:10])[5], sorted(sizes[-10:])[5]
    assert last <= first * (1 + FLAT), f"{first} bytes became {last}: {sizes}"


def resident(server: Server) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)

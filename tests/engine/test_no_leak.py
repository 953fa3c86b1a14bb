"""Nothing of a fabricated prefix reaches a later request, however the fabricated one ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median

import pytest
import requests

from experiment.client import Client, Prompt, Reply
from experiment.errors import ServerError
from experiment.prefix import PrefixBuilder
from experiment.server import Server
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import StartServer, make_prefixes

DEPTH = 1500


def ordinary(client: Client, what: Prompt) -> Reply:
    """A request as any other user of the server sends it: it may reuse what the slot holds."""
    return ask(client, what, cache_prompt=True)


def finished(server: Server, what: Prompt) -> None:
    ask(server.client, what, n_fake_cached=DEPTH, cache_prompt=True)


def with_generated_tokens(server: Server, what: Prompt) -> None:
    ask(server.client, what, n_fake_cached=DEPTH, cache_prompt=True, n_predict=20, ignore_eos=True)


def streamed(server: Server, what: Prompt) -> None:
    # Tokens that are not whole characters come together, so there are fewer messages than tokens.
    with stream(server, what, n_predict=20) as response:
        assert sum(1 for line in response.iter_lines() if line.startswith(b"data:")) >= 2


def cancelled_while_generating(server: Server, what: Prompt) -> None:
    with stream(server, what, n_predict=2000) as response:
        lines = response.iter_lines()
        while not next(lines).startswith(b"data:"):
            pass
    wait_until_idle(server)


def cancelled_in_prefill(server: Server, what: Prompt) -> None:
    # The new part is long, and the client gives up at once.
    client = Client(server.client.url, timeout_s=0.05)
    client._session.headers.update(server.client._session.headers)
    longer = replace(what, text=what.text + " and more" * 1000)
    with contextlib.suppress(ServerError):
        client.complete(longer, n_predict=1, n_fake_cached=DEPTH, cache_prompt=True)
        pytest.fail("the request was meant to be cancelled")
    wait_until_idle(server)


def refused_in_the_slot(server: Server, what: Prompt) -> None:
    # Passes the checks of the prefix and fails the slot's own: the prompt exceeds the context.
    with pytest.raises(Exception, match="exceeds the available context"):
        ask(server.client, replace(what, text=what.text + " more" * 5000), n_fake_cached=DEPTH)


ENDINGS: list[Callable[[Server, Prompt], None]] = [
    finished,
    with_generated_tokens,
    streamed,
    cancelled_while_generating,
    cancelled_in_prefill,
    refused_in_the_slot,
]


def stream(server: Server, what: Prompt, *, n_predict: int) -> requests.Response:
    return requests.post(
        server.client.url + "/completion",
        json={
            "prompt": what.as_json(),
            "n_fake_cached": DEPTH,
            "cache_prompt": True,
            "n_predict": n_predict,
            "ignore_eos": True,
            "stream": True,
        },
        headers=server.client._session.headers,
        stream=True,
        timeout=60,
    )


def wait_until_idle(server: Server) -> None:
    deadline = time.monotonic() + 60
    while any(slot["is_processing"] for slot in slots(server)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def slots(server: Server) -> list[dict[str, object]]:
    reply = requests.get(
        server.client.url + "/slots", headers=server.client._session.headers, timeout=60
    )
    found: list[dict[str, object]] = reply.json()
    return found


@pytest.mark.parametrize("ending", ENDINGS)
def test_later_request_decodes_from_zero(
    server: Server,
    prefixes: PrefixBuilder,
    ending: Callable[[Server, Prompt], None],
) -> None:
    # Two of the endings lengthen the text behind the prefix, so only the others have an image.
    image = ending not in (cancelled_in_prefill, refused_in_the_slot)
    what = prompt(prefixes, DEPTH, image=image)
    truth = ask(server.client, what)
    ending(server, what)
    after = ordinary(server.client, what)
    assert after.timings["cache_n"] == 0
    assert top_tokens(after) == top_tokens(truth)
    server.check()


def test_real_prefix_may_still_be_reused(client: Client, prefixes: PrefixBuilder) -> None:
    # Without this the tests above would also pass on a server that never reuses anything.
    what = prompt(prefixes, DEPTH)
    ordinary(client, what)
    longer = replace(what, text=what.text + " go on")
    assert ordinary(client, longer).timings["cache_n"] > DEPTH


def test_restored_prefix_is_real_and_may_be_reused(client: Client, prefixes: PrefixBuilder) -> None:
    what = prompt(prefixes, DEPTH)
    truth = ask(client, what)
    ask(client, what, n_state_cached=DEPTH, cache_prompt=True)
    longer = replace(what, text=what.text + " go on")
    reused = ordinary(client, longer)
    assert reused.timings["cache_n"] > DEPTH
    assert top_tokens(truth).keys() == top_tokens(ask(client, what)).keys()


def test_stock_caches_never_get_hold_of_it(start_server: StartServer) -> None:
    """Context checkpoints, the RAM prompt cache and a second slot, all on as in a stock server."""
    flags = ("--ctx-checkpoints", "32", "--cache-ram", "1024", "--parallel", "2", "--kv-unified")
    with start_server(*flags, context=8192) as stock:
        client = stock.client
        prefixes = make_prefixes(client, max_depth=2000)
        what, other = prompt(prefixes, DEPTH), Prompt("Something else altogether. " * 40)
        truth = top_tokens(ask(client, what))
        for _ in range(3):
            ask(client, what, n_fake_cached=DEPTH, cache_prompt=True, n_predict=8)
            ordinary(client, other)  # a new prompt makes the server save what a slot holds
            # Whatever is reused now was computed by the ordinary requests of this loop.
            after = top_tokens(ordinary(client, what))
            assert max(after, key=after.__getitem__) == max(truth, key=truth.__getitem__)
            assert after == pytest.approx(truth, abs=0.2)
        # Fabricated prompts leave no checkpoint; the last ordinary one does.
        assert "created context checkpoint" in stock.log_text()


def test_prefix_in_one_slot_leaves_the_others_alone(start_server: StartServer) -> None:
    with start_server("--parallel", "2", "--kv-unified", context=4096) as two:
        client = two.client
        prefixes = make_prefixes(client, max_depth=1000)
        mine, theirs = prompt(prefixes, 700, text="First."), prompt(prefixes, 900, text="Second.")
        truth = top_tokens(ask(client, theirs, id_slot=1))
        ask(client, theirs, id_slot=1, cache_prompt=True)
        for field in ("n_fake_cached", "n_state_cached"):
            timings = ask(client, mine, id_slot=0, **{field: 700}).timings
            assert timings["cache_n"] == 700
            assert timings["prefix"]["n_kv"] >= 700
            again = ask(client, theirs, id_slot=1)
            assert top_tokens(again) == pytest.approx(truth, abs=1e-3)


def test_unified_cache_that_others_have_filled(start_server: StartServer) -> None:
    """An idle slot's prompt makes room for a prefix, as it does for any other prompt."""
    with start_server("--parallel", "2", "--kv-unified", context=1024) as two:
        prefixes = make_prefixes(two.client, max_depth=900)
        what = prompt(prefixes, 700)
        for field in ("n_fake_cached", "n_state_cached"):
            ask(two.client, what, id_slot=1, cache_prompt=True)
            assert ask(two.client, what, id_slot=0, **{field: 700}).timings["cache_n"] == 700


def test_prefixes_come_and_go_while_three_other_slots_are_at_work(
    start_server: StartServer,
) -> None:
    """What is generated beside them, one batch with theirs, is what is generated alone."""
    with start_server("--parallel", "4", "--kv-unified", context=8192) as four:
        client = four.client
        prefixes = make_prefixes(client, max_depth=1000)
        mine = prompt(prefixes, 700, text="Mine.")
        theirs = [prompt(prefixes, 300 + 100 * slot, text="Theirs.") for slot in (1, 2, 3)]
        forced = {"n_predict": 48, "logit_bias": [[198, 100.0]]}  # always the same token

        def generate(slot: int) -> list[dict[int, float]]:
            reply = ask(client, theirs[slot - 1], id_slot=slot, **forced)
            choices = reply.body["completion_probabilities"]
            return [top_tokens(reply, place) for place in range(len(choices))]

        truth = {slot: generate(slot) for slot in (1, 2, 3)}
        with ThreadPoolExecutor(3) as pool:
            running = {slot: pool.submit(generate, slot) for slot in (1, 2, 3)}
            made = 0
            while not all(future.done() for future in running.values()):
                field = ("n_fake_cached", "n_state_cached")[made % 2]
                assert ask(client, mine, id_slot=0, **{field: 700}).timings["cache_n"] == 700
                made += 1
        assert made >= 2
        found = {slot: future.result() for slot, future in running.items()}
        # Another split into batches moves a log probability of these random weights by up to 0.3
        # (without any prefix too); another slot's content moves nearly all of them by far more.
        for slot in (1, 2, 3):
            assert median(apart(found[slot], truth[slot])) < 0.15
            assert max(apart(found[slot], truth[slot])) < 1.0
        assert median(apart(truth[1], truth[2])) > 0.3


def apart(found: list[dict[int, float]], expected: list[dict[int, float]]) -> list[float]:
    """How far the most probable token's log probability is from the expected one, each place."""
    best = [max(choices, key=choices.__getitem__) for choices in expected]
    return [
        abs(one.get(token, -99.0) - other[token])
        for one, other, token in zip(found, expected, best, strict=True)
    ]

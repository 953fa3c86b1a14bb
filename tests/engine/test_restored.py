"""A restored prefix is the real one, and a fabricated one is decoded on in the same structure."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiment.client import Client
from experiment.prefix import PrefixBuilder
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import StartServer, make_prefixes

# Multiples of the ubatch, shallow first: the prefix is then cut into the same ubatches with and
# without the others after it, and the results are equal to the last bit.
SAME_CUT = (512, 1024, 2048)
# Elsewhere the sums are taken in another order, and random weights pass every rounding on.
OTHER_CUT = (300, 777, 1500)


def test_restored_gives_the_logits_of_an_uninterrupted_decode(start_server: StartServer) -> None:
    # A server of its own: a state that another test left would cut the prefix elsewhere.
    with start_server() as fresh:
        client = fresh.client
        prefixes = make_prefixes(client)
        for depth in SAME_CUT:
            for image in (False, True):
                what = prompt(prefixes, depth, image=image)
                truth = ask(client, what, n_predict=4, ignore_eos=True)
                for _ in range(2):
                    restored = ask(client, what, n_state_cached=depth, n_predict=4, ignore_eos=True)
                    assert restored.timings["cache_n"] == depth
                    assert restored.body["content"] == truth.body["content"]
                    for position in range(4):
                        assert top_tokens(restored, position) == top_tokens(truth, position)


@pytest.mark.parametrize("depth", OTHER_CUT)
def test_restored_agrees_wherever_the_batch_is_cut(
    client: Client, prefixes: PrefixBuilder, depth: int
) -> None:
    what = prompt(prefixes, depth)
    truth = top_tokens(ask(client, what, n_probs=200))
    restored = top_tokens(ask(client, what, n_probs=200, n_state_cached=depth))
    fake = top_tokens(ask(client, what, n_probs=200, n_fake_cached=depth, fake_fill="zero"))
    assert distance(restored, truth) < 0.3
    assert distance(restored, truth) < 0.3 * distance(fake, truth)


def distance(one: dict[int, float], other: dict[int, float]) -> float:
    """Root mean square of the difference in log probability, over the tokens in both lists."""
    shared = one.keys() & other.keys()
    assert len(shared) > 50
    return math.sqrt(sum((one[token] - other[token]) ** 2 for token in shared) / len(shared))


def test_fabricated_prefix_is_not_the_real_one(client: Client, prefixes: PrefixBuilder) -> None:
    # If it gave the same answer, the comparisons above would prove nothing.
    what = prompt(prefixes, 1024)
    truth = ask(client, what)
    fake = ask(client, what, n_fake_cached=1024, fake_fill="zero")
    assert top_tokens(fake) != pytest.approx(top_tokens(truth), abs=0.2)


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("depth", [14, 200, 255, 256, 1000, 3000])
def test_fake_and_restored_read_the_same_structure(
    client: Client, prefixes: PrefixBuilder, depth: int, image: bool
) -> None:
    what = prompt(prefixes, depth, image=image)
    fake = ask(client, what, n_fake_cached=depth).timings
    restored = ask(client, what, n_state_cached=depth).timings
    assert fake["cache_n"] == restored["cache_n"] == depth
    assert fake["prompt_n"] == restored["prompt_n"]
    for key in ("n", "n_kv", "pos_min", "pos_max"):
        assert fake["prefix"][key] == restored["prefix"][key]
    # Padded to 256 columns, and never less than what is there.
    assert fake["prefix"]["n_kv"] == -(-(depth + fake["prompt_n"]) // 256) * 256
    assert (fake["encode_ms"] > 0) == image
    assert fake["prefix"]["size_bytes"] == 0
    assert restored["prefix"]["size_bytes"] > 0
    for timings in (fake, restored):
        spent = timings["prefix"]["install_ms"] + timings["encode_ms"]
        assert 0 < spent < timings["prompt_ms"]


def test_priming_goes_on_from_the_longest_saved_state(start_server: StartServer) -> None:
    with start_server("-b", "256", context=2048) as fresh:
        client = fresh.client
        prefixes = make_prefixes(client, max_depth=1500)
        first = ask(client, prompt(prefixes, 1000), n_state_cached=1000).timings
        assert first["prefix"]["prime_ms"] > 0
        again = ask(client, prompt(prefixes, 1000, text="Another."), n_state_cached=1000).timings
        assert again["prefix"]["prime_ms"] == 0
        log_before = len(fresh.log_text())
        deeper = ask(client, prompt(prefixes, 1400), n_state_cached=1400).timings
        assert deeper["cache_n"] == 1400
        log = fresh.log_text()[log_before:]
        # The first chunk that is decoded begins at 1,000, not at 0.
        assert "memory_seq_rm [1000, end)" in log
        assert "memory_seq_rm [0, end)" not in log


def test_oldest_state_goes_first(
    client: Client, prefixes: PrefixBuilder, start_server: StartServer
) -> None:
    def restored(client: Client, prefixes: PrefixBuilder, depth: int) -> dict[str, Any]:
        timings = ask(client, prompt(prefixes, depth), n_state_cached=depth).timings
        assert timings["cache_n"] == depth
        found: dict[str, Any] = timings["prefix"]
        return found

    sizes = [restored(client, prefixes, depth)["size_bytes"] for depth in (500, 1000, 1500)]
    limit_mib = math.ceil((sizes[0] + sizes[1]) / 2**20)
    assert sizes[0] + sizes[2] > limit_mib * 2**20
    with start_server("--prefix-ram", str(limit_mib), context=2048) as tight:
        own = make_prefixes(tight.client, max_depth=1500)

        def primed(depth: int) -> bool:
            return bool(restored(tight.client, own, depth)["prime_ms"] > 0)

        assert primed(500)
        assert primed(1000)
        assert not primed(500)
        assert not primed(1000)
        assert primed(1500)  # makes room by driving out the oldest
        assert not primed(1500)
        assert primed(500)


def test_ordinary_responses_are_those_of_a_stock_server(
    client: Client, prefixes: PrefixBuilder
) -> None:
    timings = ask(client, prompt(prefixes, 100, image=True)).timings
    assert "prefix" not in timings
    assert "encode_ms" not in timings
    named = ask(client, prompt(prefixes, 100, image=True), n_fake_cached=0).timings
    assert named["prefix"]["kind"] == "none"
    assert named["encode_ms"] > 0

"""What the server reports of the graphs that it ran."""

from __future__ import annotations

import contextlib

import pytest

from experiment.client import Client
from experiment.errors import ServerError
from experiment.prefix import PrefixBuilder
from experiment.server import Server
from experiment.shapes import SHAPES
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import StartServer, make_prefixes
from tests.engine.test_no_leak import wait_until_idle

NANO = SHAPES["nano"]
UBATCH = 512


def padded(cells: int) -> int:
    return -(-cells // 256) * 256


def long_text(words: int) -> str:
    return "Look" + " again" * (words - 1)


@pytest.mark.parametrize("field", ["n_fake_cached", "n_state_cached"])
@pytest.mark.parametrize("depth", [300, 1024])
def test_every_ubatch_behind_a_prefix(
    client: Client, prefixes: PrefixBuilder, depth: int, field: str
) -> None:
    what = prompt(prefixes, depth, text=long_text(1200))
    timings = ask(client, what, **{field: depth}).timings
    new = timings["prompt_n"]
    assert 1200 < new < 1300
    ubatches = timings["prefix"]["ubatches"]
    assert [ubatch["n_tokens"] for ubatch in ubatches] == [UBATCH, UBATCH, new - 2 * UBATCH]
    reached = [depth + UBATCH, depth + 2 * UBATCH, depth + new]
    assert [ubatch["n_kv"] for ubatch in ubatches] == [padded(cells) for cells in reached]
    assert len({ubatch["n_nodes"] for ubatch in ubatches}) == 1
    # Keys and values of the attention layers, 16 bits each.
    attention = sum(NANO.is_attention(layer) for layer in range(NANO.layers))
    column = attention * 2 * NANO.kv_heads * NANO.head_dim * 2
    assert timings["prefix"]["kv_bytes"] == column * sum(map(padded, reached))


def test_the_whole_prompt_without_a_prefix(client: Client, prefixes: PrefixBuilder) -> None:
    timings = ask(client, prompt(prefixes, 1024), n_fake_cached=0).timings
    tokens = [ubatch["n_tokens"] for ubatch in timings["prefix"]["ubatches"]]
    assert tokens == [UBATCH, UBATCH, timings["prompt_n"] - 2 * UBATCH]


def test_an_image_has_ubatches_of_its_own(client: Client, prefixes: PrefixBuilder) -> None:
    timings = ask(client, prompt(prefixes, 500, image=True), n_fake_cached=500).timings
    ubatches = timings["prefix"]["ubatches"]
    assert len(ubatches) > 1
    assert sum(ubatch["n_tokens"] for ubatch in ubatches) == timings["prompt_n"]


def test_generated_tokens_are_not_among_them(client: Client, prefixes: PrefixBuilder) -> None:
    what = prompt(prefixes, 500)
    one = ask(client, what, n_fake_cached=500).timings
    many = ask(client, what, n_fake_cached=500, n_predict=20, ignore_eos=True).timings
    assert one["prefix"]["ubatches"] == many["prefix"]["ubatches"]


def test_experts_of_a_real_prefix_are_those_of_the_whole_prompt(
    start_server: StartServer,
) -> None:
    # A server of its own: a state that another test left would cut the prefix elsewhere, and a
    # multiple of the ubatch: the last ubatch is then the same with and without the prefix.
    depth = 1024
    with start_server() as fresh:
        what = prompt(make_prefixes(fresh.client), depth)
        full = ask(fresh.client, what, n_fake_cached=0, count_experts=True).timings["experts"]
        restored = ask(fresh.client, what, n_state_cached=depth, count_experts=True).timings
    assert restored["experts"] == full[-1:]
    new = restored["prompt_n"]
    assert [len(ubatch) for ubatch in full] == [NANO.layers] * 3
    for counted, tokens in zip(full, (UBATCH, UBATCH, new), strict=True):
        for experts in counted:
            most = min(NANO.experts, tokens * NANO.experts_used)
            assert NANO.experts_used <= experts <= most


def test_counting_changes_no_result_and_ends_with_its_request(
    client: Client, prefixes: PrefixBuilder
) -> None:
    what = prompt(prefixes, 700)
    plain = ask(client, what, n_fake_cached=700)
    counted = ask(client, what, n_fake_cached=700, count_experts=True)
    after = ask(client, what, n_fake_cached=700)
    assert top_tokens(plain) == top_tokens(counted) == top_tokens(after)
    assert len(counted.timings["experts"]) == 1
    assert "experts" not in plain.timings
    assert "experts" not in after.timings


def test_a_request_without_the_fields_is_answered_as_ever(
    client: Client, prefixes: PrefixBuilder
) -> None:
    timings = ask(client, prompt(prefixes, 700)).timings
    assert not {"prefix", "encode_ms", "experts"} & timings.keys()


def test_a_cancelled_request_leaves_nothing_behind(server: Server, prefixes: PrefixBuilder) -> None:
    hasty = Client(server.client.url, timeout_s=0.05)
    hasty._session.headers.update(server.client._session.headers)
    long = prompt(prefixes, 700, text=long_text(1500))
    with contextlib.suppress(ServerError):
        hasty.complete(long, n_predict=1, n_fake_cached=700, count_experts=True)
        pytest.fail("the request was meant to be cancelled")
    wait_until_idle(server)
    what = prompt(prefixes, 700)
    timings = ask(server.client, what, n_fake_cached=700).timings
    assert [ubatch["n_tokens"] for ubatch in timings["prefix"]["ubatches"]] == [timings["prompt_n"]]
    assert "experts" not in timings


def test_what_the_sampler_takes_is_told(client: Client, prefixes: PrefixBuilder) -> None:
    timings = ask(client, prompt(prefixes, 3000), n_fake_cached=3000).timings
    assert 0 < timings["prefix"]["sampler_ms"] < timings["prompt_ms"]

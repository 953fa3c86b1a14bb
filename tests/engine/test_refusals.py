"""A request that cannot be served gets HTTP 400 with a sentence; the server goes on as before."""

from __future__ import annotations

from typing import Any

import pytest

from experiment.client import Client
from experiment.errors import RequestRefused
from experiment.prefix import PrefixBuilder
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import CONTEXT, StartServer, make_prefixes

DEPTH = 300
NOT_A_LENGTH = "must be a non-negative integer"

BAD: list[tuple[dict[str, Any], str]] = [
    ({"n_fake_cached": value}, NOT_A_LENGTH)
    for value in (-1, -(2**40), 1.0, 0.5, "300", True, [300], {"n": 1}, 2**31, 2**40, 2**63, 2**64)
]
BAD += [({"n_state_cached": value}, NOT_A_LENGTH) for value in (-1, 1.5, "x", False, 2**31, 2**64)]
BAD += [
    ({"n_fake_cached": 2000}, "must be less than the number of prompt tokens"),
    ({"n_state_cached": 2000}, "must be less than the number of prompt tokens"),
    ({"n_fake_cached": CONTEXT + 1}, "exceeds the available context size"),
    ({"n_state_cached": CONTEXT + 1}, "exceeds the available context size"),
    ({"n_fake_cached": DEPTH, "n_state_cached": DEPTH}, "exclude each other"),
]


@pytest.mark.parametrize(("fields", "sentence"), BAD, ids=str)
def test_refused_with_a_sentence(
    client: Client, prefixes: PrefixBuilder, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestRefused, match=f"^HTTP 400 .*{sentence}"):
        ask(client, prompt(prefixes, DEPTH), **fields)
    # The slot is what it was: the same ordinary request gives the same answer as before.
    again = ask(client, prompt(prefixes, DEPTH))
    assert top_tokens(again) == top_tokens(ask(client, prompt(prefixes, DEPTH)))
    assert again.timings["cache_n"] == 0


def test_null_is_the_default(client: Client, prefixes: PrefixBuilder) -> None:
    reply = ask(client, prompt(prefixes, DEPTH), n_fake_cached=None)
    assert reply.timings["cache_n"] == 0


@pytest.mark.parametrize("field", ["n_fake_cached", "n_state_cached"])
def test_all_prompt_tokens_and_one_less(
    client: Client, prefixes: PrefixBuilder, field: str
) -> None:
    what = prompt(prefixes, DEPTH)
    total = DEPTH + ask(client, what, n_fake_cached=DEPTH).timings["prompt_n"]
    timings = ask(client, what, **{field: total - 1}).timings
    assert (timings["cache_n"], timings["prompt_n"]) == (total - 1, 1)
    with pytest.raises(RequestRefused, match="must be less than the number of prompt tokens"):
        ask(client, what, **{field: total})


def test_prefix_that_reaches_into_an_image(client: Client, prefixes: PrefixBuilder) -> None:
    what = prompt(prefixes, DEPTH, image=True)
    full = ask(client, what, n_fake_cached=0).timings["prompt_n"]
    tail = ask(client, prompt(prefixes, DEPTH), n_fake_cached=DEPTH).timings["prompt_n"]
    refused = {"n_fake_cached": [], "n_state_cached": []}
    for depth in range(DEPTH, full, 1):
        for field, where in refused.items():
            try:
                timings = ask(client, what, **{field: depth}).timings
            except RequestRefused:
                where.append(depth)
            else:
                assert timings["cache_n"] == depth
    image = 320 // 32 * 192 // 32
    first = refused["n_state_cached"][0]
    # A state can end before an image and after it, not inside.
    assert refused["n_state_cached"] == list(range(first, first + image - 1))
    # A fabricated prefix holds text only: it cannot reach into the image or past it.
    assert refused["n_fake_cached"] == list(range(first, full))
    assert first > DEPTH
    assert full > first + image - 1 + tail - 2


def test_empty_and_list_prompts(client: Client) -> None:
    for what in ("", [], [[]]):
        with pytest.raises(RequestRefused, match="HTTP 400"):
            client._json("POST", "/completion", {"prompt": what, "n_fake_cached": 1})


def test_several_completions_of_one_prompt(start_server: StartServer) -> None:
    with start_server("--parallel", "2", context=2048) as two:
        prefixes = make_prefixes(two.client, max_depth=400)
        for field in ("n_fake_cached", "n_state_cached"):
            with pytest.raises(RequestRefused, match="not supported with n > 1"):
                ask(two.client, prompt(prefixes, DEPTH), n=2, **{field: DEPTH})


def test_chat_endpoint_takes_and_refuses_the_same(client: Client) -> None:
    chat = {
        "messages": [{"role": "user", "content": "one two three four five six seven eight"}],
        "max_tokens": 1,
    }
    timings = client._json("POST", "/v1/chat/completions", {**chat, "n_fake_cached": 5})["timings"]
    assert timings["cache_n"] == 5
    assert timings["prefix"]["kind"] == "fake"
    for bad in (-1, 1.5, "5", 5000, CONTEXT + 1):
        with pytest.raises(RequestRefused, match=r"HTTP 400 .*n_fake_cached"):
            client._json("POST", "/v1/chat/completions", {**chat, "n_fake_cached": bad})


def test_saved_states_can_be_turned_off(start_server: StartServer) -> None:
    with start_server("--prefix-ram", "0", context=1024) as off:
        assert off.client.props()["prefix"] == {
            "memory": "hybrid",
            "n_fake_cached": True,
            "n_state_cached": False,
        }
        prefixes = make_prefixes(off.client, max_depth=400)
        with pytest.raises(RequestRefused, match="--prefix-ram 0"):
            ask(off.client, prompt(prefixes, DEPTH), n_state_cached=DEPTH)


def test_state_larger_than_the_limit(start_server: StartServer) -> None:
    with start_server("--prefix-ram", "1", context=2048) as tight:
        prefixes = make_prefixes(tight.client, max_depth=1000)
        with pytest.raises(RequestRefused, match="cannot be saved, try increasing --prefix-ram"):
            ask(tight.client, prompt(prefixes, 900), n_state_cached=900)
        assert ask(tight.client, prompt(prefixes, 900)).body["timings"]["cache_n"] == 0

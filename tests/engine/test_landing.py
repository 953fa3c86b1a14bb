"""The new content starts at token L exactly, for every L a context can take."""

from __future__ import annotations

import pytest

from experiment.client import Client
from experiment.prefix import PrefixBuilder
from experiment.trace import Baseline, Step
from tests.engine.asking import SMALL, ask, prompt
from tests.engine.conftest import CONTEXT, MAX_DEPTH, StartServer, make_prefixes

# 200 depths from the smallest to the largest, about evenly spread, both ends included.
COUNT = 200


def depths(prefixes: PrefixBuilder) -> list[int]:
    low = prefixes.min_depth
    return [low + round((MAX_DEPTH - low) * i / (COUNT - 1)) for i in range(COUNT)]


def test_new_content_lands_at_200_depths(client: Client, prefixes: PrefixBuilder) -> None:
    chosen = depths(prefixes)
    assert len(set(chosen)) == COUNT
    sizes: dict[bool, set[int]] = {False: set(), True: set()}
    for index, depth in enumerate(chosen):
        image = index % 4 == 0 and depth < MAX_DEPTH - 200
        timings = ask(client, prompt(prefixes, depth, image=image), n_fake_cached=depth).timings
        assert timings["cache_n"] == depth
        assert timings["prefix"]["n"] == depth
        assert timings["prefix"]["pos_max"] == depth - 1
        sizes[image].add(timings["prompt_n"])
    # What follows the prefix is the same at every depth, so no token slipped across the boundary.
    assert len(sizes[False]) == 1
    assert len(sizes[True]) == 1


def test_full_decodes_the_prefix_and_the_new_tokens(
    client: Client, prefixes: PrefixBuilder
) -> None:
    for depth in (prefixes.min_depth, 255, 256, 257, 1000):
        for image in (False, True):
            what = prompt(prefixes, depth, image=image)
            fake = ask(client, what, n_fake_cached=depth).timings
            full = ask(client, what, n_fake_cached=0).timings
            assert full["cache_n"] == 0
            assert full["prompt_n"] == depth + fake["prompt_n"]
            assert full["prefix"]["n_kv"] == fake["prefix"]["n_kv"]


def test_asked_number_of_text_tokens_is_what_is_decoded(
    client: Client, prefixes: PrefixBuilder
) -> None:
    def new_tokens(count: int, *, image: bool) -> int:
        step = Step("t", 0, 300, "tokens", None, count, SMALL if image else None, Baseline(), 1)
        png = None
        if image:
            from experiment.screenshot import png_bytes

            png = png_bytes(SMALL, 7)
        made = prefixes.step_prompt(step, png)
        assert made.new_text_tokens == count
        return int(ask(client, made.prompt, n_fake_cached=300).timings["prompt_n"])

    for image in (False, True):
        base = new_tokens(1, image=image)
        for count in (2, 17, 200):
            assert new_tokens(count, image=image) == base + count - 1


def test_context_limit_is_reached_and_not_passed(start_server: StartServer) -> None:
    with start_server(context=512) as small:
        prefixes = make_prefixes(small.client, max_depth=512)
        tail = ask(small.client, prompt(prefixes, 100), n_fake_cached=100).timings["prompt_n"]
        # One cell must be left for the token that is generated.
        deepest = 512 - tail - 1
        assert (
            ask(small.client, prompt(prefixes, deepest), n_fake_cached=deepest).timings["cache_n"]
            == deepest
        )
        with pytest.raises(Exception, match="exceeds the available context size"):
            ask(small.client, prompt(prefixes, deepest + 1), n_fake_cached=deepest + 1)


def test_context_is_what_was_asked_for(client: Client) -> None:
    assert client.props()["default_generation_settings"]["n_ctx"] == CONTEXT

"""What a fabricated prefix holds: zeros, or a short real segment repeated; never what was there."""

from __future__ import annotations

import pytest

from experiment.client import Client
from experiment.errors import RequestRefused, ServerStartError
from experiment.prefix import PrefixBuilder
from tests.engine.asking import ask, prompt, top_tokens
from tests.engine.conftest import StartServer, make_prefixes

TILE = 256


def test_a_prefix_as_short_as_the_segment_is_the_real_one(start_server: StartServer) -> None:
    # A server of its own: its segment is made of the first prefix that is asked for.
    with start_server() as fresh:
        prefixes = make_prefixes(fresh.client)
        for depth in (100, TILE):  # the longer one replaces the segment of the shorter one
            what = prompt(prefixes, depth)
            real = top_tokens(ask(fresh.client, what, n_state_cached=depth))
            assert top_tokens(ask(fresh.client, what, n_fake_cached=depth)) == real
            zero = ask(fresh.client, what, n_fake_cached=depth, fake_fill="zero")
            assert top_tokens(zero) != pytest.approx(real, abs=0.2)


@pytest.mark.parametrize("fill", ["zero", "tile"])
def test_what_comes_out_does_not_hang_on_earlier_requests(
    client: Client, prefixes: PrefixBuilder, fill: str
) -> None:
    ask(client, prompt(prefixes, TILE), n_fake_cached=TILE)  # the segment has its full length
    what, other = prompt(prefixes, 1100), prompt(prefixes, 3000, text="Other words.")
    first = ask(client, what, n_fake_cached=1100, fake_fill=fill)
    for disturbance in ({}, {"n_state_cached": 3000}, {"n_fake_cached": 3000, "fake_fill": "tile"}):
        ask(client, other, **disturbance)
        again = ask(client, what, n_fake_cached=1100, fake_fill=fill)
        assert top_tokens(again) == top_tokens(first)
    assert first.timings["prefix"]["fill"] == fill
    assert first.timings["prefix"]["fill_ms"] > 0


def test_the_fills_differ_and_tile_is_the_default(client: Client, prefixes: PrefixBuilder) -> None:
    what = prompt(prefixes, 1100)
    answers = {
        fill: ask(client, what, n_fake_cached=1100, **fields)
        for fill, fields in {
            "default": {},
            "null": {"fake_fill": None},
            "tile": {"fake_fill": "tile"},
            "zero": {"fake_fill": "zero"},
        }.items()
    }
    assert top_tokens(answers["default"]) == top_tokens(answers["tile"])
    assert top_tokens(answers["null"]) == top_tokens(answers["tile"])
    assert top_tokens(answers["zero"]) != pytest.approx(top_tokens(answers["tile"]), abs=0.1)


def test_filling_is_not_in_the_timed_window(client: Client, prefixes: PrefixBuilder) -> None:
    timings = ask(client, prompt(prefixes, 3000), n_fake_cached=3000).timings
    # The driver waits for both; the first times are the server's own.
    prefix = timings["prefix"]
    reply = ask(client, prompt(prefixes, 3000), n_fake_cached=3000)
    inside = reply.timings["prompt_ms"] + reply.timings["prefix"]["fill_ms"]
    assert inside < reply.wall_ms
    assert prefix["install_ms"] < timings["prompt_ms"]


def test_only_a_fabricated_prefix_is_filled(client: Client, prefixes: PrefixBuilder) -> None:
    for fields in ({"n_state_cached": 500, "fake_fill": "zero"}, {"n_fake_cached": 0}):
        prefix = ask(client, prompt(prefixes, 500), **fields).timings["prefix"]
        assert (prefix["fill"], prefix["fill_ms"]) == ("none", 0)


@pytest.mark.parametrize("value", ["", "tiles", "TILE", 0, 1.5, True, [], {}, ["tile"]])
def test_other_fills_are_refused(client: Client, prefixes: PrefixBuilder, value: object) -> None:
    with pytest.raises(RequestRefused, match='fake_fill must be "tile" or "zero", got'):
        ask(client, prompt(prefixes, 500), n_fake_cached=500, fake_fill=value)


@pytest.mark.parametrize("flash", ["on", "off"])
def test_every_slot_gets_the_same_data(start_server: StartServer, flash: str) -> None:
    """Also where the values are stored transposed, which they are without flash attention."""
    flags = ("--parallel", "2", "--kv-unified", "--flash-attn", flash)
    with start_server(*flags, context=8192) as two:
        prefixes = make_prefixes(two.client)
        real = top_tokens(ask(two.client, prompt(prefixes, TILE), n_state_cached=TILE, id_slot=1))
        # Slot 1 first: a fabricated prefix leaves it empty, and the next one the same cells.
        for slot in (1, 0, 1):
            short = ask(two.client, prompt(prefixes, TILE), n_fake_cached=TILE, id_slot=slot)
            assert top_tokens(short) == pytest.approx(real, abs=1e-4)
        answers = [
            top_tokens(ask(two.client, prompt(prefixes, 900), n_fake_cached=900, id_slot=slot))
            for slot in (0, 1)
        ]
        assert answers[0] == answers[1]


def test_the_segments_length_is_an_argument(start_server: StartServer) -> None:
    with start_server("--fake-tile", "16") as short, start_server() as usual:
        answers = []
        for server in (short, usual):
            prefixes = make_prefixes(server.client)
            answers.append(top_tokens(ask(server.client, prompt(prefixes, 800), n_fake_cached=800)))
        assert answers[0] != pytest.approx(answers[1], abs=0.05)
    with pytest.raises(ServerStartError, match="fake-tile"), start_server("--fake-tile", "0"):
        pass

"""The untimed pass that counts experts: whom it asks, what it keeps, and when it is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_world import (
    DISTINCT_EXPERTS,
    FILL,
    LAYERS,
    SIMPLE_COUNTS,
    Ask,
    World,
    counts,
    distinct_experts,
    events,
    query,
    status,
    structure,
    the_run,
)

from experiment.errors import RequestRefused, ServerError
from experiment.experts import chosen_places
from experiment.settings import ScheduleSettings
from experiment.trace import Baseline, Step


def step(number: int, depth: int) -> Step:
    return Step("t", number, depth, "tokens", None, 20, None, Baseline(), number + 1)


def chosen(
    depths: list[int], count: int, *, limit: int = 1 << 20, lacking: set[int] | None = None
) -> list[int]:
    """Depths of the steps that are chosen; those at ``lacking`` have no valid measurement."""
    steps = [step(number, depth) for number, depth in enumerate(depths)]
    measured = {("t", one.step) for one in steps if one.depth not in (lacking or set())}
    schedule = ScheduleSettings(structure_steps=count, restored_max_depth=limit)
    return [steps[place].depth for place in chosen_places(steps, schedule, lambda _: measured)]


DEPTHS = [700, 100, 900, 300, 500, 200, 800, 400, 600]


@pytest.mark.parametrize(
    ("count", "depths"),
    [
        (0, []),
        (1, [900]),
        (2, [100, 900]),
        (3, [100, 500, 900]),
        (5, [100, 300, 500, 700, 900]),
        (6, [100, 200, 400, 500, 700, 900]),
        (9, sorted(DEPTHS)),
        (50, sorted(DEPTHS)),
    ],
)
def test_steps_are_chosen_evenly_in_the_order_of_depth(count: int, depths: list[int]) -> None:
    assert chosen(DEPTHS, count) == depths


def test_a_step_without_a_prefix_has_nothing_to_compare() -> None:
    assert chosen([0, 100, 0, 300], 5) == [100, 300]


def test_of_one_depth_every_step_is_taken_once() -> None:
    steps = [step(number, 500) for number in range(7)]
    schedule = ScheduleSettings(structure_steps=3)
    assert chosen_places(steps, schedule) == [0, 3, 6]


def test_what_cannot_be_compared_is_not_chosen() -> None:
    assert chosen(DEPTHS, 3, limit=500) == [100, 300, 500]
    assert chosen(DEPTHS, 2, lacking={100, 900}) == [200, 800]
    assert chosen(DEPTHS, 6, limit=0) == []
    assert chosen([], 6) == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, with_refused=False)


ASKED: list[Ask] = [("a", n, variant) for n in (0, 1) for variant in ("fake", "restored")]
COUNTED = "SELECT task_id, step, variant, fake_fill, ubatch, layer, distinct_experts FROM expert"


def rows_of(*asks: Ask) -> list[tuple[Any, ...]]:
    """What the fake server counts: two ubatches a step."""
    return sorted(
        (*ask, FILL if ask[2] == "fake" else "none", ubatch, layer, first + ubatch + layer)
        for ask in asks
        for first in [DISTINCT_EXPERTS[ask[2]]]
        for ubatch in range(2)
        for layer in range(LAYERS)
    )


def test_fake_and_restored_of_each_step_are_counted_after_the_rounds(world: World) -> None:
    asked_before: list[int] = []

    def counting(ask: Ask, ubatches: int) -> Any:
        asked_before.append(len(world.asked))
        return distinct_experts(ask, ubatches)

    world.counting = counting
    folder = world.start()
    assert world.counted == ASKED
    assert set(asked_before) == {24}
    assert world.sessions == 1  # in the server that is there
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(*ASKED)
    assert events(folder, "experts") == ["counted the experts of 2 steps"]
    # Nothing of it is a measurement.
    assert counts(folder) == SIMPLE_COUNTS


def test_its_raw_files_have_a_name_of_their_own(world: World) -> None:
    folder = world.start()
    names = {path.name for path in (folder / "raw").glob("*_experts.json")}
    assert names == {
        f"{line:06d}_{variant}_experts.json" for line in (1, 2) for variant in ("fake", "restored")
    }
    kept = json.loads((folder / "raw" / "000002_restored_experts.json").read_text())
    assert kept["response"]["timings"]["experts"] == distinct_experts(("a", 1, "restored"), 2)


def test_only_the_chosen_places_are_asked(tmp_path: Path) -> None:
    world = World(tmp_path, structure_steps=1)
    folder = world.start()
    assert world.counted == ASKED[2:]
    assert events(folder, "experts") == ["counted the experts of 1 step"]


@pytest.mark.parametrize("schedule", [{"structure_steps": 0}, {"restored_max_depth": 0}])
def test_where_nothing_can_be_compared_nothing_is_asked(
    tmp_path: Path, schedule: dict[str, object]
) -> None:
    world = World(tmp_path, with_refused=False, **schedule)
    folder = world.start()
    assert world.counted == []
    assert events(folder, "experts") == []
    world.resume(folder)
    assert world.sessions == 1


def test_a_refused_step_is_not_asked(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.start()
    assert world.counted == ASKED
    assert len(events(folder, "experts")) == 1


def test_a_model_without_experts_is_asked_once(world: World) -> None:
    world.counting = lambda _ask, _n: []
    folder = world.start()
    assert world.counted == ASKED[:1]
    assert query(folder, COUNTED) == []
    assert events(folder, "experts") == ["the model has no experts"]
    world.resume(folder)
    assert (world.sessions, len(world.counted)) == (1, 1)


def test_a_refusal_is_an_event_and_no_failure(world: World) -> None:
    world.counting = lambda ask, n: (
        RequestRefused("HTTP 400: no") if ask == ASKED[1] else distinct_experts(ask, n)
    )
    folder = world.start()
    assert status(folder) == "finished"
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(ASKED[0], *ASKED[2:])
    assert query(
        folder,
        "SELECT task_id, step, variant, round, message FROM event WHERE kind = 'refused'",
    ) == [("a", 0, "restored", None, "experts were not counted: HTTP 400: no")]
    assert counts(folder) == SIMPLE_COUNTS


@pytest.mark.parametrize(
    ("experts", "reason"),
    [
        (None, "the server did not report experts for each of 2 ubatches"),
        ([[5, 6]], "the server did not report experts for each of 2 ubatches"),
        ({"0": [5]}, "the server did not report experts for each of 2 ubatches"),
        ([[5, 6], 7], "an ubatch has no layers with experts"),
        ([[5, 6], []], "an ubatch has no layers with experts"),
        ([[5, 6], [5, 6.5]], "a layer's number of distinct experts is no whole number"),
        ([[5, 6], [5, None]], "a layer's number of distinct experts is no whole number"),
        ([[5, 6], [5, -1]], "a layer's number of distinct experts is no whole number"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_event(
    world: World, experts: object, reason: str
) -> None:
    world.counting = lambda ask, n: experts if ask == ASKED[2] else distinct_experts(ask, n)
    folder = world.start()
    assert status(folder) == "finished"
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(*ASKED[:2], ASKED[3])
    assert events(folder, "invalid") == [f"experts were not counted: {reason}"]


def test_an_answer_that_breaks_a_rule_is_not_kept(world: World) -> None:
    world.recounting = {"cache_n": 7}
    folder = world.start()
    assert query(folder, COUNTED) == []
    assert events(folder, "invalid")[0] == "experts were not counted: cache_n is 7, not 300"
    assert len(events(folder, "invalid")) == len(ASKED)
    assert counts(folder) == SIMPLE_COUNTS


@pytest.mark.parametrize("at", range(4))
def test_stopped_amid_it_a_run_goes_on_where_it_was(world: World, at: int) -> None:
    def counting(ask: Ask, ubatches: int) -> Any:
        stops = len(world.counted) == at + 1
        return KeyboardInterrupt() if stops else distinct_experts(ask, ubatches)

    world.counting = counting
    with pytest.raises(KeyboardInterrupt):
        world.start()
    folder = the_run(world)
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(*ASKED[:at])
    before = structure(folder)
    world.counting = distinct_experts
    world.resume(folder)
    assert status(folder) == "finished"
    assert world.counted == [*ASKED[: at + 1], *ASKED[at:]]
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(*ASKED)
    assert events(folder, "experts") == ["counted the experts of 2 steps"]
    # No warm-up either: nothing is left to be timed.
    assert len(world.asked) == 24
    assert [row for row in structure(folder) if row[2] != "arithmetic"] == before


def test_a_server_that_is_lost_amid_it_is_started_again(world: World) -> None:
    def counting(ask: Ask, ubatches: int) -> Any:
        lost = len(world.counted) == 3
        return ServerError("gone") if lost else distinct_experts(ask, ubatches)

    world.counting = counting
    folder = world.start()
    assert (status(folder), world.sessions) == ("finished", 2)
    assert world.counted == [*ASKED[:3], *ASKED[2:]]
    assert query(folder, f"{COUNTED} ORDER BY ALL") == rows_of(*ASKED)
    assert len(events(folder, "server_lost")) == 1
    assert len(events(folder, "rounds")) == 1

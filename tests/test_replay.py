"""Serving: lost servers, rounds that are added, and a run that is stopped amid either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fake_world import (
    LOST,
    ROUNDS,
    SIMPLE_COUNTS,
    Ask,
    Recording,
    World,
    counts,
    events,
    query,
    slowed,
    status,
    structure,
    the_run,
)

from experiment import replay
from experiment.database import DATABASE
from experiment.errors import RequestRefused, ServerError
from experiment.schedule import Planned


@pytest.fixture(autouse=True, scope="module")
def few_pairs() -> Iterator[None]:
    """Two pairs have a width that counts here, so that the values can be worked out by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiment.rounds.MIN_PAIRS", 2)
        yield


@pytest.fixture
def simple(tmp_path: Path) -> World:
    """Without the step that is refused."""
    return World(tmp_path, with_refused=False)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("simple"), with_refused=False).start())


@pytest.mark.parametrize("at", [3, LOST])
def test_a_lost_server_is_started_again_and_the_run_goes_on(
    simple: World, uninterrupted: list[tuple[Any, ...]], at: int
) -> None:
    simple.progress = seen = Recording()

    def trouble(number: int, ask: Ask) -> BaseException | None:
        simple.dead = None
        if number == at:
            simple.dead = ServerError("the server ended with signal 9") if at == LOST else None
            return ServerError("the server went away")
        return None

    simple.trouble = trouble
    folder = simple.start()
    assert status(folder) == "finished"
    assert simple.sessions == 2
    assert simple.open_sessions == 0
    assert structure(folder) == uninterrupted
    (message,) = events(folder, "server_lost")
    # The end of the process, where that is it, tells more than the request that it broke.
    assert ("ended with signal 9" if at == LOST else "went away") in message
    assert [line for line in seen.lines if "started again" in line]
    assert events(folder, "failed") == []
    # 24 requests, the one that was lost, and the warm-up before it or of what was still to do.
    assert len(simple.asked) == 24 + 1 + {3: 3, LOST: 4}[at]


def test_a_server_that_is_lost_again_and_again_ends_the_run_which_can_be_resumed(
    simple: World,
) -> None:
    simple.trouble = lambda number, _: ServerError("gone") if number >= LOST else None
    with pytest.raises(ServerError, match="gone"):
        simple.start()
    folder = the_run(simple)
    assert simple.sessions == 1 + replay.MAX_RESTARTS
    assert status(folder) == "failed"
    assert len(events(folder, "server_lost")) == 1 + replay.MAX_RESTARTS
    assert len(events(folder, "failed")) == 1
    # What was measured is there.
    assert counts(folder)["fake", "ok"] + counts(folder)["restored", "ok"] == 2
    assert "failed" in {found for _, found in counts(folder)}
    # A resume measures what failed and what is missing.
    simple.trouble = lambda _number, _ask: None
    simple.resume(folder)
    assert status(folder) == "finished"
    assert counts(folder) == SIMPLE_COUNTS


def test_a_server_that_does_not_start_ends_the_run(simple: World) -> None:
    def starting(_: int) -> None:
        raise ServerError("cannot start llama-server")

    simple.starting = starting
    with pytest.raises(ServerError, match="cannot start"):
        simple.start()
    assert status(the_run(simple)) == "failed"
    assert simple.asked == []


def test_a_warm_up_that_was_invalid_does_not_hinder_a_restart(simple: World) -> None:
    def trouble(number: int, ask: Ask) -> dict[str, Any] | BaseException | None:
        if number == 0:
            return {"cache_n": 1}
        return ServerError("gone") if number == LOST else None

    simple.trouble = trouble
    folder = simple.start()
    assert status(folder) == "finished"
    assert {key: n for key, n in counts(folder).items() if key[1] == "ok"} == {
        key: n for key, n in SIMPLE_COUNTS.items() if key[1] == "ok"
    }


def test_a_refused_step_does_not_hinder_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.trouble = lambda number, _: ServerError("gone") if number == LOST else None
    folder = world.start()
    assert status(folder) == "finished"
    refused = {key: n for key, n in counts(folder).items() if key[1] == "refused"}
    assert counts(folder) == SIMPLE_COUNTS | refused
    assert refused["fake", "refused"] == 1 + ROUNDS


def wavering(item: Planned) -> float:
    """Every other round fake takes longer than restored by 2 %."""
    return 1.02 if item.variant == "fake" and item.round % 2 else 1.0


def wavering_step(item: Planned) -> float:
    return wavering(item) if item.step.step == 1 else 1.0


def once(item: Planned) -> float:
    return 1.02 if item.key == ("a", 0, "fake", 0) else 1.0


def adding(
    folder: Path, factor: Callable[[Planned], float], *, with_refused: bool = False, **schedule: Any
) -> World:
    world = World(folder, with_refused=with_refused, **schedule)
    world.trouble = slowed(world, factor)
    return world


def rounds_made(folder: Path) -> dict[tuple[str, int, str], int]:
    """How many rounds each step has by variant, whatever came of them."""
    rows = query(folder, "SELECT task_id, step, variant FROM measurement WHERE round >= 0")
    return dict(Counter(row for row in rows if row[2] not in ("full", "arithmetic")))


def everywhere(rounds: int, steps: tuple[int, ...] = (0, 1)) -> dict[tuple[str, int, str], int]:
    return {("a", n, v): rounds for n in steps for v in ("fake", "control", "restored")}


def test_rounds_are_added_until_the_interval_is_narrow(tmp_path: Path) -> None:
    world = adding(tmp_path, once)
    world.progress = seen = Recording()
    folder = world.start()
    # Of 6 pairs the interval is the whole range, of 8 it leaves the largest value out.
    assert rounds_made(folder) == everywhere(4)
    sentence = "4 rounds: half-width 0.00 % is within 0.50 %"
    assert events(folder, "rounds") == [sentence]
    assert seen.lines[-1] == sentence
    assert (status(folder), world.sessions) == ("finished", 1)
    # Added rounds have no warm-up, and no full.
    assert counts(folder)["full", "ok"] == 2
    assert len(world.asked) == 24 + 6
    assert [ask[2] for ask in world.asked[24:]] == [
        *("restored", "control", "fake"),
        *("control", "fake", "restored"),
    ]


def test_no_round_is_added_to_what_is_narrow(simple: World) -> None:
    simple.progress = seen = Recording()
    folder = simple.start()
    assert rounds_made(folder) == everywhere(ROUNDS)
    assert events(folder, "rounds") == ["3 rounds: half-width 0.00 % is within 0.50 %"]
    assert "add rounds" not in seen.totals


def test_the_limit_of_rounds_ends_it(tmp_path: Path) -> None:
    folder = adding(tmp_path, wavering, max_rounds=6).start()
    assert rounds_made(folder) == everywhere(6)
    # Half of 12 pairs are 1, half 1.02; ranks 3 and 10: (1.02 - 1.01) / 1.01.
    assert events(folder, "rounds") == ["limit of 6 rounds reached: half-width 0.99 % of 0.50 %"]


def test_the_limit_of_time_ends_it(tmp_path: Path) -> None:
    # A round of six requests takes 0.738 s: two of them are less than the limit, three more.
    world = adding(tmp_path, wavering, time_limit_s=2.0)
    world.progress = seen = Recording()
    folder = world.start()
    assert rounds_made(folder) == everywhere(6)
    assert events(folder, "rounds") == [
        "time limit of 2 s reached after 6 rounds: half-width 0.99 % of 0.50 %"
    ]
    # The bar counts the seconds of added rounds, and its note says what they are for.
    assert seen.totals["add rounds"] == 2.0
    assert seen.done["add rounds"] == pytest.approx([0.0] * 6 + [0.738] * 6 + [1.476] * 6)
    assert "a/1 fake round 4, half-width 2.00 % of 0.50 %" in seen.notes


def test_with_precision_step_only_steps_that_are_wide_go_on(tmp_path: Path) -> None:
    folder = adding(tmp_path, wavering_step, precision="step", max_rounds=5).start()
    assert rounds_made(folder) == everywhere(ROUNDS, (0,)) | everywhere(5, (1,))
    # 1, 1, 1, 1.02, 1.02: the whole range, from the median 1.
    assert events(folder, "rounds") == [
        "limit of 5 rounds reached: half-width is above 0.50 % for 1 of 2 steps, at most 2.00 %"
    ]
    added = query(
        folder,
        "SELECT round, variant, position_in_round FROM measurement WHERE round >= 3 ORDER BY ALL",
    )
    assert added == [
        *((3, "control", 0), (3, "fake", 1), (3, "restored", 2)),
        *((4, "control", 2), (4, "fake", 0), (4, "restored", 1)),
    ]


def test_where_nothing_is_restored_fake_and_control_decide(tmp_path: Path) -> None:
    folder = adding(tmp_path, wavering, restored_max_depth=0, max_rounds=4).start()
    assert rounds_made(folder) == {("a", n, v): 4 for n in (0, 1) for v in ("fake", "control")}
    # control/fake: 4 of 8 are 1 / 1.02; ranks 2 and 7: half of 1 - 1 / 1.02, of the mean of both.
    assert events(folder, "rounds") == [
        "nothing is restored, so control/fake decides; "
        "limit of 4 rounds reached: half-width 0.99 % of 0.50 %"
    ]
    assert query(folder, "SELECT count(*) FROM measurement WHERE variant = 'restored'") == [(0,)]


def test_steps_too_deep_to_be_restored_get_no_further_rounds(tmp_path: Path) -> None:
    folder = adding(tmp_path, wavering, restored_max_depth=500, max_rounds=5).start()
    assert rounds_made(folder) == everywhere(5, (0,)) | {
        ("a", 1, "fake"): ROUNDS,
        ("a", 1, "control"): ROUNDS,
    }


def test_refused_steps_get_no_further_rounds(tmp_path: Path) -> None:
    folder = adding(tmp_path, wavering, with_refused=True, max_rounds=5).start()
    assert rounds_made(folder) == everywhere(5) | {
        ("b", 0, variant): ROUNDS for variant in ("fake", "control", "restored")
    }


def test_a_step_that_gives_no_pairs_any_more_keeps_nothing_going(tmp_path: Path) -> None:
    world = adding(tmp_path, wavering, max_rounds=7)
    slow = world.trouble

    def trouble(number: int, ask: Ask) -> Any:
        bad = ask == ("a", 1, "restored") and world.item.round > 0
        return {"cache_n": 1} if bad else slow(number, ask)

    world.trouble = trouble
    folder = world.start()
    assert rounds_made(folder) == everywhere(7, (0,)) | everywhere(ROUNDS, (1,))
    assert len(events(folder, "invalid")) == ROUNDS - 1


def test_once_no_step_gives_pairs_no_round_is_added(tmp_path: Path) -> None:
    world = adding(tmp_path, once)
    slow = world.trouble

    def trouble(number: int, ask: Ask) -> Any:
        bad = ask[2] == "restored" and world.item.round > 0
        return RequestRefused("no") if bad else slow(number, ask)

    world.trouble = trouble
    folder = world.start()
    assert rounds_made(folder) == everywhere(ROUNDS)
    # The pairs of the first round: 1.02 and 1.
    assert events(folder, "rounds") == [
        "3 rounds, further ones give no pairs: half-width 0.99 % of 0.50 %"
    ]


def test_without_any_pair_no_round_is_added(simple: World) -> None:
    simple.trouble = lambda _, ask: RequestRefused("no") if ask[2] == "restored" else None
    folder = simple.start()
    assert rounds_made(folder) == everywhere(ROUNDS)
    assert events(folder, "rounds") == ["3 rounds: no pair was measured"]


ADDED: dict[str, dict[str, Any]] = {
    "rounds": {"max_rounds": 6},
    "time": {"time_limit_s": 2.0},
    "step": {"max_rounds": 6, "precision": "step"},
}


def of_step_too(kind: str) -> Callable[[Planned], float]:
    return wavering_step if kind == "step" else wavering


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Any], list[str]]]:
    """Rows and reason of runs with added rounds that nothing stopped."""
    made = {}
    for kind, schedule in ADDED.items():
        folder = adding(tmp_path_factory.mktemp(kind), of_step_too(kind), **schedule).start()
        made[kind] = (structure(folder), events(folder, "rounds"))
    return made


# 24 requests come before; an added round has 6, or 3 with the precision "step".
STOPS = [
    *(("rounds", at) for at in (23, 24, 25, 29, 30, 32, 41)),
    *(("time", at) for at in (26, 36, 41)),
    *(("step", at) for at in (24, 25, 26, 27, 28, 32)),
]


@pytest.mark.parametrize(("kind", "at"), STOPS)
def test_stopped_amid_added_rounds_a_run_goes_on_to_the_same_rows(
    tmp_path: Path, added: dict[str, tuple[list[Any], list[str]]], kind: str, at: int
) -> None:
    world = adding(tmp_path, of_step_too(kind), **ADDED[kind])
    slow = world.trouble
    world.trouble = lambda n, ask: KeyboardInterrupt() if n == at else slow(n, ask)
    with pytest.raises(KeyboardInterrupt):
        world.start()
    folder = the_run(world)
    assert (status(folder), events(folder, "rounds")) == ("interrupted", [])
    assert len(world.asked) == at + 1
    world.trouble = slow
    world.resume(folder)
    assert status(folder) == "finished"
    rows, reason = added[kind]
    assert structure(folder) == rows
    assert events(folder, "rounds") == reason
    # A warm-up once in the new server, of the steps that had something left, and nothing twice.
    measured = len([row for row in rows if row[3] >= 0 and row[2] != "arithmetic"])
    warmed_up = len(world.asked) - 4 - measured - 1
    assert warmed_up in (2, 4)
    assert warmed_up == 4 or kind == "step" or at in (23, 29, 41)


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("at", [24, 26, 29])
def test_a_server_lost_amid_added_rounds_is_started_again(
    tmp_path: Path, added: dict[str, tuple[list[Any], list[str]]], kind: str, at: int
) -> None:
    world = adding(tmp_path, of_step_too(kind), **ADDED[kind])
    slow = world.trouble
    world.trouble = lambda n, ask: ServerError("gone") if n == at else slow(n, ask)
    folder = world.start()
    assert (status(folder), world.sessions) == ("finished", 2)
    assert len(events(folder, "server_lost")) == 1
    assert (structure(folder), events(folder, "rounds")) == added[kind]


def test_a_step_that_was_not_warmed_up_after_a_resume_is_before_its_next_round(
    tmp_path: Path,
) -> None:
    world = adding(tmp_path, wavering, max_rounds=5)
    slow = world.trouble
    at = 24 + 3  # the first step's added round is done, the second one's is not
    world.trouble = lambda n, ask: KeyboardInterrupt() if n == at else slow(n, ask)
    with pytest.raises(KeyboardInterrupt):
        world.start()
    world.trouble, before = slow, len(world.asked)
    world.resume(the_run(world))
    new = world.asked[before:]
    pair = ("fake", "restored")
    assert new[:2] == [("a", 1, variant) for variant in pair]
    assert {ask[1] for ask in new[2:5]} == {1}
    assert new[5:7] == [("a", 0, variant) for variant in pair]
    assert len(new) == 2 + 3 + 2 + 6


def test_what_the_event_lacks_is_told_without_a_server(simple: World) -> None:
    folder = simple.start()
    wanted = events(folder, "rounds")
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("DELETE FROM event WHERE kind = 'rounds'")
    for _ in range(2):  # and once only
        simple.resume(folder)
        assert events(folder, "rounds") == wanted
    assert simple.sessions == 1

"""The order of measurements: interleaving, alternation, warm-up, and what a resume leaves out."""

from __future__ import annotations

import pytest

from experiment.schedule import Planned, plan
from experiment.trace import Baseline, Step


def step(number: int, depth: int, task_id: str = "t") -> Step:
    return Step(task_id, number, depth, "tokens", None, 20, None, Baseline(), number + 1)


STEPS = (step(0, 900), step(1, 300), step(2, 600), step(0, 100, "u"))


def planned(
    steps: tuple[Step, ...] = STEPS,
    rounds: int = 3,
    full_rounds: int = 1,
    warmup_rounds: int = 0,
    done: set[tuple[str, int, str, int]] | None = None,
) -> list[Planned]:
    return plan(
        steps,
        rounds=rounds,
        full_rounds=full_rounds,
        warmup_rounds=warmup_rounds,
        done=done or set(),
    )


def in_round(items: list[Planned], number: int) -> list[Planned]:
    return [item for item in items if item.round == number]


def test_the_whole_order_of_a_small_run() -> None:
    items = planned(STEPS[:2], rounds=2, full_rounds=1, warmup_rounds=1)
    assert [
        (item.round, item.step.step, item.variant, item.position_in_round) for item in items
    ] == [
        (-1, 1, "fake", 0),  # the shallow step first
        (-1, 1, "restored", 1),
        (-1, 0, "fake", 2),
        (-1, 0, "restored", 3),
        (0, 0, "fake", 0),
        (0, 0, "restored", 1),
        (0, 0, "full", 2),
        (0, 1, "restored", 3),
        (0, 1, "fake", 4),
        (0, 1, "full", 5),
        (1, 0, "restored", 0),
        (1, 0, "fake", 1),
        (1, 1, "fake", 2),
        (1, 1, "restored", 3),
    ]


def test_each_variant_of_each_step_is_there_once_a_round() -> None:
    items = planned(rounds=5, full_rounds=2)
    keys = [item.key for item in items]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {
        (one.task_id, one.step, variant, number)
        for one in STEPS
        for variant, count in (("fake", 5), ("restored", 5), ("full", 2))
        for number in range(count)
    }
    assert [item.round for item in items] == sorted(item.round for item in items)


def test_the_pair_of_a_step_is_never_torn_apart() -> None:
    for number in range(3):
        items = [
            item for item in in_round(planned(full_rounds=3), number) if item.variant != "full"
        ]
        for first, second in zip(items[::2], items[1::2], strict=True):
            assert first.step == second.step
            assert second.position_in_round == first.position_in_round + 1


def test_who_goes_first_alternates_with_the_round_and_from_step_to_step() -> None:
    items = [item for item in planned(rounds=4) if item.variant != "full"]
    first = {(item.round, STEPS.index(item.step)): item.variant for item in items[::2]}
    for number in range(4):
        for index in range(len(STEPS)):
            assert first[number, index] != first.get((number + 1, index))
            assert first[number, index] != first.get((number, index + 1))
    for index in range(len(STEPS)):  # over an even number of rounds neither is favoured
        assert (
            sorted(first[number, index] for number in range(4)) == ["fake"] * 2 + ["restored"] * 2
        )


def test_the_steps_of_a_round_stay_in_the_order_of_the_trace() -> None:
    steps = [item.step for item in in_round(planned(), 1)]
    assert list(dict.fromkeys(steps)) == list(STEPS)


@pytest.mark.parametrize(("rounds", "full_rounds"), [(1, 3), (3, 0), (2, 2)])
def test_rounds_of_the_control_are_counted_apart(rounds: int, full_rounds: int) -> None:
    items = planned(rounds=rounds, full_rounds=full_rounds)
    counts = {
        variant: sum(item.variant == variant for item in items)
        for variant in ("fake", "restored", "full", "arithmetic")
    }
    assert counts == {
        "fake": rounds * 4,
        "restored": rounds * 4,
        "full": full_rounds * 4,
        "arithmetic": 0,  # nobody asks the server for it
    }


def test_warm_up_goes_from_shallow_to_deep_and_has_no_control() -> None:
    items = planned(warmup_rounds=2, full_rounds=2)
    for number in (-2, -1):
        warmup = in_round(items, number)
        assert [item.step.depth for item in warmup] == [100, 100, 300, 300, 600, 600, 900, 900]
        assert [item.variant for item in warmup] == ["fake", "restored"] * 4
        assert [item.position_in_round for item in warmup] == list(range(8))
    assert [item.round < 0 for item in items] == [True] * 16 + [False] * (len(items) - 16)


def test_nothing_is_planned_twice_after_a_resume_and_nothing_is_lost() -> None:
    everything = planned()
    for stop in range(len(everything) + 1):
        done = {item.key for item in everything[:stop]}
        assert planned(done=done) == everything[stop:]


def test_what_failed_in_the_middle_is_planned_again_at_its_old_place() -> None:
    everything = planned()
    missing = everything[5]
    done = {item.key for item in everything} - {missing.key}
    assert planned(done=done) == [missing]


def test_after_a_resume_only_steps_with_something_left_are_warmed_up() -> None:
    everything = planned(rounds=1, warmup_rounds=1)
    done = {item.key for item in everything if item.round >= 0 and item.step != STEPS[2]}
    again = planned(rounds=1, warmup_rounds=1, done=done)
    assert {item.step for item in again} == {STEPS[2]}
    assert [item.round for item in again] == [-1, -1, 0, 0, 0]
    assert planned(rounds=1, warmup_rounds=1, done=done | {item.key for item in again}) == []


def test_the_cost_of_an_item_grows_with_the_depth_only_where_it_is_decoded() -> None:
    items = planned(rounds=1)
    assert all(item.tokens > 0 for item in items)
    for one in STEPS:
        cost = {item.variant: item.tokens for item in items if item.step == one}
        assert cost["fake"] == cost["restored"]
        assert cost["full"] == cost["fake"] + one.depth

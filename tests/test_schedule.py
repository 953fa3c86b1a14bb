"""The order of measurements: interleaving, rotation, warm-up, and what a resume leaves out."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest

from experiment.recorded import Key, StepKey
from experiment.schedule import Plan, Planned, can_restore, is_cold
from experiment.settings import ScheduleSettings
from experiment.trace import Baseline, Step


def step(number: int, depth: int, task_id: str = "t") -> Step:
    return Step(task_id, number, depth, "tokens", None, 20, None, Baseline(), number + 1)


STEPS = (step(0, 900), step(1, 300), step(2, 600), step(0, 100, "u"))
TRIPLE = ("fake", "control", "restored")


def planned(
    steps: tuple[Step, ...] = STEPS,
    *,
    rounds: int = 3,
    full_rounds: int = 1,
    warmup_rounds: int = 0,
    restored_max_depth: int = 10_000,
    full_max_depth: int = 10_000,
    added: int | None = None,
    only: set[StepKey] | None = None,
    done: set[Key] | None = None,
    warmed: set[StepKey] | None = None,
) -> list[Planned]:
    schedule = ScheduleSettings(
        rounds=rounds,
        full_rounds=full_rounds,
        warmup_rounds=warmup_rounds,
        restored_max_depth=restored_max_depth,
        full_max_depth=full_max_depth,
    )
    made = Plan(
        steps,
        schedule,
        added=added,
        only=None if only is None else [(one.task_id, one.step) in only for one in steps],
        done=lambda keys, number: {
            key for key in done or set() if key[:2] in keys and key[3] == number
        },
        warmed=[(one.task_id, one.step) in (warmed or set()) for one in steps],
    )
    items = list(made)
    assert len(made) == len(items)
    assert made.tokens == sum(item.tokens for item in items)
    asked = {(item.step.task_id, item.step.step) for item in items}
    assert list(made.pending) == [(one.task_id, one.step) in asked for one in steps]
    return items


def in_round(items: list[Planned], number: int) -> list[Planned]:
    return [item for item in items if item.round == number]


def orders(items: list[Planned], one: Step) -> list[tuple[str, ...]]:
    """The order of the rotating variants of a step, round by round."""
    made: dict[int, list[str]] = {}
    for item in items:
        if item.step == one and item.variant in TRIPLE:
            made.setdefault(item.round, []).append(item.variant)
    return [tuple(made[number]) for number in sorted(made)]


def test_a_cold_step_has_its_whole_prompt_alone() -> None:
    steps = (step(0, 0), step(1, 300))
    made = planned(steps, warmup_rounds=1, full_rounds=0, full_max_depth=0, restored_max_depth=0)
    assert [item.variant for item in made if item.step is steps[0]] == ["full"] * 4
    assert [item.round for item in made if item.step is steps[0]] == [-1, 0, 1, 2]
    # As many rounds as others have, or as `full` has where that is more.
    more = planned(steps, full_rounds=5)
    assert [item.variant for item in more if item.step is steps[0]] == ["full"] * 5
    # It gives no pairs, so none is added.
    assert planned(steps, added=3, only={("t", 0)}) == []
    assert is_cold(steps[0])
    assert not can_restore(steps[0], ScheduleSettings())
    done: set[Key] = {("t", 0, "full", number) for number in range(3)}
    assert not [item for item in planned(steps, warmup_rounds=1, done=done) if is_cold(item.step)]


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
        (0, 0, "control", 1),
        (0, 0, "restored", 2),
        (0, 0, "full", 3),
        (0, 1, "control", 4),
        (0, 1, "restored", 5),
        (0, 1, "fake", 6),
        (0, 1, "full", 7),
        (1, 0, "control", 0),
        (1, 0, "restored", 1),
        (1, 0, "fake", 2),
        (1, 1, "restored", 3),
        (1, 1, "fake", 4),
        (1, 1, "control", 5),
    ]


def test_each_variant_of_each_step_is_there_once_a_round() -> None:
    items = planned(rounds=5, full_rounds=2)
    keys = [item.key for item in items]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {
        (one.task_id, one.step, variant, number)
        for one in STEPS
        for variant, count in (("fake", 5), ("control", 5), ("restored", 5), ("full", 2))
        for number in range(count)
    }
    assert [item.round for item in items] == sorted(item.round for item in items)


def test_the_variants_of_a_step_are_never_torn_apart() -> None:
    for number in range(3):
        items = in_round(planned(full_rounds=3), number)
        for place in range(0, len(items), 4):
            four = items[place : place + 4]
            assert {item.step for item in four} == {four[0].step}
            assert {item.variant for item in four[:3]} == set(TRIPLE)
            assert four[3].variant == "full"
            assert [item.position_in_round for item in four] == list(range(place, place + 4))


@pytest.mark.parametrize("one", STEPS)
def test_over_six_rounds_no_variant_is_favoured(one: Step) -> None:
    made = orders(planned(rounds=12), one)
    for six in (made[:6], made[3:9], made[6:]):
        assert sorted(six) == sorted(permutations(TRIPLE))
        places = Counter((variant, place) for order in six for place, variant in enumerate(order))
        assert places == {(variant, place): 2 for variant in TRIPLE for place in range(3)}
        neighbours = Counter(pair for order in six for pair in pairwise(order))
        assert neighbours == dict.fromkeys(permutations(TRIPLE, 2), 2)


def test_over_three_rounds_every_variant_has_every_place_once() -> None:
    made = orders(planned(rounds=3), STEPS[0])
    for place in range(3):
        assert {order[place] for order in made} == set(TRIPLE)


def test_the_order_moves_on_from_round_to_round_and_from_step_to_step() -> None:
    made = [orders(planned(rounds=6), one) for one in STEPS]
    for index, of_step in enumerate(made[:-1]):
        assert of_step[1:] == made[index + 1][:-1]
        assert of_step[0] != of_step[1]


def test_the_steps_of_a_round_stay_in_the_order_of_the_trace() -> None:
    steps = [item.step for item in in_round(planned(), 1)]
    assert list(dict.fromkeys(steps)) == list(STEPS)


@pytest.mark.parametrize(("rounds", "full_rounds"), [(1, 3), (3, 0), (2, 2)])
def test_rounds_of_full_are_counted_apart(rounds: int, full_rounds: int) -> None:
    items = planned(rounds=rounds, full_rounds=full_rounds)
    counts = Counter(item.variant for item in items)
    assert counts == Counter(dict.fromkeys(TRIPLE, rounds * 4) | {"full": full_rounds * 4})


def test_what_is_too_deep_is_left_out() -> None:
    items = planned(rounds=6, warmup_rounds=1, restored_max_depth=300, full_max_depth=600)
    restored = {item.step.depth for item in items if item.variant == "restored"}
    assert restored == {100, 300}  # the depth itself is not too deep
    assert {item.step.depth for item in items if item.variant == "full"} == {100, 300, 600}
    for variant in ("fake", "control"):
        assert len([item for item in items if item.variant == variant and item.round >= 0]) == 24
    # The two that are left take turns at being first.
    counted = [item for item in items if item.round >= 0]
    assert Counter(orders(counted, STEPS[0])) == {("fake", "control"): 3, ("control", "fake"): 3}
    assert [(item.step.depth, item.variant) for item in in_round(items, -1)] == [
        *((100, "fake"), (100, "restored"), (300, "fake"), (300, "restored")),
        *((600, "fake"), (900, "fake")),
    ]
    positions = [item.position_in_round for item in in_round(items, 1)]
    assert positions == list(range(len(positions)))


def test_nothing_is_restored_at_a_limit_of_zero() -> None:
    schedule = ScheduleSettings(restored_max_depth=0)
    assert not any(can_restore(one, schedule) for one in STEPS)
    assert {item.variant for item in planned(restored_max_depth=0, full_max_depth=0)} == {
        *("fake", "control")
    }


def test_an_added_round_goes_on_with_the_rotation_and_has_no_full() -> None:
    whole = planned(rounds=8, full_rounds=8)
    for number in (5, 7):
        added = planned(rounds=3, full_rounds=8, added=number)
        wanted = [item for item in in_round(whole, number) if item.variant != "full"]
        assert [item.key for item in added] == [item.key for item in wanted]
        assert [item.position_in_round for item in added] == list(range(12))


def test_an_added_round_of_some_steps_keeps_their_order_of_variants() -> None:
    some = planned(added=4, only={("t", 1), ("u", 0)})
    assert [item.key for item in some] == [
        item.key for item in planned(added=4) if item.step in (STEPS[1], STEPS[3])
    ]
    assert [item.position_in_round for item in some] == list(range(6))
    assert planned(added=4, only=set()) == []


def test_an_added_round_under_way_keeps_its_places() -> None:
    everything = planned(added=4)
    done = {item.key for item in everything[:5]}
    assert planned(added=4, done=done) == everything[5:]


def test_warm_up_goes_from_shallow_to_deep_and_has_no_control() -> None:
    items = planned(warmup_rounds=2, full_rounds=2)
    for number in (-2, -1):
        warmup = in_round(items, number)
        assert [item.step.depth for item in warmup] == [100, 100, 300, 300, 600, 600, 900, 900]
        assert [item.variant for item in warmup] == ["fake", "restored"] * 4
        assert [item.position_in_round for item in warmup] == list(range(8))
    assert [item.round < 0 for item in items] == [True] * 16 + [False] * (len(items) - 16)


def test_what_is_warm_is_not_warmed_up_again() -> None:
    warm: set[StepKey] = {("t", 0), ("t", 2)}
    items = planned(warmup_rounds=1, added=3, warmed=warm)
    assert [item.step.depth for item in in_round(items, -1)] == [100, 100, 300, 300]
    assert [item for item in items if item.round >= 0] == planned(added=3)


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
    assert [item.round for item in again] == [-1, -1, 0, 0, 0, 0]
    assert planned(rounds=1, warmup_rounds=1, done=done | {item.key for item in again}) == []


def test_the_cost_of_an_item_grows_with_the_depth_only_where_it_is_decoded() -> None:
    items = planned(rounds=1)
    assert all(item.tokens > 0 for item in items)
    for one in STEPS:
        cost = {item.variant: item.tokens for item in items if item.step == one}
        assert cost["fake"] == cost["control"] == cost["restored"]
        assert cost["full"] == cost["fake"] + one.depth


def test_the_store_is_asked_of_some_steps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.schedule.STEPS_AT_ONCE", 3)
    asked: list[tuple[list[StepKey], int]] = []

    def done(keys: Sequence[StepKey], number: int) -> set[Key]:
        asked.append((list(keys), number))
        return {("t", 0, "full", 0)}

    made = Plan(STEPS, ScheduleSettings(rounds=2), done=done)
    keys = [("t", 0), ("t", 1), ("t", 2)], [("u", 0)]
    once = [(of, number) for number in (0, 1) for of in keys]
    assert asked == once
    whole = planned(rounds=2, warmup_rounds=1, done={("t", 0, "full", 0)})
    assert list(made) == whole
    assert asked == once * 2
    # What is not done is not asked for again.
    asked.clear()
    none = Plan(STEPS, ScheduleSettings(rounds=2), done=lambda *_: set(asked.append(([], 0)) or ()))
    assert len(asked) == 4
    assert len(list(none)) == len(none)
    assert len(asked) == 4


def test_requests_are_made_one_by_one() -> None:
    many = tuple(step(number, 1 + number % 977) for number in range(20_000))
    tracemalloc.start()
    made = Plan(many, ScheduleSettings(rounds=3, warmup_rounds=1))
    assert sum(1 for _ in made) == len(made) == len(many) * 12
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A byte a step and three times 8 to sort them, and the keys of a chunk; a request takes 64.
    assert peak < 40 * len(many) + 500_000

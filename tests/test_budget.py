from __future__ import annotations

import random
import re
import time
from collections import Counter

import pytest
from canned_steps import step

from experiment.budget import (
    EXTREME_SHARE,
    MAX_BUDGET_S,
    OUTRIGHT,
    Room,
    Selection,
    choose,
    duration,
    parse_budget,
)
from experiment.errors import SettingsError
from experiment.narrow import Reason
from experiment.trace import Step

# Depths 0 to 9,900, new 1 to 97: no two steps alike, and neither follows from the other.
STEPS = [step(f"t{i % 5}", i, 100 * i, 1 + i * 37 % 97) for i in range(100)]


def second(_: Step) -> float:
    return 1.0


def by_depth(item: Step) -> float:
    return 0.1 + item.depth / 10_000


def select(budget_s: float = 30.0, seed: int = 1, **more: object) -> Selection:
    return choose(STEPS, by_depth, budget_s, seed, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h0m5s", 3605),
        ("1.5h", 5400),
        (" 5 M ", 300),
        ("0.5s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("30", "'30' has no unit"),
        ("", "'' is no duration"),
        ("soon", "'soon' is no duration"),
        ("m", "'m' is no duration"),
        ("30m1h", "'30m1h' is no duration"),
        ("-5m", "'-5m' is no duration"),
        ("1.2.3h", "'1.2.3h' is no duration"),
        (".h", "'.h' is no duration"),
        ("5d", "'5d' is no duration"),
        ("٣m", "'٣m' is no duration"),
        ("infm", "'infm' is no duration"),
        ("0m", "'0m' is not between 0 and 30 days"),
        ("721h", "'721h' is not between 0 and 30 days"),
        ("1" * 12 + "h", "is no duration"),
    ],
)
def test_durations_that_are_none(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)) as caught:
        parse_budget(text)
    assert caught.value.where == "--budget"
    assert caught.value.hint
    assert "--budget=30m" in caught.value.hint


def test_the_longest_budget() -> None:
    assert parse_budget("720h") == MAX_BUDGET_S


def test_times_as_one_says_them() -> None:
    said = [duration(s) for s in (0, 0.0042, 0.5, 119.94, 300, 7200, 5400)]
    assert said == ["0.0 s", "4.2 ms", "0.5 s", "119.9 s", "5.0 min", "2.0 h", "90.0 min"]


def test_everything_fits() -> None:
    made = choose(STEPS, second, 100.0, 1)  # to the second
    assert made.chosen == tuple((item.task_id, item.step) for item in STEPS)
    assert made.left_out == {}
    assert set(made.weights.values()) == {1.0}
    assert made.estimated_s == 100.0


def test_rounding_keeps_nothing_out() -> None:
    # Ten times 0.1 is not 1 in floating point.
    made = choose(STEPS[:10], lambda _: 0.1, 1.0, 1)
    assert len(made.chosen) == 10


def test_the_budget_is_kept_and_used() -> None:
    for budget_s in (1.0, 3.0, 10.0, 30.0, 59.0):
        made = select(budget_s)
        of = {(item.task_id, item.step): item for item in STEPS}
        assert made.estimated_s == pytest.approx(sum(by_depth(of[key]) for key in made.chosen))
        assert made.estimated_s <= budget_s
        # Nothing that is left out fits into what is left.
        left_s = budget_s - made.estimated_s
        assert all(by_depth(of[key]) > left_s for key in made.left_out)
        assert len(made.chosen) + len(made.left_out) == len(STEPS)
        assert not set(made.chosen) & set(made.left_out)


def test_extremes_are_taken() -> None:
    made = select(10.0)
    depth = {(item.task_id, item.step): item.depth for item in STEPS}
    new = {(item.task_id, item.step): item.new_tokens or 0 for item in STEPS}
    for values in (depth, new):
        assert {min(values.values()), max(values.values())} <= {values[k] for k in made.chosen}
    (extremes,) = (stratum for stratum in made.strata if stratum.number == OUTRIGHT)
    # Step 0 is the shallowest and has the smallest new content: it is taken once.
    assert (extremes.steps, extremes.chosen) == (3, 3)
    assert (extremes.depth_from, extremes.depth_to) == (0, 9900)
    assert (extremes.new_from, extremes.new_to) == (1, 97)
    assert [made.weights[key] for key in made.chosen if made.stratum_of[key] == OUTRIGHT] == [
        1.0
    ] * 3


def test_of_equal_extremes_the_cheapest() -> None:
    steps = [step(number=i, depth=10, new=5) for i in range(4)]
    made = choose(steps, lambda item: 1.0 + item.step % 2 - (item.step == 2) / 2, 0.6, 1)
    assert made.chosen == (("a", 2),)


def test_an_extreme_that_takes_too_much_leaves_room_for_others() -> None:
    # The deepest would take 25 s of 30 s; the deepest that is at most a third is taken.
    def cost_s(item: Step) -> float:
        return 25.0 if item.depth == 9900 else by_depth(item)

    made = choose(STEPS, cost_s, 30.0, 1)
    extremes = [key for key in made.chosen if made.stratum_of[key] == OUTRIGHT]
    assert ("t4", 99) not in extremes
    assert ("t3", 98) in extremes
    assert by_depth(STEPS[98]) <= EXTREME_SHARE * 30


def test_where_all_are_dear_the_extremes_are_what_fits() -> None:
    made = choose(STEPS[:3], second, 2.0, 1)
    assert len(made.chosen) == 2  # each more than a third


def test_weights_stand_for_the_strata() -> None:
    made = select(20.0)
    for stratum in made.strata:
        weights = [w for key, w in made.weights.items() if made.stratum_of[key] == stratum.number]
        assert len(weights) == stratum.chosen
        if weights:
            assert sum(weights) == pytest.approx(stratum.steps)
    assert sum(made.weights.values()) == pytest.approx(100)
    members = Counter(made.stratum_of.values())
    assert {s.number: s.steps for s in made.strata} == members


def test_strata_part_depth_and_within_it_new() -> None:
    made = choose(STEPS, second, 60.0, 1)
    strata = [stratum for stratum in made.strata if stratum.number != OUTRIGHT]
    assert len(strata) == 24  # 6 bins of depth by 4 of new
    shelves = {(stratum.depth_from // 1700) for stratum in strata}
    assert len(shelves) == 6
    assert all(stratum.chosen >= 2 for stratum in strata)
    assert {stratum.steps for stratum in strata} <= {3, 4, 5}


def test_little_time_makes_a_coarse_grid() -> None:
    made = choose(STEPS, second, 8.0, 1)
    strata = [stratum for stratum in made.strata if stratum.number != OUTRIGHT]
    assert [stratum.chosen for stratum in strata] == [3, 2]  # three extremes, five by lot
    tight = choose(STEPS, second, 4.0, 1)
    assert [stratum.chosen for stratum in tight.strata] == [3, 1]


def test_equal_depths_stay_together() -> None:
    steps = [step(number=i, depth=0 if i < 90 else i, new=10) for i in range(100)]
    made = choose(steps, second, 50.0, 1)
    of_zero = {made.stratum_of["a", i] for i in range(90)} - {OUTRIGHT}
    assert len(of_zero) == 1


def test_neymans_allocation_for_unequal_costs() -> None:
    # 400 steps of 1 s and 400 of 16 s: n ~ N * sqrt(cost), 1 to 4.
    steps = [step(number=i, depth=1000 * (i >= 400), new=10) for i in range(800)]
    made = choose(steps, lambda item: 16.0 if item.depth else 1.0, 5200.0, 1)
    few, many = (stratum.chosen for stratum in made.strata if stratum.number != OUTRIGHT)
    # 65 s a lot of five: 80 and 320, and cheap ones for what is left in the end.
    assert 315 <= many <= 320
    assert 79 <= few <= 96
    assert made.estimated_s > 5199


def test_the_seed_decides_alone() -> None:
    one = select(20.0)
    shuffled = STEPS[:]
    random.Random(7).shuffle(shuffled)
    again = choose(shuffled, by_depth, 20.0, 1)
    assert set(again.chosen) == set(one.chosen)
    assert again.weights == one.weights
    assert again.left_out == one.left_out
    assert again.strata == one.strata
    assert again.chosen == tuple(
        (item.task_id, item.step) for item in shuffled if (item.task_id, item.step) in one.weights
    )
    assert select(20.0) == one
    assert set(select(20.0, seed=2).chosen) != set(one.chosen)


def test_by_lot_each_step_of_a_stratum_has_the_same_chance() -> None:
    steps = [step(number=i, depth=100, new=10) for i in range(20)]
    drawn = Counter(
        key
        for made in (choose(steps, second, 6.0, seed) for seed in range(400))
        for key in made.chosen
        if made.stratum_of[key] != OUTRIGHT
    )
    # One extreme (all are alike), five of the other 19 by lot: 105 +-8.8 times each.
    (never,) = {("a", i) for i in range(20)} - set(drawn)
    assert never == ("a", 0)
    assert all(60 < times < 150 for times in drawn.values())
    assert sum(drawn.values()) == 400 * 5


def test_what_still_fits_in_the_end_is_taken_outright() -> None:
    cheap = {3, 4, 5}
    steps = [step(number=i, depth=100, new=10) for i in range(12)]
    outright = Counter()
    for seed in range(30):
        made = choose(steps, lambda item: 0.1 if item.step in cheap else 5.0, 12.0, seed)
        assert cheap <= {number for _, number in made.chosen}
        assert 10 < made.estimated_s <= 12
        (by_choice,) = (stratum for stratum in made.strata if stratum.number == OUTRIGHT)
        assert by_choice.steps == by_choice.chosen
        outright[by_choice.chosen] += 1
        by_lot = [stratum for stratum in made.strata if stratum.number != OUTRIGHT]
        assert sum(stratum.steps for stratum in by_lot) == 12 - by_choice.chosen
    # One is the extreme of all four kinds; the others are taken by lot, or in the end.
    assert set(outright) <= {1, 2, 3}
    assert outright[3]


def test_every_reason() -> None:
    def cost_s(item: Step) -> float:
        return 400.0 if item.depth == 9900 else 1.0

    made = choose(STEPS, cost_s, 120.0 - 30, 1)
    assert (
        str(made.left_out["t4", 99])
        == "budget: takes 6.7 min by itself, for all steps there are 90.0 s"
    )
    assert ("t4", 99) not in made.stratum_of
    others = {str(reason) for key, reason in made.left_out.items() if key != ("t4", 99)}
    assert others
    for text in others:
        assert re.fullmatch(
            r"budget: not drawn, \d+ of \d+ steps like it fit into the 90\.0 s that there are for "
            r"steps",
            text,
        )


def test_room_is_kept() -> None:
    full = Reason("memory", "the saved states of the chosen steps fill server.state_cache_mib")
    room = Room(lambda item: float(item.depth), 50_000.0, full)
    made = choose(STEPS, second, 60.0, 1, room=room)
    depth = {(item.task_id, item.step): item.depth for item in STEPS}
    assert sum(depth[key] for key in made.chosen) <= 50_000
    assert full in made.left_out.values()
    assert made.estimated_s < 60
    # A step that has no room by itself is told so too.
    tight = choose(STEPS, second, 60.0, 1, room=Room(lambda i: float(i.depth), 9800.0, full))
    assert tight.left_out["t4", 99] == full
    assert ("t4", 99) not in tight.stratum_of


def test_not_even_the_cheapest_fits() -> None:
    with pytest.raises(SettingsError, match="not even the cheapest step fits") as caught:
        select(0.05)
    assert "'t0' step 0" in str(caught.value)
    assert "takes 0.1 s by itself, for all steps there are 0.1 s" in str(caught.value)
    assert caught.value.where == "--budget"
    room = Room(lambda _: 2.0, 1.0, Reason("memory", "no room"))
    with pytest.raises(SettingsError, match="memory: no room"):
        select(room=room)
    with pytest.raises(SettingsError, match="no steps to choose from"):
        choose([], second, 1.0, 1)


def test_sizes_of_ones_own() -> None:
    made = choose(STEPS, second, 10.0, 1, new_of=lambda item: 1000 - item.step)
    (extremes,) = (stratum for stratum in made.strata if stratum.number == OUTRIGHT)
    assert (extremes.new_from, extremes.new_to) == (901, 1000)


def test_one_step() -> None:
    made = choose([step()], second, 1.0, 1)
    assert made.chosen == (("a", 0),)
    assert made.weights == {("a", 0): 1.0}


def test_a_hundred_thousand_steps() -> None:
    lots = random.Random(1)
    steps = [
        step(f"t{i // 50}", i, lots.randrange(200_000), 1 + lots.randrange(5000))
        for i in range(100_000)
    ]
    cost = {(item.task_id, item.step): 0.1 + item.depth / 1e5 for item in steps}
    began_s = time.perf_counter()
    made = choose(steps, lambda item: cost[item.task_id, item.step], 3600.0, 1)
    took_s = time.perf_counter() - began_s
    assert len(made.chosen) + len(made.left_out) == 100_000
    assert 3500 < made.estimated_s <= 3600
    assert took_s < 8  # 0.6 s on a machine that does nothing else

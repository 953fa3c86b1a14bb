"""The stopping rule: who gets a further round, and the sentence that says why nobody does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from experiment.recorded import StepKey
from experiment.rounds import Decision, decide
from experiment.settings import ScheduleSettings


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs have a width that counts here, so that the values can be worked out by hand."""
    monkeypatch.setattr("experiment.rounds.MIN_PAIRS", 2)


A, B, C = ("t", 0), ("t", 1), ("u", 0)

# By ranks that depend on the number alone: of up to 6 values the interval is the whole range.
NARROW = [0.996, 1.0, 1.004]  # half-width 0.4 %
WIDE = [0.98, 1.0, 1.01]  # half-width 2 %


def decided(
    ratios: Mapping[StepKey, Sequence[float]],
    alive: set[StepKey] | None = None,
    *,
    rounds: int = 3,
    added_s: float = 0.0,
    control: bool = False,
    **schedule: Any,
) -> Decision:
    return decide(
        # One step at a time.
        [
            ([key], {key: values}, {key} & (set(ratios) if alive is None else alive))
            for key, values in ratios.items()
        ],
        ScheduleSettings(**{"rounds": 3, "time_limit_s": 120.0, **schedule}),
        rounds=rounds,
        added_s=added_s,
        control=control,
    )


def test_a_run_ends_once_all_its_pairs_together_are_narrow() -> None:
    decision = decided({A: NARROW, B: [0.997, 1.001, 1.002]})
    assert decision.ended
    # The six sorted: 0.996 0.997 | 1.000 1.001 | 1.002 1.004; median 1.0005, lower side 0.0045.
    assert decision.reason == "3 rounds: half-width 0.45 % is within 0.50 %"


def test_a_run_goes_on_with_every_step_while_it_is_wide() -> None:
    decision = decided({A: NARROW, B: WIDE})
    assert decision == Decision(
        # The six sorted: 0.98 … 1.01, the two in the middle both 1.
        bytes([True, True]),
        "3 rounds: half-width 2.00 % of 0.50 %",
        "half-width 2.00 % of 0.50 %",
    )
    assert not decision.ended


def test_the_longer_side_of_the_interval_counts_and_relative_to_the_median() -> None:
    # Median 2, sides 0.01 and 0.03: 1.5 %.
    assert "half-width 1.50 % of" in decided({A: [1.99, 2.0, 2.03]}).reason


@pytest.mark.parametrize(("target", "ended"), [(0.39, False), (0.41, True), (2.0, True)])
def test_the_width_that_is_wanted_is_the_settings(target: float, ended: bool) -> None:
    decision = decided({A: NARROW}, half_width_pct=target)
    assert decision.ended is ended
    assert f"{target:.2f} %" in decision.reason


def test_a_width_that_is_just_the_target_is_narrow_enough() -> None:
    assert decided({A: [0.75, 1.0, 1.25]}, half_width_pct=25).ended
    assert decided({A: [0.75, 1.0, 1.25]}, half_width_pct=25, precision="step").ended


def test_a_small_target_is_not_rounded_to_nothing() -> None:
    decision = decided({A: [1.0, 1.0, 1.0004]}, half_width_pct=0.001)
    assert decision.width == "half-width 0.04 % of 0.001 %"


def test_more_pairs_make_the_interval_of_a_run_narrower() -> None:
    steps = {("t", number): WIDE for number in range(30)}
    # 90 values: 30 each of 0.98, 1 and 1.01; ranks 36 and 55 of them are both 1.
    assert decided(steps).reason == "3 rounds: half-width 0.00 % is within 0.50 %"


def test_a_single_pair_has_no_width_and_gets_a_companion() -> None:
    decision = decided({A: [1.0]}, rounds=1)
    assert list(decision.steps) == [True]
    assert decision.reason == "1 round: no half-width from 1 pair"


def test_the_limit_of_rounds() -> None:
    assert not decided({A: WIDE}, rounds=6, max_rounds=7).ended
    decision = decided({A: WIDE}, rounds=7, max_rounds=7)
    assert decision.ended
    assert decision.reason == "limit of 7 rounds reached: half-width 2.00 % of 0.50 %"


def test_the_limit_is_never_below_the_rounds_that_are_made_always() -> None:
    decision = decided({A: WIDE}, rounds=3, max_rounds=1)
    assert decision.reason == "limit of 3 rounds reached: half-width 2.00 % of 0.50 %"
    assert decided({A: NARROW}, rounds=3, max_rounds=1).reason.startswith("3 rounds: ")


def test_the_limit_of_time_counts_added_rounds() -> None:
    assert not decided({A: WIDE}, rounds=9, added_s=119.9).ended
    decision = decided({A: WIDE}, rounds=9, added_s=120.0)
    assert decision.ended
    assert decision.reason == (
        "time limit of 120 s reached after 9 rounds: half-width 2.00 % of 0.50 %"
    )


def test_what_is_narrow_in_the_end_is_called_so_whatever_the_limits() -> None:
    decision = decided({A: NARROW}, rounds=7, max_rounds=7, added_s=1000.0)
    assert decision.reason == "7 rounds: half-width 0.40 % is within 0.50 %"


def test_with_precision_step_only_the_wide_ones_go_on() -> None:
    ratios = {A: NARROW, B: WIDE, C: [1.0, 1.0, 1.02]}
    decision = decided(ratios, precision="step")
    assert list(decision.steps) == [False, True, True]
    assert decision.width == "half-width is above 0.50 % for 2 of 3 steps, at most 2.00 %"


def test_with_precision_step_it_ends_once_every_step_is_narrow() -> None:
    decision = decided({A: NARROW, B: [1.0, 1.0, 1.001]}, precision="step")
    assert decision.ended
    assert decision.reason == (
        "3 rounds: half-width is within 0.50 % for each of 2 steps, at most 0.40 %"
    )


@pytest.mark.parametrize(
    ("limits", "begins"),
    [
        ({"rounds": 4, "max_rounds": 4}, "limit of 4 rounds reached: "),
        ({"rounds": 4, "added_s": 200.0}, "time limit of 120 s reached after 4 rounds: "),
    ],
)
def test_with_precision_step_the_limits_hold_too(limits: dict[str, Any], begins: str) -> None:
    decision = decided({A: NARROW, B: WIDE}, precision="step", **limits)
    assert decision.ended
    assert decision.reason == (
        begins + "half-width is above 0.50 % for 1 of 2 steps, at most 2.00 %"
    )


def test_with_precision_step_a_single_pair_is_not_narrow() -> None:
    decision = decided({A: [1.0], B: [1.0]}, precision="step", rounds=1)
    assert list(decision.steps) == [True, True]
    assert decision.width == "half-width is above 0.50 % for 2 of 2 steps"


@pytest.mark.parametrize("precision", ["run", "step"])
def test_steps_that_give_no_pair_keep_nothing_going(precision: str) -> None:
    # B gave pairs once, and none in its last round; a refused step is not even among the ratios.
    decision = decided({A: NARROW, B: WIDE}, {A}, precision=precision)
    assert list(decision.steps) == ([True, False] if precision == "run" else [])
    decision = decided({B: WIDE}, set(), precision=precision)
    assert decision.ended
    assert decision.reason.startswith("3 rounds, further ones give no pairs: half-width ")


@pytest.mark.parametrize("precision", ["run", "step"])
@pytest.mark.parametrize("ratios", [{}, {A: []}])
def test_without_any_pair_it_ends(precision: str, ratios: dict[StepKey, list[float]]) -> None:
    decision = decided(ratios, precision=precision)
    assert decision.ended
    assert decision.reason == "3 rounds: no pair was measured"


def test_where_nothing_is_restored_it_is_said() -> None:
    decision = decided({A: NARROW}, control=True)
    assert decision.reason == (
        "nothing is restored, so control/fake decides; 3 rounds: half-width 0.40 % is within 0.50 %"
    )


def test_a_narrow_width_of_few_pairs_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    schedule = ScheduleSettings(rounds=3)
    key = ("a", 0)
    few = decide([([key], {key: [1.0] * 5}, {key})], schedule, rounds=5, added_s=0.0)
    assert list(few.steps) == [True]
    assert few.reason == "5 rounds: no half-width from 5 pairs"
    enough = decide([([key], {key: [1.0] * 6}, {key})], schedule, rounds=6, added_s=0.0)
    assert enough.steps == b""
    assert enough.reason == "6 rounds: half-width 0.00 % is within 0.50 %"

from __future__ import annotations

from dataclasses import replace

import pytest
from canned_costs import COSTS, TEXT, settings
from canned_steps import step

from experiment.budget_plan import ENOUGH_STEPS, FULL_SHARE, PREFIX_SHARE, BudgetPlan, plan
from experiment.errors import SettingsError
from experiment.trace import Step
from experiment.trace_costs import TraceCosts
from experiment.trace_estimate import estimate

# At depth L and 100 new: fake and control 7 * (140 + 0.11 L) ms, restored 4 * 0.02 L ms more.
STEPS = [step(number=i, depth=500 * i, new=100 + i) for i in range(1, 41)]
LIMIT = 1 << 24


def fit(
    budget_s: float,
    steps: list[Step] = STEPS,
    costs: TraceCosts = COSTS,
    **overrides: object,
) -> BudgetPlan:
    return plan(steps, costs, settings(**overrides), budget_s)


def test_where_everything_fits_nothing_is_lowered() -> None:
    made = fit(50_000.0)
    assert len(made.selection.chosen) == len(STEPS)
    assert made.selection.left_out == {}
    schedule = made.settings.schedule
    assert (schedule.restored_max_depth, schedule.full_max_depth) == (LIMIT, LIMIT)
    assert schedule.time_limit_s == 60.0
    assert made.notes == ()
    assert made.estimate.seconds == pytest.approx(estimate(STEPS, COSTS, settings()).seconds)
    assert (made.budget_s, made.spent_s) == (50_000.0, 7.0)


@pytest.mark.parametrize("budget_s", [60.0, 120.0, 300.0, 900.0])
def test_the_budget_holds_with_probe_start_and_added_rounds(budget_s: float) -> None:
    made = fit(budget_s)
    assert made.spent_s + made.estimate.seconds + made.added_s <= budget_s
    # What all steps would share and the chosen ones do not is given to further steps.
    assert made.estimate.seconds > 0.7 * budget_s
    assert 0 < len(made.selection.chosen) < len(STEPS)
    assert len(made.selection.chosen) + len(made.selection.left_out) == len(STEPS)


def test_rounds_are_given_up_for_steps_where_the_sample_is_small() -> None:
    small = fit(120.0)
    assert small.settings.schedule.rounds == 1
    assert small.notes[2] == (
        "Each step is measured once, not 3 times, so that more steps fit within 2.0 min."
    )
    large = fit(2500.0)
    assert len(large.selection.chosen) >= ENOUGH_STEPS
    assert large.settings.schedule.rounds == 3
    # With two rounds more fit than with three, and enough of them.
    shallow = [step(number=i, depth=10 * i, new=100) for i in range(1, 61)]
    between = fit(36.0, shallow, schedule__restored_max_depth=0, schedule__full_rounds=0)
    assert between.settings.schedule.rounds == 2
    assert ENOUGH_STEPS <= len(between.selection.chosen) < len(shallow)
    assert between.notes == (
        "Each step is measured 2 times, not 3 times, so that more steps fit within 36.0 s.",
    )
    # Rounds that were few from the start are not made more.
    assert fit(300.0, schedule__rounds=1).settings.schedule.rounds == 1
    assert not any("Each step" in note for note in fit(300.0, schedule__rounds=1).notes)


def test_a_round_is_only_added_if_it_ends_in_time() -> None:
    made = fit(120.0)
    schedule = made.settings.schedule
    costs = [cost for cost in made.estimate.steps.values() if cost.restored_s]
    # One round of fake, control and restored; restored has a warm-up besides its one round.
    round_s = sum(2 * cost.control_s + cost.restored_s / 2 for cost in costs)
    left_s = 120.0 - made.spent_s - made.estimate.seconds
    assert made.added_s == schedule.time_limit_s == pytest.approx(left_s - round_s)
    none = fit(30.0)
    assert (none.added_s, none.settings.schedule.max_rounds) == (0.0, 1)


def test_deep_prefixes_are_given_up_before_deep_steps() -> None:
    made = fit(300.0)
    usable_s = 0.85 * (300 - 7 - 3)
    restored, full = (
        made.settings.schedule.restored_max_depth,
        made.settings.schedule.full_max_depth,
    )
    # All prefixes are that of the deepest, and llama-bench's as deep as it: 1 L + 0.0005 L^2 ms.
    at = estimate([step(depth=restored)], COSTS, settings())
    assert at.prime_s + at["calibration"].seconds <= PREFIX_SHARE * usable_s
    deeper = estimate([step(depth=restored + 500)], COSTS, settings())
    assert deeper.prime_s + deeper["calibration"].seconds > PREFIX_SHARE * usable_s
    # Of 40 steps a sample of 20 has half of the prompts up to there.
    whole = estimate(STEPS, COSTS, settings()).steps
    up_to = [item for item in STEPS if item.depth <= full]
    assert sum(whole["a", item.step].full_s for item in up_to) / 2 <= FULL_SHARE * usable_s
    one_more = [item for item in STEPS if item.depth <= full + 500]
    assert sum(whole["a", item.step].full_s for item in one_more) / 2 > FULL_SHARE * usable_s
    assert restored < 20_000
    depths = {item.depth for item in STEPS if (item.task_id, item.step) in made.selection.chosen}
    assert max(depths) == 20_000  # the deepest step, with fake alone
    assert made.estimate.steps["a", 40].restored_s == 0.0
    assert made.notes[0] == (
        f"No real prefix (restored, llama-bench) is decoded deeper than L = {restored:,} within "
        f"5.0 min."
    )
    assert made.notes[1] == (
        f"No whole prompt (full) is decoded deeper than L = {full:,} within 5.0 min."
    )


def test_limits_of_the_user_stay() -> None:
    made = fit(300.0, schedule__restored_max_depth=600, schedule__full_max_depth=700)
    schedule = made.settings.schedule
    assert (schedule.restored_max_depth, schedule.full_max_depth) == (600, 700)
    assert made.notes == ()


def test_no_prefix_can_be_paid() -> None:
    made = fit(30.0)
    assert made.settings.schedule.restored_max_depth == 0
    assert (
        made.notes[0] == "No real prefix (restored, llama-bench) is decoded at all within 30.0 s."
    )
    assert made.estimate["restored"].seconds == 0.0
    assert made.selection.chosen


def test_experts_are_counted_in_fewer_steps() -> None:
    slow = replace(COSTS, driver_s=5.0)
    made = fit(600.0, costs=slow)
    assert made.settings.schedule.structure_steps < 6
    assert made.notes[-1] == (
        f"Experts are counted in {made.settings.schedule.structure_steps} of 6 steps within "
        f"10.0 min."
    )


def test_saved_states_have_to_fit() -> None:
    large = replace(COSTS, costs=replace(TEXT, state_bytes=float(2**30)))
    made = fit(20_000.0, costs=large, server__state_cache_mib=8192)
    restored = [
        item
        for item in STEPS
        if (item.task_id, item.step) in made.selection.chosen
        and item.depth <= made.settings.schedule.restored_max_depth
    ]
    assert 0 < len(restored) <= 7
    assert made.estimate.state_bytes <= 8192 * 2**20
    assert "memory: the chosen steps' states fill server.state_cache_mib (8,192)" in {
        str(reason) for reason in made.selection.left_out.values()
    }


def test_the_seed_of_the_settings_draws() -> None:
    one, same, other = (fit(300.0, seed=seed).selection.chosen for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_the_probe_took_it_all() -> None:
    with pytest.raises(SettingsError, match=r"the probe took 7\.0 s and .* 3\.0 s of 9\.0 s"):
        fit(9.0)


def test_not_even_a_step_fits() -> None:
    with pytest.raises(SettingsError, match="not even the cheapest step fits"):
        fit(10.5)

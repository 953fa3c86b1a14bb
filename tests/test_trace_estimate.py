from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from canned_costs import COSTS, TEXT, settings
from canned_steps import step

from experiment.cost_model import CostModel
from experiment.step_size import Sizes
from experiment.trace import Step
from experiment.trace_costs import ImageTimes, TraceCosts
from experiment.trace_estimate import (
    HIGH,
    LOW,
    Estimate,
    StepCost,
    _prefill_s,
    _prefix_s,
    estimate,
)

STEP = step(depth=1000, new=100)


def reckon(*steps: Step, costs: TraceCosts = COSTS, **overrides: object) -> Estimate:
    return estimate(steps, costs, settings(**overrides))


def test_a_step_by_hand() -> None:
    made = reckon(STEP)
    # Prefill 10 + 100 + 0.001 * 100 * (1,000 + 100 / 2) = 215 ms, overhead 20 + 10, driver 10:
    # 255 ms; restoring 20 more. Full: its prefix 1,000 + 0.0005 * 1,000^2 = 1,500 ms besides. Once
    # warm, three rounds.
    cost = made.steps["a", 0]
    assert cost.fake_s == pytest.approx(4 * 0.255)
    assert cost.control_s == pytest.approx(3 * 0.255)
    assert cost.restored_s == pytest.approx(4 * 0.275)
    assert cost.full_s == pytest.approx(1.755)
    assert cost.total_s == made.cost_s_of(STEP) == pytest.approx(4.64)
    assert made.prime_s == pytest.approx(1.5)
    assert made["restored"].seconds == pytest.approx(1.1 + 1.5)
    assert made["experts"].seconds == pytest.approx(2 * 0.255)
    # llama-bench at 0: start 2 s, warm-up 110 ms, 3 * 110 ms; at 1,024 its prefix
    # 1,024 + 0.0005 * 1,024^2 ms, 110 ms, 3 * (10 + 100 + 102.4 + 20.48) ms.
    at_1024 = 2 + 1.024 + 0.524288 + 0.11 + 3 * 0.23288
    assert made["calibration"].seconds == pytest.approx(2.44 + at_1024)
    assert made["start"].seconds == 3.0
    assert made.seconds == pytest.approx(4.64 + 1.5 + 0.51 + 2.44 + at_1024 + 3)
    assert made.shared_s == pytest.approx(made.seconds - 4.64)
    assert made.added_s == 60.0
    assert made.state_bytes == 2**20 + 1000 * 1024
    assert made.notes == ()


def test_known_sizes_leave_only_the_spread() -> None:
    made = reckon(STEP)
    assert made.low_s == pytest.approx(LOW.within * made.seconds)
    assert made.high_s == pytest.approx(HIGH.within * made.seconds + 60.0)
    for part in made.parts:
        assert part.low_s == pytest.approx(LOW.within * part.seconds)


def test_beyond_the_probed_depth_the_spread_is_wider() -> None:
    made = reckon(
        STEP, step(number=1, depth=2000), costs=replace(COSTS, probed_depth=1500, start_s=0.0)
    )
    control = [made.steps["a", number].control_s for number in (0, 1)]
    assert made["control"].low_s == pytest.approx(LOW.within * control[0] + LOW.beyond * control[1])
    assert made["control"].high_s == pytest.approx(
        HIGH.within * control[0] + HIGH.beyond * control[1]
    )
    assert made["calibration"].high_s > HIGH.within * made["calibration"].seconds
    (note,) = made.notes
    assert note.startswith("Deeper than the 1,500 tokens that the probe has reached: 1 of 2 steps")


def test_a_text_is_counted_as_likely_and_bounded() -> None:
    text = step(depth=1000, new="x" * 80)  # 10 to 80 tokens, likely 20
    made = reckon(text, costs=replace(COSTS, driver_s=0.0))
    # 10 + new + 0.001 * new * (1,000 + new / 2) ms, overhead 30 ms, three rounds.
    assert made["control"].seconds == pytest.approx(3 * 0.0802)
    assert made["control"].low_s == pytest.approx(LOW.within * 3 * 0.06005)
    assert made["control"].high_s == pytest.approx(HIGH.within * 3 * 0.2032)
    assert made.notes[0].startswith("Not counted yet are the tokens")


def test_the_tail_counts() -> None:
    made = reckon(STEP, costs=replace(COSTS, sizes=Sizes(tail=50)))
    # 50 tokens at depth 1,000: 50 + 50 ms more, and 0.0005 * (150^2 - 100^2) among themselves.
    assert made["control"].seconds == pytest.approx(3 * 0.36125)


def test_a_cold_step_has_its_whole_prompt_alone() -> None:
    cold = step(number=1, depth=0, new=1000)
    made = reckon(cold, STEP, costs=replace(COSTS, driver_s=0.0))
    # 10 + 1,000 + 0.0005 * 1,000^2 ms, overhead 20 ms; once warm, three rounds.
    assert made.steps["a", 1] == StepCost(0.0, 0.0, 0.0, pytest.approx(4 * 1.53))
    # Nothing of it is a prefix, a saved state, or counted for experts.
    without = reckon(STEP, costs=replace(COSTS, driver_s=0.0))
    assert (made.prime_s, made.state_bytes) == (without.prime_s, without.state_bytes)
    assert made["experts"] == without["experts"]
    # It is measured however few rounds `full` has elsewhere.
    few = reckon(cold, STEP, schedule__full_rounds=0, schedule__full_max_depth=0)
    assert few.steps["a", 1].full_s > 0
    assert few.steps["a", 0].full_s == 0
    alone = reckon(cold)
    assert (alone.prime_s, alone.state_bytes) == (0.0, 0.0)


def test_screenshots() -> None:
    seen = step(depth=1000, new=None, shot=(960, 540))
    costs = replace(
        COSTS,
        sizes=Sizes(images={(960, 540): 500}),
        images=ImageTimes((960 * 540,), (54.0,)),
        driver_s=0.0,
    )
    # 10 + 500 + 0.001 * 500 * 1,250 + 30 + 54 ms.
    assert reckon(seen, costs=costs)["control"].seconds == pytest.approx(3 * 1.219)
    unknown = reckon(seen, costs=COSTS)
    assert any("what encoding screenshots takes: 1 of 1" in note for note in unknown.notes)


def test_limits_of_depth() -> None:
    deep = step(number=1, depth=5000)
    made = reckon(STEP, deep, schedule__restored_max_depth=2000, schedule__full_max_depth=900)
    assert made.steps["a", 1] == StepCost(
        pytest.approx(4 * 0.695), pytest.approx(3 * 0.695), 0.0, 0.0
    )
    assert made.steps["a", 0].full_s == 0.0
    assert made.prime_s == pytest.approx(1.5)  # of 1,000, not of 5,000
    assert made.state_bytes == 2**20 + 1000 * 1024
    # Only the step that can be restored has its experts counted.
    assert made["experts"].seconds == pytest.approx(2 * 0.255)


def test_nothing_is_restored() -> None:
    made = reckon(STEP, schedule__restored_max_depth=0)
    assert (made["restored"].seconds, made.prime_s, made["calibration"].seconds) == (0, 0, 0)
    assert made.state_bytes == 0


def test_steps_of_one_depth_share_a_state() -> None:
    assert reckon(STEP, step(number=1, depth=1000)).state_bytes == 2**20 + 1000 * 1024


def test_states_that_do_not_fit_are_told() -> None:
    costs = replace(COSTS, costs=replace(TEXT, state_bytes=float(2**31)))
    steps = [step(number=i, depth=1000 + i) for i in range(3)]
    made = reckon(*steps, costs=costs, server__state_cache_mib=4096)
    assert len(made.notes) == 1
    assert "saved states of all prefixes take 6,147 MiB" in made.notes[0]
    assert "allows 4,096" in made.notes[0]


def test_llama_bench_at_each_step() -> None:
    # Prefix of 1,000; chunk 100 of the settings and the step's own 50.
    made = reckon(step(new=50), calibration__at="steps")
    assert made["calibration"].seconds == pytest.approx(
        2 + 1.5 + (0.11 + 3 * 0.23) + (0.06 + 3 * (0.010 + 0.05 + 0.05 + 0.02))
    )


def test_rounds_that_cannot_be_added() -> None:
    assert reckon(STEP, schedule__max_rounds=3).added_s == 0.0


def test_a_model_without_experts() -> None:
    assert reckon(STEP, costs=replace(COSTS, has_experts=False))["experts"].seconds == 0.0


def test_many_at_once_are_reckoned_as_costs_reckons_one() -> None:
    falling = replace(TEXT, model=CostModel(1.0, 1.0, -0.01, 1.0, None, ()))
    places = [(0, 1), (100, 1000), (2048, 131072)]
    for costs in (TEXT, falling):
        new, depth = (np.array(column, dtype=np.float64) for column in zip(*places, strict=True))
        assert _prefill_s(costs, new, depth).tolist() == pytest.approx(
            [costs.prefill_s(*place) for place in places]
        )
        assert _prefix_s(costs, depth).tolist() == pytest.approx(
            [costs.prefix_s(at) for _, at in places]
        )


def test_a_hundred_thousand_steps() -> None:
    steps = [step(number=i, depth=(i * 7919) % 100_000, new=1 + i % 500) for i in range(100_000)]
    began_s = time.perf_counter()
    made = reckon(*steps)
    assert len(made.steps) == 100_000
    assert time.perf_counter() - began_s < 10  # 0.7 s on a machine that does nothing else

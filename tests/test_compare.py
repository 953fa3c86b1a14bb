from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from canned import ROUNDS, canned_run, measurement, run_record

from experiment.compare import find_run, load
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.intervals import Interval, median_ranks
from experiment.paths import ROOT
from experiment.records import CalibrationRow, StepRecord
from experiment.rows import (
    Comparison,
    DepthRow,
    OverallRow,
    RunStability,
    StepRow,
    StepStability,
    TaskRow,
)
from experiment.store import Store


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(canned_run(tmp_path_factory.mktemp("results") / "run"))


def about(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def test_a_step_by_hand(comparison: Comparison) -> None:
    # fake prompts 110, 120, 130 less install 10: 100, 110, 120; less encode 20: 80, 90, 100.
    # control prompts 112, 120, 124: 102, 110, 114; against fake 1.02, 1.0, 0.95.
    # restored prompts 105, 105, 130 less install 5: 100, 100, 125; ratios 1.0, 1.1, 0.96;
    # without the encoding 80/80, 90/80, 100/105. full 1100 / 110; arithmetic 99 / 90.
    # The interval of three values is from the smallest to the largest.
    assert comparison.steps[0] == StepRow(
        task_id="a",
        step=1,
        depth=1000,
        left_out=None,
        new_tokens=100,
        fake_n=3,
        fake_prefill_ms=110.0,
        fake_prefill_ms_low=100.0,
        fake_prefill_ms_high=120.0,
        fake_install_ms=10.0,
        fake_install_ms_low=10.0,
        fake_install_ms_high=10.0,
        fake_encode_ms=20.0,
        fake_encode_ms_low=20.0,
        fake_encode_ms_high=20.0,
        fake_lm_prefill_ms=90.0,
        fake_lm_prefill_ms_low=80.0,
        fake_lm_prefill_ms_high=100.0,
        fake_n_kv=1280,
        control_n=3,
        control_prefill_ms=110.0,
        control_prefill_ms_low=102.0,
        control_prefill_ms_high=114.0,
        restored_n=3,
        restored_prefill_ms=100.0,
        restored_prefill_ms_low=100.0,
        restored_prefill_ms_high=125.0,
        restored_install_ms=5.0,
        restored_install_ms_low=5.0,
        restored_install_ms_high=5.0,
        restored_encode_ms=20.0,
        restored_lm_prefill_ms=80.0,
        restored_n_kv=1280,
        full_n=1,
        full_prefill_ms=1100.0,
        full_prefill_ms_low=None,
        full_prefill_ms_high=None,
        full_install_ms=0.0,
        full_encode_ms=20.0,
        full_lm_prefill_ms=1080.0,
        full_n_kv=None,
        arithmetic_n=1,
        arithmetic_prefill_ms=119.0,
        arithmetic_encode_ms=20.0,
        arithmetic_lm_prefill_ms=99.0,
        pair_n=3,
        ratio_median=1.0,
        ratio_low=0.96,
        ratio_high=1.1,
        ratio_min=0.96,
        ratio_max=1.1,
        lm_ratio_median=1.0,
        lm_ratio_low=100 / 105,
        lm_ratio_high=1.125,
        aa_n=3,
        aa_median=1.0,
        aa_low=0.95,
        aa_high=1.02,
        speedup=10.0,
        speedup_low=None,
        speedup_high=None,
        arithmetic_error_pct=about(10.0),
        arithmetic_error_pct_low=about(-1.0),  # 99 / 100
        arithmetic_error_pct_high=about(23.75),  # 99 / 80
        stability="unsteady: spread 7.0 %, drift +20.0 %",
        fake_extrapolated_ms=None,
    )
    assert comparison.steps[0].ratio == Interval(low=0.96, high=1.1, median=1.0, n=3)
    assert comparison.steps[0].aa == Interval(low=0.95, high=1.02, median=1.0, n=3)
    assert comparison.steps[2].ratio is None


def test_an_invalid_round_has_no_pair(comparison: Comparison) -> None:
    step = comparison.steps[1]
    # fake 200, 240 (the third is invalid); restored 250, 240, 240; ratios 0.8 and 1.0.
    assert (step.fake_n, step.restored_n, step.pair_n) == (2, 3, 2)
    assert (step.fake_prefill_ms, step.restored_prefill_ms) == (220.0, 240.0)
    assert (step.fake_prefill_ms_low, step.fake_prefill_ms_high) == (200.0, 240.0)
    assert (step.ratio_low, step.ratio_high) == (0.8, 1.0)
    # control 190, 252 against fake 200, 240.
    assert (step.aa_n, step.aa_low, step.aa_median, step.aa_high) == (2, 0.95, 1.0, 1.05)
    assert (step.ratio_min, step.ratio_median, step.ratio_max) == (0.8, 0.9, 1.0)
    assert step.speedup == 4.0
    assert step.arithmetic_error_pct == pytest.approx(-10.0)


def test_a_refused_step_is_there_without_figures(comparison: Comparison) -> None:
    step = comparison.steps[2]
    assert (step.task_id, step.step, step.depth) == ("b", 1, 500)
    assert step.fake_n == step.restored_n == step.full_n == step.arithmetic_n == step.pair_n == 0
    assert step.control_n == step.aa_n == 0
    for name in ("new_tokens", "fake_prefill_ms", "fake_prefill_ms_low", "ratio_median", "speedup"):
        assert getattr(step, name) is None


def test_over_all_steps_by_hand(comparison: Comparison) -> None:
    assert comparison.overall == OverallRow(
        steps=3,
        left_out_steps=0,
        cold_steps=0,
        fake_steps=2,
        fake_prefill_ms=330.0,  # 110 + 220
        fake_prefill_ms_low=300.0,  # 100 + 200
        fake_prefill_ms_high=360.0,  # 120 + 240
        fake_install_ms=12.0,
        fake_install_ms_low=12.0,
        fake_install_ms_high=12.0,
        fake_encode_ms=20.0,
        fake_encode_ms_low=20.0,
        fake_encode_ms_high=20.0,
        fake_new_tokens=300,
        fake_ms_per_new_token=1.1,  # 110 / 100 and 220 / 200
        fake_ms_per_new_token_low=1.1,
        fake_ms_per_new_token_high=1.1,
        control_steps=2,
        control_prefill_ms=331.0,  # 110 + 221
        control_prefill_ms_low=292.0,  # 102 + 190
        control_prefill_ms_high=366.0,  # 114 + 252
        restored_steps=2,
        restored_prefill_ms=340.0,  # 100 + 240
        restored_prefill_ms_low=340.0,
        restored_prefill_ms_high=375.0,  # 125 + 250
        restored_install_ms=11.0,
        restored_install_ms_low=11.0,
        restored_install_ms_high=11.0,
        full_steps=2,
        full_prefill_ms=1980.0,
        full_prefill_ms_low=None,
        full_prefill_ms_high=None,
        arithmetic_steps=2,
        arithmetic_prefill_ms=317.0,
        speedup_steps=2,
        speedup=6.0,  # 1980 / 330
        speedup_low=None,
        speedup_high=None,
        speedup_median=7.0,  # of 10 and 4
        speedup_median_low=4.0,
        speedup_median_high=10.0,
        arithmetic_error_steps=2,
        arithmetic_error_pct_median=pytest.approx(0.0, abs=1e-9),
        arithmetic_error_pct_median_low=about(-10.0),
        arithmetic_error_pct_median_high=about(10.0),
        arithmetic_error_pct_min=about(-10.0),
        arithmetic_error_pct_max=about(10.0),
        arithmetic_error_pct_sum=about(100 * (297 / 310 - 1)),
        arithmetic_error_pct_sum_low=about(100 * (297 / 340 - 1)),  # fake 100 + 240
        arithmetic_error_pct_sum_high=about(100 * (297 / 280 - 1)),  # fake 80 + 200
        pair_n=5,
        ratio_median=1.0,  # of 0.8, 0.96, 1.0, 1.0, 1.1
        ratio_low=0.8,
        ratio_high=1.1,
        lm_ratio_median=1.0,  # of 0.8, 100/105, 1.0, 1.0, 1.125
        lm_ratio_low=0.8,
        lm_ratio_high=1.125,
        aa_n=5,
        aa_median=1.0,  # of 0.95, 0.95, 1.0, 1.02, 1.05
        aa_low=0.95,
        aa_high=1.05,
    )
    assert comparison.overall.ratio == Interval(low=0.8, high=1.1, median=1.0, n=5)
    assert comparison.overall.aa == Interval(low=0.95, high=1.05, median=1.0, n=5)
    assert comparison.rounds == ROUNDS


def test_depths_in_buckets_of_1024(comparison: Comparison) -> None:
    shallow, deep = comparison.depths
    # One step of the two is measured: no interval over steps.
    assert shallow == DepthRow(
        depth_from=0,
        depth_to=1024,
        steps=2,
        fake_steps=1,
        fake_prefill_ms=110.0,
        fake_prefill_ms_low=None,
        fake_prefill_ms_high=None,
        fake_install_ms=10.0,
        fake_install_ms_low=None,
        fake_install_ms_high=None,
        fake_ms_per_new_token=1.1,
        fake_ms_per_new_token_low=None,
        fake_ms_per_new_token_high=None,
        restored_prefill_ms=100.0,
        restored_prefill_ms_low=None,
        restored_prefill_ms_high=None,
        restored_install_ms=5.0,
        restored_install_ms_low=None,
        restored_install_ms_high=None,
        full_prefill_ms=1100.0,
        full_prefill_ms_low=None,
        full_prefill_ms_high=None,
        arithmetic_prefill_ms=119.0,
        speedup_steps=1,
        speedup=10.0,
        speedup_low=None,
        speedup_high=None,
        arithmetic_error_steps=1,
        arithmetic_error_pct_median=about(10.0),
        arithmetic_error_pct_median_low=None,
        arithmetic_error_pct_median_high=None,
        pair_n=3,
        ratio_median=1.0,
        ratio_low=0.96,
        ratio_high=1.1,
        ratio_min=0.96,
        ratio_max=1.1,
        aa_n=3,
        aa_median=1.0,
        aa_low=0.95,
        aa_high=1.02,
    )
    assert (deep.depth_from, deep.depth_to, deep.steps, deep.pair_n) == (2048, 3072, 1, 2)
    assert (deep.ratio_low, deep.ratio_high, deep.aa_low, deep.aa_high) == (0.8, 1.0, 0.95, 1.05)


def test_intervals_over_the_steps_of_a_depth_and_of_a_measured_full(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", number, 10) for number in (1, 2)])
        for step, factor in ((1, 1.0), (2, 2.0)):
            for number, base in enumerate((10.0, 11.0, 14.0)):
                fake = measurement("a", step, "fake", number, 1 + base * factor, prompt_n=5)
                store.record(fake)
            for number, base in enumerate((100.0, 140.0)):
                store.record(measurement("a", step, "full", number, 1 + base * factor))
    comparison = load(tmp_path)
    step = comparison.steps[0]
    # full 100 and 140: median 120; fake 10, 11, 14.
    assert (step.full_prefill_ms_low, step.full_prefill_ms, step.full_prefill_ms_high) == (
        100.0,
        120.0,
        140.0,
    )
    assert step.speedup == 120 / 11
    assert (step.speedup_low, step.speedup_high) == (100 / 14, 140 / 10)
    (depth,) = comparison.depths
    assert (depth.fake_prefill_ms_low, depth.fake_prefill_ms_high) == (11.0, 22.0)
    assert (depth.fake_ms_per_new_token_low, depth.fake_ms_per_new_token_high) == (2.2, 4.4)
    # Sums over both steps: full 300 to 420, fake 30 to 42.
    for row in (depth, comparison.overall):
        assert (row.speedup_low, row.speedup_high) == (about(300 / 42), about(420 / 30))


def test_the_ends_are_order_statistics_of_each_group_by_its_own_size(tmp_path: Path) -> None:
    # Ranks (2, 6) of 7 and (1, 4) of 4: test_intervals.py.
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", number, 10) for number in (1, 2)])
        for step, times in ((1, (7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0)), (2, (9.0, 8.0, 6.0, 7.0))):
            for number, prefill_ms in enumerate(times):
                for variant, wanted_ms in (("fake", prefill_ms), ("restored", 10.0)):
                    row = measurement("a", step, variant, number, 1 + wanted_ms)  # type: ignore[arg-type]
                    store.record(row)
    seven, four = load(tmp_path).steps
    assert (seven.fake_prefill_ms_low, seven.fake_prefill_ms_high) == (2.0, 6.0)
    assert (four.fake_prefill_ms_low, four.fake_prefill_ms_high) == (6.0, 9.0)
    assert (seven.ratio_low, seven.ratio_high, four.ratio_low, four.ratio_high) == (
        0.2,
        0.6,
        0.6,
        0.9,
    )
    # All eleven as one sample: 1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 9; ranks 3 and 9.
    overall = load(tmp_path).overall
    assert median_ranks(11) == (3, 9)
    assert (overall.ratio_low, overall.ratio_median, overall.ratio_high) == (0.3, 0.6, 0.7)


def test_stability_by_hand(comparison: Comparison) -> None:
    first, second = comparison.step_stability
    # Ratios 0.96, 1.0, 1.1: quartiles 0.98 and 1.05, 7 % of 1.0; MAD 0.04, and 0.1 is within
    # 3 * 1.4826 * 0.04 = 0.178. Of three rounds the first and the last: 100 and 120.
    assert first == StepStability(
        task_id="a",
        step=1,
        n=3,
        spread_pct=about(7.0),
        outliers=0,
        drift_pct=about(20.0),
        other_cores_median=0.2,
        other_cores_max=0.3,
        stolen_cores_median=0.01,
        stolen_cores_max=0.01,
        throttled=0,
        verdict="unsteady: spread 7.0 %, drift +20.0 %",
    )
    # Ratios 0.8 and 1.0: quartiles 0.85 and 0.95 of 0.9; fake 200 and 240; seven valid requests
    # that were throttled once each.
    assert second == StepStability(
        task_id="a",
        step=2,
        n=2,
        spread_pct=about(100 / 9),
        outliers=0,
        drift_pct=about(20.0),
        other_cores_median=0.3,
        other_cores_max=0.3,
        stolen_cores_median=0.03,
        stolen_cores_max=0.03,
        throttled=7,
        verdict="unsteady: spread 11.1 %, drift +20.0 %, other processes on 0.30 cores, "
        "throttled 7 times",
    )
    # Ratios 0.8, 0.96, 1.0, 1.0, 1.1: quartiles 0.96 and 1.0; MAD 0.04, and only 0.8 is farther
    # than 0.178 from 1.0. Shares of the steps' medians: 100/110 and 200/220, then 120/110 and
    # 240/220.
    assert comparison.stability == RunStability(
        judged_steps=2,
        unsteady_steps=2,
        n=5,
        spread_pct=about(4.0),
        outliers=1,
        drift_pct=about(20.0),
        other_cores_median=0.25,
        other_cores_max=0.3,
        stolen_cores_median=about(0.02),
        stolen_cores_max=0.03,
        throttled=7,
        verdict="unsteady: drift +20.0 %, throttled 7 times, 2 of 2 steps unsteady",
    )


def steps_of(
    folder: Path, fakes: dict[int, list[float]], *, follows: bool = False, **more: object
) -> tuple[StepStability, ...]:
    """What ``stability`` says of these times of fake; restored takes 100 ms, or ``follows``."""
    with Store.create(folder, run_record()) as store:
        store.add_steps([StepRecord("a", step, 10) for step in fakes])
        for step, times in fakes.items():
            for number, time_ms in enumerate(times):
                store.record(measurement("a", step, "fake", number, time_ms + 1, **more))
                restored_ms = time_ms if follows else 100.0
                store.record(measurement("a", step, "restored", number, 1 + restored_ms, **more))
    return load(folder).step_stability


def test_outliers_are_told_from_spread(tmp_path: Path) -> None:
    # Twenty ratios from 0.991 to 1.010: median 1.0005, MAD 0.005, limit 0.0222; quartiles 0.9 %.
    even = [99.0 + number / 10 for number in range(1, 21)]
    one, two, two_of_many, near = steps_of(
        tmp_path,
        {
            1: [*even[:-1], 110.0],
            2: [*even[1:-2], 90.0, 110.0, 110.0],
            3: [*even, 90.0, 110.0],
            4: [*even[1:-2], 98.2, 101.8, 101.8],
        },
    )
    assert (one.outliers, one.verdict) == (1, "steady")  # one alone is no sign
    assert two.verdict == "unsteady: 3 outliers"  # of 20
    assert (two_of_many.outliers, two_of_many.verdict) == (2, "steady")  # 2 of 22 are 9 %
    assert (near.outliers, near.verdict) == (0, "steady")  # 1.8 % away


def test_drift_compares_the_outer_thirds(tmp_path: Path) -> None:
    # Seven rounds: thirds of three, medians 100 and 115; the middle one is in neither. Four rounds:
    # thirds of two. One round: nothing to compare.
    up, down, once = steps_of(
        tmp_path,
        {
            1: [99.0, 100.0, 101.0, 500.0, 114.0, 115.0, 120.0],
            2: [100.0, 100.0, 90.0, 90.0],
            3: [100.0],
        },
    )
    assert up.drift_pct == about(15.0)
    assert up.verdict is not None
    assert "drift +15.0 %" in up.verdict
    assert down.drift_pct == about(-10.0)
    assert (once.drift_pct, once.verdict) == (None, None)


def test_drift_of_pairs_that_stay_alike(tmp_path: Path) -> None:
    within, beyond = steps_of(
        tmp_path, {1: [100.0, 100.0, 109.9], 2: [1000.0, 1000.0, 899.0]}, follows=True
    )
    assert (within.spread_pct, within.verdict) == (0.0, "steady")
    assert beyond.verdict == "unsteady: drift -10.1 %"
    # Shares of each step's own median: 1 and 1, then 1.099 and 0.899.
    run = load(tmp_path).stability
    assert run is not None
    assert run.drift_pct == about(-0.1)


def test_a_step_that_is_never_restored_has_its_noise_and_its_verdict(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        for number, control_ms in enumerate((99.0, 102.0)):
            store.record(measurement("a", 1, "fake", number, 101.0))
            store.record(measurement("a", 1, "control", number, 1 + control_ms))
    comparison = load(tmp_path)
    (step,) = comparison.steps
    assert (step.pair_n, step.ratio, step.aa) == (0, None, Interval(0.99, 1.02, 1.005, 2))
    assert comparison.overall.aa == step.aa
    (stability,) = comparison.step_stability
    assert (stability.n, stability.spread_pct, stability.outliers) == (0, None, 0)
    assert (stability.drift_pct, stability.verdict) == (0.0, "steady")


def test_other_work_makes_unsteady_by_itself(tmp_path: Path) -> None:
    times = {1: [100.0, 100.0]}
    (fine,) = steps_of(tmp_path / "fine", times, other_cores=0.25, stolen_cores=0.05, throttled=0)
    assert fine.verdict == "steady"
    (step,) = steps_of(tmp_path / "busy", times, other_cores=0.26, stolen_cores=0.06, throttled=1)
    assert step.verdict == (
        "unsteady: other processes on 0.26 cores, 0.06 cores stolen, throttled 4 times"
    )


def test_a_run_is_unsteady_if_many_of_its_steps_are(tmp_path: Path) -> None:
    steady = [100.0, 100.0, 100.0]
    steps_of(tmp_path / "one", {**dict.fromkeys(range(1, 5), steady), 5: [100.0, 100.0, 120.0]})
    one = load(tmp_path / "one").stability
    assert one is not None
    assert (one.judged_steps, one.unsteady_steps, one.verdict) == (5, 1, "steady")  # 20 %
    steps_of(tmp_path / "two", {1: steady, 2: steady, 3: steady, 4: [100.0, 100.0, 120.0]})
    two = load(tmp_path / "two").stability
    assert two is not None
    assert two.verdict == "unsteady: 1 of 4 steps unsteady"


def test_an_older_run_without_controls_is_read_with_the_views_of_today(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with duckdb.connect(str(tmp_path / DATABASE)) as connection:
        connection.execute("DELETE FROM measurement WHERE variant = 'control'")
        connection.execute("DELETE FROM event")
        for view in ("run_stability", "stability", "structure_comparison", "structure"):
            connection.execute(f"DROP VIEW {view}")
    older = load(tmp_path)
    assert (older.overall.aa_n, older.overall.aa, older.rounds) == (0, None, None)
    assert older.overall.ratio == Interval(low=0.8, high=1.1, median=1.0, n=5)
    assert "control: not measured in any step." in older.notes


def test_task_wall_beside_the_baseline_of_the_same_steps(comparison: Comparison) -> None:
    # Prefill in s, then decode 3 + 1 and execution 4 + 1 of the baseline; task b has no baseline.
    assert [(row.task_id, row.variant, row.opt_wall_s) for row in comparison.tasks] == [
        ("a", "arithmetic", pytest.approx(9.317)),
        ("a", "fake", pytest.approx(9.33)),
        ("a", "full", pytest.approx(10.98)),
        ("a", "restored", pytest.approx(9.34)),
    ]
    assert comparison.tasks[1] == TaskRow(
        task_id="a",
        variant="fake",
        steps=2,
        steps_counted=2,
        opt_prefill_s=0.33,
        baseline_prefill_s=3.0,
        baseline_decode_s=4.0,
        baseline_exec_s=5.0,
        opt_wall_s=pytest.approx(9.33),
        baseline_wall_s=12.0,
    )


def test_task_wall_leaves_out_a_step_that_has_only_one_side(tmp_path: Path) -> None:
    complete = {"baseline_prefill_s": 1.0, "baseline_decode_s": 2.0, "baseline_exec_s": 3.0}
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps(
            [
                StepRecord("a", 1, 10, **complete),  # type: ignore[arg-type]
                StepRecord("a", 2, 10, baseline_prefill_s=50.0, baseline_decode_s=60.0),
                StepRecord("a", 3, 10, **complete),  # type: ignore[arg-type]
            ]
        )
        store.record(measurement("a", 1, prompt_ms=501.0))
        store.record(measurement("a", 2, prompt_ms=501.0))
    (row,) = load(tmp_path).tasks
    assert (row.steps, row.steps_counted) == (3, 1)
    assert (row.opt_wall_s, row.baseline_wall_s) == (5.5, 6.0)


def test_notes_tell_what_was_kept_out(comparison: Comparison) -> None:
    assert comparison.notes == (
        "fake: no valid measurement in 1 step of 3 (b step 1).",
        "control: no valid measurement in 1 step of 3 (b step 1).",
        "restored: no valid measurement in 1 step of 3 (b step 1).",
        "full: no valid measurement in 1 step of 3 (b step 1).",
        "arithmetic: no valid measurement in 1 step of 3 (b step 1).",
        "fake: 1 measurement invalid, kept out: cache_n is 2999, not 3000 (1).",
        "fake: 2 measurements refused, kept out: L = 500 is too small (2).",
        "fake and restored read different numbers of KV columns in 1 step (a step 2).",
    )


def test_notes_of_a_run_that_was_broken_off(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", number, 10) for number in range(1, 6)])
        for number in range(5):
            store.record(measurement(number=number, status="failed", error=f"reason {number}"))
        store.record(measurement(number=9))
        store.add_calibration(
            [
                CalibrationRow(0, 512, 100.0, (100.0, 121.0, 105.0)),
                CalibrationRow(256, 512, 100.0, (100.0, 119.0, 105.0)),
                CalibrationRow(2048, 512, 100.0, (100.0, 80.0)),
            ]
        )
        store.add_event("restart", "once")
        store.add_event("rounds", "3 rounds: one")
        store.add_event("rounds", "5 rounds: the last one")
        store.add_event("restart", "twice")
        store.set_status("interrupted")
    comparison = load(tmp_path)
    assert comparison.notes == (
        "The run is interrupted: the figures cover what it had measured until then.",
        "fake: no valid measurement in 4 steps of 5 (a step 2, a step 3, a step 4 and 1 more).",
        "control: not measured in any step.",
        "restored: not measured in any step.",
        "full: not measured in any step.",
        "arithmetic: not measured in any step.",
        "fake: 5 measurements failed, kept out: "
        "reason 0 (1); reason 1 (1); reason 2 (1) and 2 more.",
        "arithmetic: the calibration's samples differ by more than 20 % at depth 0; 2,048.",
        "Events on the way: 2 restart.",
    )
    assert comparison.rounds == "5 rounds: the last one"
    assert comparison.overall.speedup is None
    assert comparison.overall.ratio_median is None


def test_a_prefill_of_zero_gives_no_ratio(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        for variant in ("fake", "restored", "full"):
            store.record(measurement(variant=variant, prompt_ms=1.0))  # type: ignore[arg-type]
    comparison = load(tmp_path)
    assert comparison.steps[0].ratio_median is None
    assert comparison.steps[0].speedup is None
    assert (comparison.overall.pair_n, comparison.overall.speedup) == (0, None)


def test_load_takes_the_last_run_or_the_named_one(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with duckdb.connect(str(tmp_path / DATABASE)) as connection:
        connection.execute(
            "INSERT INTO run SELECT * REPLACE ('r0' AS id, started - INTERVAL 1 DAY AS "
            "started) FROM run; INSERT INTO step (run_id, task_id, step, depth, depth_unit) "
            "VALUES ('r0', 'z', 1, 7, 'tokens')"
        )
    assert load(tmp_path).run.id == "r1"
    assert load(tmp_path / DATABASE).run.id == "r1"
    other = load(tmp_path, "r0")
    assert [step.task_id for step in other.steps] == ["z"]
    assert other.overall.ratio is None
    with pytest.raises(StoreError, match="no run 'r9'") as caught:
        load(tmp_path, "r9")
    assert "r0, r1" in str(caught.value)


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no {DATABASE} here"):
        load(tmp_path)
    with pytest.raises(StoreError, match="no such file"):
        load(tmp_path / "absent")
    with Store.create(tmp_path, run_record()):
        pass
    with pytest.raises(StoreError, match="holds no steps"):
        load(tmp_path)


def test_load_writes_nothing(tmp_path: Path) -> None:
    canned_run(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [DATABASE]
    assert (tmp_path / DATABASE).read_bytes() == before


def test_load_reads_what_a_killed_run_left_in_its_log(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, 'tests'); from pathlib import Path\n"
        "from canned import measurement, run_record\n"
        "from experiment.records import StepRecord; from experiment.store import Store\n"
        "store = Store.create(Path(sys.argv[1]), run_record())\n"
        "store.add_steps([StepRecord('a', 1, 10)]); store.record(measurement(prompt_ms=8.0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=env)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / (DATABASE + ".wal")).exists()
    comparison = load(tmp_path)
    assert comparison.steps[0].fake_prefill_ms == 7.0
    assert comparison.notes[0].startswith("The run is running: ")
    # Reading leaves the log to the writer that resumes.
    assert (tmp_path / (DATABASE + ".wal")).exists()


def test_find_run(tmp_path: Path) -> None:
    names = (
        "2026-11-30_02-41-05_host_smoke",
        "2026-12-01_00-00-00_host_smoke",
        "2026-11-30_23-59-59_other_trace",
        "zz-not-a-run",
    )
    for name in names:
        canned_run(tmp_path / name)
    (tmp_path / "2027-01-01_00-00-00_host_empty").mkdir()
    assert find_run(tmp_path) == tmp_path / names[1]
    assert find_run(tmp_path, names[0]) == tmp_path / names[0]
    assert find_run(tmp_path, "zz-not-a-run") == tmp_path / "zz-not-a-run"
    assert find_run(tmp_path / "elsewhere", str(tmp_path / names[2])) == tmp_path / names[2]
    with pytest.raises(StoreError, match="no run nonsense") as caught:
        find_run(tmp_path, "nonsense")
    assert f"zz-not-a-run, {names[1]}, {names[2]} and 1 more" in str(caught.value)


def test_find_run_without_any(tmp_path: Path) -> None:
    for wanted in (None, "x"):
        with pytest.raises(StoreError, match="no run") as caught:
            find_run(tmp_path / "absent", wanted)
        assert "the first run makes one" in str(caught.value)

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest
from canned import canned_run, measurement, run_record

from experiment.compare import (
    Comparison,
    DepthRow,
    Interval,
    OverallRow,
    StepRow,
    TaskRow,
    find_run,
    load,
    median_interval,
)
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.paths import ROOT
from experiment.records import CalibrationRow, StepRecord
from experiment.store import Store


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(canned_run(tmp_path_factory.mktemp("results") / "run"))


def test_a_step_by_hand(comparison: Comparison) -> None:
    # fake prompts 110, 120, 130 less install 10: 100, 110, 120; less encode 20: 80, 90, 100.
    # restored prompts 105, 105, 130 less install 5: 100, 100, 125; ratios 1.0, 1.1, 0.96;
    # without the encoding 80/80, 90/80, 100/105. full 1100 / 110; arithmetic 99 / 90.
    assert comparison.steps[0] == StepRow(
        task_id="a",
        step=1,
        depth=1000,
        new_tokens=100,
        fake_n=3,
        fake_prefill_ms=110.0,
        fake_install_ms=10.0,
        fake_encode_ms=20.0,
        fake_lm_prefill_ms=90.0,
        fake_n_kv=1280,
        restored_n=3,
        restored_prefill_ms=100.0,
        restored_install_ms=5.0,
        restored_encode_ms=20.0,
        restored_lm_prefill_ms=80.0,
        restored_n_kv=1280,
        full_n=1,
        full_prefill_ms=1100.0,
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
        ratio_min=0.96,
        ratio_max=1.1,
        lm_ratio_median=1.0,
        speedup=10.0,
        arithmetic_error_pct=pytest.approx(10.0),
    )


def test_an_invalid_round_has_no_pair(comparison: Comparison) -> None:
    step = comparison.steps[1]
    # fake 200, 240 (the third is invalid); restored 250, 240, 240; ratios 0.8 and 1.0.
    assert (step.fake_n, step.restored_n, step.pair_n) == (2, 3, 2)
    assert (step.fake_prefill_ms, step.restored_prefill_ms) == (220.0, 240.0)
    assert (step.ratio_min, step.ratio_median, step.ratio_max) == (0.8, 0.9, 1.0)
    assert step.speedup == 4.0
    assert step.arithmetic_error_pct == pytest.approx(-10.0)


def test_a_refused_step_is_there_without_figures(comparison: Comparison) -> None:
    step = comparison.steps[2]
    assert (step.task_id, step.step, step.depth) == ("b", 1, 500)
    assert step.fake_n == step.restored_n == step.full_n == step.arithmetic_n == step.pair_n == 0
    for name in ("new_tokens", "fake_prefill_ms", "ratio_median", "speedup"):
        assert getattr(step, name) is None


def test_over_all_steps_by_hand(comparison: Comparison) -> None:
    assert comparison.overall == OverallRow(
        steps=3,
        fake_steps=2,
        fake_prefill_ms=330.0,  # 110 + 220
        fake_install_ms=12.0,
        fake_encode_ms=20.0,
        fake_new_tokens=300,
        restored_steps=2,
        restored_prefill_ms=340.0,  # 100 + 240
        restored_install_ms=11.0,
        full_steps=2,
        full_prefill_ms=1980.0,
        arithmetic_steps=2,
        arithmetic_prefill_ms=317.0,
        speedup_steps=2,
        speedup=6.0,  # 1980 / 330
        speedup_median=7.0,  # of 10 and 4
        arithmetic_error_steps=2,
        arithmetic_error_pct_median=pytest.approx(0.0),
        arithmetic_error_pct_min=pytest.approx(-10.0),
        arithmetic_error_pct_max=pytest.approx(10.0),
        arithmetic_error_pct_sum=pytest.approx(100 * (297 / 310 - 1)),
        pair_n=5,
        ratio_median=1.0,  # of 0.8, 0.96, 1.0, 1.0, 1.1
        lm_ratio_median=1.0,  # of 0.8, 100/105, 1.0, 1.0, 1.125
    )
    assert comparison.ratio_interval is None  # five pairs


def test_depths_in_buckets_of_1024(comparison: Comparison) -> None:
    shallow, deep = comparison.depths
    assert shallow == DepthRow(
        depth_from=0,
        depth_to=1024,
        steps=2,
        fake_steps=1,
        fake_prefill_ms=110.0,
        fake_install_ms=10.0,
        fake_ms_per_new_token=1.1,
        restored_prefill_ms=100.0,
        restored_install_ms=5.0,
        full_prefill_ms=1100.0,
        arithmetic_prefill_ms=119.0,
        speedup_steps=1,
        speedup=10.0,
        arithmetic_error_steps=1,
        arithmetic_error_pct_median=pytest.approx(10.0),
        pair_n=3,
        ratio_median=1.0,
        ratio_min=0.96,
        ratio_max=1.1,
    )
    assert (deep.depth_from, deep.depth_to, deep.steps, deep.pair_n) == (2048, 3072, 1, 2)


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
        store.add_event("restart", "twice")
        store.set_status("interrupted")
    comparison = load(tmp_path)
    assert comparison.notes == (
        "The run is interrupted: the figures cover what it had measured until then.",
        "fake: no valid measurement in 4 steps of 5 (a step 2, a step 3, a step 4 and 1 more).",
        "restored: not measured in any step.",
        "full: not measured in any step.",
        "arithmetic: not measured in any step.",
        "fake: 5 measurements failed, kept out: "
        "reason 0 (1); reason 1 (1); reason 2 (1) and 2 more.",
        "arithmetic: the calibration's samples differ by more than 20 % at depth 0; 2,048.",
        "Events on the way: 2 restart.",
    )
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


@pytest.mark.parametrize(
    ("n", "ranks", "confidence"),
    [
        # 1 - 2 / 2^6; five values reach only 1 - 2 / 2^5 = 93.75 %.
        (6, (1, 6), 0.96875),
        # 1 - 2 (1 + 10) / 2^10; with the third values it were 1 - 2 * 56 / 1024 = 89 %.
        (10, (2, 9), 1 - 22 / 1024),
        # The table of the sign test: 40 and 61 for 100 values, 96.5 %.
        (100, (40, 61), 0.96480),
    ],
)
def test_interval_of_the_median(n: int, ranks: tuple[int, int], confidence: float) -> None:
    values = np.random.default_rng(1).permutation(np.arange(1.0, n + 1))
    interval = median_interval(values)
    low, high = ranks
    assert interval == Interval(low, high, pytest.approx(confidence, abs=1e-5), n)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_too_few_values_for_an_interval(n: int) -> None:
    assert median_interval(np.ones(n)) is None


def test_five_values_are_enough_for_90_percent() -> None:
    interval = median_interval(np.array([5.0, 1.0, 3.0, 2.0, 4.0]), 0.9)
    assert interval == Interval(1.0, 5.0, 0.9375, 5)


def test_interval_of_very_many_values_does_not_overflow() -> None:
    n = 400_001
    interval = median_interval(np.arange(n, dtype=np.float64))
    assert interval is not None
    # Half-width of the normal approximation, 1.96 sqrt(n) / 2 = 619.8 ranks.
    assert abs((interval.high - interval.low) / 2 - 619.8) < 2
    assert 0.95 <= interval.confidence < 0.951


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    hits = 0
    for _ in range(2000):
        interval = median_interval(chance.exponential(size=10))
        assert interval is not None
        hits += interval.low <= np.log(2) <= interval.high
    # 97.85 % of 2,000 is 1957; five standard deviations are 32.
    assert abs(hits - 1957) < 32


def test_six_pairs_give_an_interval(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        for number, prompt_ms in enumerate([101.0, 103.0, 99.0, 105.0, 100.0, 98.0]):
            store.record(measurement(number=number, prompt_ms=prompt_ms))
            store.record(measurement(variant="restored", number=number, prompt_ms=101.0))
    interval = load(tmp_path).ratio_interval
    assert interval == Interval(0.97, 1.04, 0.96875, 6)


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
    assert other.ratio_interval is None
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

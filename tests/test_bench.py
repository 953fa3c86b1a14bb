"""Which runs the benchmark makes, with what settings, and what it reads from them."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment import bench
from experiment.bench import DEPTHS, PARTS, SIX_STEPS, SPEEDUP, TRACES, changed, measure, parts
from experiment.bench_data import write_synthetic
from experiment.bench_figures import (
    DRIVER_TARGETS_MS,
    INSTALL_TARGETS_MS,
    Figure,
    Part,
    Target,
    measurements,
)
from experiment.bench_probes import Comparing
from experiment.errors import EngineError, SettingsError
from experiment.paths import ROOT
from experiment.progress import Progress, SilentProgress
from experiment.records import CalibrationRow, Measurement
from experiment.scope import ALL, Asked
from experiment.settings import Settings, load_settings
from experiment.store import Store
from experiment.trace import Trace, load_trace

ALL_BUT_SIX = ("depths", "speedup", "default", "compare", "load")


def test_what_is_measured_unless_told() -> None:
    assert parts(None, "nano") == ALL_BUT_SIX
    assert parts(None, "holo3-35b-a3b") == ("six-steps",)
    assert parts(None, "/models/mine.gguf") == ("six-steps",)


def test_parts_that_are_asked_for_come_in_their_own_order_and_once() -> None:
    assert parts("compare, depths,compare", "nano") == ("depths", "compare")
    assert parts("six-steps", "nano") == ("six-steps",)
    assert parts(",".join(PARTS), "holo3-mini") == PARTS


@pytest.mark.parametrize(
    ("only", "name", "near"),
    [("depth", "depth", "depths"), ("", "", ""), ("depths,xyz", "xyz", "")],
)
def test_a_part_that_does_not_exist_is_refused(only: str, name: str, near: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parts(only, "nano")
    assert f"no part {name!r}" in caught.value.what
    assert ("is depths meant?" in caught.value.what) == bool(near)
    assert caught.value.where == "--only"
    assert "six-steps" in (caught.value.hint or "")


def test_settings_of_a_part_are_set_and_all_others_stay(tmp_path: Path) -> None:
    own = load_settings(
        {"results_dir": str(tmp_path), "schedule.rounds": 7, "server.threads": 3}, environ={}
    )
    deep = changed(own, DEPTHS)
    assert (deep.results_dir, deep.server) == (tmp_path, own.server)
    schedule = deep.schedule
    assert (schedule.rounds, schedule.max_rounds, schedule.full_rounds) == (20, 20, 0)
    assert (schedule.restored_max_depth, schedule.structure_steps) == (0, 0)
    assert schedule.warmup_rounds == own.schedule.warmup_rounds
    assert own.schedule.rounds == 7


@pytest.mark.parametrize("changes", [DEPTHS, SPEEDUP, SIX_STEPS])
def test_settings_of_a_part_pass_as_variables_too(changes: bench.Changes) -> None:
    """A container gets them so."""
    environ = {
        f"EXPERIMENT_{group.upper()}__{name.upper()}": str(value)
        for group, fields in changes.items()
        for name, value in fields.items()
    }
    assert load_settings(environ=environ) == changed(load_settings(environ={}), changes)


def test_the_traces_hold_what_the_figures_are_read_from() -> None:
    depths = [step.depth for step in load_trace(TRACES / "depths.jsonl").steps]
    assert set(depths) == INSTALL_TARGETS_MS.keys() | DRIVER_TARGETS_MS.keys()
    (step,) = load_trace(TRACES / "speedup.jsonl").steps
    assert step.depth == 32_768
    six = load_trace(TRACES / "six-steps.jsonl")
    assert (len(six.steps), six.max_depth) == (6, 8192)


class FakeEngine:
    """Remembers what it is asked for; a run's folder holds canned rows."""

    name = reason = "fake"

    def __init__(self, results: Path) -> None:
        self.results = results
        self.rows: list[Measurement] = []
        self.asked: list[tuple[str, str]] = []
        self.settings: list[Settings] = []
        self.error: Exception | None = None

    def build(self, settings: Settings, progress: Progress) -> str:
        self.asked.append(("build", settings.model.name))
        return "built"

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        self.asked.append((name, trace.path.name))
        self.settings.append(settings)
        if self.error:
            raise self.error
        with Store.create(self.results / name, run_record(name)) as store:
            for row in self.rows:
                store.record(row)
            store.add_calibration([CalibrationRow(32_768, 256, 500.0, (500.0,), 60.0)])
        return self.results / name

    def resume(self, settings: Settings, folder: Path, progress: Progress) -> Path:
        raise NotImplementedError


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / "results")


@pytest.fixture
def small_comparison(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int, int]]:
    """A comparison of a small run that takes canned times."""
    written: list[tuple[Path, int, int]] = []

    def write(folder: Path, steps: int, rounds: int) -> Path:
        written.append((folder, steps, rounds))
        assert folder.parent.is_dir()
        return canned_run(folder)

    loads = cycle([0.2, 0.3, 0.4, 0.5, 0.6])
    walls = cycle([0.9, 0.8, 1.2, 1.1, 1.3])
    monkeypatch.setattr(bench, "write_synthetic", write)
    monkeypatch.setattr(
        bench, "comparing", lambda folder: Comparing(next(loads), 0.1, 200_000_000, 5)
    )
    monkeypatch.setattr(bench, "compare_command_s", lambda folder: next(walls))
    return written


def test_each_part_is_there_as_soon_as_it_is_measured(engine: FakeEngine, tmp_path: Path) -> None:
    settings = load_settings({"cache_dir": str(tmp_path / "cache")}, environ={})
    measured = measure(engine, settings, ("depths", "speedup", "default"), SilentProgress())
    assert engine.asked == []
    assert next(measured).name == "depths"
    assert engine.asked == [("build", "nano"), ("bench-depths", "depths.jsonl")]
    engine.error = EngineError("gone")
    with pytest.raises(EngineError, match="gone"):
        next(measured)


def test_the_runs_that_are_made(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, object] = {"depth": 32_768, "prompt_n": 256, "wall_ms": 500.0}
    engine.rows = [
        measurement("t", 0, "fake", 0, 400.0, 1.0, **more),
        measurement("t", 0, "restored", 0, 400.0, 10.0, size_bytes=50_000_000, **more),
    ]
    copied: list[tuple[int, int]] = []

    def memcpy(size_bytes: int, repetitions: int) -> tuple[float, ...]:
        copied.append((size_bytes, repetitions))
        return (4.0, 5.0, 6.0)

    monkeypatch.setattr(bench, "memcpy_gbps", memcpy)
    settings = load_settings({"cache_dir": str(tmp_path / "cache")}, environ={})
    wanted = ("depths", "speedup", "default", "six-steps")
    deep, fast, default, six = measure(engine, settings, wanted, SilentProgress())
    assert engine.asked == [
        ("build", "nano"),
        ("bench-depths", "depths.jsonl"),
        ("bench-speedup", "speedup.jsonl"),
        ("bench-default", "computer-use.jsonl"),
        ("bench-six-steps", "six-steps.jsonl"),
    ]
    expected = [changed(settings, DEPTHS), changed(settings, SPEEDUP), settings]
    assert engine.settings == [*expected, changed(settings, SIX_STEPS)]
    assert [part.name for part in (deep, fast, default, six)] == list(wanted)
    for part in (deep, fast, default, six):
        folder = tmp_path / "results" / f"bench-{part.name}"
        assert part.origin == f"{folder} (nano, pin sdist, engine native)"
    # 50 MB in 10 ms are 5 GB/s, and so is the median copy.
    assert copied == [(50_000_000, bench.MEMCPY_REPETITIONS)]
    assert {f.what: f.samples for f in fast.figures}["restore / memcpy"] == (100.0,)
    assert {f.what: f.samples for f in fast.figures}["that process / fake, wall"] == (120.0,)
    (whole,) = default.figures
    assert (whole.unit, whole.target, len(whole.samples)) == ("s", Target(150.0), 1)
    assert 0 < whole.samples[0] < 60
    assert six.figures[0].target == Target(30.0)
    assert 0 < six.figures[0].samples[0] < 1


def test_nothing_is_copied_where_nothing_was_restored(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "memcpy_gbps", lambda size, repetitions: pytest.fail("copied"))
    (part,) = measure(engine, Settings(), ("speedup",), SilentProgress())
    assert part.figures[-1].samples == ()


def test_a_folder_in_the_checkout_is_shown_without_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bench._shown(ROOT / "results" / "a") == "results/a"
    assert bench._shown(Path("/elsewhere/a")) == "/elsewhere/a"


def test_the_comparison_needs_no_build(
    engine: FakeEngine, small_comparison: list[tuple[Path, int, int]], tmp_path: Path
) -> None:
    settings = load_settings({"cache_dir": str(tmp_path / "cache")}, environ={})
    folder = tmp_path / "cache" / "bench-compare"
    for _ in range(2):  # what an earlier time has left is in nobody's way
        (part,) = measure(engine, settings, ("compare",), SilentProgress())
        assert part.origin == f"./inv compare --run={folder}"
        assert [(f.what, f.unit, f.samples, f.target) for f in part.figures] == [
            (
                "the whole command, 24 measurements (1,000 steps)",
                "s",
                (0.9, 0.8, 1.2, 1.1, 1.3),
                Target(1.0),
            ),
            ("loading alone", "s", (0.2, 0.3, 0.4, 0.5, 0.6), None),
            ("rendering alone", "s", (0.1,) * 5, None),
            ("loading and rendering, peak of memory", "MB", (200.0,) * 5, Target(500.0)),
        ]
    assert engine.asked == []
    assert small_comparison == [(folder, 1_000, 250)] * 2


def test_the_load_needs_no_build(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = Figure("validate", "s", (1.5,), Target(2.0))
    asked: list[Path] = []

    def figures(folder: Path, progress: Progress) -> tuple[Figure, ...]:
        asked.append(folder)
        return (figure,)

    monkeypatch.setattr(bench, "load_figures", figures)
    settings = load_settings({"cache_dir": str(tmp_path / "cache")}, environ={})
    (part,) = measure(engine, settings, ("load",), SilentProgress())
    assert part == Part("load", "./inv bench --only=load", (figure,))
    assert asked == [tmp_path / "cache" / "bench-load"]
    assert engine.asked == []


def test_the_large_run_has_a_million_measurements(tmp_path: Path) -> None:
    rows = [measurements(write_synthetic(tmp_path / str(n), 3, n).parent) for n in (2, 3)]
    a_round = (rows[1] - rows[0]) // 3
    assert bench.SYNTHETIC_STEPS * bench.SYNTHETIC_ROUNDS * a_round >= 1_000_000

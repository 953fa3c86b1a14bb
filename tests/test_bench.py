"""The figures of the tool itself: how they are printed, and what they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest
from canned import measurement, run_record

from experiment.bench import OVERHEAD_ROUNDS, Figure, measure, render
from experiment.progress import Progress, SilentProgress
from experiment.records import Measurement
from experiment.settings import Settings
from experiment.store import Store
from experiment.trace import Baseline, Step, Trace


def test_canned_figures() -> None:
    figures = [
        Figure("whole run", "s", (201.5,), 240.0),
        Figure("driver, fake", "ms", (4.0, 31.0, 5.0), 30.0),
        Figure("driver, restored", "ms", (30.5, 31.0), 30.0),
        Figure("install", "ms", (0.25, 0.75), None),
    ]
    assert render(figures).splitlines() == [
        "whole run            201.50 s   (201.50 to 201.50, n = 1)  target 240 s: met",
        "driver, fake           5.00 ms  (4.00 to 31.00, n = 3)  target 30 ms: met",
        "driver, restored      30.75 ms  (30.50 to 31.00, n = 2)  target 30 ms: missed",
        "install                0.50 ms  (0.25 to 0.75, n = 2)",
    ]


@pytest.mark.parametrize(("median", "verdict"), [(29.99, "met"), (30.0, "met"), (30.01, "missed")])
def test_the_target_is_a_limit_that_may_be_reached(median: float, verdict: str) -> None:
    assert render([Figure("x", "ms", (median,), 30.0)]).endswith(f"target 30 ms: {verdict}")


def test_a_figure_without_samples_is_printed_as_such_and_not_met() -> None:
    line = render([Figure("install", "ms", (), 30.0), Figure("other", "ms", (1.0,), None)])
    first, other = line.splitlines()
    assert first.startswith("install")
    assert "n = 0" in first
    assert "met" not in first.split()
    assert "n = 1" in other


def trace(*depths: int) -> Trace:
    steps = tuple(
        Step("t", number, depth, "tokens", None, 20, None, Baseline(), number + 1)
        for number, depth in enumerate(depths)
    )
    return Trace(Path("t.jsonl"), steps, "0" * 64)


class FakeEngine:
    """Records what it is asked for, and "measures" canned rows."""

    def __init__(self, results: Path, rows: list[Measurement]) -> None:
        self.name = self.reason = "fake"
        self.results = results
        self.rows = rows
        self.calls: list[tuple[str, object]] = []
        self.schedules: list[tuple[int, int]] = []

    def build(self, settings: Settings, progress: Progress) -> str:
        self.calls.append(("build", None))
        return "built"

    def run(self, settings: Settings, trace: Trace, name: str, progress: Progress) -> Path:
        self.calls.append((name, trace))
        schedule = settings.schedule
        self.schedules.append((schedule.rounds, schedule.full_rounds))
        with Store.create(self.results / name, run_record(name)) as store:
            for row in self.rows:
                store.record(row)
        return self.results / name

    def resume(self, folder: Path, progress: Progress) -> Path:
        raise NotImplementedError


def test_what_is_measured(tmp_path: Path) -> None:
    rows = []
    for number, (fake, restored) in enumerate([(3.0, 9.0), (5.0, 7.0), (4.0, 8.0)]):
        rows += [
            measurement("t", 0, "fake", number, 100.0, 2.0 + number, wall_ms=100.0 + fake),
            measurement("t", 0, "restored", number, 90.0, 6.0, wall_ms=90.0 + restored),
        ]
    rows += [
        measurement("t", 0, "fake", -1, 100.0, 1.0, status="warmup", wall_ms=9999.0),
        measurement("t", 0, "fake", 3, 100.0, 1.0, status="invalid", error="x", wall_ms=8888.0),
        measurement("t", 0, "full", 0, 100.0, 0.0, wall_ms=7777.0),
    ]
    engine = FakeEngine(tmp_path, rows)
    whole, often = trace(300, 400, 500), trace(4096)
    figures = measure(engine, Settings(), whole, often, SilentProgress())
    assert engine.calls == [("build", None), ("bench-default", whole), ("bench-overhead", often)]
    assert engine.schedules == [(5, 1), (OVERHEAD_ROUNDS, 0)]
    run, fake_driver, restored_driver, install, restore = figures
    assert (run.unit, run.target, len(run.samples)) == ("s", 240.0, 1)
    assert "3 steps" in run.what
    assert 0 < run.samples[0] < 60
    assert (fake_driver.unit, fake_driver.target) == ("ms", 30.0)
    assert sorted(fake_driver.samples) == [3.0, 4.0, 5.0]
    assert sorted(restored_driver.samples) == [7.0, 8.0, 9.0]
    assert (fake_driver.median, restored_driver.median) == (4.0, 8.0)
    assert sorted(install.samples) == [2.0, 3.0, 4.0]
    assert sorted(restore.samples) == [6.0, 6.0, 6.0]
    assert (install.target, restore.target) == (None, None)
    assert all("L = 4,096" in figure.what for figure in figures[1:])
    assert len(render(figures).splitlines()) == 5


def test_a_run_whose_answers_are_all_invalid_can_be_printed_too(tmp_path: Path) -> None:
    rows = [measurement("t", 0, "fake", 0, status="invalid", error="cache_n is 1", wall_ms=1.0)]
    engine = FakeEngine(tmp_path, rows)
    figures = measure(engine, Settings(), trace(300), trace(4096), SilentProgress())
    assert "n = 0" in render(figures)

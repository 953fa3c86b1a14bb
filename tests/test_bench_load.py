"""What a long trace costs: the made-up trace and runs, the stages, and what is told of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from experiment import bench_load, compare
from experiment.bench_load import STAGES, load_figures
from experiment.bench_load_data import write_empty_run, write_finished_run, write_trace
from experiment.bench_load_stages import STAGES as PROGRAMS
from experiment.bench_load_stages import Subject, Took, took
from experiment.errors import ExperimentError
from experiment.progress import SilentProgress
from experiment.store import Store
from experiment.trace import Trace, load_trace

STEPS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, and two runs of it."""
    made = tmp_path_factory.mktemp("load")
    write_trace(made / "trace.jsonl", STEPS)
    trace = load_trace(made / "trace.jsonl")
    write_empty_run(made / "empty", trace)
    write_finished_run(made / "full", trace)
    return made


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return load_trace(folder / "trace.jsonl")


def test_the_trace_is_in_the_shape_of_real_ones(trace: Trace, tmp_path: Path) -> None:
    steps = trace.steps
    assert len(steps) == STEPS
    assert len({step.task_id for step in steps}) == 3
    depths = [step.depth for step in steps if step.task_id == steps[0].task_id]
    rises = sum(b > a for a, b in pairwise(depths))
    assert len(depths) / 2 < rises < len(depths) - 1  # grows, and falls
    for kind in ("new_text", "new_tokens", "screenshot"):
        share = sum(getattr(step, kind) is not None for step in steps) / STEPS
        assert 0.2 < share < 0.8
    write_trace(tmp_path / "again.jsonl", STEPS)
    assert (tmp_path / "again.jsonl").read_bytes() == trace.path.read_bytes()
    rows = [json.loads(line) for line in trace.path.read_text(encoding="utf-8").splitlines()]
    assert STEPS / 2 < sum("baseline" in row for row in rows) < STEPS


def test_the_runs_hold_nothing_and_everything(folder: Path) -> None:
    with Store.open(folder / "empty") as store:
        assert store.done() == set()
    with Store.open(folder / "full") as store:
        # Three rounds of three variants, one of full, and an estimate.
        assert len(store.done()) == STEPS * 11
    comparison = compare.load(folder / "full")
    assert comparison.notes == ()
    assert all(step.ratio is not None and step.new_tokens for step in comparison.steps)


@pytest.mark.parametrize(
    ("stage", "run", "handled"),
    [
        ("validate", "empty", STEPS),
        # A warm-up and three rounds of three variants, one of full.
        ("schedule", "empty", STEPS * (2 + 9 + 1)),
        # The steps whose experts are counted.
        ("schedule", "full", 6),
        ("schedule-step", "full", STEPS * (2 + 3) + 6),
    ],
)
def test_what_a_stage_handles(folder: Path, stage: str, run: str, handled: int) -> None:
    found = PROGRAMS[stage](Subject(folder / "trace.jsonl", folder / run))
    assert found == handled


def test_what_is_written_by_a_stage(folder: Path) -> None:
    written = {
        stage: PROGRAMS[stage](Subject(folder / "trace.jsonl", folder / "full"))
        for stage in ("compare", "compare-csv", "report")
    }
    assert 10_000 < written["compare"] < written["compare-csv"] < written["report"]


def test_a_stage_has_a_process_of_its_own(folder: Path) -> None:
    found = took("validate", Subject(folder / "trace.jsonl", folder / "empty"))
    assert found.handled == STEPS
    assert found.seconds > 0
    assert found.peak_bytes > 10e6
    with pytest.raises(ExperimentError, match="schedule ended with status 1"):
        took("schedule", Subject(folder / "trace.jsonl", folder / "none"))


def test_every_stage_is_measured_with_both_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    def canned(stage: str, of: Subject) -> Took:
        run, trace = of.run, of.trace
        assert trace.is_file()
        assert (run / "results.duckdb").is_file()
        assert run.parent == trace.parent
        asked.append((stage, run.parent.name, run.name))
        long = run.parent.name == "50"
        return Took(4.0 if long else 1.0, (250 if long else 200) * 2**20, 7)

    monkeypatch.setattr(bench_load, "SHORT", 10)
    monkeypatch.setattr(bench_load, "LONG", 50)
    monkeypatch.setattr(bench_load, "took", canned)
    figures = load_figures(tmp_path / "bench", SilentProgress())
    assert asked == [(stage.name, steps, stage.run) for stage in STAGES for steps in ("10", "50")]
    assert {stage.name for stage in STAGES} == PROGRAMS.keys()
    seconds, peak, growth, each = figures[:4]
    assert (seconds.what, seconds.unit, seconds.samples) == ("validate, 50 steps", "s", (4.0,))
    assert (peak.unit, peak.samples, peak.target) == ("MiB", (250.0,), None)
    assert (growth.samples, each.samples) == ((50.0,), (50 * 2**20 / 40,))
    assert growth.target is not None
    assert not growth.target.met(growth.samples)
    assert growth.target.met((16.0,))
    assert len(figures) == 4 * len(STAGES)

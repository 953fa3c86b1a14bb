"""What a long trace costs: seconds, and how memory grows with its length, each stage for itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiment.bench_figures import Figure, Target
from experiment.bench_load_data import write_empty_run, write_finished_run, write_trace
from experiment.bench_load_stages import Subject, Took, took
from experiment.progress import Progress
from experiment.trace import load_trace

SHORT, LONG = 10_000, 100_000
"""Steps of the two traces; what the long one takes more is what grows."""

ARRAYS_MIB, RECORDING_MIB, COMPARING_MIB = 16.0, 64.0, 256.0
"""What the longer trace may take more. Arrays grow by some bytes a step: where its row begins,
whether it is pending, 16 bytes that the judge remembers. Where a database is read, DuckDB keeps
parts of it in memory, the more of it there is, up to a limit: 64 MB while a run is written, however
long it is; 256 MB for each begun 100,000 steps while it is compared, of which up to 192 MB are
needed. The short trace does not reach that limit, the long one does."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as it is measured: its name, on which run, what it is called, its promise."""

    name: str
    run: Literal["empty", "full"]
    what: str
    target_s: float
    growth_mib: float


STAGES = (
    Stage("validate", "empty", "validate", 10.0, ARRAYS_MIB),
    Stage("schedule", "empty", "schedule, nothing measured", 60.0, ARRAYS_MIB),
    Stage("schedule", "full", "schedule, all measured", 60.0, RECORDING_MIB),
    Stage("schedule-step", "full", "schedule, a round added", 60.0, RECORDING_MIB),
    Stage("compare", "full", "compare, table", 30.0, COMPARING_MIB),
    Stage("compare-csv", "full", "compare, csv", 30.0, COMPARING_MIB),
    Stage("report", "full", "report", 60.0, COMPARING_MIB),
)


def load_figures(folder: Path, progress: Progress) -> tuple[Figure, ...]:
    """Write both traces and runs of them below ``folder``, and measure each stage with both.

    Raises:
        ExperimentError: a stage fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for steps in (SHORT, LONG):
        progress.start(f"write a trace of {steps:,} steps and runs of it", None)
        _write(folder / str(steps), steps)
        progress.finish()
    figures: list[Figure] = []
    progress.start("stages", len(STAGES))
    for number, stage in enumerate(STAGES):
        progress.advance(number, stage.what)
        short, long = (_took(folder / str(steps), stage) for steps in (SHORT, LONG))
        figures += _figures(stage, short, long)
    progress.finish()
    return tuple(figures)


def _write(folder: Path, steps: int) -> None:
    folder.mkdir(parents=True)
    trace = folder / "trace.jsonl"
    write_trace(trace, steps)
    loaded = load_trace(trace)
    write_empty_run(folder / "empty", loaded)
    write_finished_run(folder / "full", loaded)


def _took(folder: Path, stage: Stage) -> Took:
    return took(stage.name, Subject(folder / "trace.jsonl", folder / stage.run))


def _figures(stage: Stage, short: Took, long: Took) -> Iterator[Figure]:
    growth = long.peak_bytes - short.peak_bytes
    mib = growth / 2**20
    more = f"{stage.what}: above the peak of {SHORT:,} steps"
    yield Figure(f"{stage.what}, {LONG:,} steps", "s", (long.seconds,), Target(stage.target_s))
    yield Figure(f"{stage.what}: peak of memory", "MiB", (long.peak_bytes / 2**20,))
    yield Figure(more, "MiB", (mib,), Target(stage.growth_mib))
    yield Figure(f"{stage.what}: the same by the step", "B", (growth / (LONG - SHORT),))

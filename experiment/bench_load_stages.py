"""One thing that is done with a trace, or with a run of it, in a process of its own.

As a program (``python -m experiment.bench_load_stages STAGE TRACE RUN``) it prints what that took
as JSON. The process does nothing else, so that its peak of memory is that of the stage.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from experiment.bench_probes import output_of, peak_bytes
from experiment.settings import ScheduleSettings, Settings


@dataclass(frozen=True, slots=True)
class Took:
    """What a stage took: its own seconds, and the most memory of its whole process.

    ``handled`` is what it counted on the way: steps, requests, or characters written.
    """

    seconds: float
    peak_bytes: int
    handled: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What a stage works with: a trace, and the folder of a run of it."""

    trace: Path
    run: Path


def took(stage: str, of: Subject) -> Took:
    """Do a stage, a name out of `STAGES`, in a new process.

    Raises:
        ExperimentError: it fails, or takes too long.
    """
    program = [sys.executable, "-m", "experiment.bench_load_stages"]
    text = output_of([*program, stage, str(of.trace), str(of.run)], doing=stage)
    return Took(**json.loads(text))


def validate(of: Subject) -> int:
    """Read and check the trace, as every command that takes one does first."""
    from experiment.trace import load_trace

    return len(load_trace(of.trace).steps)


def schedule(of: Subject) -> int:
    """Work out what is to be asked for, as a run does before, between and after its requests."""
    return _schedule(of, ScheduleSettings())


def schedule_step(of: Subject) -> int:
    """The same where each step is to have an interval that is narrow enough: rounds are added."""
    return _schedule(of, ScheduleSettings(precision="step"))


def _schedule(of: Subject, wanted: ScheduleSettings) -> int:
    from experiment.judge import Judge
    from experiment.replay import Work, remind
    from experiment.run import estimate
    from experiment.step_size import context_size
    from experiment.store import Store
    from experiment.trace import load_trace

    trace = load_trace(of.trace)
    context_size(trace.steps)
    with Store.open(of.run) as store:
        work = Work(trace.steps, wanted, store, until_s=math.inf)
        requests = 0
        if not work.is_done():
            remind(Judge("tile"), trace.steps, store)
            fixed = work.fixed()
            requests = sum(1 for _ in fixed)
            added, _ = work.added(fixed.pending)
            requests += sum(1 for _ in added or ())
            requests += len(work.experts())
        estimate(Settings(), trace, store)
    return requests


def compare_table(of: Subject) -> int:
    """Compare the run and write the table."""
    from experiment import compare, tables

    return len(tables.render(compare.load(of.run), "table"))


def compare_csv(of: Subject) -> int:
    """Compare the run and write all steps as CSV."""
    from experiment import compare, tables

    return sum(map(len, tables.pieces(compare.load(of.run), "csv")))


def report(of: Subject) -> int:
    """Write the report of the run."""
    from experiment import report as reports

    with TemporaryDirectory(prefix="bench-load-") as folder:
        return reports.write(of.run, Path(folder) / "report.html").stat().st_size


STAGES: Mapping[str, Callable[[Subject], int]] = {
    "validate": validate,
    "schedule": schedule,
    "schedule-step": schedule_step,
    "compare": compare_table,
    "compare-csv": compare_csv,
    "report": report,
}


def _measured(stage: str, of: Subject) -> Took:
    began_s = time.perf_counter()
    handled = STAGES[stage](of)
    return Took(time.perf_counter() - began_s, peak_bytes(), handled)


if __name__ == "__main__":
    name, *paths = sys.argv[1:]
    json.dump(asdict(_measured(name, Subject(*map(Path, paths)))), sys.stdout)

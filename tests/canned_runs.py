"""Runs to be compared with the canned one, whose every figure can be worked out by hand too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from canned import STEPS, canned_measurements, run_record

from experiment.records import Measurement, StepRecord
from experiment.store import Store


def other_run(
    folder: Path,
    change: Callable[[Measurement], Measurement] = lambda row: row,
    *,
    steps: Sequence[StepRecord] = STEPS,
    rows: Iterable[Measurement] | None = None,
    **record: object,
) -> Path:
    """The canned run with its rows changed, those of its ``steps``; ``record`` changes the run."""
    keys = {(step.task_id, step.step): step for step in steps}
    with Store.create(folder, run_record(**record)) as store:  # type: ignore[arg-type]
        store.add_steps(steps)
        for row in canned_measurements() if rows is None else rows:
            if (row.task_id, row.step) in keys:
                store.record(change(row))
        store.set_status("finished")
    return folder


def slower(row: Measurement) -> Measurement:
    """Prefill twice as slow in step a 1, by half in a 2; full and arithmetic twice; install of
    fake three times as long. The image encoding stays as it is.
    """
    if row.prompt_ms is None or row.install_ms is None:
        return row
    factor = 2.0 if row.step == 1 or row.variant in ("full", "arithmetic") else 1.5
    install_ms = row.install_ms * (3 if row.variant in ("fake", "control") else 1)
    prefill_ms = row.prompt_ms - row.install_ms
    return replace(row, prompt_ms=factor * prefill_ms + install_ms, install_ms=install_ms)

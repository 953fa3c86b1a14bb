"""The walls of tasks in a report, against their baselines: measured, and extrapolated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiment import report_sql
from experiment.extrapolated import Extrapolation, Row
from experiment.reader import Reader
from experiment.report_figure import Figure, Value, figure_of, missing, of_all, spread
from experiment.rows import Comparison

MAX_TASKS = 30
"""Tasks in the chart of wall times."""

NO_BASELINE = (
    "The trace has no baselines (prefill_s, decode_s and exec_s of a step that was measured): "
    "nothing to compare with."
)

EXTRAPOLATED = (
    "extrapolated_steps",
    "extrapolated_baseline_s",
    "extrapolated_wall_s",
    "extrapolated_wall_s_low",
    "extrapolated_wall_s_high",
)
"""Columns of the walls of tasks that go on to all their steps."""


def task_wall(reader: Reader, comparison: Comparison) -> Figure:
    """What was measured; where a budget left steps out, what it says of all of them besides."""
    if comparison.extrapolation is not None:
        return _extrapolated_walls(reader, comparison, comparison.extrapolation)
    with_baseline = {task.task_id for task in comparison.tasks}
    tasks = [
        task
        for task in dict.fromkeys(step.task_id for step in comparison.steps)
        if task in with_baseline
    ]
    chosen = spread(tasks, MAX_TASKS)
    figure = figure_of(
        reader,
        key="task_wall",
        title="Wall time of each task against its baseline",
        about=(
            "opt_wall = measured prefill + the baseline's decode and exec, over the steps that "
            "have a complete baseline and a measured prefill of the variant; black ticks are the "
            "baseline over the same steps."
        ),
        query=report_sql.task_wall(reader.run_id, chosen if len(chosen) < len(tasks) else ()),
        notes=of_all(len(chosen), len(tasks), "tasks"),
    )
    return missing(figure, NO_BASELINE, not figure.rows)


def _extrapolated_walls(reader: Reader, comparison: Comparison, found: Extrapolation) -> Figure:
    """The walls of tasks of which a budget left steps out: measured, and extrapolated."""
    by_task = {(row.task_id, row.variant): row for row in found.rows if row.wall.steps}
    there = {task_id for task_id, _ in by_task}
    tasks = [
        task for task in dict.fromkeys(step.task_id for step in comparison.steps) if task in there
    ]
    chosen = spread(tasks, MAX_TASKS)
    figure = figure_of(
        reader,
        key="task_wall",
        title="Wall time of each task against its baseline, extrapolated",
        about=(
            "A budget left steps out. opt_wall = prefill + the baseline's decode and exec, "
            "extrapolated from the sample that was measured to all steps of a task with a complete "
            "baseline (dashed), with its 95 % interval (broad bars) where there is one; black "
            "ticks are the baseline over the same steps. opt_wall_s and baseline_wall_s in the "
            "table are what was measured: sums over steps_counted of the task's steps."
        ),
        query=report_sql.task_wall_of_all(
            reader.run_id, chosen if len(chosen) < len(tasks) else ()
        ),
        notes=(*of_all(len(chosen), len(tasks), "tasks"), *_without_interval(found)),
    )
    task_id, variant = (figure.columns.index(name) for name in ("task_id", "variant"))
    rows = tuple(
        (*row, *_extrapolated(by_task.get((str(row[task_id]), str(row[variant])))))
        for row in figure.rows
    )
    figure = replace(
        figure, columns=(*figure.columns, *EXTRAPOLATED), rows=rows, extrapolated=EXTRAPOLATED
    )
    return missing(figure, NO_BASELINE, not figure.values("extrapolated_wall_s"))


def _extrapolated(row: Row | None) -> tuple[Value, ...]:
    """Of a row; the last digits of least squares are not the same on every machine."""
    if row is None:
        return (None,) * len(EXTRAPOLATED)
    seconds = (row.baseline_wall_s, row.opt_wall_s, row.opt_wall_s_low, row.opt_wall_s_high)
    return (row.wall.steps, *(None if s is None else round(s, 3) for s in seconds))


def _without_interval(found: Extrapolation) -> Iterator[str]:
    for row in found.rows:
        if row.task_id is None and row.wall.flaw:
            yield f"{row.variant} has no interval over all tasks: {row.wall.flaw}."

"""What a report shows: for each figure its table, and the SQL that gives it in any DuckDB."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from experiment import compare, report_sql
from experiment.cost_model import CostModel, Point, fit
from experiment.errors import StoreError
from experiment.notes import some
from experiment.reader import Reader, read
from experiment.report_facts import Facts, read_facts
from experiment.rows import Comparison, StepRow

Value = str | int | float | None

MAX_ROWS = 1_000
"""Rows of a figure's table and steps in its charts: three such tables stay below 3 MB of page."""

MAX_PANELS = 12
"""Tasks that get a chart of their own."""

MIN_BINS, MAX_BINS = 8, 40
"""Bars of the distribution of ratios, about; between them twice the square root of the pairs."""

MAX_TASKS = 30
"""Tasks in the chart of wall times."""

_ENDS = frozenset(
    field.name.removesuffix("_low") for field in fields(StepRow) if field.name.endswith("_low")
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its table and where that comes from.

    Attributes:
        key: names it in the page.
        title: what it shows.
        about: how to read it.
        columns: of ``rows``; times are ms or s as the name says.
        query: gives ``rows`` without the columns ``intervals``, in that order.
        intervals: columns that `experiment.intervals` works out.
        rows: finite values only.
        notes: what a reader must know besides: what is left out, what could not be fitted.
        missing: why there is nothing to draw; empty if there is.
    """

    key: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    query: str
    intervals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""

    def values(self, *names: str) -> list[float]:
        """All numbers that stand in the named columns."""
        places = [self.columns.index(name) for name in names]
        found = (row[place] for row in self.rows for place in places)
        return [value for value in found if isinstance(value, int | float)]

    def measured_steps(self, measure: str) -> dict[str, list[int]]:
        """By task the steps with a value in a column that ends so, in the order of the rows."""
        places = [i for i, name in enumerate(self.columns) if name.endswith(measure)]
        task_id, step = (self.columns.index(name) for name in ("task_id", "step"))
        found: dict[str, list[int]] = {}
        for row in self.rows:
            if any(row[place] is not None for place in places):
                found.setdefault(str(row[task_id]), []).append(int(row[step] or 0))
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page. ``model`` is fitted to fake, or says why it cannot be."""

    comparison: Comparison
    model: CostModel | str
    figures: Mapping[str, Figure]
    facts: Facts


def load(folder: Path) -> Report:
    """Read the last run in ``folder``.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no steps.
    """
    comparison = compare.load(folder)
    model = _model(comparison.steps)
    with read(folder, comparison.run.id) as reader:
        made = (
            _prefill_by_step(reader, comparison),
            _prefill_by_depth(reader, comparison, model),
            _install_by_depth(reader, comparison),
            _ratios(reader, comparison),
            _time_parts(reader),
            _task_wall(reader, comparison),
        )
        facts = read_facts(reader, comparison)
    return Report(comparison, model, {figure.key: figure for figure in made}, facts)


def _model(steps: Iterable[StepRow]) -> CostModel | str:
    try:
        model = fit(
            Point(step.depth, step.new_tokens, step.fake_lm_prefill_ms)
            for step in steps
            if step.new_tokens is not None and step.fake_lm_prefill_ms is not None
        )
    except StoreError as error:
        return error.what
    # The last digits of least squares are not the same on every machine.
    a_ms, b_ms, c_ms = (float(f"{term:.7g}") for term in (model.a_ms, model.b_ms, model.c_ms))
    return replace(model, a_ms=a_ms, b_ms=b_ms, c_ms=c_ms)


def _prefill_by_step(reader: Reader, comparison: Comparison) -> Figure:
    tasks = list(dict.fromkeys(step.task_id for step in comparison.steps))
    panels = _spread(tasks, MAX_PANELS)
    chosen = set(panels)
    every = _every(sum(step.task_id in chosen for step in comparison.steps))
    figure = _figure(
        reader,
        key="prefill_by_step",
        title="Prefill per step, along each task",
        about=(
            "Time to decode what a step appends, without the install and with the image encoding; "
            "full decodes the whole prefix as well. Medians over rounds; bars are 95 % intervals."
        ),
        query=report_sql.prefill_by_step(
            reader.run_id, panels if len(panels) < len(tasks) else (), every
        ),
        notes=(*_of_all(len(panels), len(tasks), "tasks"), *_thinned(every)),
    )
    figure = _with_intervals(figure, comparison.steps)
    drawn = figure.measured_steps("prefill_ms")
    blank = [task for task in panels if task not in drawn]
    if blank and drawn:
        note = f"Not drawn, since nothing was measured in them: {some(blank)}."
        figure = replace(figure, notes=(*figure.notes, note))
    return _missing(figure, "No variant was measured in any of these steps.", not drawn)


def _prefill_by_depth(reader: Reader, comparison: Comparison, model: CostModel | str) -> Figure:
    measured = sum(step.fake_n > 0 or step.restored_n > 0 for step in comparison.steps)
    every = _every(measured)
    if isinstance(model, CostModel):
        about_model = (
            f"Lines: T(new, L) = {model.a_ms:.4g} {model.b_ms:+.4g} new {model.c_ms:+.4g} new L "
            "ms; short dashes: its value at each step. It is fitted to fake of all steps by "
            f"experiment/cost_model.py, explains {100 * model.r2:.2f} % of the relative "
            f"variation, and is off by {model.largest_residual_pct:+.1f} % at most. The query "
            "holds the fitted terms as numbers."
        )
    else:
        about_model = f"No model T(new, L) = a + b new + c new L is fitted: {model}."
    figure = _figure(
        reader,
        key="prefill_by_depth",
        title="Prefill against depth",
        about=(
            "Each mark is a step: time of the language model alone, without install and image "
            "encoding, behind L cells. Medians over rounds; bars are 95 % intervals."
        ),
        query=report_sql.prefill_by_depth(reader.run_id, model, every),
        notes=(about_model, *_thinned(every)),
    )
    figure = _with_intervals(figure, comparison.steps)
    return _missing(figure, "Neither fake nor restored was measured in any step.", not figure.rows)


def _install_by_depth(reader: Reader, comparison: Comparison) -> Figure:
    measured = sum(step.fake_n > 0 or step.restored_n > 0 for step in comparison.steps)
    every = _every(measured)
    figure = _figure(
        reader,
        key="install_by_depth",
        title="Cost of the install against depth",
        about=(
            "Putting a prefix of L tokens in place: fake fabricates it, restored copies a saved "
            "state back. Medians over rounds; bars are 95 % intervals."
        ),
        query=report_sql.install_by_depth(reader.run_id, every),
        notes=_thinned(every),
    )
    figure = _with_intervals(figure, comparison.steps)
    return _missing(figure, "Neither fake nor restored was measured in any step.", not figure.rows)


def _ratios(reader: Reader, comparison: Comparison) -> Figure:
    ((ends,),) = reader.connection.execute(
        "SELECT quantile_disc(x, [0, 0.05, 0.95, 1]) FROM (SELECT unnest([ratio, aa_ratio]) AS x "
        "FROM pair WHERE run_id = ?) WHERE x IS NOT NULL",
        [reader.run_id],
    ).fetchall()
    least, low, high, most = ends or (1.0, 1.0, 1.0, 1.0)
    # One pair that was disturbed must not press all others into a single bar.
    beside = (high - low) / 2
    number = min(MAX_BINS, max(MIN_BINS, round(2 * math.sqrt(comparison.overall.pair_n))))
    bins = report_sql.bins(max(least, low - beside), min(most, high + beside), number)
    figure = _figure(
        reader,
        key="ratios",
        title="Fidelity: fake / restored, and the noise floor",
        about=(
            "Ratios of prefill_ms paired within rounds, all pairs of the run. control is fake once "
            "more, so control / fake shows what noise alone makes of 1. Above the bars: both "
            "medians with their 95 % intervals. The first and the last bar hold everything beyond."
        ),
        query=report_sql.ratios(reader.run_id, bins),
    )
    return _missing(
        figure,
        "No round has both fake and restored: there is no ratio.",
        not comparison.overall.pair_n,
    )


def _time_parts(reader: Reader) -> Figure:
    figure = _figure(
        reader,
        key="time_parts",
        title="Where the time goes",
        about=(
            "Share of install (putting the prefix in place), encode (the image) and decode (the "
            "language model's prefill, lm_prefill_ms) in each variant's time: sums of the steps' "
            "medians, over the steps that have all of the variants. arithmetic is an estimate: "
            "its encode is that of fake, and it has no install."
        ),
        query=report_sql.time_parts(reader.run_id),
    )
    return _missing(
        figure, "No step has a valid measurement of all variants of this run.", not figure.rows
    )


def _task_wall(reader: Reader, comparison: Comparison) -> Figure:
    with_baseline = {task.task_id for task in comparison.tasks}
    tasks = [
        task
        for task in dict.fromkeys(step.task_id for step in comparison.steps)
        if task in with_baseline
    ]
    chosen = _spread(tasks, MAX_TASKS)
    figure = _figure(
        reader,
        key="task_wall",
        title="Wall time of each task against its baseline",
        about=(
            "opt_wall = measured prefill + the baseline's decode and exec, over the steps that "
            "have a complete baseline and a measured prefill of the variant; black ticks are the "
            "baseline over the same steps."
        ),
        query=report_sql.task_wall(reader.run_id, chosen if len(chosen) < len(tasks) else ()),
        notes=_of_all(len(chosen), len(tasks), "tasks"),
    )
    return _missing(
        figure,
        "The trace has no baselines (prefill_s, decode_s and exec_s of a step that was measured): "
        "nothing to compare with.",
        not figure.rows,
    )


def _figure(
    reader: Reader, *, key: str, title: str, about: str, query: str, notes: tuple[str, ...] = ()
) -> Figure:
    found = reader.connection.execute(query)
    columns = tuple(column[0] for column in found.description)
    rows = tuple(tuple(_finite(value) for value in row) for row in found.fetchall())
    return Figure(key, title, about, columns, rows, query, notes=notes)


def _with_intervals(figure: Figure, steps: Iterable[StepRow]) -> Figure:
    """``figure``, a row a step, with the ends of each interval behind its median."""
    by_key = {(step.task_id, step.step): step for step in steps}
    ends = {
        name: (f"{name}_low", f"{name}_high") if name in _ENDS else () for name in figure.columns
    }
    rows = []
    for row in figure.rows:
        named = dict(zip(figure.columns, row, strict=True))
        step = by_key[(str(named["task_id"]), int(named["step"] or 0))]
        rows.append(
            tuple(
                value
                for name in figure.columns
                for value in (named[name], *(getattr(step, end) for end in ends[name]))
            )
        )
    return replace(
        figure,
        columns=tuple(column for name in figure.columns for column in (name, *ends[name])),
        rows=tuple(rows),
        intervals=tuple(end for pair in ends.values() for end in pair),
    )


def _missing(figure: Figure, why: str, is_missing: bool) -> Figure:
    return replace(figure, missing=why) if is_missing else figure


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _every(number: int) -> int:
    """Every how manieth of so many rows is shown."""
    return max(1, math.ceil(number / MAX_ROWS))


def _thinned(every: int) -> tuple[str, ...]:
    if every == 1:
        return ()
    return (
        f"Chart and table show one step of every {every:,}, so that the page stays small; the "
        f"query without its QUALIFY line gives all.",
    )


def _of_all(shown: int, number: int, noun: str) -> tuple[str, ...]:
    if shown == number:
        return ()
    return (
        f"Chart and table show {shown:,} of {number:,} {noun}, evenly spaced in the trace's order, "
        f"so that the page stays small.",
    )


def _spread(items: Sequence[str], most: int) -> tuple[str, ...]:
    """At most ``most`` of the items: the first, the last, and evenly spaced ones between."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[i * (len(items) - 1) // (most - 1)] for i in range(most))

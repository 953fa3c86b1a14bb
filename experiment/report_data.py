"""What a report shows: for each figure its table, and the SQL that gives it in any DuckDB."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from experiment import compare, report_sql
from experiment.cost_model import CostModel, Point, fit
from experiment.errors import StoreError
from experiment.notes import some
from experiment.reader import Reader, read
from experiment.report_facts import Facts, read_facts
from experiment.report_figure import Figure, figure_of, missing, of_all, spread
from experiment.report_walls import task_wall
from experiment.rows import Comparison, StepRow

MAX_ROWS = 1_000
"""Rows of a figure's table and steps in its charts: three such tables stay below 3 MB of page."""

MAX_PANELS = 12
"""Tasks that get a chart of their own."""

MIN_BINS, MAX_BINS = 8, 40
"""Bars of the distribution of ratios, about; between them twice the square root of the pairs."""

_ENDS = frozenset(
    field.name.removesuffix("_low") for field in fields(StepRow) if field.name.endswith("_low")
)


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
    with read(folder) as reader:
        comparison = compare.of(reader)
        model = _model(comparison.steps)
        made = (
            _prefill_by_step(reader, comparison),
            _prefill_by_depth(reader, comparison, model),
            _install_by_depth(reader, comparison),
            _ratios(reader, comparison),
            _time_parts(reader),
            task_wall(reader, comparison),
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
    replayed = Counter(step.task_id for step in comparison.steps if step.left_out is None)
    tasks = list(replayed)
    panels = spread(tasks, MAX_PANELS)
    every = _every(sum(replayed[task] for task in panels))
    figure = figure_of(
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
        notes=(*of_all(len(panels), len(tasks), "tasks"), *_thinned(every)),
    )
    figure = _with_intervals(figure, comparison.steps)
    drawn = figure.measured_steps("prefill_ms")
    blank = [task for task in panels if task not in drawn]
    if blank and drawn:
        note = f"Not drawn, since nothing was measured in them: {some(blank)}."
        figure = replace(figure, notes=(*figure.notes, note))
    return missing(figure, "No variant was measured in any of these steps.", not drawn)


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
    figure = figure_of(
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
    return missing(figure, "Neither fake nor restored was measured in any step.", not figure.rows)


def _install_by_depth(reader: Reader, comparison: Comparison) -> Figure:
    measured = sum(step.fake_n > 0 or step.restored_n > 0 for step in comparison.steps)
    every = _every(measured)
    figure = figure_of(
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
    return missing(figure, "Neither fake nor restored was measured in any step.", not figure.rows)


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
    figure = figure_of(
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
    return missing(
        figure,
        "No round has both fake and restored: there is no ratio.",
        not comparison.overall.pair_n,
    )


def _time_parts(reader: Reader) -> Figure:
    figure = figure_of(
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
    return missing(
        figure, "No step has a valid measurement of all variants of this run.", not figure.rows
    )


def _with_intervals(figure: Figure, steps: Iterable[StepRow]) -> Figure:
    """``figure``, a row a step, with the ends of each interval behind its median."""
    task_id, number = (figure.columns.index(name) for name in ("task_id", "step"))
    shown = {(str(row[task_id]), int(row[number] or 0)) for row in figure.rows}
    by_key = {key: step for step in steps if (key := (step.task_id, step.step)) in shown}
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

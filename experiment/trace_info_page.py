"""What a trace is made of, as one HTML file that needs nothing beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from experiment.errors import ReportError
from experiment.html_page import TEMPLATES, environment, library, policy, script_json
from experiment.report_style import CONFIG, ROWS, axis
from experiment.text_plots import histogram
from experiment.trace_estimate import Estimate
from experiment.trace_info import TraceInfo
from experiment.trace_info_tables import (
    DISTRIBUTION_HEAD,
    distribution_rows,
    estimate_rows,
    notes,
    sentences,
    title,
)
from experiment.whole_file import write_text

MAX_TASKS = 12
"""Tasks that get a line: those with the most steps."""

MAX_POINTS = 3000
"""Steps in a chart; of more, evenly spaced ones are drawn."""

HEIGHT = 300
TASK_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#222222", "#7F3C8D", "#80BA5A", "#A5AA99", "#B5651D", "#5F4690"),
)
"""The first six are those of Okabe and Ito, which readers with any colour vision can tell apart."""

Row = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, its data, and how to read it."""

    key: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    spec: dict[str, Any]


def write(info: TraceInfo, to: Path, estimate: Estimate | None = None) -> Path:
    """Write the page to the file ``to`` and return it.

    Raises:
        ReportError: it cannot be written.
    """
    if to.is_dir():
        raise ReportError("this is a folder", where=str(to), hint="name a file, as trace.html")
    page = render(info, estimate)
    try:
        write_text(to, page)
    except OSError as error:
        raise ReportError(
            f"the page cannot be written: {error.strerror}",
            where=str(to),
            hint="name a file in a folder that is there and can be written",
        ) from error
    return to


def render(info: TraceInfo, estimate: Estimate | None = None) -> str:
    """The page; the same bytes for the same trace."""
    figures = figures_of(info)
    scripts = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))
    template = environment().get_template("trace_info.html.j2")
    return template.render(
        title=title(info),
        info=info,
        sentences=sentences(info),
        notes=notes(info, estimate),
        head=DISTRIBUTION_HEAD,
        rows=distribution_rows(info),
        estimate=estimate_rows(estimate) if estimate else (),
        figures=figures,
        data={
            f"data-{figure.key}": script_json({"columns": figure.columns, "rows": figure.rows})
            for figure in figures
        },
        drawing=script_json(
            {"config": CONFIG, "specs": {figure.key: [figure.spec] for figure in figures}}
        ),
        policy=policy(scripts),
        style=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        scripts=scripts,
    )


def figures_of(info: TraceInfo) -> tuple[Figure, ...]:
    """The charts of the page."""
    depths = [depth for task in info.tasks for depth in task.depths]
    return (
        _by_step(info),
        _histogram("depths", "Depth L", "L, tokens", depths),
        _histogram("news", "New tokens", "new, tokens", info.news),
    )


def _by_step(info: TraceInfo) -> Figure:
    longest = sorted(info.tasks, key=lambda task: -len(task.depths))[:MAX_TASKS]
    drawn = [task for task in info.tasks if task in longest]
    most = MAX_POINTS // len(drawn)
    rows = tuple(
        (task.task_id, place, task.depths[place])
        for task in drawn
        for place in spaced(len(task.depths), most)
    )
    depths = [depth for task in drawn for depth in task.depths]
    # On a logarithmic axis a fall would hardly show.
    up = axis("depth L, tokens", depths, log_from=math.inf)
    names = [task.task_id for task in drawn]
    chart = (
        alt.Chart(alt.NamedData(ROWS))
        .mark_line(strokeWidth=1.4, point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X("place:Q", title="step", axis=alt.Axis(tickMinStep=1, format="d", grid=False)),
            y=up.y("depth"),
            color=alt.Color(
                "task_id:N",
                title=None,
                scale=alt.Scale(domain=names, range=list(TASK_COLOURS[: len(names)])),
                legend=alt.Legend(columns=3, labelLimit=220) if len(names) > 1 else None,
            ),
            tooltip=[
                alt.Tooltip("task_id:N", title="task"),
                alt.Tooltip("place:Q", title="step, from 0"),
                alt.Tooltip("depth:Q", title="L", format=","),
            ],
        )
        .properties(height=HEIGHT, description="Depth of each step, a line a task")
    )
    tasks, steps = len(info.tasks), len(depths)
    about = "A line a task. Where it falls, old content was evicted or compacted."
    if tasks > len(drawn):
        about += f" Drawn are the {len(drawn)} of {tasks:,} tasks with the most steps."
    if steps > len(rows):
        about += f" Of their {steps:,} steps {len(rows):,} are drawn, evenly spaced."
    columns = ("task_id", "place", "depth")
    return Figure("by_step", "Depth along each task", about, columns, rows, _spec(chart))


def _histogram(key: str, name: str, along: str, values: Sequence[int]) -> Figure:
    rows = tuple((f"{low:,} to {high:,}", count) for low, high, count in histogram(values))
    chart = (
        alt.Chart(alt.NamedData(ROWS))
        .mark_bar(color=TASK_COLOURS[0])
        .encode(
            x=alt.X("bin:O", title=along, sort=None, axis=alt.Axis(labelAngle=-35)),
            y=alt.Y("steps:Q", title="steps", axis=alt.Axis(tickMinStep=1, format=",d")),
            tooltip=[alt.Tooltip("bin:N", title=along), alt.Tooltip("steps:Q", format=",")],
        )
        .properties(height=HEIGHT * 2 // 3, description=f"How many steps have which {name}")
    )
    about = "Each bin is twice as wide as the one before, or wider."
    return Figure(key, name, about, ("bin", "steps"), rows, _spec(chart))


def _spec(chart: alt.Chart) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container").to_dict()
    # The same for all charts: the page gives it to each.
    return {name: value for name, value in spec.items() if name not in ("$schema", "config")}


def spaced(count: int, most: int) -> list[int]:
    """Up to ``most`` places of ``count``, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most < 2:
        return [0]
    return [place * (count - 1) // (most - 1) for place in range(most)]

"""The charts of a report: Vega-Lite specifications over the rows of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import altair as alt

from experiment.cost_model import CostModel
from experiment.report_data import Report
from experiment.report_figure import Figure
from experiment.report_ratios import ratios
from experiment.report_style import (
    BLACK,
    COLOURS,
    GREY,
    HEIGHT,
    LOG_DEPTHS_FROM,
    PARTS,
    ROWS,
    SHAPES,
    Axis,
    Spec,
    axis,
    by_variant,
    marks,
    measured,
    times_of,
    tooltip,
)

AnyChart = alt.Chart | alt.LayerChart

TALL = 320
PART_HEIGHT = 34
ROW_HEIGHT = 17

MAX_STEP_TICKS = 15

MODEL_POINTS = 33
"""Of a line: enough that it looks smooth on logarithmic axes."""

MAX_SIZES = 8
"""Up to so many each has a line."""

MIN_GAP = 0.07
"""Between the ends of two lines, as a share of the axis: their labels must not overlap."""


def charts(report: Report) -> dict[str, tuple[Spec, ...]]:
    """The charts of each figure; none where its ``missing`` says why."""
    of = report.figures
    draw: dict[str, Callable[[], Iterable[AnyChart]]] = {
        "prefill_by_step": lambda: _prefill_by_step(of["prefill_by_step"]),
        "prefill_by_depth": lambda: [_prefill_by_depth(of["prefill_by_depth"], report)],
        "install_by_depth": lambda: [_install_by_depth(of["install_by_depth"])],
        "ratios": lambda: [ratios(of["ratios"], report.comparison.overall)],
        "time_parts": lambda: [_time_parts(of["time_parts"])],
        "task_wall": lambda: [
            (_extrapolated_wall if of["task_wall"].extrapolated else _task_wall)(of["task_wall"])
        ],
    }
    return {
        key: () if figure.missing else tuple(map(_spec, draw[key]())) for key, figure in of.items()
    }


def _spec(chart: AnyChart) -> Spec:
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    spec: Spec = chart.properties(width="container", autosize=fit).to_dict()
    # The same for all charts: the page gives it to each.
    return {name: value for name, value in spec.items() if name not in ("$schema", "config")}


def _prefill_by_step(figure: Figure) -> Iterator[AnyChart]:
    variants = measured(figure, "prefill_ms")
    up = axis("prefill, ms", times_of(figure, variants, "prefill_ms"))
    told = tooltip(figure, variants)
    for task, steps in figure.measured_steps("prefill_ms").items():
        # Explicit: a layer without rows, as one of intervals may be, has no extent.
        first, last = min(steps), max(steps)
        scale = alt.Scale(domain=[first, last] if first < last else [first - 1, last + 1])
        step_axis = alt.Axis(
            format="d",
            grid=False,
            # Left to itself, Vega puts halves between so few.
            values=range(first, last + 1) if last - first < MAX_STEP_TICKS else alt.Undefined,
        )
        rows = (
            by_variant(variants, "prefill_ms")
            .transform_filter(alt.FieldEqualPredicate(field="task_id", equal=task))
            .encode(x=alt.X("step:Q", title="step", scale=scale, axis=step_axis))
        )
        yield marks(rows, up, variants, told, lines=True).properties(
            title=task,
            height=HEIGHT,
            description=f"Prefill of each step of task {task}, a line a variant",
        )


def _prefill_by_depth(figure: Figure, report: Report) -> AnyChart:
    variants = measured(figure, "lm_prefill_ms")
    times = times_of(figure, variants, "lm_prefill_ms")
    if isinstance(report.model, CostModel):
        # A model that is far off must not press the measured times into a corner.
        low, high = min(times) / 2, max(times) * 2
        times += [ms for ms in figure.values("model_ms") if low <= ms <= high]
    up = axis("language model's prefill, ms", times)
    along = axis("depth L, tokens", figure.values("depth"), LOG_DEPTHS_FROM)
    told = tooltip(figure, variants)
    if isinstance(report.model, CostModel):
        told += [
            alt.Tooltip("model_ms:Q", title="model, ms", format=",.3f"),
            alt.Tooltip("model_error_pct:Q", title="model off by, %", format="+.2f"),
        ]
    rows = by_variant(variants, "lm_prefill_ms").encode(x=along.x("depth"))
    layers = marks(rows, up, variants, told, lines=False)
    if isinstance(report.model, CostModel):
        layers = alt.LayerChart(layer=[*_model(report, report.model, along, up), layers])
    return layers.properties(
        height=TALL, description="Prefill of each step against the depth of its prefix"
    )


def _model(report: Report, model: CostModel, along: Axis, up: Axis) -> tuple[alt.Chart, ...]:
    """Lines of the model and for how many new tokens each is, and a dash at every step."""
    share = [i / (MODEL_POINTS - 1) for i in range(MODEL_POINTS)]
    if along.is_log:
        depths = [along.low * (along.high / along.low) ** at for at in share]
    else:
        depths = [along.low + (along.high - along.low) * at for at in share]
    points = [
        {"new": new, "depth": depth, "ms": ms}
        for new in _sizes(report, model, along, up)
        for depth in sorted({round(depth) for depth in depths})
        # What the terms say of other sizes and depths than measured ones may be any number.
        if up.low / 1.1 <= (ms := model.ms(new, depth)) <= up.high * 1.04
    ]
    ends = list({point["new"]: point for point in points}.values())
    lines = (
        alt.Chart(alt.InlineData(values=points))
        .mark_line(color=GREY, strokeWidth=1.1, strokeDash=[4, 3])
        .encode(x=along.x("depth"), y=up.y("ms"), detail="new:N")
    )
    labels = (
        alt.Chart(alt.InlineData(values=ends))
        .transform_calculate(label="'new = ' + format(datum.new, ',')")
        .mark_text(align="right", baseline="bottom", dy=-4, color=GREY, fontSize=11)
        .encode(x=along.x("depth"), y=up.y("ms"), text="label:N")
    )
    fitted = (
        alt.Chart(alt.NamedData(ROWS))
        .mark_point(shape="stroke", color=GREY, size=220, strokeWidth=1.4, opacity=1, clip=True)
        .encode(x=along.x("depth"), y=up.y("model_ms"))
    )
    return lines, labels, fitted


def _sizes(report: Report, model: CostModel, along: Axis, up: Axis) -> list[int]:
    """Sizes of new content, the largest first, whose lines end apart."""
    sizes = sorted({step.new_tokens for step in report.comparison.steps if step.new_tokens})
    ends: dict[int, float] = {}
    for new in reversed(sizes):
        ms = model.ms(new, round(along.high))
        if ms > 0 and all(abs(up.place(ms) - other) >= MIN_GAP for other in ends.values()):
            ends[new] = up.place(ms)
    chosen = list(ends)
    # In a trace nearly every step has a size of its own: three lines say as much as ten.
    few = len(sizes) <= MAX_SIZES or len(chosen) <= 3
    return chosen if few else [chosen[0], chosen[len(chosen) // 2], chosen[-1]]


def _install_by_depth(figure: Figure) -> AnyChart:
    variants = measured(figure, "install_ms")
    up = axis("install, ms", times_of(figure, variants, "install_ms"))
    along = axis("depth L, tokens", figure.values("depth"), LOG_DEPTHS_FROM)
    told = tooltip(figure, variants)
    rows = by_variant(variants, "install_ms").encode(x=along.x("depth"))
    return marks(rows, up, variants, told, lines=False).properties(
        height=HEIGHT, description="Cost of the install of each step against its depth"
    )


def _time_parts(figure: Figure) -> AnyChart:
    names = [f"{part}_ms" for part in PARTS]
    total = " + ".join(f"datum.{name}" for name in names)
    chart: alt.Chart = (
        alt.Chart(alt.NamedData(ROWS))
        .transform_calculate(
            total=total, label=f"datum.variant + ', ' + format(({total}) / 1000, ',.3f') + ' s'"
        )
        .transform_fold([*names], as_=["column", "ms"])
        .transform_calculate(
            part="replace(datum.column, '_ms', '')",
            share="datum.total ? datum.ms / datum.total : 0",
            order=f"indexof({names}, datum.column)",
        )
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=alt.X(
                "ms:Q",
                title="share of the variant's time",
                stack="normalize",
                axis=alt.Axis(format="%", tickCount=5),
            ),
            y=alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelFontSize=12)),
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())),
                legend=alt.Legend(symbolType="square", symbolStrokeWidth=0),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("steps:Q"),
                alt.Tooltip("part:N"),
                alt.Tooltip("ms:Q", title="ms, in sum", format=",.3f"),
                alt.Tooltip("share:Q", title="share", format=".2%"),
                alt.Tooltip("total:Q", title="all parts, ms", format=",.3f"),
            ],
        )
        .properties(
            height=PART_HEIGHT * len(figure.rows),
            description="Share of install, encode and decode, by variant",
        )
    )
    return chart


def _task_wall(figure: Figure) -> AnyChart:
    rows = alt.Chart(alt.NamedData(ROWS)).transform_calculate(
        less="100 * (datum.opt_wall_s / datum.baseline_wall_s - 1)",
        counted="datum.steps_counted + ' of ' + datum.steps",
    )
    walls = figure.values("opt_wall_s", "baseline_wall_s")
    along = axis("wall time, s", walls, LOG_DEPTHS_FROM)
    told = [
        alt.Tooltip("counted:N", title="steps"),
        alt.Tooltip("opt_prefill_s:Q", title="prefill, s", format=",.3f"),
        alt.Tooltip("baseline_decode_s:Q", title="decode of the baseline, s", format=",.3f"),
        alt.Tooltip("baseline_exec_s:Q", title="exec of the baseline, s", format=",.3f"),
        alt.Tooltip("opt_wall_s:Q", title="opt_wall, s", format=",.3f"),
        alt.Tooltip("baseline_wall_s:Q", title="baseline, s", format=",.3f"),
        alt.Tooltip("less:Q", title="opt_wall against it, %", format="+.2f"),
    ]
    base, colour, shape = _walls(rows, figure, told)
    saved = base.mark_rule(strokeWidth=1.4, opacity=0.6).encode(
        x=along.x("opt_wall_s"), x2="baseline_wall_s:Q", color=colour
    )
    baseline = base.mark_tick(color=BLACK, thickness=2, size=ROW_HEIGHT).encode(
        x=along.x("baseline_wall_s")
    )
    points = base.mark_point(strokeWidth=1.8, size=60, opacity=1, fill="white").encode(
        x=along.x("opt_wall_s"), color=colour, shape=shape
    )
    return alt.LayerChart(layer=[saved, baseline, points]).properties(
        height=ROW_HEIGHT * len(figure.rows) + 20,
        description="Wall time of each task by variant, against its baseline",
    )


def _extrapolated_wall(figure: Figure) -> AnyChart:
    wall, low, high = (f"extrapolated_wall_s{end}" for end in ("", "_low", "_high"))
    counted = "datum.steps_counted + ' measured, extrapolated to ' + datum.extrapolated_steps"
    rows = (
        alt.Chart(alt.NamedData(ROWS))
        .transform_filter(f"isValid(datum.{wall})")
        .transform_calculate(
            less=f"100 * (datum.{wall} / datum.extrapolated_baseline_s - 1)",
            counted=counted,
            interval=f"isValid(datum.{low}) ? format(datum.{low}, ',.1f') + ' to '"
            f" + format(datum.{high}, ',.1f') : 'none'",
        )
    )
    told = [
        alt.Tooltip("counted:N", title="steps"),
        alt.Tooltip(f"{wall}:Q", title="opt_wall, extrapolated, s", format=",.1f"),
        alt.Tooltip("interval:N", title="95 % interval, s"),
        alt.Tooltip("extrapolated_baseline_s:Q", title="baseline, s", format=",.1f"),
        alt.Tooltip("less:Q", title="opt_wall against it, %", format="+.2f"),
    ]
    base, colour, shape = _walls(rows, figure, told)
    names = ("extrapolated_baseline_s", wall, low, high)
    along = axis("wall time, extrapolated, s", figure.values(*names), LOG_DEPTHS_FROM)
    interval = (
        base.transform_filter(f"isValid(datum.{low})")
        .mark_rule(strokeWidth=9, opacity=0.3)
        .encode(x=along.x(low), x2=f"{high}:Q", color=colour)
    )
    saved = base.mark_rule(strokeWidth=1.4, strokeDash=[4, 3]).encode(
        x=along.x(wall), x2="extrapolated_baseline_s:Q", color=colour
    )
    baseline = base.mark_tick(color=BLACK, thickness=2, size=ROW_HEIGHT).encode(
        x=along.x("extrapolated_baseline_s")
    )
    points = base.mark_point(strokeWidth=1.8, strokeDash=[2, 2], size=60, opacity=1, fill="white")
    return alt.LayerChart(
        layer=[interval, saved, baseline, points.encode(x=along.x(wall), color=colour, shape=shape)]
    ).properties(
        height=ROW_HEIGHT * len(figure.values(wall)) + 20,
        description="Wall time of each task by variant, extrapolated to all its steps",
    )


def _walls(
    rows: alt.Chart, figure: Figure, told: list[alt.Tooltip]
) -> tuple[alt.Chart, alt.Color, alt.Shape]:
    """A line a task and variant, and how variants look."""
    place = figure.columns.index("variant")
    variants = [name for name in COLOURS if any(row[place] == name for row in figure.rows)]
    base = rows.encode(
        y=alt.Y("task_id:N", title=None, sort=None, axis=alt.Axis(labelLimit=200)),
        yOffset=alt.YOffset("variant:N", sort=variants),
        tooltip=[alt.Tooltip("task_id:N", title="task"), alt.Tooltip("variant:N"), *told],
    )
    colours = alt.Scale(domain=variants, range=[COLOURS[name] for name in variants])
    shapes = alt.Scale(domain=variants, range=[SHAPES[name] for name in variants])
    colour = alt.Color("variant:N", title=None, scale=colours)
    return base, colour, alt.Shape("variant:N", title=None, scale=shapes)

"""How a report's charts look and tell their values: colours, marks, axes, legends, tooltips."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from experiment.report_figure import Figure

Spec = dict[str, Any]

ROWS = "rows"
"""The data set that the page hands to each chart: its figure's rows, as objects."""

COLOURS = {
    "fake": "#0072B2",
    "restored": "#D55E00",
    "full": "#CC79A7",
    "arithmetic": "#009E73",
}
"""Of Okabe and Ito, which readers with any colour vision can tell apart; shapes and dashes too."""

SHAPES = {"fake": "circle", "restored": "square", "full": "triangle-up", "arithmetic": "diamond"}
DASHES = {"fake": [1, 0], "restored": [6, 3], "full": [2, 2], "arithmetic": [8, 3, 2, 3]}

# Dark to light, so that they stay apart on a printer without colour.
PARTS = {"install": "#222222", "encode": "#56B4E9", "decode": "#CFDBE3"}

GREY, BLACK = "#767676", "#222222"

HEIGHT = 250
"""Of a chart, in pixels."""

LOG_FROM = 8.0
"""Times that differ by this factor get a logarithmic axis: full dwarfs the rest."""

LOG_DEPTHS_FROM = 40.0

MAX_TICKS = 8

CONFIG: Spec = {
    "background": "white",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "axis": {
        "domainColor": "#999999",
        "gridColor": "#ececec",
        "labelColor": "#333333",
        "labelFontSize": 11,
        "tickColor": "#999999",
        "titleColor": "#333333",
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "legend": {
        "columnPadding": 16,
        "labelFontSize": 11.5,
        "orient": "top",
        "symbolOpacity": 1,
        "symbolSize": 70,
        "symbolStrokeWidth": 1.8,
        "title": None,
    },
    "title": {
        "anchor": "start",
        "color": "#222222",
        "fontSize": 12.5,
        "fontWeight": 600,
        "limit": 330,
        "offset": 6,
    },
    "view": {"stroke": None},
}


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis over ``low`` to ``high``, logarithmic where that shows more."""

    title: str
    low: float
    high: float
    is_log: bool

    @property
    def scale(self) -> alt.Scale:
        """With a little room beyond the values; from 0 unless logarithmic."""
        if self.is_log:
            return alt.Scale(type="log", domain=[self.low / 1.15, self.high * 1.15], nice=False)
        return alt.Scale(domain=[0, 1.04 * self.high or 1], nice=False)

    def x(self, name: str) -> alt.X:
        """The column ``name`` along it."""
        return alt.X(f"{name}:Q", title=self.title, scale=self.scale, axis=self._axis())

    def y(self, name: str) -> alt.Y:
        """The column ``name`` up it."""
        return alt.Y(f"{name}:Q", title=self.title, scale=self.scale, axis=self._axis())

    def place(self, value: float) -> float:
        """Where a value stands: 0 at the lower end, 1 at the upper."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return value / self.high

    def _axis(self) -> alt.Axis:
        if not self.is_log:
            return alt.Axis(format=",~f", tickCount=6)
        # Vega's own ticks of a logarithm are ten a decade, with gaps between the labels.
        decades = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            ticks = [float(f"{mantissa}e{decade}") for decade in decades for mantissa in mantissas]
            shown = [tick for tick in ticks if self.low / 1.15 <= tick <= self.high * 1.15]
            if len(shown) <= MAX_TICKS:
                break
        return alt.Axis(format=",~f", values=shown)


def axis(title: str, values: Iterable[float], log_from: float = LOG_FROM) -> Axis:
    """An axis for ``values``: logarithmic if all are above 0 and differ by ``log_from``."""
    found = list(values)
    low, high = min(found), max(found)
    return Axis(title, low, high, is_log=low > 0 and high >= log_from * low)


def measured(figure: Figure, measure: str) -> list[str]:
    """The variants that have a value in ``figure``."""
    names = [f"{variant}_{measure}" for variant in COLOURS]
    return [
        name.removesuffix(f"_{measure}")
        for name in names
        if name in figure.columns and figure.values(name)
    ]


def times_of(figure: Figure, variants: Iterable[str], measure: str) -> list[float]:
    """All times of these variants, with the ends of their intervals."""
    names = (f"{variant}_{measure}{end}" for variant in variants for end in ("", "_low", "_high"))
    return figure.values(*(name for name in names if name in figure.columns))


def by_variant(variants: Sequence[str], measure: str) -> alt.Chart:
    """The rows, one for each variant: ``value``, and ``low`` and ``high`` if known.

    ``told_<variant>`` is what a tooltip says of it.
    """
    # The last one is drawn on top of the others.
    columns = [f"{variant}_{measure}" for variant in reversed(variants)]
    chart = alt.Chart(alt.NamedData(ROWS))
    for variant in variants:
        name = f"{variant}_{measure}"
        chart = chart.transform_calculate(
            as_=f"told_{variant}",
            calculate=f"isValid(datum.{name}) ? format(datum.{name}, ',.3f')"
            f" + (isValid(datum.{name}_low) ? ' (' + format(datum.{name}_low, ',.3f')"
            f" + ' to ' + format(datum.{name}_high, ',.3f') + ')' : '') : 'not measured'",
        )
    return (
        chart.transform_fold([*columns], as_=["column", "value"])
        .transform_filter("isValid(datum.value)")
        .transform_calculate(
            variant=f"replace(datum.column, '_{measure}', '')",
            low="datum[datum.column + '_low']",
            high="datum[datum.column + '_high']",
        )
    )


def tooltip(figure: Figure, variants: Iterable[str]) -> list[alt.Tooltip]:
    """Which step it is, and its time in ms with each variant."""
    known = {"task_id": "task", "step": "step", "depth": "L", "new_tokens": "new tokens"}
    of_step = [
        alt.Tooltip(f"{name}:{'N' if name == 'task_id' else 'Q'}", title=title)
        for name, title in known.items()
        if name in figure.columns
    ]
    return of_step + [
        alt.Tooltip(f"told_{variant}:N", title=f"{variant}, ms") for variant in variants
    ]


def marks(
    base: alt.Chart,
    up: Axis,
    variants: Sequence[str],
    told: list[alt.Tooltip],
    *,
    lines: bool,
) -> alt.LayerChart:
    """Points of each variant with their intervals, and (``lines``) joined in their order along x.

    ``base`` has the rows of `by_variant` and x; ``told`` is the tooltip.
    """
    domain = list(variants)
    colour = alt.Color(
        "variant:N", title=None, scale=alt.Scale(domain=domain, range=[COLOURS[v] for v in domain])
    )
    shape = alt.Shape(
        "variant:N", title=None, scale=alt.Scale(domain=domain, range=[SHAPES[v] for v in domain])
    )
    # restored lies where fake does: its mark stands around that of fake.
    size = alt.SizeValue(45, condition={"test": "datum.variant === 'restored'", "value": 110})
    points = base.mark_point(strokeWidth=1.8, opacity=1).encode(
        y=up.y("value"), color=colour, shape=shape, size=size, tooltip=told
    )
    intervals = (
        base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(strokeWidth=1.4)
        .encode(y=up.y("low"), y2="high:Q", color=colour, tooltip=told)
    )
    if not lines:
        return alt.LayerChart(layer=[intervals, points])
    # By conditions, not by a scale, whose legend would draw the points dashed.
    dash = alt.StrokeDashValue(
        [1, 0],
        condition=[
            {"test": f"datum.variant === '{name}'", "value": DASHES[name]} for name in domain
        ],
    )
    joined = base.mark_line(strokeWidth=1.4, opacity=0.75).encode(
        y=up.y("value"), color=colour, strokeDash=dash
    )
    return alt.LayerChart(layer=[joined, intervals, points])

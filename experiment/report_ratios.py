"""The chart of a report that shows the distribution of the ratios and what noise makes of 1."""

from __future__ import annotations

import altair as alt

from experiment.intervals import Interval, noise_floor
from experiment.report_figure import Figure, Value
from experiment.report_style import BLACK, COLOURS, HEIGHT, ROWS
from experiment.rows import OverallRow

FAKE_RESTORED, CONTROL_FAKE, NOISE_FLOOR = "fake / restored", "control / fake", "noise floor"

ROOM = 1.3
"""Above the highest bar, for the medians."""


def ratios(figure: Figure, overall: OverallRow) -> alt.LayerChart:
    """Bars of fake / restored, the outline of control / fake, both medians, and the noise floor."""
    ends = sorted(set(figure.values("ratio_from", "ratio_to")))
    width = ends[1] - ends[0]
    floor = noise_floor(overall.aa)
    medians = [
        {"kind": FAKE_RESTORED, "y": 0.93, **_ends(overall.ratio, overall.ratio_median)},
        {"kind": CONTROL_FAKE, "y": 0.86, **_ends(overall.aa, overall.aa_median)},
    ]
    shown = [1 - (floor or 0), 1 + (floor or 0)]
    shown += [end + side for end in ends for side in (-width, width)]
    x = alt.X(
        "left:Q",
        title="ratio of prefill_ms",
        scale=alt.Scale(domain=[min(shown), max(shown)], nice=False),
        axis=alt.Axis(format="~f", tickCount=10),
    )
    highest = max(
        max(values) / (sum(values) or 1)
        for values in (figure.values("fake_restored_pairs"), figure.values("control_fake_pairs"))
    )
    tick = next((tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2) if highest <= 5 * tick), 0.2)
    y = alt.Y(
        "share:Q",
        title="share of pairs",
        scale=alt.Scale(domain=[0, ROOM * highest], nice=False),
        axis=alt.Axis(format=".0%", values=[i * tick for i in range(int(highest / tick) + 1)]),
    )
    rows = (
        alt.Chart(alt.NamedData(ROWS))
        .transform_joinaggregate(
            pairs="sum(fake_restored_pairs)", controls="sum(control_fake_pairs)"
        )
        .transform_calculate(
            left=f"isValid(datum.ratio_from) ? datum.ratio_from : datum.ratio_to - {width}",
            right=f"isValid(datum.ratio_to) ? datum.ratio_to : datum.ratio_from + {width}",
            range="!isValid(datum.ratio_from) ? 'below ' + format(datum.ratio_to, '.6~f')"
            " : format(datum.ratio_from, '.6~f') + (isValid(datum.ratio_to)"
            " ? ' to ' + format(datum.ratio_to, '.6~f') : ' and above')",
        )
        .encode(
            tooltip=[
                alt.Tooltip("range:N", title="ratio"),
                alt.Tooltip("fake_restored_pairs:Q", title=FAKE_RESTORED, format=","),
                alt.Tooltip("control_fake_pairs:Q", title=CONTROL_FAKE, format=","),
            ]
        )
    )
    colours = {FAKE_RESTORED: COLOURS["fake"], CONTROL_FAKE: BLACK, NOISE_FLOOR: "#DADADA"}
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(symbolType="square"),
    )
    bars = (
        rows.transform_calculate(
            kind=f"'{FAKE_RESTORED}'",
            share="datum.pairs ? datum.fake_restored_pairs / datum.pairs : 0",
        )
        .mark_rect(opacity=0.45, stroke="white", strokeWidth=0.7)
        .encode(x=x, x2="right:Q", y=y, y2=alt.Y2Datum(0), color=colour)
    )
    # Steps halfway between the bins' middles are the outline of bars.
    outline = (
        rows.transform_calculate(
            kind=f"'{CONTROL_FAKE}'",
            share="datum.controls ? datum.control_fake_pairs / datum.controls : 0",
            left="(datum.left + datum.right) / 2",
        )
        .mark_line(interpolate="step", strokeWidth=1.3, strokeDash=[4, 2])
        .encode(x=x, y=y, color=colour)
    )
    noise = [] if floor is None else [{"kind": NOISE_FLOOR, "left": 1 - floor, "right": 1 + floor}]
    floors = (
        alt.Chart(alt.InlineData(values=noise)).mark_rect().encode(x=x, x2="right:Q", color=colour)
    )
    one = (
        alt.Chart(alt.InlineData(values=[{"left": 1}]))
        .mark_rule(color=BLACK, strokeWidth=0.8)
        .encode(x=x)
    )
    return alt.LayerChart(
        layer=[floors, bars, outline, one, *_medians(medians, x, highest, colour)]
    ).properties(height=HEIGHT, description="Distribution of fake / restored and of control / fake")


def _medians(
    rows: list[dict[str, Value]], x: alt.X, highest: float, colour: alt.Color
) -> tuple[alt.Chart, alt.Chart]:
    """Each median and its interval, above the bars."""
    base = (
        alt.Chart(alt.InlineData(values=[row for row in rows if row["left"] is not None]))
        .transform_calculate(share=f"datum.y * {ROOM * highest}")
        .encode(
            y=alt.Y("share:Q"),
            color=colour,
            tooltip=[
                alt.Tooltip("kind:N", title="median of"),
                alt.Tooltip("left:Q", title="median", format=".5f"),
                alt.Tooltip("low:Q", title="95 % interval from", format=".5f"),
                alt.Tooltip("high:Q", title="to", format=".5f"),
            ],
        )
    )
    interval = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=3)
        .encode(x=alt.X("low:Q"), x2="high:Q")
    )
    return interval, base.mark_point(filled=True, size=60, opacity=1).encode(x=x)


def _ends(interval: Interval | None, median: float | None) -> dict[str, Value]:
    return {
        "left": median,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }

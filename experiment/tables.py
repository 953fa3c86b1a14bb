"""How a comparison is written: a table and sentences for a terminal, Markdown, JSON, or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Literal, assert_never

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiment.compare import Comparison, OverallRow, StepRow

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")

WIDTH = 120

MIN_NAME = 8
"""Characters that a task's name keeps however wide the figures are."""

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head (two lines), what a step shows, and what the line over all steps shows."""

    head: str
    step: Callable[[StepRow], str]
    overall: Callable[[OverallRow], str]
    left: bool = False


def render(comparison: Comparison, form: Format) -> str:
    """Write ``comparison``: ``csv`` holds the steps only, ``json`` everything."""
    match form:
        case "table":
            return _terminal(comparison)
        case "md":
            return _markdown(comparison)
        case "json":
            value = asdict(comparison) | {"folder": str(comparison.folder)}
            return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case "csv":
            return _csv(comparison)
        case _:
            assert_never(form)


def _ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}"


def _time(value_ms: float) -> str:
    """A time within a sentence."""
    return f"{value_ms / 1000:,.2f} s" if value_ms >= 999.5 else f"{_ms(value_ms)} ms"


def _with_n(text: str, n: int) -> str:
    return f"{text} ({n:,})" if n else NOTHING


def _ratio(value: float | None, n: int) -> str:
    return NOTHING if value is None else _with_n(f"{value:.4f}", n)


def _times(value: float | None, n: int) -> str:
    if value is None:
        return NOTHING
    return _with_n(f"{value:.2f}" if value < 9.995 else f"{value:.1f}", n)


def _percent(value: float | None, n: int) -> str:
    return NOTHING if value is None else _with_n(f"{value:+.1f}", n)


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


COLUMNS = (
    Column("task", lambda s: s.task_id, lambda _: "all", left=True),
    Column("step", lambda s: str(s.step), lambda o: _count(o.steps)),
    Column("L", lambda s: _count(s.depth), lambda _: ""),
    Column("new", lambda s: _count(s.new_tokens), lambda o: _count(o.fake_new_tokens)),
    Column("fake\nms", lambda s: _ms(s.fake_prefill_ms), lambda o: _ms(o.fake_prefill_ms)),
    Column(
        "restored\nms", lambda s: _ms(s.restored_prefill_ms), lambda o: _ms(o.restored_prefill_ms)
    ),
    Column(
        "fake/restored\n(pairs)",
        lambda s: _ratio(s.ratio_median, s.pair_n),
        lambda o: _ratio(o.ratio_median, o.pair_n),
    ),
    Column("full\nms", lambda s: _ms(s.full_prefill_ms), lambda o: _ms(o.full_prefill_ms)),
    Column(
        "full/fake\n(n)",
        lambda s: _times(s.speedup, s.full_n),
        lambda o: _times(o.speedup, o.speedup_steps),
    ),
    Column(
        "arithm.\nms",
        lambda s: _ms(s.arithmetic_prefill_ms),
        lambda o: _ms(o.arithmetic_prefill_ms),
    ),
    Column(
        "error %\n(n)",
        lambda s: _percent(s.arithmetic_error_pct, s.fake_n),
        lambda o: _percent(o.arithmetic_error_pct_sum, o.arithmetic_error_steps),
    ),
    Column("encode\nms", lambda s: _ms(s.fake_encode_ms), lambda o: _ms(o.fake_encode_ms)),
    Column("install\nfake ms", lambda s: _ms(s.fake_install_ms), lambda o: _ms(o.fake_install_ms)),
    Column(
        "install\nrest. ms",
        lambda s: _ms(s.restored_install_ms),
        lambda o: _ms(o.restored_install_ms),
    ),
)

LEGEND = (
    "Times are medians over rounds, without the install (last two columns), with the image "
    "encoding; L and new are tokens. fake/restored: median of the ratios paired within rounds. "
    "full/fake: ratio of medians (n: samples of full). error: arithmetic against fake, image "
    "encoding left out (n: samples of fake). The line 'all': sums over steps, the median of all "
    "pairs, ratios of sums (n: steps)."
)


def _terminal(comparison: Comparison) -> str:
    rows = [[column.step(step) for column in COLUMNS] for step in comparison.steps]
    rows.append([column.overall(comparison.overall) for column in COLUMNS])
    table = Table(box=SIMPLE, padding=0, show_edge=False, title=_title(comparison))
    widths = [
        max(len(text) for text in (*column.head.split("\n"), *cells))
        for column, cells in zip(COLUMNS, zip(*rows, strict=True), strict=True)
    ]
    # Only names may be cut: a figure without its last digits is a wrong figure.
    figures = sum(widths[1:]) + len(widths) - 1
    widths[0] = max(min(widths[0], WIDTH - figures), MIN_NAME)
    for column, width in zip(COLUMNS, widths, strict=True):
        table.add_column(
            Text(column.head),
            justify="left" if column.left else "right",
            overflow="ellipsis",
            no_wrap=True,
            width=width,
        )
    for row in rows[:-1]:
        table.add_row(*map(Text, row))
    table.add_section()
    table.add_row(*map(Text, rows[-1]))
    sink = io.StringIO()
    console = Console(
        file=sink, width=WIDTH, no_color=True, highlight=False, markup=False, emoji=False
    )
    console.print(table, width=max(WIDTH, widths[0] + figures), crop=False, no_wrap=True)
    console.print()
    console.print(Text(LEGEND))
    console.print()
    for line in answer(comparison):
        console.print(Text(line))
    if comparison.notes:
        console.print("\nNotes:")
        for note in comparison.notes:
            console.print(Text(f"- {note}"))
    console.print()
    # Not wrapped: a path that is broken over two lines cannot be copied.
    console.print(f"Results: {comparison.folder}", soft_wrap=True)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _markdown(comparison: Comparison) -> str:
    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [
        f"### {_title(comparison)}",
        "",
        row(column.head.replace("\n", " ") for column in COLUMNS),
        row("---" if column.left else "---:" for column in COLUMNS),
        *(row(column.step(step) for column in COLUMNS) for step in comparison.steps),
        row(column.overall(comparison.overall) for column in COLUMNS),
        "",
        LEGEND,
        "",
        *(f"- {line}" for line in answer(comparison)),
    ]
    if comparison.notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in comparison.notes)]
    lines += ["", f"Results: `{comparison.folder}`"]
    return "\n".join(lines) + "\n"


def _csv(comparison: Comparison) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(StepRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(step) for step in comparison.steps)
    return sink.getvalue()


def _title(comparison: Comparison) -> str:
    run = comparison.run
    return f"{run.id}: {run.model}, pin {run.pin}, engine {run.engine}"


def answer(comparison: Comparison) -> tuple[str, ...]:
    """What the figures say: a sentence or two for each question that has data, never none."""
    told = (_cost(comparison), _fallback(comparison), _full(comparison), _arithmetic(comparison))
    sentences = tuple(sentence for sentence in told if sentence)
    return sentences or ("No step has a valid measurement of fake: there is nothing to compare.",)


def _cost(comparison: Comparison) -> str:
    overall = comparison.overall
    measured = [step for step in comparison.steps if step.fake_prefill_ms is not None]
    if overall.fake_prefill_ms is None or not measured:
        return ""
    ends = [min(measured, key=lambda s: s.depth), max(measured, key=lambda s: s.depth)]
    told = [
        f"{_time(step.fake_prefill_ms or 0)} for {_count(step.new_tokens)} new tokens at "
        f"L = {step.depth:,} (n = {step.fake_n})"
        for step in ends
    ]
    text = (
        f"Prefill of only the new tokens at depth L costs {_time(overall.fake_prefill_ms)} over "
        f"{_steps(overall.fake_steps)}: {told[0]}"
    )
    text += f", {told[1]}" if ends[0] is not ends[1] else ""
    if overall.fake_new_tokens:
        per_token = overall.fake_prefill_ms / overall.fake_new_tokens
        text += f"; {_ms(per_token)} ms a new token on average"
    return text + "."


def _fallback(comparison: Comparison) -> str:
    overall, interval = comparison.overall, comparison.ratio_interval
    if overall.ratio_median is None:
        return ""
    text = (
        f"Against the fallback (restored), fake takes {overall.ratio_median:.4f} times as long: "
        f"median of {overall.pair_n:,} pairs, "
    )
    if interval is None:
        text += "too few for a 95 % interval."
    else:
        text += (
            f"{100 * interval.confidence:.1f} % interval {interval.low:.4f} to {interval.high:.4f}"
        )
        if interval.low <= 1 <= interval.high:
            text += ", which contains 1: no difference is seen."
        else:
            side = "faster" if interval.high < 1 else "slower"
            text += f", which does not contain 1: fake is {side}."
    if overall.fake_install_ms is not None and overall.restored_install_ms is not None:
        fake = overall.fake_install_ms / overall.fake_steps
        restored = overall.restored_install_ms / overall.restored_steps
        text += (
            f" Putting the prefix in place costs {_ms(fake)} ms a step for fake and "
            f"{_ms(restored)} ms for restored (means of the steps' medians)."
        )
    return text


def _full(comparison: Comparison) -> str:
    overall = comparison.overall
    if overall.speedup is None or overall.speedup_median is None:
        return ""
    return (
        f"Decoding everything anew (full) takes {overall.speedup:.1f} times as long as fake in sum "
        f"over {_steps(overall.speedup_steps)}; the median step {overall.speedup_median:.1f} times."
    )


def _arithmetic(comparison: Comparison) -> str:
    overall = comparison.overall
    if overall.arithmetic_error_pct_median is None or overall.arithmetic_error_pct_sum is None:
        return ""
    return (
        f"The arithmetic estimate new / prefill_tps(L) is off by "
        f"{overall.arithmetic_error_pct_sum:+.1f} % in sum over "
        f"{_steps(overall.arithmetic_error_steps)}; the median step by "
        f"{overall.arithmetic_error_pct_median:+.1f} %, the steps from "
        f"{overall.arithmetic_error_pct_min:+.1f} % to {overall.arithmetic_error_pct_max:+.1f} % "
        f"(image encoding left out)."
    )


def _steps(number: int) -> str:
    return f"{number:,} step" + ("" if number == 1 else "s")

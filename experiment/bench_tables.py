"""How figures of the benchmark are written: a table for a terminal, or Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, assert_never

from experiment.bench_figures import Figure, Part

Format = Literal["table", "md"]
FORMATS: tuple[Format, ...] = ("table", "md")

HEADS = ("what", "median", "95 % interval", "range", "n", "target", "")
NOTHING = "-"


def render(part: Part, form: Format) -> str:
    """Write a part's origin and figures."""
    rows = [_cells(figure) for figure in part.figures]
    match form:
        case "table":
            return _terminal(part, rows)
        case "md":
            return _markdown(part, rows)
        case _:
            assert_never(form)


def _terminal(part: Part, rows: Sequence[tuple[str, ...]]) -> str:
    lines = [HEADS, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [f"{part.name}: {part.origin}"]
    for cells in lines:
        what, *numbers, target, verdict = (
            # Figures stand right, texts left.
            cell.ljust(width) if place in (0, 5, 6) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        text.append("  ".join((what, *numbers, target, verdict)).rstrip())
    return "\n".join(text) + "\n\n"


def _markdown(part: Part, rows: Sequence[tuple[str, ...]]) -> str:
    lines = [HEADS, ("---", "---:", "---:", "---:", "---:", "---", "---"), *rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{part.name}: `{part.origin}`\n\n{table}\n"


def _cells(figure: Figure) -> tuple[str, ...]:
    target, samples = figure.target, figure.samples
    if target is None:
        promise = ""
    else:
        each = "each " if target.every else ""
        promise = f"{each}{target.direction} {_with_unit(f'{target.value:,g}', figure.unit)}"
    if not samples:
        return (figure.what, NOTHING, NOTHING, NOTHING, "0", promise, "not measured")
    interval, unit = figure.interval, figure.unit
    return (
        figure.what,
        _with_unit(_number(figure.median, unit), unit),
        _from_to(interval.low, interval.high, unit) if interval else NOTHING,
        _from_to(min(samples), max(samples), unit),
        f"{len(samples):,}",
        promise,
        "" if target is None else "met" if target.met(samples) else "missed",
    )


def _from_to(low: float, high: float, unit: str) -> str:
    return f"{_number(low, unit)} to {_number(high, unit)}"


def _with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number


def _number(value: float, unit: str) -> str:
    """Four significant digits; of a ratio near 1 (which has no unit) the digits that matter."""
    if not unit and 0 < abs(value) < 10:
        return f"{value:.4f}"
    before = math.floor(math.log10(abs(value))) + 1 if value else 4
    return f"{value:,.{min(4, max(0, 4 - before))}f}"

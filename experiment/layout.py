"""A page of results: a table, its legend, sentences and notes; for a terminal, or as Markdown."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from rich.cells import cell_len, set_cell_size

WIDTH = 140

MIN_NAME = 8
"""Characters that the first column keeps however wide the figures are."""

MAX_ROWS = 200
"""Longer tables show only their first and last rows, half of this each."""

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Page:
    """What is printed. A column's head may have lines; ``texts`` are columns of words, not figures.

    A cell "263 ±2" is a figure and what belongs to it: each is aligned for itself.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None
    legend: str
    sentences: Sequence[str]
    notes: Sequence[str]
    folder: str
    texts: Sequence[int] = (0,)
    number: int | None = None
    """How many rows there are, where ``rows`` are those alone that `shortened` has left."""


Row = TypeVar("Row")


def shortened(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """The rows that a long table shows, the first and the last, and how many there are."""
    left = iter(rows)
    head = list(islice(left, MAX_ROWS))
    tail = deque(head[MAX_ROWS // 2 :], maxlen=MAX_ROWS // 2)
    number = len(head)
    for row in left:
        tail.append(row)
        number += 1
    return [*head[: MAX_ROWS // 2], *tail], number


def terminal(page: Page) -> str:
    """Write ``page`` as plain text, ``WIDTH`` columns wide unless the figures need more."""
    lines = [page.title, *_table(page), "", *_wrapped(page.legend), ""]
    for sentence in page.sentences:
        lines += _wrapped(sentence)
    if page.notes:
        lines += ["", "Notes:"]
        for note in page.notes:
            lines += _wrapped(f"- {note}")
    # Not wrapped: a path that is broken over two lines cannot be copied.
    lines += ["", f"Results: {page.folder}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def markdown(page: Page) -> str:
    """Write ``page`` as Markdown."""

    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    first, gap, last = _shortened(page)
    lines = [
        f"### {page.title}",
        "",
        row(head.replace("\n", " ") for head in page.heads),
        row("---" if i in page.texts else "---:" for i in range(len(page.heads))),
        *map(row, first),
        *([row([gap, *[""] * (len(page.heads) - 1)])] if gap else []),
        *map(row, last),
        *([row(page.total)] if page.total else []),
        "",
        page.legend,
        "",
        *(f"- {sentence}" for sentence in page.sentences),
    ]
    if page.notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in page.notes)]
    lines += ["", f"Results: `{page.folder}`"]
    return "\n".join(lines) + "\n"


def _shortened(
    page: Page,
) -> tuple[Sequence[Sequence[str]], str, Sequence[Sequence[str]]]:
    """The rows before a gap, what is said in it ("" if there is none), the rows behind it."""
    number = len(page.rows) if page.number is None else page.number
    left_out = number - MAX_ROWS
    if left_out <= 0:
        return page.rows, "", ()
    gap = f"… {left_out:,} of {number:,} steps are left out here: --format=csv has all"
    return page.rows[: MAX_ROWS // 2], gap, page.rows[-(MAX_ROWS // 2) :]


def _table(page: Page) -> list[str]:
    first, gap, last = _shortened(page)
    heads = [head.split("\n") for head in page.heads]
    depth = max(map(len, heads))
    top = [[""] * (depth - len(head)) + head for head in heads]
    body = [*first, *last, *([page.total] if page.total else [])]
    columns = [
        _column(list(lines), [row[i] for row in body], words=i in page.texts)
        for i, lines in enumerate(top)
    ]
    widths = [cell_len(column[0]) for column in columns]
    # Only names may be cut: a figure without its last digits is a wrong figure.
    name = min(widths[0], max(WIDTH - sum(widths[1:]) - len(widths) + 1, MIN_NAME))
    columns[0] = [_cut(text, name) for text in columns[0]]
    lines = [" ".join(cells) for cells in zip(*columns, strict=True)]
    rule = "─" * cell_len(lines[0])
    shown = lines[depth : depth + len(first)]
    if gap:
        shown += [gap, *lines[depth + len(first) : depth + len(first) + len(last)]]
    total = ["", lines[-1]] if page.total else []
    return [*lines[:depth], rule, *shown, *total]


def _column(head: list[str], cells: list[str], *, words: bool) -> list[str]:
    """The lines of a column, all of one width."""
    if words:
        width = max(map(cell_len, (*head, *cells)))
        return [set_cell_size(text, width) for text in (*head, *cells)]
    parts = [cell.partition(" ") for cell in cells]
    tail = max((len(behind) for _, _, behind in parts), default=0)
    figures = [
        figure + (f" {behind}".ljust(tail + 1) if tail else "") for figure, _, behind in parts
    ]
    width = max(map(len, (*head, *figures)))
    return [text.rjust(width) for text in (*head, *figures)]


def _cut(text: str, width: int) -> str:
    text = text.rstrip()
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)

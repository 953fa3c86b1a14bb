"""How a comparison is written: a table and sentences for a terminal, Markdown, JSON, or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, islice
from typing import Any, Literal, assert_never

from experiment.layout import Page, markdown, shortened, terminal
from experiment.reader import ROWS_AT_ONCE
from experiment.rows import Comparison, OverallRow, StepRow
from experiment.sentences import answer, count, ms, percent, times, with_margin
from experiment.spooled import Spooled

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head (two lines), what a step shows, and what the line over all steps shows."""

    head: str
    step: Callable[[StepRow], str]
    overall: Callable[[OverallRow], str]


def _figure(head: str, name: str, write: Callable[..., str] = ms) -> Column:
    """A column of the figure ``name``, which a step and the whole run have by the same name."""

    def cell(row: StepRow | OverallRow) -> str:
        ends = (getattr(row, f"{name}_{end}", None) for end in ("low", "high"))
        return write(getattr(row, name), *ends)

    return Column(head, cell, cell)


def _ratio(row: StepRow | OverallRow) -> str:
    return with_margin(row.ratio_median, row.ratio_low, row.ratio_high, 4)


def _speedup(row: StepRow) -> str:
    text = times(row.speedup, row.speedup_low, row.speedup_high)
    return f"{text} n=1" if row.speedup is not None and row.full_n == 1 else text


COLUMNS = (
    Column("task", lambda s: s.task_id, lambda _: "all"),
    Column("step", lambda s: str(s.step), lambda o: count(o.steps)),
    Column("L", lambda s: count(s.depth), lambda _: ""),
    Column("new", lambda s: count(s.new_tokens), lambda o: count(o.fake_new_tokens)),
    Column("n", lambda s: count(s.pair_n or None), lambda o: count(o.pair_n or None)),
    _figure("fake\nms", "fake_prefill_ms"),
    _figure("restored\nms", "restored_prefill_ms"),
    Column("fake/restored", _ratio, _ratio),
    _figure("full\nms", "full_prefill_ms"),
    Column("full/fake", _speedup, lambda o: times(o.speedup, o.speedup_low, o.speedup_high)),
    _figure("arith.\nms", "arithmetic_prefill_ms"),
    Column(
        "error\n%",
        lambda s: percent(
            s.arithmetic_error_pct, s.arithmetic_error_pct_low, s.arithmetic_error_pct_high
        ),
        lambda o: percent(
            o.arithmetic_error_pct_sum,
            o.arithmetic_error_pct_sum_low,
            o.arithmetic_error_pct_sum_high,
        ),
    ),
    _figure("encode\nms", "fake_encode_ms"),
    _figure("install\nfake ms", "fake_install_ms"),
    _figure("install\nrest. ms", "restored_install_ms"),
)

LEGEND = (
    "Times are medians over rounds, without the install (last two columns), with the image "
    "encoding; L and new are tokens, n is pairs of fake and restored. ±: the longer side of the "
    "95 % bootstrap interval of a median (of fewer than six values their whole range, which covers "
    "less); without it there is one value. fake/restored: median of "
    "the ratios paired within rounds. full/fake: ratio of medians, its interval from both; none if "
    "full is measured once (n=1). error: arithmetic against fake, image encoding left out; its "
    "interval is that of fake alone. The line 'all': sums over steps (±: sum of the steps' sides, "
    "which is more than that of the sum), fake/restored of all pairs as one sample, ratios of sums."
)


def render(comparison: Comparison, form: Format) -> str:
    """Write ``comparison``: ``csv`` holds the steps only, ``json`` everything."""
    return "".join(pieces(comparison, form))


def pieces(comparison: Comparison, form: Format) -> Iterator[str]:
    """The same in pieces, which of CSV are a few steps each: all of it may be large."""
    match form:
        case "table":
            yield terminal(_page(comparison))
        case "md":
            yield markdown(_page(comparison))
        case "json":
            yield as_json(comparison)
        case "csv":
            yield from csv_pieces(StepRow, comparison.steps)
        case _:
            assert_never(form)


def as_json(value: Any) -> str:
    """Write a frozen result that names its ``folder``, with everything it holds."""
    many = {
        field.name: tuple(rows)
        for field in fields(value)
        if isinstance(rows := getattr(value, field.name), Spooled)
    }
    told = asdict(replace(value, **many)) | {"folder": str(value.folder)}
    return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(kind: Any, rows: Iterable[Any]) -> str:
    """Write rows of the dataclass ``kind``, a column a field, with full precision."""
    return "".join(csv_pieces(kind, rows))


def csv_pieces(kind: Any, rows: Iterable[Any]) -> Iterator[str]:
    """The same in pieces of a thousand rows."""
    names = [field.name for field in fields(kind)]
    cells = chain([names], ([getattr(row, name) for name in names] for row in rows))
    while some := list(islice(cells, ROWS_AT_ONCE)):
        sink = io.StringIO()
        csv.writer(sink, lineterminator="\n").writerows(some)
        yield sink.getvalue()


def title(comparison: Comparison) -> str:
    """The run in a line."""
    run = comparison.run
    return f"{run.id}: {run.model}, pin {run.pin}, engine {run.engine}"


def _page(comparison: Comparison) -> Page:
    # What is left out has no figures here; JSON and CSV list it with the reason.
    replayed, number = shortened(step for step in comparison.steps if step.left_out is None)
    return Page(
        title=title(comparison),
        heads=[column.head for column in COLUMNS],
        rows=[[column.step(step) for column in COLUMNS] for step in replayed],
        number=number,
        total=[column.overall(comparison.overall) for column in COLUMNS],
        legend=LEGEND,
        sentences=answer(comparison),
        notes=comparison.notes,
        folder=str(comparison.folder),
    )

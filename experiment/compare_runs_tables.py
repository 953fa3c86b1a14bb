"""How a comparison of runs is written: tables and sentences, Markdown, JSON, CSV of the steps."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import assert_never

from experiment.compare_runs_figures import FIGURES
from experiment.compare_runs_rows import Row, RunsComparison, Value, Verdict
from experiment.layout import NOTHING, WIDTH
from experiment.notes import some
from experiment.sentences import ms, of, percent, steps, times, with_margin
from experiment.tables import Format

MIN_CELL = 12
"""Characters that a text keeps in a table however many runs there are; the JSON has all of it."""

LEGEND = (
    "Each figure over the steps that have it in all runs. ±: the longer side of the 95 % bootstrap "
    "interval; of a sum, the sum of the steps' sides. Against A: each step paired with itself, the "
    "median over n steps of the ratio to A (arithmetic error: of the difference in percentage "
    "points). Times are shown, not judged: they belong to a machine."
)

CLAIMS_LEGEND = (
    "A's claims that are to hold on another machine, with A's values over the steps in common "
    "(counts of steps: over the steps that all traces hold). --format=json says each in a sentence "
    "and why its tolerance is what it is."
)


@dataclass(frozen=True, slots=True)
class Block:
    """A table. ``texts`` are the columns that hold words."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[int, ...]
    legend: str = ""


def render(result: RunsComparison, form: Format) -> str:
    """Write ``result``: ``csv`` holds the steps only, ``json`` everything."""
    match form:
        case "table":
            return _terminal(result)
        case "md":
            return _markdown(result)
        case "json":
            told = asdict(result)
            return (
                json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"
            )
        case "csv":
            return _csv(result)
        case _:
            assert_never(form)


def _json(result: RunsComparison) -> str:
    told = asdict(result)
    return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _blocks(result: RunsComparison) -> tuple[Block, ...]:
    return (_what_differs(result), _figures(result), _claims(result))


def _labels(result: RunsComparison) -> tuple[str, ...]:
    return tuple(run.label for run in result.runs)


def _what_differs(result: RunsComparison) -> Block:
    names = ("run", *result.differences)
    room = (WIDTH - max(map(len, names))) // len(result.runs) - 2
    rows = (tuple(run.run.id for run in result.runs), *result.differences.values())
    return Block(
        "what differs",
        ("", *_labels(result)),
        tuple(
            (name, *(_shown(name, text, max(room, MIN_CELL)) for text in row))
            for name, row in zip(names, rows, strict=True)
        ),
        tuple(range(len(result.runs) + 1)),
    )


def _shown(name: str, text: str, room: int) -> str:
    if name.endswith("_digest"):
        return text[:MIN_CELL] or NOTHING
    return (text if len(text) <= room else f"{text[: room - 1]}…") or NOTHING


def _figures(result: RunsComparison) -> Block:
    base, *others = _labels(result)
    return Block(
        "over the steps in common",
        ("", "steps", base, *others, *(f"{label} against {base}" for label in others)),
        tuple(
            (
                row.name,
                f"{row.steps:,}",
                *(_figure(row, value) for value in row.runs),
                *(_against(row, value) for value in row.against_base[1:]),
            )
            for row in result.figures
        ),
        (0,),
        LEGEND,
    )


def _figure(row: Row, value: Value | None) -> str:
    if value is None:
        return NOTHING
    ends = (value.value, value.low, value.high)
    if row.key == "fidelity":
        return with_margin(*ends, 4)
    return percent(*ends) if row.in_points else times(*ends) if row.key == "speedup" else ms(*ends)


def _against(row: Row, value: Value | None) -> str:
    if value is None:
        return NOTHING
    ends = (value.value, value.low, value.high)
    text = percent(*ends) if row.in_points else with_margin(*ends, 4)
    return f"{text} (n = {value.n:,})"


def _claims(result: RunsComparison) -> Block:
    base, *others = _labels(result)
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in result.verdicts:
        by_claim.setdefault(verdict.claim.key, []).append(verdict)
    heads = (cell for label in others for cell in (label, ""))
    return Block(
        f"claims of {base}",
        ("", base, "tolerance", *heads),
        tuple(
            (key, *_expected(found[0]), *(cell for verdict in found for cell in _verdict(verdict)))
            for key, found in by_claim.items()
        ),
        (0, *(4 + 2 * i for i in range(len(others)))),
        CLAIMS_LEGEND,
    )


def _expected(verdict: Verdict) -> tuple[str, str]:
    claim = verdict.claim
    if not claim.tolerance:
        return _number(claim.expected), "equal"
    share = f"±{100 * claim.tolerance:g} %" if claim.is_relative else f"±{claim.tolerance:.3g}"
    return _number(claim.expected), share


def _verdict(verdict: Verdict) -> tuple[str, str]:
    value = NOTHING if verdict.value is None else _number(verdict.value)
    if verdict.within is None:
        return value, f"not comparable: {verdict.reason}"
    if verdict.within:
        return value, "within"
    return value, f"OUTSIDE by {_number(verdict.outside_by or 0)}"


def _number(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def answer(result: RunsComparison) -> tuple[str, ...]:
    """What the tables say: how each run compares with the base, in time and in its claims."""
    base = result.runs[0].label
    prefill = next(row for row in result.figures if row.key == "fake_prefill_ms")
    told = []
    for run, against in zip(result.runs[1:], prefill.against_base[1:], strict=True):
        text = f"{run.label} against {base}: "
        if against is not None:
            ratio = with_margin(against.value, against.low, against.high, 3)
            text += f"fake prefill takes {ratio} times as long, median of {steps(against.n)}; "
        told.append(text + _judged([v for v in result.verdicts if v.label == run.label], base))
    return tuple(told)


def _judged(verdicts: Sequence[Verdict], base: str) -> str:
    comparable = [verdict for verdict in verdicts if verdict.within is not None]
    outside = [verdict.claim.key for verdict in comparable if not verdict.within]
    apart = [verdict.claim.key for verdict in verdicts if verdict.within is None]
    within = len(comparable) - len(outside)
    text = f"{within:,} of {of(len(comparable), 'claim')} of {base} within tolerance"
    text += f", outside: {', '.join(outside)}" if outside else ""
    return text + (f"; not comparable: {', '.join(apart)}" if apart else "") + "."


def _notes(result: RunsComparison) -> Iterator[str]:
    if not result.differences:
        yield "Nothing that is recorded of model, pin, patches, machine, graph or settings differs."
    reasons: dict[str, list[str]] = {}
    for out in result.left_out:
        reasons.setdefault(out.reason, []).append(f"{out.task_id} step {out.step}")
    for reason, names in reasons.items():
        yield f"{steps(len(names))} left out, {reason}: {some(names)}."
    yield from result.notes


def _title(result: RunsComparison) -> str:
    number = len({(step.task_id, step.step) for step in result.steps})
    base, *others = _labels(result)
    return f"{', '.join(others)} against {base}, over {steps(number)} in common"


def _terminal(result: RunsComparison) -> str:
    lines = [_title(result)]
    for block in _blocks(result):
        lines += ["", block.title, *_lines(block)]
        lines += ["", *_wrapped(block.legend)] if block.legend else []
    lines += ["", *(part for sentence in answer(result) for part in _wrapped(sentence))]
    notes = [part for note in _notes(result) for part in _wrapped(f"- {note}")]
    lines += ["", "Notes:", *notes] if notes else []
    # Not wrapped: a path that is broken over two lines cannot be copied.
    lines += ["", *(f"Results of {run.label}: {run.folder}" for run in result.runs)]
    return "\n".join(lines) + "\n"


def _lines(block: Block) -> Iterator[str]:
    rows = [block.heads, *block.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if place in block.texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _markdown(result: RunsComparison) -> str:
    lines = [f"### {_title(result)}"]
    for block in _blocks(result):
        rule = ("---" if i in block.texts else "---:" for i in range(len(block.heads)))
        table = [_row(row) for row in (block.heads, tuple(rule), *block.rows)]
        lines += ["", f"**{block.title}**", "", *table]
        lines += ["", block.legend] if block.legend else []
    lines += ["", *(f"- {sentence}" for sentence in answer(result))]
    notes = [f"- {note}" for note in _notes(result)]
    lines += ["", "Notes:", "", *notes] if notes else []
    lines += ["", *(f"Results of {run.label}: `{run.folder}`  " for run in result.runs)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _csv(result: RunsComparison) -> str:
    keys = [figure.key for figure in FIGURES]
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    heads = ["task_id", "step", "depth", "run", "run_id"]
    writer.writerow([*heads, *keys, *(f"{key}_against_base" for key in keys)])
    ids = {run.label: run.run.id for run in result.runs}
    for step in result.steps:
        writer.writerow(
            [
                *(step.task_id, step.step, step.depth, step.label, ids[step.label]),
                *(step.figures[key] for key in keys),
                *(step.against_base[key] for key in keys),
            ]
        )
    return sink.getvalue()

"""The header row of a trace: where its rows come from, and what was assumed to derive them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from jsonschema import Draft202012Validator

from experiment.paths import ROOT
from experiment.records import ASSUMED, IMPORTED, TRACE_DROPPED, TRACE_WARNING
from experiment.schema_check import schema_problems

SCHEMA_FILE = ROOT / "schemas" / "trace-header.schema.json"

FORMAT = 1
MAX_SENTENCES = 100
MAX_CHARACTERS = 1000
"""Limits of the schema, to which `header_row` cuts what it writes."""

LISTS = ("assumptions", "warnings")
REASONS = {
    ("trace.format", "const"): f"is not {FORMAT}, the only one there is",
    **{(f"trace.{name}", "type"): "is not an array" for name in LISTS},
    **{(f"trace.{name}", "maxItems"): f"has more than {MAX_SENTENCES} sentences" for name in LISTS},
    ("trace.dropped", "maxProperties"): f"has more than {MAX_SENTENCES} reasons",
}


@dataclass(frozen=True)
class TraceHeader:
    """What an importer wrote about a trace.

    Attributes:
        source_format: the log's format, by its importer's name.
        tokenizer: whose tokenizer the counts come from; None where the log does not say so.
        assumptions: what had to be assumed to derive the rows, each a sentence.
        warnings: what else a reader of the rows should know.
        dropped: reasons why records of the log were left out, with how many they were.
    """

    source_format: str
    tokenizer: str | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()


def told(header: TraceHeader) -> list[tuple[str, str]]:
    """What whoever reads a figure of this trace must know: kinds of events, and sentences."""
    counted = f", tokens counted by {header.tokenizer}" if header.tokenizer else ""
    return [
        (IMPORTED, f"The trace was imported from {header.source_format}{counted}."),
        *((ASSUMED, f"Assumed by the import: {_bare(text)}.") for text in header.assumptions),
        *((TRACE_WARNING, f"Warning of the import: {_bare(text)}.") for text in header.warnings),
        *(
            (TRACE_DROPPED, f"Left out by the import: {count:,} ({_bare(reason)}).")
            for reason, count in header.dropped
        ),
    ]


def _bare(text: str) -> str:
    return text.rstrip(".")


def is_header(row: object) -> bool:
    """Whether a row means to be a header: no step has a field of that name."""
    return isinstance(row, dict) and "trace" in row


def header_problems(row: object) -> list[str]:
    """Each problem of a header row as ``FIELD: REASON``; none if it fits the schema."""
    problems = schema_problems(_validator(), row, REASONS)
    if not problems and not _encodable(json.dumps(row, ensure_ascii=False)):
        problems = ["trace: holds a lone surrogate (half of a UTF-16 pair)"]
    return problems


def parse_header(row: Mapping[str, Any]) -> TraceHeader:
    """The header that a row without problems holds."""
    told = row["trace"]
    return TraceHeader(
        source_format=told["from"],
        tokenizer=told.get("tokenizer"),
        assumptions=tuple(told.get("assumptions", ())),
        warnings=tuple(told.get("warnings", ())),
        dropped=tuple((name, int(count)) for name, count in told.get("dropped", {}).items()),
    )


def header_row(header: TraceHeader) -> dict[str, object]:
    """The row to write. Texts come from logs: they are cut to the schema's limits, and escaped."""
    told: dict[str, object] = {"format": FORMAT, "from": header.source_format}
    if header.tokenizer is not None:
        told["tokenizer"] = _fit(header.tokenizer)
    for name, sentences in (("assumptions", header.assumptions), ("warnings", header.warnings)):
        told[name] = _first(list(dict.fromkeys(map(_fit, sentences))))
    dropped: dict[str, int] = {}
    for reason, count in header.dropped:
        # Past the limit, and where two reasons are cut to the same text, the counts are added.
        key = _fit(reason) if len(dropped) < MAX_SENTENCES - 1 else "other reasons"
        dropped[key] = dropped.get(key, 0) + count
    told["dropped"] = dropped
    return {"trace": told}


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first(sentences: list[str]) -> list[str]:
    if len(sentences) <= MAX_SENTENCES:
        return sentences
    kept = sentences[: MAX_SENTENCES - 1]
    return [*kept, f"and {len(sentences) - len(kept)} more"]


def _fit(text: str) -> str:
    """One line of characters that can be written and shown, of a length that the schema allows."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    shown = shown or "-"
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - 1] + "…"


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return Draft202012Validator(cast("dict[str, Any]", schema))

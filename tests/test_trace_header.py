"""The header row of a trace: read, written, and cut to what its schema allows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from experiment.paths import ROOT
from experiment.trace import (
    MAX_INTEGER,
    MAX_NEW_TOKENS,
    MAX_SECONDS,
    MAX_TASK_ID,
    load_trace,
)
from experiment.trace_header import TraceHeader, header_problems, header_row, parse_header, told

ROW = {"task_id": "t", "step": 0, "depth": 3, "new": {"tokens": 2}}
HEADER = TraceHeader(
    "mooncake", "model-x", ("it never rains", "nor snows"), ("take care",), (("failed", 3),)
)


def write(folder: Path, *rows: object) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_header_is_read_and_is_no_step(tmp_path: Path) -> None:
    path = write(tmp_path, header_row(HEADER), ROW)
    trace = load_trace(path)
    assert trace.header == HEADER
    assert [step.line for step in trace.steps] == [2]
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_trace_without_a_header(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, ROW))
    assert trace.header is None
    assert [step.line for step in trace.steps] == [1]


def test_the_least_that_a_header_says(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, {"trace": {"format": 1, "from": "x"}}, ROW))
    assert trace.header == TraceHeader("x")


def test_a_header_alone_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no steps"):
        load_trace(write(tmp_path, header_row(HEADER)))


@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        TraceHeader("x", "y" * 5000, ("", "a\nb\0\ud800", "c" * 1001)),
        TraceHeader("x", None, tuple(map(str, range(500))), tuple(map(str, range(101)))),
        TraceHeader("x", dropped=tuple((f"{n} " + "r" * 2000, 2) for n in range(500))),
    ],
)
def test_what_is_written_fits_the_schema(header: TraceHeader) -> None:
    row = header_row(header)
    assert header_problems(row) == []
    json.dumps(row, ensure_ascii=False).encode()
    told = parse_header(row)
    assert sum(count for _, count in told.dropped) == sum(count for _, count in header.dropped)
    assert len(told.assumptions) <= 100
    if len(header.assumptions) > 100:
        assert told.assumptions[-1] == "and 401 more"


def test_texts_of_a_log_cannot_play_with_a_terminal() -> None:
    row = header_row(TraceHeader("x", "a\x1b[31mb", ("new\nline",)))
    assert parse_header(row).tokenizer == "a\N{REPLACEMENT CHARACTER}[31mb"
    assert parse_header(row).assumptions == ("new\N{REPLACEMENT CHARACTER}line",)


def test_the_schema_is_a_valid_one_and_describes_every_field() -> None:
    schema = json.loads((ROOT / "schemas" / "trace-header.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    told = schema["properties"]["trace"]
    assert all(field["description"] for field in (told, *told["properties"].values()))


def test_the_limits_in_the_code_are_those_of_the_schema() -> None:
    fields = json.loads((ROOT / "schemas" / "trace.schema.json").read_text("utf-8"))["properties"]
    assert fields["task_id"]["maxLength"] == MAX_TASK_ID
    assert fields["step"]["maximum"] == fields["depth"]["maximum"] == MAX_INTEGER
    assert fields["new"]["properties"]["tokens"]["maximum"] == MAX_NEW_TOKENS
    seconds = fields["baseline"]["properties"].values()
    assert {field["maximum"] for field in seconds} == {MAX_SECONDS}


def test_what_a_reader_of_figures_is_told() -> None:
    header = TraceHeader(
        "codex", "gpt-5", ("one.", "two"), ("odd",), (("failed calls", 1200), ("no usage.", 1))
    )
    assert told(header) == [
        ("imported", "The trace was imported from codex, tokens counted by gpt-5."),
        ("assumed", "Assumed by the import: one."),
        ("assumed", "Assumed by the import: two."),
        ("trace_warning", "Warning of the import: odd."),
        ("trace_dropped", "Left out by the import: 1,200 (failed calls)."),
        ("trace_dropped", "Left out by the import: 1 (no usage)."),
    ]
    assert told(TraceHeader("vllm")) == [("imported", "The trace was imported from vllm.")]

"""Where records of a document begin, and the shape of a file's beginning."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers.documents import read_records, shape
from experiment.progress import SilentProgress


def test_records_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        '{"before": [{"steps": []}], "big": 1e400, "st\\u0065ps": [\n'
        '  {"text": "a\\n] , {",\n'
        '   "n": 1},\n'
        "\n"
        '  {"n": 2}, {"n": 3}\n'
        '], "after": {"steps": 5}}',
        encoding="utf-8",
    )
    whole, records = read_records(path, "steps", SilentProgress())
    assert [(record.where, record.path) for record in records] == [
        (f"{path}:2", "steps.0."),
        (f"{path}:5", "steps.1."),
        (f"{path}:5", "steps.2."),
    ]
    assert [record.count("n") for record in records] == [1, 2, 3]
    assert whole.where == f"{path}:1"


@pytest.mark.parametrize("text", ['{"steps": [ ]}', '{"a": 1,\n "steps":[]}'])
def test_no_records(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert read_records(path, "steps", SilentProgress())[1] == []


def test_an_integer_of_many_digits_is_told_where_its_field_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"steps": [\n{"n": ' + "9" * 5000 + "}]}")
    _, (record,) = read_records(path, "steps", SilentProgress())
    with pytest.raises(TraceImportError, match=r"steps\.0\.n: 9{40} is not between"):
        record.count("n")


def test_the_shape_is_of_the_first_value_only() -> None:
    seen = shape(b'{"a": {"b": [{"c": "d\\"e", "f": null}, {"g": 1}]}, "h": []}\n{"z": 1}')
    assert seen == {
        "": "",
        "a": "",
        "a.b": "",
        "a.b[]": "",
        "a.b[].c": 'd\\"e',
        "a.b[].f": "null",
        "a.b[].g": "1",
        "h": "",
    }


def test_the_shape_of_a_cut_beginning_is_what_stands_before_the_cut() -> None:
    head = b'{"history": [{"state": {"screenshot": "' + b"A" * 100_000
    assert list(shape(head)) == [
        "",
        "history",
        "history[]",
        "history[].state",
        "history[].state.screenshot",
    ]


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n\0\0", b"a,b,c\n1,2,3", b"]}", b'"'])
def test_what_is_no_json_object_has_no_fields(data: bytes) -> None:
    assert not [name for name in shape(data) if name]


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "' + b'\\" {' * 300_000,
        b'{"a": "' + b"\\" * 1_000_001,
        b"[" * 1_000_000,
        b'{"a": [' + b"1," * 500_000,
        b'{"a":' * 200_000,
    ],
    ids=["quotes", "backslashes", "arrays", "numbers", "objects"],
)
def test_no_beginning_takes_long(data: bytes) -> None:
    started = time.process_time()
    shape(data)
    assert time.process_time() - started < 5

"""Reading a log line by line: numbers of lines, packed files, limits, and the progress told."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers import lines as module
from experiment.importers.lines import csv_rows, json_rows, lines
from experiment.progress import SilentProgress


class Told(SilentProgress):
    def __init__(self) -> None:
        self.total: float | None = None
        self.done: list[float] = []

    def start(self, what: str, total: float | None) -> None:
        self.total = total

    def advance(self, done: float, note: str = "") -> None:
        self.done.append(done)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "log"
    path.write_bytes(content)
    return path


def refusal(rows: Iterable[object]) -> str:
    with pytest.raises(TraceImportError) as caught:
        list(rows)
    return str(caught.value)


def test_lines_as_an_editor_numbers_them(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfa\r\n\nb")
    assert list(lines(path, SilentProgress())) == [(1, b"a\r\n"), (2, b"\n"), (3, b"b")]
    path = write(tmp_path, gzip.compress(path.read_bytes()) + gzip.compress(b"\nc"))
    assert [number for number, _ in lines(path, SilentProgress())] == [1, 2, 3, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_progress_is_in_bytes_of_the_file(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADVANCE_EVERY_BYTES", 1000)
    content = b"".join(os.urandom(50).hex().encode() + b"\n" for _ in range(5000))
    path = write(tmp_path, gzip.compress(content) if packed else content)
    told = Told()
    assert len(list(lines(path, told))) == 5000
    assert told.total == path.stat().st_size
    assert told.done == sorted(told.done)
    assert len(told.done) > 2
    assert told.done[-1] == told.total


def test_a_line_of_the_largest_size_is_read_and_one_more_byte_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1 << 20)
    path = write(tmp_path, b"a\n" + b"x" * ((1 << 20) - 1) + b"\n")
    assert len(list(lines(path, SilentProgress()))) == 2
    path = write(tmp_path, b"a\n" + b"x" * (1 << 20) + b"\n")
    what = f"{path}:2: the line is longer than 1 MiB"
    assert refusal(lines(path, SilentProgress())) == what
    # A small file that unpacks to a large line is not unpacked whole.
    path = write(tmp_path, gzip.compress(b"a\n" + bytes(50 << 20)))
    assert refusal(lines(path, SilentProgress())) == what


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert refusal(lines(missing, SilentProgress())) == (
        f"{missing}: cannot be read: No such file or directory"
    )
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(lines(pipe, SilentProgress())) == f"{pipe}: is not a file"
    whole = gzip.compress(b"a\n" * 1000)
    for damaged in (whole[:-9], whole[:-8] + struct.pack("<II", 1, 2), b"\x1f\x8bnot gzip"):
        path = write(tmp_path, damaged)
        assert refusal(lines(path, SilentProgress())).startswith(
            f"{path}: is a damaged gzip file: "
        )


def test_objects_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, b'\n{"a": 1}\n \t\n{"a": null}\r\n')
    first, second = json_rows(path, SilentProgress())
    assert (first.count("a"), first.where) == (1, f"{path}:2")
    assert (second.count("a"), second.where) == (None, f"{path}:4")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"3", "the line is 3, not a JSON object"),
        (b'{"a": 1', "the line is not JSON: Expecting ',' delimiter (column 8)"),
        (b'{"a": 1} {"a": 2}', "the line is not JSON: Extra data (column 10)"),
        (b'{"a": "\xff"}', "the line is not UTF-8 (byte 8 of the line)"),
        (b'{"a": "\0"}', "the line holds a NUL byte"),
        (b'{"a": 1, "a": 1}', "the line names 'a' twice in one object"),
        (b'{"a": ' * 100_000, "the line is nested too deeply"),
    ],
)
def test_lines_that_are_no_object(line: bytes, what: str, tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a": 1}\n' + line + b"\n")
    assert refusal(json_rows(path, SilentProgress())) == f"{path}:2: {what}"


def test_cells_by_their_columns(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf a , b\r\n\r\n1, "x\r\n'.replace(b' "x', b"x") + b'"2\n\n2",""\n3,y\n'
    path = write(tmp_path, content)
    rows = list(csv_rows(path, SilentProgress()))
    assert [(row.text("a"), row.text("b")) for row in rows] == [
        ("1", "x"),
        ("2\n\n2", None),
        ("3", "y"),
    ]
    assert [row.where.rpartition(":")[2] for row in rows] == ["3", "4", "7"]


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"a,b\n1\n", 2, "the row has 1 cells, the header 2"),
        (b"a,b\n\n1,2,3\n", 3, "the row has 3 cells, the header 2"),
        (b"a,b,a\n", 1, "the column 'a' occurs twice"),
        (b'a,b\n1,"2\n', 2, "the line is no CSV: unexpected end of data"),
        (b'a,b\n1,"2"3\n', 2, "the line is no CSV: ',' expected after '\"'"),
        (b"a,b\n1,\xff\n", 2, "the line is not UTF-8 (byte 3 of the line)"),
        (b"a,b\n1,2\n1,\0\n", 3, "the line holds a NUL byte"),
        (
            b'a,b\n1,"' + b"x" * 200_000 + b'"\n',
            2,
            "the line is no CSV: field larger than field limit (131072)",
        ),
    ],
)
def test_lines_that_are_no_csv(content: bytes, line: int, what: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    assert refusal(csv_rows(path, SilentProgress())) == f"{path}:{line}: {what}"

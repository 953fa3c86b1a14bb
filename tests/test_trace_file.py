"""Rows that are made of a file's lines when they are asked for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from experiment.errors import TraceError
from experiment.trace_file import FileRows, LineFile

MANY = 20_000


def rows_of(path: Path, *, every: int = 1) -> FileRows[tuple[int, str]]:
    """Number and text of each ``every``-th line."""
    file = LineFile(path)
    rows = FileRows(file, lambda number, data: (number, data.decode().strip()))
    for line in file.lines(1 << 30):
        if line.number % every == 0:
            rows.add(line)
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "lines"
    made.write_text("a\nbb\n\nccc\nd", encoding="utf-8")
    return made


def test_rows_are_those_that_were_added(path: Path) -> None:
    rows = rows_of(path, every=2)
    assert list(rows) == [(2, "bb"), (4, "ccc")]
    assert (len(rows), rows[0], rows[-1]) == (2, (2, "bb"), (4, "ccc"))
    assert rows[0] is not rows[0]
    with pytest.raises(IndexError):
        rows[2]


def test_a_part_of_the_rows_is_made_of_lines_too(path: Path) -> None:
    rows = rows_of(path)
    assert list(rows[1:3]) == [(2, "bb"), (3, "")]
    assert list(rows[::-2]) == [(5, "d"), (3, ""), (1, "a")]
    assert list(rows.where(lambda row: len(row[1]) == 1)) == [(1, "a"), (5, "d")]
    assert len(rows.where(lambda _: False)) == 0


def test_two_may_be_read_by_turns(path: Path) -> None:
    rows = rows_of(path)
    assert [(one, other, rows[0]) for one, other in zip(rows, rows, strict=True)] == [
        (row, row, (1, "a")) for row in rows
    ]


def test_rows_are_equal_by_what_they_hold(path: Path) -> None:
    assert rows_of(path) == rows_of(path) == tuple(rows_of(path))
    assert rows_of(path) != rows_of(path, every=2)
    assert rows_of(path)[:2] != ((1, "a"), (2, "b"))
    assert rows_of(path) != 5


@pytest.mark.parametrize("how", ["longer", "another", "gone"])
def test_a_file_that_changes_is_told(path: Path, how: str) -> None:
    rows = rows_of(path)
    text = path.read_bytes()
    if how == "longer":
        path.write_bytes(text + b"x")
    path.unlink() if how != "longer" else None
    if how == "another":
        (path.parent / "other").write_bytes(text)
        (path.parent / "third").write_bytes(text)
        (path.parent / "third").rename(path)
    with pytest.raises(TraceError) as caught:
        list(rows)
    assert caught.value.where == str(path)
    assert caught.value.what == {
        "gone": "the trace cannot be read again: No such file or directory",
    }.get(how, "the trace was changed while it was worked with")
    with pytest.raises(TraceError):
        rows[0]


def test_another_current_folder_does_not_matter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    rows = rows_of(Path(path.name))
    monkeypatch.chdir("/")
    assert rows[1] == (2, "bb")


def test_a_row_takes_a_few_bytes_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{number:0>1000}\n" for number in range(MANY))
    tracemalloc.start()
    rows = rows_of(path)
    before = tracemalloc.get_traced_memory()[0]
    assert sum(number for number, _ in rows) == MANY * (MANY + 1) // 2
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now - before < 100_000
    assert peak < MANY * 20 + 200_000  # 12 bytes a row, and some more while an array grows

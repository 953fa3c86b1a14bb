"""Rows in a file without a name."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiment.spooled import Spooled

MANY = 20_000


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


ROWS = [("a", 1.5), ("ü" * 400_000, None), ("", float("inf")), ("d", -0.0)]


def test_rows_come_back_as_they_were() -> None:
    rows = Spooled(Row, iter(ROWS))
    made = [Row(*values) for values in ROWS]
    assert list(rows) == list(rows) == made
    assert (len(rows), rows[1], rows[-1]) == (4, made[1], made[3])
    assert rows[1:3] == tuple(made[1:3])
    assert [(row, rows[0]) for row in rows] == [(row, made[0]) for row in made]
    with pytest.raises(IndexError):
        rows[4]
    assert list(Spooled(Row, [])) == []


def test_nothing_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(Path("/proc/self/fd").iterdir())
    rows = Spooled(Row, ROWS)
    assert list(tmp_path.iterdir()) == []
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 1
    del rows
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_a_row_takes_a_few_bytes_of_memory() -> None:
    tracemalloc.start()
    rows = Spooled(Row, ((f"{number:0>500}", number / 7) for number in range(MANY)))
    assert sum(int(row.name) for row in rows) == MANY * (MANY - 1) // 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MANY * 20 + 1_500_000  # and a piece of the file

"""Names, times and lists of records, and the cells of CSV; scratch databases, tokenizers' names."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers.base import Log
from experiment.importers.fields import Cells, Record
from experiment.importers.scratch import rows_of, scratch
from experiment.importers.tokenizers import MAX_NAMES, Tokenizers
from experiment.strict_json import NotJson


def record(value: object) -> Record:
    return Record({"a": value}, "log:1", "outer.")


def test_what_is_absent_or_null_is_none() -> None:
    for empty in (record(None), Record({}, "log:1"), Cells.of({"a": ""}, "log:1")):
        assert empty.number("a") is None
        assert empty.label("a") is None
        assert empty.time("a") is None
        assert empty.inner("a") is None
        assert empty.each("a") == []
        assert empty.count("a") is None
        assert empty.seconds("a") is None


def test_names_are_texts_or_integers() -> None:
    assert (record("x").label("a"), record(7).label("a")) == ("x", "7")
    for wrong in (True, 1.5, [1]):
        with pytest.raises(TraceImportError, match=r"log:1: outer\.a: .* is not a text"):
            record(wrong).label("a")
    with pytest.raises(TraceImportError, match=r"log:1: no field outer\.a"):
        record("").needed_label("a")


def test_numbers_are_finite() -> None:
    assert record(-1.5).number("a") == -1.5
    for wrong in (float("inf"), float("nan"), NotJson("NaN"), "1", False):
        with pytest.raises(TraceImportError, match=r"log:1: outer\.a: "):
            record(wrong).number("a")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-02T03:04:05.678Z", datetime(2030, 1, 2, 3, 4, 5, 678000, UTC)),
        ("2030-01-02T03:04:05", datetime(2030, 1, 2, 3, 4, 5, 0, UTC)),
        ("2030-01-02T03:04:05+02:00", datetime(2030, 1, 2, 1, 4, 5, 0, UTC)),
        ("2030-01-02 03:04:05.1234567", datetime(2030, 1, 2, 3, 4, 5, 123456, UTC)),
    ],
)
def test_times_are_in_utc(text: str, time: datetime) -> None:
    assert record(text).time("a") == time


@pytest.mark.parametrize("text", ["", "now", "2030-13-01T00:00:00Z", "0001-01-01T00:00:00+05:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(TraceImportError, match="is not a time in ISO 8601"):
        record(text).time("a")


def test_inner_records_know_their_path() -> None:
    (first, second) = record([{"b": 1}, {"b": "x"}]).each("a")
    assert first.count("b") == 1
    with pytest.raises(TraceImportError, match=r"log:1: outer\.a\.1\.b: 'x' is not a whole number"):
        second.count("b")
    inner = record({"b": None}).inner("a")
    assert inner is not None
    with pytest.raises(TraceImportError, match=r"log:1: no field outer\.a\.b"):
        inner.needed_count("b")
    with pytest.raises(TraceImportError, match="is not an object"):
        record([3]).each("a")


def test_cells_are_written_in_digits() -> None:
    cells = Cells.of({"n": "12", "f": "-1.5e2", "ms": "28", "bad": "1_2", "wide": "٣"}, "log:2")
    assert (cells.count("n"), cells.number("f"), cells.number("n")) == (12, -150.0, 12.0)
    assert cells.seconds("ms", per_second=1000) == 0.028
    for name in ("bad", "wide", "f"):
        with pytest.raises(TraceImportError, match="is not a whole number"):
            cells.count(name)
    for name in ("bad", "wide"):
        with pytest.raises(TraceImportError, match="is not a number"):
            cells.number(name)
    with pytest.raises(TraceImportError, match=r"log:2: f: -1\.5e2 is no duration"):
        cells.seconds("f")


def test_a_scratch_database_is_empty_and_its_failures_are_sentences(tmp_path: Path) -> None:
    with scratch(tmp_path) as database:
        assert list(rows_of(database, "SELECT * FROM range(25000)"))[-1] == (24999,)
    failed = "the temporary database failed: "
    with pytest.raises(TraceImportError, match=failed), scratch(tmp_path / "none"):
        pass
    with pytest.raises(TraceImportError, match=f"{failed}Catalog"), scratch(tmp_path) as database:
        database.execute("SELECT * FROM nothing")


def test_the_names_of_tokenizers() -> None:
    log = Log()
    names = Tokenizers(log)
    names.add(None)
    names.add("")
    assert log.tokenizer is None
    for name in ("b", "a", "b"):
        names.add(name)
    assert log.tokenizer == "a, b"
    for number in range(MAX_NAMES + 5):
        names.add(f"m{number}")
    assert log.tokenizer is not None
    assert log.tokenizer.endswith(" and others")
    assert len(log.tokenizer.split(", ")) == MAX_NAMES

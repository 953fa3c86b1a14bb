"""What DuckDB says becomes a sentence with what to do next."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from experiment.database import DatabaseInUse, connect, explain
from experiment.errors import StoreError


@pytest.mark.parametrize(
    "text",
    [
        'TransactionContext Error: Failed to commit: Could not write file "x.wal": '
        "No space left on device",
        'FATAL Error: Failed to create checkpoint because of error: Could not write file "x": '
        "No space left on device\nmore",
    ],
)
def test_a_full_disk(text: str) -> None:
    told = explain(duckdb.IOException(text), Path("r/results.duckdb"))
    assert told.what == "there is no space left to write the database"
    assert told.where == "r/results.duckdb"
    assert "--resume" in (told.hint or "")


def test_anything_else_is_its_first_line() -> None:
    told = explain(duckdb.IOException("IO Error: broken\nmore\n"), Path("x"))
    assert (told.what, told.hint) == ("IO Error: broken", None)


def test_one_that_is_open_already(tmp_path: Path) -> None:
    with (
        connect(tmp_path / "x", read_only=False),
        pytest.raises(DatabaseInUse, match="another connection of this process") as caught,
    ):
        connect(tmp_path / "x", read_only=True)
    assert caught.value.where == str(tmp_path / "x")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreError, match="valid DuckDB"):
        connect(tmp_path / "x", read_only=True)

"""TraceLab: rounds of sessions in JSONL, in the CSV of its replay, and in its DuckDB."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.importers.importing import (
    DATA,
    SHARED,
    bad_names,
    check_bad,
    needs_shared,
    refusal_of,
    rows_of,
    trace_of,
)

ROUNDS = DATA / "tracelab" / "rounds.jsonl"
REPLAY = DATA / "tracelab" / "replay.csv"

# Sessions as they first come; within one by round_index, and for the same one by line.
ROWS = [
    ("s-a", 0, 4000, 1000, {"exec_s": 2.5}),  # from 5.0 to 7.5; the other tool lies between
    ("s-a", 1, 5050, 950),  # its tool ends before it begins
    ("s-a", 2, 5051, 950),
    ("s-a", 3, 5199, 1),  # the whole prompt was cached; its tool has no end
    ("s-b", 0, 128, 172, {"exec_s": 0.001}),
    ("s-b", 1, 0, 900),
]


def make_database(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The tables that the project's own notes describe, with these rounds."""
    with duckdb.connect(str(path)) as database:
        database.execute(
            "CREATE TABLE rounds (round_pk BIGINT, ingest_seq BIGINT, session_id VARCHAR, "
            "round_index BIGINT, model VARCHAR, input_tokens_total BIGINT, prefix_tokens BIGINT, "
            "newly_append_tokens BIGINT, output_tokens BIGINT)"
        )
        database.execute(
            "CREATE TABLE tool_calls (round_pk BIGINT, tool_index BIGINT, emitted_at TIMESTAMP, "
            "result_at TIMESTAMP)"
        )
        for pk, row in enumerate(rows, start=1):
            names = ("session_id", "round_index", "model", "input_tokens_total", "prefix_tokens")
            values = [row.get(name) for name in (*names, "newly_append_tokens", "output_tokens")]
            database.execute("INSERT INTO rounds VALUES (?,?,?,?,?,?,?,?,?)", [pk, pk, *values])
            for tool in row.get("tools", []):
                times = [
                    None if tool[name] is None else tool[name].rstrip("Z")
                    for name in ("emitted_at", "result_at")
                ]
                database.execute(
                    "INSERT INTO tool_calls VALUES (?,?,?,?)", [pk, tool["tool_index"], *times]
                )
    return path


def rounds() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROUNDS.read_text(encoding="utf-8").splitlines()]


def test_rounds_by_hand(tmp_path: Path) -> None:
    header, _ = trace_of(ROUNDS, tmp_path)
    assert rows_of(ROUNDS, tmp_path) == ROWS
    assert header["tokenizer"] == "model-one, model-two"
    assert header["dropped"] == {
        "exec_s of a round with a tool whose begin or end is not known (the value only)": 1,
        "exec_s of a round whose last tool ends before its first begins (the value only)": 1,
    }
    assert header["assumptions"] == [
        "the whole prompt of T tokens was cached in 1 call: depth is T-1 there, and one token new "
        "(an engine computes at least one)"
    ]


def test_a_gzipped_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + ROUNDS.read_bytes().replace(b"\n", b"\r\n")))
    assert rows_of(path, tmp_path) == ROWS
    path.write_bytes(path.read_bytes()[:-20])
    refusal = refusal_of(path, tmp_path)
    assert str(refusal).startswith(f"{path}: is a damaged gzip file: ")


def test_the_database_gives_the_same_rows(tmp_path: Path) -> None:
    path = make_database(tmp_path / "log", rounds())
    before = path.read_bytes()
    header, _ = trace_of(path, tmp_path)
    assert rows_of(path, tmp_path) == ROWS
    assert header["tokenizer"] == "model-one, model-two"
    assert sum(header["dropped"].values()) == 2
    assert path.read_bytes() == before


def test_a_database_without_tools_or_total_or_model(tmp_path: Path) -> None:
    path = make_database(tmp_path / "log", rounds())
    with duckdb.connect(str(path)) as database:
        database.execute("DROP TABLE tool_calls")
        for name in ("input_tokens_total", "model", "output_tokens"):
            database.execute(f"ALTER TABLE rounds DROP COLUMN {name}")
    assert rows_of(path, tmp_path) == [row[:4] for row in ROWS]


def test_a_bad_round_of_the_database_is_told_by_its_key(tmp_path: Path) -> None:
    rows = rounds()
    rows[3]["newly_append_tokens"] = -5
    path = make_database(tmp_path / "negative", rows)
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}: round_pk 4: newly_append_tokens: -5 is not between 0 and 2147483647"
    )
    rows = rounds()
    rows[1]["session_id"] = None
    path = make_database(tmp_path / "nameless", rows)
    assert str(refusal_of(path, tmp_path)) == f"{path}: round_pk 2: no field session_id"


def test_what_is_no_database_of_rounds_is_refused(tmp_path: Path) -> None:
    path = make_database(tmp_path / "log", rounds())
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:5000])
    assert str(refusal_of(cut, tmp_path)).startswith(f"{cut}: the database cannot be read: ")
    with duckdb.connect(str(path)) as database:
        database.execute("DROP TABLE rounds")
    refusal = refusal_of(path, tmp_path)
    assert refusal.what == "is a DuckDB database: no known format"
    assert str(refusal_of(path, tmp_path, format="tracelab")) == f"{path}: no table rounds"


def test_a_database_cannot_have_other_files_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("session_id\nhidden\n", encoding="utf-8")
    path = make_database(tmp_path / "log", rounds())
    with duckdb.connect(str(path)) as database:
        database.execute("ALTER TABLE rounds RENAME TO renamed")
        database.execute(
            "CREATE VIEW rounds AS SELECT renamed.* REPLACE (c.session_id AS session_id) "
            f"FROM renamed, read_csv('{secret}') c"
        )
    assert str(refusal_of(path, tmp_path, format="tracelab")) == f"{path}: no table rounds"


def test_a_replay_by_hand(tmp_path: Path) -> None:
    assert rows_of(REPLAY, tmp_path) == [
        ("7", 0, 0, 2000, {"exec_s": 0.25}),
        ("7", 1, 2100, 400, {"exec_s": 1.5005}),
        ("7", 2, 1500, 600, {"exec_s": 0.0}),
        ("9", 0, 64, 36),
    ]
    by_id = REPLAY.with_name("replay_by_id.csv")
    assert rows_of(by_id, tmp_path) == [("x", 0, 50, 100, {"exec_s": 0.012})]


def test_a_missing_cached_count_needs_an_assumption(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = rounds()[:1] + rounds()[4:5]
    del rows[1]["prefix_tokens"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}:2: no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"
    )
    assert rows_of(path, tmp_path, assume_cold=True)[1][:4] == ("s-a", 1, 0, 6000)
    # 5000 + 50 of the round before
    assert rows_of(path, tmp_path, assume_append_only=True)[1][:4] == ("s-a", 1, 5050, 950)


@pytest.mark.parametrize("name", bad_names("tracelab"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("tracelab", name, tmp_path, monkeypatch)


@needs_shared
def test_the_samples_give_the_rows_of_their_mapping(tmp_path: Path) -> None:
    path = SHARED / "tracelab" / "round_trace_sanitized.jsonl"
    log = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = rows_of(path, tmp_path)
    assert rows[0][1:] == (0, 27217, 5055, {"exec_s": 20.102})
    assert rows[1][1:4] == (1, 29380, 6360)
    assert rows[12][2] == 9856
    assert rows[13][1:4] == (3, 3456, 6696)
    assert [row[:4] for row in rows] == [
        (row["session_id"], row["round_index"], row["prefix_tokens"], row["newly_append_tokens"])
        for row in log
    ]
    database = make_database(tmp_path / "log.duckdb", log)
    assert rows_of(database, tmp_path) == rows


@needs_shared
def test_the_replays_give_the_rows_of_their_mapping(tmp_path: Path) -> None:
    single = rows_of(SHARED / "tracelab" / "replay_single_session.csv", tmp_path)
    assert single[1] == ("0", 1, 18333, 13570, {"exec_s": 0.028})
    assert single[10] == ("0", 10, 48060, 9844, {"exec_s": 37.192})
    several = rows_of(SHARED / "tracelab" / "replay_multi_session_first12.csv", tmp_path)
    assert len(several) == 76
    assert several[1] == ("0", 1, 2518, 348, {"exec_s": 0.154})
    assert several[75] == ("11", 3, 3672, 573, {"exec_s": 0.0})

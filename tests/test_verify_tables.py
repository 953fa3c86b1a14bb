"""Databases and exports that are not what this program makes, each found by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from archives import NAME
from canned_archive import DEEP, ENDED, RUN_ID, change_database, handoff, run_folder

from experiment import verify_tables
from experiment.archive_manifest import Manifest
from experiment.database import DATABASE
from experiment.errors import ArchiveError, ExperimentError
from experiment.trace import load_trace


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "results")


def manifest(**changes: object) -> Manifest:
    values: dict[str, object] = {
        "format": 1,
        "name": NAME,
        "run_id": RUN_ID,
        "created": f"{ENDED:%Y-%m-%dT%H:%M:%SZ}",
        "schema_version": 3,
        "files": (),
    }
    return Manifest.model_validate(values | changes)


MANIFEST = manifest()


def test_a_right_database(results: Path) -> None:
    said = verify_tables.tables(results / DATABASE, MANIFEST)
    # run, host, 5 of graph, 3 steps, 18 + 2 + 2 measurements, 4 experts, 2 calibrated, 1 event
    assert said == "8 tables as this program makes them, 39 rows, no log"
    said = verify_tables.views(results / DATABASE)
    assert said == "17 views have the text that this program stores"


DATABASE_CHANGES = {
    "CREATE TABLE x (a INTEGER)": "the table x is none of this program's",
    "DROP TABLE expert CASCADE": "the table expert is missing",
    "ALTER TABLE event ADD COLUMN x INTEGER": "the table event is not the one that this program",
    "ALTER TABLE event ALTER happened_at TYPE DATE": "the table event is not the one that",
    "ALTER TABLE event RENAME message TO text": "the table event is not the one that",
    "CREATE MACRO median(x) AS 1": "the macro median is none of this program's",
    "CREATE MACRO read_it() AS TABLE FROM read_text('/etc/passwd')": "the macro read_it is none",
    "CREATE SEQUENCE s": "the sequence s is none of this program's",
    "CREATE TYPE t AS ENUM ('a')": "the type t is none of this program's",
    "CREATE SCHEMA s": "the schema s is none of this program's",
    "CREATE INDEX i ON event (kind)": "the index i is none of this program's",
    "INSERT INTO run SELECT * REPLACE ('other' AS id) FROM run": "the database holds 2 runs, not",
    "DELETE FROM run": "the database holds 0 runs, not one",
    "INSERT INTO event SELECT * REPLACE ('other' AS run_id) FROM event": (
        "the table event has 1 rows of another run"
    ),
    "UPDATE run SET id = 'other'": f"run_id is 'other', the manifest says '{RUN_ID}'",
    "UPDATE run SET schema_version = 2": "schema_version is 2, the manifest says 3",
    "UPDATE run SET finished = '2026-11-30 02:51:06'": (
        "finished is '2026-11-30T02:51:06Z', the manifest says '2026-11-30T02:51:05Z'"
    ),
    "UPDATE run SET finished = NULL": "finished is None, the manifest says",
    "UPDATE run SET status = 'failed'": "the run is failed, not finished",
}


@pytest.mark.parametrize("statement", DATABASE_CHANGES)
def test_a_changed_database_is_found(results: Path, statement: str) -> None:
    change_database(results, statement)
    with pytest.raises(ArchiveError) as caught:
        verify_tables.tables(results / DATABASE, MANIFEST)
    assert DATABASE_CHANGES[statement] in str(caught.value)


def test_a_column_that_is_computed_otherwise(results: Path, tmp_path: Path) -> None:
    # Values as they were, but the difference that all ratios stand on is another one.
    schema = (verify_tables.SCHEMA).read_text().replace("(prompt_ms - install_ms) VIRTUAL", "(1)")
    with duckdb.connect(str(tmp_path / "forged.duckdb")) as connection:
        connection.execute(schema)
    with pytest.raises(ArchiveError, match="the table measurement is not the one"):
        verify_tables.tables(tmp_path / "forged.duckdb", MANIFEST)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "CREATE OR REPLACE VIEW stability_limit AS SELECT 99.0 AS spread_pct",
            "the view stability_limit is not the one that this program makes",
        ),
        ("DROP VIEW task_wall", "the view task_wall is missing"),
        ("CREATE VIEW x AS SELECT 1", "the view x is none of this program's"),
    ],
)
def test_a_changed_view_is_found(results: Path, statement: str, sentence: str) -> None:
    change_database(results, statement)
    with pytest.raises(ArchiveError) as caught:
        verify_tables.views(results / DATABASE)
    assert str(caught.value) == sentence
    # It does not stand in the way of what is read from the tables.
    assert verify_tables.tables(results / DATABASE, MANIFEST)


def test_a_view_that_leaves_out_another_column(results: Path) -> None:
    # The names behind EXCLUDE come in any order, but not any names.
    with duckdb.connect(str(results / DATABASE)) as connection:
        ((text,),) = connection.execute(
            "SELECT sql FROM duckdb_views() WHERE view_name = 'depth_comparison'"
        ).fetchall()
        assert "EXCLUDE (" in text
        changed = text.replace("EXCLUDE (", "EXCLUDE (steps, ").replace(
            "CREATE", "CREATE OR REPLACE"
        )
        connection.execute(changed)
    with pytest.raises(ArchiveError, match="the view depth_comparison is not the one"):
        verify_tables.views(results / DATABASE)


def test_a_log_beside_the_database(results: Path) -> None:
    (results / f"{DATABASE}.wal").write_bytes(b"x")
    with pytest.raises(ArchiveError, match=r"results\.duckdb\.wal: a write-ahead log lies beside"):
        verify_tables.tables(results / DATABASE, MANIFEST)


def test_the_schema_of_another_version(results: Path) -> None:
    with pytest.raises(ArchiveError, match="schema_version is 1, this program reads 3"):
        verify_tables.tables(results / DATABASE, manifest(schema_version=1))


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 20_000])
def test_a_file_that_is_no_database(results: Path, content: bytes) -> None:
    (results / DATABASE).write_bytes(content)
    with pytest.raises(ExperimentError):
        verify_tables.tables(results / DATABASE, MANIFEST)


def test_a_missing_database(results: Path) -> None:
    (results / DATABASE).unlink()
    with pytest.raises(ExperimentError):
        verify_tables.tables(results / DATABASE, MANIFEST)


def test_a_damaged_database_is_an_error_and_no_crash(results: Path) -> None:
    whole = (results / DATABASE).read_bytes()
    chosen = random.Random(5)
    refused = 0
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[chosen.randrange(len(whole))] ^= chosen.randrange(1, 256)
        path = results / "damaged" / DATABASE
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(damaged)
        try:
            verify_tables.tables(path, MANIFEST)
            verify_tables.views(path)
        except (ExperimentError, duckdb.Error):
            refused += 1
    assert refused > 20


def test_nothing_in_a_database_reaches_other_files(results: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    change_database(results, f"CREATE VIEW leak AS FROM read_csv('{secret}')")
    with (
        verify_tables.connect(results / DATABASE) as connection,
        pytest.raises(duckdb.PermissionException),
    ):
        connection.execute("FROM leak")
    with verify_tables.connect(results / DATABASE, tmp_path) as connection:
        assert connection.execute("FROM leak").fetchall() == [(1,)]
        for statement in ("SET enable_external_access = true", "SET allowed_directories = ['/']"):
            with pytest.raises(duckdb.InvalidInputException):
                connection.execute(statement)


# --- the trace ---


def steps(results: Path) -> str:
    with verify_tables.connect(results / DATABASE) as connection:
        return verify_tables.steps(connection, load_trace(results / "trace.jsonl"))


def test_the_steps_of_the_trace(results: Path) -> None:
    said = "3 steps are those of trace.jsonl, which is the one the run was made with"
    assert steps(results) == said
    # What the tokenizer has counted does not stand in the trace.
    change_database(results, "UPDATE step SET new_text_tokens = 41")
    assert steps(results) == said


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE step SET depth = 7 WHERE step = 2", "step a/2: depth is 7 in the table, 3072 in"),
        (
            "UPDATE step SET baseline_exec_s = 9 WHERE step = 2",
            "step a/2: baseline_exec_s is 9.0 in the table, 4.0 in the trace",
        ),
        ("UPDATE step SET line = 9 WHERE step = 2", "step a/2: line is 9 in the table, 2 in the"),
        (
            "UPDATE step SET image_width = 9 WHERE step = 2",
            "step a/2: image_width is 9 in the table, None in the trace",
        ),
        ("UPDATE step SET step = 9 WHERE step = 2", "step a/9 is in the table, but not in the"),
        ("DELETE FROM step WHERE step = 2", "step a/2 is in the trace, but not in the table"),
        ("UPDATE run SET trace_digest = 'x'", "the run was made with x"),
    ],
)
def test_a_changed_step_is_found(results: Path, statement: str, sentence: str) -> None:
    change_database(results, statement)
    with pytest.raises(ArchiveError) as caught:
        steps(results)
    assert sentence in str(caught.value)


def test_a_changed_trace_is_found(results: Path) -> None:
    path = results / "trace.jsonl"
    path.write_text(path.read_text().replace('"decode_s": 3.0', '"decode_s": 3.5', 1))
    with pytest.raises(ArchiveError, match=r"its sha256 is [0-9a-f]{64}, the run was made with"):
        steps(results)


# --- the graph ---


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n_ctx": 1}, "n_ctx is '9216' in the table, '1' in graph.json"),
        ({"new": 1}, "new is None in the table, '1' in graph.json"),
        ({"can_fake_prefix": False}, "can_fake_prefix is 'true' in the table, 'false' in"),
    ],
)
def test_another_graph_is_found(results: Path, change: dict[str, object], sentence: str) -> None:
    record = json.loads((results / "graph.json").read_bytes())
    with verify_tables.connect(results / DATABASE) as connection:
        assert verify_tables.graph(connection, record) == "5 values are those of graph.json"
        with pytest.raises(ArchiveError) as caught:
            verify_tables.graph(connection, record | change)
    assert sentence in str(caught.value)


# --- exports ---


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return handoff(tmp_path / "top").top


def exports(top: Path) -> str:
    work = top.parent / "work"
    with verify_tables.connect(top / "results" / DATABASE, top / "export") as connection:
        return verify_tables.exports(connection, top / "export", top / "results", work)


def rewrite(path: Path, query: str) -> None:
    """Write a Parquet file anew, of a query on what it holds (``it``)."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE it AS FROM read_parquet('{path}')")
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")


def test_right_exports(top: Path) -> None:
    # 8 tables, 5 views, and the steps
    assert exports(top) == "14 files hold what the database does"
    # The order of rows carries nothing.
    rewrite(top / "export/measurement.parquet", "FROM it ORDER BY prompt_ms DESC")
    assert exports(top) == "14 files hold what the database does"


def test_a_sum_in_another_order_is_the_same(top: Path) -> None:
    rewrite(
        top / "export/run_comparison.parquet",
        "SELECT * REPLACE (speedup * (1 + 1e-15) AS speedup) FROM it",
    )
    assert exports(top) == "14 files hold what the database does"


EXPORT_CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a value": (
        lambda folder: rewrite(
            folder / "measurement.parquet", "SELECT * REPLACE (prompt_ms + 1 AS prompt_ms) FROM it"
        ),
        "measurement.parquet holds other rows than measurement in the database",
    ),
    "a row less": (
        lambda folder: rewrite(folder / "calibration.parquet", "FROM it LIMIT 1"),
        "calibration.parquet holds other rows",
    ),
    "a row twice": (
        lambda folder: rewrite(folder / "event.parquet", "FROM it UNION ALL (FROM it LIMIT 1)"),
        "event.parquet holds other rows",
    ),
    "a figure of a view": (
        lambda folder: rewrite(
            folder / "run_comparison.parquet",
            "SELECT * REPLACE (speedup * (1 + 1e-6) AS speedup) FROM it",
        ),
        "run_comparison.parquet holds other rows",
    ),
    "a column less": (
        lambda folder: rewrite(folder / "graph.parquet", "SELECT run_id, key FROM it"),
        "graph.parquet has other columns than graph",
    ),
    "another type": (
        lambda folder: rewrite(
            folder / "calibration.parquet", "SELECT * REPLACE (depth::DOUBLE AS depth) FROM it"
        ),
        "calibration.parquet has other columns than calibration",
    ),
    "another name": (
        lambda folder: rewrite(
            folder / "task_wall.parquet", "SELECT * RENAME (steps AS n) FROM it"
        ),
        "task_wall.parquet has other columns than task_wall",
    ),
    "no Parquet": (
        lambda folder: (folder / "run.parquet").write_bytes(b"x"),
        "run.parquet cannot be read",
    ),
    "missing": (lambda folder: (folder / "run.parquet").unlink(), "run.parquet is missing"),
    "one more": (
        lambda folder: (folder / "x.parquet").touch(),
        "x.parquet is none of an export",
    ),
    "a step": (
        lambda folder: (folder / "steps.jsonl").write_text(
            (folder / "steps.jsonl").read_text().replace('"n":2', '"n":3')
        ),
        "steps.jsonl, line 2 is not what the database gives",
    ),
    "a step's line is no JSON": (
        lambda folder: (folder / "steps.jsonl").write_text(
            (folder / "steps.jsonl").read_text().replace("{", "", 1)
        ),
        "steps.jsonl, line 1 is not what the database gives",
    ),
    "a step less": (
        lambda folder: (folder / "steps.jsonl").write_text(
            "".join((folder / "steps.jsonl").read_text().splitlines(keepends=True)[:-1])
        ),
        "steps.jsonl has 2 lines for 3 steps",
    ),
}


@pytest.mark.parametrize("kind", EXPORT_CHANGES)
def test_a_changed_export_is_found(top: Path, kind: str) -> None:
    change, sentence = EXPORT_CHANGES[kind]
    change(top / "export")
    with pytest.raises(ArchiveError) as caught:
        exports(top)
    assert sentence in str(caught.value)


def test_a_row_that_was_changed_in_the_database_only(top: Path) -> None:
    change_database(
        top / "results", f"UPDATE measurement SET prompt_ms = 1 WHERE depth = {DEEP.depth}"
    )
    with pytest.raises(ArchiveError, match=r"\.parquet holds other rows than"):
        exports(top)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        ([1.0, {"a": (2.0,)}], [1.0, {"a": (2.0 + 1e-12,)}], True),
        ([1.0], [1.0, 2.0], False),
        ({"a": 1.0}, {"b": 1.0}, False),
        ("a", "a", True),
        (None, 0.0, False),
        (3, 3.0, True),
        (3, 4.0, False),
    ],
)
def test_close(one: object, other: object, same: bool) -> None:
    assert verify_tables.close(one, other) is same

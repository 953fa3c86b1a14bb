"""The copy of a run's rows: what is in it, and that nothing of an altered file gets into it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from canned import STARTED, canned_run

from experiment.copied import copied
from experiment.database import DATABASE, connect
from experiment.errors import StoreError
from experiment.reader import SHARED_VIEWS
from experiment.store import Store

TABLES = ("run", "host", "graph", "step", "measurement", "expert", "calibration", "event")


def ask(folder: Path, query: str) -> list[tuple[object, ...]]:
    with connect(folder / DATABASE, read_only=True) as connection:
        return connection.execute(query).fetchall()


def views_of(folder: Path) -> list[str]:
    rows = ask(folder, "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    return [str(name) for (name,) in rows]


def alter(folder: Path, statements: str) -> Path:
    with connect(folder / DATABASE, read_only=False) as connection:
        connection.execute(statements)
    return folder


def test_the_copy_has_every_row_and_view(tmp_path: Path) -> None:
    folder = canned_run(tmp_path / "run")
    before = (folder / DATABASE).read_bytes()
    views = views_of(folder)
    assert set(views) > SHARED_VIEWS
    with copied(folder) as copy:
        for name in (*TABLES, *views):
            query = f"FROM {name} ORDER BY ALL"
            assert ask(copy, query) == ask(folder, query), name
        made = copy
    assert not made.exists()
    assert (folder / DATABASE).read_bytes() == before
    assert [path.name for path in folder.iterdir()] == [DATABASE]


def test_only_the_wanted_steps_and_what_belongs_to_none(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    with Store.open(folder) as store:
        store.add_event("refused", "too small", task_id="b", step=1)
        store.add_event("refused", "too deep", task_id="a", step=2)
    with copied(folder, [("a", 2), ("b", 2), ("none", 1)]) as copy:
        for table in ("step", "measurement", "expert"):
            assert ask(copy, f"SELECT DISTINCT task_id, step FROM {table}") == [("a", 2)]
        events = ask(copy, "SELECT kind, task_id FROM event ORDER BY kind")
        assert events == [("refused", "a"), ("rounds", None)]
        assert ask(copy, "SELECT speedup FROM run_comparison") == [(4.0,)]  # 880 / 220
    with copied(folder, []) as copy:
        assert ask(copy, "SELECT (SELECT count(*) FROM step), count(*) FROM run") == [(0, 1)]


def test_the_run_that_was_started_last(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    insert = "INSERT INTO run SELECT * REPLACE ('r0' AS id, started - INTERVAL 1 DAY AS started)"
    alter(folder, f"{insert} FROM run; INSERT INTO graph VALUES ('r0', 'k', 'v')")
    with copied(folder) as copy:
        assert ask(copy, "SELECT id, started FROM run") == [("r1", STARTED.replace(tzinfo=None))]
        assert ask(copy, "FROM graph") == []


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE VIEW run_comparison AS SELECT 99 AS speedup",
        "CREATE VIEW step_comparison AS SELECT 99 AS speedup",
        "CREATE MACRO median(x) AS 99; CREATE MACRO sum(x) AS 99",
        "CREATE TABLE other AS FROM measurement; DROP TABLE measurement; "
        "CREATE TABLE measurement AS SELECT * EXCLUDE (prefill_ms, lm_prefill_ms) FROM other; "
        "ALTER TABLE measurement ADD COLUMN prefill_ms DOUBLE DEFAULT 99",
    ],
    ids=["view", "shared view", "macros", "column"],
)
def test_an_altered_file_does_not_answer(tmp_path: Path, statements: str) -> None:
    folder = canned_run(tmp_path)
    honest = ask(folder, "SELECT speedup FROM run_comparison")
    drops = "".join(f"DROP VIEW {name}; " for name in views_of(folder))
    alter(folder, drops + statements)
    with copied(folder) as copy:
        assert ask(copy, "SELECT speedup FROM run_comparison") == honest == [(6.0,)]


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (
            "ALTER TABLE event RENAME TO other; CREATE VIEW event AS FROM other",
            "the table event does not store run_id, happened_at, kind, message, task_id, step",
        ),
        (
            "DROP TABLE event; CREATE TABLE event (run_id VARCHAR, happened_at TIMESTAMP, "
            "kind VARCHAR, message VARCHAR AS ('all is well'), task_id VARCHAR, step INTEGER, "
            "variant VARCHAR, round INTEGER)",
            "the table event does not store message",
        ),
        ("DROP TABLE calibration", "the table calibration does not store"),
        (
            "DROP TABLE calibration; CREATE TABLE calibration AS SELECT 'r1' AS run_id, "
            "1 AS depth, 1 AS chunk, 'fast' AS tps_median, [1.0] AS tps_samples, 1 AS wall_s",
            "Could not convert string 'fast' to DOUBLE",
        ),
        (
            "DROP TABLE graph; CREATE TABLE graph AS SELECT 'r1' AS run_id, 'a' AS key, "
            "i::VARCHAR AS value FROM range(2) AS t (i)",
            'duplicate key "r1, a"',
        ),
        ("UPDATE run SET schema_version = 99", "the results have schema version 99"),
        ("DELETE FROM run", "the database holds no run"),
        ("DROP TABLE run", "it has no table of runs"),
    ],
    ids=lambda value: value[:24],
)
def test_a_file_that_is_not_as_this_program_writes_it(
    tmp_path: Path, statements: str, problem: str
) -> None:
    folder = alter(canned_run(tmp_path), statements)
    with pytest.raises(StoreError) as caught, copied(folder):
        pass
    assert problem in caught.value.what
    assert caught.value.where == str(folder / DATABASE)


def test_a_folder_without_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no results\.duckdb here"), copied(tmp_path):
        pass


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not a valid DuckDB database file"), copied(tmp_path):
        pass


def test_a_database_that_a_run_still_writes(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(); input()"
    command = [sys.executable, "-c", hold, str(folder / DATABASE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(StoreError, match=f"in use by process {writer.pid}"), copied(folder):
            pass
        writer.communicate(b"\n")


def test_a_path_with_a_quote_in_it(tmp_path: Path) -> None:
    with copied(canned_run(tmp_path / "it's")) as copy:
        assert ask(copy, "SELECT id FROM run") == [("r1",)]


def test_the_copy_can_be_read_by_duckdb_1_4(tmp_path: Path) -> None:
    with copied(canned_run(tmp_path)) as copy, duckdb.connect() as connection:
        connection.execute(f"ATTACH '{copy / DATABASE}' AS copy (READ_ONLY)")
        ((tags,),) = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'copy'"
        ).fetchall()
    assert "v1." in str(tags)

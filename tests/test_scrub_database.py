"""A database without what is private: the same bytes each time, all other values as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pytest

from experiment import scrub_database
from experiment.database import connect
from experiment.errors import HandoffError
from experiment.reader import read
from experiment.scrub import Private, Scrubber
from tests.canned_handoff import (
    SCRUBBED_ID,
    SCRUBBER,
    SECRETS,
    SETTINGS,
    USER,
    canned_folder,
    in_use,
)

TABLES = ("run", "host", "graph", "step", "measurement", "expert", "calibration", "event")
NOTHING = Scrubber(Private({}, frozenset(), frozenset(), keeps_host=True))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canned_folder(tmp_path_factory.mktemp("results")) / "results.duckdb"


def written(source: Path, folder: Path, scrubber: Scrubber = SCRUBBER) -> Path:
    folder.mkdir()
    target = folder / "results.duckdb"
    scrub_database.write(source, target, scrubber)
    return target


def rows(database: Path, query: str) -> list[tuple[object, ...]]:
    with connect(database, read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_the_same_bytes_each_time(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    one = written(source, tmp_path / "one")
    other = written(source, tmp_path / "another folder")
    assert one.read_bytes() == other.read_bytes()
    assert source.read_bytes() == before
    assert [path.name for path in one.parent.iterdir()] == ["results.duckdb"]


def test_the_order_in_which_rows_were_written_does_not_matter(source: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.duckdb"
    shutil.copy(source, turned)
    with connect(turned, read_only=False) as connection:
        connection.execute("CREATE TEMP TABLE kept AS FROM event ORDER BY happened_at DESC")
        connection.execute("DELETE FROM event")
        connection.execute("INSERT INTO event FROM kept")
    assert (
        written(turned, tmp_path / "one").read_bytes()
        == written(source, tmp_path / "other").read_bytes()
    )


def test_identifier_follows_from_the_content(source: Path, tmp_path: Path) -> None:
    one = written(source, tmp_path / "one").read_bytes()
    other = written(source, tmp_path / "other", NOTHING).read_bytes()
    assert one[124:140] != other[124:140]
    assert any(one[124:140])


def test_nothing_private_is_left_in_its_bytes(source: Path, tmp_path: Path) -> None:
    content = source.read_bytes()
    assert all(secret in content for secret in SECRETS)
    content = written(source, tmp_path / "made").read_bytes()
    assert not any(secret in content.lower() for secret in SECRETS)


def test_what_is_private_is_replaced_where_it_stands(source: Path, tmp_path: Path) -> None:
    made = written(source, tmp_path / "made")
    assert rows(made, "SELECT id FROM run") == [(SCRUBBED_ID,)]
    assert rows(made, "SELECT DISTINCT run_id FROM measurement") == [(SCRUBBED_ID,)]
    assert rows(made, "SELECT hostname FROM host") == [("host",)]
    assert rows(made, "SELECT value FROM graph WHERE key = 'model_path'") == [
        ("<cache>/model.gguf",)
    ]
    assert rows(made, "SELECT message FROM event WHERE kind = 'warning'") == [
        ("user runs another job on host in <home>",)
    ]
    assert rows(made, "SELECT error FROM measurement WHERE round = 7") == [
        ("no answer within 9 s, see <home>/server.log on host",)
    ]
    ((settings,),) = rows(made, "SELECT settings FROM run")
    assert json.loads(str(settings)) == {
        "cache_dir": "<cache>",
        "results_dir": "<results>",
        "build": {"pin": "sdist", "source": "<home>/llama.cpp"},
        "model": {"name": "/srv/weights/user/big.gguf", "mmproj": None},
        "container": {"ca_bundle": "/srv/ca/user/ca.pem"},
    }
    assert json.dumps(SETTINGS).count(USER) == 5


@pytest.mark.parametrize("table", TABLES)
def test_every_other_value_is_as_it_was(source: Path, tmp_path: Path, table: str) -> None:
    made = written(source, tmp_path / "made")
    changed = {
        "run": ["id", "settings"],
        "host": ["run_id", "hostname"],
        "graph": ["run_id", "value"],
        "event": ["run_id", "message"],
        "measurement": ["run_id", "error"],
    }.get(table, ["run_id"])
    with duckdb.connect() as both:
        for name, path in (("before", source), ("after", made)):
            both.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
        columns = f"* EXCLUDE ({', '.join(changed)})"
        for one, other in (("before", "after"), ("after", "before")):
            assert (
                both.execute(
                    f"SELECT {columns} FROM {one}.{table} EXCEPT ALL "
                    f"SELECT {columns} FROM {other}.{table}"
                ).fetchall()
                == []
            )
        (count,) = both.execute(f"SELECT count(*) FROM after.{table}").fetchall()
    assert count[0] > 0


def test_where_nothing_is_private_every_value_is_equal(source: Path, tmp_path: Path) -> None:
    made = written(source, tmp_path / "made", NOTHING)
    with duckdb.connect() as both:
        for name, path in (("before", source), ("after", made)):
            both.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
        for table in TABLES:
            for one, other in (("before", "after"), ("after", "before")):
                query = f"FROM {one}.{table} EXCEPT ALL FROM {other}.{table}"
                assert both.execute(query).fetchall() == [], table


def test_result_is_a_database_like_any_other(source: Path, tmp_path: Path) -> None:
    made = written(source, tmp_path / "made")
    with read(made) as reader:
        assert reader.run_id == SCRUBBED_ID
        assert reader.connection.execute("SELECT count(*) FROM step_comparison").fetchall() == [
            (3,)
        ]
    # It can be written to as well, and holds the constraints of the schema.
    with connect(made, read_only=False) as connection:
        with pytest.raises(duckdb.ConstraintException):
            connection.execute("INSERT INTO step SELECT * FROM step")
        connection.execute("DELETE FROM expert")
    assert rows(made, "SELECT count(*) FROM expert") == [(0,)]


def test_a_changed_header_is_refused_and_the_file_left_alone(source: Path, tmp_path: Path) -> None:
    made = written(source, tmp_path / "made")
    content = bytearray(made.read_bytes())
    content[200] ^= 1  # a field behind the identifier: what a later version of DuckDB may add
    made.write_bytes(content)
    with pytest.raises(HandoffError, match="another header"):
        scrub_database._fix(made)
    assert made.read_bytes() == content


def test_checksum_is_that_of_duckdb(source: Path) -> None:
    # Of a file that DuckDB alone has written: all three header blocks.
    content = source.read_bytes()
    for start in (0, 4096, 8192):
        block = content[start : start + 4096]
        assert scrub_database._checksum(block) == block[:8]


def test_a_database_in_use_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with in_use(source), pytest.raises(HandoffError) as caught:
        scrub_database.write(source, tmp_path / "made" / "results.duckdb", SCRUBBER)
    assert "in use" in caught.value.what
    assert caught.value.hint


def test_a_table_that_lacks_a_column_is_refused(source: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.duckdb"
    shutil.copy(source, old)
    with connect(old, read_only=False) as connection:
        connection.execute("ALTER TABLE calibration DROP COLUMN wall_s")
    with pytest.raises(HandoffError, match="wall_s"):
        written(old, tmp_path / "made")


def test_another_name_would_give_other_bytes(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not called"):
        scrub_database.write(source, tmp_path / "other.duckdb", SCRUBBER)


def test_a_quote_in_the_path_of_the_source(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    folder.mkdir()
    shutil.copy(source, folder / "results.duckdb")
    made = written(folder / "results.duckdb", tmp_path / "made")
    assert rows(made, "SELECT id FROM run") == [(SCRUBBED_ID,)]

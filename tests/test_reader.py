from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment.database import DATABASE, connect
from experiment.errors import StoreError
from experiment.intervals import median_interval
from experiment.paths import ROOT
from experiment.reader import FEW_SIZES, MEMORY_MB, SHARED_VIEWS, read
from experiment.records import StepRecord
from experiment.store import Store


@pytest.mark.parametrize("sizes", [range(8), range(FEW_SIZES + 10)])
def test_bounds_are_the_intervals_of_each_group(tmp_path: Path, sizes: range) -> None:
    chance = random.Random(5)
    groups = {size: [chance.random() for _ in range(size)] for size in sizes if size}
    values = ", ".join(f"({g}, {x!r})" for g, found in groups.items() for x in found)
    with read(canned_run(tmp_path)) as reader:
        source = (
            f"(SELECT g, x::DOUBLE AS x FROM (VALUES {values}, (1, NULL), (999, NULL)) AS v (g, x))"
        )
        reader.add_bounds("bounds", source, "g", {"x": "x", "high": "CASE WHEN x > 0.5 THEN x END"})
        rows = reader.connection.execute("FROM bounds ORDER BY g").fetchall()
    assert [row[0] for row in rows] == [*groups, 999]
    for g, *ends in rows:
        found = groups.get(g, [])
        for sample, pair in ((found, ends[:2]), ([x for x in found if x > 0.5], ends[2:])):
            expected = median_interval(sample)
            assert pair == ([expected.low, expected.high] if expected else [None, None])


def test_shared_views_are_views_of_the_schema(tmp_path: Path) -> None:
    schema = (ROOT / "schemas" / "results.sql").read_text(encoding="utf-8")
    with read(canned_run(tmp_path)) as reader:
        made = dict(
            reader.connection.execute(
                "SELECT table_name, table_type FROM information_schema.tables "
                "WHERE table_catalog = 'temp'"
            ).fetchall()
        )
    assert len(made) == schema.count("CREATE VIEW ")
    assert {name for name, kind in made.items() if kind != "VIEW"} == SHARED_VIEWS


def test_a_view_made_anew_says_what_the_stored_one_says(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    with connect(folder / "results.duckdb", read_only=True) as connection:
        views = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1"
        ).fetchall()
        stored = {v: connection.execute(f"FROM {v} ORDER BY ALL").fetchall() for (v,) in views}
    with read(folder) as reader:
        anew = {v: reader.connection.execute(f"FROM {v} ORDER BY ALL").fetchall() for (v,) in views}
    assert len(stored) > 10
    assert anew == stored


def test_memory_and_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spill").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spill"))
    folder = canned_run(tmp_path / "run")
    with read(folder) as reader:
        ((limit, spill),) = reader.connection.execute(
            "SELECT current_setting('memory_limit'), current_setting('temp_directory')"
        ).fetchall()
        assert float(limit.removesuffix(" MiB")) == pytest.approx(
            MEMORY_MB * 1e6 / (1 << 20), abs=0.1
        )
        assert Path(spill).parent == tmp_path / "spill"
    assert list((tmp_path / "spill").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["results.duckdb"]


def test_a_query_that_fails_is_told_with_the_database(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        store.record(measurement())
    with pytest.raises(StoreError, match="nothing") as caught, read(tmp_path) as reader:
        reader.connection.execute("SELECT nothing FROM run")
    assert "results.duckdb" in str(caught.value)


WRITER = """
import sys, itertools
from pathlib import Path
sys.path.insert(0, "tests")
from canned import measurement
from experiment.store import Store
with Store.open(Path(sys.argv[1])) as store:
    store._execute("SET checkpoint_threshold = '64KB'")  # folds its log into the file often
    print("open", flush=True)
    for number in itertools.count(100):
        store.record(measurement(number=number))
        print(number, flush=True)
"""


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        seen = []
        for _ in range(25):
            committed = int(writer.stdout.readline())
            with read(tmp_path) as reader:
                ((rounds, highest),) = reader.connection.execute(
                    "SELECT count(*), max(round) FROM measurement WHERE round >= 100"
                ).fetchall()
            # Everything that was committed before, without a gap.
            assert highest >= committed
            assert rounds == highest - 99
            seen.append(highest)
        writer.kill()
    assert seen == sorted(seen)
    assert {path.name for path in tmp_path.iterdir()} <= {DATABASE, f"{DATABASE}.wal"}


def test_a_run_is_read_beside_a_writer_of_the_same_process(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with Store.open(tmp_path) as store:
        store.record(measurement(number=100))
        with read(tmp_path) as reader:
            assert reader.connection.execute(
                "SELECT count(*) FROM measurement WHERE round = 100"
            ).fetchall() == [(1,)]

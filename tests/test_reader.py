from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment import compare, tables
from experiment import structure as structures
from experiment.bench_data import write_synthetic
from experiment.database import DATABASE, connect
from experiment.errors import StoreError
from experiment.intervals import median_interval
from experiment.paths import ROOT
from experiment.reader import (
    ALL_MEMORY_MB,
    FEW_SIZES,
    MEMORY_MB,
    PART_MEMORY_MB,
    SHARED_VIEWS,
    _limit_mb,
    read,
)
from experiment.records import StepRecord
from experiment.spooled import Spooled
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


def test_few_rows_are_kept_and_many_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_synthetic(tmp_path, 30, 2)
    order = "line"
    with read(folder) as reader:
        few = reader.many_rows(_Step, "step", order=order)
        monkeypatch.setattr("experiment.reader.FEW_ROWS", 29)
        monkeypatch.setattr("experiment.reader.ROWS_AT_ONCE", 7)
        many = reader.many_rows(_Step, "step", order=order)
    assert isinstance(few, tuple)
    assert isinstance(many, Spooled)
    assert tuple(many) == few
    assert [step.step for step in few] == [*range(20), *range(10)]


@dataclass(frozen=True)
class _Step:
    task_id: str
    step: int
    depth: int


@pytest.mark.parametrize("made", [lambda to: write_synthetic(to, 40, 7).parent, canned_run])
def test_a_run_in_parts_is_the_run(
    made: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "run")
    whole, structure = compare.load(folder), structures.load(folder)
    monkeypatch.setattr("experiment.reader.STEPS_AT_ONCE", 1)
    monkeypatch.setattr("experiment.reader.FEW_ROWS", 1)
    with read(folder) as reader:
        assert reader.parts > 2
    parted = compare.load(folder)
    assert isinstance(parted.steps, Spooled)
    # What is of a step is the same to the last digit.
    assert tables.render(parted, "csv") == tables.render(whole, "csv")
    for field in fields(whole):
        mine, theirs = getattr(parted, field.name), getattr(whole, field.name)
        if isinstance(mine, Spooled):
            mine = tuple(mine)
        # Sums are over another order of the rows.
        assert _rounded(mine) == _rounded(theirs), field.name
    assert _rounded(structures.load(folder).rows) == _rounded(structure.rows)
    told = json.loads(tables.render(parted, "json"))
    assert len(told["steps"]) == len(whole.steps)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    if is_dataclass(value):
        return tuple(_rounded(getattr(value, field.name)) for field in fields(value))
    return value


def test_memory_is_that_of_a_part() -> None:
    assert _limit_mb(999_999, 9_999, 1) == MEMORY_MB
    assert _limit_mb(1_000_000, 9_999, 1) == 2 * MEMORY_MB
    # Ten times the steps, in ten times the parts: 8 bytes a pair are more.
    assert _limit_mb(100_000, 10_000, 2) == PART_MEMORY_MB
    assert _limit_mb(1_000_000, 100_000, 11) == PART_MEMORY_MB + ALL_MEMORY_MB
    # More steps, or many rounds.
    assert _limit_mb(1_000_000, 100_001, 11) == 2 * PART_MEMORY_MB + ALL_MEMORY_MB
    assert _limit_mb(900_000, 10_000, 2) == 2 * PART_MEMORY_MB

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import duckdb
import pytest
from canned import STARTED, STEPS, canned_run, measurement, run_record

from experiment.database import DATABASE, SCHEMA_VERSION, connect
from experiment.errors import StoreError
from experiment.host import HostFacts
from experiment.paths import ROOT
from experiment.records import CalibrationRow, ExpertRow, Measurement, StepRecord
from experiment.store import Store, utc


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_a_run_is_recorded_with_everything_that_identifies_it(tmp_path: Path) -> None:
    digests = {
        name: name[:2] * 4
        for name in ("patch_digest", "image_digest", "model_digest", "mmproj_digest")
    }
    started = datetime(2026, 11, 30, 3, 41, 5, tzinfo=timezone(timedelta(hours=1)))
    with Store.create(tmp_path / "run", run_record(started=started, **digests)):
        pass
    (row,) = rows(
        tmp_path / "run",
        f"SELECT id, schema_version, started, finished, status, {', '.join(digests)}, "
        "settings->>'seed', settings->>'cache_dir' FROM run",
    )
    assert row == (
        *("r1", SCHEMA_VERSION, STARTED.replace(tzinfo=None), None, "running"),
        *digests.values(),
        *("1", "cache"),
    )


def test_create_refuses_a_folder_that_has_a_database(tmp_path: Path) -> None:
    canned_run(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    with pytest.raises(StoreError, match="already a database"):
        Store.create(tmp_path, run_record("r2"))
    assert (tmp_path / DATABASE).read_bytes() == before


def test_create_replaces_a_draft_that_a_kill_left(tmp_path: Path) -> None:
    (tmp_path / (DATABASE + ".new")).write_bytes(b"half")
    canned_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [DATABASE]


def test_create_in_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Store.create(tmp_path / "file" / "run", run_record())


def test_open_needs_a_database_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no {DATABASE} here"):
        Store.open(tmp_path)
    duckdb.connect(str(tmp_path / DATABASE)).close()
    with pytest.raises(StoreError, match="not a database of results"):
        Store.open(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"not a database")
    with pytest.raises(StoreError, match="not a valid DuckDB database"):
        Store.open(tmp_path)


def test_open_refuses_another_schema_version(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with duckdb.connect(str(tmp_path / DATABASE)) as connection:
        connection.execute("UPDATE run SET schema_version = 99")
    with pytest.raises(StoreError, match=f"schema version 99, this program reads {SCHEMA_VERSION}"):
        Store.open(tmp_path)


def test_a_measurement_keeps_every_field(tmp_path: Path) -> None:
    full = Measurement(
        task_id="a",
        step=1,
        variant="restored",
        round=3,
        depth=1000,
        status="ok",
        started_at=STARTED,
        position_in_round=1,
        cache_n=1000,
        prompt_n=100,
        prompt_ms=105.5,
        install_ms=5.25,
        encode_ms=20.125,
        wall_ms=120.0,
        prime_ms=900.0,
        size_bytes=1 << 40,
        pos_min=0,
        pos_max=1047,
        n_kv=1280,
        fake_fill="tile",
        fill_ms=2.5,
        ubatch_tokens=(64, 36),
        ubatch_n_kv=(1280, 1280),
        graph_nodes=(700, 650),
        kv_bytes=1 << 35,
        sampler_ms=0.5,
        other_cores=0.25,
        stolen_cores=0.125,
        throttled=3,
        error=None,
        raw="0001.json",
    )
    with Store.create(tmp_path, run_record()) as store:
        store.record(full)
    with duckdb.connect(str(tmp_path / DATABASE)) as connection:
        cursor = connection.execute("SELECT * FROM measurement")
        names = [column[0] for column in cursor.description or ()]
        row = dict(zip(names, cursor.fetchone() or (), strict=True))
    assert row.pop("run_id") == "r1"
    assert row.pop("prefill_ms") == 100.25
    assert row.pop("lm_prefill_ms") == 80.125
    assert row.pop("started_at") == STARTED.replace(tzinfo=None)
    assert row == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(full).items()
        if name != "started_at"
    }


@pytest.mark.parametrize("status", ["ok", "invalid", "refused"])
def test_no_measurement_is_recorded_twice(tmp_path: Path, status: str) -> None:
    error = None if status == "ok" else "why"
    with Store.create(tmp_path, run_record()) as store:
        store.record(measurement(status=status, error=error, prompt_ms=7.0))
        with pytest.raises(StoreError, match="fake in round 0 is already measured"):
            store.record(measurement(prompt_ms=8.0))
        assert store.done() == {("a", 1, "fake", 0)}
    assert rows(tmp_path, "SELECT prompt_ms FROM measurement") == [(7.0,)]


def test_a_failed_measurement_and_a_warmup_are_made_again(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.record(measurement(prompt_ms=None, status="failed", error="no answer"))
        # Lists too can be replaced, which is no matter of course for a database of columns.
        lists: dict[str, object] = {"ubatch_tokens": (9, 9), "ubatch_n_kv": (256, 512)}
        store.record(measurement(number=-1, status="warmup", prompt_ms=6.0, **lists))
        assert store.done() == set()
        store.record(measurement(prompt_ms=7.0))
        store.record(measurement(number=-1, status="warmup", prompt_ms=8.0, ubatch_tokens=(18,)))
        assert store.done() == {("a", 1, "fake", 0)}
    assert rows(tmp_path, "SELECT round, prompt_ms, status, error FROM measurement ORDER BY 1") == [
        (-1, 8.0, "warmup", None),
        (0, 7.0, "ok", None),
    ]
    assert rows(tmp_path, "SELECT ubatch_tokens, ubatch_n_kv FROM measurement ORDER BY round") == [
        ([18], None),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ms": None}, "status ok needs prompt_ms, not None"),
        ({"install_ms": None}, "status ok needs install_ms"),
        ({"encode_ms": float("nan")}, "status ok needs encode_ms, not nan"),
        ({"prompt_ms": -1.0}, "status ok needs prompt_ms, not -1.0"),
        ({"number": -1}, "a negative round is a warm-up"),
        ({"status": "warmup"}, "a warm-up round is negative"),
        ({"status": "invalid"}, "status invalid needs the reason"),
        ({"status": "refused", "error": ""}, "status refused needs the reason"),
    ],
)
def test_a_measurement_does_not_contradict_its_status(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measurement(**changes)  # type: ignore[arg-type]


def test_the_database_itself_keeps_warmups_and_gaps_out(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with duckdb.connect(str(tmp_path / DATABASE)) as connection:
        for change in (
            "status = 'ok' WHERE round < 0",
            "prompt_ms = NULL WHERE status = 'ok'",
            "error = NULL WHERE status = 'invalid'",
            "variant = 'other'",
        ):
            with pytest.raises(duckdb.ConstraintException):
                connection.execute(f"UPDATE measurement SET {change}")


def test_a_time_without_a_zone_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        utc(datetime(2026, 1, 1))  # noqa: DTZ001


def test_status_stamps_the_end(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.set_status("interrupted")
    (row,) = rows(tmp_path, "SELECT status, finished IS NOT NULL FROM run")
    assert row == ("interrupted", True)
    with Store.open(tmp_path) as store:
        store.set_status("running")
    (row,) = rows(tmp_path, "SELECT status, finished FROM run")
    assert row == ("running", None)


def test_steps_graph_calibration_and_events(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([])
        store.add_steps(STEPS)
        store.set_graph({"flash_attn": True, "n_ctx": 8192, "rope": 1e7, "mode": "auto"})
        store.add_calibration([CalibrationRow(512, 256, 90.0, (80.0, 90.0, 95.5))])
        store.add_event("restart", "the server died", task_id="a", step=1, variant="fake", round=2)
    with Store.open(tmp_path) as store:
        assert store.run_id == "r1"
        store.add_steps([StepRecord("a", 1, 77), StepRecord("c", 1, 9, "positions")])
        store.set_graph({"n_ctx": 16384})
        store.add_calibration(
            [CalibrationRow(512, 256, 91.0, (91.0,), 4.5), CalibrationRow(0, 256, 100.0, (100.0,))]
        )
        assert store.calibration() == (
            CalibrationRow(0, 256, 100.0, (100.0,)),
            CalibrationRow(512, 256, 91.0, (91.0,), 4.5),
        )
    assert rows(tmp_path, "SELECT task_id, step, depth, depth_unit FROM step ORDER BY ALL") == [
        ("a", 1, 1000, "tokens"),
        ("a", 2, 3000, "tokens"),
        ("b", 1, 500, "tokens"),
        ("c", 1, 9, "positions"),
    ]
    assert rows(tmp_path, "SELECT key, value FROM graph ORDER BY key") == [
        ("flash_attn", "true"),
        ("mode", "auto"),
        ("n_ctx", "16384"),
        ("rope", "10000000.0"),
    ]
    assert rows(tmp_path, "SELECT * EXCLUDE (happened_at) FROM event") == [
        ("r1", "restart", "the server died", "a", 1, "fake", 2)
    ]
    (age,) = rows(tmp_path, "SELECT happened_at FROM event")[0]
    assert isinstance(age, datetime)
    assert timedelta(0) <= utc(datetime.now(UTC)) - age < timedelta(minutes=1)


def test_experts_are_recorded_and_replaced(tmp_path: Path) -> None:
    row = ExpertRow("a", 1, "fake", "tile", ubatch=0, layer=2, distinct_experts=8)
    with Store.create(tmp_path, run_record()) as store:
        store.add_experts([])
        store.add_experts([row, replace(row, layer=3), replace(row, fake_fill="zero")])
        store.add_experts([replace(row, distinct_experts=9)])
        with pytest.raises(StoreError, match="CHECK"):
            store.add_experts([replace(row, step=2), replace(row, variant="full")])  # type: ignore[arg-type]
    assert rows(tmp_path, "SELECT * FROM expert ORDER BY ALL") == [
        ("r1", "a", 1, "fake", "tile", 0, 2, 9),
        ("r1", "a", 1, "fake", "tile", 0, 3, 8),
        ("r1", "a", 1, "fake", "zero", 0, 2, 8),
    ]


def test_steps_are_recorded_all_or_none(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        with pytest.raises(StoreError, match="CHECK"):
            store.add_steps([*STEPS, StepRecord("a", 9, 1, "cells")])
        store.add_steps(STEPS[:1])
    assert rows(tmp_path, "SELECT count(*) FROM step") == [(1,)]


def test_the_host_table_has_a_column_for_every_fact(tmp_path: Path) -> None:
    canned_run(tmp_path)
    columns = {row[0] for row in rows(tmp_path, "SELECT column_name FROM (DESCRIBE host)")}
    assert columns == set(HostFacts.__annotations__) | {"run_id", "recorded_at"}
    facts: dict[str, object] = dict.fromkeys(HostFacts.__annotations__)
    facts |= {"cpu_flags": ["avx2", "fma"], "cores_quota": 1.5, "memory_total_bytes": 1 << 40}
    with Store.open(tmp_path) as store:
        store.add_host(facts)  # type: ignore[arg-type]
    assert rows(tmp_path, "SELECT cpu_flags, cores_quota, memory_total_bytes FROM host") == [
        (["avx2", "fma"], 1.5, 1 << 40)
    ]


def test_close_leaves_one_file_in_the_storage_version_of_duckdb_1_4(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with Store.open(tmp_path) as store:
        store.add_event("warning", "a write by the second opening")
        assert (tmp_path / (DATABASE + ".wal")).exists()
    assert [path.name for path in tmp_path.iterdir()] == [DATABASE]
    # Main header: 8 bytes checksum, the magic, then the storage version; DuckDB 1.4 reads 64 to 67.
    header = (tmp_path / DATABASE).read_bytes()[:20]
    assert header[8:12] == b"DUCK"
    assert 64 <= int.from_bytes(header[12:20], "little") <= 67


def test_a_database_in_use_is_named_with_its_holder(tmp_path: Path) -> None:
    canned_run(tmp_path)
    code = (
        "import sys; from pathlib import Path; from experiment.store import Store\n"
        "store = Store.open(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        for opening in (Store.open, lambda f: connect(f / DATABASE, read_only=True)):
            with pytest.raises(StoreError, match=f"in use by process {holder.pid}") as caught:
                opening(tmp_path)
            assert "wait until that run has ended" in str(caught.value)
        holder.kill()


def test_a_second_opening_in_this_process_is_refused_in_words(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with Store.open(tmp_path), pytest.raises(StoreError, match="another connection of this proc"):
        connect(tmp_path / DATABASE, read_only=True)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from canned import measurement
from experiment.store import Store
store = Store.open(Path(sys.argv[1]))
done = store.done()
print("done", len(done), flush=True)
for number in range(100_000):
    if ("a", 1, "fake", number) not in done:
        store.record(measurement(number=number, prompt_ms=10.0 + number))
        print(number, flush=True)
"""


def test_after_sigkill_every_committed_row_is_there_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Store.create(folder, run_record()):
        pass
    chance = random.Random(20260605)
    told: list[int] = []
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert writer.stdout is not None
        word, found = writer.stdout.readline().split()
        assert word == b"done"
        # A row may be committed whose number the kill kept from being told.
        assert len(told) <= int(found) <= len(told) + 1
        told = list(range(int(found)))
        time.sleep(chance.uniform(0.01, 0.3))
        writer.kill()
        lines = writer.stdout.read().split(b"\n")[:-1]
        writer.wait()
        writer.stdout.close()
        told += [int(line) for line in lines]
    assert len(told) > 20
    with Store.open(folder) as store:
        done = store.done()
    got = rows(folder, "SELECT round, prompt_ms FROM measurement ORDER BY round")
    assert len(done) == len(got)
    assert got == [(number, 10.0 + number) for number in range(len(got))]
    assert len(told) <= len(got) <= len(told) + 1

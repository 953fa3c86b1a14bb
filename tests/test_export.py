"""A run as files: every row is there, nulls stay nulls, and two exports are the same bytes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import duckdb
import pytest
from canned import canned_run, measurement, run_record

from experiment.database import DATABASE, SCHEMA, connect
from experiment.errors import ExportError, StoreError
from experiment.export import FORMATS, VIEWS, export
from experiment.records import StepRecord
from experiment.store import Store

TABLES = ("run", "host", "graph", "step", "measurement", "expert", "calibration", "event")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canned_run(tmp_path_factory.mktemp("results") / "run")


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("export")
    export(folder, to)
    return to


def steps(to: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (to / "steps.jsonl").read_text().splitlines()]


def test_there_is_a_file_for_each_table_and_view(folder: Path, tmp_path: Path) -> None:
    schema = SCHEMA.read_text(encoding="utf-8")
    assert {name for name in TABLES if f"CREATE TABLE {name} (" in schema} == set(TABLES)
    assert schema.count("CREATE TABLE ") == len(TABLES)
    paths = export(folder, tmp_path / "made" / "here")
    names = sorted((*TABLES, *VIEWS))
    assert [path.name for path in paths] == [
        *(f"{name}.parquet" for name in names),
        *(f"{name}.csv" for name in names),
        "steps.jsonl",
    ]
    assert sorted(paths) == sorted((tmp_path / "made" / "here").iterdir())
    assert [path.name for path in folder.iterdir()] == [DATABASE]


@pytest.mark.parametrize("name", [*TABLES, *VIEWS])
def test_parquet_is_the_table_with_its_types(folder: Path, exported: Path, name: str) -> None:
    with connect(folder / DATABASE, read_only=True) as connection:
        rows = connection.execute(f"FROM {name} ORDER BY ALL").fetchall()
        types = connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {name})")
        # Parquet has no integers of 128 bits, which is what DuckDB adds integers up in.
        wanted = {column: kind.replace("HUGEINT", "BIGINT") for column, kind in types.fetchall()}
    file = f"'{exported / name}.parquet'"
    with duckdb.connect() as connection:
        assert connection.execute(f"FROM {file}").fetchall() == rows  # in this order
        types = connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE FROM {file})")
        assert dict(types.fetchall()) == wanted
    assert rows or name in ("host", "graph", "calibration")


def test_csv_has_a_line_a_row_with_full_precision(folder: Path, exported: Path) -> None:
    with (exported / "measurement.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with connect(folder / DATABASE, read_only=True) as connection:
        found = connection.execute("FROM measurement ORDER BY ALL")
        names = [column[0] for column in found.description]
        wanted = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert list(rows[0]) == names
    assert [row["variant"] for row in rows] == [row["variant"] for row in wanted]
    for name in ("prompt_ms", "prefill_ms", "other_cores"):
        assert [row[name] for row in rows] == [
            "" if row[name] is None else repr(row[name]) for row in wanted
        ]
    assert {row["error"] for row in rows} == {
        *("", "cache_n is 2999, not 3000", "L = 500 is too small")
    }
    assert next(r for r in rows if r["step"] == "2" and r["variant"] == "fake")["graph_nodes"] == (
        "[700, 650]"
    )


def test_csv_leaves_texts_as_they_are(tmp_path: Path) -> None:
    odd = ("=1+1", "+1", "-1", "@A1", "", 'a "b", c', "two\nlines", " blank ", "NULL", "ü🙂")
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps(
            StepRecord("t", number, 1, new_text=text) for number, text in enumerate(odd)
        )
        store.add_steps([StepRecord("t", len(odd), 1)])
    export(tmp_path, tmp_path / "out", ["csv"])
    data = (tmp_path / "out" / "step.csv").read_bytes()
    assert b"\r" not in data
    with (tmp_path / "out" / "step.csv").open(encoding="utf-8", newline="") as file:
        assert [row["new_text"] for row in csv.DictReader(file)] == [*odd, ""]
    # The empty text is quoted, what is not there is not.
    assert b',tokens,"",,,,,,,,\n' in data
    assert data.endswith(b",tokens,,,,,,,,,\n")


def test_a_step_that_was_left_out_and_one_that_was_cold(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps(
            [
                StepRecord("a", 1, 0, line=1),
                StepRecord("a", 2, 900, line=2, left_out="budget: not drawn", stratum=3),
                StepRecord("a", 3, 0, line=3),
            ]
        )
        for number, ms in enumerate((90.0, 100.0, 120.0)):
            store.record(measurement(variant="full", number=number, prompt_ms=ms, install_ms=0.0))
        store.record(measurement(step=3, variant="full", status="invalid", error="n_kv is 0"))
    export(tmp_path, tmp_path / "out", ["jsonl"])
    cold, left_out, invalid = steps(tmp_path / "out")
    # Nothing was cached: what `full` takes is what a perfect cache leaves to do.
    assert (cold["measured_opt_prefill_s"], cold["n"], cold["status"]) == (0.1, 3, "measured")
    assert (cold["measured_opt_prefill_s_low"], cold["measured_opt_prefill_s_high"]) == (0.09, 0.12)
    assert (cold["full_prefill_s"], cold["install_s"], cold["reason"]) == (0.1, None, None)
    assert (left_out["status"], left_out["reason"]) == ("left_out", "budget: not drawn")
    assert (left_out["n"], left_out["measured_opt_prefill_s"]) == (0, None)
    assert (invalid["status"], invalid["reason"]) == ("invalid", "n_kv is 0")


def test_a_step_by_hand(exported: Path) -> None:
    # fake 100, 110, 120 ms (install 10, encode 20); restored 100, 100, 125; full 1100; 119 of the
    # arithmetic. Then 200 and 240 of fake, its third round invalid; restored 250, 240, 240.
    first, second, third = steps(exported)
    assert first == {
        "task_id": "a",
        "step": 1,
        "depth": 1000,
        "new_tokens": 100,
        "measured_opt_prefill_s": 0.11,
        "measured_opt_prefill_s_low": 0.1,
        "measured_opt_prefill_s_high": 0.12,
        "n": 3,
        "restored_prefill_s": 0.1,
        "full_prefill_s": 1.1,
        "arithmetic_prefill_s": 0.119,
        "install_s": 0.01,
        "encode_s": 0.02,
        "status": "measured",
        "reason": None,
    }
    assert (second["measured_opt_prefill_s"], second["n"]) == (0.22, 2)
    assert (second["measured_opt_prefill_s_low"], second["measured_opt_prefill_s_high"]) == (
        *(0.2, 0.24),
    )
    assert (second["restored_prefill_s"], second["encode_s"]) == (0.24, 0.0)
    assert (second["status"], second["reason"]) == ("measured", None)
    figures = {name: value for name, value in third.items() if name.endswith(("_s", "low", "high"))}
    assert len(figures) == 8
    assert set(figures.values()) == {None}
    assert (third["n"], third["new_tokens"], third["depth"]) == (0, None, 500)
    assert (third["status"], third["reason"]) == ("refused", "L = 500 is too small")


def test_why_a_step_has_no_figure(tmp_path: Path) -> None:
    keys = ["one", "measured", "refused", "invalid", "failed", "warmup", "missing"]
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps(StepRecord(key, 0, 10, line=line) for line, key in enumerate(keys, 1))
        for row in (
            measurement("one", 0),
            measurement("measured", 0),
            measurement("measured", 0, number=1),
            measurement("measured", 0, number=2, status="invalid", error="once"),
            measurement("refused", 0, number=-1, status="refused", error="too deep at first"),
            measurement("refused", 0, number=1, status="refused", error="too deep"),
            measurement("refused", 0, number=2, status="invalid", error="wrong"),
            measurement("invalid", 0, number=0, status="invalid", error="wrong"),
            measurement("invalid", 0, number=1, status="failed", error="lost"),
            measurement("failed", 0, number=0, status="failed", error="lost"),
            measurement("failed", 0, "control", number=0, status="refused", error="of control"),
            measurement("warmup", 0, number=-1, status="warmup"),
        ):
            store.record(row)
    export(tmp_path, tmp_path, ["jsonl"])
    told = {step["task_id"]: (step["status"], step["reason"]) for step in steps(tmp_path)}
    assert list(told) == keys  # in the trace's order
    assert told == {
        "one": ("measured", None),
        "measured": ("measured", None),
        "refused": ("refused", "too deep"),
        "invalid": ("invalid", "wrong"),
        "failed": ("missing", "lost"),
        "warmup": ("missing", "not measured"),
        "missing": ("missing", "not measured"),
    }
    one = steps(tmp_path)[0]
    assert (one["n"], one["measured_opt_prefill_s"]) == (1, 0.009)
    assert one["measured_opt_prefill_s_low"] is one["measured_opt_prefill_s_high"] is None


def test_two_exports_are_the_same_bytes(folder: Path, exported: Path, tmp_path: Path) -> None:
    # From a file whose rows lie in another order.
    shutil.copy(folder / DATABASE, tmp_path)
    with connect(tmp_path / DATABASE, read_only=False) as connection:
        connection.execute("CREATE TEMP TABLE kept AS FROM measurement ORDER BY prompt_ms")
        connection.execute("DELETE FROM measurement")
        names = ", ".join(
            name
            for (name, *_) in connection.execute("DESCRIBE measurement").fetchall()
            if name not in ("prefill_ms", "lm_prefill_ms")
        )
        connection.execute(f"INSERT INTO measurement ({names}) SELECT {names} FROM kept")
    for path in export(tmp_path, tmp_path / "out"):
        assert path.read_bytes() == (exported / path.name).read_bytes(), path.name


def test_same_names_are_replaced_and_others_left_alone(folder: Path, tmp_path: Path) -> None:
    for name in ("step.csv", "steps.jsonl", "notes.txt"):
        (tmp_path / name).write_text("old")
    paths = export(folder, tmp_path, ["csv", "csv"])
    assert len(paths) == len(TABLES) + len(VIEWS)
    assert (tmp_path / "step.csv").read_text().startswith("run_id,")
    assert (tmp_path / "steps.jsonl").read_text() == (tmp_path / "notes.txt").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {
        *(path.name for path in paths),
        *("steps.jsonl", "notes.txt"),
    }


def test_an_export_that_fails_changes_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "step.csv").write_text("old")
    (tmp_path / "task_wall.csv").mkdir()
    with pytest.raises(ExportError) as caught:
        export(folder, tmp_path, FORMATS)
    assert str(caught.value) == f"{tmp_path}/task_wall.csv: is a folder, not a file to replace"
    assert {path.name for path in tmp_path.iterdir()} == {"step.csv", "task_wall.csv"}
    assert (tmp_path / "step.csv").read_text() == "old"


def test_a_target_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="the files cannot be written") as caught:
        export(folder, tmp_path / "file")
    assert caught.value.where == str(tmp_path / "file")


def test_a_disk_that_is_full(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.export.STEPS", "no such folder/steps.jsonl")
    with pytest.raises(ExportError, match="the files cannot be written: IO Error") as caught:
        export(folder, tmp_path)
    assert caught.value.where == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export(folder, tmp_path / "out", ["csv", "xlsx"])
    assert str(caught.value) == (
        "there is no format 'xlsx'\n  hint: choose from parquet, csv, jsonl"
    )
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no results\.duckdb"):
        export(tmp_path, tmp_path / "out")


def test_an_altered_view_is_not_exported(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    with connect(folder / DATABASE, read_only=False) as connection:
        connection.execute("CREATE OR REPLACE VIEW run_comparison AS SELECT 99 AS speedup")
    export(folder, tmp_path / "out", ["csv"])
    with (tmp_path / "out" / "run_comparison.csv").open(newline="") as file:
        assert [row["speedup"] for row in csv.DictReader(file)] == ["6.0"]


def test_a_path_with_a_quote_in_it(folder: Path, tmp_path: Path) -> None:
    (path,) = export(folder, tmp_path / "it's", ["jsonl"])
    assert path == tmp_path / "it's" / "steps.jsonl"
    assert len(path.read_text().splitlines()) == 3

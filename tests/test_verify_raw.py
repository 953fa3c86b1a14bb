"""Rows against raw files: what is changed on either side is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from canned_archive import DEEP, RUN_ID, SHALLOW, change_database, raw_name, run_folder

from experiment import verify_raw
from experiment.database import DATABASE, connect
from experiment.errors import ArchiveError
from experiment.settings import Settings
from experiment.trace import load_trace
from experiment.verify_raw import Material


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "results")


@contextmanager
def material(folder: Path) -> Iterator[Material]:
    steps = load_trace(folder / "trace.jsonl").steps
    with connect(folder / DATABASE, read_only=True) as connection:
        yield Material(
            folder=folder,
            connection=connection,
            run_id=RUN_ID,
            steps={(step.task_id, step.step): step for step in steps},
            settings=Settings(),
        )


def told(check: Callable[[Material], str], folder: Path) -> str:
    with material(folder) as found:
        return check(found)


def refused(check: Callable[[Material], str], folder: Path) -> str:
    with material(folder) as found, pytest.raises(ArchiveError) as caught:
        check(found)
    return str(caught.value)


def rewrite(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change the JSON of a raw file in place."""
    path = folder / "raw" / name
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, indent=1) + "\n")


def timing(name: str, value: object) -> Callable[[Any], object]:
    return lambda record: record["response"]["timings"].update({name: value})


def in_prefix(name: str, value: object) -> Callable[[Any], object]:
    return lambda record: record["response"]["timings"]["prefix"].update({name: value})


FAKE = raw_name(SHALLOW, "fake", 1)
WHAT = f"a/1 fake round 1, raw/{FAKE}: "


def test_every_row_of_a_right_run_is_accounted_for(results: Path) -> None:
    assert told(verify_raw.measurements, results) == (
        "18 rows are what their raw files give, column by column; 2 refused or failed ones have no "
        "answer and no figure; raw files do not tell started_at, position_in_round, other_cores, "
        "stolen_cores, throttled"
    )
    assert told(verify_raw.experts, results) == "4 counts are what 2 raw files give"
    assert told(verify_raw.calibration, results) == (
        "2 throughputs are what raw/llama-bench.log gives; it does not tell wall_s"
    )
    assert told(verify_raw.arithmetic, results) == (
        "2 estimates are what calibration and new tokens give"
    )


# --- measurements ---

RAW_CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "prompt_ms": (
        timing("prompt_ms", 119.0),
        "prompt_ms is 120.0 in the table, 119.0 in the raw file",
    ),
    "encode_ms": (
        timing("encode_ms", 20.001),
        "encode_ms is 20.0 in the table, 20.001 in the raw file",
    ),
    "install_ms": (
        in_prefix("install_ms", 9.0),
        "install_ms is 10.0 in the table, 9.0 in the raw file",
    ),
    "wall_ms": (
        lambda record: record.update(wall_ms=1.5),
        "wall_ms is 125.5 in the table, 1.5 in the raw file",
    ),
    "kv_bytes": (
        in_prefix("kv_bytes", 7),
        "kv_bytes is 1048576 in the table, 7 in the raw file",
    ),
    "fill_ms": (in_prefix("fill_ms", 0.5), "fill_ms is 0.25 in the table, 0.5 in the raw file"),
    "truth as a number": (
        in_prefix("prime_ms", False),
        "prime_ms is 0.0 in the table, False in the raw file",
    ),
    "nodes": (
        in_prefix("ubatches", [{"n_tokens": 100, "n_kv": 1280, "n_nodes": 1}]),
        "graph_nodes is (700,) in the table, (1,) in the raw file",
    ),
    "a broken rule": (
        timing("cache_n", 1023),
        "cache_n is 1024 in the table, 1023 in the raw file",
    ),
    "the kind of prefix": (
        in_prefix("kind", "state"),
        "error is None in the table, \"prefix kind is 'state', not 'fake'\" in the raw file",
    ),
    "new tokens of the other measurements": (
        lambda record: (
            timing("prompt_n", 99)(record),
            in_prefix("ubatches", [{"n_tokens": 99, "n_kv": 1280, "n_nodes": 700}])(record),
        ),
        "prompt_n is 100 in the table, 99 in the raw file",
    ),
    "a whole other load": (
        lambda record: record.update(
            load={"other_cores": 0.5, "stolen_cores": 0.0, "throttled": 0}
        ),
        "other_cores is 0.1 in the table, 0.5 in the raw file",
    ),
    "half a load": (lambda record: record.update(load={}), "its load is not what a run keeps"),
    "no load": (lambda record: record.update(load=None), "its load is not what a run keeps"),
    "another task": (lambda record: record.update(task_id="z"), "its task_id is 'z', not 'a'"),
    "another round": (lambda record: record.update(round=0), "its round is 0, not 1"),
    "another variant": (
        lambda record: record.update(variant="control"),
        "its variant is 'control', not 'fake'",
    ),
    "a number as text": (
        timing("prompt_ms", "120.0"),
        "prompt_ms is 120.0 in the table, '120.0' in the raw file",
    ),
    "a list as timings": (
        lambda record: record["response"].update(timings=[]),
        "the server's response has no `timings`",
    ),
    "a list as prefix": (timing("prefix", [1]), "its answer gives no row: "),
    "no response": (lambda record: record.pop("response"), "it lacks response or wall_ms"),
    "no wall time": (lambda record: record.update(wall_ms=None), "it lacks response or wall_ms"),
    "another prompt": (
        lambda record: record["prompt"].update(sha256="0" * 64),
        "its prompt is not that of the step's other requests",
    ),
}


@pytest.mark.parametrize("kind", RAW_CHANGES)
def test_a_changed_raw_file_is_found(results: Path, kind: str) -> None:
    change, sentence = RAW_CHANGES[kind]
    rewrite(results, FAKE, change)
    assert sentence in refused(verify_raw.measurements, results)


def test_the_sentence_names_row_file_and_column(results: Path) -> None:
    rewrite(results, FAKE, timing("prompt_ms", 119.0))
    assert refused(verify_raw.measurements, results) == (
        f"{WHAT}prompt_ms is 120.0 in the table, 119.0 in the raw file"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is not JSON"),
        (b"[]", "the file holds no JSON object"),
        (b'{"round": 1, "round": 1}', "the file names 'round' twice in one object"),
        (b"\xff", "the file is not UTF-8"),
        (b"[" * 100_000, "the file is nested too deeply"),
    ],
)
def test_a_raw_file_that_is_something_else(results: Path, content: bytes, sentence: str) -> None:
    (results / "raw" / FAKE).write_bytes(content)
    assert f"raw/{FAKE}: {sentence}" in refused(verify_raw.measurements, results)


def test_a_huge_raw_file_is_not_read(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_raw, "MAX_RAW_BYTES", 10)
    assert "is too large for what it is to hold" in refused(verify_raw.measurements, results)


TABLE_CHANGES = {
    "UPDATE measurement SET prompt_ms = 119 WHERE raw = '$'": "prompt_ms is 119.0 in the table",
    "UPDATE measurement SET install_ms = 11 WHERE raw = '$'": "install_ms is 11.0 in the table",
    "UPDATE measurement SET n_kv = 1536 WHERE raw = '$'": "n_kv is 1536 in the table, 1280",
    "UPDATE measurement SET depth = 1025 WHERE raw = '$'": "depth is 1025 in the table, 1024",
    "UPDATE measurement SET ubatch_tokens = [50, 50] WHERE raw = '$'": (
        "ubatch_tokens is (50, 50) in the table, (100,) in the raw file"
    ),
    "UPDATE measurement SET fake_fill = 'zero' WHERE raw = '$'": "fake_fill is 'zero' in the table",
    "UPDATE measurement SET status = 'invalid', error = 'x' WHERE raw = '$'": (
        "error is 'x' in the table, None in the raw file (and 1 more)"
    ),
    "UPDATE measurement SET error = 'x' WHERE raw = '$'": "error is 'x' in the table, None in",
    "UPDATE measurement SET raw = '../x.json' WHERE raw = '$'": (
        f"a/1 fake round 1: raw is '../x.json', not {FAKE}"
    ),
    "UPDATE measurement SET raw = NULL WHERE raw = '$'": (
        "a/1 fake round 1: its status is ok, but it names no raw file"
    ),
    "UPDATE measurement SET raw = NULL, status = 'refused', error = 'x' WHERE raw = '$'": (
        "a/1 fake round 1: it names no raw file, but has cache_n, prompt_n, prompt_ms"
    ),
    "DELETE FROM measurement WHERE raw = '$'": f"raw/{FAKE} belongs to no row",
    "UPDATE measurement SET round = 7 WHERE raw = '$'": (
        f"a/1 fake round 7: raw is '{FAKE}', not 000001_fake_7.json"
    ),
    "INSERT INTO measurement BY NAME SELECT * EXCLUDE (prefill_ms, lm_prefill_ms) REPLACE "
    "(9 AS round, '000001_fake_9.json' AS raw) FROM measurement WHERE raw = '$'": (
        "raw/000001_fake_9.json: cannot be read: No such file"
    ),
    "UPDATE measurement SET task_id = 'z' WHERE raw = '$'": "z/1 is measured, but not in the trace",
}


@pytest.mark.parametrize("statement", TABLE_CHANGES)
def test_a_changed_row_is_found(results: Path, statement: str) -> None:
    change_database(results, statement.replace("$", FAKE))
    assert TABLE_CHANGES[statement] in refused(verify_raw.measurements, results)


def test_two_rows_with_each_others_times(results: Path) -> None:
    change_database(
        results,
        "UPDATE measurement SET prompt_ms = CASE round WHEN 0 THEN 120.0 ELSE 110.0 END "
        "WHERE task_id = 'a' AND step = 1 AND variant = 'fake' AND round IN (0, 1)",
    )
    assert refused(verify_raw.measurements, results) == (
        "a/1 fake round 0, raw/000001_fake_0.json: prompt_ms is 120.0 in the table, 110.0 in the "
        "raw file (and 1 more)"
    )


def test_a_raw_file_of_no_request(results: Path) -> None:
    (results / "raw" / "notes.json").write_text("{}")
    assert refused(verify_raw.measurements, results) == "raw/notes.json belongs to no row"


def test_what_disturbed_a_request_is_compared_where_it_was_kept(results: Path) -> None:
    load = {"other_cores": 0.1, "stolen_cores": 0.0, "throttled": 0}
    for path in sorted((results / "raw").glob("*_[0-9-]*.json")):
        rewrite(results, path.name, lambda record: record.update(load=load))
    said = told(verify_raw.measurements, results)
    assert said.endswith("raw files do not tell started_at, position_in_round")


def test_what_was_asked_for_while_the_machine_stood_still_does_not_count(results: Path) -> None:
    rewrite(results, FAKE, lambda record: record.update(paused_s=3.0))
    said = refused(verify_raw.measurements, results)
    assert "the machine or this program stood still for 3.0 s meanwhile" in said
    rewrite(results, FAKE, lambda record: record.update(paused_s="long"))
    assert "its answer gives no row" in refused(verify_raw.measurements, results)


def test_an_answer_without_timings_was_a_failure(results: Path) -> None:
    # The client keeps such an answer; the run goes on with another server.
    rewrite(results, FAKE, lambda record: record.update(response={}))
    change_database(
        results,
        f"DELETE FROM measurement WHERE raw = '{FAKE}'",
        "INSERT INTO measurement (run_id, task_id, step, variant, round, depth, status, error, "
        f"started_at) VALUES ('{RUN_ID}', 'a', 1, 'fake', 1, 1024, 'failed', 'lost', now())",
    )
    assert told(verify_raw.measurements, results).startswith("17 rows")


# --- arithmetic ---

ARITHMETIC_CHANGES = {
    "UPDATE measurement SET prompt_ms = 80 WHERE variant = 'arithmetic' AND step = 1": (
        "a/1 arithmetic: prompt_ms is 80.0, calibration and new tokens give 81.03515625"
    ),
    "UPDATE measurement SET prompt_n = 7 WHERE variant = 'arithmetic' AND step = 2": (
        "a/2 arithmetic: prompt_n is 7, calibration and new tokens give 200"
    ),
    "DELETE FROM measurement WHERE variant = 'arithmetic' AND step = 2": (
        "a/2 arithmetic: there is no row"
    ),
    "UPDATE measurement SET task_id = 'b' WHERE variant = 'arithmetic' AND step = 1": (
        "b/1 arithmetic: there is nothing to estimate it from (and 1 more)"
    ),
    "UPDATE measurement SET raw = 'x' WHERE variant = 'arithmetic' AND step = 1": (
        "a/1 arithmetic: raw is x, calibration and new tokens give None"
    ),
    "UPDATE calibration SET tps_median = 512 WHERE depth = 4096": (
        # 0.75 / 2048 + 0.25 / 512 s a token, a hundred tokens, and 20 ms of encoding
        "a/1 arithmetic: prompt_ms is 81.03515625, calibration and new tokens give 105.44921875"
    ),
    "DELETE FROM calibration": "a/1 arithmetic: there is nothing to estimate it from",
}


@pytest.mark.parametrize("statement", ARITHMETIC_CHANGES)
def test_a_changed_estimate_is_found(results: Path, statement: str) -> None:
    change_database(results, statement)
    assert ARITHMETIC_CHANGES[statement] in refused(verify_raw.arithmetic, results)


# --- experts ---


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "UPDATE expert SET distinct_experts = 8 WHERE variant = 'fake' AND layer = 1",
            "a/1 fake ubatch 0 layer 1: distinct_experts is 8, its raw file gives 7",
        ),
        (
            "DELETE FROM expert WHERE variant = 'restored' AND layer = 0",
            "a/1 restored ubatch 0 layer 0: distinct_experts is None, its raw file gives 6",
        ),
        (
            "UPDATE expert SET step = 2 WHERE layer = 0 AND variant = 'fake'",
            "a/2 fake ubatch 0 layer 0: distinct_experts is 5, its raw file gives None",
        ),
    ],
)
def test_a_changed_count_is_found(results: Path, statement: str, sentence: str) -> None:
    change_database(results, statement)
    assert sentence in refused(verify_raw.experts, results)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (timing("experts", [[6, 10]]), "layer 1: distinct_experts is 9, its raw file gives 10"),
        (timing("experts", []), "layer 0: distinct_experts is 6, its raw file gives None"),
        (timing("experts", [[6, 9], [1, 1]]), "distinct_experts is 6, its raw file gives None"),
        (timing("cache_n", 7), "distinct_experts is 6, its raw file gives None"),
        # Whole in itself, but not what the step's measurements have read.
        (
            lambda record: (
                in_prefix("n_kv", 1536)(record),
                in_prefix("ubatches", [{"n_tokens": 100, "n_kv": 1536, "n_nodes": 700}])(record),
            ),
            "distinct_experts is 6, its raw file gives None",
        ),
        (lambda record: record.update(step=2), "its step is 2, not 1"),
    ],
)
def test_a_changed_raw_count_is_found(
    results: Path, change: Callable[[Any], object], sentence: str
) -> None:
    rewrite(results, raw_name(SHALLOW, "restored", "experts"), change)
    assert sentence in refused(verify_raw.experts, results)


def test_a_count_without_its_raw_file(results: Path) -> None:
    (results / "raw" / raw_name(SHALLOW, "fake", "experts")).unlink()
    assert "distinct_experts is 5, its raw file gives None" in refused(verify_raw.experts, results)


def test_a_raw_count_that_has_no_rows(results: Path) -> None:
    name = raw_name(SHALLOW, "fake", "experts")
    content = (results / "raw" / name).read_bytes()
    (results / "raw" / raw_name(DEEP, "fake", "experts")).write_bytes(content)
    assert "its task_id" not in refused(verify_raw.experts, results)


# --- calibration ---


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "UPDATE calibration SET tps_median = 2049 WHERE depth = 0",
            "depth 0, chunk 512: the table has ",
        ),
        (
            "UPDATE calibration SET tps_samples = [1.0, 2.0, 3.0] WHERE depth = 4096",
            "depth 4,096, chunk 512: the table has [1.0, 2.0, 3.0] tokens per second, "
            "raw/llama-bench.log gives [1024.0, 1024.0, 1024.0]",
        ),
        (
            "DELETE FROM calibration WHERE depth = 0",
            "depth 0, chunk 512: the table has None tokens per second, raw/llama-bench.log gives ["
            "2048.0, ",
        ),
        (
            "UPDATE calibration SET chunk = 256 WHERE depth = 0",
            "depth 0, chunk 256: the table has [2048.0, ",
        ),
    ],
)
def test_a_changed_throughput_is_found(results: Path, statement: str, sentence: str) -> None:
    change_database(results, statement)
    assert sentence in refused(verify_raw.calibration, results)


def test_a_process_that_ran_again_counts(results: Path) -> None:
    log = results / "raw" / "llama-bench.log"
    again = b'$ llama-bench -d 0\n[\n  {"n_prompt": 512, "n_depth": 0, "samples_ns": [1000]}\n]\n'
    log.write_bytes(again + b"$ llama-bench -d 0\nout of memory\n" + log.read_bytes())
    assert told(verify_raw.calibration, results).startswith("2 throughputs")
    log.write_bytes(log.read_bytes() + again)
    assert "gives [512000000.0]" in refused(verify_raw.calibration, results)


@pytest.mark.parametrize("text", [b"[\nx\n]\n", b"[\n1\n]\n", b'[\n{"n_prompt": 1}\n]\n'])
def test_a_log_that_is_something_else(results: Path, text: bytes) -> None:
    (results / "raw" / "llama-bench.log").write_bytes(text)
    assert "not its JSON" in refused(verify_raw.calibration, results)


def test_no_log(results: Path) -> None:
    (results / "raw" / "llama-bench.log").unlink()
    assert "raw/llama-bench.log: cannot be read" in refused(verify_raw.calibration, results)
    change_database(results, "DELETE FROM calibration")
    assert told(verify_raw.calibration, results) == "nothing was calibrated"

"""Azure LLM traces: requests of which nothing says what was cached."""

from __future__ import annotations

from pathlib import Path

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

REQUESTS = DATA / "azure_llm" / "requests.csv"
NO_CACHED_COUNT = "no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"
ROWS = [("azure-0", 0, 0, 700), ("azure-1", 0, 0, 1)]


def test_depth_is_refused(tmp_path: Path) -> None:
    assert str(refusal_of(REQUESTS, tmp_path)) == f"{REQUESTS}:2: {NO_CACHED_COUNT}"


def test_there_is_no_session_to_append_to(tmp_path: Path) -> None:
    assert str(refusal_of(REQUESTS, tmp_path, assume_append_only=True)) == (
        f"{REQUESTS}:2: no session field: no request before this one to append to\n"
        "  hint: pass --assume-cold, or name the field that tells sessions apart: --task-key=NAME"
    )


def test_rows_of_a_cold_cache_by_hand(tmp_path: Path) -> None:
    header, _ = trace_of(REQUESTS, tmp_path, assume_cold=True)
    assert rows_of(REQUESTS, tmp_path, assume_cold=True) == ROWS
    assert header["assumptions"] == [
        "the log has no session: each request is a task, named azure-<row of it, from 0>",
        "--assume-cold: calls without a cached-token count had nothing in the cache",
    ]
    assert header["warnings"] == []


def test_line_ends_of_windows_as_in_the_release(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(REQUESTS.read_bytes().replace(b"\n", b"\r\n"))
    assert rows_of(path, tmp_path, assume_cold=True) == ROWS


def test_images_are_told_of(tmp_path: Path) -> None:
    images = REQUESTS.with_name("images.csv")
    header, rows = trace_of(images, tmp_path, assume_cold=True)
    assert [row["new"] for row in rows] == [{"tokens": 800}, {"tokens": 1500}]
    (warning,) = header["warnings"]
    assert warning.startswith("requests with images: their sizes are not in the log; ")


def test_a_column_of_the_users_own_can_name_tasks(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "who,TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "x,2030-01-02T03:04:05Z,100,10\ny,2030-01-02T03:04:06Z,50,5\n"
        "x,2030-01-02T03:04:07Z,130,1\n",
        encoding="utf-8",
    )
    assert rows_of(path, tmp_path, assume_append_only=True, task_key="who") == [
        ("x", 0, 0, 100),
        ("y", 0, 0, 50),
        ("x", 1, 110, 20),
    ]
    wrong = refusal_of(path, tmp_path, assume_cold=True, task_key="whom")
    assert str(wrong) == f"{path}:2: no field whom"


@pytest.mark.parametrize("name", bad_names("azure_llm"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("azure_llm", name, tmp_path, monkeypatch)


@needs_shared
@pytest.mark.parametrize(
    ("name", "number", "first"),
    [
        ("AzureLLMInferenceTrace_code_first60", 60, 4808),
        ("AzureLLMInferenceTrace_conv_first60", 60, 374),
        ("AzureLMMInferenceTrace_multimodal_10rows", 10, 770),
    ],
)
def test_the_samples_are_refused_or_cold(
    name: str, number: int, first: int, tmp_path: Path
) -> None:
    path = SHARED / "azure_llm" / f"{name}.csv"
    assert str(refusal_of(path, tmp_path)) == f"{path}:2: {NO_CACHED_COUNT}"
    rows = rows_of(path, tmp_path, assume_cold=True)
    assert len(rows) == number
    assert rows[0] == ("azure-0", 0, 0, first)
    assert {row[2] for row in rows} == {0}

"""BurstGPT: sessions of requests, of which nothing says what was cached."""

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

FOLDER = DATA / "burstgpt"
NO_CACHED_COUNT = "no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"


@pytest.mark.parametrize(
    ("name", "line"), [("version1.csv", 2), ("version3.csv", 2), ("converted.jsonl", 1)]
)
def test_depth_is_refused(name: str, line: int, tmp_path: Path) -> None:
    path = FOLDER / name
    assert str(refusal_of(path, tmp_path)) == f"{path}:{line}: {NO_CACHED_COUNT}"


def test_version_1_by_hand(tmp_path: Path) -> None:
    path = FOLDER / "version1.csv"
    header, _ = trace_of(path, tmp_path, assume_cold=True)
    assert rows_of(path, tmp_path, assume_cold=True) == [
        ("burstgpt-0", 0, 0, 200),
        ("burstgpt-3", 0, 0, 310),
    ]
    assert header["dropped"] == {"failed requests (0 tokens)": 2}
    assert header["tokenizer"] == "ChatGPT, GPT-4"
    refusal = refusal_of(path, tmp_path, assume_append_only=True)
    assert str(refusal).startswith(f"{path}:2: no session field: ")


def test_version_3_by_hand(tmp_path: Path) -> None:
    path = FOLDER / "version3.csv"
    header, _ = trace_of(path, tmp_path, assume_append_only=True)
    assert rows_of(path, tmp_path, assume_append_only=True) == [
        ("aa", 0, 0, 100),
        ("burstgpt-1", 0, 0, 40),
        ("bb", 0, 0, 60),
        ("aa", 1, 120, 30),  # the failed request before it does not count
        ("aa", 2, 164, 1),  # 150 + 15 = 165 = T
    ]
    assert header["dropped"] == {"failed requests (0 tokens)": 1}
    assert header["assumptions"][:2] == [
        "--assume-append-only: calls without a cached-token count had the whole previous prompt "
        "and answer of their task in the cache",
        "requests with an empty session id (API log) are alone: each is a task, named "
        "burstgpt-<row of it, from 0>",
    ]
    cold = rows_of(path, tmp_path, assume_cold=True)
    assert [row[2] for row in cold] == [0] * 5
    assert [row[0] for row in cold] == ["aa", "burstgpt-1", "bb", "aa", "aa"]


def test_the_converted_log_by_hand(tmp_path: Path) -> None:
    assert rows_of(FOLDER / "converted.jsonl", tmp_path, assume_append_only=True) == [
        ("aa", 0, 0, 100),
        ("aa", 1, 120, 10),
        ("bb", 0, 0, 77),
        ("aa", 2, 135, 5),
    ]


@pytest.mark.parametrize("name", bad_names("burstgpt"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("burstgpt", name, tmp_path, monkeypatch)


@needs_shared
def test_the_samples_are_refused_or_append_only(tmp_path: Path) -> None:
    path = SHARED / "burstgpt" / "BurstGPT_3_converted_first29.jsonl"
    assert str(refusal_of(path, tmp_path)) == f"{path}:1: {NO_CACHED_COUNT}"
    refusal = refusal_of(path, tmp_path, assume_append_only=True)
    assert f"{refusal.where}: {refusal.what}" == (
        f"{path}:12: the previous prompt and answer, 1325 + 152 = 1477 tokens, are more than this "
        "prompt's 1221: the history was cut"
    )
    first = tmp_path / "first.jsonl"
    first.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:11]))
    rows = rows_of(first, tmp_path, assume_append_only=True)
    assert [row[1:] for row in rows if row[0].startswith("8219")] == [
        (0, 0, 15),
        (1, 133, 14),
        (2, 272, 19),
    ]
    assert rows[6] == ("8b74c7d8-1643-4bba-8c69-91cb4548c506", 1, 1113, 23)


@needs_shared
@pytest.mark.parametrize(
    ("name", "first"), [("BurstGPT_1_first3", 472), ("BurstGPT_3_first4", 906)]
)
def test_the_csv_samples_are_refused_or_cold(name: str, first: int, tmp_path: Path) -> None:
    path = SHARED / "burstgpt" / f"{name}.csv"
    assert str(refusal_of(path, tmp_path)) == f"{path}:2: {NO_CACHED_COUNT}"
    assert rows_of(path, tmp_path, assume_cold=True)[0][1:] == (0, 0, first)

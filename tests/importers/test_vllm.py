"""vLLM's request records: prefill times, and nothing of what was cached."""

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

REQUESTS = DATA / "vllm" / "requests.jsonl"
NO_CACHED_COUNT = "no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"


def test_depth_is_refused(tmp_path: Path) -> None:
    assert str(refusal_of(REQUESTS, tmp_path)) == f"{REQUESTS}:1: {NO_CACHED_COUNT}"
    append_only = refusal_of(REQUESTS, tmp_path, assume_append_only=True)
    assert str(append_only).startswith(f"{REQUESTS}:1: no session field: ")


def test_rows_of_a_cold_cache_by_hand(tmp_path: Path) -> None:
    header, _ = trace_of(REQUESTS, tmp_path, assume_cold=True)
    assert rows_of(REQUESTS, tmp_path, assume_cold=True) == [
        ("vllm-0", 0, 0, 500, {"prefill_s": 0.5}),
        ("vllm-1", 0, 0, 200, {"prefill_s": 0.25}),
        ("vllm-2", 0, 0, 90, {"prefill_s": 0.125}),
        ("vllm-3", 0, 0, 80),  # no first token
    ]
    (warning,) = header["warnings"]
    assert "requests with the same time of the first token were in one batch" in warning


def test_requests_on_their_own_are_not_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(REQUESTS.read_bytes().splitlines(keepends=True)[1:]))
    header, _ = trace_of(path, tmp_path, assume_cold=True)
    assert header["warnings"] == []


@pytest.mark.parametrize("name", bad_names("vllm"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("vllm", name, tmp_path, monkeypatch)


@needs_shared
def test_the_sample_is_refused_or_cold(tmp_path: Path) -> None:
    path = SHARED / "vllm_requests" / "rtx4090_llama31_8b_first20.jsonl"
    assert str(refusal_of(path, tmp_path)) == f"{path}:1: {NO_CACHED_COUNT}"
    header, rows = trace_of(path, tmp_path, assume_cold=True)
    assert len(rows) == 20
    assert (rows[0]["depth"], rows[0]["new"]) == (0, {"tokens": 2358})
    assert rows[0]["baseline"]["prefill_s"] == pytest.approx(0.689414, abs=5e-7)
    assert len(header["warnings"]) == 1  # requests 0 and 1 share their first token's time

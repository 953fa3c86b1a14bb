"""GitHub Copilot's traces of 2026: calls in turns in sessions, with cached counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.importers.base import PROBE_BYTES, Source
from experiment.importers.copilot import IMPORTER
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

SESSIONS = DATA / "copilot" / "sessions.jsonl"


def test_rows_by_hand(tmp_path: Path) -> None:
    header, _ = trace_of(SESSIONS, tmp_path)
    assert rows_of(SESSIONS, tmp_path) == [
        ("s1", 0, 0, 3000, {"exec_s": 1.2505}),  # its two tools overlap: the batch's own time
        ("s1", 1, 3000, 500, {"exec_s": 0.3}),  # two batches, one after the other
        ("s1", 2, 1999, 1),  # all of 2000 cached
        ("s2", 0, 128, 772),  # the batch's time is not known
        ("s1", 3, 2000, 100),  # the session goes on the next day
    ]
    assert header["tokenizer"] == "Model A, Model B"
    assert header["dropped"] == {"calls that did not succeed and have no token counts": 1}


def test_a_session_longer_than_what_is_probed_is_recognised(tmp_path: Path) -> None:
    session = json.loads(SESSIONS.read_bytes().splitlines()[0])
    session["turns"][0]["llm_calls"][0]["message_metadata"] *= PROBE_BYTES // 50
    path = tmp_path / "log"
    path.write_text(json.dumps(session) + "\n", encoding="utf-8")
    assert path.stat().st_size > PROBE_BYTES
    assert (
        IMPORTER.recognise(Source.open(path)) == "JSON Lines with session_id and turns of llm_calls"
    )
    assert len(rows_of(path, tmp_path)) == 3


@pytest.mark.parametrize("name", bad_names("copilot"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("copilot", name, tmp_path, monkeypatch)


@needs_shared
def test_the_schema_is_no_data(tmp_path: Path) -> None:
    path = SHARED / "github_copilot_2026" / "schema.json"
    refusal = refusal_of(path, tmp_path)
    assert (refusal.where, refusal.what) == (
        str(path),
        "is the schema of the Copilot traces, with no data",
    )

"""Codex logs: a call for each event that tells of a new one, and how bad logs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.importing import DATA, SHARED, bad_names, check_bad, needs_shared
from tests.importers.log_rows import recognised_by, row, tasks_of

ROLLOUT = DATA / "codex" / "rollout.jsonl"
SAMPLE = SHARED / "codex" / "rollout.jsonl"


def test_each_new_running_total_is_a_call(tmp_path: Path) -> None:
    tasks, log = tasks_of(ROLLOUT, tmp_path)
    assert tasks == {
        "rollout-a": [
            row(0, 5000),  # told twice
            row(4992, 5400 - 4992),
            row(4992, 5400 - 4992),  # the same counts, but another call: the total went on
            row(768, 1000 - 768),  # after a compaction
            row(1023, 1),  # T = 1024, all of it cached
        ]
    }
    assert log.tokenizer == "gpt-5-codex"
    # One event repeats the call before it, one is the estimate after the compaction.
    assert log.dropped == {"token_count events that repeat the one before (no call)": 2}


@pytest.mark.parametrize("name", bad_names("codex"))
def test_bad_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bad("codex", name, tmp_path, monkeypatch)


def test_estimate_with_a_new_total_is_no_call(tmp_path: Path) -> None:
    lines = ROLLOUT.read_text(encoding="utf-8").splitlines()
    estimate = lines[9].replace('"input_tokens": 15800', '"input_tokens": 15801', 1)
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join([lines[0], estimate, lines[4]]) + "\n", encoding="utf-8")
    tasks, log = tasks_of(path, tmp_path)
    assert tasks == {"rollout-a": [row(0, 5000)]}
    assert log.dropped == {"token_count events of 0 input tokens (no call)": 1}


def test_is_recognised_by_its_records() -> None:
    assert recognised_by(ROLLOUT) == ["codex"]


@needs_shared
def test_sample_gives_the_rows_worked_out_by_hand(tmp_path: Path) -> None:
    assert recognised_by(SAMPLE) == ["codex"]
    tasks, log = tasks_of(SAMPLE, tmp_path)
    assert list(tasks) == ["01a7c9e4-6d12-7b3a-9f42-8c6d5e1a0b73"]
    (rows,) = tasks.values()
    assert len(rows) == 9
    assert rows[0] == row(6912, 2412)
    assert rows[3] == row(3456, 6696)
    assert rows[4] == row(10240, 10472 - 10240)
    assert rows[5] == row(9216, 1220)  # T = 10436 fell below the 10472 before it
    assert log.tokenizer == "gpt-5.4"
    assert (log.assumptions, log.warnings, log.dropped) == ([], [], {})

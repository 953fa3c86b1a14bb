"""Claude Code logs: calls put together from their records, and how bad logs are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.importers.base import Source
from experiment.importers.claude_code import IMPORTER
from experiment.importers.usage import MULTI_PASS
from tests.importers.importing import (
    BAD,
    DATA,
    SHARED,
    bad_names,
    check_bad,
    needs_shared,
    refusal_of,
)
from tests.importers.log_rows import recognised_by, row, tasks_of

SESSION = DATA / "claude_code" / "session.jsonl"
SAMPLE = SHARED / "claude_code" / "session.jsonl"


def assistant(message_id: str, read: int, written: int, computed: int) -> str:
    usage = {
        "input_tokens": computed,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": 9,
    }
    return json.dumps(
        {
            "type": "assistant",
            "sessionId": "s",
            "uuid": message_id,
            "parentUuid": None,
            "message": {"id": message_id, "model": "m", "usage": usage},
        }
    )


def test_records_of_one_message_are_one_call(tmp_path: Path) -> None:
    tasks, log = tasks_of(SESSION, tmp_path)
    assert tasks == {
        "session-a": [
            row(0, 1000 + 4),  # two records of msg_1
            row(1004, 300 + 2),
            row(200, 90 + 5),  # the history was compacted: depth falls, and stays so
        ],
        "session-a/sidechain-s1": [row(0, 500 + 3), row(500, 40 + 2)],
        "session-a/agent-a1": [row(700, 10)],
        # Its copy of session-a's msg_1 is not counted again.
        "session-b": [row(295, 4 + 1), row(299, 1)],  # T = 300, all of it cached
    }
    assert log.tokenizer == "claude-sonnet-4-5, claude-haiku-4-5"
    assert log.dropped == {"messages of Claude Code itself (no call of a model)": 1}
    assert log.warnings == []


def test_last_record_of_a_call_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{assistant('a', 0, 0, 0)}\n{assistant('a', 40, 7, 3)}\n", encoding="utf-8")
    tasks, log = tasks_of(path, tmp_path)
    assert tasks == {"s": [row(40, 10)]}
    assert log.warnings == [
        "records of one call disagree on its prompt's tokens; the last one counts"
    ]


@pytest.mark.parametrize(
    "told", [{"server_tool_use": {"web_search_requests": 2}}, {"iterations": [{}, {}]}]
)
def test_several_passes_in_one_usage_are_warned_of(told: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record = json.loads(assistant("a", 40, 7, 3))
    record["message"]["usage"] |= told
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    _, log = tasks_of(path, tmp_path)
    assert log.warnings == [MULTI_PASS]


def test_cold_is_an_assumption_of_the_user(tmp_path: Path) -> None:
    log = BAD / "claude_code" / "no-cached-count.jsonl"
    tasks, told = tasks_of(log, tmp_path, assume_cold=True)
    assert tasks == {"session-a": [row(0, 4 + 10)]}
    assert [sentence.split(":")[0] for sentence in told.assumptions] == ["--assume-cold"]


@pytest.mark.parametrize("name", bad_names("claude_code"))
def test_bad_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bad("claude_code", name, tmp_path, monkeypatch)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n", encoding="utf-8")
    assert refusal_of(path, tmp_path, format="claude_code").what == "the line is nested too deeply"


def test_is_recognised_by_its_records() -> None:
    assert recognised_by(SESSION) == ["claude_code"]
    seen = IMPORTER.recognise(Source.open(SESSION))
    assert seen == "records with sessionId and parentUuid, as Claude Code writes them"


@needs_shared
def test_sample_gives_the_rows_worked_out_by_hand(tmp_path: Path) -> None:
    assert recognised_by(SAMPLE) == ["claude_code"]
    tasks, log = tasks_of(SAMPLE, tmp_path)
    (rows,) = tasks.values()
    assert list(tasks) == ["2f8b1c4d-6a73-4e9b-91c0-5d7f3a8e2b46"]
    assert len(rows) == 10  # of 25 records
    assert rows[0] == row(27217, 2892 + 2163) == row(27217, 5055)
    assert rows[1] == row(29380, 6360)  # TraceLab's line 1 is the same call
    assert rows[6] == row(42874, 131 + 1896)
    assert log.tokenizer == "claude-opus-4-8"
    assert (log.assumptions, log.warnings, log.dropped) == ([], [], {})

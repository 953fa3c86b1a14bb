"""Usage records of model APIs: what each kind counts, whose task a record is, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiment.importers.base import Log
from experiment.importers.usage import MAY_BE_MULTI_PASS, MULTI_PASS, note_tokenizer
from tests.importers.importing import DATA, SHARED, bad_names, check_bad, needs_shared, refusal_of
from tests.importers.log_rows import recognised_by, row, tasks_of

FOLDER = DATA / "api_usage"
SAMPLES = SHARED / "api_usage"


def log_of(folder: Path, *records: object) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def chat(prompt: int, cached: int | None, **fields: object) -> dict[str, object]:
    usage = {"prompt_tokens": prompt, "completion_tokens": 10}
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"object": "chat.completion", "usage": {**usage, **details}, **fields}


def test_chat(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "chat.jsonl", tmp_path, task_key="task")
    assert tasks == {
        "build": [row(0, 900), row(896, 1000 - 896)],  # processing_ms is no prefill time
        "docs": [
            row(128, 272),  # DeepSeek's hit and miss
            row(511, 1),  # T = 512, all of it cached
            row(256, 600 - 256, prefill_s=0.0123456, decode_s=0.25),  # Groq
        ],
    }
    assert log.tokenizer == "gpt-4.1-mini, deepseek-chat, llama-3.3-70b"
    assert log.dropped == {"failed calls (an error, no usage)": 1}
    assert log.assumptions[0] == "records with the same task are one task (--task-key=task)"


def test_responses_in_one_document_with_a_pass_of_a_tool(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "responses.json", tmp_path)
    assert tasks == {"responses.json": [row(0, 2000), row(1920, 380), row(2176, 524)]}
    assert log.assumptions == ["each file is one task (no --task-key)"]
    assert log.warnings == [MULTI_PASS]


def test_anthropic_adds_three_counts(tmp_path: Path) -> None:
    path = FOLDER / "anthropic.jsonl"
    tasks, log = tasks_of(path, tmp_path, task_key="conversation.id")
    assert tasks == {
        "7": [
            row(0, 1500 + 20),
            row(1500, 30 + 12 + 5),  # written for five minutes, and for an hour
            row(1550, 2 + 1),
        ],
        "8": [row(1500, 200 + 6)],
    }
    assert log.warnings == [MULTI_PASS]  # two searches of the server's


def test_answer_without_tools_of_the_server_is_not_warned_of(tmp_path: Path) -> None:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}}
    answer = {"object": "response", "usage": usage}
    told = {**answer, "output": [{"type": "message"}, {"type": "function_call"}]}
    assert tasks_of(log_of(tmp_path, told), tmp_path)[1].warnings == []
    _, log = tasks_of(log_of(tmp_path, answer), tmp_path)
    assert log.warnings == [MAY_BE_MULTI_PASS]


def test_one_response_is_a_file_of_its_own(tmp_path: Path) -> None:
    tasks, _ = tasks_of(FOLDER / "one-response.json", tmp_path)
    assert tasks == {"one-response.json": [row(64, 36)]}


def test_gzipped_document(tmp_path: Path) -> None:
    path = tmp_path / "responses.json.gz"
    path.write_bytes(gzip.compress((FOLDER / "responses.json").read_bytes()))
    assert recognised_by(path) == ["api_usage"]
    tasks, _ = tasks_of(path, tmp_path)
    assert len(tasks["responses.json.gz"]) == 3
    path.write_bytes(path.read_bytes()[:60])
    error = refusal_of(path, tmp_path, format="api_usage")
    assert error.what.startswith("is a damaged gzip file: ")


def test_append_only_counts_on_from_the_call_before(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat(100, None), chat(150, None), chat(155, None))
    error = refusal_of(path, tmp_path, assume_append_only=True)
    assert error.where == f"{path}:3"  # 150 + 10 > 155
    path = log_of(tmp_path, chat(100, None), chat(150, None), chat(170, 128))
    tasks, _ = tasks_of(path, tmp_path, assume_append_only=True)
    assert tasks == {"log.jsonl": [row(0, 100), row(110, 40), row(128, 42)]}


def test_anthropic_before_it_had_a_cache(tmp_path: Path) -> None:
    path = log_of(tmp_path, {"type": "message", "usage": {"input_tokens": 50, "output_tokens": 2}})
    assert refusal_of(path, tmp_path).what == "no cached-token field"
    tasks, _ = tasks_of(path, tmp_path, assume_cold=True)
    assert tasks == {"log.jsonl": [row(0, 50)]}


def test_task_key_names_a_field_of_each_record(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat(9, 4, meta={"run": 1}), chat(9, 4, meta={"run": {}}), chat(9, 4))
    error = refusal_of(path, tmp_path, task_key="meta.run")
    assert str(error) == f"{path}:2: meta.run: an object names no task"
    path = log_of(tmp_path, chat(9, 4, meta={"run": "a"}), chat(9, 4))
    error = refusal_of(path, tmp_path, task_key="meta.run")
    assert (error.what, error.where) == ("no field meta.run", f"{path}:2")
    assert error.hint == "--task-key names a field that every record has"


@pytest.mark.parametrize("name", bad_names("api_usage"))
def test_bad_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bad("api_usage", name, tmp_path, monkeypatch)


def test_header_lists_a_few_models() -> None:
    log = Log()
    for number in range(30):
        note_tokenizer(log, f"m{number}")
    note_tokenizer(log, "m3")
    assert log.tokenizer == "m0, m1, m2, m3, m4, m5, m6, m7, …"


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_is_recognised_by_its_usage(path: Path) -> None:
    assert recognised_by(path) == ["api_usage"]


def test_array_longer_than_what_is_looked_at_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([chat(9, 4, text="x" * 100)] * 20_000, indent=1), encoding="utf-8")
    assert recognised_by(path) == ["api_usage"]


@needs_shared
def test_chat_sample(tmp_path: Path) -> None:
    path = SAMPLES / "openai_chat_usage.jsonl"
    assert recognised_by(path) == ["api_usage"]
    error = refusal_of(path, tmp_path)
    assert error.where == f"{path}:3"
    assert error.hint == "pass --task-key=session_id, or one file per task"

    error = refusal_of(path, tmp_path, task_key="session_id")
    assert (error.what, error.where) == ("no cached-token field", f"{path}:8")  # groq-tool 0
    assert error.hint == "pass --assume-cold, or --assume-append-only"

    tasks, _ = tasks_of(path, tmp_path, task_key="session_id", assume_cold=True)
    assert tasks["openai-chat-prompt-cache"] == [row(0, 4020), row(4012, 8)]
    assert tasks["deepseek-tool-run"] == [row(512, 51), row(0, 875), row(896, 80)]
    assert tasks["groq-tool"] == [
        row(0, 301, prefill_s=0.014400533, decode_s=0.110362968),  # by the assumption
        row(256, 80, prefill_s=0.56585145, decode_s=0.574329735),
    ]
    assert sum(map(len, tasks.values())) == 11


@needs_shared
def test_responses_sample(tmp_path: Path) -> None:
    path = SAMPLES / "openai_responses_usage.jsonl"
    assert recognised_by(path) == ["api_usage"]
    tasks, log = tasks_of(path, tmp_path, task_key="session_id")
    assert tasks == {
        "openai-responses-prompt-cache": [row(0, 4020), row(4012, 8)],
        "openai-responses-code-image": [row(1920, 2973 - 1920), row(1792, 4614 - 1792)],
        "openai-responses-websearch": [row(8448, 9299 - 8448), row(8576, 9506 - 8576)],
    }
    assert log.warnings == [MAY_BE_MULTI_PASS]


@needs_shared
def test_anthropic_sample(tmp_path: Path) -> None:
    path = SAMPLES / "anthropic_usage.jsonl"
    assert recognised_by(path) == ["api_usage"]
    tasks, log = tasks_of(path, tmp_path, task_key="session_id")
    assert tasks["anthropic-code-exec-files"] == [row(4332, 4513 + 10), row(9134, 4 + 237)]
    assert tasks["anthropic-code-exec-files"][1] == row(9134, 241)
    assert tasks["anthropic-cache-two-turns"] == [row(1111, 3), row(1111, 421)]
    assert tasks["anthropic-inline-system"] == [row(0, 1592), row(1590, 2)]
    assert log.warnings == [MAY_BE_MULTI_PASS]  # code was run in one of them

"""OpenTelemetry GenAI spans: what input tokens mean, and how bad exports are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

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

FOLDER = DATA / "otel_genai"
SAMPLES = SHARED / "otel_genai"

AMBIGUOUS = (
    "gen_ai.usage.input_tokens may include the cached tokens or not: provider anthropic counts "
    "without them, the convention with them"
)


def test_convention_includes_cached_tokens(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "inclusive.json", tmp_path)
    assert tasks == {
        "c1": [row(0, 1000), row(1152, 1400 - 1152)],  # by their start, not as they stand
        "a1b2": [row(299, 1)],  # no conversation: the trace's id; T = 300, all of it cached
    }
    assert log.dropped == {
        "spans of operations other than chat (invoke_agent repeats their totals)": 1,
        "spans without gen_ai.operation.name (no call of a model)": 1,
        "failed calls (an error, no usage)": 1,
    }
    assert log.assumptions[0] == "input tokens include cached ones, as the convention says"
    assert log.tokenizer == "gpt-5-mini"


def test_more_cached_than_input_tokens_show_an_exclusive_exporter(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "exclusive.jsonl", tmp_path)
    assert tasks == {
        "c9": [
            row(800, 2 + 100),
            row(900, 3 + 70),
            row(0, 40),  # nothing cached, nothing written: both meanings are the same
        ]
    }
    assert log.assumptions == [
        "input tokens exclude cached ones: a call has fewer input than cached tokens"
    ]


def test_anthropic_needs_the_option(tmp_path: Path) -> None:
    path = FOLDER / "ambiguous.json"
    assert refusal_of(path, tmp_path).what == AMBIGUOUS
    tasks, log = tasks_of(path, tmp_path, input_tokens="inclusive")
    assert tasks == {"c1": [row(600, 400)]}
    assert log.assumptions == ["--input-tokens=inclusive: input tokens include cached ones"]
    tasks, log = tasks_of(path, tmp_path, input_tokens="exclusive")
    assert tasks == {"c1": [row(600, 1000 + 150)]}
    assert log.assumptions == ["--input-tokens=exclusive: input tokens exclude cached ones"]


def test_inclusive_is_refuted_by_more_cached_than_input_tokens(tmp_path: Path) -> None:
    path = FOLDER / "exclusive.jsonl"
    error = refusal_of(path, tmp_path, input_tokens="inclusive")
    assert error.where == f"{path}:1"
    assert error.what == (
        "900 cached tokens are more than the 3 input tokens, which do not include them as "
        "--input-tokens=inclusive says"
    )


@pytest.mark.parametrize("name", bad_names("otel_genai"))
def test_bad_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bad("otel_genai", name, tmp_path, monkeypatch)


def test_span_is_found_in_its_document(tmp_path: Path) -> None:
    path = BAD / "otel_genai" / "mixed.json"
    error = refusal_of(path, tmp_path)
    line = int((error.where or "").rpartition(":")[2])
    text = path.read_text(encoding="utf-8").splitlines()
    assert text[line - 1].strip() == '"spanId": "0000000000000002",'


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_is_recognised_by_resource_spans(path: Path) -> None:
    assert recognised_by(path) == ["otel_genai"]


@needs_shared
def test_inclusive_sample(tmp_path: Path) -> None:
    path = SAMPLES / "constructed_otlp_inclusive.json"
    assert recognised_by(path) == ["otel_genai"]
    error = refusal_of(path, tmp_path)
    assert error.what == AMBIGUOUS
    assert error.hint == "pass --input-tokens=inclusive, or --input-tokens=exclusive"
    tasks, _ = tasks_of(path, tmp_path, input_tokens="inclusive")
    assert_sample(tasks)


@needs_shared
def test_exclusive_sample(tmp_path: Path) -> None:
    path = SAMPLES / "constructed_otlp_anthropic_exclusive_variant.json"
    assert recognised_by(path) == ["otel_genai"]
    assert_sample(tasks_of(path, tmp_path)[0])
    assert_sample(tasks_of(path, tmp_path, input_tokens="exclusive")[0])


def assert_sample(tasks: dict[str, list[dict[str, object]]]) -> None:
    assert tasks == {
        "claude:92ee5b8a-429c-e80b-5db6-5381512f4697": [
            row(27217, 5055),
            row(29380, 6360),  # 35740 - 29380, and 2 + 6358
            row(35738, 2854),
            row(38590, 2541),
        ]
    }

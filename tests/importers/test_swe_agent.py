"""SWE-agent: the two forms of messages, the history, and what cannot be split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiment.importers.base import Source
from experiment.importers.chat import TOOL_DEFINITIONS
from experiment.importers.registry import claims
from experiment.importers.swe_agent import HISTORY, IMPORTER
from tests.importers.characters import Characters, check_bad, counted_trace, read
from tests.importers.importing import DATA, SHARED, bad_names, needs_shared, refusal_of

MINE = DATA / "swe_agent"


@pytest.mark.parametrize("name", ["messages", "query", "history"])
def test_recognised_by_this_importer_only(name: str) -> None:
    (claim,) = claims(Source.open(MINE / f"{name}.traj"))
    assert claim[0].name == "swe_agent"


@pytest.mark.parametrize("name", ["messages", "query"])
def test_both_forms_by_hand(name: str, tmp_path: Path) -> None:
    header, rows = counted_trace(MINE / f"{name}.traj", tmp_path)
    # System. 7, Fix it, please. 15, I list. 7, a.py b.py 9
    assert [(row["task_id"], row["depth"], row["new"]["text"]) for row in rows] == [
        (name, 0, "System.Fix it, please."),
        (name, 29, "a.py\nb.py"),
    ]
    exec_s: list[Any] = [{"exec_s": 0.25}, {"exec_s": 1.5} if name == "messages" else None]
    assert [row.get("baseline") for row in rows] == exec_s
    assert header["tokenizer"] == "characters"
    assert TOOL_DEFINITIONS in header["assumptions"]
    calls, _ = read(IMPORTER, MINE / f"{name}.traj", tmp_path, Characters())
    assert [(call.total, call.output) for call in calls] == [(22, 7), (38, 9)]


def test_the_history_where_it_is_said_to_be_what_was_sent(tmp_path: Path) -> None:
    header, rows = counted_trace(MINE / "history.traj", tmp_path, assume_append_only=True)
    assert [(row["depth"], row["new"]["text"]) for row in rows] == [
        (0, "System.Look:Shown.Fix it, please."),
        (40, "a.py\nb.py"),
    ]
    assert HISTORY in header["assumptions"]


def test_tool_calls_reach_the_counter(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []

    class Listening(Characters):
        def answered(self, prompt: Any, messages: Any, answer: Any) -> Any:
            sent.append(answer)
            return super().answered(prompt, messages, answer)

    for name in ("messages", "query"):
        read(IMPORTER, MINE / f"{name}.traj", tmp_path, Listening())
    call = {
        "type": "function",
        "id": "c1",
        "function": {"name": "bash", "arguments": '{"command":"ls"}'},
    }
    assert [answer.get("tool_calls") for answer in sent] == [[call], None, [call], None]


def test_messages_without_the_step_s_own(tmp_path: Path) -> None:
    log = json.loads((MINE / "messages.traj").read_text())
    for step in log["trajectory"]:
        step["messages"] = step["messages"][:-2]
    # Here the second step gives the answer of the first again.
    log["trajectory"][1]["response"] = "I list."
    path = tmp_path / "log.traj"
    path.write_text(json.dumps(log))
    calls, _ = read(IMPORTER, path, tmp_path, Characters())
    assert [(call.depth, call.new_text) for call in calls] == [
        (0, "System.Fix it, please."),
        (29, "a.py\nb.py"),
    ]


@pytest.mark.parametrize("name", bad_names("swe_agent"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("swe_agent", name, tmp_path, monkeypatch)


@needs_shared
def test_the_sample_with_messages(tmp_path: Path) -> None:
    path = SHARED / "swe_agent" / "marshmallow-1867_first4steps_messages.traj"
    _, rows = counted_trace(path, tmp_path)
    assert len(rows) == 4
    assert rows[0]["depth"] == 0
    assert len(rows[0]["new"]["text"]) == 1786 + 3810 == 5596
    assert rows[0]["baseline"] == {"exec_s": 0.11605553800109192}
    assert rows[1]["depth"] == 5596 + 171  # the response is in the cache
    assert len(rows[1]["new"]["text"]) == 318
    assert rows[1]["baseline"] == {"exec_s": 0.13759507600116194}
    calls, _ = read(IMPORTER, path, tmp_path, Characters())
    for call in calls:
        assert call.total == (call.depth or 0) + len(call.new_text or "")


@needs_shared
def test_the_samples_without_a_model(tmp_path: Path) -> None:
    path = SHARED / "swe_agent" / "marshmallow-1867_first4steps_messages.traj"
    assert refusal_of(path, tmp_path).what == "a SWE-agent trajectory has no token counts"
    path = SHARED / "swe_agent" / "swe-agent-test-repo_5steps.traj"
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}:4: a SWE-agent trajectory has no token counts by step: "
        "info.model_stats.tokens_sent, 7141 over 5 calls, is the whole run's and is not split\n"
        "  hint: name the model whose tokenizer and chat template count them: "
        "--model=NAME or FILE"
    )


@needs_shared
def test_the_sample_without_messages(tmp_path: Path) -> None:
    path = SHARED / "swe_agent" / "swe-agent-test-repo_5steps.traj"
    with pytest.raises(Exception, match="7141 over 5 calls, is not split") as caught:
        read(IMPORTER, path, tmp_path, Characters())
    assert "--assume-append-only" in str(caught.value)
    calls, _ = read(IMPORTER, path, tmp_path, Characters(), assume_append_only=True)
    assert len(calls) == 5

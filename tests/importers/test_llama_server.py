"""llama-server's timings and logs: depth from what each version's lines say, and refusals."""

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

FOLDER = DATA / "llama_server"
SAMPLES = SHARED / "llama_server"


def test_interleaved_slots(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "two_slots.log", tmp_path)
    assert tasks == {
        "two_slots.log/slot-0": [
            row(0, 3000, prefill_s=1.50025, decode_s=0.4),  # [2048, end) is the second chunk's
            row(3019, 81, prefill_s=0.06075, decode_s=2.0),
            row(2000, 1300, prefill_s=0.65, decode_s=0.01),  # n_past 3199: a checkpoint's 2000
            row(3300, 100),  # the log ends before the answer
        ],
        "two_slots.log/slot-1": [
            row(0, 500, prefill_s=0.2505, decode_s=0.1),
            row(0, 560, prefill_s=0.28, decode_s=0.05),  # n_past 519, but computed anew
            row(700, 60, prefill_s=0.033, decode_s=0.0),  # 700 tokens at 520 positions
        ],
    }
    assert log.tokenizer == "Tiny Agent 1B"
    assert log.assumptions == [
        "each slot of the server served one conversation, as far as its log shows"
    ]


def test_new_prefix_and_several_servers(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "new_prefix.log", tmp_path)
    assert tasks == {
        "new_prefix.log/4711/slot-0": [
            row(0, 2000, prefill_s=0.8005, decode_s=0.3),  # T = 2010 - 11 + 1 = 2000
            row(2010, 150, prefill_s=0.075, decode_s=0.6),  # T = 2180 - 21 + 1 = 2160
        ],
        "new_prefix.log/4711/slot-1": [row(0, 1000, prefill_s=0.5, decode_s=0.01)],
        "new_prefix.log/4711/start-2/slot-0": [row(0, 2200, prefill_s=0.81, decode_s=0.009)],
        # The memory could not be cut at 512 and was cleared.
        "new_prefix.log/53409/slot-0": [row(0, 900, prefill_s=0.41, decode_s=0.02)],
    }
    assert log.dropped == {
        "children of a request for several answers (their prompt is the request's)": 1,
        "requests that ended before their prompt was processed": 1,
    }


def test_older_wording(tmp_path: Path) -> None:
    tasks, _ = tasks_of(FOLDER / "older.log", tmp_path)
    assert tasks == {
        "older.log/slot-0": [
            row(0, 120, prefill_s=0.06, decode_s=0.03),
            row(123, 2000 - 123),  # selected by LRU, yet all of its context is kept
        ]
    }


def test_colours_of_a_terminal(tmp_path: Path) -> None:
    tasks, _ = tasks_of(FOLDER / "colours.log", tmp_path)
    assert tasks == {"colours.log/slot-0": [row(0, 10, prefill_s=0.001, decode_s=0.001)]}


def test_shared_slot_is_refused_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    path = FOLDER / "shared_slot.log"
    error = refusal_of(path, tmp_path)
    assert error.where == f"{path}:11"
    assert "several conversations share the slot" in error.what
    tasks, log = tasks_of(path, tmp_path, task_key="slot")
    assert [line["depth"] for line in tasks["shared_slot.log/slot-0"]] == [0, 121]
    assert log.assumptions == ["each slot of the server served one conversation (--task-key=slot)"]
    error = refusal_of(path, tmp_path, task_key="session")
    assert error.what == "a log of llama-server has no field 'session'"


def test_cold_stands_in_for_an_unknown_depth(tmp_path: Path) -> None:
    path = BAD / "llama_server" / "no-release.log"
    tasks, log = tasks_of(path, tmp_path, assume_cold=True)
    assert tasks == {"no-release.log/slot-0": [row(0, 30, prefill_s=0.01, decode_s=0.005)]}
    assert log.assumptions[1].startswith("--assume-cold: ")


def test_statement_within_a_quoted_prompt_is_none(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    statement = (FOLDER / "two_slots.log").read_text(encoding="utf-8").splitlines()[6]
    path.write_text(f'request: {{"prompt": "{statement}"}}\n', encoding="utf-8")
    assert recognised_by(path) == []
    assert refusal_of(path, tmp_path, format="llama_server").what == "holds no calls"


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"srv \xff\x00\n" + (FOLDER / "older.log").read_bytes())
    assert len(tasks_of(path, tmp_path)[0]["server.log/slot-0"]) == 2


def test_timings(tmp_path: Path) -> None:
    tasks, log = tasks_of(FOLDER / "timings.jsonl", tmp_path, task_key="agent")
    assert tasks == {
        "1": [
            row(0, 700, prefill_s=0.0125, decode_s=0.100125),
            row(703, 1, prefill_s=0.0125, decode_s=0.100125),
        ],
        "2": [row(0, 90, decode_s=0.100125)],  # prompt_ms is null: not known
    }
    assert log.dropped == {"failed calls (an error, no timings)": 1}
    assert log.tokenizer == "tiny"


def test_one_answer_as_a_document(tmp_path: Path) -> None:
    tasks, _ = tasks_of(FOLDER / "answer.json", tmp_path)
    assert tasks == {"answer.json": [row(36, 4, prefill_s=0.0125, decode_s=0.100125)]}


def test_total_stands_in_for_a_cached_count(tmp_path: Path) -> None:
    tasks, _ = tasks_of(FOLDER / "before_cache_n.jsonl", tmp_path)
    depths = [(line["depth"], line["new"]) for line in tasks["before_cache_n.jsonl"]]
    assert depths == [(0, {"tokens": 200}), (204, {"tokens": 30})]  # 200 - 200, 234 - 30


@pytest.mark.parametrize("name", bad_names("llama_server"))
def test_bad_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bad("llama_server", name, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_is_recognised_by_its_content(path: Path) -> None:
    assert recognised_by(path) == ["llama_server"]


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        "kon_issue4_full_reprefill_fragment.log",
        "kon_issue4_two_turns.log",
        "pr19408_forced_full_reprefill.log",
        "pr22929_checkpoint_rollback.log",
        "pr22929_new_prefix_format.log",
        "pr23269_chunked_prefill.log",
        "readme_timings_example.json",
    ],
)
def test_samples_are_recognised(name: str) -> None:
    assert recognised_by(SAMPLES / name) == ["llama_server"]


@needs_shared
def test_timings_sample(tmp_path: Path) -> None:
    tasks, _ = tasks_of(SAMPLES / "readme_timings_example.json", tmp_path)
    (rows,) = tasks.values()
    assert rows == [row(236, 1, prefill_s=0.030958, decode_s=0.661064)]


@needs_shared
def test_two_turns_sample(tmp_path: Path) -> None:
    tasks, _ = tasks_of(SAMPLES / "kon_issue4_two_turns.log", tmp_path)
    (rows,) = tasks.values()
    assert rows == [
        row(73355 - 64 + 1 - 922, 922, prefill_s=3.63418, decode_s=2.43991),
        row(73355, 73450 - 73355),
    ]
    assert rows[0]["depth"] == 72370
    assert rows[1]["new"] == {"tokens": 95}


@needs_shared
def test_forced_reprocessing_sample(tmp_path: Path) -> None:
    tasks, _ = tasks_of(SAMPLES / "pr19408_forced_full_reprefill.log", tmp_path)
    (rows,) = tasks.values()
    assert rows == [
        row(0, 400, prefill_s=2.31946, decode_s=0.0),  # T = 400 - 1 + 1
        row(0, 1084),
        row(0, 1360, prefill_s=5.09347, decode_s=0.31958),  # T = 1369 - 10 + 1
        row(0, 1371),  # task 135: n_past is 848
    ]


@needs_shared
def test_new_prefix_sample(tmp_path: Path) -> None:
    path = SAMPLES / "pr22929_new_prefix_format.log"
    error = refusal_of(path, tmp_path)
    assert error.where == f"{path}:1"
    assert error.what == (
        "task 22576 has no memory_seq_rm line of its beginning, no release line: its depth cannot "
        "be told"
    )
    second = tmp_path / "second.log"
    second.write_text(path.read_text(encoding="utf-8").split("...]\n")[1], encoding="utf-8")
    tasks, _ = tasks_of(second, tmp_path)
    # T = 80153 - 90 + 1 = 80064
    assert tasks == {
        "second.log/1001/slot-0": [row(0, 80064, prefill_s=36.81518, decode_s=1.82419)]
    }
    tasks, _ = tasks_of(path, tmp_path, assume_cold=True)
    assert tasks[f"{path.name}/1000/slot-0"] == [row(0, 2244, prefill_s=1.4819, decode_s=5.25771)]


@needs_shared
def test_chunked_sample(tmp_path: Path) -> None:
    tasks, _ = tasks_of(SAMPLES / "pr23269_chunked_prefill.log", tmp_path)
    (rows,) = tasks.values()
    assert rows == [row(0, 60, prefill_s=1.73985, decode_s=16.25619)]  # [56, end) is a chunk's


@needs_shared
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("kon_issue4_full_reprefill_fragment.log", 18653),
        ("pr22929_checkpoint_rollback.log", 26),
    ],
)
def test_fragments_are_refused(name: str, task: int, tmp_path: Path) -> None:
    error = refusal_of(SAMPLES / name, tmp_path)
    assert error.where == f"{SAMPLES / name}:1"
    assert error.what == (
        f"task {task} has no prompt eval line and no 'new prompt' line: its new tokens cannot be "
        "told"
    )

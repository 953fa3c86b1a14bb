"""From a call to a row: T = depth + new, what may be assumed, and the limits of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Log, Options
from experiment.importers.steps import APPEND_ONLY, COLD, MAX_TEXT_BYTES, Steps, clean_task_id

MAX = 2**31 - 1
CALL = Call(task_id="t", where="log:7", depth=30, total=100, output=5)


def steps(**options: Any) -> Steps:
    return Steps(Options(**options), Log())


def row(call: Call, **options: Any) -> dict[str, Any]:
    return steps(**options).finish(call)


def refusal(call: Call, **options: Any) -> str:
    with pytest.raises(TraceImportError) as caught:
        row(call, **options)
    return str(caught.value)


def test_a_call_becomes_a_row() -> None:
    call = replace(CALL, prefill_s=0.5, decode_s=2.0, exec_s=0.0)
    assert row(call) == {
        "task_id": "t",
        "step": 0,
        "depth": 30,
        "new": {"tokens": 70},
        "baseline": {"prefill_s": 0.5, "decode_s": 2.0, "exec_s": 0.0},
    }
    assert "baseline" not in row(CALL)


@given(depth=st.integers(0, MAX), new=st.integers(0, 1 << 20))
def test_depth_and_new_are_the_prompt(depth: int, new: int) -> None:
    total = depth + new
    if not 0 < total <= MAX:
        return
    made = row(replace(CALL, depth=depth, total=total))
    assert made["depth"] + made["new"]["tokens"] == total
    assert made["depth"] == (depth if new else depth - 1)


def test_a_prompt_that_is_cached_whole_computes_one_token_and_that_is_told() -> None:
    log = Log()
    made = Steps(Options(), log)
    assert made.finish(replace(CALL, depth=100))["new"] == {"tokens": 1}
    assert made.finish(replace(CALL, depth=99))["new"] == {"tokens": 1}
    made.close()
    (told,) = log.assumptions
    assert told.startswith("the whole prompt of T tokens was cached in 1 call: depth is T-1")


def test_steps_are_numbered_within_their_task_and_depth_may_fall() -> None:
    made = steps()
    calls = [("a", 50), ("b", 0), ("a", 10), ("b", 99), ("a", 60)]
    rows = [made.finish(replace(CALL, task_id=task, depth=depth)) for task, depth in calls]
    assert [(row["task_id"], row["step"], row["depth"]) for row in rows] == [
        ("a", 0, 50),
        ("b", 0, 0),
        ("a", 1, 10),
        ("b", 1, 99),
        ("a", 2, 60),
    ]
    assert (made.count, made.tasks) == (5, 2)


def test_no_cached_count_is_not_zero() -> None:
    assert refusal(replace(CALL, depth=None)) == (
        "log:7: no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"
    )
    assert row(replace(CALL, depth=0))["depth"] == 0


def test_a_cold_cache() -> None:
    log = Log()
    made = Steps(Options(assume_cold=True), log)
    made.finish(CALL)
    assert log.assumptions == []  # the call had a count
    assert made.finish(replace(CALL, depth=None))["new"] == {"tokens": 100}
    assert log.assumptions == [COLD]


def test_an_append_only_history() -> None:
    log = Log()
    made = Steps(Options(assume_append_only=True), log)
    call = replace(CALL, depth=None)
    other = replace(call, task_id="u")
    depths = [
        made.finish(step)["depth"]
        for step in (call, other, replace(call, total=105, output=1), replace(call, total=200))
    ]
    assert depths == [0, 0, 104, 106]  # 100 + 5 = T: one token is computed
    assert log.assumptions == [APPEND_ONLY]
    assert made.finish(replace(other, depth=7, total=90, output=3))["depth"] == 7  # it has a count
    assert made.finish(replace(other, total=95))["depth"] == 93


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (
            {"total": 104},
            "log:8: the previous prompt and answer, 100 + 5 = 105 tokens, are more than this "
            "prompt's 104: the history was cut\n  hint: --assume-append-only does not hold for "
            "this log; --assume-cold is the other assumption there is",
        ),
        ({"total": None}, "log:8: no prompt-token field"),
        ({"total": 0}, "log:8: a prompt of 0 tokens; a step computes at least one"),
    ],
)
def test_an_append_only_history_that_cannot_be(second: dict[str, Any], what: str) -> None:
    made = steps(assume_append_only=True)
    made.finish(replace(CALL, depth=None))
    with pytest.raises(TraceImportError) as caught:
        made.finish(replace(CALL, depth=None, where="log:8", **second))
    assert str(caught.value) == what


@pytest.mark.parametrize(
    ("first", "missing"),
    [({"output": None}, "output"), ({"total": None, "new_text": "x"}, "prompt")],
)
def test_an_append_only_history_needs_counts(first: dict[str, Any], missing: str) -> None:
    made = steps(assume_append_only=True)
    made.finish(replace(CALL, **first))
    with pytest.raises(TraceImportError, match=f"has no {missing}-token field"):
        made.finish(replace(CALL, depth=None, total=900))


def test_assumptions_that_contradict_each_other() -> None:
    with pytest.raises(TraceImportError, match="contradict each other"):
        steps(assume_cold=True, assume_append_only=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"total": None}, "no prompt-token field"),
        ({"total": 0, "depth": 0}, "a prompt of 0 tokens; a step computes at least one"),
        ({"depth": 101}, "101 cached tokens are more than the prompt's 100"),
        ({"depth": -1}, f"depth -1 is not 0 to {MAX}"),
        ({"total": MAX + 1}, f"prompt tokens {MAX + 1} is not 0 to {MAX}"),
        ({"output": -3}, f"output tokens -3 is not 0 to {MAX}"),
        (
            {"total": 2_000_000},
            "1999970 new tokens are more than the 1048576 a trace's row can hold",
        ),
        ({"task_id": ""}, "the task's name is empty"),
        ({"exec_s": -0.1}, "exec_s of -0.1 s cannot be"),
        ({"prefill_s": float("nan")}, "prefill_s of nan s cannot be"),
        ({"decode_s": float("inf")}, "decode_s of inf s cannot be"),
        ({"new_text": "a\0b"}, "the new text holds a NUL character"),
        ({"new_text": "\ud800"}, "the new text holds a lone surrogate (half of a UTF-16 pair)"),
    ],
)
def test_figures_that_cannot_be(change: dict[str, Any], what: str) -> None:
    assert refusal(replace(CALL, **change)) == f"log:7: {what}"


def test_a_text_as_long_as_a_trace_can_hold() -> None:
    fits = replace(CALL, total=None, new_text="x" * (MAX_TEXT_BYTES - 2))
    assert row(fits)["new"] == {"text": fits.new_text}
    long = replace(fits, new_text='"' * (MAX_TEXT_BYTES // 2))
    assert "a trace can hold" in refusal(long)


def test_a_duration_that_no_row_can_hold_is_left_out_and_counted() -> None:
    log = Log()
    made = Steps(Options(), log).finish(replace(CALL, exec_s=1_000_001, decode_s=1_000_000))
    assert made["baseline"] == {"decode_s": 1_000_000}
    assert log.dropped == {"exec_s of more than 1,000,000 s (the value, not the step)": 1}


def test_content_is_kept_instead_of_a_count() -> None:
    call = replace(CALL, total=None, new_text="Öffne\n", screenshot=Path("a.png"))
    assert steps().finish(call, "t-images/a.png")["new"] == {
        "text": "Öffne\n",
        "screenshot": "t-images/a.png",
    }
    only = replace(call, new_text=None)
    assert steps().finish(only, "t-images/a.png")["new"] == {"screenshot": "t-images/a.png"}
    counted = replace(call, total=100)
    made = steps().finish(counted, "t-images/a.png")
    assert (made["depth"], made["new"]["text"]) == (30, "Öffne\n")


def test_what_a_call_rests_on_is_written_down_once() -> None:
    log = Log()
    made = Steps(Options(), log)
    for _ in range(2):
        made.finish(replace(CALL, assumed="the sky is up"))
    assert log.assumptions == ["the sky is up"]


def test_tasks_of_one_name_in_two_files_stay_apart() -> None:
    log = Log()
    made = Steps(Options(), log)
    made.begin_file("a.jsonl")
    made.finish(CALL)
    made.begin_file("sub/b.jsonl")
    rows = [made.finish(CALL), made.finish(CALL), made.finish(replace(CALL, task_id="u"))]
    assert [(row["task_id"], row["step"]) for row in rows] == [
        ("t (sub/b.jsonl)", 0),
        ("t (sub/b.jsonl)", 1),
        ("u", 0),
    ]
    assert made.tasks == 3
    (warning,) = log.warnings
    assert "kept apart" in warning


def test_names_of_tasks_that_a_trace_cannot_hold() -> None:
    assert clean_task_id("x" * 200) == "x" * 200
    names = ["x" * 201, "x" * 202, "a\nb", "a\tb", "a\ud800b", "a\u0085b"]
    clean = [clean_task_id(name) for name in names]
    assert len(set(clean)) == len(names)
    assert all(len(name) <= 200 and name.isprintable() for name in clean)
    assert clean[2].startswith("a_b~")

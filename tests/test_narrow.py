from __future__ import annotations

from pathlib import Path

import pytest

from experiment.errors import SettingsError
from experiment.narrow import Memory, Reason, kind_of, merged, narrow, tell, within
from experiment.screenshot import Screenshot
from experiment.step_size import Sizes
from experiment.trace import Baseline, Step, Trace


def step(task: str, number: int, depth: int, new: int = 10, text: str | None = None) -> Step:
    tokens = None if text else new
    return Step(task, number, depth, "tokens", text, tokens, None, Baseline(), number + 1)


STEPS = (
    step("mail", 0, 100),
    step("mail", 1, 900),
    step("shop", 0, 50),
    step("mail", 2, 500),
    step("shop", 1, 2000),
)
TRACE = Trace(Path("log.jsonl"), STEPS, "0" * 64)


def keys(steps: tuple[Step, ...]) -> list[tuple[str, int]]:
    return [(step.task_id, step.step) for step in steps]


def test_nothing_asked_keeps_everything() -> None:
    made = narrow(TRACE)
    assert made.kept == STEPS
    assert made.left_out == {}


def test_each_reason_by_hand() -> None:
    made = narrow(TRACE, max_depth=600, limit=2, tasks=["mail", "shop"])
    assert keys(made.kept) == [("mail", 0), ("shop", 0)]
    assert {key: str(reason) for key, reason in made.left_out.items()} == {
        ("mail", 1): "--max-depth: deeper than 600 tokens",
        ("mail", 2): "--limit: behind the first 2 steps",
        ("shop", 1): "--max-depth: deeper than 600 tokens",
    }


def test_a_task_alone() -> None:
    made = narrow(TRACE, tasks=["shop"])
    assert keys(made.kept) == [("shop", 0), ("shop", 1)]
    assert str(made.left_out["mail", 1]) == "--task: another task than 'shop'"


def test_the_limit_counts_what_is_kept() -> None:
    # The first two of the task's steps, not those of the first two rows.
    assert keys(narrow(TRACE, limit=1, tasks=["shop"]).kept) == [("shop", 0)]
    assert keys(narrow(TRACE, limit=4).kept) == keys(STEPS)[:4]


def test_a_depth_at_the_bound_is_kept() -> None:
    assert keys(narrow(TRACE, max_depth=500).kept) == [("mail", 0), ("shop", 0), ("mail", 2)]
    shallow = Trace(TRACE.path, (step("a", 0, 0), step("a", 1, 1)), "")
    made = narrow(shallow, max_depth=0)
    assert keys(made.kept) == [("a", 0)]
    assert str(made.left_out["a", 1]) == "--max-depth: deeper than 0 tokens"


def test_no_step_is_left() -> None:
    with pytest.raises(SettingsError, match="--max-depth: no step is left") as caught:
        narrow(TRACE, max_depth=49)
    assert caught.value.hint == "give at least --max-depth=50"
    with pytest.raises(SettingsError) as caught:
        narrow(TRACE, max_depth=60, tasks=["mail"])
    assert caught.value.hint == "give at least --max-depth=100"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max_depth": -1}, "--max-depth: must be a whole number from 0, not -1"),
        ({"limit": 0}, "--limit: must be a whole number from 1, not 0"),
    ],
)
def test_values_out_of_range(flags: dict[str, int], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        narrow(TRACE, **flags)  # type: ignore[arg-type]


def test_a_mistyped_task_is_told_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"no task 'male' in log\.jsonl") as caught:
        narrow(TRACE, tasks=["mail", "male"])
    assert caught.value.hint == "did you mean 'mail'?"
    with pytest.raises(SettingsError) as caught:
        narrow(TRACE, tasks=["zzz"])
    assert caught.value.hint == "there are 'mail', 'shop'"
    many = tuple(step(f"task {i}", 0, 10) for i in range(8))
    with pytest.raises(SettingsError) as caught:
        narrow(Trace(TRACE.path, many, ""), tasks=["zzz"])
    assert caught.value.hint
    assert caught.value.hint.endswith("'task 4' and 3 more")


def test_context() -> None:
    # 900 and 10, and one that is generated.
    made = within(STEPS, context=911)
    assert keys(made.kept) == [("mail", 0), ("mail", 1), ("shop", 0), ("mail", 2)]
    assert str(made.left_out["shop", 1]) == (
        "context: depth 2,000, 10 new tokens and the one that is generated do not fit the 911 "
        "cells of the context"
    )
    assert ("mail", 1) in within(STEPS, context=910).left_out
    # The tail is one too many.
    assert ("mail", 1) in within(STEPS, context=911, sizes=Sizes(tail=1)).left_out


def test_context_and_a_text_that_is_not_counted_yet() -> None:
    # 50 to 400 tokens: what may fit is tried.
    steps = [step("a", 0, 100), step("a", 1, 100, text="x" * 400)]
    assert within(steps, context=151).left_out == {}
    made = within(steps, context=150)
    assert "at least 50 new tokens" in str(made.left_out["a", 1])


def test_memory_by_hand() -> None:
    # Context of 100 + 10 + 256 cells, rounded up to 512: 512 kB, and the state 10 + 100 kB.
    memory = Memory(2_000_000, 1_000_000, 1000, 10_000, 1000)
    assert memory.needed(STEPS[0]) == 1_000_000 + 512_000 + 110_000
    # At 900: 1,280 cells, state 910 kB.
    assert memory.needed(STEPS[1]) == 1_000_000 + 1_280_000 + 910_000
    made = within(STEPS, memory=memory)
    assert keys(made.kept) == [("mail", 0), ("shop", 0)]
    assert made.left_out["mail", 1].kind == "memory"
    # 1,000,000 + 2,304,000 + 2,010,000 bytes.
    assert str(made.left_out["shop", 1]) == "memory: depth 2,000 needs 5.1 MiB, usable are 1.9 MiB"


def test_a_prefix_that_is_not_restored_needs_no_state() -> None:
    memory = Memory(2_300_000, 1_000_000, 1000, 10_000, 1000, restored_max_depth=899)
    assert memory.needed(STEPS[1]) == 1_000_000 + 1_280_000


def test_images_take_cells() -> None:
    shot = Screenshot(None, 960, 540)
    seen = Step("a", 0, 100, "tokens", None, None, shot, Baseline(), 1)
    # At most 35 columns of 20 tokens: 100 + 700 + 256, rounded up to 1,280.
    assert Memory(1e9, 0, 1).needed(seen) == 1280


def test_nothing_fits() -> None:
    with pytest.raises(SettingsError, match="no step of the trace can be replayed here: context"):
        within(STEPS, context=20)


def test_first_reasons_count() -> None:
    hand, budget = Reason("--limit", "behind the first 1"), Reason("budget", "too dear")
    assert merged([{("a", 1): hand}, {("a", 1): budget, ("a", 2): budget}]) == {
        ("a", 1): hand,
        ("a", 2): budget,
    }


def test_reasons_are_told_by_how_many_steps_they_keep_out() -> None:
    left_out = {
        ("a", 1): Reason("--limit", "behind the first 1"),
        ("a", 2): Reason("context", "depth 7 does not fit"),
        ("a", 3): Reason("context", "depth 8 does not fit"),
    }
    assert tell(left_out, 9) == (
        "2 of 9 steps are left out, context: depth 7 does not fit (the first of them).",
        "1 of 9 steps are left out, --limit: behind the first 1.",
    )
    assert tell({}, 9) == ()


def test_kinds_come_back_from_what_is_stored() -> None:
    assert kind_of(str(Reason("--max-depth", "deeper than 600: too deep"))) == "--max-depth"
    with pytest.raises(ValueError, match="no reason for leaving a step out: 'because'"):
        kind_of("because")

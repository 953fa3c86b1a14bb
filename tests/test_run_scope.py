"""Runs that leave steps of their trace out, that end with a budget, or that begin cold."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from fake_world import (
    ENCODE_MS,
    FULL_ROUNDS,
    ROUNDS,
    World,
    answer_ms,
    counts,
    events,
    new_tokens,
    query,
    status,
    the_run,
)

from experiment.compare import load
from experiment.narrow import Reason
from experiment.scope import Deadline, Scope
from experiment.sentences import answer


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs have a width that counts here, so that the values can be worked out by hand."""
    monkeypatch.setattr("experiment.rounds.MIN_PAIRS", 2)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, with_refused=False)


def rows(*depths: int, header: dict[str, Any] | None = None) -> str:
    steps = [
        {"task_id": "a", "step": number, "depth": depth, "new": {"tokens": 5}}
        for number, depth in enumerate(depths)
    ]
    lines = [*([{"trace": header}] if header else []), *steps]
    return "".join(json.dumps(line) + "\n" for line in lines)


LEFT_OUT = {
    ("a", 1): Reason("budget", "not drawn"),
    ("a", 3): Reason("context", "too deep"),
}
SCOPE = Scope(LEFT_OUT, {("a", 0): 0, ("a", 1): 2, ("a", 2): 2}, ("Within 5 min.", "No full."))


def test_all_steps_are_recorded_and_those_in_scope_replayed(world: World) -> None:
    world.trace_file.write_text(rows(300, 900, 600, 1 << 20))
    folder = world.start(SCOPE)
    assert query(folder, "SELECT step, depth, left_out, stratum FROM step ORDER BY line") == [
        (0, 300, None, 0),
        (1, 900, "budget: not drawn", 2),
        (2, 600, None, 2),
        (3, 1 << 20, "context: too deep", None),
    ]
    assert query(folder, "SELECT DISTINCT step FROM measurement ORDER BY ALL") == [(0,), (2,)]
    # Neither server nor llama-bench is made for depths that are left out.
    assert [step.depth for step in world.steps] == [300, 600]
    assert max(world.benched) == 768
    assert events(folder, "budget") == ["Within 5 min.", "No full."]
    assert events(folder, "left_out") == [
        "1 of 4 steps are left out, budget: not drawn.",
        "1 of 4 steps are left out, context: too deep.",
    ]
    assert (status(folder), {step for _, step, _ in world.counted}) == ("finished", {0, 2})


def test_a_resumed_run_leaves_out_what_it_left_out(world: World) -> None:
    world.trace_file.write_text(rows(300, 900, 600, 1 << 20))
    world.trouble = lambda number, _: KeyboardInterrupt() if number == 7 else None
    with pytest.raises(KeyboardInterrupt):
        world.start(SCOPE)
    world.trouble = lambda _number, _ask: None
    folder = world.resume(the_run(world))
    assert status(folder) == "finished"
    assert query(folder, "SELECT DISTINCT step FROM measurement ORDER BY ALL") == [(0,), (2,)]
    assert [step.depth for step in world.steps] == [300, 600]
    # Said once, not again.
    assert len(events(folder, "left_out")) == 2


def test_what_an_import_assumed_is_an_event_each(world: World) -> None:
    header = {
        "format": 1,
        "from": "vllm",
        "tokenizer": "its own",
        "assumptions": ["calls were cold.", "one task a file"],
        "warnings": ["a warning"],
        "dropped": {"failed requests": 1200},
    }
    world.trace_file.write_text(rows(300, header=header))
    folder = world.start()
    assert events(folder, "imported") == [
        "The trace was imported from vllm, tokens counted by its own."
    ]
    assert events(folder, "assumed") == [
        "Assumed by the import: calls were cold.",
        "Assumed by the import: one task a file.",
    ]
    assert events(folder, "trace_warning") == ["Warning of the import: a warning."]
    assert events(folder, "trace_dropped") == ["Left out by the import: 1,200 (failed requests)."]
    notes = load(folder).notes
    assert notes[:5] == (
        *events(folder, "imported"),
        *events(folder, "assumed"),
        *events(folder, "trace_warning"),
        *events(folder, "trace_dropped"),
    )
    assert not any(note.startswith("Events on the way") for note in notes)


def test_a_cold_step_is_measured_as_its_whole_prompt(world: World) -> None:
    row = {"task_id": "a", "step": 0, "depth": 0, "new": {"tokens": 5}}
    row["baseline"] = {"prefill_s": 9.0, "decode_s": 2.0, "exec_s": 1.0}
    second = row | {"step": 1, "depth": 900}
    world.trace_file.write_text(json.dumps(row) + "\n" + json.dumps(second) + "\n")
    folder = world.start()
    assert status(folder) == "finished"
    assert counts(folder) == {
        **{(variant, "ok"): ROUNDS for variant in ("fake", "control", "restored")},
        ("fake", "warmup"): 1,
        ("restored", "warmup"): 1,
        ("full", "warmup"): 1,
        ("full", "ok"): ROUNDS + FULL_ROUNDS,
        ("arithmetic", "ok"): 2,
    }
    of_cold = "FROM measurement WHERE step = 0 AND status = 'ok'"
    assert query(folder, f"SELECT DISTINCT variant, cache_n, prompt_n {of_cold} ORDER BY ALL") == [
        ("arithmetic", None, new_tokens("a", 0)),
        ("full", 0, new_tokens("a", 0)),
    ]
    comparison = load(folder)
    cold, warm = comparison.steps
    assert (cold.full_n, cold.fake_n, cold.pair_n, cold.speedup) == (ROUNDS, 0, 0, None)
    assert cold.new_tokens == new_tokens("a", 0)
    median_ms = answer_ms("full", new_tokens("a", 0), 2)
    assert cold.full_prefill_ms == median_ms
    assert (comparison.overall.steps, comparison.overall.cold_steps) == (2, 1)
    # Fake would be that very request: in the wall of the task it counts for it.
    walls = {task.variant: task for task in comparison.tasks}
    assert set(walls) == {"fake", "restored", "full", "arithmetic"}
    for variant in ("fake", "restored"):
        of_warm = getattr(warm, f"{variant}_prefill_ms")
        assert walls[variant].steps_counted == 2
        assert walls[variant].opt_prefill_s == pytest.approx((median_ms + of_warm) / 1000)
    assert walls["fake"].opt_wall_s == pytest.approx(walls["fake"].opt_prefill_s + 2 * 3.0)
    assert comparison.notes == (
        "1 step of 2 had nothing cached (L = 0): there the whole prompt is new, and is measured as "
        "full, which stands for fake and restored in the walls of tasks and in what is "
        "extrapolated.",
    )


def test_a_trace_that_is_cold_throughout_runs_to_its_end(world: World) -> None:
    world.trace_file.write_text(rows(0, 0))
    folder = world.start()
    assert status(folder) == "finished"
    assert counts(folder) == {
        ("full", "warmup"): 2,
        ("full", "ok"): 2 * ROUNDS,
        ("arithmetic", "ok"): 2,
    }
    assert events(folder, "rounds") == [
        "nothing is restored, so control/fake decides; 3 rounds: no pair was measured"
    ]
    assert world.counted == []
    times = [answer_ms("full", new_tokens("a", n), 2) for n in (0, 1)]
    assert answer(load(folder))[0] == (
        f"Where nothing was cached (L = 0), the whole prompt costs {sum(times):.1f} ms in sum over "
        "2 steps."
    )
    assert query(folder, "SELECT DISTINCT variant FROM step_time ORDER BY ALL") == [
        *(("arithmetic",), ("fake",), ("full",)),
    ]
    assert times[0] > ENCODE_MS


class Ending:
    """A monotonic clock that runs past any deadline at a request."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.world, self.at = world, at
        real = time.monotonic
        monkeypatch.setattr("experiment.replay.time.monotonic", lambda: self.now(real()))

    def now(self, real_s: float) -> float:
        return math.inf if len(self.world.asked) >= self.at else real_s


def test_nothing_is_begun_once_the_budget_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_s = time.monotonic() + 3600
    with monkeypatch.context() as patched:
        Ending(world, patched, 11)
        folder = world.start(Scope(deadline=Deadline(far_s, far_s)))
    assert status(folder) == "finished"
    # Four of the warm-up, and the first round but for one request.
    assert (len(world.asked), world.counted) == (11, [])
    assert events(folder, "budget") == [
        "The budget's time was over: 13 of 24 requests were not made.",
        "The budget's time was over: 3 of 4 depths were not calibrated.",
    ]
    assert len(world.benched) == 1
    # What is missing can be measured later.
    world.resume(folder)
    assert counts(folder)["fake", "ok"] == 2 * ROUNDS
    assert len(world.benched) == 4


def test_a_budget_that_was_over_before_the_server_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.start(Scope(deadline=Deadline(time.monotonic() - 1, time.monotonic() + 3600)))
    assert (status(folder), world.sessions, world.asked) == ("finished", 0, [])
    assert "fake: not measured in any step." in load(folder).notes


def test_no_round_is_added_after_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.rounds.MIN_PAIRS", 100)  # never narrow enough
    far_s = time.monotonic() + 3600
    with monkeypatch.context() as patched:
        Ending(world, patched, 24)
        folder = world.start(Scope(deadline=Deadline(far_s, far_s)))
    assert len(world.asked) == 24
    assert counts(folder)["fake", "ok"] == 2 * ROUNDS
    assert not [text for text in events(folder, "budget") if "requests" in text]

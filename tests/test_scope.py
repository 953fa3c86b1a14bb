"""What a run leaves out of its trace: by hand, for want of context or memory, and by a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from canned_costs import COSTS, TEXT, settings
from canned_steps import step, trace

from experiment.errors import SettingsError
from experiment.narrow import Memory
from experiment.scope import ALL, NO_DEADLINE, Asked, Scope, possible_of, scope_of
from experiment.settings import Settings
from experiment.step_size import Sizes
from experiment.trace import Step, Trace
from experiment.trace_costs import TraceCosts

STEPS = [step("a", i, depth=1000 * i, new=100) for i in range(20)]
TRACE = trace(*STEPS, step("b", 0, 500, 10))


class Asking:
    """Keeps what is asked of machine and probe."""

    def __init__(self, memory: Memory | None = None, costs: TraceCosts = COSTS) -> None:
        self.memory, self.costs = memory, costs
        self.asked: list[tuple[str, int]] = []

    def memory_of(self, steps: Sequence[Step]) -> Memory | None:
        self.asked.append(("memory", len(steps)))
        return self.memory

    def costs_of(self, steps: Sequence[Step]) -> TraceCosts:
        self.asked.append(("costs", len(steps)))
        return self.costs


def scoped(
    asked: Asked = ALL,
    *,
    context: int | None = None,
    asking: Asking | None = None,
    of: Trace = TRACE,
    **overrides: object,
) -> tuple[Settings, Scope]:
    asking = asking or Asking()
    return scope_of(
        settings(**overrides),
        of,
        asked,
        context=context,
        memory_of=asking.memory_of,
        costs_of=asking.costs_of,
    )


def kinds(scope: Scope) -> dict[str, int]:
    found: dict[str, int] = {}
    for reason in scope.left_out.values():
        found[reason.kind] = found.get(reason.kind, 0) + 1
    return found


def test_nothing_is_left_out_unless_asked() -> None:
    asking = Asking()
    allowed, scope = scoped(asking=asking)
    assert (allowed, scope) == (settings(), Scope())
    assert scope.deadline == NO_DEADLINE
    assert math.isinf(scope.deadline.serving_s)
    assert scope.sentences(21) == ()
    # Without a budget nothing is probed.
    assert asking.asked == [("memory", 21)]


def test_by_hand_then_context_then_memory() -> None:
    # A server for L up to 10,240 - 256 - 100 or so; the step at 11,000 needs 11,520 cells.
    asking = Asking(Memory(usable=11_000, fixed=0, per_cell=1))
    _, scope = scoped(Asked(max_depth=15_000), context=12_000, asking=asking)
    assert kinds(scope) == {"--max-depth": 4, "context": 4, "memory": 1}
    assert asking.asked == [("memory", 13)]
    assert str(scope.left_out["a", 12]).startswith("context: depth 12,000, 100 new tokens and the")
    assert str(scope.left_out["a", 11]).startswith("memory: depth 11,000 needs ")
    assert scope.strata == {}
    assert scope.sentences(21)[0].startswith("4 of 21 steps are left out, --max-depth: deeper")


def test_a_budget_probes_what_is_left_and_draws_from_it() -> None:
    asking = Asking(costs=replace(COSTS, context=18_000))
    allowed, scope = scoped(Asked(tasks=("a",), budget_s=60.0), asking=asking)
    assert asking.asked == [("costs", 20)]
    found = kinds(scope)
    assert (found["--task"], found["context"]) == (1, 2)
    measured = 20 - found["context"] - found["budget"]
    assert 0 < measured < 18
    assert len([key for key in scope.strata if key not in scope.left_out]) == measured
    assert allowed.schedule.restored_max_depth < 1 << 24
    assert scope.notes[0].startswith(
        f"Within the budget of 60.0 s the probe took 7.0 s; {measured} of 18 steps were reckoned "
        "to take "
    )
    assert any(note.startswith("No real prefix") for note in scope.notes)


def test_a_budget_in_which_no_round_is_added() -> None:
    _, scope = scoped(Asked(budget_s=25.0))
    assert " in 1 round, none is added." in scope.notes[0]


def test_a_budget_ends() -> None:
    began_s = time.monotonic()
    _, scope = scoped(Asked(budget_s=60.0))
    # The probe has taken 7 s of it.
    assert scope.deadline.calibrating_s == pytest.approx(began_s + 53, abs=2)
    assert scope.deadline.serving_s < scope.deadline.calibrating_s


def test_what_a_probe_says_of_memory() -> None:
    # 0.9 * 4 GiB less 1 GiB, 2,048 and 1,024 bytes of mask a cell, and 1,024 of state.
    deep = [step(number=0, depth=600_000), step(number=1, depth=750_000)]
    made = possible_of(deep, COSTS, settings())
    assert [kept.depth for kept in made.kept] == [600_000]
    assert str(made.left_out["a", 1]).startswith("memory: depth 750,000 needs 3.9 GiB, usable are")
    small = replace(COSTS, costs=replace(TEXT, available_bytes=2.0**20))
    with pytest.raises(SettingsError, match="no step of the trace can be replayed here: memory"):
        possible_of(deep, small, settings())


def test_sizes_that_a_probe_has_counted() -> None:
    counted = replace(COSTS, sizes=Sizes(tail=50), context=1150)
    made = possible_of([step(depth=999), step(number=1, depth=1000)], counted, settings())
    assert list(made.left_out) == [("a", 1)]


def test_flags_are_read_and_written() -> None:
    asked = Asked.parse(TRACE, "15000", " 7", ["b", "a"], "1h30m")
    assert asked == Asked(15_000, 7, ("b", "a"), 5400.0)
    assert asked.flags() == [
        *("--max-depth=15000", "--limit=7", "--task=b", "--task=a", "--budget=5400.000s"),
    ]
    again = Asked.parse(TRACE, "15000", "7", ["b", "a"], "2592000.000s")
    assert again.budget_s == 30 * 24 * 3600
    assert Asked.parse(TRACE) == ALL
    assert ALL.flags() == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max_depth": "deep"}, "--max-depth: must be a whole number, not 'deep'"),
        ({"max_depth": "-1"}, "--max-depth: must be a whole number, not '-1'"),
        ({"limit": "1.5"}, "--limit: must be a whole number, not '1.5'"),
        ({"limit": "0"}, "--limit: must be a whole number from 1, not 0"),
        ({"limit": "²"}, "--limit: must be a whole number"),
        ({"tasks": ["c"]}, "--task: there is no task 'c' in log.jsonl"),
        ({"budget": "5"}, "--budget: '5' has no unit"),
        ({"budget": "soon"}, "--budget: 'soon' is no duration"),
    ],
)
def test_flags_that_make_no_sense(flags: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Asked.parse(TRACE, **flags)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)


def test_no_step_is_left() -> None:
    with pytest.raises(SettingsError, match="--max-depth: no step is left"):
        Asked.parse(Trace(Path("x.jsonl"), (step(depth=10),), ""), "9")
    with pytest.raises(SettingsError, match="no step of the trace can be replayed here: context"):
        scoped(context=5, of=trace(step(depth=10)))

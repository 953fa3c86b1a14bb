"""Which steps of its trace a run replays: those asked for, those possible, those a budget pays."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from experiment.budget import duration, parse_budget
from experiment.budget_plan import BudgetPlan, plan
from experiment.errors import SettingsError
from experiment.limits import memory_by
from experiment.narrow import Memory, Narrowed, Reason, merged, narrow, tell, within
from experiment.recorded import StepKey
from experiment.settings import Settings
from experiment.trace import Step, Trace
from experiment.trace_costs import TraceCosts


@dataclass(frozen=True, slots=True)
class Asked:
    """What the flags of a run narrow its trace to; all of it by default.

    Attributes:
        max_depth: deepest L, in tokens.
        limit: how many steps at most, in the trace's order.
        tasks: by their names; none = all.
        budget_s: seconds for the run and the probe before it, without building.
    """

    max_depth: int | None = None
    limit: int | None = None
    tasks: tuple[str, ...] = ()
    budget_s: float | None = None

    @classmethod
    def parse(
        cls,
        trace: Trace,
        max_depth: str | None = None,
        limit: str | None = None,
        tasks: Sequence[str] = (),
        budget: str | None = None,
    ) -> Asked:
        """Read the flags of a run of ``trace``.

        Raises:
            SettingsError: a value makes no sense, a task is not in the trace, or no step is left.
        """
        asked = cls(
            _whole("--max-depth", max_depth),
            _whole("--limit", limit),
            tuple(tasks),
            None if budget is None else parse_budget(budget),
        )
        asked.narrow(trace)
        return asked

    def narrow(self, trace: Trace) -> Narrowed:
        """What is left by hand; raises as `parse` does."""
        return narrow(trace, self.max_depth, self.limit, self.tasks)

    def flags(self) -> list[str]:
        """The same on a command line."""
        told = [
            ("max-depth", self.max_depth),
            ("limit", self.limit),
            *(("task", task) for task in self.tasks),
            ("budget", None if self.budget_s is None else f"{self.budget_s:.3f}s"),
        ]
        return [f"--{name}={value}" for name, value in told if value is not None]


ALL = Asked()


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when anything is begun, on the monotonic clock; a budget is kept on a busy machine too.

    Attributes:
        serving_s: for requests to the server.
        calibrating_s: for processes of llama-bench, which come after them.
    """

    serving_s: float = math.inf
    calibrating_s: float = math.inf


NO_DEADLINE = Deadline()


@dataclass(frozen=True)
class Scope:
    """What a run leaves out of its trace; nothing by default.

    Attributes:
        left_out: the reason of each step that is not replayed.
        strata: numbers of the strata that a budget's sample was drawn from, by step.
        notes: what else a budget has lowered, each a sentence.
        deadline: that of the budget.
    """

    left_out: Mapping[StepKey, Reason] = field(default_factory=dict)
    strata: Mapping[StepKey, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    deadline: Deadline = NO_DEADLINE

    def sentences(self, steps: int) -> tuple[str, ...]:
        """What is left out of ``steps`` that the trace has, a sentence for each kind of reason."""
        return tell(self.left_out, steps)


def scope_of(
    settings: Settings,
    trace: Trace,
    asked: Asked,
    *,
    context: int | None,
    memory_of: Callable[[Sequence[Step]], Memory | None],
    costs_of: Callable[[Sequence[Step]], TraceCosts],
) -> tuple[Settings, Scope]:
    """Narrow a trace; the settings come back as a budget allows them.

    Args:
        settings: of the run.
        trace: all of it.
        asked: what to narrow it to.
        context: KV cells that the model's context has at most.
        memory_of: what a server for some steps needs; asked where there is no budget.
        costs_of: probes what steps cost here; asked where there is one.

    Raises:
        SettingsError: no step is left.
        ExperimentError: the probe or the small server fail.
    """
    by_hand = asked.narrow(trace)
    fit = within(by_hand.kept, context=context)
    if asked.budget_s is None:
        possible = within(fit.kept, memory=memory_of(fit.kept))
        return settings, Scope(merged([by_hand.left_out, fit.left_out, possible.left_out]))
    costs = costs_of(fit.kept)
    possible = possible_of(fit.kept, costs, settings)
    made = plan(possible.kept, costs, settings, asked.budget_s)
    left_out = merged([by_hand.left_out, fit.left_out, possible.left_out, made.selection.left_out])
    notes = (_budget(made, len(possible.kept)), *made.notes)
    end_s = time.monotonic() + made.budget_s - made.spent_s
    deadline = Deadline(end_s - made.estimate["calibration"].seconds, end_s)
    return made.settings, Scope(left_out, made.selection.stratum_of, notes, deadline)


def possible_of(steps: Sequence[Step], costs: TraceCosts, settings: Settings) -> Narrowed:
    """The steps that model and machine can take, by what a probe has told of them.

    Raises:
        SettingsError: there is none.
    """
    memory = memory_by(costs.costs, settings)
    return within(steps, sizes=costs.sizes, context=costs.context, memory=memory)


def _budget(made: BudgetPlan, steps: int) -> str:
    added = f"added rounds may take {duration(made.added_s)}" if made.added_s else "none is added"
    return (
        f"Within the budget of {duration(made.budget_s)} the probe took {duration(made.spent_s)}; "
        f"{len(made.selection.chosen):,} of {steps:,} steps were reckoned to take "
        f"{duration(made.estimate.seconds)} in {_rounds(made.settings.schedule.rounds)}, {added}."
    )


def _rounds(number: int) -> str:
    return f"{number:,} round" + ("" if number == 1 else "s")


def _whole(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", str(text).strip()):
        raise SettingsError(f"must be a whole number, not {text!r}", where=flag)
    return int(text)

"""A run within a time: how deep each variant goes, which steps are drawn, what rounds may take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiment.budget import Room, Selection, choose, duration
from experiment.errors import SettingsError
from experiment.narrow import Reason
from experiment.settings import Settings
from experiment.trace import Step
from experiment.trace_costs import TraceCosts
from experiment.trace_estimate import Estimate, estimate

PREFIX_SHARE = 0.35
"""Of the budget: decoding the deepest real prefix, for ``restored`` and by llama-bench."""

FULL_SHARE = 0.10
"""Of the budget: decoding one whole prompt as often as ``full`` does."""

EXPERTS_SHARE = 0.05
"""Of the budget: counting experts."""

RESERVE_SHARE = 0.15
"""Of the budget: kept for added rounds, and for what the estimate gets wrong."""

MIN_ADDED_S = 1.0


@dataclass(frozen=True)
class BudgetPlan:
    """What a budget allows.

    Attributes:
        settings: those given, with ``schedule.restored_max_depth``, ``full_max_depth``,
            ``structure_steps`` and ``time_limit_s`` as the budget allows, never more than before.
        selection: the steps, and why not the others.
        estimate: of the chosen steps with these settings.
        budget_s: what there was.
        spent_s: what the probe had taken of it.
        notes: what was lowered, each a sentence.
    """

    settings: Settings
    selection: Selection
    estimate: Estimate
    budget_s: float
    spent_s: float
    notes: tuple[str, ...]


def plan(
    steps: Sequence[Step], costs: TraceCosts, settings: Settings, budget_s: float
) -> BudgetPlan:
    """Fit a run of ``steps`` into ``budget_s``, the probe before it included.

    A fabricated prefix costs nothing whatever its depth, a real one is decoded token by token: a
    few deep ones would take all the time. So first it is settled how deep ``restored`` and
    llama-bench go (`PREFIX_SHARE`), and how deep ``full`` (`FULL_SHARE`), and then the sample is
    drawn from all steps. Where everything fits, nothing is lowered and all steps are chosen.

    Args:
        steps: what may be measured.
        costs: of the probe.
        settings: of the run.
        budget_s: seconds for probe and run, without building.

    Raises:
        SettingsError: not even the cheapest step fits.
    """
    spent_s = costs.costs.took_s
    left_s = budget_s - spent_s - costs.start_s
    if left_s <= 0:
        raise SettingsError(
            f"the probe took {duration(spent_s)} and the start of the server takes "
            f"{duration(costs.start_s)} of {duration(budget_s)}",
            where="--budget",
            hint="give more time",
        )
    usable_s = (1 - RESERVE_SHARE) * left_s
    lowered = settings
    reckoned = estimate(steps, costs, settings)
    if reckoned.seconds - costs.start_s > usable_s:
        lowered = _lowered(steps, costs, settings, usable_s)
        reckoned = estimate(steps, costs, lowered)
    selection = choose(
        steps,
        reckoned.cost_s_of,
        max(0.0, usable_s - (reckoned.shared_s - costs.start_s)),
        settings.seed,
        new_of=lambda step: costs.sizes.of(step).likely,
        room=_states(costs, lowered),
    )
    chosen = set(selection.chosen)
    made = estimate([step for step in steps if (step.task_id, step.step) in chosen], costs, lowered)
    rest_s = max(MIN_ADDED_S, budget_s - spent_s - made.seconds)
    lowered = _with(lowered, time_limit_s=min(settings.schedule.time_limit_s, rest_s))
    return BudgetPlan(
        lowered,
        selection,
        made,
        budget_s,
        spent_s,
        tuple(_told(settings, lowered, budget_s)),
    )


def _lowered(
    steps: Sequence[Step], costs: TraceCosts, settings: Settings, usable_s: float
) -> Settings:
    """The settings with as deep prefixes and prompts, and as many counts, as can be paid."""

    def prefix_s(step: Step) -> float:
        alone = estimate([step], costs, settings)
        return alone.prime_s + alone["calibration"].seconds

    def full_s(step: Step) -> float:
        return estimate([step], costs, settings)["full"].seconds

    of = settings.schedule
    lowered = _with(
        settings,
        restored_max_depth=_deepest(
            steps, of.restored_max_depth, prefix_s, PREFIX_SHARE * usable_s
        ),
        full_max_depth=_deepest(steps, of.full_max_depth, full_s, FULL_SHARE * usable_s),
    )
    experts_s = estimate(steps, costs, lowered)["experts"].seconds
    if experts_s > EXPERTS_SHARE * usable_s:
        counted = int(of.structure_steps * EXPERTS_SHARE * usable_s / experts_s)
        lowered = _with(lowered, structure_steps=counted)
    return lowered


def _deepest(
    steps: Sequence[Step], limit: int, cost_s: Callable[[Step], float], allowed_s: float
) -> int:
    """The deepest depth up to ``limit`` whose cost is allowed; ``limit`` where all are."""
    by_depth = {step.depth: step for step in steps if step.depth <= limit}
    depths = sorted(by_depth)
    # What a prefix costs grows with its depth.
    count = bisect_right(depths, allowed_s, key=lambda depth: cost_s(by_depth[depth]))
    if count == len(depths):
        return limit
    return depths[count - 1] if count else 0


def _states(costs: TraceCosts, settings: Settings) -> Room:
    """The memory for saved states, which would be decoded again in each round if it were short."""
    allowed_mib = settings.server.state_cache_mib
    of, deepest = costs.costs, settings.schedule.restored_max_depth
    return Room(
        lambda step: (
            of.state_bytes + of.state_bytes_per_cell * step.depth if step.depth <= deepest else 0.0
        ),
        allowed_mib * 2**20,
        Reason("memory", f"the chosen steps' states fill server.state_cache_mib ({allowed_mib:,})"),
    )


def _with(settings: Settings, **schedule: float) -> Settings:
    changed = settings.schedule.model_copy(update=schedule)
    return settings.model_copy(update={"schedule": changed})


def _told(before: Settings, after: Settings, budget_s: float) -> Iterator[str]:
    was, now, within = before.schedule, after.schedule, f"within {duration(budget_s)}"
    for what, limit, limited in (
        ("real prefix (restored, llama-bench)", was.restored_max_depth, now.restored_max_depth),
        ("whole prompt (full)", was.full_max_depth, now.full_max_depth),
    ):
        if limited < limit:
            much = f"deeper than L = {limited:,}" if limited else "at all"
            yield f"No {what} is decoded {much} {within}."
    if now.structure_steps < was.structure_steps:
        yield (
            f"Experts are counted in {now.structure_steps:,} of {was.structure_steps:,} steps "
            f"{within}."
        )

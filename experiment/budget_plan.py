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

PREFIX_SHARE = 0.25
"""Of the budget: decoding the deepest real prefix, for ``restored`` and by llama-bench."""

FULL_SHARE = 0.15
"""Of the budget: decoding whole prompts as often as ``full`` does, with `ENOUGH_STEPS` steps."""

EXPERTS_SHARE = 0.05
"""Of the budget: counting experts."""

RESERVE_SHARE = 0.15
"""Of the budget: kept for added rounds, and for what the estimate gets wrong."""

ENOUGH_STEPS = 20
"""Of a sample: with fewer, rounds are given up for further steps. Rounds of one step differ by
percent, steps by factors."""

MIN_ADDED_S = 1.0

REDRAWN = 3
"""How often a larger sample is tried where the chosen steps share less than all of them would."""

SPARE_SHARE = 0.05
"""Of the budget: what is left is not worth another try."""


@dataclass(frozen=True)
class BudgetPlan:
    """What a budget allows.

    Attributes:
        settings: those given, with ``schedule.restored_max_depth``, ``full_max_depth``,
            ``structure_steps``, ``rounds``, ``max_rounds`` and ``time_limit_s`` as the budget
            allows, never more than before.
        selection: the steps, and why not the others.
        estimate: of the chosen steps with these settings.
        budget_s: what there was.
        spent_s: what the probe had taken of it.
        added_s: what added rounds may take; 0 = there are none.
        notes: what was lowered, each a sentence.
    """

    settings: Settings
    selection: Selection
    estimate: Estimate
    budget_s: float
    spent_s: float
    added_s: float
    notes: tuple[str, ...]


def plan(
    steps: Sequence[Step], costs: TraceCosts, settings: Settings, budget_s: float
) -> BudgetPlan:
    """Fit a run of ``steps`` into ``budget_s``, the probe before it included.

    A fabricated prefix costs nothing whatever its depth, a real one is decoded token by token: a
    few deep ones would take all the time. So first it is settled how deep ``restored`` and
    llama-bench go (`PREFIX_SHARE`), and how deep ``full`` (`FULL_SHARE`), and then the sample is
    drawn from all steps; in fewer rounds where it is small otherwise (`ENOUGH_STEPS`). Where
    everything fits, nothing is lowered and all steps are chosen.

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
    lowered, selection = _sample(steps, costs, settings, usable_s)
    chosen = set(selection.chosen)
    made = estimate([step for step in steps if (step.task_id, step.step) in chosen], costs, lowered)
    lowered = _with_added_rounds(lowered, made, budget_s - spent_s - made.seconds)
    can_add = lowered.schedule.max_rounds > lowered.schedule.rounds
    return BudgetPlan(
        lowered,
        selection,
        made,
        budget_s,
        spent_s,
        lowered.schedule.time_limit_s if can_add else 0.0,
        tuple(_told(settings, lowered, budget_s)),
    )


def _sample(
    steps: Sequence[Step], costs: TraceCosts, settings: Settings, usable_s: float
) -> tuple[Settings, Selection]:
    """Draw with as many rounds as leave enough steps, or with one."""
    given = settings.schedule.rounds
    fewer = [rounds for rounds in (2, 1) if rounds < given]
    for rounds in (given, *fewer):
        lowered = settings if rounds == given else _with(settings, rounds=rounds)
        reckoned = estimate(steps, costs, lowered)
        if reckoned.seconds - costs.start_s > usable_s:
            lowered = _lowered(steps, costs, lowered, usable_s)
            reckoned = estimate(steps, costs, lowered)
        is_last = rounds == [given, *fewer][-1]
        try:
            selection = _drawn(steps, costs, lowered, reckoned, usable_s)
        except SettingsError:
            if is_last:
                raise
            continue
        if is_last or not selection.left_out or len(selection.chosen) >= ENOUGH_STEPS:
            break
    return lowered, selection


def _drawn(
    steps: Sequence[Step],
    costs: TraceCosts,
    settings: Settings,
    reckoned: Estimate,
    usable_s: float,
) -> Selection:
    """Draw steps that fit together with what they share: real prefixes, experts, llama-bench.

    That is known only once they are drawn. First all is set aside that all steps would share, and
    then what the chosen ones do not need is given to a larger sample, as long as that one fits.
    """

    def draw(for_steps_s: float) -> tuple[Selection, float]:
        selection = choose(
            steps,
            reckoned.cost_s_of,
            for_steps_s,
            settings.seed,
            new_of=lambda step: costs.sizes.of(step).likely,
            room=_states(costs, settings),
        )
        chosen = set(selection.chosen)
        kept = [step for step in steps if (step.task_id, step.step) in chosen]
        return selection, estimate(kept, costs, settings).seconds - costs.start_s

    for_steps_s = max(0.0, usable_s - (reckoned.shared_s - costs.start_s))
    selection, needed_s = draw(for_steps_s)
    for _ in range(REDRAWN):
        spare_s = usable_s - needed_s
        if not selection.left_out or spare_s < SPARE_SHARE * usable_s:
            break
        for_steps_s += spare_s
        larger, needed_s = draw(for_steps_s)
        if needed_s > usable_s:
            break
        selection = larger
    return selection


def _with_added_rounds(settings: Settings, made: Estimate, rest_s: float) -> Settings:
    """Add rounds for as long as the last of them ends within ``rest_s``; none if not one does."""
    schedule = settings.schedule
    pairs = [cost for cost in made.steps.values() if cost.restored_s or not made.prime_s]
    made_s = sum(
        2 * cost.control_s / schedule.rounds
        + cost.restored_s / (schedule.warmup_rounds + schedule.rounds)
        for cost in pairs
    )
    left_s = rest_s - made_s
    if left_s < MIN_ADDED_S:
        return _with(settings, max_rounds=schedule.rounds)
    return _with(settings, time_limit_s=min(schedule.time_limit_s, left_s))


def _lowered(
    steps: Sequence[Step], costs: TraceCosts, settings: Settings, usable_s: float
) -> Settings:
    """The settings with as deep prefixes and prompts, and as many counts, as can be paid."""

    def prefix_s(step: Step) -> float:
        alone = estimate([step], costs, settings)
        return alone.prime_s + alone["calibration"].seconds

    # Of a trace as large as that, all; of a larger one, what a sample has of them.
    share = min(1.0, ENOUGH_STEPS / len(steps))
    whole = estimate(steps, costs, settings).steps
    by_depth = sorted((step.depth, whole[step.task_id, step.step].full_s) for step in steps)
    full_up_to: dict[int, float] = {}
    summed_s = 0.0
    for depth, full_s in by_depth:
        summed_s += full_s if depth else 0.0  # cold steps have nothing else
        full_up_to[depth] = share * summed_s

    of = settings.schedule
    lowered = _with(
        settings,
        restored_max_depth=_deepest(
            steps, of.restored_max_depth, prefix_s, PREFIX_SHARE * usable_s
        ),
        full_max_depth=_deepest(
            steps,
            of.full_max_depth,
            lambda step: full_up_to[step.depth],
            FULL_SHARE * usable_s,
        ),
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
    if now.rounds < was.rounds:
        times = "once" if now.rounds == 1 else f"{now.rounds:,} times"
        yield (
            f"Each step is measured {times}, not {was.rounds:,} times, so that more steps fit "
            f"{within}."
        )
    if now.structure_steps < was.structure_steps:
        yield (
            f"Experts are counted in {now.structure_steps:,} of {was.structure_steps:,} steps "
            f"{within}."
        )

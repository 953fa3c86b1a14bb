"""The order of a run's measurements: interleaved variants whose order rotates by round and step."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from experiment.recorded import Key, StepKey
from experiment.records import Variant
from experiment.settings import ScheduleSettings
from experiment.trace import Step

# Every variant stands in every place equally often, and beside and before every other one; after
# the first three already in every place once.
_ORDERS: tuple[tuple[Variant, Variant, Variant], ...] = (
    ("fake", "control", "restored"),
    ("control", "restored", "fake"),
    ("restored", "fake", "control"),
    ("restored", "control", "fake"),
    ("control", "fake", "restored"),
    ("fake", "restored", "control"),
)

# A typical step's own tokens; only the share of a progress bar hangs on it.
_NEW_TOKENS = 500


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to make; a warm-up's round is negative."""

    step: Step
    variant: Variant
    round: int
    position_in_round: int

    @property
    def key(self) -> Key:
        """task_id, step, variant, round: what the store knows the measurement by."""
        return (self.step.task_id, self.step.step, self.variant, self.round)

    @property
    def tokens(self) -> int:
        """Roughly what it costs, for the progress bar: tokens that are decoded."""
        return self.step.depth + _NEW_TOKENS if self.variant == "full" else _NEW_TOKENS


def plan(
    steps: Sequence[Step],
    schedule: ScheduleSettings,
    *,
    added: int | None = None,
    only: Container[StepKey] | None = None,
    done: Iterable[Key] = (),
    warmed: Container[StepKey] = (),
) -> list[Planned]:
    """Requests of a run in order, without those that are done.

    Within a round every step's ``fake``, ``control`` and ``restored`` follow each other directly,
    so that the drift of a shared machine hits all of them; their order rotates through all six
    with the round and from step to step. ``full`` comes after them. ``restored`` and ``full`` are
    left out for steps deeper than the schedule allows. A cold step has ``full`` alone, in as many
    rounds as others have ``fake``. Warm-up rounds go from the shallowest step
    to the deepest: each prefix is then computed from the one before, and all of them together cost
    about as much as the deepest. A new server has no saved states, so a warm-up is repeated after
    a resume, but only for steps that have something to measure.

    Args:
        steps: all steps of the trace: a step's place among them takes part in the order.
        schedule: how often each variant is measured.
        added: the number of one round to add, without ``full``; None = the fixed rounds.
        only: the steps to measure; None = all.
        done: measurements to leave out.
        warmed: steps that need no warm-up from this server any more.
    """
    finished = set(done)
    numbers = (
        range(max(schedule.rounds, schedule.full_rounds))
        if added is None
        else range(added, added + 1)
    )
    counted = [
        item
        for number in numbers
        for item in _round(steps, schedule, number, only, is_added=added is not None)
        if item.key not in finished
    ]
    pending = {_key(item.step) for item in counted}
    shallow_first = sorted(
        (step for step in steps if _key(step) in pending and _key(step) not in warmed),
        key=lambda step: step.depth,
    )
    warmup = [
        Planned(step, variant, number, position)
        for number in range(-schedule.warmup_rounds, 0)
        for position, (step, variant) in enumerate(
            (step, variant) for step in shallow_first for variant in _warm_up(step, schedule)
        )
    ]
    return warmup + counted


def is_cold(step: Step) -> bool:
    """Whether nothing is cached: no prefix to fabricate or to restore, the whole prompt is new.

    ``fake`` and ``restored`` would be the very request that ``full`` is, so that alone is made.
    """
    return step.depth == 0


def can_restore(step: Step, schedule: ScheduleSettings) -> bool:
    """Whether ``restored`` is measured for a step."""
    return 0 < step.depth <= schedule.restored_max_depth


def _key(step: Step) -> StepKey:
    return (step.task_id, step.step)


def _warm_up(step: Step, schedule: ScheduleSettings) -> tuple[Variant, ...]:
    if is_cold(step):
        return ("full",)
    return ("fake", "restored") if can_restore(step, schedule) else ("fake",)


def _round(
    steps: Sequence[Step],
    schedule: ScheduleSettings,
    number: int,
    only: Container[StepKey] | None,
    *,
    is_added: bool,
) -> Iterator[Planned]:
    position = 0
    for index, step in enumerate(steps):
        if only is not None and _key(step) not in only:
            continue
        order = _ORDERS[(number + index) % len(_ORDERS)]
        for variant in _variants(step, schedule, number, order, is_added=is_added):
            yield Planned(step, variant, number, position)
            position += 1


def _variants(
    step: Step,
    schedule: ScheduleSettings,
    number: int,
    order: Iterable[Variant],
    *,
    is_added: bool,
) -> list[Variant]:
    """What is measured of a step in a round."""
    if is_cold(step):
        return [] if is_added else ["full"]
    variants: list[Variant] = []
    if is_added or number < schedule.rounds:
        variants += (v for v in order if v != "restored" or can_restore(step, schedule))
    if not is_added and number < schedule.full_rounds and step.depth <= schedule.full_max_depth:
        variants.append("full")
    return variants

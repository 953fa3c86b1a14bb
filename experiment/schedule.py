"""The order of a run's measurements: interleaved variants whose order rotates by round and step."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

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

STEPS_AT_ONCE = 2_000
"""Of so many steps the store is asked at once: what it says of them is all that is in memory."""


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


Done = Callable[[Sequence[StepKey], int], Container[Key]]
"""Of some steps, what is measured already in a round."""


def chunks(steps: Iterable[Step]) -> Iterator[tuple[range, list[Step]]]:
    """The steps with their places, so many at a time as the store is asked about at once."""
    left, place = iter(steps), 0
    while chunk := list(islice(left, STEPS_AT_ONCE)):
        yield range(place, place + len(chunk)), chunk
        place += len(chunk)


def keys_of(steps: Iterable[Step]) -> list[StepKey]:
    """What the store knows the steps by."""
    return [(step.task_id, step.step) for step in steps]


class Plan:
    """Requests of a run in order, without those that are done.

    Within a round every step's ``fake``, ``control`` and ``restored`` follow each other directly,
    so that the drift of a shared machine hits all of them; their order rotates through all six
    with the round and from step to step. ``full`` comes after them. ``restored`` and ``full`` are
    left out for steps deeper than the schedule allows. A cold step has ``full`` alone, in as many
    rounds as others have ``fake``. Warm-up rounds go from the shallowest step
    to the deepest: each prefix is then computed from the one before, and all of them together cost
    about as much as the deepest. A new server has no saved states, so a warm-up is repeated after
    a resume, but only for steps that have something to measure.

    A request is made when its turn comes, since there may be millions of them. What is kept is a
    byte a step, and 8 for each that has a warm-up.

    Args:
        steps: all steps of the trace: a step's place among them takes part in the order.
        schedule: how often each variant is measured.
        added: the number of one round to add, without ``full``; None = the fixed rounds.
        only: by a step's place, whether it is measured; None = all are.
        done: tells the measurements to leave out; None = there are none.
        warmed: by a step's place, whether it needs no warm-up from this server any more.

    Attributes:
        pending: by a step's place, whether it has something to measure.
        tokens: what all of it costs, roughly, for the progress bar.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        schedule: ScheduleSettings,
        *,
        added: int | None = None,
        only: Sequence[int] | None = None,
        done: Done | None = None,
        warmed: Sequence[int] | None = None,
    ) -> None:
        self._steps = steps
        self._schedule = schedule
        self._added = added
        self._only = only
        self._done = done
        self.pending = bytearray(len(steps))
        self.tokens = self._number = 0
        depths = np.zeros(len(steps), np.int64)
        anything_done = False
        for place, item, is_done in self._counted():
            anything_done |= is_done
            if is_done:
                continue
            if not self.pending[place] and not (warmed and warmed[place]):
                for variant in _warm_up(item.step, schedule) * schedule.warmup_rounds:
                    self._count(Planned(item.step, variant, -1, 0))
            self.pending[place] = True
            depths[place] = item.step.depth
            self._count(item)
        if not anything_done:
            self._done = None
        cold = np.frombuffer(self.pending, np.bool_)
        if warmed is not None:
            cold = cold & ~np.fromiter(warmed, np.bool_, len(warmed))
        places = np.flatnonzero(cold)
        self._shallow_first = places[np.argsort(depths[places], kind="stable")]

    def _count(self, item: Planned) -> None:
        self._number += 1
        self.tokens += item.tokens

    def __len__(self) -> int:
        """How many requests there are, the warm-up's among them."""
        return self._number

    def __iter__(self) -> Iterator[Planned]:
        """Make the requests one by one."""
        for number in range(-self._schedule.warmup_rounds, 0):
            position = 0
            for place in self._shallow_first:
                step = self._steps[int(place)]
                for variant in _warm_up(step, self._schedule):
                    yield Planned(step, variant, number, position)
                    position += 1
        for _, item, is_done in self._counted():
            if not is_done:
                yield item

    def _counted(self) -> Iterator[tuple[int, Planned, bool]]:
        """The requests that are no warm-up, each with its step's place, and whether it is done."""
        rounds = range(max(self._schedule.rounds, self._schedule.full_rounds))
        is_added = self._added is not None
        for number in rounds if self._added is None else (self._added,):
            position = 0
            for places, chunk in chunks(self._steps):
                finished = () if self._done is None else self._done(keys_of(chunk), number)
                for place, step in zip(places, chunk, strict=True):
                    if self._only is not None and not self._only[place]:
                        continue
                    order = _ORDERS[(number + place) % len(_ORDERS)]
                    for variant in _variants(
                        step, self._schedule, number, order, is_added=is_added
                    ):
                        item = Planned(step, variant, number, position)
                        yield place, item, item.key in finished
                        position += 1


def is_cold(step: Step) -> bool:
    """Whether nothing is cached: no prefix to fabricate or to restore, the whole prompt is new.

    ``fake`` and ``restored`` would be the very request that ``full`` is, so that alone is made.
    """
    return step.depth == 0


def can_restore(step: Step, schedule: ScheduleSettings) -> bool:
    """Whether ``restored`` is measured for a step."""
    return 0 < step.depth <= schedule.restored_max_depth


def _warm_up(step: Step, schedule: ScheduleSettings) -> tuple[Variant, ...]:
    if is_cold(step):
        return ("full",)
    return ("fake", "restored") if can_restore(step, schedule) else ("fake",)


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

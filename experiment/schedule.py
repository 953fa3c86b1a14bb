"""The order of a run's measurements: interleaved pairs, their order alternating by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from experiment.records import Variant
from experiment.store import Key
from experiment.trace import Step


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


# A typical step's own tokens; only the share of a progress bar hangs on it.
_NEW_TOKENS = 500


def plan(
    steps: Sequence[Step],
    *,
    rounds: int,
    full_rounds: int,
    warmup_rounds: int,
    done: Iterable[Key] = (),
) -> list[Planned]:
    """All requests of a run in order, without those that are done.

    Within a round every step's ``fake`` and ``restored`` follow each other directly, so that the
    drift of a shared machine hits both; which of them goes first alternates with the round and
    from step to step. ``full`` comes after the pair. Warm-up rounds go from the shallowest step to
    the deepest: each prefix is then computed from the one before, and all of them together cost
    about as much as the deepest. A warm-up is repeated after a resume, since the new server has no
    saved states, but only for steps that still have something to measure.
    """
    finished = set(done)
    counted = [
        item
        for number in range(max(rounds, full_rounds))
        for item in _round(steps, number, rounds=rounds, full_rounds=full_rounds)
        if item.key not in finished
    ]
    pending = {(item.step.task_id, item.step.step) for item in counted}
    shallow_first = sorted(
        (step for step in steps if (step.task_id, step.step) in pending),
        key=lambda step: step.depth,
    )
    warmup = [
        Planned(step, variant, number, position)
        for number in range(-warmup_rounds, 0)
        for position, (step, variant) in enumerate(
            (step, variant) for step in shallow_first for variant in _pair(0)
        )
    ]
    return warmup + counted


def _pair(parity: int) -> tuple[Variant, Variant]:
    return ("fake", "restored") if parity % 2 == 0 else ("restored", "fake")


def _round(
    steps: Sequence[Step], number: int, *, rounds: int, full_rounds: int
) -> Iterator[Planned]:
    position = 0
    for index, step in enumerate(steps):
        variants: list[Variant] = [*_pair(number + index)] if number < rounds else []
        if number < full_rounds:
            variants.append("full")
        for variant in variants:
            yield Planned(step, variant, number, position)
            position += 1

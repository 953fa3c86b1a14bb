"""When a run has measured enough: which steps get a further round, and why no more are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from experiment.intervals import MIN_PAIRS, median_interval
from experiment.recorded import StepKey
from experiment.settings import ScheduleSettings


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes after the rounds made so far.

    Attributes:
        steps: those that get a further round; none = enough.
        reason: how many rounds there are and why no more, as a sentence.
        width: how wide the interval is, in a few words.
    """

    steps: frozenset[StepKey]
    reason: str
    width: str

    @property
    def ended(self) -> bool:
        """Whether no round is added any more."""
        return not self.steps


@dataclass(frozen=True, slots=True)
class _State:
    """What the wanted precision makes of the ratios: who needs more pairs, and how it stands."""

    wide: Set[StepKey]
    width: str


def decide(
    ratios: Mapping[StepKey, Sequence[float]],
    alive: Set[StepKey],
    schedule: ScheduleSettings,
    *,
    rounds: int,
    added_s: float,
    control: bool = False,
) -> Decision:
    """Say which steps get another round.

    The interval of all pairs of the run is looked at, or with the precision "step" that of every
    step. A step that gives no pairs (it is refused, its answers are invalid, or its prefix is too
    deep to be restored) gets no round and cannot keep the others going.

    Args:
        ratios: fake/restored of each step's pairs.
        alive: the steps whose last round gave a pair.
        schedule: the wanted precision and the limits.
        rounds: how many have been made, at least ``schedule.rounds``.
        added_s: seconds that the added ones among them took.
        control: the ratios are control/fake instead, since nothing is restored.
    """
    look = _at_run if schedule.precision == "run" else _at_steps
    state = look(ratios, schedule.half_width_pct)
    limit = max(schedule.rounds, schedule.max_rounds)
    made = _count(rounds, "round")
    further: Set[StepKey] = frozenset()
    if not any(ratios.values()):
        reason = f"{made}: no pair was measured"
    elif not state.wide:
        reason = f"{made}: {state.width}"
    elif not state.wide & alive:
        reason = f"{made}, further ones give no pairs: {state.width}"
    elif rounds >= limit:
        reason = f"limit of {_count(limit, 'round')} reached: {state.width}"
    elif added_s >= schedule.time_limit_s:
        reason = f"time limit of {schedule.time_limit_s:g} s reached after {made}: {state.width}"
    else:
        reason = f"{made}: {state.width}"
        further = state.wide & alive
    if control:
        reason = f"nothing is restored, so control/fake decides; {reason}"
    return Decision(frozenset(further), reason, state.width)


def _at_run(ratios: Mapping[StepKey, Sequence[float]], target_pct: float) -> _State:
    """Every step takes part until all pairs together are narrow enough."""
    values = [ratio for step in ratios.values() for ratio in step]
    width_pct = _half_width_pct(values)
    if width_pct is None:
        return _State(ratios.keys(), f"no half-width from {_count(len(values), 'pair')}")
    if width_pct <= target_pct:
        width = f"half-width {_shown(width_pct)} % is within {_shown(target_pct)} %"
        return _State(frozenset(), width)
    return _State(ratios.keys(), f"half-width {_shown(width_pct)} % of {_shown(target_pct)} %")


def _at_steps(ratios: Mapping[StepKey, Sequence[float]], target_pct: float) -> _State:
    """Every step takes part until its own pairs are narrow enough."""
    widths = {key: _half_width_pct(values) for key, values in ratios.items()}
    wide = {key for key, width in widths.items() if width is None or width > target_pct}
    known = [width for width in widths.values() if width is not None]
    widest = f", at most {_shown(max(known))} %" if known else ""
    target, steps = f"{_shown(target_pct)} %", _count(len(widths), "step")
    if not wide:
        return _State(wide, f"half-width is within {target} for each of {steps}{widest}")
    return _State(wide, f"half-width is above {target} for {len(wide)} of {steps}{widest}")


def _half_width_pct(values: Sequence[float]) -> float | None:
    # A few pairs that are close to each other by luck must not end the rounds.
    interval = median_interval(values) if len(values) >= MIN_PAIRS else None
    return None if interval is None else 100 * interval.half_width


def _shown(percent: float) -> str:
    return f"{percent:.2f}" if percent >= 0.1 or percent == 0 else f"{percent:.2g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

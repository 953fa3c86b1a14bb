"""When a run has measured enough: which steps get a further round, and why no more are added."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from experiment.intervals import MIN_PAIRS, median_interval
from experiment.recorded import StepKey
from experiment.settings import ScheduleSettings

Part = tuple[Sequence[StepKey], Mapping[StepKey, Sequence[float]], Set[StepKey]]
"""Some steps, the fake/restored of each one's pairs, and those whose last round gave a pair."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes after the rounds made so far.

    Attributes:
        steps: for each step in turn, whether it gets a further round; empty = enough.
        reason: how many rounds there are and why no more, as a sentence.
        width: how wide the interval is, in a few words.
    """

    steps: bytes
    reason: str
    width: str

    @property
    def ended(self) -> bool:
        """Whether no round is added any more."""
        return not self.steps


def decide(
    parts: Iterable[Part],
    schedule: ScheduleSettings,
    *,
    rounds: int,
    added_s: float,
    control: bool = False,
) -> Decision:
    """Say which steps get another round.

    The interval of all pairs of the run is looked at, or with the precision "step" that of every
    step. A step that gives no pairs (it is refused, its answers are invalid, or its prefix is too
    deep to be restored) gets no round and cannot keep the others going. What is kept meanwhile is
    a byte a step, and for the interval of the run 8 bytes a pair.

    Args:
        parts: all steps of the run with their pairs, some at a time.
        schedule: the wanted precision and the limits.
        rounds: how many have been made, at least ``schedule.rounds``.
        added_s: seconds that the added ones among them took.
        control: the ratios are control/fake instead, since nothing is restored.
    """
    look = _at_run if schedule.precision == "run" else _at_steps
    state = look(parts, schedule.half_width_pct)
    limit = max(schedule.rounds, schedule.max_rounds)
    made = _count(rounds, "round")
    further = b""
    if not state.pairs:
        reason = f"{made}: no pair was measured"
    elif not state.is_wide:
        reason = f"{made}: {state.width}"
    elif not any(state.wide):
        reason = f"{made}, further ones give no pairs: {state.width}"
    elif rounds >= limit:
        reason = f"limit of {_count(limit, 'round')} reached: {state.width}"
    elif added_s >= schedule.time_limit_s:
        reason = f"time limit of {schedule.time_limit_s:g} s reached after {made}: {state.width}"
    else:
        reason = f"{made}: {state.width}"
        further = bytes(state.wide)
    if control:
        reason = f"nothing is restored, so control/fake decides; {reason}"
    return Decision(further, reason, state.width)


@dataclass(frozen=True, slots=True)
class _State:
    """What the wanted precision makes of the ratios: how many, and how it stands.

    ``wide`` tells for each step whether it needs more pairs and may get them; ``is_wide``, whether
    any step needs some.
    """

    pairs: int
    is_wide: bool
    wide: bytearray
    width: str


def _at_run(parts: Iterable[Part], target_pct: float) -> _State:
    """Every step takes part until all pairs together are narrow enough."""
    values, alive = array("d"), bytearray()
    for keys, ratios, with_pair in parts:
        for of_step in ratios.values():
            values.extend(of_step)
        alive += bytes(key in ratios and key in with_pair for key in keys)
    width_pct, pairs = _half_width_pct(values), len(values)
    if width_pct is None:
        return _State(pairs, True, alive, f"no half-width from {_count(pairs, 'pair')}")
    shown, target = _shown(width_pct), _shown(target_pct)
    if width_pct <= target_pct:
        return _State(pairs, False, alive, f"half-width {shown} % is within {target} %")
    return _State(pairs, True, alive, f"half-width {shown} % of {target} %")


def _at_steps(parts: Iterable[Part], target_pct: float) -> _State:
    """Every step takes part until its own pairs are narrow enough."""
    flags = bytearray()
    pairs = number = wide_steps = 0
    widest_pct: float | None = None
    for keys, ratios, with_pair in parts:
        widths = {key: _half_width_pct(values) for key, values in ratios.items()}
        wide = {key for key, width in widths.items() if width is None or width > target_pct}
        known = [width for width in widths.values() if width is not None]
        widest_pct = max([*known, *([] if widest_pct is None else [widest_pct])], default=None)
        flags += bytes(key in wide and key in with_pair for key in keys)
        pairs += sum(map(len, ratios.values()))
        number, wide_steps = number + len(widths), wide_steps + len(wide)
    widest = "" if widest_pct is None else f", at most {_shown(widest_pct)} %"
    target, steps = f"{_shown(target_pct)} %", _count(number, "step")
    if not wide_steps:
        width = f"half-width is within {target} for each of {steps}{widest}"
    else:
        width = f"half-width is above {target} for {wide_steps} of {steps}{widest}"
    return _State(pairs, wide_steps > 0, flags, width)


def _half_width_pct(values: Sequence[float]) -> float | None:
    # A few pairs that are close to each other by luck must not end the rounds.
    interval = median_interval(values) if len(values) >= MIN_PAIRS else None
    return None if interval is None else 100 * interval.half_width


def _shown(percent: float) -> str:
    return f"{percent:.2f}" if percent >= 0.1 or percent == 0 else f"{percent:.2g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

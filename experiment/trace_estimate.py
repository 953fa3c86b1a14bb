"""How long a run of a trace takes here, part by part and step by step, reckoned from a probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from experiment.calibrate import chunks_at
from experiment.experts import chosen_places
from experiment.recorded import StepKey
from experiment.settings import Settings
from experiment.step_size import Size
from experiment.sweep_costs import Costs
from experiment.trace import Step
from experiment.trace_costs import TraceCosts

PartName = Literal["start", "fake", "control", "restored", "full", "experts", "calibration"]


@dataclass(frozen=True, slots=True)
class Spread:
    """By what times are multiplied: those of depths that the probe has reached, and deeper ones."""

    within: float
    beyond: float


LIKELY, LOW, HIGH = Spread(1.0, 1.0), Spread(0.75, 0.5), Spread(1.25, 2.25)
"""Measured with nano on two cores that did nothing else, minutes to an hour after the probe: a run
within its depths took 0.89 to 0.92 times as long as reckoned, runs far beyond them (to 32,768,
131,072 and 262,144 after a probe of 1,024 or 16,384) 0.58 to 2.05 times. A machine that is busy
with other work is not covered by anything: it was slower by a factor of 2.2."""

_EXPERT_REQUESTS = 2  # fake and restored

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds that a part of a run takes: likely, at least, at most."""

    name: PartName
    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step's requests in all rounds, warm-up included; 0 where it is not measured.

    ``restored_s`` leaves out decoding the real prefix, which steps share.
    """

    fake_s: float
    control_s: float
    restored_s: float
    full_s: float

    @property
    def total_s(self) -> float:
        """What the step adds to a run."""
        return self.fake_s + self.control_s + self.restored_s + self.full_s


@dataclass(frozen=True)
class Estimate:
    """What a run takes.

    Attributes:
        parts: each once, in the order of `PartName`; ``restored`` contains ``prime_s``.
        steps: of each step, likely.
        prime_s: decoding the real prefixes, each from the one before.
        added_s: at most, for rounds that narrow the interval.
        state_bytes: saved states of all prefixes together.
        notes: what a reader of these numbers must know.
    """

    parts: tuple[Part, ...]
    steps: Mapping[StepKey, StepCost]
    prime_s: float
    added_s: float
    state_bytes: float
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Everything but added rounds."""
        return sum(part.seconds for part in self.parts)

    @property
    def low_s(self) -> float:
        """At least, without added rounds."""
        return sum(part.low_s for part in self.parts)

    @property
    def high_s(self) -> float:
        """At most, with as many added rounds as may be."""
        return sum(part.high_s for part in self.parts) + self.added_s

    @property
    def shared_s(self) -> float:
        """What is not any one step's: start, real prefixes, experts, llama-bench."""
        return self.seconds - sum(cost.total_s for cost in self.steps.values())

    def cost_s_of(self, step: Step) -> float:
        """What ``step`` adds to a run."""
        return self.steps[step.task_id, step.step].total_s

    def __getitem__(self, name: PartName) -> Part:
        return next(part for part in self.parts if part.name == name)


def estimate(steps: Sequence[Step], costs: TraceCosts, settings: Settings) -> Estimate:
    """Reckon a run of ``steps`` with these settings.

    Low and high take the fewest and most tokens that the steps' content can have, and times that
    are shorter or longer as `LOW` and `HIGH` say. What is decided on while measuring is an upper
    bound: added rounds, and requests that are refused count as if they were made.

    Args:
        steps: of the trace, at least one.
        costs: what a probe has told.
        settings: of the run.
    """
    sizes = [costs.sizes.of(step) for step in steps]
    counted = [] if costs.has_experts is False else chosen_places(steps, settings.schedule)
    likely, low, high = (
        _Reckoning(steps, new, costs, settings, spread, counted)
        for new, spread in (
            ([size.likely for size in sizes], LIKELY),
            ([size.low for size in sizes], LOW),
            ([size.high for size in sizes], HIGH),
        )
    )
    parts = tuple(
        Part(name, *(reckoning.part_s(name) for reckoning in (likely, low, high)))
        for name in get_args(PartName)
    )
    schedule = settings.schedule
    can_add = max(schedule.rounds, schedule.max_rounds) > schedule.rounds
    return Estimate(
        parts,
        likely.step_costs(),
        likely.prime_s,
        schedule.time_limit_s if can_add else 0.0,
        likely.state_bytes,
        tuple(_notes(steps, sizes, costs, settings, likely.state_bytes)),
    )


class _Reckoning:
    """One run with one idea of how many tokens its steps append."""

    def __init__(
        self,
        steps: Sequence[Step],
        new: Sequence[int],
        costs: TraceCosts,
        settings: Settings,
        spread: Spread,
        counted: Sequence[int],
    ) -> None:
        self._steps, self._settings, self._costs = steps, settings, costs.costs
        self._spread, self._probed_depth = spread, costs.probed_depth
        self.depth: Floats = np.array([step.depth for step in steps], dtype=np.float64)
        self.new: Floats = np.array(new, dtype=np.float64)
        pixels = [
            0 if step.screenshot is None else step.screenshot.width * step.screenshot.height
            for step in steps
        ]
        schedule = settings.schedule
        self._is_cold = self.depth == 0
        self.is_real = ~self._is_cold & (self.depth <= schedule.restored_max_depth)
        self._start_s = costs.start_s * spread.within
        self._counted = counted
        of = costs.costs
        overhead_ms = of.overhead_ms + of.overhead_ms_per_cell * self.depth
        # What is new is read too: its tokens lie half of it deeper than L in the mean. The probe's
        # few tell nothing of that.
        prefill_s = _prefill_s(of, self.new, self.depth + self.new / 2)
        prefill_s += costs.images.ms_of(pixels) / 1000
        factor = self._factor(self.depth)
        self._request_s = factor * (prefill_s + overhead_ms / 1000 + costs.driver_s)
        restored_s = self._request_s + factor * of.restore_ms_per_cell * self.depth / 1000
        full_s = self._request_s + factor * _prefix_s(of, self.depth)
        warm, has_prefix = schedule.warmup_rounds, ~self._is_cold
        full_rounds = np.where(
            self._is_cold,
            warm + max(schedule.rounds, schedule.full_rounds),
            schedule.full_rounds * (self.depth <= schedule.full_max_depth),
        )
        self._by_step = {
            "fake": (warm + schedule.rounds) * self._request_s * has_prefix,
            "control": schedule.rounds * self._request_s * has_prefix,
            "restored": (warm + schedule.rounds) * restored_s * self.is_real,
            "full": full_rounds * full_s,
        }

    @property
    def deepest_real(self) -> int:
        """The deepest prefix that is really decoded; 0 if none is."""
        return int(max(self.depth[self.is_real], default=0))

    @property
    def prime_s(self) -> float:
        """Each prefix is decoded from the one before: all of them are the deepest."""
        depth = np.array(self.deepest_real, dtype=np.float64)
        return float(self._factor(depth) * _prefix_s(self._costs, depth))

    @property
    def state_bytes(self) -> float:
        """Saved states, one a depth."""
        depths = np.unique(self.depth[self.is_real])
        return float((self._costs.state_bytes + self._costs.state_bytes_per_cell * depths).sum())

    def part_s(self, name: PartName) -> float:
        """Likely seconds of a part."""
        match name:
            case "start":
                return self._start_s
            case "experts":
                return self._experts_s()
            case "calibration":
                return self._calibration_s()
            case _:
                primed = self.prime_s if name == "restored" else 0.0
                return float(self._by_step[name].sum()) + primed

    def step_costs(self) -> dict[StepKey, StepCost]:
        """Of each step."""
        columns = (self._by_step[name].tolist() for name in ("fake", "control", "restored", "full"))
        return {
            (step.task_id, step.step): StepCost(*values)
            for step, *values in zip(self._steps, *columns, strict=True)
        }

    def _experts_s(self) -> float:
        return float(_EXPERT_REQUESTS * self._request_s[list(self._counted)].sum())

    def _calibration_s(self) -> float:
        of, repetitions = self._costs, self._settings.calibration.repetitions
        content = zip(self.depth.astype(int).tolist(), self.new.astype(int).tolist(), strict=True)
        total_s = 0.0
        for depth, chunks in chunks_at(self._settings, content).items():
            process_s = of.bench_start_s + of.prefix_s(depth)
            for chunk in chunks:
                restore_s = of.restore_ms_per_cell * depth / 1000
                sample_s = of.prefill_s(chunk, depth) + restore_s
                process_s += of.prefill_s(chunk, 0) + repetitions * sample_s
            total_s += float(self._factor(np.array(depth))) * process_s
        return total_s

    def _factor(self, depth: Floats) -> Floats:
        return np.where(depth > self._probed_depth, self._spread.beyond, self._spread.within)


def _prefill_s(costs: Costs, new: Floats, depth: Floats) -> Floats:
    """`Costs.prefill_s` of many steps at once."""
    model = costs.model
    ms: Floats = np.maximum(0.0, model.a_ms + model.b_ms * new + model.c_ms * new * depth)
    return ms / 1000


def _prefix_s(costs: Costs, depth: Floats) -> Floats:
    """`Costs.prefix_s` of many depths at once."""
    attention_ms = max(0.0, costs.model.c_ms) / 2 * depth**2
    seconds: Floats = (costs.prime_ms_per_cell * depth + attention_ms) / 1000
    return seconds


def _notes(
    steps: Sequence[Step],
    sizes: Sequence[Size],
    costs: TraceCosts,
    settings: Settings,
    state_bytes: float,
) -> Iterator[str]:
    unknown = sum(not size.is_exact for size in sizes)
    if unknown:
        yield (
            f"Not counted yet are the tokens of the texts or screenshots of {unknown:,} of "
            f"{len(steps):,} steps: the least and the most that they can have make the range wide."
        )
    deeper = sum(step.depth > costs.probed_depth for step in steps)
    if deeper:
        yield (
            f"Deeper than the {costs.probed_depth:,} tokens that the probe has reached: {deeper:,} "
            f"of {len(steps):,} steps; what is said of them is extrapolated."
        )
    images = sum(step.screenshot is not None for step in steps)
    if images and not costs.images.pixels:
        yield (
            f"Not known, and left out, is what encoding screenshots takes: {images:,} of "
            f"{len(steps):,} steps have one."
        )
    allowed = settings.server.state_cache_mib * 2**20
    if state_bytes > allowed:
        yield (
            f"The saved states of all prefixes take {state_bytes / 2**20:,.0f} MiB, "
            f"server.state_cache_mib allows {settings.server.state_cache_mib:,}: prefixes are "
            f"decoded again in each round, which is not counted here."
        )

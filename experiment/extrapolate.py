"""From the steps that were measured to a whole trace: totals of prefill times with an interval.

A step that was measured enters with what was measured, any other with what the cost model says of
it, ``T(new, L)`` and the encoding of its screenshot, times how measured times relate to the model
in its stratum (`experiment.ratio_estimate` has the method and where it comes from).

It may not be used, and says so, where the measured steps do not determine the model. Steps beyond
the depths and sizes that were measured get a value, but their total no interval: what a cell of
depth costs changes where a KV cache outgrows the processor's. The same goes for steps of a stratum
of which none was measured, and for those that could not be drawn: the sample says nothing of them.
Steps far beyond (`REACH`) get no value, nor does any sum with them: three prompts of some 10,000
tokens fit many curves, and those part long before 50,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiment.cost_model import CostModel, Point, fit
from experiment.errors import StoreError
from experiment.ratio_estimate import Booleans, Floats, Integers, Ratios
from experiment.trace_costs import ImageTimes

TOLERANCE = 1.05
"""Up to so many times what was measured, a depth or size does not count as beyond it."""

REACH = 2.0
"""Up to this factor beyond what was measured, in depth or size, a value is given."""

UNDRAWN = -1
"""Number of the stratum of a step that has none."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A step of the trace, measured or not.

    Attributes:
        depth: L.
        new: tokens behind it; what is likely, where nobody has counted them.
        pixels: of its screenshot, 0 without one.
        stratum: as `experiment.budget` numbers it; None for a step that could not be drawn.
        lm_ms: measured prefill without image encoding, a median; None if it was not measured.
        encode_ms: measured image encoding, a median.
    """

    depth: int
    new: int
    pixels: int = 0
    stratum: int | None = None
    lm_ms: float | None = None
    encode_ms: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether there is a time of it."""
        return self.lm_ms is not None

    @property
    def ms(self) -> float:
        """That time, image encoding in it; NaN without one."""
        return math.nan if self.lm_ms is None else self.lm_ms + self.encode_ms


@dataclass(frozen=True, slots=True)
class Total:
    """A sum of prefill times in ms, image encoding in it.

    Attributes:
        steps: that are summed.
        measured_steps: those of them that were measured.
        ms: the sum; None where nothing can be said.
        low_ms: lower end of its 95 % interval; None without one.
        high_ms: upper end.
        measured_ms: the part of ``ms`` that was measured.
        beyond_steps: those that the sample says nothing of, see above.
        beyond_ms: the part of ``ms`` that is theirs.
        flaw: why there is no interval, or not even a sum; empty if there is one.
    """

    steps: int
    measured_steps: int
    ms: float | None
    low_ms: float | None
    high_ms: float | None
    measured_ms: float
    beyond_steps: int
    beyond_ms: float
    flaw: str

    @property
    def is_extrapolated(self) -> bool:
        """Whether it is more than a sum of what was measured."""
        return self.measured_steps < self.steps


class Times:
    """Prefill times of one variant over all steps of a trace.

    Args:
        units: all steps, measured and not.
        whole: the variant decodes its whole prompt (``full``), not only what is new.

    Attributes:
        model: fitted to what was measured.

    Raises:
        StoreError: the measured steps do not determine the model, or it gives a step no time.
    """

    def __init__(self, units: Sequence[Unit], *, whole: bool = False) -> None:
        self._whole = whole
        measured = [unit for unit in units if unit.is_measured]
        cells = [self._cell(unit) for unit in measured]
        self.model: CostModel = fit(
            Point(depth, new, unit.lm_ms or 0.0)
            for unit, (depth, new) in zip(measured, cells, strict=True)
        )
        self._images = ImageTimes.of(
            (unit.pixels, unit.encode_ms) for unit in measured if unit.pixels
        )
        self._sampled = np.unique(_strata(measured))
        self._deepest = max(unit.depth for unit in measured)
        self._smallest = min(new for _, new in cells)
        self._largest = max(new for _, new in cells)
        modelled_ms = self.model_ms(units)
        if float(modelled_ms.min()) <= 0:
            raise StoreError(
                "the cost model gives some steps no time above 0",
                hint="give the budget more time, so that more steps are measured",
            )
        self._ratios = Ratios(_strata(units), modelled_ms, np.array([unit.ms for unit in units]))

    def model_ms(self, units: Sequence[Unit]) -> Floats:
        """Cost model and image encoding of each step, as no stratum has corrected it yet."""
        depth, new = self._columns(units)
        model = self.model
        lm_ms: Floats = model.a_ms + model.b_ms * new + model.c_ms * new * depth
        return lm_ms + self._images.ms_of([unit.pixels for unit in units])

    def estimated_ms(self, units: Sequence[Unit]) -> list[float | None]:
        """What is said of each of some steps that were not measured; None where nothing can be."""
        modelled_ms = self.model_ms(units)
        groups = self._ratios.groups_of(_strata(units), modelled_ms)
        unknown = self._is_outside(units, REACH)
        return [
            None if is_unknown or (unit.pixels and not self._images.pixels) else ms
            for unit, ms, is_unknown in zip(
                units,
                self._ratios.estimate(groups, modelled_ms).tolist(),
                unknown.tolist(),
                strict=True,
            )
        ]

    def total(self, units: Sequence[Unit]) -> Total:
        """The sum over ``units``: all steps of the trace, or some of them, as those of a task."""
        measured_ms = math.fsum(unit.ms for unit in units if unit.is_measured)
        rest = [unit for unit in units if not unit.is_measured]
        modelled_ms = self.model_ms(rest)
        groups = self._ratios.groups_of(_strata(rest), modelled_ms)
        rest_ms = self._ratios.estimate(groups, modelled_ms)
        beyond = self._is_beyond(rest)
        far = int(self._is_outside(rest, REACH).sum())
        without_encoding = not self._images.pixels and any(unit.pixels for unit in rest)
        flaw = ""
        if without_encoding:
            flaw = "no screenshot was measured, so what their encoding takes is not known"
        elif far:
            flaw = self._beyond_what(far, is_far=True)
        elif rest:
            flaw = self._beyond_what(int(beyond.sum())) or self._ratios.flaw
        ms, margin_ms = measured_ms + math.fsum(rest_ms), 0.0
        if not flaw:
            margin_ms = self._ratios.margin(groups, modelled_ms)
        return Total(
            steps=len(units),
            measured_steps=len(units) - len(rest),
            ms=None if without_encoding or far else ms,
            # What was measured is there, whatever the rest takes.
            low_ms=None if flaw else max(measured_ms, ms - margin_ms),
            high_ms=None if flaw else ms + margin_ms,
            measured_ms=measured_ms,
            beyond_steps=int(beyond.sum()),
            beyond_ms=math.fsum(rest_ms[beyond]),
            flaw=flaw,
        )

    def _cell(self, unit: Unit) -> tuple[int, int]:
        """Depth and new tokens in the cost model's sense.

        A token finds before it, in the mean, half of those that are decoded with it: without it the
        model would have a step without a prefix cost too little.
        """
        if not self._whole:
            return unit.depth + unit.new // 2, unit.new
        tokens = unit.depth + unit.new
        return tokens // 2, tokens

    def _columns(self, units: Sequence[Unit]) -> tuple[Floats, Floats]:
        cells = np.array([self._cell(unit) for unit in units], dtype=np.float64).reshape(-1, 2)
        return cells[:, 0], cells[:, 1]

    def _is_beyond(self, units: Sequence[Unit]) -> Booleans:
        """Which steps the sample says nothing of.

        Where too few were drawn, strata say nothing and the range alone counts.
        """
        pixels = np.array([unit.pixels for unit in units])
        strata = _strata(units)
        unseen = strata == UNDRAWN
        if self._ratios.is_by_lot:
            unseen |= ~np.isin(strata, self._sampled)
        beyond: Booleans = (
            unseen
            | self._is_outside(units, TOLERANCE)
            | (pixels > TOLERANCE * max(self._images.pixels, default=0))
        )
        return beyond

    def _is_outside(self, units: Sequence[Unit], factor: float) -> Booleans:
        """Which steps are deeper, larger or smaller than all measured ones by ``factor``.

        Less depth than any that was measured is within: what depth costs only vanishes there.
        """
        _, new = self._columns(units)
        depth = np.array([unit.depth for unit in units])
        # Of a whole prompt its size tells all.
        deeper = (not self._whole) & (depth > factor * self._deepest)
        outside: Booleans = (
            deeper | (new > factor * self._largest) | (factor * new < self._smallest)
        )
        return outside

    def _beyond_what(self, steps: int, *, is_far: bool = False) -> str:
        if not steps:
            return ""
        lie = "1 step lies" if steps == 1 else f"{steps:,} steps lie"
        what = "prompts of" if self._whole else f"L up to {self._deepest:,}, new from"
        measured = f"what was measured ({what} {self._smallest:,} to {self._largest:,} tokens)"
        if is_far:
            return f"{lie} by more than a factor of {REACH:g} beyond {measured}"
        return f"{lie} beyond {measured}, or where nothing was drawn"


def _strata(units: Sequence[Unit]) -> Integers:
    return np.array(
        [UNDRAWN if unit.stratum is None else unit.stratum for unit in units], dtype=np.int64
    )

"""The separate ratio estimate: what is measured in a stratified sample against what a model says.

A stratified sample was drawn by lot, and a model gives a figure ``f`` for every step. What a step
has is estimated as ``R * f``, with ``R`` the ratio of sums, measured over model, in its stratum
(Cochran, Sampling Techniques, 3rd ed. 1977, sections 6.10 to 6.12): ``R`` times the model's sum
over a stratum is what was measured there, plus ``R * f`` of the rest. The model need not be right,
it only has to go along with what is measured: how far it does not is what ``R`` takes up between
strata, and what widens the interval within them.

The interval is that of a prediction (Royall, On finite population sampling theory under certain
linear regression models, Biometrika 57, 1970). In a stratum with ``n`` measured steps and residuals
``d = y - R * f`` of variance ``s2``, the rest has the sum ``R * F`` with the variance
``s2 * (n * (F / F_n)**2 + Q / q)``, where ``F`` and ``F_n`` are the sums of ``f`` over the rest and
over the measured steps, ``Q`` is the sum of ``f**2`` over the rest and ``q`` its mean over the
measured ones: the uncertainty of R, and the scatter of the steps themselves. For steps that are
alike and a whole stratum it is the usual ``N**2 * (1 - n / N) * s2 / n``; unlike that one, it holds
for some of the steps as well, as those of one task. The variances of strata are added, the degrees
of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946), and `MODEL_TERMS` of them are given up
for a model that was fitted to the same steps. Strata with fewer than `MIN_MEASURED` measured steps
are put together with their neighbours by ``f`` (collapsed strata, Cochran section 5A.12), which can
only widen the interval. Steps that were taken without a lot are no part of a ratio, unless fewer
than `MIN_MEASURED` were drawn at all: then all measured ones make one. A prediction holds for any
choice that followed from what is known of the steps, and not from what was measured, but for no
model that is wrong in a way that this choice conceals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from experiment.intervals import CONFIDENCE

MIN_MEASURED = 4
"""Measured steps that a ratio is taken of."""

MODEL_TERMS = 2
"""Of the cost model's three, since the ratios take up one."""

_MANY = 1000  # degrees of freedom from which on t is that of the normal distribution to 0.1 %

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class Ratios:
    """Ratios of measured to modelled, in groups of strata.

    Args:
        strata: of each step; a step below 1 was not drawn by lot.
        modelled: ``f`` of each step, above 0.
        measured: of each step what was measured; NaN where nothing was. At least one is there.

    Attributes:
        is_by_lot: whether the ratios are those of steps that were drawn by lot.
        flaw: why there can be no interval; empty if there can.
    """

    def __init__(self, strata: Integers, modelled: Floats, measured: Floats) -> None:
        has = ~np.isnan(measured)
        by_lot = has & (strata >= 1)
        numbers = np.unique(strata[strata >= 1]).tolist()
        self._mean = {n: float(modelled[strata == n].mean()) for n in numbers}
        self.is_by_lot = int(by_lot.sum()) >= MIN_MEASURED
        if self.is_by_lot:
            counts = {n: int((by_lot & (strata == n)).sum()) for n in numbers}
            self._group_of = collapsed(self._mean, counts)
            of = np.array([self._group_of.get(n, -1) for n in strata.tolist()])
            masks = [by_lot & (of == group) for group in range(1 + max(self._group_of.values()))]
        else:
            self._group_of, masks = dict.fromkeys(numbers, 0), [has]
        self._groups = [_Group.of(measured[mask], modelled[mask]) for mask in masks]
        free = sum(group.n - 1 for group in self._groups)
        self._inflation = free / (free - MODEL_TERMS) if free > MODEL_TERMS else math.nan
        self.flaw = ""
        if free <= MODEL_TERMS:
            self.flaw = f"{int(has.sum()):,} measured steps are too few for an interval"

    def groups_of(self, strata: Integers, modelled: Floats) -> Integers:
        """The group of each step: its stratum's; without one, that of the nearest by ``f``."""
        nearest = sorted((mean, self._group_of[n]) for n, mean in self._mean.items())
        found = [
            self._group_of[n] if n in self._group_of else _nearest(nearest, f)
            for n, f in zip(strata.tolist(), modelled.tolist(), strict=True)
        ]
        return np.array(found, dtype=np.int64)

    def estimate(self, groups: Integers, modelled: Floats) -> Floats:
        """What each of these steps has, which were not measured."""
        ratios = np.array([group.ratio for group in self._groups])
        estimated: Floats = ratios[groups] * modelled
        return estimated

    def margin(self, groups: Integers, modelled: Floats) -> float:
        """Half the 95 % interval of the sum of that; of no use where there is a ``flaw``."""
        parts = [
            (self._inflation * group.variance_of(modelled[groups == i]), group.n - 1)
            for i, group in enumerate(self._groups)
            if (groups == i).any()
        ]
        variance = sum(part for part, _ in parts)
        if not variance:
            return 0.0
        freedom = variance**2 / sum(part**2 / free for part, free in parts)
        # Less than a whole degree too few by rounding would be a whole one.
        return student_t(math.floor(freedom + 1e-9)) * math.sqrt(variance)


@dataclass(frozen=True, slots=True)
class _Group:
    """A ratio and what it was taken of: ``n`` measured steps.

    ``variance`` is that of the residuals; ``total`` and ``mean_square`` are those of ``f``.
    """

    ratio: float
    variance: float
    n: int
    total: float
    mean_square: float

    @classmethod
    def of(cls, measured: Floats, modelled: Floats) -> _Group:
        n, ratio = len(measured), float(measured.sum() / modelled.sum())
        squares = float(((measured - ratio * modelled) ** 2).sum())
        variance = squares / (n - 1) if n > 1 else math.nan
        return cls(ratio, variance, n, float(modelled.sum()), float((modelled**2).mean()))

    def variance_of(self, modelled: Floats) -> float:
        """Of the sum over steps that were not measured."""
        of_ratio = self.n * (float(modelled.sum()) / self.total) ** 2
        return self.variance * (of_ratio + float((modelled**2).sum()) / self.mean_square)


def collapsed(mean: Mapping[int, float], counts: Mapping[int, int]) -> dict[int, int]:
    """The group of each stratum: neighbours by ``mean``, until each has `MIN_MEASURED` steps."""
    runs: list[list[int]] = []
    for number in sorted(mean, key=lambda number: (mean[number], number)):
        if not runs or sum(counts[n] for n in runs[-1]) >= MIN_MEASURED:
            runs.append([])
        runs[-1].append(number)
    if len(runs) > 1 and sum(counts[n] for n in runs[-1]) < MIN_MEASURED:
        last = runs.pop()
        runs[-1] += last
    return {number: group for group, run in enumerate(runs) for number in run}


def _nearest(groups: Sequence[tuple[float, int]], value: float) -> int:
    """The group whose mean is nearest; ``groups`` are ascending."""
    if not groups:
        return 0
    place = bisect_left(groups, (value, -1))
    around = groups[max(0, place - 1) : place + 1]
    return min(around, key=lambda item: abs(item[0] - value))[1]


@lru_cache(maxsize=256)
def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The quantile of Student's t that bounds ``confidence`` of it on both sides.

    By bisection of the finite series for whole degrees of freedom (Abramowitz and Stegun, Handbook
    of Mathematical Functions, 1964, 26.7.3 and 26.7.4), which end at `_MANY`.
    """
    nu = min(max(1, freedom), _MANY)
    low, high = 0.0, 1.0
    while _within(high, nu) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _within(middle, nu) < confidence:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, nu: int) -> float:
    """The chance that Student's t with ``nu`` degrees of freedom lies between -t and t."""
    theta = math.atan(t / math.sqrt(nu))
    cosine, sine = math.cos(theta), math.sin(theta)
    is_odd = nu % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(1, (nu + 1) // 2 if is_odd else nu // 2 + 1):
        total += term
        term *= cosine**2 * (2 * k / (2 * k + 1) if is_odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (theta + sine * total) if is_odd else sine * total

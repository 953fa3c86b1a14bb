"""The 95 % bootstrap interval of a median, exactly: no resampling and no random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95

MIN_PAIRS = 6
"""So many pairs an interval needs before anything is concluded from it: the range of six covers
the median in 97 % of cases, that of three in 75 %."""

TAIL_SDS = 40
"""Standard deviations after which a binomial tail is cut off: what is left is below 1e-300."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median of ``n`` values and its interval, all in the unit of the values."""

    low: float
    high: float
    median: float
    n: int

    @property
    def margin(self) -> float:
        """The longer of the interval's two sides, in the unit of the values: what follows ±."""
        return max(self.high - self.median, self.median - self.low)

    @property
    def half_width(self) -> float:
        """``margin`` as a share of the median; infinite for a median of 0."""
        return self.margin / abs(self.median) if self.median else math.inf


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (from 1) of the two sorted values that bound the median of ``n``; None below two.

    A resample of n values takes the k-th smallest or a smaller one n times with chance k / n, so
    its j-th smallest is at most the k-th of the sample with chance P(Bin(n, k / n) >= j): the
    bootstrap distribution of an order statistic in closed form (Efron, Bootstrap methods: another
    look at the jackknife, Annals of Statistics 7, 1979, section 3). The lower rank is the first
    k at which that exceeds half of ``1 - confidence``, with j the lower of the middle ranks; the
    upper one is its mirror, which for an even n makes the interval the wider.
    """
    if n < 2:
        return None
    middle, tail = (n + 1) // 2, (1 - confidence) / 2
    # The chance grows with k, and at k = middle it is at least 1/2.
    low, high = 1, middle
    while low < high:
        k = (low + high) // 2
        if _chance_at_least(middle, n, k / n) > tail:
            high = k
        else:
            low = k + 1
    return low, n + 1 - low


def _chance_at_least(j: int, n: int, p: float) -> float:
    """P(Bin(n, p) >= j) for 0 < p < 1 and p <= about j / n, where the terms fall from j on."""
    last = min(n, j + math.ceil(TAIL_SDS * math.sqrt(n)))
    # Logarithms: the terms themselves underflow from n = 1,000 on.
    first = (
        (math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1))
        + j * math.log(p)
        + (n - j) * math.log1p(-p)
    )
    i = np.arange(j, last, dtype=np.float64)
    growth = np.log((n - i) / (i + 1)) + (math.log(p) - math.log1p(-p))
    terms = np.concatenate(([0.0], np.cumsum(growth)))
    return float(np.exp(first + terms).sum())


def median_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval | None:
    """The median of ``values`` (one dimension, any order) and its interval; None below two."""
    ordered: NDArray[np.float64] = np.sort(np.asarray(values, dtype=np.float64))
    ranks = median_ranks(len(ordered), confidence)
    if ranks is None:
        return None
    low, high = ranks
    return Interval(
        low=float(ordered[low - 1]),
        high=float(ordered[high - 1]),
        median=float(np.median(ordered)),
        n=len(ordered),
    )


def noise_floor(aa: Interval | None) -> float | None:
    """How far the ratio of two measurements of the same thing strays from 1; None if unmeasured.

    ``aa`` is the interval of A/A ratios, of which nothing but noise keeps the median from 1.
    """
    return None if aa is None else max(abs(aa.low - 1), abs(aa.high - 1))


def difference(ratio: Interval, floor: float | None) -> float | None:
    """``ratio.median - 1`` where it is more than noise, else None: "no difference".

    Noise it is if the interval contains 1, or if the median is no farther from 1 than ``floor``.
    """
    away = ratio.median - 1
    if ratio.low <= 1 <= ratio.high or (floor is not None and abs(away) <= floor):
        return None
    return away

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest

from experiment.intervals import Interval, median_interval, median_ranks


@pytest.mark.parametrize(
    ("n", "ranks"),
    [
        # j is the lower middle rank (n + 1) // 2; the lower rank is the first k with
        # P(Bin(n, k/n) >= j) > 0.025, the upper one n + 1 - k.
        # n = 2, j = 1: P(Bin(2, 1/2) >= 1) = 3/4.
        (2, (1, 2)),
        # n = 3, j = 2: P(Bin(3, 1/3) >= 2) = (3*2 + 1) / 27 = 0.259.
        (3, (1, 3)),
        # n = 4, j = 2: P(Bin(4, 1/4) >= 2) = (6*9 + 4*3 + 1) / 256 = 0.262.
        (4, (1, 4)),
        # n = 5, j = 3: P(Bin(5, 1/5) >= 3) = (10*16 + 5*4 + 1) / 3125 = 0.058.
        (5, (1, 5)),
        # n = 6, j = 3: P(Bin(6, 1/6) >= 3) = (20*125 + 15*25 + 6*5 + 1) / 46656 = 0.062.
        (6, (1, 6)),
        # n = 7, j = 4: k = 1: (35*216 + 21*36 + 7*6 + 1) / 823543 = 8359 / 823543 = 0.0102;
        # k = 2: (35*16*125 + 21*32*25 + 7*64*5 + 128) / 823543 = 89168 / 823543 = 0.108.
        (7, (2, 6)),
        # n = 8, j = 4: k = 1: (70*2401 + 56*343 + 28*49 + 8*7 + 1) / 8^8
        # = 188707 / 16777216 = 0.0112; k = 2, i.e. p = 1/4, over 4^8 = 65536:
        # 70*81 + 56*27 + 28*9 + 8*3 + 1 = 7459, 0.114.
        (8, (2, 7)),
        # n = 9, j = 5: k = 2, i.e. p = 2/9: over 9^9 = 387420489:
        # 126*32*2401 + 84*64*343 + 36*128*49 + 9*256*7 + 512 = 11767232, 0.0304.
        # k = 1: 126*4096 + 84*512 + 36*64 + 9*8 + 1 = 561481, 0.0014.
        (9, (2, 8)),
        # n = 10, j = 5: k = 2, i.e. p = 1/5, over 5^10 = 9765625:
        # 252*1024 + 210*256 + 120*64 + 45*16 + 10*4 + 1 = 320249, 0.0328; k = 1: 0.0016.
        (10, (2, 9)),
        # Summed exactly by test_ranks_are_those_of_exact_fractions:
        # n = 20, j = 10: k = 5: 0.0139, k = 6: 0.0480.
        (20, (6, 15)),
        # n = 21, j = 11: k = 6: 0.0183, k = 7: 0.0557.
        (21, (7, 15)),
        # n = 100: 50 - 1.96 * sqrt(100) / 2 = 40.2.
        (100, (40, 61)),
    ],
)
def test_ranks_by_hand(n: int, ranks: tuple[int, int]) -> None:
    assert median_ranks(n) == ranks


def exact_chance(n: int, k: int) -> Fraction:
    """P(Bin(n, k/n) >= (n + 1) // 2) without any rounding."""
    p = Fraction(k, n)
    return sum(
        (math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range((n + 1) // 2, n + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize("n", [*range(2, 41), 51, 99, 100])
@pytest.mark.parametrize("tail", [Fraction(25, 1000), Fraction(5, 1000), Fraction(1, 10)])
def test_ranks_are_those_of_exact_fractions(n: int, tail: Fraction) -> None:
    expected = next(k for k in range(1, n + 1) if exact_chance(n, k) > tail)
    assert median_ranks(n, float(1 - 2 * tail)) == (expected, n + 1 - expected)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_ranks_are_those_of_all_resamples(n: int) -> None:
    # Every one of the n^n resamples, each as likely: count those whose j-th smallest is <= k.
    resamples = np.sort(np.array(list(itertools.product(range(1, n + 1), repeat=n))), axis=1)
    middle = resamples[:, (n + 1) // 2 - 1]
    for tail in (0.025, 0.1, 0.25):
        low = next(k for k in range(1, n + 1) if np.mean(middle <= k) > tail)
        assert median_ranks(n, 1 - 2 * tail) == (low, n + 1 - low)


def test_a_monte_carlo_bootstrap_agrees() -> None:
    chance = np.random.default_rng(11)
    values = chance.exponential(size=51)
    medians = np.median(chance.choice(values, size=(200_000, 51)), axis=1)
    interval = median_interval(values)
    assert interval is not None
    # Percentiles of the resampled medians, as the textbook bootstrap takes them. n is odd, so
    # each of these medians is one of the values, and both ends agree to the digit.
    low, high = np.quantile(medians, [0.025, 0.975], method="inverted_cdf")
    assert (interval.low, interval.high) == (low, high)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_values_for_an_interval(n: int) -> None:
    assert median_ranks(n) is None
    assert median_interval(np.ones(n)) is None


@pytest.mark.parametrize("n", [10_001, 1_000_000])
def test_very_many_values_neither_overflow_nor_take_long(n: int) -> None:
    median_ranks.cache_clear()
    began = time.perf_counter()
    ranks = median_ranks(n)
    assert time.perf_counter() - began < 1
    assert ranks is not None
    # The normal approximation: 1.96 sqrt(n) / 2 ranks to each side of the middle.
    assert (ranks[1] - ranks[0]) / 2 == pytest.approx(1.959964 * math.sqrt(n) / 2, abs=1.1)
    assert sum(ranks) == n + 1


def test_the_interval_covers_the_median_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    hits = 0
    for _ in range(2000):
        interval = median_interval(chance.exponential(size=30))
        assert interval is not None
        hits += interval.low <= np.log(2) <= interval.high
    # Ranks 10 and 21 of 30 cover with 1 - 2 P(Bin(30, 1/2) <= 9) = 95.7 %: 1914 of 2,000;
    # five standard deviations are 45.
    assert median_ranks(30) == (10, 21)
    assert abs(hits - 1914) < 45


def test_an_interval_by_hand() -> None:
    # Seven values: the second smallest and the second largest.
    interval = median_interval([10.0, 1.0, 3.0, 4.0, 2.0, 8.0, 5.0])
    assert interval == Interval(low=2.0, high=8.0, median=4.0, n=7)
    assert interval.margin == 4.0  # 8 - 4 against 4 - 2
    assert interval.half_width == 1.0
    # Four values: the median lies between the middle two, the interval is all of them.
    interval = median_interval([4.0, 1.0, 3.0, 2.5])
    assert interval == Interval(low=1.0, high=4.0, median=2.75, n=4)
    assert interval.margin == 1.75
    assert interval.half_width == pytest.approx(7 / 11)


def test_half_width_of_a_median_below_or_at_zero() -> None:
    assert Interval(-3.0, -1.5, -2.0, 5).half_width == 0.5
    assert Interval(-1.0, 1.0, 0.0, 5).half_width == math.inf

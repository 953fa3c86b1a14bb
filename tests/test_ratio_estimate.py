from __future__ import annotations

import math

import numpy as np
import pytest

from experiment.ratio_estimate import Ratios, collapsed, student_t

NAN = math.nan


def ratios(strata: list[int], modelled: list[float], measured: list[float]) -> Ratios:
    return Ratios(np.array(strata), np.array(modelled), np.array(measured))


def margin(made: Ratios, strata: list[int], modelled: list[float]) -> float:
    groups = made.groups_of(np.array(strata), np.array(modelled))
    return made.margin(groups, np.array(modelled))


def estimate(made: Ratios, strata: list[int], modelled: list[float]) -> list[float]:
    groups = made.groups_of(np.array(strata), np.array(modelled))
    return made.estimate(groups, np.array(modelled)).tolist()


def test_one_stratum_by_hand() -> None:
    made = ratios([1] * 6, [10.0] * 6, [11.0, 9.0, 10.0, 12.0, NAN, NAN])
    # R = 42 / 40.
    assert estimate(made, [1, 1], [10.0, 10.0]) == pytest.approx([10.5, 10.5])
    # Residuals 0.5, -1.5, -0.5, 1.5: s2 = 5 / 3. N^2 (1 - n/N) s2 / n = 36 / 3 * 5 / 12 = 5;
    # 3 degrees of freedom, of which two are the model's: 3 times as much.
    assert made.flaw == ""
    assert margin(made, [1, 1], [10.0, 10.0]) == pytest.approx(3.1824463 * math.sqrt(15))


def test_steps_of_different_size_by_hand() -> None:
    made = ratios([1] * 5, [10.0, 20.0, 30.0, 40.0, 50.0], [12.0, 18.0, 30.0, 40.0, NAN])
    # R = 100 / 100; residuals 2, -2, 0, 0: s2 = 8 / 3. n (F / F_n)^2 = 4 / 4 = 1;
    # Q / q = 2500 / 750.
    variance = 3 * 8 / 3 * (1 + 2500 / 750)
    assert margin(made, [1], [50.0]) == pytest.approx(3.1824463 * math.sqrt(variance))


def test_two_groups_and_their_degrees_of_freedom() -> None:
    small = [9.0, 11.0, 9.0, 11.0, 10.0]
    large = [90.0, 110.0, 95.0, 105.0]
    made = ratios([1] * 6 + [2] * 5, [10.0] * 6 + [100.0] * 5, [*small, NAN, *large, NAN])
    # s2 = 4 / 4 and 250 / 3. One step of each is left: s2 (1 / n + 1) each, times 7 / 5.
    parts = [1.4 * 1.0 * 1.2, 1.4 * 250 / 3 * 1.25]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 3)
    assert math.floor(freedom) == 3
    assert margin(made, [1, 2], [10.0, 100.0]) == pytest.approx(3.1824463 * math.sqrt(sum(parts)))
    # Only one of them concerns a part of the steps.
    assert margin(made, [1], [10.0]) == pytest.approx(2.7764451 * math.sqrt(parts[0]))
    assert margin(made, [], []) == 0.0


def test_each_stratum_has_its_own_ratio() -> None:
    made = ratios([1] * 4 + [2] * 4, [10.0] * 4 + [100.0] * 4, [11.0] * 4 + [90.0] * 4)
    assert estimate(made, [1, 2], [20.0, 20.0]) == pytest.approx([22.0, 18.0])
    assert margin(made, [1, 2], [20.0, 20.0]) == pytest.approx(0.0)


def test_a_step_without_a_stratum_takes_that_of_the_nearest() -> None:
    made = ratios([1] * 4 + [2] * 4, [10.0] * 4 + [100.0] * 4, [11.0] * 4 + [90.0] * 4)
    assert estimate(made, [-1, 0, -1], [54.0, 56.0, 900.0]) == pytest.approx([59.4, 50.4, 810.0])


def test_extremes_are_not_by_lot() -> None:
    # The one step of stratum 0 is far off, and no part of the ratio.
    made = ratios([0, 1, 1, 1, 1, 1], [10.0] * 6, [99.0, 10.0, 10.0, 10.0, 10.0, NAN])
    assert estimate(made, [1], [10.0]) == pytest.approx([10.0])


def test_where_too_few_were_drawn_all_measured_ones_make_a_ratio() -> None:
    made = ratios([0, 0, 0, 1, 2, 2], [10.0] * 6, [11.0, 9.0, 10.0, 12.0, NAN, NAN])
    assert not made.is_by_lot
    # As one stratum of six, by hand above.
    assert estimate(made, [2, 2], [10.0, 10.0]) == pytest.approx([10.5, 10.5])
    assert margin(made, [2, 2], [10.0, 10.0]) == pytest.approx(3.1824463 * math.sqrt(15))
    assert ratios([1] * 4, [10.0] * 4, [10.0] * 4).is_by_lot


@pytest.mark.parametrize(
    ("strata", "measured", "count"),
    [
        ([1, 1, 1, 1], [1.0, 2.0, 3.0, NAN], 3),
        ([1, 1, 1, 1], [1.0, NAN, NAN, NAN], 1),
        ([0, 0, 0, 1], [1.0, 2.0, 3.0, NAN], 3),
    ],
)
def test_too_few_for_an_interval(strata: list[int], measured: list[float], count: int) -> None:
    made = ratios(strata, [1.0, 2.0, 3.0, 4.0], measured)
    assert made.flaw == f"{count} measured steps are too few for an interval"
    assert all(math.isfinite(value) for value in estimate(made, [1, -1], [4.0, 5.0]))


def test_strata_are_put_together_with_neighbours_in_time() -> None:
    mean = {1: 50.0, 2: 10.0, 3: 30.0, 4: 40.0, 5: 20.0}
    # In the order of their means 2, 5, 3, 4, 1.
    assert collapsed(mean, dict.fromkeys(mean, 4)) == {2: 0, 5: 1, 3: 2, 4: 3, 1: 4}
    assert collapsed(mean, dict.fromkeys(mean, 2)) == {2: 0, 5: 0, 3: 1, 4: 1, 1: 1}
    assert collapsed(mean, {1: 1, 2: 9, 3: 0, 4: 3, 5: 0}) == {2: 0, 5: 1, 3: 1, 4: 1, 1: 1}
    assert collapsed(mean, {1: 1, 2: 0, 3: 0, 4: 1, 5: 0}) == dict.fromkeys(mean, 0)
    assert collapsed({}, {}) == {}


def test_students_t_as_in_the_tables() -> None:
    # R. A. Fisher's table, P = 0.05.
    told = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045, 30: 2.042}
    for freedom, value in told.items():
        assert student_t(freedom) == pytest.approx(value, abs=5e-4)
    assert student_t(5, 0.99) == pytest.approx(4.032, abs=5e-4)
    assert student_t(10**9) == student_t(1000) == pytest.approx(1.960, abs=3e-3)
    assert student_t(0) == student_t(1)

from __future__ import annotations

import itertools

import pytest

from experiment.cost_model import Point, fit
from experiment.errors import StoreError

DEPTHS = (256, 4096, 131072)
SIZES = (16, 256, 2048)


def points(a: float, b: float, c: float, mean_depth: bool = False) -> list[Point]:
    return [
        Point(depth, new, a + b * new + c * new * (depth + (new / 2 if mean_depth else 0)))
        for depth, new in itertools.product(DEPTHS, SIZES)
    ]


def test_an_exact_law_is_found_over_five_powers_of_ten() -> None:
    model = fit(points(3.0, 0.4, 4e-5))
    assert model.a_ms == pytest.approx(3.0)
    assert model.b_ms == pytest.approx(0.4)
    assert model.c_ms == pytest.approx(4e-5)
    assert model.r2 == pytest.approx(1.0, abs=1e-12)
    assert model.residuals_pct == pytest.approx([0.0] * 9, abs=1e-9)
    # 3 + 0.4 * 100 + 4e-5 * 100 * 1000
    assert model.ms(100, 1000) == pytest.approx(47.0)


def test_the_variant_with_the_mean_depth_is_told_by_its_own_r2() -> None:
    model = fit(points(3.0, 0.4, 4e-4, mean_depth=True))
    assert model.r2_mean_depth == pytest.approx(1.0, abs=1e-12)
    assert model.r2 < 0.9999
    assert fit(points(3.0, 0.4, 4e-4)).r2_mean_depth < 0.9999  # type: ignore[operator]


def test_three_cells_are_met_exactly() -> None:
    # b + c * 100 = (30 - 20) / 10 = 1, a = 10, and 40 = 10 + 10 * (b + c * 300): c = 0.01, b = 0.
    model = fit([Point(100, 10, 20.0), Point(100, 20, 30.0), Point(300, 10, 40.0)])
    assert (model.a_ms, model.b_ms, model.c_ms) == pytest.approx((10.0, 0.0, 0.01))
    assert model.largest_residual_pct == pytest.approx(0.0, abs=1e-9)


def test_residuals_are_relative_and_so_is_what_is_minimised() -> None:
    # Two measurements of one cell, 10 and 20 ms: (T / 10 - 1)^2 + (T / 20 - 1)^2 is least where
    # (1/100 + 1/400) T = 1/10 + 1/20, that is at 12 ms: 20 % over the one, 40 % below the other.
    model = fit(
        [Point(0, 1, 10.0), Point(0, 1, 20.0), Point(0, 2, 30.0), Point(100, 1, 50.0)],
    )
    assert model.ms(1, 0) == pytest.approx(12.0)
    assert model.residuals_pct == pytest.approx((20.0, -40.0, 0.0, 0.0), abs=1e-9)
    assert model.largest_residual_pct == pytest.approx(-40.0)
    # The best constant: sums of 1/T and 1/T^2 over 10, 20, 30, 50 ms.
    constant = (1 / 10 + 1 / 20 + 1 / 30 + 1 / 50) / (1 / 100 + 1 / 400 + 1 / 900 + 1 / 2500)
    total = sum((constant / ms - 1) ** 2 for ms in (10, 20, 30, 50))
    assert model.r2 == pytest.approx(1 - 0.2 / total)  # 0.2^2 + 0.4^2


def test_equal_times_everywhere_leave_nothing_to_explain() -> None:
    model = fit(Point(depth, new, 5.0) for depth, new in itertools.product(DEPTHS, SIZES))
    assert (model.a_ms, model.r2) == (pytest.approx(5.0), 1.0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "0 cells with no depth"),
        ([Point(256, 16, 1.0), Point(256, 64, 2.0)], r"2 cells with one depth \(256\)"),
        (
            [Point(256, 16, 1.0), Point(512, 16, 2.0), Point(768, 16, 3.0)],
            r"3 cells with one number of new tokens \(16\)",
        ),
        ([Point(256, 16, 1.0), Point(512, 64, 2.0)], "these 2 cells do not determine"),
        # Each size at one depth only: b and c cannot be told apart.
        (
            [Point(256, 16, 1.0), Point(256, 16, 1.1), Point(512, 64, 2.0)],
            "these 3 cells do not determine",
        ),
        ([Point(256, 16, 1.0), Point(512, 64, 0.0)], "above 0"),
        ([Point(256, 16, 1.0), Point(512, 64, float("nan"))], "above 0"),
    ],
)
def test_cells_that_determine_nothing(given: list[Point], reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        fit(given)

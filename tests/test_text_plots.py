from __future__ import annotations

import pytest

from experiment.text_plots import bar, histogram, sparkline


def test_a_column_a_value() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 7, 40) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 14, 0], 14, 40) == "▅█▁"
    assert sparkline([], 7, 40) == ""
    assert sparkline([0, 0], 0, 40) == "▁▁"
    assert sparkline([99], 7, 40) == "█"


def test_of_many_values_the_largest_of_each_run() -> None:
    assert sparkline([0, 7, 0, 0, 0, 0], 7, 3) == "█▁▁"
    assert sparkline([0] * 999 + [7], 7, 10) == "▁" * 9 + "█"
    # Seven values in three columns: two, two and three of them.
    assert sparkline([1, 0, 0, 3, 0, 0, 7], 7, 3) == "▂▄█"
    assert len(sparkline(list(range(1000)), 999, 77)) == 77


def test_bars_to_an_eighth() -> None:
    assert bar(8, 8, 4) == "████"
    assert bar(4, 8, 4) == "██"
    assert bar(1, 32, 4) == "▏"
    assert bar(3, 32, 4) == "▍"
    assert bar(9, 32, 4) == "█▏"
    assert bar(0.001, 32, 4) == "▏"
    assert bar(0, 32, 4) == bar(1, 0, 4) == ""
    assert bar(99, 32, 4) == "████"


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        ([0], [(0, 0, 1)]),
        ([5], [(4, 7, 1)]),
        ([0, 5], [(0, 3, 1), (4, 7, 1)]),
        ([4, 7, 8, 15, 16], [(4, 7, 2), (8, 15, 2), (16, 31, 1)]),
        ([1, 1, 2], [(1, 1, 2), (2, 3, 1)]),
    ],
)
def test_bins(values: list[int], bins: list[tuple[int, int, int]]) -> None:
    assert [item for item in histogram(values) if item[2]] == bins


def test_many_powers_of_ten_make_wider_bins() -> None:
    values = [1, 300, 5000, 70_000, 1_000_000]
    bins = histogram(values)
    assert len(bins) <= 12
    assert sum(count for _, _, count in bins) == len(values)
    assert [low for low, _, _ in bins[:3]] == [1, 4, 16]
    for low, high, _ in bins:
        assert low <= high
    assert histogram(values, most=3)[-1][1] >= 1_000_000

"""How the benchmark's figures are printed."""

from __future__ import annotations

import re

import pytest

from experiment.bench_figures import Figure, Part, Target
from experiment.bench_tables import render

PART = Part(
    "speedup",
    "results/2026-11-30_bench (nano)",
    (
        Figure("whole run", "s", (145.92,), Target(150.0)),
        Figure("driver", "ms", (4.0, 31.0, 5.0), Target(30.0)),
        Figure("full / fake", "x", (59.0, 59.98), Target(60.0, "at least")),
        Figure("fake/restored", "", (0.99941, 1.00123)),
        Figure("columns", "", (262_400.0, 0.0), Target(262_144, "at least", every=True)),
        Figure("install", "ms", (), Target(0.2)),
    ),
)


def test_a_table_for_a_terminal() -> None:
    head, *lines, last = render(PART, "table").split("\n")[:-1]
    assert head == "speedup: results/2026-11-30_bench (nano)"
    assert last == ""
    assert [re.split(" {2,}", line) for line in lines] == [
        ["what", "median", "95 % interval", "range", "n", "target"],
        ["whole run", "145.9 s", "-", "145.9 to 145.9", "1", "at most 150 s", "met"],
        ["driver", "5.000 ms", *["4.000 to 31.00"] * 2, "3", "at most 30 ms", "met"],
        ["full / fake", "59.49 x", *["59.00 to 59.98"] * 2, "2", "at least 60 x", "missed"],
        ["fake/restored", "1.0003", *["0.9994 to 1.0012"] * 2, "2"],
        ["columns", "131,200", *["0 to 262,400"] * 2, "2", "each at least 262,144", "missed"],
        ["install", "-", "-", "-", "0", "at most 0.2 ms", "not measured"],
    ]


def test_numbers_stand_right_and_texts_left() -> None:
    figures = (
        Figure("a", "s", (123.4,), Target(9.0)),
        Figure("longer", "s", (4.0, 6.0), Target(10.0)),
    )
    assert render(Part("p", "o", figures), "table").splitlines()[1:-1] == [
        "what     median   95 % interval           range  n  target",
        "a       123.4 s               -  123.4 to 123.4  1  at most 9 s   missed",
        "longer  5.000 s  4.000 to 6.000  4.000 to 6.000  2  at most 10 s  met",
    ]


def test_markdown() -> None:
    assert render(PART, "md").splitlines() == [
        "speedup: `results/2026-11-30_bench (nano)`",
        "",
        "| what | median | 95 % interval | range | n | target |  |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
        "| whole run | 145.9 s | - | 145.9 to 145.9 | 1 | at most 150 s | met |",
        "| driver | 5.000 ms | 4.000 to 31.00 | 4.000 to 31.00 | 3 | at most 30 ms | met |",
        "| full / fake | 59.49 x | 59.00 to 59.98 | 59.00 to 59.98 | 2 | at least 60 x | missed |",
        "| fake/restored | 1.0003 | 0.9994 to 1.0012 | 0.9994 to 1.0012 | 2 |  |  |",
        "| columns | 131,200 | 0 to 262,400 | 0 to 262,400 | 2 | each at least 262,144 | missed |",
        "| install | - | - | - | 0 | at most 0.2 ms | not measured |",
        "",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (0.00012, "s", "0.0001"),
        (0.1444, "s", "0.1444"),
        (9.9996, "s", "10.000"),
        (-1.5, "s", "-1.500"),
        (31.254, "s", "31.25"),
        (1234.5, "s", "1,234"),
        (0.99941, "", "0.9994"),
        (1.00126, "", "1.0013"),
        (262_400.0, "", "262,400"),
    ],
)
def test_four_digits(value: float, unit: str, text: str) -> None:
    line = render(Part("p", "o", (Figure("w", unit, (value,)),)), "table").splitlines()[2]
    assert line.split() == ["w", text, *([unit] if unit else []), "-", text, "to", text, "1"]

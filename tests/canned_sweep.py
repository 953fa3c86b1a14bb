"""A sweep of three cells whose every figure can be read off; for the tests of its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiment.cost_model import CostModel
from experiment.intervals import Interval
from experiment.rows import RunRow
from experiment.sweep_results import Cell, Figure, Sweep


def figure(median: float, margin: float = 0.0, n: int = 6) -> Figure:
    if n < 2:
        return Figure(median, n, None)
    return Figure(median, n, Interval(median - margin, median + margin, median, n))


MODEL = CostModel(3.0, 0.5, 4e-5, 0.999, 0.9991, (0.5, -2.0, 1.0))

EQUAL = Cell(
    depth=256,
    new=16,
    fake=figure(11.0, 0.11),
    restored=figure(10.99, 0.11),
    ratio=figure(1.001, 0.004),
    noise=figure(1.0),
    bench=figure(10.0, 0.2, n=3),
    arithmetic_ms=5.5,
    model_ms=11.11,
    fake_install=figure(0.05, 0.001),
    restored_install=figure(1.25, 0.025),
    sampler=figure(1.0, 0.1),
    fake_experts=90,
    restored_experts=100,
    is_same_structure=True,
    is_batched_alike=True,
)
SLOWER = replace(
    EQUAL,
    new=2048,
    fake=figure(1040.0),
    ratio=figure(1.03, 0.02),
    bench=figure(1000.0),
    sampler=figure(2.0),
    arithmetic_ms=1092.0,
    model_ms=1019.2,
)
ALONE = Cell(4096, 16, figure(14.0, n=1), *[None] * 13)

SWEEP = Sweep(
    folder=Path("results/x_sweep"),
    run=RunRow("x_sweep", "sweep", "finished", "native", "sdist", "nano"),
    fill="tile",
    target_pct=0.5,
    chunk=512,
    cells=(EQUAL, SLOWER, ALONE),
    models={"fake": MODEL, "restored": "2 cells are too few", "bench": replace(MODEL, a_ms=0.25)},
    noise=figure(1.0005, 0.002, n=1200),
    drift_pct=-1.5,
    bench_again=((256, 1.034),),
    left_out=(),
)

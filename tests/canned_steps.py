"""Steps of traces for the tests of what is reckoned from them."""

from __future__ import annotations

from pathlib import Path

from experiment.screenshot import Screenshot
from experiment.trace import Baseline, DepthUnit, Step, Trace
from experiment.trace_header import TraceHeader

FULL_BASELINE = Baseline(1.0, 2.0, 4.0)


def step(
    task: str = "a",
    number: int = 0,
    depth: int = 1000,
    new: int | str | None = 100,
    shot: tuple[int, int] | Screenshot | None = None,
    baseline: Baseline | None = None,
    unit: DepthUnit = "tokens",
    line: int | None = None,
) -> Step:
    """``new`` is a number of tokens, or a text."""
    return Step(
        task,
        number,
        depth,
        unit,
        new if isinstance(new, str) else None,
        new if isinstance(new, int) else None,
        Screenshot(None, *shot) if isinstance(shot, tuple) else shot,
        baseline or Baseline(),
        number + 1 if line is None else line,
    )


def trace(*steps: Step, header: TraceHeader | None = None) -> Trace:
    return Trace(Path("folder/log.jsonl"), steps, "ab" * 32, header)

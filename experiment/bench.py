"""What the tool itself costs: a whole run, the driver's share of a request, an install."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from experiment.database import DATABASE
from experiment.engine import Engine
from experiment.progress import Progress
from experiment.settings import Settings
from experiment.trace import Trace

OVERHEAD_ROUNDS = 20


@dataclass(frozen=True)
class Figure:
    """All samples of one figure in ``unit``, and the target for their median if there is one."""

    what: str
    unit: str
    samples: tuple[float, ...]
    target: float | None

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)


def measure(
    engine: Engine, settings: Settings, trace: Trace, overhead: Trace, progress: Progress
) -> list[Figure]:
    """Run a whole trace once, and a trace of one step often, and read the figures.

    Both runs leave their results folders, so every figure can be looked up.
    """
    engine.build(settings, progress)
    started = time.monotonic()
    engine.run(settings, trace, "bench-default", progress)
    whole_s = time.monotonic() - started
    often = settings.model_copy(
        update={
            "schedule": settings.schedule.model_copy(
                update={"rounds": OVERHEAD_ROUNDS, "full_rounds": 0}
            )
        }
    )
    folder = engine.run(often, overhead, "bench-overhead", progress)
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        rows = connection.execute(
            "SELECT variant, wall_ms - prompt_ms, install_ms, prefill_ms FROM measurement "
            "WHERE status = 'ok' AND variant IN ('fake', 'restored') ORDER BY started_at"
        ).fetchall()
    fake = [row for row in rows if row[0] == "fake"]
    restored = [row for row in rows if row[0] == "restored"]
    at = f"L = {overhead.max_depth:,}"
    return [
        Figure(f"default run ({len(trace.steps)} steps), build excluded", "s", (whole_s,), 240.0),
        Figure(f"driver per request, fake, {at}", "ms", tuple(row[1] for row in fake), 30.0),
        Figure(
            f"driver per request, restored, {at}", "ms", tuple(row[1] for row in restored), 30.0
        ),
        Figure(f"install a fake prefix, {at}", "ms", tuple(row[2] for row in fake), None),
        Figure(f"restore a saved state, {at}", "ms", tuple(row[2] for row in restored), None),
    ]


def render(figures: Sequence[Figure]) -> str:
    """A line for each figure: median, range, n, target."""
    width = max(len(figure.what) for figure in figures)
    lines = []
    for figure in figures:
        if not figure.samples:
            lines.append(f"{figure.what:<{width}}  nothing valid was measured (n = 0)")
            continue
        low, high = min(figure.samples), max(figure.samples)
        line = f"{figure.what:<{width}}  {figure.median:9.2f} {figure.unit:<2}"
        line += f"  ({low:.2f} to {high:.2f}, n = {len(figure.samples)})"
        if figure.target is not None:
            verdict = "met" if figure.median <= figure.target else "missed"
            line += f"  target {figure.target:g} {figure.unit}: {verdict}"
        lines.append(line)
    return "\n".join(lines)

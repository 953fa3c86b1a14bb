"""A short run before a sweep or the replay of a trace, from which is reckoned what those take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from experiment.compare import SWEEP_PROBE, TRACE_PROBE
from experiment.narrow import tell
from experiment.progress import Progress
from experiment.scope import possible_of
from experiment.settings import Settings
from experiment.trace import Step, Trace, load_trace
from experiment.trace_costs import TraceCosts, images_to_probe, read_trace_costs
from experiment.trace_estimate import Estimate, estimate

if TYPE_CHECKING:
    from experiment.engine import Engine

# Deep enough to tell a token's cost from a cell's, and cheap: a real prefix is decoded for each.
_DEPTHS = (256, 1024)
_TEXT_TOKENS = (16, 256)

SWEEP_FAKE_DEPTH = 16_384
TRACE_FAKE_DEPTH = 65_536
"""Measured with fake only, which needs no prefix: what a cell of depth costs shows only far down,
where the KV cache has outgrown the processor's. Agents' logs are deeper than most sweeps."""


def probe_sweep(
    engine: Engine, settings: Settings, depths: Iterable[int], progress: Progress
) -> Path:
    """Run the probe of a sweep of these depths and return its folder.

    Raises:
        ExperimentError: it cannot be made.
    """
    rows = _rows(min(max(depths), SWEEP_FAKE_DEPTH))
    return run_rows(engine, probe_settings(settings), SWEEP_PROBE, rows, progress)


def trace_costs(
    engine: Engine, settings: Settings, steps: Sequence[Step], progress: Progress
) -> TraceCosts:
    """Run the probe of a trace with these steps and read what it tells.

    Raises:
        ExperimentError: it cannot be made, or has no valid measurement.
    """
    deepest = min(max(step.depth for step in steps), TRACE_FAKE_DEPTH)
    rows = _rows(deepest, images_to_probe(steps))
    return read_trace_costs(run_rows(engine, probe_settings(settings), TRACE_PROBE, rows, progress))


def reckoned(
    engine: Engine, settings: Settings, trace: Trace, progress: Progress
) -> tuple[TraceCosts, Estimate]:
    """Probe what a trace costs here and reckon a run of all its steps that are possible.

    Raises:
        SettingsError: none is.
        ExperimentError: the probe cannot be made, or has no valid measurement.
    """
    costs = trace_costs(engine, settings, trace.steps, progress)
    possible = possible_of(trace.steps, costs, settings)
    made = estimate(possible.kept, costs, settings)
    left_out = tell(possible.left_out, len(trace.steps))
    return costs, replace(made, notes=(*made.notes, *left_out))


def run_rows(
    engine: Engine,
    settings: Settings,
    name: str,
    rows: Iterable[Mapping[str, object]],
    progress: Progress,
) -> Path:
    """Run a trace that is made up for the purpose; it is named ``name`` as the run is.

    Raises:
        ExperimentError: the run cannot begin or go on; what was measured is kept.
    """
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        # The file's name too: inside a container the run is named after it.
        path = Path(folder) / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return engine.run(settings, load_trace(path), name, progress)


def probe_settings(settings: Settings) -> Settings:
    """The settings of a probe: few rounds, and a real prefix only where that is cheap."""
    schedule = {
        "rounds": 2,
        "max_rounds": 2,
        "warmup_rounds": 1,
        "full_rounds": 0,
        "structure_steps": 0,
        "restored_max_depth": min(_DEPTHS[-1], settings.schedule.restored_max_depth),
    }
    return changed(settings, schedule, {"at": "steps", "repetitions": 1})


def changed(
    settings: Settings, schedule: Mapping[str, Any], calibration: Mapping[str, Any]
) -> Settings:
    """Settings with another schedule and calibration."""
    return settings.model_copy(
        update={
            "schedule": settings.schedule.model_copy(update=schedule),
            "calibration": settings.calibration.model_copy(update=calibration),
        }
    )


def _rows(deepest: int, images: Iterable[tuple[int, int]] = ()) -> list[dict[str, object]]:
    cells = [(depth, tokens) for depth in _DEPTHS for tokens in _TEXT_TOKENS]
    if deepest > _DEPTHS[-1]:
        cells.append((deepest, _TEXT_TOKENS[0]))
    contents: list[dict[str, object]] = [
        {"depth": depth, "new": {"tokens": tokens}} for depth, tokens in cells
    ]
    contents += (
        {"depth": _DEPTHS[0], "new": {"screenshot": {"width": width, "height": height}}}
        for width, height in images
    )
    return [{"task_id": "probe", "step": step, **row} for step, row in enumerate(contents)]

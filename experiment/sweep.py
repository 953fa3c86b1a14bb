"""A sweep: fake against restored on a grid of depths by new tokens, as an ordinary run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from experiment.calibrate import DEPTH_STEP
from experiment.engine import Engine
from experiment.errors import SettingsError
from experiment.folder import write_json
from experiment.probe import changed, probe_sweep, run_rows
from experiment.progress import Progress
from experiment.settings import Settings
from experiment.sweep_costs import read_costs
from experiment.sweep_estimate import Plan, choose_cells

DEPTHS = "256,1024,4096,16384,65536,131072"
NEW = "16,64,256,1024,2048"
LIMIT_MIN = 20.0

NAME = "sweep"
PLAN_FILE = "sweep.json"
"""Beside the database: what was planned, what it was to cost, and what was left out and why."""

MAX_DEPTH = 1 << 24
MAX_NEW = 1 << 20
MAX_CELLS = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """What is wished for: depths (multiples of 256), new tokens, and the longest time."""

    depths: tuple[int, ...]
    sizes: tuple[int, ...]
    limit_s: float


def parse_request(
    depths: str | None = None, new: str | None = None, time_limit: str | float | None = None
) -> Request:
    """Read the flags; None stands for the default.

    Args:
        depths: comma-separated; each is rounded to a multiple of 256, to which llama.cpp pads the
            number of KV columns, so that every cell of one size reads equally many beyond L.
        new: comma-separated, all tokens behind the prefix, those of the template's tail included.
        time_limit: minutes.

    Raises:
        SettingsError: a value is no number in range.
    """
    wanted = {
        max(DEPTH_STEP, (depth + DEPTH_STEP // 2) // DEPTH_STEP * DEPTH_STEP)
        for depth in _numbers("--depths", DEPTHS if depths is None else depths, MAX_DEPTH)
    }
    sizes = set(_numbers("--new", NEW if new is None else new, MAX_NEW))
    if len(wanted) * len(sizes) > MAX_CELLS:
        raise SettingsError(
            f"{len(wanted)} depths by {len(sizes)} sizes are more than {MAX_CELLS:,} cells",
            where="--depths, --new",
        )
    return Request(tuple(sorted(wanted)), tuple(sorted(sizes)), 60 * _minutes(time_limit))


def prepare(engine: Engine, settings: Settings, request: Request, progress: Progress) -> Plan:
    """Run a small probe and reckon from it which cells fit, and what they are going to cost.

    Raises:
        SettingsError: no cell fits, or one has no room for a token of text.
        ExperimentError: the probe cannot be made.
    """
    folder = probe_sweep(engine, settings, request.depths, progress)
    return choose_cells(
        read_costs(folder), settings, request.depths, request.sizes, request.limit_s, folder.name
    )


def measure(engine: Engine, settings: Settings, plan: Plan, progress: Progress) -> Path:
    """Measure the planned cells in a new results folder and return that folder.

    Raises:
        ExperimentError: the run cannot begin or go on; what was measured is kept.
    """
    folder = run_rows(engine, sweep_settings(settings, plan), NAME, trace_rows(plan), progress)
    write_json(folder / PLAN_FILE, asdict(plan))
    return folder


def sweep_settings(settings: Settings, plan: Plan) -> Settings:
    """The settings of the run: precision for each cell, llama-bench at each cell."""
    schedule = {
        "precision": "step",
        "full_rounds": 0,
        "structure_steps": len(plan.depths) * len(plan.sizes),
        "time_limit_s": plan.added_s,
    }
    return changed(settings, schedule, {"at": "steps"})


def trace_rows(plan: Plan) -> list[dict[str, object]]:
    """One row a cell: the task is its size, the step its depth; text fills up to the tail."""
    return [
        {
            "task_id": f"new-{new}",
            "step": step,
            "depth": depth,
            "new": {"tokens": new - plan.tail_tokens},
        }
        for step, depth in enumerate(plan.depths)
        for new in plan.sizes
    ]


def _numbers(flag: str, text: str, highest: int) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        raise SettingsError("needs at least one number", where=flag)
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,12}", part) or not 1 <= int(part) <= highest:
            raise SettingsError(
                f"{part!r} is not a whole number from 1 to {highest:,}",
                where=flag,
                hint=f"give numbers with commas between them, as {flag}={NEW}",
            )
    return [int(part) for part in parts]


def _minutes(value: str | float | None) -> float:
    try:
        minutes = LIMIT_MIN if value is None else float(value)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise SettingsError(
            f"must be a number of minutes above 0 and up to {24 * 60:,}, not {value!r}",
            where="--time-limit",
        )
    return minutes

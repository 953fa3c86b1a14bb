"""A figure of the benchmark: samples and the target they are held to; the reading of figures."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import duckdb

from experiment.database import DATABASE, connect, explain, find_run_id
from experiment.folder import RAW
from experiment.intervals import Interval, median_interval
from experiment.records import Variant

INSTALL_TARGETS_MS = {8_192: 0.2, 65_536: 1.0, 262_144: 4.0}
DRIVER_TARGETS_MS = {4_096: 10.0, 65_536: 45.0, 262_144: 180.0}
DEEPEST = 262_144
SPEEDUP_TARGET = 60.0
RESTORE_TARGET_PCT = 70.0
SIX_STEPS_TARGET_MIN = 30.0

FABRICATED: tuple[Variant, ...] = ("fake", "control")
"""``control`` is the same request as ``fake``: what one of them costs is a sample of the other."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is promised, in the figure's unit: of the median, or of every single sample."""

    value: float
    direction: Literal["at most", "at least"] = "at most"
    every: bool = False

    def met(self, samples: Sequence[float]) -> bool:
        """Whether ``samples`` (at least one) keep it; the value itself does."""
        held = samples if self.every else (statistics.median(samples),)
        if self.direction == "at most":
            return max(held) <= self.value
        return min(held) >= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """All samples of one figure in ``unit``, which may be empty, and its target if it has one."""

    what: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None

    @property
    def median(self) -> float:
        """Median of the samples, of which there must be one."""
        return statistics.median(self.samples)

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the median; None below two samples."""
        return median_interval(self.samples)


@dataclass(frozen=True, slots=True)
class Part:
    """Some figures of one origin: a results folder, or a command."""

    name: str
    origin: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One counted measurement of a run; times are ms and None where the server told none."""

    task_id: str
    step: int
    variant: Variant
    round: int
    depth: int
    ok: bool
    prompt_n: int | None
    wall_ms: float | None
    prompt_ms: float | None
    install_ms: float | None
    prefill_ms: float | None
    size_bytes: int | None
    n_kv: int | None
    server_ms: float | None
    """What the server itself says it worked on the request, in ``prompt_ms`` or outside it."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What the figures of a run are read from; ``bench_wall_s`` are walls of llama-bench by depth.

    ``described`` says what was measured: model, pin, engine.
    """

    folder: Path
    described: str
    samples: tuple[Sample, ...]
    bench_wall_s: dict[int, float]

    def values(
        self,
        variants: Iterable[Variant],
        value: Callable[[Sample], float | None],
        depth: int | None = None,
    ) -> tuple[float, ...]:
        """A value of the valid measurements of some variants, at one depth or at all of them."""
        found = (
            value(s)
            for s in self.samples
            if s.ok and s.variant in variants and depth in (None, s.depth)
        )
        return tuple(number for number in found if number is not None)

    def ratios(
        self, over: Variant, under: Variant, value: Callable[[Sample], float | None]
    ) -> tuple[float, ...]:
        """Ratios of a value of two variants of the same step and round, where both are valid."""
        by_key = {(s.task_id, s.step, s.round, s.variant): value(s) for s in self.samples if s.ok}
        found = []
        for (task_id, step, number, variant), above in by_key.items():
            below = by_key.get((task_id, step, number, under))
            if variant == over and above is not None and below:
                found.append(above / below)
        return tuple(found)


def read(folder: Path) -> RunData:
    """Read a run's counted measurements (no warm-ups) and its calibration's wall times.

    Raises:
        StoreError: the folder holds no run of this version.
    """
    database = folder / DATABASE
    with connect(database, read_only=True) as connection:
        run_id = find_run_id(connection, database)
        try:
            ((model, pin, engine),) = connection.execute(
                "SELECT model, pin, engine FROM run WHERE id = ?", [run_id]
            ).fetchall()
            rows = connection.execute(
                "SELECT task_id, step, variant, round, depth, status = 'ok', prompt_n, wall_ms, "
                "prompt_ms, install_ms, prefill_ms, size_bytes, n_kv, "
                "prompt_ms + coalesce(fill_ms, 0) + coalesce(prime_ms, 0), raw "
                "FROM measurement WHERE run_id = ? AND round >= 0 AND variant <> 'arithmetic' "
                "ORDER BY started_at, variant",
                [run_id],
            ).fetchall()
            walls = connection.execute(
                "SELECT depth, wall_s FROM calibration WHERE run_id = ? AND wall_s IS NOT NULL",
                [run_id],
            ).fetchall()
        except duckdb.Error as error:
            raise explain(error, database) from error
    samples = []
    for *values, raw in rows:
        sample = Sample(*values)
        if sample.server_ms is not None and raw is not None:
            server_ms = sample.server_ms + _predicted_ms(folder / RAW / raw)
            sample = replace(sample, server_ms=server_ms)
        samples.append(sample)
    return RunData(folder, f"{model}, pin {pin}, engine {engine}", tuple(samples), dict(walls))


def measurements(folder: Path) -> int:
    """How many measurements of any kind a run holds."""
    with connect(folder / DATABASE, read_only=True) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM measurement").fetchall()
    return int(count)


def _predicted_ms(raw: Path) -> float:
    """The server's time for the one token it generates, which no column of the table holds."""
    timings = json.loads(raw.read_text(encoding="utf-8"))["response"]["timings"]
    return float(timings["predicted_ms"])


def depth_figures(run: RunData) -> tuple[Figure, ...]:
    """Install and driver by depth, and whether the deepest context works."""
    installs = (
        Figure(
            f"install of a fake prefix, L = {depth:,}",
            "ms",
            run.values(FABRICATED, lambda s: s.install_ms, depth),
            Target(limit_ms),
        )
        for depth, limit_ms in INSTALL_TARGETS_MS.items()
    )
    drivers = (
        Figure(
            f"driver beyond the server's time, L = {depth:,}",
            "ms",
            run.values(FABRICATED, _driver, depth),
            Target(limit_ms),
        )
        for depth, limit_ms in DRIVER_TARGETS_MS.items()
    )
    # A request that does not count has shown nothing, whatever it read.
    columns = tuple(float(s.n_kv or 0) if s.ok else 0.0 for s in run.samples if s.depth == DEEPEST)
    return (
        *installs,
        *drivers,
        Figure(
            f"KV columns that each request read, L = {DEEPEST:,}",
            "",
            columns,
            Target(DEEPEST, "at least", every=True),
        ),
    )


def speedup_figures(run: RunData, memcpy_gbps: Sequence[float]) -> tuple[Figure, ...]:
    """One fake sample against the whole prompt and llama-bench; restoring against copying.

    Args:
        run: of a trace of one step.
        memcpy_gbps: samples of copying as many bytes as `saved_bytes` says.
    """
    depth = max((s.depth for s in run.samples), default=0)
    new = {f"{n:,.0f}" for n in run.values(("fake",), lambda s: s.prompt_n)}
    at = f"L = {depth:,}, new = {' or '.join(sorted(new)) or 'none'}"
    fake_ms = run.values(("fake",), _wall)
    bench_s = tuple(wall_s for at_depth, wall_s in run.bench_wall_s.items() if at_depth == depth)
    restored = run.values(("restored",), _restore_gbps)
    copying = statistics.median(memcpy_gbps) if memcpy_gbps else math.nan
    size = f"{saved_bytes(run) / 1e6:,.1f} MB"
    cheaper = Target(SPEEDUP_TARGET, "at least")
    return (
        Figure(f"fake, wall, {at}", "ms", fake_ms),
        Figure("full, wall", "ms", run.values(("full",), _wall)),
        Figure("llama-bench -d, wall of one cold process", "ms", tuple(1000 * s for s in bench_s)),
        Figure("full / fake, wall, same round", "x", run.ratios("full", "fake", _wall), cheaper),
        Figure(
            "that process / fake, wall",
            "x",
            tuple(1000 * wall_s / ms for wall_s in bench_s for ms in fake_ms),
            cheaper,
        ),
        Figure(f"restore of {size}", "GB/s", restored),
        Figure(f"memcpy of {size}, one thread, right after", "GB/s", tuple(memcpy_gbps)),
        Figure(
            "restore / memcpy",
            "%",
            tuple(100 * gbps / copying for gbps in restored) if memcpy_gbps else (),
            Target(RESTORE_TARGET_PCT, "at least"),
        ),
    )


def saved_bytes(run: RunData) -> int:
    """Size of the state that ``restored`` puts back; 0 if none was."""
    return int(max(run.values(("restored",), lambda s: s.size_bytes), default=0))


def six_steps_figures(run: RunData, whole_s: float) -> tuple[Figure, ...]:
    """The wall time of a trace, whether all of it was measured, and fidelity and noise of it."""
    steps = {(s.task_id, s.step) for s in run.samples}
    deepest = max((s.depth for s in run.samples), default=0)
    trace = f"{len(steps)} steps, depths to {deepest:,}"
    counted = tuple(100.0 if s.ok else 0.0 for s in run.samples)
    return (
        Figure(
            f"whole run, {trace}, build excluded",
            "min",
            (whole_s / 60,),
            Target(SIX_STEPS_TARGET_MIN),
        ),
        Figure("requests that count", "%", counted, Target(100.0, "at least", every=True)),
        Figure("fake/restored, prefill, same round", "", run.ratios("fake", "restored", _prefill)),
        Figure("control/fake, prefill, same round", "", run.ratios("control", "fake", _prefill)),
    )


def _wall(sample: Sample) -> float | None:
    return sample.wall_ms


def _prefill(sample: Sample) -> float | None:
    return sample.prefill_ms


def _driver(sample: Sample) -> float | None:
    if sample.wall_ms is None or sample.server_ms is None:
        return None
    return sample.wall_ms - sample.server_ms


def _restore_gbps(sample: Sample) -> float | None:
    if not sample.size_bytes or not sample.install_ms:
        return None
    return sample.size_bytes / sample.install_ms / 1e6

"""The read side of ``results.duckdb``: what a run says about its four variants, as numbers only.

The medians and ratios are views of the database (``schemas/results.sql``); this module reads them,
adds the interval of the over-all ratio, and notes what is missing or was kept out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
from numpy.typing import NDArray

from experiment.database import DATABASE, connect, explain, find_run_id
from experiment.errors import StoreError
from experiment.records import VARIANTS

FOLDER_NAME = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}_.+")
"""``<UTC date_time>_<host>_<name>``: the order of the names is the order of the runs."""

MAX_REASONS = 3

# Measured with nano on two cores: samples of one depth lie within 16 % of each other, mostly within
# 6 %; a burst of other work moves single ones by factors.
UNSTEADY = 1.2

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class RunRow:
    """The row of the run itself; times are UTC."""

    id: str
    name: str
    status: str
    engine: str
    pin: str
    model: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: medians in ms and sample counts ``…_n`` of each variant, and their ratios.

    ``prefill_ms`` leaves the install out, ``lm_prefill_ms`` the image encoding too. ``ratio_…`` is
    ``fake / restored`` of ``prefill_ms``, paired within rounds; ``speedup`` is ``full / fake`` of
    the medians; ``arithmetic_error_pct`` compares ``lm_prefill_ms`` with ``fake``.
    """

    task_id: str
    step: int
    depth: int
    new_tokens: int | None
    fake_n: int
    fake_prefill_ms: float | None
    fake_install_ms: float | None
    fake_encode_ms: float | None
    fake_lm_prefill_ms: float | None
    fake_n_kv: int | None
    restored_n: int
    restored_prefill_ms: float | None
    restored_install_ms: float | None
    restored_encode_ms: float | None
    restored_lm_prefill_ms: float | None
    restored_n_kv: int | None
    full_n: int
    full_prefill_ms: float | None
    full_install_ms: float | None
    full_encode_ms: float | None
    full_lm_prefill_ms: float | None
    full_n_kv: int | None
    arithmetic_n: int
    arithmetic_prefill_ms: float | None
    arithmetic_encode_ms: float | None
    arithmetic_lm_prefill_ms: float | None
    pair_n: int
    ratio_median: float | None
    ratio_min: float | None
    ratio_max: float | None
    lm_ratio_median: float | None
    speedup: float | None
    arithmetic_error_pct: float | None


@dataclass(frozen=True, slots=True)
class OverallRow:
    """A run over all its steps: sums of the steps' medians in ms, and how many steps each sums.

    ``speedup`` and ``arithmetic_error_pct_sum`` are ratios of sums over the steps that have both
    sides; ``ratio_median`` is the median of all ``pair_n`` paired ratios.
    """

    steps: int
    fake_steps: int
    fake_prefill_ms: float | None
    fake_install_ms: float | None
    fake_encode_ms: float | None
    fake_new_tokens: int | None
    restored_steps: int
    restored_prefill_ms: float | None
    restored_install_ms: float | None
    full_steps: int
    full_prefill_ms: float | None
    arithmetic_steps: int
    arithmetic_prefill_ms: float | None
    speedup_steps: int
    speedup: float | None
    speedup_median: float | None
    arithmetic_error_steps: int
    arithmetic_error_pct_median: float | None
    arithmetic_error_pct_min: float | None
    arithmetic_error_pct_max: float | None
    arithmetic_error_pct_sum: float | None
    pair_n: int
    ratio_median: float | None
    lm_ratio_median: float | None


@dataclass(frozen=True, slots=True)
class DepthRow:
    """The steps with ``depth_from <= L < depth_to``: medians over steps in ms, paired ratios."""

    depth_from: int
    depth_to: int
    steps: int
    fake_steps: int
    fake_prefill_ms: float | None
    fake_install_ms: float | None
    fake_ms_per_new_token: float | None
    restored_prefill_ms: float | None
    restored_install_ms: float | None
    full_prefill_ms: float | None
    arithmetic_prefill_ms: float | None
    speedup_steps: int
    speedup: float | None
    arithmetic_error_steps: int
    arithmetic_error_pct_median: float | None
    pair_n: int
    ratio_median: float | None
    ratio_min: float | None
    ratio_max: float | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task replayed with one variant's prefill, beside its baseline over the same steps; in s."""

    task_id: str
    variant: str
    steps: int
    steps_counted: int
    opt_prefill_s: float
    baseline_prefill_s: float
    baseline_decode_s: float
    baseline_exec_s: float
    opt_wall_s: float
    baseline_wall_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; ``confidence`` is what it really covers, at least what was asked."""

    low: float
    high: float
    confidence: float
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that ``compare`` prints."""

    folder: Path
    run: RunRow
    steps: tuple[StepRow, ...]
    overall: OverallRow
    ratio_interval: Interval | None
    depths: tuple[DepthRow, ...]
    tasks: tuple[TaskRow, ...]
    notes: tuple[str, ...]


def load(folder_or_database: Path, run_id: str | None = None) -> Comparison:
    """Read a run (the last one started if ``run_id`` is None) from its database, and only that.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no such run.
    """
    database = folder_or_database / DATABASE if folder_or_database.is_dir() else folder_or_database
    if not database.is_file():
        raise StoreError(
            f"there is no {DATABASE} here" if folder_or_database.is_dir() else "no such file",
            where=str(folder_or_database),
            hint="name a results folder that a run has written",
        )
    with connect(database, read_only=True) as connection:
        found = find_run_id(connection, database, run_id)
        try:
            return _read(connection, database.parent, found)
        except duckdb.Error as error:
            raise explain(error, database) from error


def _read(connection: duckdb.DuckDBPyConnection, folder: Path, run_id: str) -> Comparison:
    (run,) = _rows(connection, RunRow, "run", run_id, key="id")
    steps = _rows(connection, StepRow, "step_comparison", run_id, order="line, task_id, step")
    if not steps:
        raise StoreError("the run holds no steps", where=str(folder))
    (overall,) = _rows(connection, OverallRow, "run_comparison", run_id)
    ratios = connection.execute(
        "SELECT ratio FROM pair WHERE run_id = ? AND ratio IS NOT NULL", [run_id]
    ).fetchnumpy()["ratio"]
    interval = median_interval(np.asarray(ratios, dtype=np.float64))
    return Comparison(
        folder=folder,
        run=run,
        steps=steps,
        overall=overall,
        ratio_interval=interval,
        depths=_rows(connection, DepthRow, "depth_comparison", run_id, order="depth_from"),
        tasks=_rows(connection, TaskRow, "task_wall", run_id, order="task_id, variant"),
        notes=tuple(_notes(connection, run, steps, overall)),
    )


def _rows(
    connection: duckdb.DuckDBPyConnection,
    kind: type[Row],
    table: str,
    run_id: str,
    *,
    key: str = "run_id",
    order: str | None = None,
) -> tuple[Row, ...]:
    names = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
    rows = connection.execute(
        f"SELECT {names} FROM {table} WHERE {key} = ? ORDER BY {order or key}", [run_id]
    ).fetchall()
    return tuple(kind(*row) for row in rows)


def median_interval(values: NDArray[np.float64], confidence: float = 0.95) -> Interval | None:
    """A distribution-free confidence interval of the median; None if there are too few values.

    The k-th smallest and k-th largest of n independent values enclose the median with probability
    ``1 - 2 P(B <= k - 1)``, B binomial(n, 1/2); k is the largest with at least ``confidence``
    (David and Nagaraja, Order Statistics, 3rd ed., section 7.1). At 95 % that takes six values.
    """
    n = len(values)
    if n == 0:
        return None
    # log pmf(k) = log pmf(k - 1) + log((n - k + 1) / k): no overflow for any n.
    k = np.arange(1, n + 1)
    log_pmf = np.concatenate(([0.0], np.cumsum(np.log((n - k + 1) / k)))) - n * np.log(2)
    below = np.cumsum(np.exp(log_pmf))
    rank = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))
    if rank == 0:
        return None
    ordered = np.sort(values)
    return Interval(
        low=float(ordered[rank - 1]),
        high=float(ordered[n - rank]),
        confidence=float(1 - 2 * below[rank - 1]),
        n=n,
    )


def _notes(
    connection: duckdb.DuckDBPyConnection,
    run: RunRow,
    steps: Iterable[StepRow],
    overall: OverallRow,
) -> Iterable[str]:
    if run.status != "finished":
        yield f"The run is {run.status}: the figures cover what it had measured until then."
    for variant in VARIANTS:
        measured: int = getattr(overall, f"{variant}_steps")
        if measured == 0:
            yield f"{variant}: not measured in any step."
        elif measured < overall.steps:
            without = [_name(step) for step in steps if getattr(step, f"{variant}_n") == 0]
            yield (
                f"{variant}: no valid measurement in {_count(len(without), 'step')} of "
                f"{overall.steps} ({_some(without)})."
            )
    yield from _kept_out(connection, run.id)
    differing = [
        _name(step)
        for step in steps
        if step.fake_n_kv is not None
        and step.restored_n_kv is not None
        and step.fake_n_kv != step.restored_n_kv
    ]
    if differing:
        yield (
            f"fake and restored read different numbers of KV columns in "
            f"{_count(len(differing), 'step')} ({_some(differing)})."
        )
    unsteady = connection.execute(
        "SELECT depth FROM calibration WHERE run_id = ? "
        "AND list_max(tps_samples) > ? * list_min(tps_samples) ORDER BY depth",
        [run.id, UNSTEADY],
    ).fetchall()
    if unsteady:
        depths = _some([f"{depth:,}" for (depth,) in unsteady], "; ")
        yield f"arithmetic: the calibration's samples differ by more than 20 % at depth {depths}."
    events = connection.execute(
        "SELECT kind, count(*) FROM event WHERE run_id = ? GROUP BY kind ORDER BY kind",
        [run.id],
    ).fetchall()
    if events:
        yield "Events on the way: " + ", ".join(f"{count} {kind}" for kind, count in events) + "."


def _kept_out(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterable[str]:
    """One note a variant and status, with the most frequent reasons."""
    rows = connection.execute(
        "SELECT variant, status, error, count(*) AS n FROM measurement "
        "WHERE run_id = ? AND status IN ('invalid', 'refused', 'failed') "
        "GROUP BY variant, status, error ORDER BY n DESC, error",
        [run_id],
    ).fetchall()
    reasons: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for variant, status, error, count in rows:
        reasons.setdefault((variant, status), []).append((error, count))
    for (variant, status), told in sorted(reasons.items()):
        total = sum(count for _, count in told)
        texts = [f"{reason} ({count})" for reason, count in told]
        yield f"{variant}: {_count(total, 'measurement')} {status}, kept out: {_some(texts, '; ')}."


def _name(step: StepRow) -> str:
    return f"{step.task_id} step {step.step}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _some(texts: list[str], between: str = ", ") -> str:
    more = len(texts) - MAX_REASONS
    return between.join(texts[:MAX_REASONS]) + (f" and {more} more" if more > 0 else "")


def find_run(results_dir: Path, name_or_path: str | Path | None = None) -> Path:
    """The folder of a run: a path to it, its name below ``results_dir``, or (None) the newest.

    Raises:
        StoreError: there is no such run; the hint lists those there are.
    """
    runs = sorted(path.parent.name for path in results_dir.glob(f"*/{DATABASE}"))
    there = f"there are: {_some(runs[::-1])}" if runs else "the first run makes one"
    if name_or_path is None:
        dated = [name for name in runs if FOLDER_NAME.fullmatch(name)]
        if not dated:
            raise StoreError("there is no run yet", where=str(results_dir), hint=there)
        return results_dir / dated[-1]
    for folder in (Path(name_or_path), results_dir / name_or_path):
        if (folder / DATABASE).is_file():
            return folder
    raise StoreError(f"there is no run {name_or_path}", where=str(results_dir), hint=there)

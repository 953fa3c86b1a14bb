"""What a sweep has measured, cell by cell: medians and intervals, llama-bench, cost models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiment.cost_model import CostModel, Point, fit
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.intervals import MIN_PAIRS, Interval, median_interval, noise_floor
from experiment.reader import Reader, read
from experiment.rows import RunRow
from experiment.settings import Settings
from experiment.sweep import PLAN_FILE
from experiment.sweep_estimate import LeftOut

StepKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over ``n`` values; ``interval`` is None below two."""

    median: float
    n: int
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One depth and size. Times are ms, without the install; None = not measured.

    Attributes:
        depth: L.
        new: tokens that are decoded behind it.
        fake: prefill with a fabricated prefix.
        restored: prefill with a restored one.
        ratio: fake / restored, paired within rounds.
        noise: control / fake, paired within rounds.
        bench: llama-bench at this very cell, its samples.
        arithmetic_ms: ``new / prefill_tps(L)``, throughput of the calibration's chunk at L.
        model_ms: the cost model fitted to ``fake`` of all cells.
        fake_install: fabricating the prefix.
        restored_install: copying the state back.
        sampler: part of ``fake`` that is the sampler's, which llama-bench does without.
        fake_experts: distinct experts, summed over layers and ubatches, with the run's fill.
        restored_experts: the same of the real prefix.
        is_same_structure: whether fake and restored had the same ubatches, KV columns read, graph
            nodes and K/V bytes; None where the server did not tell.
        is_batched_alike: whether the server split the new tokens as llama-bench does.
    """

    depth: int
    new: int
    fake: Figure | None
    restored: Figure | None
    ratio: Figure | None
    noise: Figure | None
    bench: Figure | None
    arithmetic_ms: float | None
    model_ms: float | None
    fake_install: Figure | None
    restored_install: Figure | None
    sampler: Figure | None
    fake_experts: int | None
    restored_experts: int | None
    is_same_structure: bool | None
    is_batched_alike: bool | None

    @property
    def contains_one(self) -> bool | None:
        """Whether the interval of fake/restored does; None if there is none."""
        found = None if self.ratio is None else self.ratio.interval
        return None if found is None else found.low <= 1 <= found.high

    def is_precise(self, target_pct: float) -> bool:
        """Whether that interval is as narrow as it was to be."""
        found = None if self.ratio is None else self.ratio.interval
        return found is not None and 100 * found.half_width <= target_pct

    @property
    def bench_ratio(self) -> float | None:
        """``fake`` over ``bench``, of medians."""
        if self.fake is None or self.bench is None:
            return None
        return self.fake.median / self.bench.median

    @property
    def arithmetic_error_pct(self) -> float | None:
        """``100 * (arithmetic / fake - 1)``."""
        return self._error_pct(self.arithmetic_ms)

    @property
    def model_error_pct(self) -> float | None:
        """``100 * (model / fake - 1)``, the residual."""
        return self._error_pct(self.model_ms)

    def _error_pct(self, estimate_ms: float | None) -> float | None:
        if estimate_ms is None or self.fake is None:
            return None
        return 100 * (estimate_ms / self.fake.median - 1)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that a sweep's tables show.

    Attributes:
        folder: of the results.
        run: the row of the run.
        fill: data of the fabricated prefixes.
        target_pct: half-width of fake/restored that was wished for in each cell.
        chunk: tokens of the arithmetic estimate's calibration.
        cells: by depth, then size.
        models: of ``fake``, ``restored`` and ``bench``: fitted cost model, or why there is none.
        noise: control / fake of all cells together.
        drift_pct: of fake from the first third of the rounds to the last.
        bench_again: depth, and ``chunk`` tokens at it by llama-bench in the sweep against the same
            in the probe before: two processes, the same work.
        left_out: what was not measured, and why.
    """

    folder: Path
    run: RunRow
    fill: str
    target_pct: float
    chunk: int
    cells: tuple[Cell, ...]
    models: Mapping[str, CostModel | str]
    noise: Figure | None
    drift_pct: float | None
    bench_again: tuple[tuple[int, float], ...]
    left_out: tuple[LeftOut, ...]

    @property
    def floor(self) -> float | None:
        """Noise floor: how far the interval of control/fake reaches from 1."""
        return noise_floor(None if self.noise is None else self.noise.interval)

    def sees_difference(self, cell: Cell) -> bool:
        """Whether the interval leaves 1 out and the median the noise, the run's and the cell's."""
        if cell.ratio is None or cell.ratio.n < MIN_PAIRS or cell.contains_one is not False:
            return False
        # The run's pairs are many: their floor alone would call a cell's few a difference.
        own = noise_floor(None if cell.noise is None else cell.noise.interval)
        known = [floor for floor in (own, self.floor) if floor is not None]
        return abs(cell.ratio.median - 1) > max(known, default=0.0)


def load(folder: Path) -> Sweep:
    """Read the sweep in ``folder``.

    Raises:
        StoreError: there is no database, or nothing was measured.
    """
    with read(folder) as reader:
        return _load(reader)


def _load(reader: Reader) -> Sweep:
    (run,) = reader.rows(RunRow, "run", key="id")
    ((text,),) = _query(reader, "SELECT settings FROM run WHERE id = $run")
    settings = Settings.model_validate(json.loads(text))
    cells = _cells(reader, settings)
    if not cells:
        raise StoreError(
            "no cell of a sweep was measured here",
            where=str(reader.folder),
            hint="name the results folder of invoke sweep",
        )
    models = {
        name: _model(cells, figure)
        for name, figure in {
            "fake": lambda cell: cell.fake,
            "restored": lambda cell: cell.restored,
            "bench": lambda cell: cell.bench,
        }.items()
    }
    fitted = models["fake"]
    if isinstance(fitted, CostModel):
        cells = [replace(cell, model_ms=fitted.ms(cell.new, cell.depth)) for cell in cells]
    ratios = _query(
        reader, "SELECT aa_ratio FROM pair WHERE run_id = $run AND aa_ratio IS NOT NULL"
    )
    drift = _query(reader, "SELECT drift_pct FROM run_stability WHERE run_id = $run")
    plan = _plan(reader.folder)
    chunk = settings.calibration.chunk
    return Sweep(
        folder=reader.folder,
        run=run,
        fill=settings.server.fake_fill,
        target_pct=settings.schedule.half_width_pct,
        chunk=chunk,
        cells=tuple(cells),
        models=models,
        noise=_figure([ratio for (ratio,) in ratios]),
        drift_pct=drift[0][0] if drift else None,
        bench_again=tuple(_bench_again(reader, str(plan.get("probe", "")), chunk)),
        left_out=tuple(LeftOut(**item) for item in plan.get("left_out", ())),
    )


def _cells(reader: Reader, settings: Settings) -> list[Cell]:
    times: dict[StepKey, dict[str, list[list[float]]]] = {}
    for task_id, step, variant, *values_ms in _query(
        reader,
        "SELECT task_id, step, variant, list(lm_prefill_ms ORDER BY round), list(install_ms), "
        "list(sampler_ms) FILTER (WHERE sampler_ms IS NOT NULL) "
        "FROM measurement WHERE run_id = $run AND status = 'ok' GROUP BY task_id, step, variant",
    ):
        times.setdefault((task_id, step), {})[variant] = [values or [] for values in values_ms]
    pairs = {
        (task_id, step): (ratios, controls)
        for task_id, step, ratios, controls in _query(
            reader,
            "SELECT task_id, step, list(ratio) FILTER (WHERE ratio IS NOT NULL), "
            "list(aa_ratio) FILTER (WHERE aa_ratio IS NOT NULL) "
            "FROM pair WHERE run_id = $run GROUP BY task_id, step",
        )
    }
    bench = {
        (depth, chunk): samples
        for depth, chunk, samples in _query(
            reader, "SELECT depth, chunk, tps_samples FROM calibration WHERE run_id = $run"
        )
    }
    batched = {
        (task_id, step): ubatches
        for task_id, step, ubatches in _query(
            reader,
            "SELECT task_id, step, ubatch_tokens FROM structure "
            "WHERE run_id = $run AND variant = 'fake' AND ubatch_tokens IS NOT NULL",
        )
    }
    found = []
    for task_id, step, depth, new, experts, real_experts, *same in _query(
        reader,
        "SELECT task_id, step, depth, new_tokens, fake_experts, restored_experts, "
        "same_ubatches, same_n_kv, same_graph_nodes, same_kv_bytes, fake_agrees, restored_agrees "
        "FROM structure_comparison WHERE run_id = $run AND new_tokens IS NOT NULL "
        "ORDER BY depth, new_tokens, line",
    ):
        of = times.get((task_id, step), {})
        fake_ms, install_ms, sampler_ms = of.get("fake", ([], [], []))
        restored_ms, restore_ms, _ = of.get("restored", ([], [], []))
        ratios, controls = pairs.get((task_id, step), ([], []))
        arithmetic = of.get("arithmetic")
        ubatches = batched.get((task_id, step))
        found.append(
            Cell(
                depth=depth,
                new=new,
                fake=_figure(fake_ms),
                restored=_figure(restored_ms),
                ratio=_figure(ratios or []),
                noise=_figure(controls or []),
                bench=_figure([1000 * new / tps for tps in bench.get((depth, new), ())]),
                arithmetic_ms=arithmetic[0][0] if arithmetic else None,
                model_ms=None,
                fake_install=_figure(install_ms),
                restored_install=_figure(restore_ms),
                sampler=_figure(sampler_ms),
                fake_experts=experts,
                restored_experts=real_experts,
                is_same_structure=None if None in same else all(same),
                is_batched_alike=None
                if ubatches is None
                else ubatches == bench_ubatches(new, settings.server.batch, settings.server.ubatch),
            )
        )
    return found


def bench_ubatches(new: int, batch: int, ubatch: int) -> list[int]:
    """How llama-bench decodes ``new`` tokens: cut at ``batch``, and each part at ``ubatch``."""
    parts = [min(batch, new - start) for start in range(0, new, batch)]
    return [min(ubatch, part - start) for part in parts for start in range(0, part, ubatch)]


def _figure(values: Sequence[float]) -> Figure | None:
    if not values:
        return None
    found = median_interval(values)
    return Figure(values[0] if found is None else found.median, len(values), found)


def _model(cells: Iterable[Cell], figure: Callable[[Cell], Figure | None]) -> CostModel | str:
    """The model, or why there is none. Its residuals are in the order of the measured cells."""
    try:
        return fit(
            Point(cell.depth, cell.new, value.median)
            for cell in cells
            if (value := figure(cell)) is not None
        )
    except StoreError as error:
        return error.what


def _bench_again(reader: Reader, probe: str, chunk: int) -> Iterable[tuple[int, float]]:
    """Compare with the probe's calibration, where its folder still lies beside this one."""
    if not probe or not (reader.folder.parent / probe / DATABASE).is_file():
        return
    query = (
        f"SELECT depth, tps_median FROM calibration WHERE run_id = $run AND chunk = {chunk} "
        "ORDER BY depth"
    )
    with read(reader.folder.parent / probe) as other:
        before: dict[int, float] = dict(_query(other, query))
    for depth, tps in _query(reader, query):
        if depth in before:
            yield depth, before[depth] / tps


def _plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN_FILE
    if not path.is_file():  # a resumed sweep, or an ordinary run
        return {}
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError("cannot be read as JSON", where=str(path)) from error
    return plan if isinstance(plan, dict) else {}


def _query(reader: Reader, statement: str) -> list[tuple[Any, ...]]:
    return reader.connection.execute(statement, {"run": reader.run_id}).fetchall()

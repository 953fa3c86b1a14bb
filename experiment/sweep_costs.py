"""What a probe, a small sweep, tells about a model on a machine: times and sizes to reckon with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiment.cost_model import CostModel, Point, fit
from experiment.errors import StoreError
from experiment.folder import SERVER_LOG
from experiment.reader import Reader, read

# What the server prints about the model while it loads.
_MODEL_SIZE = re.compile(r"print_info: file size\s+= ([\d.]+) (MiB|GiB)")


@dataclass(frozen=True, slots=True)
class Costs:
    """What a probe has found out about a model on a machine.

    Attributes:
        tail_tokens: tokens of the chat template behind a step's own text.
        model: prefill over new tokens and depth, of ``fake`` of text; images are apart.
        overhead_ms: of a request, outside its prefill, at depth 0; and for each cell of depth
            ``overhead_ms_per_cell``.
        restore_ms_per_cell: copying a saved state back, for each cell of depth.
        prime_ms_per_cell: decoding a prefix, for each token at depth 0; what depth adds is in the
            model's ``c_ms``.
        bench_start_s: a process of llama-bench until it has loaded the model.
        state_bytes: a saved state of depth 0; and for each cell ``state_bytes_per_cell``.
        kv_bytes_per_cell: of the server's KV cache.
        fixed_bytes: the model and its compute buffers.
        available_bytes: memory there was before the probe.
        took_s: the probe.
    """

    tail_tokens: int
    model: CostModel
    overhead_ms: float
    overhead_ms_per_cell: float
    restore_ms_per_cell: float
    prime_ms_per_cell: float
    bench_start_s: float
    state_bytes: float
    state_bytes_per_cell: float
    kv_bytes_per_cell: float
    fixed_bytes: float
    available_bytes: float
    took_s: float

    def prefill_s(self, new: int, depth: int) -> float:
        """A prefill, never below 0 however far the model is extrapolated."""
        return max(0.0, self.model.ms(new, depth)) / 1000

    def prefix_s(self, depth: int) -> float:
        """Decoding a prefix of ``depth`` tokens, whose mean depth is half of that."""
        attention_ms = max(0.0, self.model.c_ms) / 2 * depth**2
        return (self.prime_ms_per_cell * depth + attention_ms) / 1000

    def request_s(self, new: int, depth: int, *, restored: bool) -> float:
        """A whole request as the driver waits for it."""
        per_cell_ms = self.overhead_ms_per_cell + restored * self.restore_ms_per_cell
        return self.prefill_s(new, depth) + (self.overhead_ms + per_cell_ms * depth) / 1000


def read_costs(folder: Path) -> Costs:
    """What the probe in ``folder`` has measured.

    Raises:
        StoreError: there is no database, or the probe has no valid measurements to go by.
    """
    with read(folder) as reader:
        return _Probe(reader).costs()


class _Probe:
    """One probe's database."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._folder = reader.folder

    def costs(self) -> Costs:
        """Everything there is."""
        model = self._model()
        per_depth = dict(
            self._rows(
                "SELECT depth, median(wall_ms - prefill_ms - coalesce(prime_ms, 0)) "
                "FROM measurement WHERE run_id = $run AND status = 'ok' "
                "AND variant IN ('fake', 'control') GROUP BY depth"
            )
        )
        overhead_ms, overhead_ms_per_cell = _line(per_depth)
        state_bytes, state_bytes_per_cell = _line(
            dict(
                self._rows(
                    "SELECT depth, max(size_bytes) FROM measurement WHERE run_id = $run "
                    "AND variant = 'restored' AND status = 'ok' GROUP BY depth"
                )
            )
        )
        ((took_s, available, limit),) = self._rows(
            "SELECT date_diff('millisecond', r.started, r.finished) / 1000.0, "
            "h.memory_available_bytes, h.memory_limit_bytes FROM run AS r "
            "JOIN host AS h ON h.run_id = r.id WHERE r.id = $run ORDER BY h.recorded_at LIMIT 1"
        )
        graph: dict[str, str] = dict(self._rows("SELECT key, value FROM graph WHERE run_id = $run"))
        kv_bytes = float(graph.get("kv_buffer_mib", 0)) * 2**20
        other_mib = float(graph.get("compute_buffer_mib", 0)) + float(graph.get("rs_buffer_mib", 0))
        costs = Costs(
            tail_tokens=self._tail(),
            model=model,
            overhead_ms=overhead_ms,
            overhead_ms_per_cell=overhead_ms_per_cell,
            restore_ms_per_cell=self._restore_ms_per_cell(),
            prime_ms_per_cell=self._prime_ms_per_cell(model),
            bench_start_s=0.0,
            state_bytes=state_bytes,
            state_bytes_per_cell=state_bytes_per_cell,
            # A saved state holds the same K and V as the cache.
            kv_bytes_per_cell=kv_bytes / float(graph["n_ctx"])
            if kv_bytes and "n_ctx" in graph
            else state_bytes_per_cell,
            fixed_bytes=self._model_bytes() + other_mib * 2**20,
            available_bytes=min(available, limit or available),
            took_s=float(took_s or 0.0),
        )
        return replace(costs, bench_start_s=self._bench_start_s(costs))

    def _model(self) -> CostModel:
        cells = self._rows(
            "SELECT m.depth, m.prompt_n, median(m.lm_prefill_ms) FROM measurement AS m "
            "JOIN step AS s USING (run_id, task_id, step) WHERE m.run_id = $run "
            "AND m.status = 'ok' AND m.variant IN ('fake', 'control') AND s.image_width IS NULL "
            "GROUP BY m.depth, m.prompt_n"
        )
        if not cells:
            errors = self._rows(
                "SELECT DISTINCT error FROM measurement WHERE run_id = $run AND error IS NOT NULL"
            )
            reason = f": {errors[0][0]}" if errors else ""
            raise StoreError(
                f"the probe has no valid measurement{reason}",
                where=str(self._folder),
            )
        return fit(Point(depth, new, ms) for depth, new, ms in cells)

    def _tail(self) -> int:
        tails = self._rows(
            "SELECT DISTINCT m.prompt_n - s.new_text_tokens FROM measurement AS m JOIN step AS s "
            "USING (run_id, task_id, step) WHERE m.run_id = $run AND m.status = 'ok' "
            "AND m.variant = 'fake' AND s.new_text_tokens IS NOT NULL AND s.image_width IS NULL"
        )
        if len(tails) != 1:
            raise StoreError(
                f"the probe's steps end in different numbers of tokens: {[n for (n,) in tails]}",
                where=str(self._folder),
            )
        ((tail,),) = tails
        return int(tail)

    def _prime_ms_per_cell(self, model: CostModel) -> float:
        """The primings go from depth to depth: together they are that of the deepest."""
        ((prime_ms, deepest),) = self._rows(
            "SELECT sum(prime_ms), max(depth) FILTER (WHERE prime_ms > 0) FROM measurement "
            "WHERE run_id = $run AND variant = 'restored' AND status IN ('ok', 'warmup')"
        )
        if not deepest:
            return max(0.0, model.b_ms)
        attention_ms = max(0.0, model.c_ms) / 2 * deepest**2
        return float(max(0.0, prime_ms - attention_ms) / deepest)

    def _restore_ms_per_cell(self) -> float:
        rows = self._rows(
            "SELECT median(install_ms) / depth FROM measurement WHERE run_id = $run "
            "AND variant = 'restored' AND status = 'ok' GROUP BY depth ORDER BY depth DESC LIMIT 1"
        )
        return float(rows[0][0]) if rows else 0.0

    def _bench_start_s(self, costs: Costs) -> float:
        """What is left of a process's wall time after its prefix, warm-ups and samples."""
        processes = self._rows(
            "SELECT depth, max(wall_s), list(chunk), "
            "sum(len(tps_samples) * chunk / tps_median) FROM calibration "
            "WHERE run_id = $run AND wall_s IS NOT NULL GROUP BY depth"
        )
        starts = [
            wall_s - costs.prefix_s(depth) - sum(costs.prefill_s(c, 0) for c in chunks) - samples_s
            for depth, wall_s, chunks, samples_s in processes
        ]
        return float(max([0.0, *starts]))

    def _model_bytes(self) -> float:
        """From the server's log, since only the engine knows where the model is; 0 if not told."""
        try:
            log = (self._folder / SERVER_LOG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0.0
        # Of the language model: its vision tower is loaded after it.
        found = _MODEL_SIZE.search(log)
        return float(found[1]) * (2**30 if found[2] == "GiB" else 2**20) if found else 0.0

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        run = {"run": self._reader.run_id}
        return self._reader.connection.execute(statement, run).fetchall()


def _line(values: Mapping[int, float | None]) -> tuple[float, float]:
    """Value at 0 and slope, both at least 0, of a line through values over depth."""
    known = {depth: float(value) for depth, value in values.items() if value is not None}
    if len(known) < 2:
        return 0.0, max([0.0, *(value / depth for depth, value in known.items())])
    slope, start = np.polyfit(list(known), list(known.values()), 1)
    return max(0.0, float(start)), max(0.0, float(slope))

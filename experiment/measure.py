"""One planned request becomes one measurement: ask, judge whether it may count, make the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from experiment.asking import Asker
from experiment.errors import PrefixError, RequestRefused, TraceError
from experiment.judge import FABRICATED, Judge, read_ubatches
from experiment.records import Fill, Measurement, Status, Variant
from experiment.schedule import Planned


class Measurer:
    """Makes measurements of one server, see `Asker` and `Judge`."""

    def __init__(self, asker: Asker, judge: Judge) -> None:
        self._asker = asker
        self._judge = judge

    def measure(self, item: Planned) -> Measurement:
        """Do what ``item`` plans.

        A step that cannot be asked for, or that the server refuses, comes back as ``refused`` with
        the reason.

        Raises:
            ServerError: no answer; nothing is known about this measurement.
        """
        step, variant = item.step, item.variant
        blank = Measurement(
            task_id=step.task_id,
            step=step.step,
            variant=variant,
            round=item.round,
            depth=step.depth,
            status="refused",
            started_at=datetime.now(UTC),
            position_in_round=item.position_in_round,
            error="not asked",
        )
        try:
            answer = self._asker.ask(step, variant, item.round)
        except (PrefixError, RequestRefused, TraceError) as error:
            return replace(blank, error=error.what)
        timings = answer.reply.timings
        problem = self._judge.problem(step, variant, timings)
        prefix = timings.get("prefix") or {}
        ubatches = read_ubatches(timings)
        status: Status = "warmup" if item.round < 0 else "ok"
        return replace(
            blank,
            status="invalid" if problem else status,
            error=problem,
            cache_n=timings.get("cache_n"),
            prompt_n=timings.get("prompt_n"),
            prompt_ms=timings.get("prompt_ms"),
            install_ms=prefix.get("install_ms"),
            encode_ms=timings.get("encode_ms"),
            wall_ms=answer.reply.wall_ms,
            prime_ms=prefix.get("prime_ms"),
            size_bytes=prefix.get("size_bytes"),
            pos_min=prefix.get("pos_min"),
            pos_max=prefix.get("pos_max"),
            n_kv=prefix.get("n_kv"),
            fake_fill=_fill(variant, prefix),
            fill_ms=prefix.get("fill_ms") if variant in FABRICATED else None,
            ubatch_tokens=ubatches.tokens if ubatches else None,
            ubatch_n_kv=ubatches.n_kv if ubatches else None,
            graph_nodes=ubatches.nodes if ubatches else None,
            kv_bytes=prefix.get("kv_bytes"),
            sampler_ms=prefix.get("sampler_ms"),
            other_cores=answer.load.other_cores,
            stolen_cores=answer.load.stolen_cores,
            throttled=answer.load.throttled,
            raw=answer.raw,
        )


def _fill(variant: Variant, prefix: Mapping[str, Any]) -> Fill | None:
    if variant not in FABRICATED:
        return None
    # The column takes these alone; what else a server says stands in the reason and the raw file.
    match prefix.get("fill"):
        case "zero":
            return "zero"
        case "tile":
            return "tile"
    return None

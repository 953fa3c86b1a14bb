"""The rows that a run produces, as frozen dataclasses: what is handed to the store.

Times are milliseconds and depths are tokens (KV cells) unless a name says otherwise; every
datetime carries its time zone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Variant = Literal["fake", "control", "restored", "full", "arithmetic"]
"""``control`` is ``fake`` once more: their difference is the noise floor of the measurement."""
VARIANTS: tuple[Variant, ...] = ("fake", "control", "restored", "full", "arithmetic")

Fill = Literal["zero", "tile"]
"""What a fabricated prefix's data are set to: zeros, or a short real segment repeated."""

Status = Literal["ok", "warmup", "invalid", "refused", "failed"]
"""What became of a measurement.

``ok`` enters the medians. ``warmup`` is a discarded round. ``invalid`` was answered but breaks a
rule (``cache_n != depth``); ``refused`` could not be asked for or got HTTP 4xx; ``failed`` got no
answer at all. Only ``failed`` and ``warmup`` are measured again after a resume.
"""

RunStatus = Literal["running", "finished", "failed", "interrupted"]

IMPORTED, ASSUMED = "imported", "assumed"
TRACE_WARNING, TRACE_DROPPED = "trace_warning", "trace_dropped"
BUDGET, LEFT_OUT = "budget", "left_out"
NOTED = (IMPORTED, ASSUMED, TRACE_WARNING, TRACE_DROPPED, BUDGET, LEFT_OUT)
"""Kinds of the events whose messages are sentences for whoever reads the figures: where the trace
comes from, what its import assumed, warns of and dropped; what a budget lowered; what is left out
of the trace."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, as it is known before the first measurement."""

    id: str
    name: str
    started: datetime
    engine: str
    pin: str
    model: str
    settings: Mapping[str, object]
    patch_digest: str | None = None
    image_digest: str | None = None
    model_digest: str | None = None
    mmproj_digest: str | None = None
    trace_digest: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the trace; ``depth`` is in ``depth_unit``, ``line`` is that of the trace file.

    ``left_out`` says why it is not replayed (`experiment.narrow.Reason`), None = it is; ``stratum``
    is its number in the sample that a budget allows (`experiment.budget`).
    """

    task_id: str
    step: int
    depth: int
    depth_unit: str = "tokens"
    line: int | None = None
    new_text: str | None = None
    new_text_tokens: int | None = None
    image_width: int | None = None
    image_height: int | None = None
    baseline_prefill_s: float | None = None
    baseline_decode_s: float | None = None
    baseline_exec_s: float | None = None
    left_out: str | None = None
    stratum: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One request (or, for ``arithmetic``, one estimate) of one step in one round.

    ``round`` counts from 0; warm-up rounds are negative. ``prompt_ms`` contains ``install_ms`` and
    ``encode_ms`` (and ``sampler_ms``); ``prime_ms`` and ``fill_ms`` are outside it. The structure
    (``ubatch_…``, ``graph_nodes``, one item an ubatch; ``kv_bytes``) and what disturbed the request
    (``other_cores``, ``stolen_cores``, ``throttled``) are as ``schemas/results.sql`` says.
    ``raw`` names the file below ``raw/``.

    Raises:
        ValueError: the fields contradict the status. A caller that judges answers does so first
            and records what is wrong as ``invalid`` with the reason.
    """

    task_id: str
    step: int
    variant: Variant
    round: int
    depth: int
    status: Status
    started_at: datetime
    position_in_round: int | None = None
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    install_ms: float | None = None
    encode_ms: float | None = None
    wall_ms: float | None = None
    prime_ms: float | None = None
    size_bytes: int | None = None
    pos_min: int | None = None
    pos_max: int | None = None
    n_kv: int | None = None
    fake_fill: Fill | None = None
    fill_ms: float | None = None
    ubatch_tokens: tuple[int, ...] | None = None
    ubatch_n_kv: tuple[int, ...] | None = None
    graph_nodes: tuple[int, ...] | None = None
    kv_bytes: int | None = None
    sampler_ms: float | None = None
    other_cores: float | None = None
    stolen_cores: float | None = None
    throttled: int | None = None
    error: str | None = None
    raw: str | None = None

    def __post_init__(self) -> None:
        what = f"{self.variant} of step {self.step} in round {self.round}"
        if self.status == "ok":
            for name in ("prompt_ms", "install_ms", "encode_ms"):
                value = getattr(self, name)
                if value is None or not math.isfinite(value) or value < 0:
                    raise ValueError(f"{what}: status ok needs {name}, not {value}")
        elif self.status != "warmup" and not self.error:
            raise ValueError(f"{what}: status {self.status} needs the reason in error")
        if self.status == "warmup" and self.round >= 0:
            raise ValueError(f"{what}: a warm-up round is negative")
        if self.status == "ok" and self.round < 0:
            raise ValueError(f"{what}: a negative round is a warm-up")


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """Experts that were routed to in one layer for at least one token of one ubatch; untimed."""

    task_id: str
    step: int
    variant: Literal["fake", "restored"]
    fake_fill: Literal["none", "zero", "tile"]
    ubatch: int
    layer: int
    distinct_experts: int


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """Prefill throughput of ``chunk`` tokens that start at ``depth``, in tokens per second.

    ``wall_s`` is the wall time of the whole process that measured it.
    """

    depth: int
    chunk: int
    tps_median: float
    tps_samples: tuple[float, ...] = field(default=())
    wall_s: float | None = None

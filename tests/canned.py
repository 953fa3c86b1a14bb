"""A small run whose every figure can be worked out by hand; shared by the tests of the results."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from experiment.records import ExpertRow, Measurement, RunRecord, Status, StepRecord, Variant
from experiment.store import Store

STARTED = datetime(2026, 11, 30, 2, 41, 5, tzinfo=UTC)

STEPS = (
    StepRecord(
        "a", 1, 1000, line=1, baseline_prefill_s=2.0, baseline_decode_s=3.0, baseline_exec_s=4.0
    ),
    StepRecord(
        "a", 2, 3000, line=2, baseline_prefill_s=1.0, baseline_decode_s=1.0, baseline_exec_s=1.0
    ),
    StepRecord("b", 1, 500, line=3),
)


def run_record(run_id: str = "r1", **changes: object) -> RunRecord:
    values: dict[str, object] = {
        "id": run_id,
        "name": "smoke",
        "started": STARTED,
        "engine": "native",
        "pin": "sdist",
        "model": "nano",
        "settings": {"seed": 1, "cache_dir": Path("cache")},
    }
    return RunRecord(**(values | changes))  # type: ignore[arg-type]


def measurement(
    task_id: str = "a",
    step: int = 1,
    variant: Variant = "fake",
    number: int = 0,
    prompt_ms: float | None = 10.0,
    install_ms: float | None = 1.0,
    encode_ms: float | None = 0.0,
    status: Status = "ok",
    **more: object,
) -> Measurement:
    values: dict[str, object] = {
        "task_id": task_id,
        "step": step,
        "variant": variant,
        "round": number,
        "depth": 1000,
        "status": status,
        "started_at": STARTED,
        "prompt_ms": prompt_ms,
        "install_ms": install_ms,
        "encode_ms": encode_ms,
    }
    return Measurement(**(values | more))  # type: ignore[arg-type]


def canned_measurements() -> list[Measurement]:
    """Step a 1 in three rounds, step a 2 with an invalid third round, step b 1 refused."""
    rows = [measurement("a", 1, "fake", -1, 5000.0, 10.0, 20.0, "warmup", prompt_n=100)]
    shallow: dict[str, object] = {
        "prompt_n": 100,
        "n_kv": 1280,
        "ubatch_tokens": (100,),
        "ubatch_n_kv": (1280,),
        "graph_nodes": (700,),
        "kv_bytes": 5_000_000,
        "stolen_cores": 0.01,
        "throttled": 0,
    }
    tile: dict[str, object] = {"fake_fill": "tile"}
    in_rounds = [(110.0, 112.0, 105.0), (120.0, 120.0, 105.0), (130.0, 124.0, 130.0)]
    for number, (fake, control, restored) in enumerate(in_rounds):
        more: dict[str, object] = {**shallow, "other_cores": (number + 1) / 10}
        rows += [
            measurement("a", 1, "fake", number, fake, 10.0, 20.0, **more, **tile),
            measurement("a", 1, "control", number, control, 10.0, 20.0, **more, **tile),
            measurement("a", 1, "restored", number, restored, 5.0, 20.0, **more),
        ]
    rows += [
        measurement("a", 1, "full", 0, 1100.0, 0.0, 20.0, prompt_n=1100),
        measurement("a", 1, "arithmetic", 0, 119.0, 0.0, 20.0),
    ]
    deep: dict[str, object] = {
        "depth": 3000,
        "prompt_n": 200,
        "n_kv": 3328,
        "ubatch_tokens": (128, 72),
        "ubatch_n_kv": (3072, 3328),
        "graph_nodes": (700, 650),
        "kv_bytes": 26_000_000,
        "other_cores": 0.3,
        "stolen_cores": 0.03,
        "throttled": 1,
    }
    beyond = deep | {"n_kv": 3584, "ubatch_n_kv": (3072, 3584), "kv_bytes": 27_000_000}
    for number, (fake, control, restored) in enumerate(
        [(202.0, 192.0, 256.0), (242.0, 254.0, 246.0)]
    ):
        rows += [
            measurement("a", 2, "fake", number, fake, 2.0, **deep, **tile),
            measurement("a", 2, "control", number, control, 2.0, **deep, **tile),
            measurement("a", 2, "restored", number, restored, 6.0, **beyond),
        ]
    reason = "cache_n is 2999, not 3000"
    rows += [
        measurement("a", 2, "fake", 2, 9999.0, 2.0, status="invalid", error=reason, **deep),
        measurement("a", 2, "restored", 2, 246.0, 6.0, **beyond),
        measurement("a", 2, "full", 0, 880.0, 0.0, depth=3000, prompt_n=3200),
        measurement("a", 2, "arithmetic", 0, 198.0, 0.0, depth=3000),
    ]
    small = "L = 500 is too small"
    rows += [
        measurement("b", 1, "fake", n, None, None, None, "refused", error=small, depth=500)
        for n in range(2)
    ]
    return rows


EXPERTS = (
    ExpertRow("a", 1, "fake", "tile", ubatch=0, layer=0, distinct_experts=5),
    ExpertRow("a", 1, "fake", "tile", ubatch=0, layer=1, distinct_experts=7),
    ExpertRow("a", 1, "fake", "zero", ubatch=0, layer=0, distinct_experts=2),
    ExpertRow("a", 1, "restored", "none", ubatch=0, layer=0, distinct_experts=6),
    ExpertRow("a", 1, "restored", "none", ubatch=0, layer=1, distinct_experts=9),
    ExpertRow("a", 2, "fake", "tile", ubatch=0, layer=0, distinct_experts=8),
)

ROUNDS = "3 rounds: half-width 20.00 % is not within 0.50 %"


def canned_run(folder: Path, *, status: str = "finished") -> Path:
    with Store.create(folder, run_record()) as store:
        store.add_steps(STEPS)
        for row in canned_measurements():
            store.record(row)
        store.add_experts(EXPERTS)
        store.add_event("rounds", ROUNDS)
        store.set_status(status)  # type: ignore[arg-type]
    return folder

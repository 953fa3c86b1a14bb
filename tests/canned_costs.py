"""What a probe has told, in figures that can be reckoned with by hand."""

from __future__ import annotations

from experiment.cost_model import CostModel
from experiment.settings import Settings, load_settings
from experiment.sweep_costs import Costs
from experiment.trace_costs import TraceCosts

TEXT = Costs(
    tail_tokens=0,
    model=CostModel(10.0, 1.0, 0.001, 1.0, None, ()),
    overhead_ms=20.0,
    overhead_ms_per_cell=0.01,
    restore_ms_per_cell=0.02,
    prime_ms_per_cell=1.0,
    bench_start_s=2.0,
    state_bytes=2**20,
    state_bytes_per_cell=1024.0,
    kv_bytes_per_cell=2048.0,
    fixed_bytes=float(2**30),
    available_bytes=float(4 * 2**30),
    took_s=7.0,
)
COSTS = TraceCosts(TEXT, start_s=3.0, driver_s=0.01, has_experts=True, probed_depth=100_000)


def settings(**overrides: object) -> Settings:
    values = {
        "calibration.chunk": 100,
        "calibration.points": 2,
        "schedule.rounds": 3,
        "schedule.time_limit_s": 60.0,
    }
    return load_settings(
        values | {key.replace("__", "."): value for key, value in overrides.items()}, environ={}
    )

from __future__ import annotations

from dataclasses import replace

import pytest

from experiment.cost_model import CostModel
from experiment.errors import SettingsError
from experiment.settings import Settings, load_settings
from experiment.sweep_costs import Costs
from experiment.sweep_estimate import LeftOut, Plan, choose_cells

COSTS = Costs(
    tail_tokens=5,
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


def settings(**overrides: object) -> Settings:
    values = {"calibration.chunk": 100, "schedule.rounds": 3}
    return load_settings(
        values | {key.replace("__", "."): value for key, value in overrides.items()}, environ={}
    )


def plan(
    depths: tuple[int, ...] = (1000,),
    sizes: tuple[int, ...] = (100,),
    limit_s: float = 1800.0,
    costs: Costs = COSTS,
    **overrides: object,
) -> Plan:
    return choose_cells(costs, settings(**overrides), depths, sizes, limit_s, "probe")


def test_a_cell_by_hand() -> None:
    made = plan()
    (cost,) = made.costs
    # Prefill 10 + 100 + 100 = 210 ms; request 210 + 20 + 10 = 240 ms, restored 20 ms more.
    # Warm-up 240 + 260, three rounds of 2 * 240 + 260, experts 2 * 210.
    assert cost.requests_s == pytest.approx(0.5 + 3 * 0.74 + 0.42)
    # Prefix 1,000 + 0.0005 * 1,000^2 ms; start 2 s, warm-up at depth 0 110 ms, 3 * (210 + 20) ms.
    assert made.prime_s == pytest.approx(1.5)
    assert cost.bench_s == pytest.approx(2.0 + 1.5 + 0.11 + 0.69)
    assert cost.state_bytes == 2**20 + 1000 * 1024
    assert made.fixed_s == pytest.approx(1.5 + 3.14 + 4.3)
    assert made.added_s == pytest.approx(1800 - 7 - 8.94)
    # Model, KV cache of 1,100 cells, one state.
    assert made.memory_bytes == 2**30 + 1100 * 2048 + 2**20 + 1000 * 1024
    assert made.left_out == ()


def test_the_calibrations_chunk_is_measured_besides() -> None:
    (cost,) = plan(calibration__chunk=50).costs
    # 50 tokens more: warm-up 60 ms, 3 * (10 + 50 + 50 + 20) ms.
    assert cost.bench_s == pytest.approx(4.3 + 0.06 + 0.39)


def test_prefixes_are_primed_from_one_another() -> None:
    made = plan((1000, 2000))
    assert made.prime_s == pytest.approx(2.0 + 0.0005 * 4000)  # that of the deepest alone
    assert len(made.costs) == 2


def test_a_depth_that_is_not_restored_costs_no_prefix() -> None:
    made = plan(schedule__restored_max_depth=999)
    (cost,) = made.costs
    assert (made.prime_s, cost.bench_s, cost.state_bytes) == (0, 0, 0)
    assert cost.requests_s == pytest.approx(0.24 + 3 * 0.48)


def test_an_extrapolated_prefill_is_never_negative() -> None:
    costs = replace(COSTS, model=CostModel(1.0, 1.0, -0.01, 1.0, None, ()))
    assert costs.prefill_s(100, 10_000) == 0.0
    assert costs.prefix_s(1000) == pytest.approx(1.0)


def test_the_deepest_go_first_when_time_is_short() -> None:
    # At 100,000: prefix 5,100 s.
    made = plan((1000, 2000, 100_000), (100, 200), 300.0)
    assert made.depths == (1000, 2000)
    assert made.sizes == (100, 200)
    (left,) = made.left_out
    assert (left.what, left.depth, left.new) == ("L = 100,000", 100_000, None)
    assert left.reason.startswith("with it the sweep takes ")
    assert left.reason.endswith(" min, the limit is 5.0 min")


def test_then_the_largest_sizes() -> None:
    made = plan((1000, 2000), (100, 100_000), 120.0)
    assert (made.depths, made.sizes) == ((1000,), (100,))
    assert [left.what for left in made.left_out] == ["L = 2,000", "new = 100,000"]


def test_a_minute_is_kept_free_for_more_rounds() -> None:
    # The cell takes 8.94 s, the probe 7 s.
    assert plan(limit_s=76.0).added_s == pytest.approx(60.06)
    with pytest.raises(SettingsError, match=r"takes 1\.3 min, the limit is 1\.3 min"):
        plan(limit_s=75.9)


def test_nothing_fits() -> None:
    with pytest.raises(
        SettingsError, match=r"not even the cell of 100 .* at depth 1,000"
    ) as caught:
        plan((1000, 2000), (100, 200), 30.0)
    assert caught.value.hint
    assert "--time-limit" in caught.value.hint


def test_memory_that_is_there() -> None:
    # At 2^20 cells 2 GiB of KV cache and 1 GiB of state, besides the model's 1 GiB.
    deep = (1024, 2**20)
    reason = "with it the server needs 4.0 GiB, usable are 3.6 GiB"
    assert plan(deep, limit_s=1e7).left_out == (LeftOut(2**20, None, reason),)
    roomy = replace(COSTS, available_bytes=float(5 * 2**30))
    assert plan(deep, limit_s=1e7, costs=roomy).depths == deep


def test_memory_for_saved_states() -> None:
    made = plan((1024, 2**19), limit_s=1e7, server__state_cache_mib=512)
    assert made.depths == (1024,)
    assert made.left_out[0].reason == (
        "with it the saved states take 515 MiB, server.state_cache_mib allows 512 MiB"
    )
    # Two states, together 1 + 512 MiB of cells and 1 MiB each.
    assert len(plan((1024, 2**19), limit_s=1e7, server__state_cache_mib=515).depths) == 2


def test_a_context_of_the_users_own() -> None:
    made = plan((1024, 2048), server__context=2048)
    assert made.left_out == (LeftOut(2048, None, "server.context is 2,048"),)

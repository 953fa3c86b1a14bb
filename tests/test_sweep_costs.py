from __future__ import annotations

from pathlib import Path

import duckdb
import fake_sweep as law
import pytest
from canned_steps import step
from fake_sweep import FakeEngine, settings_in
from fake_world import query

from experiment import sweep
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.probe import trace_costs
from experiment.progress import SilentProgress
from experiment.sweep import Request
from experiment.sweep_costs import Costs, read_costs


def probed(folder: Path, engine: FakeEngine | None = None) -> Path:
    settings = settings_in(folder)
    request = Request((256, 16384), (16, 64), 1800.0)
    sweep.prepare(engine or FakeEngine(), settings, request, SilentProgress())
    return next(folder.glob("*_sweep-probe"))


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Costs:
    return read_costs(probed(tmp_path_factory.mktemp("probe")))


def test_the_law_behind_the_probe_is_found(costs: Costs) -> None:
    assert costs.tail_tokens == law.TAIL
    assert costs.model.a_ms == pytest.approx(law.A_MS)
    assert costs.model.b_ms == pytest.approx(law.B_MS)
    assert costs.model.c_ms == pytest.approx(law.C_MS)
    assert costs.prefill_s(100, 131072) == pytest.approx(law.law_ms(100, 131072) / 1000)


def test_screenshots_change_nothing_of_what_is_said_of_text(tmp_path: Path, costs: Costs) -> None:
    steps = [step(depth=16384), step(number=1, new=None, shot=(960, 540))]
    engine, settings = FakeEngine(), settings_in(tmp_path)
    of_trace = trace_costs(engine, settings, steps, SilentProgress())
    (folder,) = tmp_path.glob("*_trace-probe")
    assert query(folder, "SELECT max(encode_ms), max(prompt_n) FROM measurement") == [
        (law.ENCODE_MS, law.IMAGE_TOKENS + law.TAIL)
    ]
    assert of_trace.costs.tail_tokens == costs.tail_tokens
    assert of_trace.costs.model.b_ms == pytest.approx(law.B_MS)
    # No encoding is in the overhead of a request.
    assert of_trace.costs.overhead_ms == pytest.approx(costs.overhead_ms)
    assert of_trace.sizes.images == {(960, 540): law.IMAGE_TOKENS}
    assert of_trace.images.ms == (law.ENCODE_MS,)


def test_overhead_install_and_restore_over_depth(costs: Costs) -> None:
    # Fabricating takes 0.5 ms, which is a part of the overhead here.
    assert costs.overhead_ms == pytest.approx(law.OVERHEAD_MS + 0.5)
    assert costs.overhead_ms_per_cell == pytest.approx(law.OVERHEAD_MS_PER_CELL)
    assert costs.restore_ms_per_cell == pytest.approx(law.RESTORE_MS_PER_CELL)
    # 1,000 deep: 3 + 0.5 * 100 + 4e-5 * 100 * 1,000 + 5.5 + 0.001 * 1,000 ms, and 2 to restore.
    assert costs.request_s(100, 1000, restored=False) == pytest.approx(0.0635)
    assert costs.request_s(100, 1000, restored=True) == pytest.approx(0.0655)


def test_priming_is_told_from_a_chain(costs: Costs) -> None:
    assert costs.prime_ms_per_cell == pytest.approx(law.PRIME_MS)
    # 0.4 * 100,000 + 2e-5 * 100,000^2 ms: 40 s and 200 s.
    assert costs.prefix_s(100_000) == pytest.approx(240.0)


def test_memory(costs: Costs) -> None:
    assert costs.state_bytes == pytest.approx(law.STATE_BYTES)
    assert costs.state_bytes_per_cell == pytest.approx(law.STATE_BYTES_PER_CELL)
    assert costs.kv_bytes_per_cell == 4096  # 16 MiB over 4,096 cells
    assert costs.fixed_bytes == (300 + 24) * 2**20  # the model, not its vision tower
    assert costs.available_bytes == 16 * 2**30


def test_the_tighter_of_memory_and_its_limit(tmp_path: Path) -> None:
    assert read_costs(probed(tmp_path, FakeEngine(limit_gib=2.0))).available_bytes == 2 * 2**30


def test_start_of_llama_bench(costs: Costs) -> None:
    assert costs.bench_start_s == pytest.approx(law.BENCH_START_S)


def test_a_silent_server_log_leaves_the_model_out(tmp_path: Path) -> None:
    folder = probed(tmp_path)
    (folder / "raw" / "server.log").unlink()
    assert read_costs(folder).fixed_bytes == 24 * 2**20


def test_without_the_size_of_the_kv_cache_a_state_stands_for_it(tmp_path: Path) -> None:
    folder = probed(tmp_path)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("DELETE FROM graph WHERE key = 'kv_buffer_mib'")
    assert read_costs(folder).kv_bytes_per_cell == pytest.approx(law.STATE_BYTES_PER_CELL)


def test_a_probe_without_restored_reckons_priming_from_fake(tmp_path: Path) -> None:
    folder = probed(tmp_path)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("DELETE FROM measurement WHERE variant = 'restored'")
        connection.execute("DELETE FROM calibration")
    costs = read_costs(folder)
    assert costs.prime_ms_per_cell == pytest.approx(law.B_MS)
    assert (costs.restore_ms_per_cell, costs.state_bytes, costs.bench_start_s) == (0, 0, 0)


def test_steps_that_end_in_different_tails(tmp_path: Path) -> None:
    folder = probed(tmp_path)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE step SET new_text_tokens = 15 WHERE depth = 256 AND step = 0")
    with pytest.raises(StoreError, match="end in different numbers of tokens"):
        read_costs(folder)


def test_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no"):
        read_costs(tmp_path)

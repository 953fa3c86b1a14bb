from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import fake_sweep as law
import pytest
from canned import STEPS, run_record
from fake_sweep import FakeEngine, settings_in

from experiment import sweep
from experiment.cost_model import CostModel
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.progress import SilentProgress
from experiment.store import Store
from experiment.sweep import Request
from experiment.sweep_estimate import LeftOut
from experiment.sweep_results import Cell, Sweep, bench_ubatches, load

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(engine: FakeEngine | None = None, **overrides: object) -> Path:
        chosen = engine or FakeEngine()
        settings = settings_in(tmp_path, **overrides)
        request = Request((256, 4096), (64, 512), 1800.0)
        plan = sweep.prepare(chosen, settings, request, SilentProgress())
        return sweep.measure(chosen, settings, plan, SilentProgress())

    return made


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Fake takes 2, 3 and 4 % longer than restored in the three rounds of every cell."""
    engine, folder = FakeEngine(ratios=(1.02, 1.03, 1.04)), tmp_path_factory.mktemp("sweep")
    settings, request = settings_in(folder), Request((256, 4096), (64, 512), 1800.0)
    plan = sweep.prepare(engine, settings, request, SilentProgress())
    return load(sweep.measure(engine, settings, plan, SilentProgress()))


def test_cells_stand_by_depth_and_size(biased: Sweep) -> None:
    cells = [(cell.depth, cell.new) for cell in biased.cells]
    assert cells == [(256, 64), (256, 512), (4096, 64), (4096, 512)]


def test_a_cell_by_hand(biased: Sweep) -> None:
    cell = biased.cells[2]
    assert cell.fake
    assert cell.restored
    assert cell.ratio
    assert cell.ratio.interval
    real_ms = 3.0 + 0.5 * 64 + 4e-5 * 64 * 4096  # 45.48576
    assert cell.restored.median == pytest.approx(real_ms)
    assert cell.fake.median == pytest.approx(1.03 * real_ms)
    assert cell.ratio.median == pytest.approx(1.03)
    # Of three values the interval is all of them.
    assert cell.ratio.interval.low == pytest.approx(1.02)
    assert cell.ratio.interval.high == pytest.approx(1.04)
    assert cell.bench
    assert cell.bench.median == pytest.approx(law.BENCH_SLOWER * real_ms)
    assert cell.bench_ratio == pytest.approx(1.03 / 1.25)
    assert cell.arithmetic_error_pct == pytest.approx(100 * (0.5 / 1.03 - 1))
    assert cell.fake_install
    assert cell.fake_install.median == 0.5
    assert cell.restored_install
    assert cell.restored_install.median == pytest.approx(2e-3 * 4096)
    assert cell.sampler
    assert (cell.sampler.median, cell.sampler.n) == (0.25, 3)
    assert (cell.fake_experts, cell.restored_experts) == (90, 100)
    assert cell.is_same_structure is True
    assert cell.model_error_pct == pytest.approx(0.0, abs=1e-9)


def test_the_control_gives_the_noise_floor(biased: Sweep) -> None:
    # control / fake is 1 / 1.02, 1 / 1.03, 1 / 1.04 in each of four cells.
    assert biased.noise
    assert biased.noise.n == 12
    assert biased.noise.median == pytest.approx(1 / 1.03)
    assert biased.floor == pytest.approx(1 - 1 / 1.04)


def test_three_verdicts(biased: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet_run = replace(biased, noise=None)
    assert not quiet_run.sees_difference(replace(biased.cells[0], noise=None))  # of three pairs
    monkeypatch.setattr("experiment.sweep_results.MIN_PAIRS", 3)
    cell = biased.cells[0]
    assert cell.contains_one is False
    assert not cell.is_precise(0.5)  # 1.04 / 1.03: 0.97 %
    assert cell.is_precise(1.0)
    assert not biased.sees_difference(cell)  # 3 % lies within the floor of 3.8 %, the run's
    assert not replace(biased, noise=None).sees_difference(cell)  # and the cell's own
    quiet = replace(cell, noise=None)
    assert not biased.sees_difference(quiet)
    assert replace(biased, noise=None).sees_difference(quiet)
    assert cell.ratio
    without = replace(cell, ratio=replace(cell.ratio, interval=None))
    assert without.contains_one is None
    assert not without.is_precise(100.0)
    assert not replace(biased, noise=None).sees_difference(without)


def test_models_of_each_instrument(biased: Sweep) -> None:
    fake, restored, bench = (biased.models[name] for name in ("fake", "restored", "bench"))
    assert isinstance(fake, CostModel)
    assert isinstance(restored, CostModel)
    assert isinstance(bench, CostModel)
    assert (restored.a_ms, restored.b_ms, restored.c_ms) == pytest.approx((3.0, 0.5, 4e-5))
    assert fake.b_ms == pytest.approx(1.03 * 0.5)
    assert bench.c_ms == pytest.approx(1.25 * 4e-5)


def test_the_probes_llama_bench_is_another_process(biased: Sweep) -> None:
    # The probe calibrates 512 tokens at 256 and 1,024, the sweep at 256 and 4,096.
    assert biased.bench_again == ((256, pytest.approx(1.0)),)


def test_a_slower_process_shows(make: Make, tmp_path: Path) -> None:
    folder = make()
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE calibration SET tps_median = tps_median / 1.1")
    assert load(folder).bench_again == ((256, pytest.approx(1.1)),)
    (probe,) = tmp_path.glob("*_sweep-probe")
    probe.rename(tmp_path / "elsewhere")
    assert load(folder).bench_again == ()


def test_what_was_left_out_is_told_by_the_plan(make: Make) -> None:
    folder = make(server__context=1024)
    assert load(folder).left_out == (LeftOut(4096, None, "server.context is 1,024"),)
    (folder / "sweep.json").unlink()
    assert load(folder).left_out == ()
    (folder / "sweep.json").write_text("{")
    with pytest.raises(StoreError, match="JSON"):
        load(folder)


def test_one_depth_gives_no_model_but_a_reason(make: Make) -> None:
    found = load(make(server__context=1024))
    assert found.models["fake"] == "2 cells with one depth (256) do not determine a cost model"
    assert [cell.model_ms for cell in found.cells] == [None, None]


def test_another_structure_is_seen(make: Make) -> None:
    folder = make()
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute(
            "UPDATE measurement SET graph_nodes = [701] WHERE variant = 'restored' AND step = 0"
        )
        connection.execute("UPDATE measurement SET ubatch_tokens = NULL WHERE step = 1")
    cells: tuple[Cell, ...] = load(folder).cells
    assert [cell.is_same_structure for cell in cells] == [False, False, None, None]
    assert [cell.is_batched_alike for cell in cells] == [True, True, None, None]


@pytest.mark.parametrize(
    ("new", "batch", "ubatch", "parts"),
    [
        (16, 2048, 512, [16]),
        (512, 2048, 512, [512]),
        (1100, 2048, 512, [512, 512, 76]),
        # The batch ends in the middle of a ubatch.
        (1100, 700, 512, [512, 188, 400]),
    ],
)
def test_how_llama_bench_splits(new: int, batch: int, ubatch: int, parts: list[int]) -> None:
    assert bench_ubatches(new, batch, ubatch) == parts


def test_a_run_that_measured_nothing(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps(STEPS)
    with pytest.raises(StoreError, match="no cell of a sweep was measured"):
        load(tmp_path / "run")

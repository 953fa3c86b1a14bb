from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import fake_sweep as law
import pytest
from canned import STARTED, measurement, run_record
from canned_steps import step
from fake_sweep import FakeEngine, settings_in

from experiment import sweep
from experiment.progress import SilentProgress
from experiment.reader import read
from experiment.records import StepRecord
from experiment.step_size import Sizes
from experiment.store import Store
from experiment.sweep import Request
from experiment.trace_costs import (
    ImageTimes,
    images_to_probe,
    read_images,
    read_trace_costs,
)


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    sweep.prepare(
        FakeEngine(), settings_in(tmp_path), Request((256, 16384), (16,), 1800.0), SilentProgress()
    )
    return next(tmp_path.glob("*_sweep-probe"))


def test_a_probe_of_text(probe: Path) -> None:
    log = probe / "raw" / "server.log"
    log.write_text(
        log.read_text()
        + "0.1 I print_info: n_ctx_train           = 524288\n"
        + "0.1 I print_info: n_expert              = 32\n"
        + "0.1 I print_info: n_expert_used         = 8\n"
    )
    costs = read_trace_costs(probe)
    assert costs.costs.model.b_ms == pytest.approx(law.B_MS)
    assert costs.sizes == Sizes(tail=law.TAIL)
    assert costs.images == ImageTimes()
    assert costs.context == 524288
    assert costs.has_experts is True
    assert costs.probed_depth == 16384


def test_a_log_that_tells_nothing(probe: Path) -> None:
    assert (read_trace_costs(probe).context, read_trace_costs(probe).has_experts) == (None, None)
    (probe / "raw" / "server.log").write_text("print_info: n_expert  = 0\n")
    assert read_trace_costs(probe).has_experts is False
    (probe / "raw" / "server.log").unlink()
    costs = read_trace_costs(probe)
    assert (costs.context, costs.has_experts) == (None, None)


def test_start_and_driver_from_the_times_of_requests(tmp_path: Path) -> None:
    # Begins 2 s after the run; requests of 100 ms begin 110, 130 and 108 ms after one another.
    begins_ms = [2000, 2110, 2240, 2348]
    with Store.create(tmp_path / "r", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, new_text_tokens=10)])
        for number, ms in enumerate(begins_ms):
            store.record(
                measurement(
                    number=number,
                    started_at=STARTED + timedelta(milliseconds=ms),
                    wall_ms=100.0,
                    prompt_n=15,
                )
            )
        # An estimate that is made later is no request.
        store.record(
            measurement(variant="arithmetic", started_at=STARTED + timedelta(hours=1), prompt_n=15)
        )
    from experiment.trace_costs import _driver

    with read(tmp_path / "r") as reader:
        assert _driver(reader) == (2.0, pytest.approx(0.010))


def test_images_by_hand(tmp_path: Path) -> None:
    with Store.create(tmp_path / "r", run_record()) as store:
        store.add_steps(
            [
                StepRecord("a", 1, 256, new_text_tokens=0, image_width=960, image_height=540),
                StepRecord("a", 2, 256, new_text_tokens=30, image_width=640, image_height=360),
                StepRecord("a", 3, 256, new_text_tokens=30),
            ]
        )
        for number, ms in enumerate((50.0, 54.0)):
            store.record(measurement("a", 1, "fake", number, 90.0, 0.0, ms, prompt_n=527))
            store.record(measurement("a", 1, "control", number, 90.0, 0.0, ms + 4, prompt_n=527))
        store.record(measurement("a", 2, "fake", 0, 60.0, 0.0, 17.0, prompt_n=267))
        store.record(measurement("a", 2, "restored", 0, 60.0, 0.0, 99.0, prompt_n=267))
        store.record(
            measurement("a", 2, "fake", 1, 60.0, 0.0, 99.0, "invalid", error="x", prompt_n=1)
        )
        store.record(measurement("a", 3, "fake", 0, 9.0, 0.0, 0.0, prompt_n=35))
    with read(tmp_path / "r") as reader:
        sizes, times = read_images(reader, 5)
    assert sizes == Sizes(5, images={(960, 540): 522, (640, 360): 232})
    assert times == ImageTimes((640 * 360, 960 * 540), (17.0, 54.0))


def test_times_between_and_beyond_measured_sizes() -> None:
    times = ImageTimes.of([(1000, 10.0), (3000, 40.0), (1000, 20.0)])
    assert times == ImageTimes((1000, 3000), (15.0, 40.0))
    # Half of 1,000; half way between; 4,000 / 3,000 of 40.
    assert times.ms_of([0, 500, 1000, 2000, 3000, 4000]).tolist() == pytest.approx(
        [0.0, 7.5, 15.0, 27.5, 40.0, 40 * 4 / 3]
    )
    assert ImageTimes().ms_of([0, 500]).tolist() == [0.0, 0.0]


def test_a_probe_measures_few_sizes() -> None:
    shots = [(960, 540), (64, 32), (640, 360), (32, 64), (960, 540)]
    steps = [step(number=i, shot=shot) for i, shot in enumerate(shots)]
    assert images_to_probe(steps) == [(32, 64), (640, 360), (960, 540)]
    assert images_to_probe(steps[:2]) == [(64, 32), (960, 540)]
    assert images_to_probe([step()]) == []

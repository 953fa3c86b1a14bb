from __future__ import annotations

from datetime import UTC, datetime

import pytest

from experiment.arithmetic import Calibration, estimates
from experiment.errors import CalibrationError
from experiment.records import CalibrationRow
from experiment.trace import Baseline, Step


def rows(*pairs: tuple[int, float], chunk: int = 512) -> list[CalibrationRow]:
    return [CalibrationRow(depth, chunk, tps, (tps,)) for depth, tps in pairs]


# 1 ms a token at depth 0, 2 ms at 1,000, 6 ms at 3,000.
THREE = rows((3000, 1000 / 6), (0, 1000.0), (1000, 500.0))


@pytest.mark.parametrize(
    ("depth", "token_ms"),
    [(0, 1.0), (250, 1.25), (500, 1.5), (1000, 2.0), (2000, 4.0), (2500, 5.0), (3000, 6.0)],
)
def test_seconds_per_token_are_interpolated(depth: int, token_ms: float) -> None:
    calibration = Calibration.from_rows(THREE, 512)
    assert calibration.estimate_lm_ms(100, depth) == pytest.approx(100 * token_ms)
    assert calibration.tps(depth) == pytest.approx(1000 / token_ms)


def test_halfway_is_not_the_mean_of_the_throughputs() -> None:
    # 100 and 300 tokens/s: the times' mean is (10 + 3.33) / 2 = 6.67 ms, so 150 tokens/s, not 200.
    assert Calibration.from_rows(rows((0, 300.0), (10, 100.0)), 512).tps(5) == pytest.approx(150.0)


def test_a_law_linear_in_depth_is_met_exactly() -> None:
    def token_s(depth: int) -> float:
        return 0.0005 + 1e-7 * depth

    points = rows(*((depth, 1 / token_s(depth)) for depth in (0, 1024, 8192)))
    calibration = Calibration.from_rows(points, 512)
    for depth in (1, 300, 5000, 8191):
        assert calibration.estimate_lm_ms(64, depth) == pytest.approx(64_000 * token_s(depth))


def test_below_the_first_depth_its_throughput_is_taken() -> None:
    assert Calibration.from_rows(rows((256, 400.0), (512, 100.0)), 512).tps(0) == pytest.approx(
        400.0
    )


def test_one_depth_covers_itself_and_what_is_below() -> None:
    calibration = Calibration.from_rows(rows((256, 400.0)), 512)
    assert calibration.tps(256) == calibration.tps(1) == pytest.approx(400.0)


def test_beyond_the_deepest_depth_is_refused() -> None:
    with pytest.raises(CalibrationError, match=r"depth 3001 is beyond the deepest .* 3000"):
        Calibration.from_rows(THREE, 512).estimate_lm_ms(1, 3001)


def test_a_step_measured_with_its_own_size_does_not_enter_the_estimate() -> None:
    # llama-bench needs 10 ms a token for 16, and 2 ms for 512: the estimate stays with the latter.
    mixed = rows((1000, 100.0), chunk=16) + rows((1000, 500.0)) + rows((2000, 50.0), chunk=16)
    calibration = Calibration.from_rows(mixed, 512)
    assert calibration.estimate_lm_ms(16, 1000) == pytest.approx(32.0)
    assert calibration.chunk == 512
    assert calibration.covers(1000)
    assert not calibration.covers(1001)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no depth is calibrated with 512 tokens"),
        (rows((0, 1.0), chunk=256), "no depth is calibrated with 512 tokens"),
        (rows((0, 1.0), (0, 2.0)), "calibrated twice"),
        (rows((0, 0.0)), "not positive"),
    ],
)
def test_rows_that_make_no_calibration(given: list[CalibrationRow], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        Calibration.from_rows(given, 512)


def _step(number: int, depth: int) -> Step:
    return Step("t", number, depth, "tokens", None, 20, None, Baseline(), number)


def test_estimates_of_a_trace() -> None:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    # 1 / 1000 s a token at L = 0, 1 / 500 at 1024, so 1.5 / 1000 between them
    rows = [CalibrationRow(0, 512, 1000.0), CalibrationRow(1024, 512, 500.0)]
    steps = [_step(1, 512), _step(2, 0), _step(3, 1025), _step(4, 1024)]
    content = {("t", 1): (100, 20.0), ("t", 2): (10, 0.0), ("t", 3): (10, 0.0)}
    made = list(estimates(steps, content, rows, 512, at))
    # The third is deeper than what is calibrated, the fourth was not measured.
    assert [(row.step, row.prompt_n, row.encode_ms) for row in made] == [(1, 100, 20.0), (2, 10, 0)]
    assert [row.prompt_ms for row in made] == pytest.approx([150.0 + 20.0, 10.0])
    assert {(row.variant, row.round, row.status, row.install_ms) for row in made} == {
        ("arithmetic", 0, "ok", 0.0)
    }
    assert {row.started_at for row in made} == {at}


def test_no_estimates_without_calibration() -> None:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    assert list(estimates([_step(1, 0)], {("t", 1): (1, 0.0)}, [], 512, at)) == []

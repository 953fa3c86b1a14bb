"""The figures of the benchmark, from small results whose numbers are worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from canned import measurement, run_record

from experiment.bench_figures import (
    DRIVER_TARGETS_MS,
    INSTALL_TARGETS_MS,
    Figure,
    Part,
    Target,
    depth_figures,
    measurements,
    read,
    saved_bytes,
    six_steps_figures,
    speedup_figures,
)
from experiment.bench_tables import render
from experiment.errors import StoreError
from experiment.records import CalibrationRow, Measurement
from experiment.store import Store


def results(
    folder: Path, rows: Iterable[Measurement], calibration: Iterable[CalibrationRow] = ()
) -> Path:
    with Store.create(folder, run_record("r1")) as store:
        for row in rows:
            store.record(row)
        store.add_calibration(list(calibration))
    return folder


def by_name(figures: Iterable[Figure]) -> dict[str, Figure]:
    return {figure.what: figure for figure in figures}


@pytest.mark.parametrize(
    ("samples", "target", "met"),
    [
        ((29.0, 30.0, 99.0), Target(30.0), True),
        ((29.0, 30.01, 99.0), Target(30.0), False),
        ((1.0, 60.0, 61.0), Target(60.0, "at least"), True),
        ((1.0, 59.99, 61.0), Target(60.0, "at least"), False),
        ((60.0, 61.0), Target(60.0, "at least", every=True), True),
        ((59.0, 61.0, 62.0), Target(60.0, "at least", every=True), False),
        ((30.0, 29.0), Target(30.0, every=True), True),
        ((31.0, 29.0, 28.0), Target(30.0, every=True), False),
    ],
)
def test_a_target_is_a_limit_that_may_be_reached(
    samples: tuple[float, ...], target: Target, met: bool
) -> None:
    assert target.met(samples) is met


def test_the_interval_of_a_figure_is_that_of_its_median() -> None:
    figure = Figure("x", "ms", (3.0, 1.0, 2.0))
    assert figure.median == 2.0
    assert figure.interval is not None
    assert (figure.interval.low, figure.interval.high) == (1.0, 3.0)
    assert Figure("x", "ms", (3.0,)).interval is None


def depth_rows(depth: int, n_kv: int) -> list[Measurement]:
    """Installs of 1, 2, 3, 4 ms; 5, 7, 9, 11 ms of wall beside 100 of the prompt and 20 of fill."""
    rows = []
    for place, (number, variant) in enumerate(
        [(0, "fake"), (0, "control"), (1, "fake"), (1, "control")]
    ):
        rows.append(
            measurement(
                f"depth-{depth}",
                0,
                variant,  # type: ignore[arg-type]
                number,
                100.0,
                1.0 + place,
                depth=depth,
                wall_ms=100.0 + 20.0 + 5.0 + 2 * place,
                fill_ms=20.0,
                n_kv=n_kv,
            )
        )
    return rows


def test_install_and_driver_by_depth(tmp_path: Path) -> None:
    rows = [
        row for depth in (4096, 8192, 65_536, 262_144) for row in depth_rows(depth, depth + 256)
    ]
    rows += [
        measurement(
            "depth-4096", 0, "fake", -1, 1.0, 1.0, status="warmup", depth=4096, wall_ms=1e4
        ),
        measurement(
            *("depth-4096", 0, "fake", 2, 1.0, 1.0),
            status="invalid",
            error="cache_n is 1",
            depth=4096,
            wall_ms=1e4,
        ),
        measurement("depth-4096", 0, "full", 0, 1.0, 1.0, depth=4096, wall_ms=1e4),
    ]
    figures = depth_figures(read(results(tmp_path, rows)))
    assert [(f.what, f.unit, sorted(f.samples), f.target) for f in figures] == [
        ("install of a fake prefix, L = 8,192", "ms", [1.0, 2.0, 3.0, 4.0], Target(0.2)),
        ("install of a fake prefix, L = 65,536", "ms", [1.0, 2.0, 3.0, 4.0], Target(1.0)),
        ("install of a fake prefix, L = 262,144", "ms", [1.0, 2.0, 3.0, 4.0], Target(4.0)),
        ("driver beyond the server's time, L = 4,096", "ms", [5.0, 7.0, 9.0, 11.0], Target(10.0)),
        ("driver beyond the server's time, L = 65,536", "ms", [5.0, 7.0, 9.0, 11.0], Target(45.0)),
        (
            "driver beyond the server's time, L = 262,144",
            "ms",
            [5.0, 7.0, 9.0, 11.0],
            Target(180.0),
        ),
        (
            "KV columns that each request read, L = 262,144",
            "",
            [262_400.0] * 4,
            Target(262_144, "at least", every=True),
        ),
    ]


def test_the_targets_of_the_table() -> None:
    assert INSTALL_TARGETS_MS == {8192: 0.2, 65_536: 1.0, 262_144: 4.0}
    assert DRIVER_TARGETS_MS == {4096: 10.0, 65_536: 45.0, 262_144: 180.0}


def test_the_token_that_is_generated_is_the_servers_time_too(tmp_path: Path) -> None:
    rows = [
        measurement(
            "t", 0, "fake", 0, 100.0, 1.0, depth=4096, wall_ms=110.0, prime_ms=2.0, raw="a.json"
        ),
        measurement("t", 0, "fake", 1, 100.0, 1.0, depth=4096, wall_ms=110.0, fill_ms=3.0),
    ]
    folder = results(tmp_path, rows)
    (folder / "raw").mkdir()
    answer = {"response": {"timings": {"predicted_ms": 1.5}}}
    (folder / "raw" / "a.json").write_text(json.dumps(answer), encoding="utf-8")
    driver = by_name(depth_figures(read(folder)))["driver beyond the server's time, L = 4,096"]
    assert sorted(driver.samples) == [6.5, 7.0]


def test_one_refused_request_at_the_deepest_context_misses_the_target(tmp_path: Path) -> None:
    rows = depth_rows(262_144, 262_400)
    rows.append(
        measurement(
            *("depth-262144", 0, "fake", 2, None, None, None),
            status="refused",
            error="the request exceeds the context",
            depth=262_144,
        )
    )
    columns = depth_figures(read(results(tmp_path, rows)))[-1]
    assert sorted(columns.samples) == [0.0] + [262_400.0] * 4
    assert columns.target is not None
    assert not columns.target.met(columns.samples)


def test_a_run_without_answers_has_figures_without_samples(tmp_path: Path) -> None:
    run = read(results(tmp_path, []))
    figures = (*depth_figures(run), *speedup_figures(run, ()), *six_steps_figures(run, 60.0)[1:])
    assert all(figure.samples == () for figure in figures)
    assert saved_bytes(run) == 0
    assert render(Part("x", "y", figures), "table").count("not measured") == 18


def speedup_run(folder: Path) -> Path:
    rows = []
    more: dict[str, object] = {"depth": 32_768, "prompt_n": 256}
    for number, (fake, restored) in enumerate([(400.0, 10.0), (500.0, 20.0), (800.0, 40.0)]):
        rows += [
            measurement("t", 0, "fake", number, fake, 1.0, wall_ms=fake + 100.0, **more),
            measurement("t", 0, "control", number, 9.0, 1.0, wall_ms=1e6, **more),
            measurement(
                *("t", 0, "restored", number, 500.0, restored),
                wall_ms=1e6,
                size_bytes=100_000_000,
                **more,
            ),
        ]
    rows += [
        measurement("t", 0, "full", 0, 3e4, 0.0, wall_ms=30_000.0, depth=32_768, prompt_n=33_024),
        measurement("t", 0, "full", 1, 3e4, 0.0, wall_ms=33_000.0, depth=32_768, prompt_n=33_024),
        measurement(
            *("t", 0, "full", 2, 3e4, 0.0),
            status="invalid",
            error="n_kv is 0",
            wall_ms=9e9,
            depth=32_768,
        ),
        measurement("t", 0, "arithmetic", 0, 300.0, 0.0, depth=32_768),
    ]
    calibration = [
        CalibrationRow(0, 256, 900.0, (900.0,), 2.0),
        CalibrationRow(32_768, 256, 500.0, (500.0,), 36.0),
    ]
    return results(folder, rows, calibration)


def test_speedup_and_restore(tmp_path: Path) -> None:
    run = read(speedup_run(tmp_path))
    assert saved_bytes(run) == 100_000_000
    figures = speedup_figures(run, (9.0, 10.0, 14.0))
    # Walls of fake: 500, 600, 900 ms. 100 MB in 10, 20, 40 ms: 10, 5, 2.5 GB/s.
    assert [(f.what, f.unit, f.samples, f.target) for f in figures] == [
        ("fake, wall, L = 32,768, new = 256", "ms", (500.0, 600.0, 900.0), None),
        ("full, wall", "ms", (30_000.0, 33_000.0), None),
        ("llama-bench -d, wall of one cold process", "ms", (36_000.0,), None),
        ("full / fake, wall, same round", "x", (60.0, 55.0), Target(60.0, "at least")),
        ("that process / fake, wall", "x", (72.0, 60.0, 40.0), Target(60.0, "at least")),
        ("restore of 100.0 MB", "GB/s", (10.0, 5.0, 2.5), None),
        ("memcpy of 100.0 MB, one thread, right after", "GB/s", (9.0, 10.0, 14.0), None),
        ("restore / memcpy", "%", (100.0, 50.0, 25.0), Target(70.0, "at least")),
    ]


def test_six_steps(tmp_path: Path) -> None:
    rows = []
    for step, depth in ((0, 344), (1, 8192)):
        for number in range(2):
            for variant, prompt_ms, install_ms in (
                ("fake", 102.0 + number, 2.0),
                ("control", 203.0, 3.0),
                ("restored", 58.0, 8.0),
            ):
                rows.append(
                    measurement(
                        *("t", step, variant, number, prompt_ms, install_ms),  # type: ignore[arg-type]
                        depth=depth,
                    )
                )
    rows[-1] = measurement(
        "t", 1, "restored", 1, 58.0, 8.0, depth=8192, status="invalid", error="n_kv is 9"
    )
    whole, counted, fidelity, noise = six_steps_figures(read(results(tmp_path, rows)), 1500.0)
    assert whole == Figure(
        "whole run, 2 steps, depths to 8,192, build excluded", "min", (25.0,), Target(30.0)
    )
    assert sorted(counted.samples) == [0.0] + [100.0] * 11
    assert counted.target is not None
    assert not counted.target.met(counted.samples)
    # Without the install: fake 100 and 101 ms, control 200, restored 50.
    assert sorted(fidelity.samples) == [2.0, 2.0, 2.02]
    assert sorted(noise.samples) == pytest.approx([200 / 101, 200 / 101, 2.0, 2.0])
    assert (fidelity.unit, fidelity.target, noise.target) == ("", None, None)


def test_a_run_is_described_by_what_it_measured(tmp_path: Path) -> None:
    run = read(speedup_run(tmp_path))
    assert run.described == "nano, pin sdist, engine native"
    assert run.folder == tmp_path
    assert measurements(tmp_path) == 13


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="results"):
        read(tmp_path)

"""Copying memory and comparing in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canned import canned_run

from experiment import bench_probes, compare, tables
from experiment.bench_probes import compare_command_s, comparing, load_and_render, memcpy_gbps
from experiment.errors import ExperimentError


def test_memcpy_counts_the_bytes_of_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 20.0, 20.25])
    copied: list[tuple[int, bool]] = []
    real = np.copyto

    def copyto(target: Any, source: Any) -> None:
        copied.append((target.nbytes, np.shares_memory(target, source)))
        real(target, source)

    monkeypatch.setattr(bench_probes.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(bench_probes.np, "copyto", copyto)
    assert memcpy_gbps(1_000_000, 2) == (0.002, 0.004)
    assert copied == [(1_000_000, False)] * 2


def test_what_a_process_says_of_a_comparison(tmp_path: Path) -> None:
    folder = canned_run(tmp_path / "run")
    characters = len(tables.render(compare.load(folder), "table"))
    for found in (comparing(folder), load_and_render(folder)):
        assert found.characters == characters
        assert found.load_s > 0
        assert found.render_s > 0
        assert found.peak_bytes > 20e6


def test_the_whole_command_takes_longer_than_its_work(tmp_path: Path) -> None:
    folder = canned_run(tmp_path / "run")
    within = comparing(folder)
    assert compare_command_s(folder) > within.load_s + within.render_s


@pytest.mark.parametrize("probe", [comparing, compare_command_s])
def test_a_comparison_that_fails_is_told_in_its_own_words(probe: Any, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        probe(tmp_path / "gone")
    assert "ended with status 1" in caught.value.what
    assert str(tmp_path / "gone") in caught.value.what
    assert str(tmp_path / "gone") in (caught.value.where or "")


def test_a_comparison_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_probes, "TIMEOUT_S", 0.01)
    with pytest.raises(ExperimentError, match="longer than 0 s"):
        comparing(tmp_path)


def test_the_peak_is_that_of_the_process_alone(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t 99 kB\n")
    assert bench_probes.peak_bytes(status) == 123 * 1024
    status.write_text("Name:\tpython\n")
    with pytest.raises(ExperimentError, match="how much memory"):
        bench_probes.peak_bytes(status)

"""Costs that no run measures: copying memory, and comparing a very large run.

As a program (``python -m experiment.bench_probes FOLDER``) it loads and renders one run and prints
what that took as JSON: a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiment import compare, tables
from experiment.errors import ExperimentError
from experiment.paths import ROOT

TIMEOUT_S = 600.0


def memcpy_gbps(size_bytes: int, repetitions: int) -> tuple[float, ...]:
    """Speed of copying ``size_bytes`` (at least 1) between two touched buffers, by one thread."""
    source = np.ones(size_bytes, dtype=np.uint8)
    target = np.ones(size_bytes, dtype=np.uint8)
    samples = []
    for _ in range(repetitions):
        began_s = time.perf_counter()
        np.copyto(target, source)
        samples.append(size_bytes / (time.perf_counter() - began_s) / 1e9)
    return tuple(samples)


@dataclass(frozen=True, slots=True)
class Comparing:
    """What one process took to load and render a run, without its start."""

    load_s: float
    render_s: float
    peak_bytes: int
    characters: int


def load_and_render(folder: Path) -> Comparing:
    """Do in this process what ``compare`` does."""
    began_s = time.perf_counter()
    comparison = compare.load(folder)
    loaded_s = time.perf_counter()
    text = tables.render(comparison, "table")
    rendered_s = time.perf_counter()
    return Comparing(loaded_s - began_s, rendered_s - loaded_s, peak_bytes(), len(text))


def comparing(folder: Path) -> Comparing:
    """`load_and_render` in a new process.

    Raises:
        ExperimentError: it fails, or takes longer than ``TIMEOUT_S``.
    """
    text = output_of([sys.executable, "-m", "experiment.bench_probes", str(folder)])
    return Comparing(**json.loads(text))


def compare_command_s(folder: Path) -> float:
    """Wall time of the whole ``compare`` task, from the start of Python to its end.

    Raises:
        ExperimentError: it fails, or takes longer than ``TIMEOUT_S``.
    """
    began_s = time.perf_counter()
    output_of([sys.executable, "-m", "invoke", "compare", f"--run={folder}"])
    return time.perf_counter() - began_s


def output_of(argv: Sequence[str], doing: str = "comparing") -> str:
    """What a command prints, which is run at the project's root.

    Raises:
        ExperimentError: it fails, or takes longer than ``TIMEOUT_S``.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExperimentError(
            f"{doing} took longer than {TIMEOUT_S:.0f} s", where=" ".join(argv)
        ) from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-3:]) or "it said nothing"
        raise ExperimentError(
            f"{doing} ended with status {done.returncode}: {said}", where=" ".join(argv)
        )
    return done.stdout


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The most memory that this process has had resident.

    Raises:
        ExperimentError: the system does not tell.
    """
    # Not getrusage: its peak contains that of the process this one was forked from.
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise ExperimentError("the system does not tell how much memory was used", where=str(status))


if __name__ == "__main__":
    json.dump(asdict(load_and_render(Path(sys.argv[1]))), sys.stdout)

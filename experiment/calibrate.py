"""Calibration: prefill throughput at chosen depths, by ``llama-bench -d`` of the same build."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from experiment.errors import CalibrationError
from experiment.process import spawn, stop
from experiment.progress import Progress
from experiment.records import CalibrationRow

# llama.cpp pads the KV cells that attention reads to this many (n_pad of llama_kv_cache::get_n_kv).
DEPTH_STEP = 256


def calibration_depths(max_depth: int, points: int) -> list[int]:
    """About ``points`` evenly spaced depths from 0 to at least ``max_depth``, multiples of 256.

    There are fewer where the range does not hold that many, and 0 alone for ``max_depth`` 0.

    Raises:
        ValueError: a negative depth, or fewer than two points for a range.
    """
    if max_depth < 0 or (max_depth > 0 and points < 2):
        raise ValueError(f"{points} points cannot cover the depths from 0 to {max_depth}")
    last = math.ceil(max_depth / DEPTH_STEP)
    if last == 0:
        return [0]
    return sorted({round(last * i / (points - 1)) * DEPTH_STEP for i in range(points)})


def run_llama_bench(
    bench: Path,
    model: Path,
    depths: Iterable[int],
    chunk: int,
    repetitions: int,
    threads: int,
    batch: int,
    ubatch: int,
    progress: Progress,
    log: Path,
) -> Iterator[CalibrationRow]:
    """Measure the throughput of ``chunk`` tokens at each depth, one process a depth.

    Yields each row as soon as it is measured, so that a caller can keep it before the next.

    The child decodes ``depth`` tokens, saves the state and restores it before each further
    repetition. Its flash attention is ``auto`` and its KV cache f16, as the server's are by
    default. Output of every process is appended to ``log``.

    Raises:
        CalibrationError: a process fails or prints something that is not its JSON.
    """
    wanted = list(depths)
    cost = [_tokens(depth, chunk, repetitions) for depth in wanted]
    progress.start("calibrate", sum(cost))
    for index, depth in enumerate(wanted):
        progress.advance(sum(cost[:index]), f"depth {depth:,}")
        argv = [
            *(str(bench), "-m", str(model)),
            *("-p", str(chunk), "-n", "0", "-d", str(depth), "-r", str(repetitions)),
            *("-t", str(threads), "-b", str(batch), "-ub", str(ubatch)),
            *("-fa", "auto", "-ctk", "f16", "-ctv", "f16", "-o", "json"),
        ]
        samples = _samples_tps(_run(argv, log), depth, chunk, repetitions, log)
        yield CalibrationRow(depth, chunk, median(samples), samples)
    progress.advance(sum(cost))
    progress.finish(f"calibrated {len(wanted)} depths")


def _tokens(depth: int, chunk: int, repetitions: int) -> int:
    # One chunk more than the repetitions: llama-bench warms up with it.
    return depth + chunk * (repetitions + 1)


def _run(argv: Sequence[str], log: Path) -> str:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(("$ " + " ".join(argv) + "\n").encode())
        sink.flush()
        start = sink.tell()
        try:
            child = spawn(argv, stdout=subprocess.PIPE, stderr=sink)
        except OSError as error:
            raise CalibrationError(
                f"llama-bench cannot be started: {error.strerror}", where=argv[0]
            ) from error
        try:
            out = child.communicate()[0]
        finally:
            stop(child)
        sink.write(out)
    text = out.decode(errors="replace")
    if child.returncode != 0:
        ending = (
            f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
        )
        said = log.read_bytes()[start:].decode(errors="replace")
        raise CalibrationError(
            f"llama-bench ended with {ending}; {_last_lines(said)}", where=str(log)
        )
    return text


def _samples_tps(
    text: str, depth: int, chunk: int, repetitions: int, log: Path
) -> tuple[float, ...]:
    """Tokens per second of each repetition, from the nanoseconds in llama-bench's JSON."""
    try:
        (test,) = json.loads(text)
        asked = {"n_prompt": chunk, "n_depth": depth, "n_gen": 0}
        told = {name: test[name] for name in asked}
        samples_ns = [float(sample) for sample in test["samples_ns"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CalibrationError(
            f"llama-bench printed something that is not its JSON; {_last_lines(text)}",
            where=str(log),
        ) from error
    if told != asked:
        raise CalibrationError(f"llama-bench measured {told}, asked was {asked}", where=str(log))
    if len(samples_ns) != repetitions or not all(0 < ns < math.inf for ns in samples_ns):
        raise CalibrationError(
            f"llama-bench gave the samples {samples_ns} ns for {repetitions} repetitions",
            where=str(log),
        )
    return tuple(1e9 * chunk / ns for ns in samples_ns)


def _last_lines(text: str, count: int = 5) -> str:
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    return (
        "its last lines:\n" + "\n".join(f"  {line}" for line in lines)
        if lines
        else "it said nothing"
    )

"""Calibration: prefill throughput at chosen depths, by ``llama-bench -d`` of the same build."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from experiment.errors import CalibrationError
from experiment.host import usable_cores
from experiment.pauses import MAX_REPEATS, PauseMeter
from experiment.process import spawn, stop
from experiment.progress import Progress
from experiment.records import CalibrationRow
from experiment.settings import Settings

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


def chunks_at(settings: Settings, content: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """What is calibrated: the sizes of the chunks (tokens) at each depth.

    ``calibration.at`` "points" takes the one chunk of the settings at evenly spaced depths. "steps"
    takes every step's own depth, and there its own new tokens, which makes llama-bench a second
    instrument for that very step, besides the chunk that the arithmetic estimate hangs on.

    Depths beyond ``schedule.restored_max_depth`` are left out: llama-bench decodes the prefix as
    ``restored`` does, and where that is too dear for the one it is for the other.

    Args:
        settings: of the run.
        content: depth and new tokens of the steps that were measured.
    """
    chunk, limit = settings.calibration.chunk, settings.schedule.restored_max_depth
    within = ((depth, new) for depth, new in content if depth <= limit)
    if settings.calibration.at == "points":
        deepest = max((depth for depth, _ in within), default=None)
        if deepest is None:
            return {}
        return {d: {chunk} for d in calibration_depths(deepest, settings.calibration.points)}
    wanted: dict[int, set[int]] = {}
    for depth, new in within:
        wanted.setdefault(depth, {chunk}).add(new)
    return wanted


def calibrate(
    settings: Settings,
    bench: Path,
    model: Path,
    wanted: Mapping[int, set[int]],
    known: Iterable[CalibrationRow],
    progress: Progress,
    log: Path,
) -> Iterator[CalibrationRow]:
    """Measure what is wanted and not among ``known``.

    Args:
        settings: of the run.
        bench: the ``llama-bench`` binary.
        model: the GGUF file.
        wanted: the sizes of the chunks (tokens) at each depth, as `chunks_at` gives them.
        known: what an earlier part of the run has calibrated.
        progress: where to show it.
        log: what every process prints is appended to it.

    Raises:
        CalibrationError: a process fails or prints something that is not its JSON.
    """
    there = {(row.depth, row.chunk) for row in known}
    missing = {
        depth: left
        for depth, chunks in sorted(wanted.items())
        if (left := sorted(chunk for chunk in chunks if (depth, chunk) not in there))
    }
    if missing:
        yield from run_llama_bench(
            bench,
            model,
            missing,
            settings.calibration.repetitions,
            settings.server.threads or usable_cores(),
            settings.server.batch,
            settings.server.ubatch,
            progress,
            log,
        )


def run_llama_bench(
    bench: Path,
    model: Path,
    chunks: Mapping[int, Sequence[int]],
    repetitions: int,
    threads: int,
    batch: int,
    ubatch: int,
    progress: Progress,
    log: Path,
) -> Iterator[CalibrationRow]:
    """Measure the throughput of each of a depth's chunks, one process a depth.

    Yields the rows of a depth as soon as they are measured, so that a caller can keep them before
    the next. All of them carry the wall time of their process.

    The child decodes ``depth`` tokens once, saves the state and restores it before each further
    repetition and chunk; every chunk has a context of its own, of just the size it needs, and a
    warm-up at depth 0. Like the server it splits the chunk at ``batch`` and ``ubatch``. Its flash
    attention is ``auto`` and its KV cache f16, as the server's are by default. Output of every
    process is appended to ``log``.

    Raises:
        CalibrationError: a process fails or prints something that is not its JSON.
    """
    cost = [_tokens(depth, sizes, repetitions) for depth, sizes in chunks.items()]
    progress.start("calibrate", sum(cost))
    for index, (depth, sizes) in enumerate(chunks.items()):
        progress.advance(sum(cost[:index]), f"depth {depth:,}")
        argv = [
            *(str(bench), "-m", str(model)),
            *("-p", ",".join(map(str, sizes)), "-n", "0", "-d", str(depth)),
            *("-r", str(repetitions)),
            *("-t", str(threads), "-b", str(batch), "-ub", str(ubatch)),
            *("-fa", "auto", "-ctk", "f16", "-ctv", "f16", "-o", "json"),
        ]
        text, wall_s = _run_unpaused(argv, log, progress)
        for chunk, samples in _samples_tps(text, depth, sizes, repetitions, log).items():
            yield CalibrationRow(depth, chunk, median(samples), samples, wall_s)
    progress.advance(sum(cost))
    progress.finish(f"calibrated {len(cost)} depths")


def _tokens(depth: int, chunks: Iterable[int], repetitions: int) -> int:
    # One chunk more than the repetitions: llama-bench warms up with it.
    return depth + sum(chunks) * (repetitions + 1)


def _run_unpaused(argv: Sequence[str], log: Path, progress: Progress) -> tuple[str, float]:
    """What a process printed and its wall time in seconds; again if the machine stood still."""
    for _ in range(MAX_REPEATS + 1):
        began_s = time.monotonic()
        text, paused_s = _run(argv, log)
        if not paused_s:
            return text, time.monotonic() - began_s
        progress.say(f"the machine stood still for {paused_s:.1f} s: this depth is measured again")
    raise CalibrationError(
        f"the machine stood still during each of {MAX_REPEATS + 1} measurements of a depth",
        where=str(log),
        hint="`invoke run --resume NAME` goes on",
    )


def _run(argv: Sequence[str], log: Path) -> tuple[str, float]:
    """What a process printed, and for how many seconds the machine stood still meanwhile."""
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
            with PauseMeter() as pauses:  # no thread is there while another process is made
                out = child.communicate()[0]
                paused_s = pauses.lost_s()
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
    return text, paused_s


def _samples_tps(
    text: str, depth: int, chunks: Sequence[int], repetitions: int, log: Path
) -> dict[int, tuple[float, ...]]:
    """Tokens per second of each repetition by chunk, from the nanoseconds in the JSON."""
    try:
        tests = [
            (
                (test["n_prompt"], test["n_depth"], test["n_gen"]),
                [float(t) for t in test["samples_ns"]],
            )
            for test in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise CalibrationError(
            f"llama-bench printed something that is not its JSON; {_last_lines(text)}",
            where=str(log),
        ) from error
    told, asked = [test for test, _ in tests], [(chunk, depth, 0) for chunk in chunks]
    if told != asked:
        raise CalibrationError(
            f"llama-bench measured {told}, asked was {asked} (new tokens, depth, generated ones)",
            where=str(log),
        )
    for _, samples_ns in tests:
        if len(samples_ns) != repetitions or not all(0 < ns < math.inf for ns in samples_ns):
            raise CalibrationError(
                f"llama-bench gave the samples {samples_ns} ns for {repetitions} repetitions",
                where=str(log),
            )
    return {
        chunk: tuple(1e9 * chunk / ns for ns in samples_ns)
        for chunk, (_, samples_ns) in zip(chunks, tests, strict=True)
    }


def _last_lines(text: str, count: int = 5) -> str:
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    return (
        "its last lines:\n" + "\n".join(f"  {line}" for line in lines)
        if lines
        else "it said nothing"
    )

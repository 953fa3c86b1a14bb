from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from experiment.calibrate import calibrate, calibration_depths, chunks_at, run_llama_bench
from experiment.errors import CalibrationError
from experiment.paths import ROOT
from experiment.progress import SilentProgress
from experiment.records import CalibrationRow
from experiment.settings import Settings, load_settings

# 256 tokens in 1, 2 and 4 s at depth 0; a depth of 256 doubles the times, and so do 512 tokens.
GOOD = """
def slow(chunk): return (1 + depth // 256) * chunk // 256
print(json.dumps([{"n_prompt": chunk, "n_gen": 0, "n_depth": depth, "samples_ns":
    [int(slow(chunk) * 1e9), int(slow(chunk) * 4e9), int(slow(chunk) * 2e9)]}
    for chunk in chunks], indent=2))
"""

# The same time for every size.
EVEN = GOOD.replace("* chunk // 256", "")


def fake_bench(folder: Path, body: str) -> Path:
    bench = folder / "llama-bench"
    bench.write_text(
        f"#!{sys.executable}\n"
        "import json, os, signal, sys, time\n"
        "flag = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "depth, chunks = int(flag['-d']), [int(n) for n in flag['-p'].split(',')]\n"
        f"{body}\n"
    )
    bench.chmod(0o755)
    return bench


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def start(self, what: str, total: float | None) -> None:
        self.seen.append((what, total))

    def advance(self, done: float, note: str = "") -> None:
        self.seen.append((done, note))

    def finish(self, summary: str = "") -> None:
        self.seen.append(summary)


def run(
    bench: Path,
    depths: tuple[int, ...] = (0, 256),
    progress: SilentProgress | None = None,
    chunks: tuple[int, ...] = (256,),
) -> list[CalibrationRow]:
    return list(
        run_llama_bench(
            bench,
            Path("a model.gguf"),
            dict.fromkeys(depths, chunks),
            repetitions=3,
            threads=2,
            batch=2048,
            ubatch=512,
            progress=progress or SilentProgress(),
            log=bench.parent / "raw" / "bench.log",
        )
    )


def test_medians_of_the_samples_at_each_depth(tmp_path: Path) -> None:
    assert [replace(row, wall_s=None) for row in run(fake_bench(tmp_path, GOOD))] == [
        CalibrationRow(0, 256, 128.0, (256.0, 64.0, 128.0)),
        CalibrationRow(256, 256, 64.0, (128.0, 32.0, 64.0)),
    ]


def test_all_chunks_of_a_depth_share_a_process_and_its_wall_time(tmp_path: Path) -> None:
    bench = fake_bench(tmp_path, "time.sleep(0.3)\n" + GOOD)
    began_s = time.monotonic()
    rows = run(bench, (256,), chunks=(512, 256))
    took_s = time.monotonic() - began_s
    assert [(row.depth, row.chunk, row.tps_median) for row in rows] == [
        (256, 512, 64.0),
        (256, 256, 64.0),
    ]
    (wall_s,) = {row.wall_s for row in rows}
    assert wall_s is not None
    assert 0.3 <= wall_s <= took_s
    log = (tmp_path / "raw" / "bench.log").read_text()
    assert log.count("$ ") == 1
    assert " -p 512,256 -n 0 -d 256 " in log


def test_what_llama_bench_is_asked_for(tmp_path: Path) -> None:
    run(fake_bench(tmp_path, GOOD), (256,))
    (line, *_) = (tmp_path / "raw" / "bench.log").read_text().splitlines()
    assert line == (
        f"$ {tmp_path}/llama-bench -m a model.gguf -p 256 -n 0 -d 256 -r 3 -t 2 -b 2048 -ub 512 "
        "-fa auto -ctk f16 -ctv f16 -o json"
    )


def test_progress_counts_the_tokens_decoded(tmp_path: Path) -> None:
    recorder = Recorder()
    run(fake_bench(tmp_path, GOOD), (0, 256), recorder)
    # A depth costs itself, a warm-up chunk and three chunks: 1,024 and 1,280 tokens.
    assert recorder.seen == [
        ("calibrate", 2304),
        (0, "depth 0"),
        (1024, "depth 256"),
        (2304, ""),
        "calibrated 2 depths",
    ]


def test_the_log_keeps_both_streams_of_every_process(tmp_path: Path) -> None:
    run(fake_bench(tmp_path, "print('loading', file=sys.stderr)\n" + GOOD))
    log = (tmp_path / "raw" / "bench.log").read_text()
    assert log.count("$ ") == log.count("loading\n") == log.count('"samples_ns"') == 2


def test_a_depth_is_handed_over_before_the_next_begins(tmp_path: Path) -> None:
    bench = fake_bench(tmp_path, "sys.exit(9) if depth else None\n" + GOOD)
    chunks = {0: [256], 256: [256]}
    rows = run_llama_bench(
        *(bench, Path("m"), chunks, 3, 1, 512, 512, SilentProgress(), tmp_path / "log"),
    )
    assert next(rows).depth == 0
    with pytest.raises(CalibrationError, match="status 9"):
        next(rows)


def test_a_failure_shows_the_last_lines_of_its_own_process(tmp_path: Path) -> None:
    bench = fake_bench(
        tmp_path,
        "if depth == 0:\n    print('old', file=sys.stderr)\n"
        + GOOD.replace("\n", "\n    ")
        + "\nelse:\n    print(*range(9), sep='\\n', file=sys.stderr)\n"
        "    sys.exit('error: failed to load model')",
    )
    with pytest.raises(CalibrationError, match="ended with status 1; its last lines:") as caught:
        run(bench)
    assert str(caught.value).endswith("\n  5\n  6\n  7\n  8\n  error: failed to load model")
    assert str(caught.value).startswith(f"{tmp_path}/raw/bench.log: ")


def test_a_failure_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="ended with signal 9; it said nothing"):
        run(fake_bench(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('| model | t/s |')", r"not its JSON; its last lines:\n  \| model \| t/s \|"),
        ("", "not its JSON; it said nothing"),
        ("print('[\\n')", "not its JSON"),
        ("print('[]')", r"measured \[\], asked"),
        ("print('{}')", r"measured \[\], asked"),
        ("print('[1]')", "not its JSON"),
        ("print('[{}]')", "not its JSON"),
        ("sys.stdout.buffer.write(bytes([255, 254]))", "not its JSON"),
        (GOOD.replace("[int(slow", "None and [int(slow"), "not its JSON"),
        (GOOD.replace("int(slow(chunk) * 4e9)", "'x'"), "not its JSON"),
        (GOOD.replace('"n_depth": depth', '"n_depth": 7'), r"measured \[\(256, 7, 0\)\], asked"),
        (GOOD.replace("in chunks", "in []"), r"measured \[\], asked was \[\(256, 0, 0\)\]"),
        (GOOD.replace("in chunks", "in chunks * 2"), r"measured .*, \(256, 0, 0\)\], asked"),
        (GOOD.replace("int(slow(chunk) * 4e9), ", ""), "for 3 repetitions"),
        (GOOD.replace("int(slow(chunk) * 4e9)", "0"), "for 3 repetitions"),
        (GOOD.replace("int(slow(chunk) * 4e9)", "float('nan')"), "for 3 repetitions"),
    ],
)
def test_output_that_is_no_measurement(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        run(fake_bench(tmp_path, body))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be started: No such file") as caught:
        run(tmp_path / "llama-bench")
    assert caught.value.where == f"{tmp_path}/llama-bench"


def test_the_child_ends_with_the_driver(tmp_path: Path) -> None:
    bench = fake_bench(tmp_path, "print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)")
    code = (
        "import sys; sys.path.insert(0, 'tests'); from pathlib import Path\n"
        "from test_calibrate import run; run(Path(sys.argv[1]))"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(bench)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    log = tmp_path / "raw" / "bench.log"
    child = int(_wait_for(lambda: log.exists() and log.read_text().partition("json\n")[2]))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _wait_for(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for(what: object, limit_s: float = 20.0) -> str:
    until = time.monotonic() + limit_s
    while not (found := what()):  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)
    return found if isinstance(found, str) else ""


@pytest.mark.parametrize(
    ("max_depth", "points", "depths"),
    [
        (0, 6, [0]),
        (0, 1, [0]),
        (1, 6, [0, 256]),
        (256, 2, [0, 256]),
        (257, 2, [0, 512]),
        (1280, 6, [0, 256, 512, 768, 1024, 1280]),
        # 32 blocks of 256 in fifths: 0, 6.4, 12.8, 19.2, 25.6, 32.
        (8000, 6, [0, 1536, 3328, 4864, 6656, 8192]),
    ],
)
def test_depths_to_calibrate(max_depth: int, points: int, depths: list[int]) -> None:
    assert calibration_depths(max_depth, points) == depths


@pytest.mark.parametrize("max_depth", range(0, 5000, 77))
@pytest.mark.parametrize("points", [2, 3, 6, 40])
def test_every_choice_covers_the_range(max_depth: int, points: int) -> None:
    depths = calibration_depths(max_depth, points)
    assert depths[0] == 0
    assert max_depth <= depths[-1] < max_depth + 256
    assert len(depths) <= points
    assert all(depth % 256 == 0 for depth in depths)
    assert depths == sorted(set(depths))


@pytest.mark.parametrize(("max_depth", "points"), [(-1, 6), (10, 1), (10, 0)])
def test_depths_that_make_no_sense(max_depth: int, points: int) -> None:
    with pytest.raises(ValueError, match="cannot cover"):
        calibration_depths(max_depth, points)


def settings(**overrides: object) -> Settings:
    values = {"calibration.chunk": 256, "calibration.points": 2, "server.threads": 3}
    return load_settings(
        values | {key.replace("__", "."): value for key, value in overrides.items()}, environ={}
    )


STEPS = [(512, 40), (0, 16), (512, 16), (512, 40)]


def test_points_take_one_chunk() -> None:
    assert chunks_at(settings(), STEPS) == {0: {256}, 512: {256}}
    assert chunks_at(settings(), []) == {}


def test_steps_take_their_own_size_and_the_chunk() -> None:
    at_steps = settings(calibration__at="steps")
    assert chunks_at(at_steps, STEPS) == {0: {16, 256}, 512: {16, 40, 256}}
    assert chunks_at(at_steps, [(512, 256)]) == {512: {256}}
    assert chunks_at(at_steps, []) == {}


def test_what_is_too_deep_to_be_restored_is_too_deep_for_llama_bench() -> None:
    assert chunks_at(settings(schedule__restored_max_depth=511), STEPS) == {0: {256}}
    limited = settings(calibration__at="steps", schedule__restored_max_depth=511)
    assert chunks_at(limited, STEPS) == {0: {16, 256}}
    assert chunks_at(limited, [(512, 40)]) == {}


def calibrated(bench: Path, known: list[CalibrationRow], **overrides: object) -> list[str]:
    """The rows that come, and what every process was asked for."""
    log = bench.parent / "bench.log"
    wanted = settings(calibration__at="steps", **overrides)
    rows = calibrate(
        *(wanted, bench, Path("m.gguf"), chunks_at(wanted, STEPS), known, SilentProgress(), log)
    )
    got = [f"{row.chunk} at {row.depth}" for row in rows]
    lines = log.read_text().splitlines() if log.exists() else []
    return [*got, *(line.partition("-p ")[2] for line in lines if line.startswith("$ "))]


def test_each_step_is_measured_once(tmp_path: Path) -> None:
    rest = "-n 0 -d {} -r 3 -t 3 -b 2048 -ub 512 -fa auto -ctk f16 -ctv f16 -o json"
    assert calibrated(fake_bench(tmp_path, EVEN), []) == [
        *("16 at 0", "256 at 0", "16 at 512", "40 at 512", "256 at 512"),
        f"16,256 {rest.format(0)}",
        f"16,40,256 {rest.format(512)}",
    ]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    known = [CalibrationRow(0, 16, 1.0), CalibrationRow(0, 256, 1.0), CalibrationRow(512, 40, 1.0)]
    there = calibrated(fake_bench(tmp_path, EVEN), known, server__batch=1024)
    assert there == [
        "16 at 512",
        "256 at 512",
        "16,256 -n 0 -d 512 -r 3 -t 3 -b 1024 -ub 512 -fa auto -ctk f16 -ctv f16 -o json",
    ]


def test_no_process_is_started_for_nothing(tmp_path: Path) -> None:
    known = [CalibrationRow(depth, chunk, 1.0) for depth in (0, 512) for chunk in (16, 40, 256)]
    assert calibrated(fake_bench(tmp_path, EVEN), known) == []


class Pauses:
    """In place of the meter: the machine slept during the first ``times`` processes."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> Pauses:
        return self

    def __enter__(self) -> Pauses:
        return self

    def __exit__(self, *_: object) -> None:
        self.left -= 1

    def lost_s(self) -> float:
        return 4.0 if self.left > 0 else 0.0


class Sayings(SilentProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


def test_a_depth_during_which_the_machine_slept_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.calibrate.PauseMeter", Pauses(1))
    progress = Sayings()
    (row,) = run(fake_bench(tmp_path, GOOD), (0,), progress)
    assert row.tps_median == 128.0
    assert (tmp_path / "raw" / "bench.log").read_text().count("$ ") == 2
    assert progress.said == ["the machine stood still for 4.0 s: this depth is measured again"]


def test_a_machine_that_always_falls_asleep_is_not_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.calibrate.PauseMeter", Pauses(9))
    with pytest.raises(CalibrationError, match="stood still during each of 3") as caught:
        run(fake_bench(tmp_path, GOOD), (0,))
    assert "--resume" in str(caught.value)

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiment.calibrate import calibration_depths, run_llama_bench
from experiment.errors import CalibrationError
from experiment.paths import ROOT
from experiment.progress import SilentProgress
from experiment.records import CalibrationRow

# 256 tokens in 1, 2 and 4 s at depth 0; a depth of 256 doubles the times.
GOOD = """
slow = 1 + depth // 256
print(json.dumps([{"n_prompt": chunk, "n_gen": 0, "n_depth": depth, "samples_ns":
    [int(slow * 1e9), int(slow * 4e9), int(slow * 2e9)]}], indent=2))
"""


def fake_bench(folder: Path, body: str) -> Path:
    bench = folder / "llama-bench"
    bench.write_text(
        f"#!{sys.executable}\n"
        "import json, os, signal, sys, time\n"
        "flag = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "depth, chunk = int(flag['-d']), int(flag['-p'])\n"
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
    bench: Path, depths: tuple[int, ...] = (0, 256), progress: SilentProgress | None = None
) -> list[CalibrationRow]:
    return list(
        run_llama_bench(
            bench,
            Path("a model.gguf"),
            depths,
            chunk=256,
            repetitions=3,
            threads=2,
            batch=2048,
            ubatch=512,
            progress=progress or SilentProgress(),
            log=bench.parent / "raw" / "bench.log",
        )
    )


def test_medians_of_the_samples_at_each_depth(tmp_path: Path) -> None:
    assert run(fake_bench(tmp_path, GOOD)) == [
        CalibrationRow(0, 256, 128.0, (256.0, 64.0, 128.0)),
        CalibrationRow(256, 256, 64.0, (128.0, 32.0, 64.0)),
    ]


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
    rows = run_llama_bench(
        *(bench, Path("m"), (0, 256), 256, 3, 1, 512, 512, SilentProgress(), tmp_path / "log"),
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
        ("print('[]')", "not its JSON"),
        ("print('{}')", "not its JSON"),
        ("print('[1]')", "not its JSON"),
        ("print('[{}]')", "not its JSON"),
        ("sys.stdout.buffer.write(bytes([255, 254]))", "not its JSON"),
        (GOOD.replace("[int(slow", "None and [int(slow"), "not its JSON"),
        (GOOD.replace("int(slow * 4e9)", "'x'"), "not its JSON"),
        (GOOD.replace('"n_depth": depth', '"n_depth": 7'), "measured .*'n_depth': 7"),
        (GOOD.replace("int(slow * 4e9), ", ""), "for 3 repetitions"),
        (GOOD.replace("int(slow * 4e9)", "0"), "for 3 repetitions"),
        (GOOD.replace("int(slow * 4e9)", "float('nan')"), "for 3 repetitions"),
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

"""The container that the patches put into llama.cpp's KV cells, against plain ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

from experiment.build import Build
from experiment.toolchain import find_toolchain

PROGRAM = Path(__file__).with_name("kv_runs.cpp")


def test_runs_count_as_a_map_does(checked: Build, tmp_path: Path) -> None:
    binary = tmp_path / "kv_runs"
    includes = [f"-I{checked.source / folder}" for folder in ("src", "include", "ggml/include")]
    # Without NDEBUG: the container's own assertions are part of the test.
    command = [find_toolchain().cxx.path, "-std=c++17", "-O1", "-Wall"]
    subprocess.run([*command, *includes, PROGRAM, "-o", binary], check=True)
    done = subprocess.run([binary], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")

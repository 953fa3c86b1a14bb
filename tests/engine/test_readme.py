"""Every command of the README is run, in its order, as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from experiment.models import ModelFiles
from experiment.paths import ROOT
from experiment.settings import describe

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
# `./inv test` is what runs this file; docker's lines are run by tests/container.
NOT_RUN_HERE = {line for line in COMMANDS if line == "./inv test" or line.startswith("docker ")}


@pytest.fixture(scope="module")
def desk(nano: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README's examples call my-..."""
    folder = tmp_path_factory.mktemp("desk")
    assert nano.mmproj is not None
    (folder / "my-model.gguf").symlink_to(nano.model)
    (folder / "my-mmproj.gguf").symlink_to(nano.mmproj)
    shutil.copy(ROOT / "data" / "traces" / "smoke.jsonl", folder / "my-trace.jsonl")
    session = ROOT / "tests" / "importers" / "data" / "claude_code" / "session.jsonl"
    shutil.copy(session, folder / "my-session.jsonl")
    return folder


def run(command: str, desk: Path) -> str:
    program, *arguments = shlex.split(command)
    assert program == "./inv"
    done = subprocess.run(
        [str(ROOT / "inv"), *arguments],
        cwd=desk,
        env=os.environ
        | {
            "EXPERIMENT_RESULTS_DIR": str(desk / "results"),
            "EXPERIMENT_ENGINE": "native",
            # Narrow intervals are nothing that a test on a busy machine should wait for.
            "EXPERIMENT_SCHEDULE__TIME_LIMIT_S": "5",
        },
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    # A rerun judges ratios, which a busy machine may miss: what it must say is tested below.
    expected = (0, 1) if "--rerun" in command else (0,)
    assert done.returncode in expected, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(desk: Path) -> dict[str, str]:
    return {command: run(command, desk) for command in COMMANDS if command not in NOT_RUN_HERE}


def test_there_are_two_commands_to_begin_with() -> None:
    assert COMMANDS[:2] == ["./inv build run --trace", "./inv test"]


def test_every_command_works(printed: dict[str, str]) -> None:
    assert len(printed) == len(set(COMMANDS) - NOT_RUN_HERE)


def test_main_job_measures_every_step_with_every_variant(
    printed: dict[str, str], desk: Path
) -> None:
    assert "check-backup" in printed["./inv build run --trace"]
    (folder,) = (desk / "results").glob("*_computer-use")
    comparison = json.loads(run(f"./inv compare --run={folder.name} --format=json", desk))
    overall = comparison["overall"]
    assert overall["steps"] == 23
    assert overall["fake_steps"] == overall["restored_steps"] == 23
    assert overall["full_steps"] == overall["arithmetic_steps"] == 23
    assert overall["pair_n"] >= 3 * 23
    assert overall["pair_n"] % 23 == 0
    assert overall["aa_n"] == overall["pair_n"]
    # The structure is what a test can promise; how fast it was, is for the benchmark.
    assert overall["speedup"] > 1


def test_sweep_prints_its_grid_and_estimate(printed: dict[str, str], desk: Path) -> None:
    (command,) = (command for command in printed if command.startswith("./inv sweep"))
    assert "fake / restored" in printed[command]
    (folder,) = (desk / "results").glob("*_sweep")
    shown = json.loads(run(f"./inv sweep --show={folder.name} --format=json", desk))
    assert {(cell["depth"], cell["new"]) for cell in shown["cells"]} == {
        (depth, new) for depth in (256, 1024) for new in (16, 256)
    }
    assert all(cell["ratio"]["n"] >= 3 for cell in shown["cells"])


def test_structure_of_the_main_job_is_the_same(printed: dict[str, str], desk: Path) -> None:
    assert "ubatches" in printed["./inv compare --structure"]
    (folder,) = (desk / "results").glob("*_computer-use")
    shown = json.loads(run(f"./inv compare --run={folder.name} --structure --format=json", desk))
    assert len(shown["rows"]) == 23
    for step in shown["rows"]:
        assert step["same_ubatches"]
        assert step["same_n_kv"]
        assert step["same_graph_nodes"]
        assert step["same_kv_bytes"]


def test_compare_prints_its_formats(printed: dict[str, str]) -> None:
    assert json.loads(printed["./inv compare --format=json"])["steps"]
    assert printed["./inv compare --format=md"].count("\n|") > 4
    assert printed["./inv compare --format=csv"].startswith("task_id,step,")


def test_a_run_is_reported_exported_handed_on_and_verified(
    printed: dict[str, str], desk: Path
) -> None:
    report = Path(printed["./inv report"].strip())
    assert report.name == "report.html"
    assert report.stat().st_size > 100_000
    assert "|" in printed["./inv report --format=md"]
    assert (desk / "my-export" / "steps.jsonl").is_file()
    assert (desk / "my-run.tar.gz").is_file()
    checks = printed["./inv verify my-run.tar.gz"].splitlines()
    assert len(checks) >= 15
    assert all(line.startswith("ok ") for line in checks)
    again = printed["./inv verify my-run.tar.gz --rerun --quick"]
    # The newest run is the sweep, which has no full: one of the exact claims is not made.
    exact = re.findall(r"^\w+ .* equal +(\S+)", again, re.MULTILINE)
    assert exact == ["within"] * 6, again


def test_each_promise_names_tests_that_there_are() -> None:
    (table,) = re.findall(r"^\| promise \| tests \|\n(.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    rows = table.splitlines()[1:]
    assert len(rows) >= 6
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row.split(" | ")[-1])
        assert named, row
        assert all((ROOT / path).exists() for path in named), row


def test_settings_are_listed_as_they_are() -> None:
    for key, default, what in describe():
        assert f"| `{key}` | {default} | {what} |" in README


def test_every_task_is_in_the_readme_or_the_contributors_guide() -> None:
    listing = run("./inv --list", ROOT)
    tasks = re.findall(r"^  (\S+) ", listing, re.MULTILINE)
    assert len(tasks) >= 8
    texts = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for task in tasks:
        assert f"./inv {task}" in texts, task


def test_example_row_is_a_trace_row(tmp_path: Path) -> None:
    from experiment.screenshot import Screenshot, png_bytes
    from experiment.trace import load_trace

    (row,) = re.findall(r"^```json\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "3.png").write_bytes(png_bytes(Screenshot(None, 640, 360), 1))
    (tmp_path / "trace.jsonl").write_text(row)
    assert load_trace(tmp_path / "trace.jsonl").steps[0].depth == 4210

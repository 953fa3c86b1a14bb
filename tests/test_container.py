from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canned_costs import COSTS
from canned_steps import step, trace
from fake_world import Recording, ingredients

from experiment import engine
from experiment.build import prebuilt, source_tree
from experiment.container import (
    IMAGE_VARIABLE,
    ContainerError,
    _follow,
    _judge,
    _limits,
    environment_of,
)
from experiment.engine import DockerEngine, NativeEngine, check_limits, choose
from experiment.errors import BuildError, EngineError
from experiment.host import Limits
from experiment.image import Image
from experiment.progress import SilentProgress
from experiment.scope import Asked
from experiment.settings import load_settings


def test_settings_go_inside_as_variables_that_are_read_back() -> None:
    asked = {
        "schedule.rounds": 9,
        "server.ubatch": 128,
        "seed": 5,
        "container.memory_mib": 3000,
        "container.cpus": 1.5,
    }
    outside = load_settings(
        {
            **asked,
            "engine": "docker",
            "build.pin": "guide",
            "results_dir": "there",
            "model.name": "holo3-mini",
            "container.base_image": "mine",
        },
        environ={},
    )
    variables = environment_of(outside)
    inside = load_settings(environ=variables)
    assert inside == load_settings(asked, environ={})
    assert not [name for name in variables if "BUILD" in name or "DIR" in name or "MODEL" in name]


def test_exit_code_zero_is_no_error() -> None:
    _judge(0, {"OOMKilled": False}, 0)


@pytest.mark.parametrize(
    ("code", "oom", "memory_mib", "sentence"),
    [
        (137, True, 512, "ran out of memory: the limit is 512 MiB"),
        (1, True, 0, "ran out of memory: the machine has no more"),
        (137, False, 512, r"stopped from outside \(SIGKILL\)"),
        (143, False, 0, r"stopped from outside \(SIGTERM\)"),
        (255, False, 0, r"stopped from outside \(127\)"),
        (2, False, 0, "ended with exit code 2; its own words are above"),
    ],
)
def test_what_ended_a_container_is_named(
    code: int, oom: bool, memory_mib: int, sentence: str
) -> None:
    with pytest.raises(ContainerError, match=sentence) as caught:
        _judge(code, {"OOMKilled": oom}, memory_mib)
    assert caught.value.exit_code == code


def test_limits_are_asked_of_the_engine_only_where_there_are_any() -> None:
    assert _limits(0, 0.0) == {}
    assert _limits(512, 1.5) == {
        "mem_limit": "512m",
        "memswap_limit": "512m",
        "nano_cpus": 1_500_000_000,
    }


def test_progress_is_passed_on_and_the_folder_found(capfd: pytest.CaptureFixture[str]) -> None:
    def stream() -> Iterator[tuple[bytes | None, bytes | None]]:
        yield b"the table\n", None
        yield None, b"results in /results/2026-11-30_01-01-03_host_trace-probe\nmeasure\n"
        yield None, b"results in /results/2026-11-30_01-0"
        yield None, b"2-03_host_smoke\nmeasure\n"
        yield None, b"results in /results/cut"

    # Cut anywhere, a name is only known when its line has ended; a probe's comes before the run's.
    assert _follow(stream()) == "2026-11-30_01-02-03_host_smoke"
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith("measure\nresults in /results/cut")


class Nobody:
    def __call__(self) -> Any:
        raise EngineError("no engine is there", hint="start one")


class Somebody:
    kind, version, endpoint, rootless = "docker", "28.0", "unix:///x", False

    def __call__(self) -> Any:
        return self


def test_auto_takes_docker_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    monkeypatch.setattr(engine, "connect", Somebody())
    chosen = choose(load_settings(environ={}))
    assert isinstance(chosen, DockerEngine)
    assert chosen.reason == "docker 28.0 at unix:///x answers"
    assert isinstance(choose(load_settings({"engine": "native"}, environ={})), NativeEngine)


def test_auto_says_why_it_is_native_and_docker_does_not_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    monkeypatch.setattr(engine, "connect", Nobody())
    chosen = choose(load_settings(environ={}))
    assert (chosen.name, chosen.reason) == (
        "native",
        "no container engine answers: no engine is there",
    )
    with pytest.raises(EngineError, match="no engine is there"):
        choose(load_settings({"engine": "docker"}, environ={}))


@pytest.mark.parametrize(
    ("asked", "found", "sentence"),
    [
        ({"container.memory_mib": 512}, Limits(None, 512 << 20), None),
        ({"container.memory_mib": 512}, Limits(None, None), "memory limit is None"),
        ({"container.memory_mib": 512}, Limits(None, 511 << 20), "memory limit is"),
        ({"container.cpus": 1.5}, Limits(1.5, None), None),
        ({"container.cpus": 1.5}, Limits(2.0, None), "CPU limit is 2.0 cores, not 1.5"),
        ({"container.cpus": 1.5}, Limits(None, None), "CPU limit is None cores"),
        ({}, Limits(1.0, 1), None),
    ],
)
def test_limits_are_checked_inside(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], found: Limits, sentence: str | None
) -> None:
    monkeypatch.setattr(engine, "cgroup_limits", lambda: found)
    settings = load_settings(asked, environ={})
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    check_limits(settings)  # outside there is nothing to check
    monkeypatch.setenv(IMAGE_VARIABLE, "sha256:x")
    if sentence is None:
        check_limits(settings)
    else:
        with pytest.raises(EngineError, match=sentence):
            check_limits(settings)


TRACE = trace(step(depth=100), step(number=1, depth=900), step("b", 0, 5000))
NARROWED = Asked(max_depth=4000, tasks=("a",), budget_s=90.0)


def test_what_narrows_a_run_is_passed_into_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run_inside(*arguments: Any, label: str) -> str:
        commands.append(list(arguments[3]))
        return "folder"

    monkeypatch.setattr(engine, "run_inside", run_inside)
    settings = load_settings(
        {"results_dir": str(tmp_path / "r"), "cache_dir": str(tmp_path / "c")}, environ={}
    )
    made = DockerEngine(Somebody(), "a test", image=Image("sha256:x", "x", 1))  # type: ignore[arg-type]
    made.run(settings, TRACE, "log", SilentProgress(), NARROWED)
    made.run(settings, TRACE, "log", SilentProgress())
    runs = [command for command in commands if command[0] == "run"]
    plain = ["run", "--trace=/trace/log.jsonl", "--model=nano"]
    # Probed and chosen is inside, by the same program.
    assert runs == [
        [*plain, "--max-depth=4000", "--task=a", "--budget=90.000s"],
        plain,
    ]


def test_a_native_run_replays_what_is_asked_for_and_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    begun: list[tuple[Any, Any]] = []

    def start(settings: Any, whole: Any, *_: Any, scope: Any, **__: Any) -> Path:
        begun.append((whole, scope))
        return tmp_path

    monkeypatch.setattr(NativeEngine, "_ingredients", lambda *_: ingredients(tmp_path))
    monkeypatch.setattr(engine, "context_of", lambda *_: 1000)
    monkeypatch.setattr(engine, "memory_of", lambda *_: None)
    monkeypatch.setattr(engine, "start", start)
    said = Recording()
    made = NativeEngine("a test")
    made.run(load_settings(environ={}), TRACE, "log", said, Asked(tasks=("a",)))
    made.run(load_settings(environ={}), TRACE, "log", SilentProgress())
    assert [whole for whole, _ in begun] == [TRACE, TRACE]
    reasons = [{key: reason.kind for key, reason in scope.left_out.items()} for _, scope in begun]
    # 900, 100 new ones and one that is generated are more than 1,000.
    assert reasons == [
        {("b", 0): "--task", ("a", 1): "context"},
        {("a", 1): "context", ("b", 0): "context"},
    ]
    assert said.lines[0].startswith("1 of 3 steps are left out, --task: ")


def test_a_native_run_within_a_budget_is_probed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    begun: list[tuple[Any, Any]] = []

    def start(settings: Any, *_: Any, scope: Any, **__: Any) -> Path:
        begun.append((settings, scope))
        return tmp_path

    probed: list[int] = []

    def costs(made: Any, settings: Any, steps: Any, progress: Any) -> Any:
        assert isinstance(made, NativeEngine)
        probed.append(len(steps))
        return COSTS

    monkeypatch.setattr(NativeEngine, "_ingredients", lambda *_: ingredients(tmp_path))
    monkeypatch.setattr(engine, "context_of", lambda *_: None)
    monkeypatch.setattr(engine, "trace_costs", costs)
    monkeypatch.setattr(engine, "start", start)
    NativeEngine("a test").run(
        load_settings(environ={}), TRACE, "log", SilentProgress(), Asked(budget_s=20.0)
    )
    ((settings, scope),) = begun
    assert probed == [3]
    assert settings.schedule.restored_max_depth == 0  # no time for a real prefix
    assert scope.notes[0].startswith("Within the budget of 20.0 s the probe took 7.0 s; ")


def test_build_that_lies_somewhere_else(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no finished build here"):
        prebuilt(tmp_path)
    programs = {}
    (tmp_path / "bin").mkdir()
    for name in ("llama-server", "llama-bench", "libllama.so"):
        (tmp_path / "bin" / name).write_text(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        programs[name] = {"sha256": digest, "size_bytes": len(name)}
    record = {"kind": "portable", "binaries": programs}
    (tmp_path / "build.json").write_text(json.dumps(record))
    assert prebuilt(tmp_path).server == tmp_path / "bin" / "llama-server"
    # A stand-in's vocabulary comes from it too: nothing is downloaded in a container.
    settings = load_settings({"build.prebuilt": str(tmp_path)}, environ={})
    assert source_tree(settings, SilentProgress()) == tmp_path / "source"
    (tmp_path / "bin" / "libllama.so").write_text("another")
    with pytest.raises(BuildError, match=r"are not those of build\.json"):
        prebuilt(tmp_path)

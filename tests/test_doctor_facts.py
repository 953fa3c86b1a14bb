"""Gathering facts: from fake engines and made-up folders, and without ever waiting long."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiment import docker_client, doctor_facts
from experiment.doctor_checks import BUFFERS_BYTES, BusyFacts, DiskFacts, EngineFacts, Trouble
from experiment.doctor_facts import (
    BUILD_BYTES,
    IMAGE_BYTES,
    RESULTS_BYTES,
    busy_facts,
    cache_sizes,
    compiler_facts,
    disk_facts,
    engine_facts,
    gather,
    model_facts,
    source_facts,
    stand_in_size,
)
from experiment.errors import EngineError, ExperimentError, SourceError
from experiment.settings import Settings, load_settings
from experiment.shapes import SHAPES
from tests.fake_engine import DOCKER_VERSION, INFO, NO_DOCKERFILE, PODMAN_VERSION, fake_engine

IMAGE = "some-image"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where DOCKER_HOST looks for the engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    for module in (docker_client, doctor_facts):
        monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.5)
    return tmp_path / "e.sock"


def settings(tmp_path: Path, **changes: Any) -> Settings:
    base = {"cache_dir": tmp_path / "cache", "results_dir": tmp_path / "results"}
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return load_settings({**base, **keys}, environ={})


def test_what_an_engine_tells(path: Path, tmp_path: Path) -> None:
    info = {**INFO, "DockerRootDir": str(tmp_path)}
    with fake_engine(path, version=DOCKER_VERSION, info=info, json=(404, {}), build=NO_DOCKERFILE):
        engine, disk = engine_facts(IMAGE)
    assert engine == EngineFacts(
        kind="docker",
        version="29.4.1",
        api_version="1.45",
        endpoint=f"unix://{path}",
        context="DOCKER_HOST",
        rootless=False,
        is_local=True,
        limits=True,
        has_image=False,
        builder_refusal=None,
        memory_bytes=64 << 30,
        cores=8,
    )
    assert disk is not None
    assert (disk.path, disk.needed_bytes) == (tmp_path, {"docker": IMAGE_BYTES})


def test_an_image_that_is_there_needs_no_disk(path: Path, tmp_path: Path) -> None:
    info = {**INFO, "DockerRootDir": str(tmp_path)}
    answers = {"version": DOCKER_VERSION, "info": info, "build": NO_DOCKERFILE}
    with fake_engine(path, **answers, json={"Id": "sha256:0"}) as found:
        engine, disk = engine_facts(IMAGE)
    assert engine.has_image
    assert disk is not None
    assert disk.needed_bytes == {"docker": 0}
    assert f"GET /v1.45/images/{IMAGE}/json" in found.asked


def test_an_engine_whose_folder_is_not_here(path: Path) -> None:
    with fake_engine(path, version=PODMAN_VERSION, info={}, json=(404, {}), build=NO_DOCKERFILE):
        engine, disk = engine_facts(IMAGE)
    assert disk is None
    assert (engine.kind, engine.memory_bytes, engine.cores) == ("podman", None, None)


@pytest.mark.parametrize(
    ("changes", "limits"),
    [({}, True), ({"MemoryLimit": False}, False), ({"CgroupDriver": "none"}, False)],
)
def test_whether_it_can_limit_memory(path: Path, changes: dict[str, object], limits: bool) -> None:
    info = {**INFO, **changes}
    with fake_engine(path, version=DOCKER_VERSION, info=info, json=(404, {}), build=NO_DOCKERFILE):
        assert engine_facts(IMAGE)[0].limits is limits


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (NO_DOCKERFILE, None),
        ((500, {"message": "Cannot locate specified Dockerfile: none"}), None),  # Engine 20.10
        ({"error": "no such file"}, None),  # podman: HTTP 200, and the error in the stream
        ((404, {"message": "page not found"}), "HTTP 404"),
        ((501, {}), "HTTP 501"),
        ((400, {"message": "only BuildKit builds are supported"}), "only BuildKit"),
    ],
)
def test_a_builder_that_only_knows_buildkit(
    path: Path, answer: object, refusal: str | None
) -> None:
    with fake_engine(
        path, version=DOCKER_VERSION, info=INFO, json=(404, {}), build=answer
    ) as engine:
        found = engine_facts(IMAGE)[0].builder_refusal
    assert "POST /v1.45/build" in engine.asked
    assert found is None if refusal is None else refusal in str(found)


def test_a_builder_that_hangs(path: Path) -> None:
    with fake_engine(path, version=DOCKER_VERSION, info=INFO, json=(404, {})):
        assert engine_facts(IMAGE)[0].builder_refusal == "no answer"


def test_no_engine(path: Path) -> None:
    with pytest.raises(EngineError):
        engine_facts(IMAGE)


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("unix:///x", True),
        ("http+unix:///x", True),
        ("tcp://localhost:2375", True),
        ("tcp://127.0.0.1:2375", True),
        ("tcp://box:2376", False),
        ("ssh://me@box", False),
    ],
)
def test_whether_the_engine_is_on_this_machine(endpoint: str, local: bool) -> None:
    assert doctor_facts._is_local(endpoint) is local


class FakeProcess:
    """Uses no processor up to the first look, and ``percent`` of a core from then on."""

    def __init__(self, pid: int, percent: float, *, gone: bool = False) -> None:
        self.pid, self.info = pid, {"name": f"p{pid}"}
        self._percents = iter([0.0, percent])
        self._gone = gone

    def cpu_percent(self) -> float:
        if self._gone:
            raise psutil.NoSuchProcess(self.pid)
        return next(self._percents)


def test_other_processes_are_seen_and_our_own_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "20"]) as child:
        try:
            processes = [
                FakeProcess(os.getpid(), 50.0),
                FakeProcess(child.pid, 100.0),
                FakeProcess(10**7, 30.0),
                FakeProcess(10**7 + 1, 90.0),
                FakeProcess(10**7 + 2, 90.0, gone=True),
            ]
            monkeypatch.setattr(psutil, "process_iter", lambda attrs: processes)
            found = busy_facts(0.0)
        finally:
            child.kill()
    assert found.cores == pytest.approx(1.2)
    assert found.busiest == f"p{10**7 + 1} 0.9"


def test_an_idle_machine_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: [FakeProcess(10**7, 1.0)])
    assert busy_facts(0.0).busiest == ""
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: [])
    assert busy_facts(0.0) == BusyFacts(0.0, "")


def test_a_finished_build_makes_a_compiler_unnecessary(tmp_path: Path) -> None:
    wanted = settings(tmp_path, build__prebuilt=str(tmp_path))
    with pytest.raises(ExperimentError, match="no finished build"):
        compiler_facts(wanted)
    (tmp_path / "build.json").write_text("{}")
    assert "not needed" in compiler_facts(wanted)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ExperimentError, match="no compiler here"):
        compiler_facts(settings(tmp_path))


def test_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = source_facts(settings(tmp_path))
    assert (found.is_there, found.needs_git) == (False, False)
    assert found.pin == "sdist (7c158fbb4aec)"
    (tmp_path / "cache" / "source" / "sdist-7c158fbb4aec").mkdir(parents=True)
    assert source_facts(settings(tmp_path)).is_there
    assert source_facts(settings(tmp_path, build__pin="guide")).needs_git
    local = settings(tmp_path, build__pin="local", build__source=str(tmp_path))
    assert source_facts(local).is_there
    with pytest.raises(SourceError, match="no pin"):
        source_facts(settings(tmp_path, build__pin="gide"))
    monkeypatch.setenv("PATH", str(tmp_path))
    without = source_facts(settings(tmp_path))
    assert (without.git, without.has_patch) == (None, False)


def test_the_caches(tmp_path: Path) -> None:
    assert cache_sizes(tmp_path) == {"source": 0, "builds": 0, "models": 0}
    for name, size in {"downloads/a": 5, "source/x/y": 7, "patched/z": 1, "build/b": 11}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "build/link").symlink_to("/nowhere/at/all")
    sizes = cache_sizes(tmp_path)
    assert sizes["source"] == 13
    assert sizes["builds"] == 11 + len("/nowhere/at/all")


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    # Measured: the two files of each.
    [("nano", 83_527_072 + 2_902_304), ("holo3-mini", 711_819_296 + 10_544_192)],
)
def test_the_size_of_a_stand_in_is_known_before_it_is_made(name: str, size_bytes: int) -> None:
    assert stand_in_size(SHAPES[name]) == pytest.approx(size_bytes, rel=0.01)


def test_the_largest_shape_fits_where_it_ran() -> None:
    assert stand_in_size(SHAPES["holo3-35b-a3b"]) + BUFFERS_BYTES < 24_000_000_000


def test_a_shape(tmp_path: Path) -> None:
    found = model_facts(settings(tmp_path))
    assert (found.name, found.is_there) == ("nano", False)
    made = tmp_path / "cache" / "models" / "nano-20260605-0123"
    made.mkdir(parents=True)
    (made / "model.gguf").touch()
    assert model_facts(settings(tmp_path)).is_there
    assert not model_facts(settings(tmp_path, seed=1)).is_there


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    model, mmproj = tmp_path / "my.gguf", tmp_path / "eyes.gguf"
    model.write_bytes(bytes(100))
    wanted = settings(tmp_path, model__name=str(model), model__mmproj=str(mmproj))
    with pytest.raises(ExperimentError, match=r"eyes\.gguf: no such file"):
        model_facts(wanted)
    mmproj.write_bytes(bytes(10))
    found = model_facts(wanted)
    assert (found.name, found.size_bytes, found.is_there) == ("my", 110, True)


def test_a_model_that_is_neither_file_nor_shape(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="nanno: no such file") as caught:
        model_facts(settings(tmp_path, model__name="nanno"))
    assert "nano, holo3-mini" in str(caught.value.hint)


def test_what_is_still_to_be_written(tmp_path: Path) -> None:
    def needed(**changes: Any) -> dict[str, dict[str, int]]:
        looks = doctor_facts._disks(settings(tmp_path, **changes))
        return {name: dict(look().needed_bytes) for name, look in looks.items()}

    nano, full = (stand_in_size(SHAPES[name]) for name in ("nano", "holo3-35b-a3b"))
    assert needed() == {
        "cache disk": {"native": BUILD_BYTES + nano, "docker": nano},
        "results disk": {"native": RESULTS_BYTES, "docker": RESULTS_BYTES},
    }
    assert needed(model__name="holo3-35b-a3b")["cache disk"]["docker"] == full
    own = tmp_path / "my.gguf"
    assert needed(model__name=str(own))["cache disk"] == {"native": BUILD_BYTES, "docker": 0}
    for name in ("build/release-0/build.json", "models/nano-20260605-0/model.gguf"):
        (tmp_path / "cache" / name).parent.mkdir(parents=True)
        (tmp_path / "cache" / name).touch()
    assert needed()["cache disk"] == {"native": 0, "docker": nano}
    inside = tmp_path / "cache/container/models/nano-20260605-0/model.gguf"
    inside.parent.mkdir(parents=True)
    inside.touch()
    assert needed()["cache disk"] == {"native": 0, "docker": 0}


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = disk_facts(tmp_path / "a" / "b", {"native": 1})
    assert found.path == tmp_path / "a" / "b"
    assert found.free_bytes > 0
    assert found.is_writable
    (tmp_path / "file").touch()
    assert not disk_facts(tmp_path / "file" / "below", {}).is_writable


def test_nothing_that_hangs_holds_the_others_up(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*args: object) -> Any:
        time.sleep(5)

    monkeypatch.setattr(doctor_facts, "DEADLINE_S", 1.0)
    monkeypatch.setattr(doctor_facts, "registry", hang)
    monkeypatch.setattr(doctor_facts, "cache_sizes", hang)
    monkeypatch.setattr(doctor_facts, "busy_facts", lambda: None)
    monkeypatch.setattr(doctor_facts, "compiler_facts", lambda settings: "a compiler")
    with fake_engine(path):
        started = time.monotonic()
        found = gather(settings(tmp_path))
        took_s = time.monotonic() - started
    assert took_s < 2.5
    assert isinstance(found.registry, Trouble)
    assert "no answer within 1 s" in found.registry.what
    assert isinstance(found.caches, Trouble)
    assert isinstance(found.engine, Trouble)
    assert "did not answer" in found.engine.what
    assert found.compiler == "a compiler"
    assert set(found.disks) == {"cache disk", "results disk"}


def test_a_fault_of_our_own_is_not_hidden(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(doctor_facts, "registry", lambda pin: None)
    monkeypatch.setattr(doctor_facts, "busy_facts", lambda: None)
    monkeypatch.setattr(doctor_facts, "cache_sizes", broken)
    with pytest.raises(KeyError, match="ours"):
        gather(settings(tmp_path))


def test_errors_keep_their_hints(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(doctor_facts, "registry", lambda pin: None)
    monkeypatch.setattr(doctor_facts, "busy_facts", lambda: None)
    monkeypatch.setattr(doctor_facts, "cache_sizes", refuse)
    info = {**INFO, "DockerRootDir": str(tmp_path)}
    with fake_engine(path, version=DOCKER_VERSION, info=info, json=(404, {}), build=NO_DOCKERFILE):
        found = gather(settings(tmp_path, model__name="nanno"))
    assert isinstance(found.model, Trouble)
    assert found.model.hint.startswith("--model takes")
    assert isinstance(found.caches, Trouble)
    assert "Input/output error" in found.caches.what
    assert isinstance(found.engine, EngineFacts)
    assert isinstance(found.disks["engine disk"], DiskFacts)

"""Gathers what the doctor judges. Nothing here waits longer than `DEADLINE_S`, all goes at once."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import psutil
import requests

from experiment.build import RECORD
from experiment.docker_client import PROBE_TIMEOUT_S, Connection, connect
from experiment.doctor_checks import (
    BusyFacts,
    DiskFacts,
    EngineFacts,
    ModelFacts,
    RegistryFacts,
    SourceFacts,
    Trouble,
    Way,
)
from experiment.doctor_registry import registry
from experiment.errors import ExperimentError
from experiment.host import HostFacts, host_facts
from experiment.pins import COMMIT_DIGITS, LocalPin, SdistPin, pin_named
from experiment.settings import Settings
from experiment.shapes import SHAPES, Shape
from experiment.standin import text_tensors, vision_tensors
from experiment.toolchain import find_toolchain

DEADLINE_S = PROBE_TIMEOUT_S + 1.0
"""The probes run at the same time, so this is also about what all of them take together."""

SAMPLE_S = 1.0
"""How long others' use of the processor is watched."""

BUILD_BYTES = 600_000_000
"""A native build with its source: distribution 68 MB, two trees of 154 MB, objects 90 MB, and the
tree that is being unpacked."""

RESULTS_BYTES = 100_000_000
"""A run of the default trace takes 5 MB."""

IMAGE_BYTES = 3_000_000_000
"""The image with its build stages; an engine that had built it once held 2.0 GB."""

VOCABULARY = 151_936
"""Tokens of the stand-ins' vocabulary; with its texts it takes 6 MB."""

VOCABULARY_BYTES = 6_000_000

NO_DOCKERFILE = "none"
_REFUSED = (404, 405, 501)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Facts:
    """All that the checks look at. ``disks`` are by name, ``caches`` sizes in bytes by kind."""

    engine: EngineFacts | Trouble
    disks: Mapping[str, DiskFacts | Trouble]
    model: ModelFacts | Trouble
    host: HostFacts
    busy: BusyFacts | Trouble
    compiler: str | Trouble
    python: str
    source: SourceFacts | Trouble
    caches: dict[str, int] | Trouble
    registry: RegistryFacts | Trouble


class _Probe(Generic[Result]):
    """Runs a function beside the others; one that hangs is left behind."""

    def __init__(self, name: str, function: Callable[[], Result]) -> None:
        self._name = name
        self._outcome: list[Result | Trouble | Exception] = []
        # A daemon: a system call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Result]) -> None:
        try:
            self._outcome.append(function())
        except ExperimentError as error:
            where = f"{error.where}: " if error.where else ""
            self._outcome.append(Trouble(f"{where}{error.what}", error.hint or "see the README"))
        except OSError as error:
            self._outcome.append(Trouble(f"cannot be found out: {error}", "see the message"))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asks
            self._outcome.append(error)

    def result(self, deadline: float) -> Result | Trouble:
        """Return what came out by then (by the monotonic clock)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._outcome:
            return Trouble(
                f"no answer within {DEADLINE_S:.0f} s",
                f"something hangs ({self._name}): a file system, a name server, or the program "
                "that was asked",
            )
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def gather(settings: Settings) -> Facts:
    """Look at everything at once, for about `DEADLINE_S` at most."""
    deadline = time.monotonic() + DEADLINE_S
    engine = _Probe("engine", lambda: engine_facts(settings.container.image))
    busy = _Probe("load", busy_facts)
    index = _Probe("registry", lambda: registry(settings.build.pin))
    compiler = _Probe("compiler", lambda: compiler_facts(settings))
    source = _Probe("source", lambda: source_facts(settings))
    caches = _Probe("caches", lambda: cache_sizes(settings.cache_dir))
    model = _Probe("model", lambda: model_facts(settings))
    disks = {name: _Probe(name, look) for name, look in _disks(settings).items()}
    host = host_facts()
    found = engine.result(deadline)
    engine_found, root = (found, None) if isinstance(found, Trouble) else found
    places = {name: probe.result(deadline) for name, probe in disks.items()}
    if root is not None:
        places["engine disk"] = root
    return Facts(
        engine=engine_found,
        disks=places,
        model=model.result(deadline),
        host=host,
        busy=busy.result(deadline),
        compiler=compiler.result(deadline),
        python=f"{platform.python_version()}, {sys.executable}",
        source=source.result(deadline),
        caches=caches.result(deadline),
        registry=index.result(deadline),
    )


def engine_facts(image: str) -> tuple[EngineFacts, DiskFacts | None]:
    """Ask the engine; the second is the disk of its images where that can be seen from here.

    Raises:
        EngineError: there is none that can be used.
    """
    connection = connect()
    with contextlib.closing(connection.client):
        info = connection.info
        facts = EngineFacts(
            kind=connection.kind,
            version=connection.version,
            api_version=connection.api_version,
            endpoint=connection.endpoint,
            context=connection.context,
            rootless=connection.rootless,
            is_local=_is_local(connection.endpoint),
            limits=info.get("MemoryLimit") is not False and info.get("CgroupDriver") != "none",
            has_image=_has_image(connection, image),
            builder_refusal=_builder_refusal(connection),
            memory_bytes=_count(info.get("MemTotal")),
            cores=_count(info.get("NCPU")),
        )
    root = info.get("DockerRootDir")
    if not facts.is_local or not isinstance(root, str) or not Path(root).is_dir():
        return facts, None
    free_bytes = shutil.disk_usage(root).free
    needed: dict[Way, int] = {"docker": 0 if facts.has_image else IMAGE_BYTES}
    return facts, DiskFacts(Path(root), free_bytes, needed, is_writable=True)


def _is_local(endpoint: str) -> bool:
    scheme = endpoint.partition("://")[0]
    return scheme.endswith("unix") or urlsplit(endpoint).hostname in ("localhost", "127.0.0.1")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _has_image(connection: Connection, image: str) -> bool:
    api = connection.client.api
    url = f"{api.base_url}/v{api.api_version}/images/{image}/json"
    try:
        return bool(api.get(url, timeout=PROBE_TIMEOUT_S).ok)
    except requests.RequestException:
        return False


def _builder_refusal(connection: Connection) -> str | None:
    """Ask the classic builder for an image that cannot be built, and see who answers.

    A builder complains about the missing Dockerfile and leaves nothing behind; an engine that has
    none knows no such call, or says that it takes BuildKit.
    """
    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    api = connection.client.api
    try:
        response = api.post(
            f"{api.base_url}/v{api.api_version}/build",
            params={"dockerfile": NO_DOCKERFILE},
            data=content.getvalue(),
            headers={"Content-Type": "application/x-tar"},
            timeout=PROBE_TIMEOUT_S,
        )
    except requests.RequestException:
        return "no answer"
    said = " ".join(response.text.split())[:100]
    refused = response.status_code in _REFUSED or "buildkit" in said.lower()
    return f"HTTP {response.status_code} {said}".strip() if refused else None


def busy_facts(seconds: float = SAMPLE_S) -> BusyFacts:
    """Watch all processes but this one and its children for a while."""
    own = psutil.Process()
    ours = {own.pid}
    processes = list(psutil.process_iter(["name"]))
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.cpu_percent()
    time.sleep(seconds)
    with contextlib.suppress(psutil.Error):
        ours |= {child.pid for child in own.children(recursive=True)}
    used: list[tuple[float, str]] = []
    for process in processes:
        if process.pid not in ours:
            with contextlib.suppress(psutil.Error):
                used.append((process.cpu_percent() / 100, process.info["name"] or "?"))
    top_cores, top_name = max(used, default=(0.0, ""))
    busiest = f"{top_name} {top_cores:.1f}" if top_cores >= 0.05 else ""
    return BusyFacts(sum(cores for cores, _ in used), busiest)


def compiler_facts(settings: Settings) -> str:
    """Identify the compiler, or the finished build that makes one unnecessary.

    Raises:
        ExperimentError: there is neither.
    """
    if (folder := settings.build.prebuilt) is not None:
        if not (folder / RECORD).is_file():
            raise ExperimentError(
                f"build.prebuilt is {folder}, where no finished build is",
                hint="correct the setting, or leave it out to compile here",
            )
        return f"not needed: finished build in {folder}"
    found = find_toolchain()
    return f"{found.cxx.identity} ({found.cxx.path}); {found.cmake.identity}"


def source_facts(settings: Settings) -> SourceFacts:
    """Look for the pinned source and for the programs that fetch and patch it.

    Raises:
        SourceError: there is no such pin.
    """
    pin = pin_named(settings.build.pin)
    local = isinstance(pin, LocalPin)
    commit = "" if isinstance(pin, LocalPin) else pin.commit[:COMMIT_DIGITS]
    if local:
        there = settings.build.source is not None and settings.build.source.is_dir()
    else:
        there = (settings.cache_dir / "source" / f"{pin.name}-{commit}").is_dir()
    return SourceFacts(
        pin=f"{pin.name} ({commit})" if commit else pin.name,
        is_there=there or settings.build.prebuilt is not None,
        needs_git=not isinstance(pin, SdistPin),
        git=_git_version(),
        has_patch=shutil.which("patch") is not None,
    )


def _git_version() -> str | None:
    try:
        done = subprocess.run(
            ["git", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def cache_sizes(cache: Path) -> dict[str, int]:
    """Sum up what lies in the cache, in bytes by kind."""
    kinds = {"source": ("downloads", "source", "patched"), "builds": ("build",)}
    kinds |= {"models": ("models", "container")}
    return {
        kind: sum(_tree_size(cache / folder) for folder in folders)
        for kind, folders in kinds.items()
    }


def _tree_size(folder: Path) -> int:
    size_bytes = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size_bytes += Path(top, name).lstat().st_size
    return size_bytes


def model_facts(settings: Settings) -> ModelFacts:
    """Find the chosen model's size: of its files, or of the files that a shape is made into.

    Raises:
        ExperimentError: neither a file nor a shape.
    """
    name, mmproj = settings.model.name, settings.model.mmproj
    if (shape := SHAPES.get(name)) is not None:
        made = _made(settings.cache_dir / "models", shape, settings.seed)
        return ModelFacts(name, stand_in_size(shape), made)
    size_bytes = 0
    for path in [Path(name), *([mmproj] if mmproj else [])]:
        try:
            size_bytes += path.stat().st_size
        except OSError as error:
            raise ExperimentError(
                f"{path}: {(error.strerror or 'cannot be read').lower()}",
                hint=f"--model takes a GGUF file or one of {', '.join(SHAPES)}",
            ) from error
    return ModelFacts(Path(name).stem, size_bytes, is_there=True)


def stand_in_size(shape: Shape) -> int:
    """Bytes of the two files that a shape is made into, to within a percent."""
    tensors = [*text_tensors(shape, VOCABULARY), *vision_tensors(shape)]
    return VOCABULARY_BYTES + sum(tensor.size_bytes for tensor in tensors)


def _made(models: Path, shape: Shape, seed: int) -> bool:
    return any(models.glob(f"{shape.name}-{seed}-*/model.gguf"))


def _disks(settings: Settings) -> dict[str, Callable[[], DiskFacts]]:
    cache, shape = settings.cache_dir, SHAPES.get(settings.model.name)

    def cache_needs() -> dict[Way, int]:
        is_built = settings.build.prebuilt is not None or any(
            cache.glob(f"build/release-*/{RECORD}")
        )
        needed: dict[Way, int] = {"native": 0 if is_built else BUILD_BYTES, "docker": 0}
        if shape is not None:
            size_bytes, seed = stand_in_size(shape), settings.seed
            needed["native"] += 0 if _made(cache / "models", shape, seed) else size_bytes
            inside = cache / "container" / "models"
            needed["docker"] += 0 if _made(inside, shape, seed) else size_bytes
        return needed

    results: dict[Way, int] = {"native": RESULTS_BYTES, "docker": RESULTS_BYTES}
    return {
        "cache disk": lambda: disk_facts(cache, cache_needs()),
        "results disk": lambda: disk_facts(settings.results_dir, results),
    }


def disk_facts(folder: Path, needed_bytes: Mapping[Way, int]) -> DiskFacts:
    """Look at the file system of a folder that need not be there yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return DiskFacts(
        path=folder,
        free_bytes=shutil.disk_usage(there).free,
        needed_bytes=needed_bytes,
        is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    )

"""Builds the patched llama.cpp: ``llama-server`` and ``llama-bench``, optimised or with assertions.

``<cache>/build/<kind>-<key>`` is keyed by pin, flags, compiler and processor, not by the patches: a
change of a patch then compiles only what it touches. What the folder holds at present stands in
its ``build.json`` (patches included), which is removed before anything changes and written last: a
folder without one that matches is not a build.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from experiment import patches
from experiment.errors import BuildError
from experiment.ninja_progress import NINJA_STATUS, run_logged
from experiment.paths import ROOT
from experiment.pins import COMMIT_DIGITS, LocalPin, pin_named
from experiment.progress import Progress
from experiment.settings import Settings
from experiment.source import Stamp, obtain, read_stamp
from experiment.toolchain import Toolchain, find_toolchain, jobs
from experiment.trees import locked, read_json
from experiment.whole_file import write_json

Kind = Literal["release", "checked", "sanitized", "portable"]

SCHEMA_VERSION = 1
RECORD = "build.json"
TARGETS = ("llama-server", "llama-bench")
PATCHES = ROOT / "patches"
TUNING = Path(__file__).with_name("llama_tuning.cmake")

COMMON_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DGGML_METAL=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
SANITIZERS = "-g1 -fsanitize=address,undefined -fno-omit-frame-pointer"
KIND_FLAGS: dict[Kind, tuple[str, ...]] = {
    "release": (),
    # Not RelWithDebInfo or Debug: CMake defines NDEBUG for the former, and the latter does not
    # optimise. -O1 takes 0.7 of the compile time of -O3 (server-context.cpp: 10.3 s, 15.3 s).
    "checked": (
        "-DCMAKE_C_FLAGS_RELEASE=-O1",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -D_GLIBCXX_ASSERTIONS",
        "-DEXPERIMENT_GGML_OPTIMISATION=-O3",
    ),
    # The checked build once more, for hostile input: what is read or written out of bounds, used
    # after it was freed, or undefined, is printed to the server's log.
    "sanitized": (
        f"-DCMAKE_C_FLAGS_RELEASE=-O1 {SANITIZERS}",
        f"-DCMAKE_CXX_FLAGS_RELEASE=-O1 -D_GLIBCXX_ASSERTIONS {SANITIZERS}",
        "-DEXPERIMENT_GGML_OPTIMISATION=-O2",
    ),
    # Runs on any processor of the architecture and takes the best code for the one it finds: the
    # CPU backend is compiled once for each generation, and one is loaded at start. The libraries
    # are looked for beside the programs, wherever those are copied to.
    "portable": (
        "-DBUILD_SHARED_LIBS=ON",
        "-DGGML_NATIVE=OFF",
        "-DGGML_BACKEND_DL=ON",
        "-DGGML_CPU_ALL_VARIANTS=ON",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    ),
}


@dataclass(frozen=True)
class Build:
    """A finished build. ``source`` is the patched tree; ``record`` is what ``build.json`` holds."""

    kind: Kind
    dir: Path
    server: Path
    bench: Path
    source: Path
    record: dict[str, object]
    log: Path


@dataclass(frozen=True)
class Ingredients:
    """Everything that decides what the binaries are."""

    kind: Kind
    source: Stamp
    series: patches.Series
    flags: tuple[str, ...]
    toolchain: Toolchain
    tuning_sha256: str

    @property
    def folder(self) -> str:
        """Name of the build folder: what cannot change without compiling everything again."""
        parts = [
            *(self.kind, self.source.pin, *self.flags),
            # A local checkout moves on all the time; a pin's commit does not.
            "" if self.source.pin == "local" else self.source.commit,
            *(self.toolchain.cc.identity, self.toolchain.cxx.identity, self.toolchain.cpu),
            *(f"{name}={value}" for name, value in self.toolchain.environment_flags.items()),
        ]
        return f"{self.kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"

    def as_record(self) -> dict[str, object]:
        """Return them as they stand in ``build.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "pin": self.source.pin,
            "commit": self.source.commit,
            "source_digest": self.source.digest,
            "source_dirty": self.source.dirty,
            "patches": [
                {"name": patch.name, "sha256": patch.sha256} for patch in self.series.patches
            ],
            "patch_digest": self.series.digest,
            "flags": list(self.flags),
            "environment_flags": self.toolchain.environment_flags,
            "tuning_sha256": self.tuning_sha256,
            "compilers": {"c": self.toolchain.cc.identity, "cxx": self.toolchain.cxx.identity},
            "cpu": self.toolchain.cpu,
        }


def build(
    settings: Settings,
    kind: Kind,
    progress: Progress,
    *,
    series: patches.Series | None = None,
    cache_dir: Path | None = None,
) -> Build:
    """Return the build of the pin, the patches and the flags; from the cache if it is there.

    Args:
        settings: ``build.pin``, ``build.source``, ``build.jobs`` and ``cache_dir`` are read.
        kind: ``release`` is optimised for this host's processor; ``checked`` has assertions on.
        progress: shows Ninja's own counter.
        series: other patches than those in ``patches/``.
        cache_dir: another one than the settings'.

    Raises:
        SourceError: the source cannot be had or is not what the pin says.
        PatchError: the series is malformed or does not apply.
        BuildError: a program is missing, or configuring or compiling fails.
    """
    if settings.build.prebuilt is not None:
        return prebuilt(settings.build.prebuilt)
    cache = (cache_dir or settings.cache_dir).absolute()
    pin = pin_named(settings.build.pin)
    applied = patches.load_series(PATCHES) if series is None else series
    toolchain = find_toolchain()
    pristine = obtain(pin, cache, progress, settings.build.source)
    source = read_stamp(pristine)
    ingredients = Ingredients(
        kind=kind,
        source=source,
        series=applied,
        flags=_flags(kind, unity=not isinstance(pin, LocalPin)),
        toolchain=toolchain,
        tuning_sha256=hashlib.sha256(TUNING.read_bytes()).hexdigest(),
    )
    folder = cache / "build" / ingredients.folder
    # One tree for all states of a local checkout, so that Ninja sees which files changed.
    tree_name = source.pin if isinstance(pin, LocalPin) else pristine.name
    tree = cache / "patched" / tree_name
    if found := _finished(folder, ingredients, pristine, tree):
        return found
    with locked(
        cache / "build" / ".lock", lambda: progress.say("waiting for another build to end")
    ) as lock:
        if found := _finished(folder, ingredients, pristine, tree):
            return found
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).unlink(missing_ok=True)
        patches.apply(applied, pristine, tree, pin.name)
        record = _compile(folder, ingredients, tree, jobs(settings.build.jobs), progress, lock)
        write_json(folder / RECORD, record)
    return _made(folder, kind, tree, record)


def source_tree(settings: Settings, progress: Progress) -> Path:
    """A llama.cpp tree that holds the vocabulary of the stand-ins: a prebuilt one's, or the pin's.

    Raises:
        SourceError: the source cannot be had or is not what the pin says.
        BuildError: the prebuilt folder is not a finished build.
    """
    if settings.build.prebuilt is not None:
        return prebuilt(settings.build.prebuilt).source
    pin = pin_named(settings.build.pin)
    return obtain(pin, settings.cache_dir, progress, settings.build.source)


def prebuilt(folder: Path) -> Build:
    """Return a finished build that lies somewhere else than in the cache, as in an image.

    Raises:
        BuildError: it is not one, or a binary is not what its record says.
    """
    record = read_json(folder / RECORD)
    if not record:
        raise BuildError("there is no finished build here", where=str(folder))
    try:
        found = _binaries(folder)
    except OSError as error:
        raise BuildError(f"the build lacks a binary: {error}", where=str(folder)) from error
    if record.get("binaries") != found:
        raise BuildError(f"the binaries are not those of {RECORD}", where=str(folder))
    kind = next((kind for kind in KIND_FLAGS if kind == record.get("kind")), None)
    if kind is None:
        raise BuildError(f"{RECORD} does not say what kind of build this is", where=str(folder))
    return _made(folder, kind, folder / "source", record)


def assertions(folder: Path) -> dict[str, int]:
    """Count the compiler commands of a build folder, and those that switch assertions off or on.

    Raises:
        BuildError: CMake left no ``compile_commands.json``, or an empty one.
    """
    path = folder / "compile_commands.json"
    try:
        entries = [(entry["file"], entry["command"]) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"CMake left no usable list of commands: {error}", where=str(path)
        ) from error
    cxx = [command for file, command in entries if file.endswith((".cpp", ".cxx", ".cc"))]
    if not cxx:
        raise BuildError("CMake's list of commands holds no C++ file", where=str(path))
    return {
        "commands": len(entries),
        "with_ndebug": sum("-DNDEBUG" in command for _, command in entries),
        "cxx_commands": len(cxx),
        "cxx_with_glibcxx_assertions": sum("-D_GLIBCXX_ASSERTIONS" in command for command in cxx),
    }


def _flags(kind: Kind, *, unity: bool) -> tuple[str, ...]:
    # Which files can be compiled together is known for the fixed pins only.
    return (*COMMON_FLAGS, *KIND_FLAGS[kind], f"-DEXPERIMENT_UNITY={'ON' if unity else 'OFF'}")


def _finished(folder: Path, ingredients: Ingredients, pristine: Path, tree: Path) -> Build | None:
    """Return the build in the folder if it is made of just these and nobody touched it since."""
    record = read_json(folder / RECORD)
    if not record or any(
        record.get(key) != value for key, value in ingredients.as_record().items()
    ):
        return None
    try:
        if record.get("binaries") != _binaries(folder):
            return None
    except OSError:
        return None
    if not patches.is_applied(ingredients.series, pristine, tree):
        return None
    return _made(folder, ingredients.kind, tree, record)


def _made(folder: Path, kind: Kind, tree: Path, record: dict[str, object]) -> Build:
    server, bench = (folder / "bin" / name for name in TARGETS)
    return Build(kind, folder, server, bench, tree, record, folder / "build.log")


def _binaries(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    libraries = sorted(path.name for path in (folder / "bin").glob("*.so*"))
    for name in (*TARGETS, *libraries):
        content = (folder / "bin" / name).read_bytes()
        found[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    return found


def _compile(
    folder: Path,
    ingredients: Ingredients,
    tree: Path,
    workers: int,
    progress: Progress,
    lock: int,
) -> dict[str, object]:
    """Configure and compile; return the record of what came out."""
    tools, started, started_s = ingredients.toolchain, datetime.now(UTC), time.monotonic()
    environment = {
        **os.environ,
        "NINJA_STATUS": NINJA_STATUS,
        "LC_ALL": "C",
        # llama.cpp asks git for its version, and would get this project's.
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }
    # Linked anew, because Ninja goes by times and would keep one that was damaged or cut short.
    for name in TARGETS:
        (folder / "bin" / name).unlink(missing_ok=True)
    patched = "-patched" if ingredients.series.patches else ""
    configure = [
        str(tools.cmake.path),
        # Forget the last configuration, so that no option of it survives; objects stay.
        "--fresh",
        *("-S", str(tree), "-B", str(folder), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja.path}",
        f"-DCMAKE_C_COMPILER={tools.cc.path}",
        f"-DCMAKE_CXX_COMPILER={tools.cxx.path}",
        f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={TUNING}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        # Upstream numbers builds by counting commits, which a source without history cannot: its
        # own word for "unknown" is 0.
        "-DLLAMA_BUILD_NUMBER=0",
        f"-DLLAMA_BUILD_COMMIT={ingredients.source.commit[:COMMIT_DIGITS]}{patched}",
        *ingredients.flags,
    ]
    compile_all = [str(tools.ninja.path), "-C", str(folder), "-j", str(workers), *TARGETS]
    kind = ingredients.kind
    with (folder / "build.log").open("w", encoding="utf-8") as log:
        for command, what, counted in (
            (configure, f"configuring the {kind} build", False),
            (compile_all, f"compiling llama.cpp ({kind})", True),
        ):
            run_logged(
                command,
                log,
                progress,
                what=what,
                counted=counted,
                environment=environment,
                lock=lock,
            )
    counts = assertions(folder)
    checked = counts["with_ndebug"] == 0
    checked &= counts["cxx_with_glibcxx_assertions"] == counts["cxx_commands"]
    if kind in ("checked", "sanitized") and not checked:
        raise BuildError(
            f"the checked build has assertions switched off: {counts}",
            hint="take -DNDEBUG out of CFLAGS and CXXFLAGS",
        )
    try:
        binaries = _binaries(folder)
    except OSError as error:
        raise BuildError(f"the build left no binary: {error}", where=str(folder)) from error
    return {
        **ingredients.as_record(),
        "cmake": tools.cmake.identity,
        "ninja": tools.ninja.identity,
        "jobs": workers,
        "binaries": binaries,
        "assertions": {**counts, "on": checked},
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started_s, 1),
    }

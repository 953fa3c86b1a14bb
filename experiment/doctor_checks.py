"""What a run needs of a machine: each check is a pure function of gathered facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from experiment.gguf_files import size_text
from experiment.host import HostFacts

Verdict = Literal["ok", "warn", "fail"]
Way = Literal["native", "docker"]
"""The two ways to do a run."""

BUFFERS_BYTES = 1_000_000_000
"""Memory besides the weights: KV cells, compute buffers, saved states. With the default trace nano
takes 0.1 GB by its log; the full shape has 9,216 KV cells of 20 KB, and ran beside 20.3 GB of
weights in 24 GB."""

FAST_FLAGS = {
    "x86": (
        *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16"),
        *("amx_int8", "amx_bf16"),
    ),
    "arm": ("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme"),
}
"""What llama.cpp has code of its own for, as ``/proc/cpuinfo`` spells it."""

NEEDED_FLAGS = {"x86": ("avx2", "fma", "f16c"), "arm": ("asimd", "asimddp")}
"""Without these it falls back to code that nobody would measure by choice."""

BUSY_SHARE = 0.25
"""Of all cores: with more than that taken by others, samples of one depth scatter."""


@dataclass(frozen=True)
class Trouble:
    """Why a fact is not to be had, and what to do about it."""

    what: str
    hint: str


@dataclass(frozen=True)
class EngineFacts:
    """The container engine. ``builder_refusal`` is what it said to the classic builder's call.

    Attributes:
        is_local: what it mounts are folders of this machine.
        limits: it can limit the memory of a container.
        has_image: the image has been built before.
        cores: what a container gets at most.
    """

    kind: str
    version: str
    api_version: str
    endpoint: str
    context: str
    rootless: bool
    is_local: bool
    limits: bool
    has_image: bool
    builder_refusal: str | None
    memory_bytes: int | None
    cores: int | None


@dataclass(frozen=True)
class DiskFacts:
    """A place that is written to, and what each way of doing a run still has to write there."""

    path: Path
    free_bytes: int
    needed_bytes: Mapping[Way, int]
    is_writable: bool


@dataclass(frozen=True)
class ModelFacts:
    """The chosen model: its size with the vision tower, and whether the files are there."""

    name: str
    size_bytes: int
    is_there: bool


@dataclass(frozen=True)
class SourceFacts:
    """The pinned source: what it is, and the program without which it cannot be had or patched."""

    pin: str
    is_there: bool
    needs_git: bool
    git: str | None
    has_patch: bool


@dataclass(frozen=True)
class RegistryFacts:
    """pip's index without credentials, and why it cannot be reached (None: it can)."""

    index: str
    trouble: Trouble | None


@dataclass(frozen=True)
class BusyFacts:
    """Cores that other processes keep busy right now, and the busiest of those."""

    cores: float
    busiest: str


@dataclass(frozen=True)
class Check:
    """One line of the doctor's. ``hint`` goes with ``warn`` and ``fail`` and says what to do.

    ``blocks`` are the ways of doing a run that a ``fail`` rules out.
    """

    name: str
    verdict: Verdict
    seen: str
    hint: str | None = None
    blocks: frozenset[Way] = field(default_factory=frozenset)


def _ok(name: str, seen: str) -> Check:
    return Check(name, "ok", seen)


def _warn(name: str, seen: str, hint: str) -> Check:
    return Check(name, "warn", seen, hint)


def _fail(name: str, seen: str, hint: str, *blocks: Way) -> Check:
    return Check(name, "fail", seen, hint, frozenset(blocks))


def engine(facts: EngineFacts | Trouble) -> Check:
    """Whether a container engine answers, and which."""
    name = "engine"
    if isinstance(facts, Trouble):
        return _fail(name, facts.what, facts.hint, "docker")
    by = "by DOCKER_HOST" if facts.context == "DOCKER_HOST" else f"context {facts.context}"
    seen = (
        f"{facts.kind} {facts.version}{', rootless' if facts.rootless else ''}, API "
        f"{facts.api_version}, {facts.endpoint} ({by})"
    )
    if not facts.is_local:
        return _warn(
            name,
            seen,
            "it runs on another machine, where the folders that a run mounts are not these: work "
            "on that machine, or use --engine native",
        )
    return _ok(name, seen)


def builder(facts: EngineFacts | Trouble, *, image: str) -> Check | None:
    """Whether the engine builds images for the SDK, which has no BuildKit; None without engine."""
    if isinstance(facts, Trouble):
        return None
    if facts.builder_refusal is not None:
        return _fail(
            "builder",
            f"no classic builder, and the SDK has no BuildKit: {facts.builder_refusal}",
            f"build with the CLI (docker build -t {image} .), or use --engine native",
            "docker",
        )
    kind = "Buildah" if facts.kind == "podman" else "the classic builder"
    there = "there" if facts.has_image else "not built yet"
    return _ok("builder", f"{kind} answers to the SDK; the image {image} is {there}")


def limits(
    facts: EngineFacts | Trouble, *, memory_mib: int, cpus: float, model: ModelFacts | Trouble
) -> Check | None:
    """Whether a container gets the memory and the cores that the settings ask for."""
    if isinstance(facts, Trouble):
        return None
    name, cores = "container", facts.cores or 0
    seen = (
        f"{f'{memory_mib:,} MiB' if memory_mib else 'no memory limit'}, "
        f"{f'{cpus:g} cores' if cpus else 'all cores'} of the engine's "
        f"{size_text(facts.memory_bytes) if facts.memory_bytes else '?'} and {cores or '?'} cores"
    )
    allowed = [size for size in (memory_mib << 20, facts.memory_bytes or 0) if size]
    if isinstance(model, ModelFacts) and allowed and min(allowed) < _memory_needed(model):
        return _fail(
            name,
            f"{seen}; {model.name} needs {size_text(_memory_needed(model))}",
            "raise container.memory_mib or the engine's own memory, or choose a smaller model",
            "docker",
        )
    if (memory_mib or cpus) and not facts.limits:
        return _fail(
            name,
            f"{seen}; this engine cannot limit containers",
            "set container.memory_mib and container.cpus to 0, or give the engine its cgroup "
            "controllers (rootless: cgroup v2 with delegation)",
            "docker",
        )
    if cores and cpus > cores:
        return _fail(name, seen, f"set container.cpus to {cores} or less", "docker")
    return _ok(name, seen)


def disk(name: str, facts: DiskFacts | Trouble) -> Check:
    """Whether what a run still has to write fits."""
    if isinstance(facts, Trouble):
        return _warn(name, facts.what, facts.hint)
    needed = facts.needed_bytes
    if not facts.is_writable:
        return _fail(
            name,
            f"{facts.path} cannot be written to",
            "change its owner, or choose another folder (settings cache_dir, results_dir)",
            *needed,
        )
    short: list[Way] = [way for way, size in needed.items() if size > facts.free_bytes]
    sizes = {way: size_text(size) if size else "nothing" for way, size in needed.items()}
    told = " and ".join(f"{size} for {way}" for way, size in sizes.items())
    if len(set(sizes.values())) == 1:
        told = next(iter(sizes.values()))
    seen = f"{size_text(facts.free_bytes)} free at {facts.path}; {told} to be written"
    if short:
        return _fail(
            name,
            seen,
            "make room, choose a folder on a larger disk (settings cache_dir, results_dir) or a "
            "smaller model",
            *short,
        )
    return _ok(name, seen)


def model(facts: ModelFacts | Trouble) -> Check:
    """Whether the chosen model is there or can be made."""
    if isinstance(facts, Trouble):
        return _fail("model", facts.what, facts.hint, "native", "docker")
    there = "there" if facts.is_there else "made at the first run"
    return _ok("model", f"{facts.name}, {size_text(facts.size_bytes)}, {there}")


def memory(host: HostFacts, model: ModelFacts | Trouble) -> Check:
    """Whether weights and buffers fit into this machine's memory or its cgroup's part of it."""
    name, limit = "memory", host["memory_limit_bytes"]
    total = host["memory_total_bytes"]
    usable, free = min(total, limit or total), host["memory_available_bytes"]
    by = " by the cgroup" if usable < total else ""
    seen = f"{size_text(usable)}{by}, {size_text(free)} free"
    if isinstance(model, Trouble):
        return _ok(name, seen)
    needed = _memory_needed(model)
    seen += f"; {model.name} needs {size_text(needed)}"
    if usable < needed:
        return _fail(
            name, seen, "choose a smaller model (--model nano) or a larger machine", "native"
        )
    if free < needed:
        return _warn(name, seen, "end what else takes memory: a run that swaps measures the disk")
    return _ok(name, seen)


def _memory_needed(model: ModelFacts) -> int:
    return model.size_bytes + BUFFERS_BYTES


def cpu(host: HostFacts) -> Check:
    """Which of the instructions that speed llama.cpp up the processor has."""
    flags, kind = set(host["cpu_flags"]), _family(host["architecture"])
    name, model = "CPU", f"{host['cpu_model']} ({host['architecture']})"
    if kind is None or not flags:
        return _ok(name, f"{model}; its instructions are not listed here")
    seen = f"{model}: {' '.join(flag for flag in FAST_FLAGS[kind] if flag in flags) or 'none'}"
    if missing := [flag for flag in NEEDED_FLAGS[kind] if flag not in flags]:
        return _warn(
            name,
            f"{seen}; no {', '.join(missing)}",
            "the run works and measures slow fallback code; in a virtual machine, pass the host's "
            "CPU type through",
        )
    return _ok(name, seen)


def _family(architecture: str) -> str | None:
    if architecture in ("x86_64", "AMD64", "i686"):
        return "x86"
    return "arm" if architecture in ("aarch64", "arm64") else None


def cores(host: HostFacts, *, threads: int) -> Check:
    """How many cores may really run at once; ``threads`` is the setting, 0 = that many."""
    total, quota, usable = host["cores_total"], host["cores_quota"], host["cores_usable"]
    name, seen = "cores", f"{usable} of {total} usable"
    if threads > usable:
        return _warn(
            name,
            f"{seen}, server.threads asks for {threads}",
            "threads that wait for each other measure the scheduler: set server.threads to 0",
        )
    if quota is not None and quota < min(total, host["cores_affinity"]):
        hint = (
            "the quota stops all threads at once, once it is spent: give at least one whole core"
            if quota < 1
            else "fine for a run of that many threads; for more, raise the quota of the container "
            "or of the systemd unit"
        )
        return _warn(name, f"{seen}: the cgroup's quota is {quota:g}", hint)
    if usable < total:
        return _ok(name, f"{seen}, by CPU affinity")
    return _ok(name, seen)


def governor(host: HostFacts) -> Check:
    """Whether the clock is kept up."""
    found = host["governor"]
    if found is None:
        return _ok("governor", "not visible here (a virtual machine, or no frequency scaling)")
    if found == "performance":
        return _ok("governor", found)
    return _warn(
        "governor",
        f"{found}, not performance",
        "the clock follows the load: sudo cpupower frequency-set -g performance",
    )


def load(host: HostFacts, busy: BusyFacts | Trouble) -> Check:
    """Whether others leave the cores alone."""
    average, total = host["load_1min"], host["cores_total"]
    seen = "load is not known here" if average is None else f"load {average:.1f}"
    taken = average or 0.0
    if isinstance(busy, BusyFacts):
        seen += f", others use {busy.cores:.1f} of {total} cores"
        seen += f" (most: {busy.busiest})" if busy.busiest else ""
        taken = max(taken, busy.cores)
    if taken > BUSY_SHARE * total:
        return _warn("load", seen, "wait, or end the other work: it takes part in every time")
    return _ok("load", seen)


def compiler(found: str | Trouble) -> Check:
    """Whether llama.cpp can be compiled here; needed for a native run only."""
    if isinstance(found, Trouble):
        return _fail("compiler", found.what, found.hint, "native")
    return _ok("compiler", found)


def python(seen: str) -> Check:
    """Which Python runs this; an older one than 3.11 never gets here."""
    return _ok("Python", seen)


def source(facts: SourceFacts | Trouble) -> Check:
    """Whether the pinned source can be had and patched."""
    name, install = "source", "install git (Debian, Ubuntu: apt install git)"
    if isinstance(facts, Trouble):
        return _fail(name, facts.what, facts.hint, "native", "docker")
    seen = (
        f"pin {facts.pin}, {'in the cache' if facts.is_there else 'not fetched yet'}; "
        f"{facts.git or 'no git'}"
    )
    if facts.git is None and facts.needs_git and not facts.is_there:
        return _fail(name, f"{seen}, which this pin needs", install, "native")
    if facts.git is None and not facts.has_patch:
        return _fail(name, f"{seen} and no patch: the series cannot be applied", install, "native")
    if facts.git is None:
        return _warn(name, seen, f"results do not record the project's commit: {install}")
    return _ok(name, seen)


def caches(path: Path, sizes: dict[str, int] | Trouble) -> Check:
    """What has been downloaded, built and made so far; ``sizes`` in bytes."""
    if isinstance(sizes, Trouble):
        return _warn("caches", sizes.what, sizes.hint)
    there = [f"{name} {size_text(size)}" for name, size in sizes.items() if size]
    return _ok("caches", f"{', '.join(there) or 'empty'} in {path}")


def registry(facts: RegistryFacts | Trouble) -> Check:
    """Whether pip's index answers: source and requirements come from there."""
    if isinstance(facts, Trouble):
        return _warn("registry", facts.what, facts.hint)
    if facts.trouble is not None:
        return _warn("registry", f"{facts.index}: {facts.trouble.what}", facts.trouble.hint)
    return _ok("registry", f"{facts.index} answers")

"""Each check, on made-up facts: what is fine, what is not, and that it says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiment import doctor_checks as checks
from experiment.doctor_checks import (
    BUFFERS_BYTES,
    BusyFacts,
    Check,
    DiskFacts,
    EngineFacts,
    ModelFacts,
    RegistryFacts,
    SourceFacts,
    Trouble,
)
from experiment.host import HostFacts

GB = 1_000_000_000

ENGINE = EngineFacts(
    kind="docker",
    version="29.4.1",
    api_version="1.45",
    endpoint="unix:///var/run/docker.sock",
    context="default",
    rootless=False,
    is_local=True,
    limits=True,
    has_image=False,
    builder_refusal=None,
    memory_bytes=32 * GB,
    cores=8,
)
NANO = ModelFacts("nano", 90_000_000, is_there=False)
FULL = ModelFacts("holo3-35b-a3b", 20_300_000_000, is_there=False)
TROUBLE = Trouble("it is broken", "mend it")
SOURCE = SourceFacts("sdist (7c158fbb4aec)", True, False, "git version 2.39.5", True)
HOST = HostFacts(
    hostname="box",
    system="Linux",
    kernel="6.1",
    architecture="x86_64",
    cpu_model="A CPU",
    cpu_flags=["avx", "avx2", "avx512f", "f16c", "fma", "sse"],
    cores_total=8,
    cores_affinity=8,
    cores_quota=None,
    cores_usable=8,
    governor="performance",
    load_1min=0.2,
    load_5min=0.2,
    load_15min=0.2,
    memory_total_bytes=32 * GB,
    memory_available_bytes=30 * GB,
    memory_limit_bytes=None,
    container=None,
    python_version="3.11.7",
)
IDLE = BusyFacts(0.1, "")


def host(**changes: object) -> HostFacts:
    return HostFacts(**{**HOST, **changes})  # type: ignore[typeddict-item]


def is_ok(check: Check | None) -> str:
    assert check is not None
    assert (check.verdict, check.hint, check.blocks) == ("ok", None, frozenset())
    return check.seen


def warns(check: Check | None) -> Check:
    assert check is not None
    assert check.verdict == "warn"
    assert check.hint
    assert not check.blocks
    return check


def fails(check: Check | None, *blocks: str) -> Check:
    assert check is not None
    assert check.verdict == "fail"
    assert check.hint
    assert check.blocks == set(blocks)
    return check


def test_an_engine_that_answers() -> None:
    seen = is_ok(checks.engine(ENGINE))
    assert seen == "docker 29.4.1, API 1.45, unix:///var/run/docker.sock (context default)"
    podman = replace(ENGINE, kind="podman", version="5.4", rootless=True, context="DOCKER_HOST")
    assert is_ok(checks.engine(podman)).startswith("podman 5.4, rootless, API")
    assert is_ok(checks.engine(podman)).endswith("(by DOCKER_HOST)")


def test_no_engine_leaves_the_native_way() -> None:
    check = fails(checks.engine(TROUBLE), "docker")
    assert (check.seen, check.hint) == ("it is broken", "mend it")
    assert checks.builder(TROUBLE, image="i") is None
    assert checks.limits(TROUBLE, memory_mib=0, cpus=0, model=NANO) is None


def test_an_engine_on_another_machine() -> None:
    far = replace(ENGINE, endpoint="tcp://box:2376", is_local=False)
    assert "another machine" in str(warns(checks.engine(far)).hint)


def test_the_builder() -> None:
    assert "not built yet" in is_ok(checks.builder(ENGINE, image="i"))
    assert "image i is there" in is_ok(checks.builder(replace(ENGINE, has_image=True), image="i"))
    assert "Buildah" in is_ok(checks.builder(replace(ENGINE, kind="podman"), image="i"))
    modern = replace(ENGINE, builder_refusal="HTTP 501 use BuildKit")
    check = fails(checks.builder(modern, image="i"), "docker")
    assert "HTTP 501 use BuildKit" in check.seen
    assert "docker build -t i ." in str(check.hint)


def test_what_a_container_gets() -> None:
    assert "all cores" in is_ok(checks.limits(ENGINE, memory_mib=0, cpus=0, model=NANO))
    seen = is_ok(checks.limits(ENGINE, memory_mib=4096, cpus=1.5, model=NANO))
    assert seen.startswith("4,096 MiB, 1.5 cores of")
    unknown = replace(ENGINE, memory_bytes=None, cores=None)
    assert "? and ? cores" in is_ok(checks.limits(unknown, memory_mib=0, cpus=0, model=FULL))


@pytest.mark.parametrize(
    ("engine", "memory_mib", "cpus", "model", "seen"),
    [
        (ENGINE, 512, 0.0, NANO, "nano needs 1.1 GB"),
        (replace(ENGINE, memory_bytes=8 * GB), 0, 0.0, FULL, "holo3-35b-a3b needs 21.3 GB"),
        (replace(ENGINE, memory_bytes=8 * GB), 64_000, 0.0, FULL, "needs 21.3 GB"),
        (replace(ENGINE, limits=False), 4096, 0.0, NANO, "cannot limit"),
        (replace(ENGINE, limits=False), 0, 2.0, NANO, "cannot limit"),
        (ENGINE, 0, 9.0, NANO, "9 cores of the engine's"),
    ],
)
def test_what_a_container_cannot_get(
    engine: EngineFacts, memory_mib: int, cpus: float, model: ModelFacts, seen: str
) -> None:
    check = checks.limits(engine, memory_mib=memory_mib, cpus=cpus, model=model)
    assert seen in fails(check, "docker").seen


def test_limits_that_nobody_asks_for_are_not_missed() -> None:
    is_ok(checks.limits(replace(ENGINE, limits=False), memory_mib=0, cpus=0, model=NANO))
    is_ok(checks.limits(ENGINE, memory_mib=0, cpus=0, model=TROUBLE))


def test_enough_disk() -> None:
    facts = DiskFacts(Path("/x"), 5 * GB, {"native": GB, "docker": GB}, is_writable=True)
    assert is_ok(checks.disk("cache disk", facts)) == "5.0 GB free at /x; 1.0 GB to be written"
    different = replace(facts, needed_bytes={"native": 0, "docker": GB})
    seen = is_ok(checks.disk("cache disk", different))
    assert seen.endswith("nothing for native and 1.0 GB for docker to be written")
    exact = replace(facts, free_bytes=GB)
    is_ok(checks.disk("cache disk", exact))


def test_too_little_disk_for_the_chosen_model() -> None:
    needed = {"native": 21 * GB, "docker": 20 * GB}
    facts = DiskFacts(Path("/x"), 20 * GB + 1, needed, is_writable=True)  # type: ignore[arg-type]
    assert "20.0 GB free at /x" in fails(checks.disk("cache disk", facts), "native").seen
    less = replace(facts, free_bytes=GB)
    assert "make room" in str(fails(checks.disk("cache disk", less), "native", "docker").hint)


def test_a_folder_that_cannot_be_written_to() -> None:
    facts = DiskFacts(Path("/x"), 5 * GB, {"native": 0, "docker": 0}, is_writable=False)
    check = fails(checks.disk("results disk", facts), "native", "docker")
    assert check.seen == "/x cannot be written to"


def test_a_disk_that_hangs_is_no_verdict() -> None:
    assert warns(checks.disk("cache disk", TROUBLE)).name == "cache disk"


def test_the_model() -> None:
    assert is_ok(checks.model(NANO)) == "nano, 90.0 MB, made at the first run"
    assert is_ok(checks.model(replace(NANO, is_there=True))).endswith("there")
    fails(checks.model(TROUBLE), "native", "docker")


def test_enough_memory() -> None:
    assert is_ok(checks.memory(HOST, NANO)) == "32.0 GB, 30.0 GB free; nano needs 1.1 GB"
    is_ok(checks.memory(HOST, TROUBLE))


def test_too_little_memory_for_the_chosen_model() -> None:
    small = host(memory_total_bytes=16 * GB, memory_available_bytes=15 * GB)
    assert "21.3 GB" in fails(checks.memory(small, FULL), "native").seen
    is_ok(checks.memory(small, NANO))


def test_too_little_memory_by_the_cgroup() -> None:
    check = fails(checks.memory(host(memory_limit_bytes=4 * GB), FULL), "native")
    assert check.seen.startswith("4.0 GB by the cgroup")
    unlimited = host(memory_limit_bytes=64 * GB)  # above what there is: not the one that counts
    assert is_ok(checks.memory(unlimited, FULL)).startswith("32.0 GB, ")


def test_memory_that_others_have() -> None:
    needed = FULL.size_bytes + BUFFERS_BYTES
    warns(checks.memory(host(memory_available_bytes=needed - 1), FULL))
    is_ok(checks.memory(host(memory_available_bytes=needed), FULL))


@pytest.mark.parametrize(
    ("architecture", "flags", "seen"),
    [
        ("x86_64", "avx2 fma f16c amx_int8 avx512f sse", "avx2 fma f16c avx512f amx_int8"),
        ("aarch64", "fp asimd asimddp sve", "asimd asimddp sve"),
        ("arm64", "", "not listed"),
        ("riscv64", "v", "not listed"),
    ],
)
def test_instructions_that_matter(architecture: str, flags: str, seen: str) -> None:
    facts = host(architecture=architecture, cpu_flags=flags.split())
    assert is_ok(checks.cpu(facts)).endswith((f": {seen}", f"are {seen} here"))


@pytest.mark.parametrize(
    ("architecture", "flags", "missing"),
    [
        ("x86_64", "sse avx f16c", "no avx2, fma"),
        ("aarch64", "fp asimd", "no asimddp"),
        ("x86_64", "sse", "none; no avx2, fma, f16c"),
    ],
)
def test_instructions_that_are_missed(architecture: str, flags: str, missing: str) -> None:
    facts = host(architecture=architecture, cpu_flags=flags.split())
    assert warns(checks.cpu(facts)).seen.endswith(missing)


def test_all_cores() -> None:
    assert is_ok(checks.cores(HOST, threads=0)) == "8 of 8 usable"
    is_ok(checks.cores(HOST, threads=8))
    is_ok(checks.cores(host(cores_quota=8.0), threads=0))


def test_a_quota_below_the_core_count() -> None:
    check = warns(checks.cores(host(cores_quota=2.5, cores_usable=2), threads=0))
    assert check.seen == "2 of 8 usable: the cgroup's quota is 2.5"
    less_than_one = warns(checks.cores(host(cores_quota=0.5, cores_usable=1), threads=0))
    assert "at least one whole core" in str(less_than_one.hint)


def test_affinity() -> None:
    pinned = host(cores_affinity=2, cores_usable=2)
    assert is_ok(checks.cores(pinned, threads=0)) == "2 of 8 usable, by CPU affinity"
    # A quota above the affinity stops nobody.
    is_ok(checks.cores(host(cores_affinity=2, cores_usable=2, cores_quota=4.0), threads=0))


def test_more_threads_than_cores() -> None:
    assert "server.threads asks for 9" in warns(checks.cores(HOST, threads=9)).seen


def test_the_governor() -> None:
    assert is_ok(checks.governor(HOST)) == "performance"
    assert "not visible" in is_ok(checks.governor(host(governor=None)))
    check = warns(checks.governor(host(governor="powersave")))
    assert check.seen == "powersave, not performance"
    assert "cpupower" in str(check.hint)


def test_load_of_others() -> None:
    assert is_ok(checks.load(HOST, IDLE)) == "load 0.2, others use 0.1 of 8 cores"
    assert "load 2.1" in warns(checks.load(host(load_1min=2.1), IDLE)).seen
    busy = warns(checks.load(HOST, BusyFacts(3.0, "cc1plus 1.0")))
    assert busy.seen.endswith("others use 3.0 of 8 cores (most: cc1plus 1.0)")
    is_ok(checks.load(host(load_1min=None), TROUBLE))


def test_the_compiler_matters_for_a_native_run_only() -> None:
    assert is_ok(checks.compiler("g++ 12")) == "g++ 12"
    fails(checks.compiler(TROUBLE), "native")


def test_the_source() -> None:
    assert "in the cache; git version 2.39.5" in is_ok(checks.source(SOURCE))
    assert "not fetched yet" in is_ok(checks.source(replace(SOURCE, is_there=False)))
    fails(checks.source(TROUBLE), "native", "docker")


def test_no_git() -> None:
    without = replace(SOURCE, git=None)
    assert "commit" in str(warns(checks.source(without)).hint)
    needs = replace(without, needs_git=True)
    warns(checks.source(needs))
    fails(checks.source(replace(needs, is_there=False)), "native")
    assert "no patch" in fails(checks.source(replace(without, has_patch=False)), "native").seen
    is_ok(checks.source(replace(SOURCE, has_patch=False)))


def test_the_caches() -> None:
    sizes = {"source": 5 * GB, "builds": 0, "models": 7_000_000}
    assert is_ok(checks.caches(Path("/c"), sizes)) == "source 5.0 GB, models 7.0 MB in /c"
    assert is_ok(checks.caches(Path("/c"), {"source": 0})) == "empty in /c"
    warns(checks.caches(Path("/c"), TROUBLE))


def test_a_registry_that_cannot_be_reached_only_warns() -> None:
    assert is_ok(checks.registry(RegistryFacts("https://i/simple", None))).endswith("answers")
    check = warns(checks.registry(RegistryFacts("https://i/simple", TROUBLE)))
    assert check.seen == "https://i/simple: it is broken"
    warns(checks.registry(TROUBLE))

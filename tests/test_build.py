"""What makes a build another build, and that only a finished one passes for one.

The tests marked ``compiler`` build a project of a few lines that has llama.cpp's file names and
targets, through the whole of `build`: source, patches, CMake, Ninja.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_llama import CMAKE, OTHER, PATCH_DIFF, make_checkout

from experiment import build as building
from experiment.build import Build, Ingredients, Kind, assertions, build
from experiment.errors import BuildError
from experiment.patches import Patch, Series
from experiment.paths import ROOT
from experiment.progress import SilentProgress
from experiment.settings import Settings, load_settings
from experiment.source import Stamp
from experiment.toolchain import Tool, Toolchain
from experiment.trees import locked

QUIET = SilentProgress()

TOOLS = Toolchain(
    cmake=Tool(Path("/a/cmake"), "cmake version 4.0.0"),
    ninja=Tool(Path("/a/ninja"), "1.13"),
    cc=Tool(Path("/a/cc"), "cc 12; x86_64-linux-gnu"),
    cxx=Tool(Path("/a/c++"), "c++ 12; x86_64-linux-gnu"),
    environment_flags={},
    cpu="0123",
)
PATCH = Patch(Path("0001-x.patch"), "text", "diff", ("a.txt",))
BASE = Ingredients(
    kind="release",
    source=Stamp("sdist", "7" * 40, "d" * 64),
    series=Series((PATCH,)),
    flags=("-DA=1",),
    toolchain=TOOLS,
    tuning_sha256="t" * 64,
)


def tools(**changes: object) -> Ingredients:
    return dataclasses.replace(BASE, toolchain=dataclasses.replace(TOOLS, **changes))


ANOTHER_FOLDER = {
    "kind": dataclasses.replace(BASE, kind="checked"),
    "pin": dataclasses.replace(BASE, source=Stamp("guide", "7" * 40, "d" * 64)),
    "commit": dataclasses.replace(BASE, source=Stamp("sdist", "8" * 40, "d" * 64)),
    "flags": dataclasses.replace(BASE, flags=("-DA=2",)),
    "c compiler": tools(cc=Tool(Path("/a/cc"), "cc 13; x86_64-linux-gnu")),
    "c++ compiler": tools(cxx=Tool(Path("/a/c++"), "c++ 12; aarch64-linux-gnu")),
    "environment": tools(environment_flags={"CXXFLAGS": "-g"}),
    "cpu": tools(cpu="4567"),
}
SAME_FOLDER = {
    "patch": dataclasses.replace(BASE, series=Series((dataclasses.replace(PATCH, text="other"),))),
    "source digest": dataclasses.replace(BASE, source=Stamp("sdist", "7" * 40, "e" * 64)),
    "tuning": dataclasses.replace(BASE, tuning_sha256="u" * 64),
}


@pytest.mark.parametrize("what", ANOTHER_FOLDER)
def test_what_needs_everything_compiled_anew_has_a_folder_of_its_own(what: str) -> None:
    other = ANOTHER_FOLDER[what]
    assert other.folder != BASE.folder
    assert other.folder.startswith(f"{other.kind}-")
    assert other.as_record() != BASE.as_record()


@pytest.mark.parametrize("what", SAME_FOLDER)
def test_what_changes_some_files_is_another_build_in_the_same_folder(what: str) -> None:
    assert SAME_FOLDER[what].folder == BASE.folder
    assert SAME_FOLDER[what].as_record() != BASE.as_record()


def test_where_the_programs_lie_is_no_part_of_a_build() -> None:
    moved = tools(cxx=dataclasses.replace(TOOLS.cxx, path=Path("/b/c++")))
    assert moved.folder == BASE.folder
    assert moved.as_record() == BASE.as_record()
    assert "/a/" not in json.dumps(BASE.as_record())


def test_a_local_checkout_keeps_its_folder_when_it_moves_on() -> None:
    one, other = (
        dataclasses.replace(BASE, source=Stamp("local", digit * 40, digit * 64)) for digit in "12"
    )
    assert one.folder == other.folder
    assert one.as_record() != other.as_record()


def test_assertions_are_counted_in_the_commands(tmp_path: Path) -> None:
    commands = [
        {"file": "a.c", "command": "cc -O1"},
        {"file": "b.cpp", "command": "c++ -D_GLIBCXX_ASSERTIONS"},
        {"file": "u_cxx.cxx", "command": "c++ -DNDEBUG"},
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    assert assertions(tmp_path) == {
        "commands": 3,
        "with_ndebug": 1,
        "cxx_commands": 2,
        "cxx_with_glibcxx_assertions": 1,
    }


@pytest.mark.parametrize("text", [None, "[]", "{", '[{"file": "a.cpp"}]'])
def test_without_commands_there_is_no_proof(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "compile_commands.json").write_text(text)
    with pytest.raises(BuildError, match="list of commands"):
        assertions(tmp_path)


class Lines(SilentProgress):
    """Keeps what was begun and said."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.said: list[str] = []

    def start(self, what: str, total: float | None) -> None:
        self.begun.append(what)

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


@pytest.fixture
def settings(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("FAKE_SLEEP_S", "0")
    for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return load_settings(
        {
            "build.pin": "local",
            "build.source": checkout,
            "build.jobs": 1,
            "cache_dir": tmp_path / "cache",
        },
        environ={},
    )


@pytest.fixture
def series() -> Series:
    return Series((Patch(Path("0001-eight.patch"), PATCH_DIFF, PATCH_DIFF, ("other.cpp",)),))


def compiled(made: Build) -> list[str]:
    """What the last run of Ninja did, from the log."""
    return [line for line in made.log.read_text().splitlines() if line.startswith("[")]


def answer(made: Build, *arguments: str) -> int:
    return subprocess.run([made.server, *arguments], check=False, capture_output=True).returncode


@pytest.fixture
def _commit_of_checkout(checkout: Path) -> Iterator[None]:
    """The user's checkout is never written to."""
    before = sorted((path, path.stat().st_mtime_ns) for path in checkout.rglob("*.*"))
    yield
    assert sorted((path, path.stat().st_mtime_ns) for path in checkout.rglob("*.*")) == before


@pytest.mark.compiler
@pytest.mark.usefixtures("_commit_of_checkout")
def test_a_build_is_recorded_and_used_again(settings: Settings, series: Series) -> None:
    progress = Lines()
    made = build(settings, "release", progress, series=series)
    assert answer(made) == 8
    assert progress.begun[0] == "configuring the release build"
    assert progress.begun[-1] == "compiling llama.cpp (release)"
    record = json.loads((made.dir / "build.json").read_text())
    assert record == made.record
    assert record["binaries"]["llama-server"]["size_bytes"] == made.server.stat().st_size
    assert [patch["name"] for patch in record["patches"]] == ["0001-eight.patch"]
    assert record["assertions"]["on"] is False
    assert str(settings.cache_dir) not in json.dumps(record)
    log_ns = made.log.stat().st_mtime_ns
    started_s = time.monotonic()
    again = build(settings, "release", progress, series=series)
    assert time.monotonic() - started_s < 2
    assert again == made
    assert made.log.stat().st_mtime_ns == log_ns
    assert len(progress.begun) == 2


@pytest.mark.compiler
def test_assertions_are_on_in_the_checked_build_only(settings: Settings) -> None:
    checked = build(settings, "checked", QUIET, series=Series())
    counts = checked.record["assertions"]
    assert counts == {
        "commands": 5,
        "with_ndebug": 0,
        "cxx_commands": 4,
        "cxx_with_glibcxx_assertions": 4,
        "on": True,
    }
    assert answer(checked) == 7
    assert answer(checked, "x") == -signal.SIGABRT
    release = build(settings, "release", QUIET, series=Series())
    assert release.dir != checked.dir
    assert answer(release, "x") == 7


@pytest.mark.compiler
def test_ndebug_from_outside_spoils_the_checked_build(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-DNDEBUG")
    with pytest.raises(BuildError, match="assertions switched off"):
        build(settings, "checked", QUIET, series=Series())
    assert list(settings.cache_dir.glob("build/*/build.json")) == []


@pytest.mark.compiler
def test_a_changed_patch_compiles_only_what_it_touches(settings: Settings, series: Series) -> None:
    plain = build(settings, "release", QUIET, series=Series())
    assert len(compiled(plain)) == 8
    patched = build(settings, "release", QUIET, series=series)
    assert patched.dir == plain.dir
    assert answer(patched) == 8
    assert len(compiled(patched)) == 4  # other.cpp of both programs, and linking both
    assert not any("server-context" in line for line in compiled(patched))
    unpatched = build(settings, "release", QUIET, series=Series())
    assert answer(unpatched) == 7
    assert unpatched.record["patches"] == []


@pytest.mark.compiler
@pytest.mark.parametrize("harm", ["cut", "gone", "no record", "cut record", "tree"])
def test_a_build_that_was_touched_is_made_again(settings: Settings, harm: str) -> None:
    made = build(settings, "release", QUIET, series=Series())
    record = made.dir / "build.json"
    match harm:
        case "cut":
            made.server.write_bytes(made.server.read_bytes()[:-100])
        case "gone":
            made.bench.unlink()
        case "no record":
            record.unlink()
        case "cut record":
            record.write_text(record.read_text()[:-20])
        case _:
            (made.source / "other.cpp").write_text(OTHER.replace("7", "9"))
    again = build(settings, "release", QUIET, series=Series())
    assert answer(again) == 7
    assert again.bench.is_file()
    assert json.loads(record.read_text()) == again.record
    assert again.record["binaries"] == made.record["binaries"]


@pytest.mark.compiler
def test_a_failed_build_says_what_failed_and_is_none(
    settings: Settings, checkout: Path, series: Series
) -> None:
    build(settings, "release", QUIET, series=Series())
    (checkout / "other.cpp").write_text("int answer() {\n    return seven;\n}\n")
    with pytest.raises(BuildError, match="'seven' was not declared") as caught:
        build(settings, "release", QUIET, series=Series())
    assert caught.value.what.startswith("compiling llama.cpp (release) failed:\nFAILED: ")
    assert caught.value.where is not None
    assert "'seven'" in Path(caught.value.where).read_text()
    assert list(settings.cache_dir.glob("build/*/build.json")) == []
    (checkout / "other.cpp").write_text(OTHER)
    assert answer(build(settings, "release", QUIET, series=series)) == 8


@pytest.mark.compiler
def test_a_configuration_that_fails_shows_cmakes_words(settings: Settings, checkout: Path) -> None:
    (checkout / "CMakeLists.txt").write_text(CMAKE + 'message(FATAL_ERROR "no such thing")\n')
    with pytest.raises(
        BuildError, match=r"(?s)configuring the release build failed.*no such thing"
    ):
        build(settings, "release", QUIET, series=Series())


@pytest.mark.compiler
def test_a_killed_build_is_none_and_the_next_waits_for_its_compilers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SLEEP_S", "2")
    script = """
import sys
from pathlib import Path
from experiment.build import build
from experiment.patches import Series
from experiment.progress import SilentProgress
from experiment.settings import load_settings
settings = load_settings({"build.pin": "local", "build.source": Path(sys.argv[1]),
                          "build.jobs": 1, "cache_dir": Path(sys.argv[2])}, environ={})
build(settings, "release", SilentProgress(), series=Series())
"""
    arguments = [str(settings.build.source), str(settings.cache_dir)]
    child = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=ROOT)
    deadline_s = time.monotonic() + 30
    # The configuration is done once build.ninja is there; then Ninja begins with the slow step.
    while not list(settings.cache_dir.glob("build/*/build.ninja")):
        assert time.monotonic() < deadline_s
        assert child.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert list(settings.cache_dir.glob("build/*/build.json")) == []
    monkeypatch.setenv("FAKE_SLEEP_S", "0")
    progress = Lines()
    made = build(settings, "release", progress, series=Series())
    assert progress.said == ["waiting for another build to end"]
    assert answer(made) == 7


@pytest.mark.compiler
@pytest.mark.parametrize("kind", ["release", "checked"])
def test_an_interrupted_build_is_none(settings: Settings, kind: Kind) -> None:
    class Interrupted(SilentProgress):
        def advance(self, done: float, note: str = "") -> None:
            if done >= 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(settings, kind, Interrupted(), series=Series())
    assert list(settings.cache_dir.glob("build/*/build.json")) == []
    assert answer(build(settings, kind, QUIET, series=Series())) == 7


@pytest.mark.compiler
def test_a_finished_build_does_not_wait_for_another(settings: Settings) -> None:
    made = build(settings, "release", QUIET, series=Series())
    with locked(settings.cache_dir / "build" / ".lock", lambda: None):
        assert build(settings, "release", QUIET, series=Series()) == made


@pytest.mark.compiler
def test_two_at_once_build_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP_S", "0.5")
    made: list[Build] = []
    compilations = []
    real = building._compile

    def counted(*arguments: object) -> dict[str, object]:
        compilations.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(building, "_compile", counted)

    def work() -> None:
        made.append(build(settings, "release", QUIET, series=Series()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    assert made[0] == made[1]

"""Ninja's output: the bar, the log, and what is shown of a failure."""

import io
import os
import sys
from pathlib import Path

import pytest

from experiment.errors import BuildError
from experiment.ninja_progress import LINES_SHOWN, FailedStep, run_logged

FAILURE = """\
[1/9] Building C object a.o
[2/9] Building CXX object sub/b.cpp.o
FAILED: [code=1] sub/b.cpp.o
/usr/bin/c++ -O3 -c b.cpp
b.cpp: In function 'int main()':
b.cpp:3:5: error: 'x' was not declared in this scope
[3/9] Building CXX object c.cpp.o
c.cpp:1:1: warning: something else
ninja: build stopped: subcommand failed.
"""


class Recorder:
    """Keeps what the progress was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def start(self, what: str, total: float | None) -> None:
        self.calls.append(("start", what, total))

    def advance(self, done: float, note: str = "") -> None:
        self.calls.append(("advance", done, note))

    def finish(self, summary: str = "") -> None:
        self.calls.append(("finish", summary))

    def say(self, line: str) -> None:
        self.calls.append(("say", line))


def run(tmp_path: Path, output: str, code: str = "0", *, counted: bool = True) -> Recorder:
    """Run a program that prints ``output`` and ends with ``sys.exit(code)``."""
    (tmp_path / "output").write_text(output)
    script = f"import sys; sys.stdout.write(open(sys.argv[1]).read()); sys.exit({code})"
    recorder = Recorder()
    with (tmp_path / "build.log").open("w") as log:
        run_logged(
            [sys.executable, "-c", script, str(tmp_path / "output")],
            log,
            recorder,
            what="compiling",
            counted=counted,
            environment=os.environ,
        )
    return recorder


def test_the_bar_follows_the_counter_and_the_log_has_everything(tmp_path: Path) -> None:
    output = "ninja: Entering directory\n[1/2] Building CXX object x/y.cpp.o\nnote\n"
    recorder = run(tmp_path, output + "[1/3] Building\n[3/3] Linking CXX executable bin/s\n")
    assert recorder.calls == [
        ("start", "compiling", 2),
        ("advance", 1, "y.cpp.o"),
        ("start", "compiling", 3),
        ("advance", 1, "Building"),
        ("advance", 3, "s"),
        ("finish", ""),
    ]
    assert (tmp_path / "build.log").read_text().split("\n", 1)[1].startswith(output)


def test_other_programs_have_no_counter(tmp_path: Path) -> None:
    recorder = run(tmp_path, "[1/2] not a step\n", counted=False)
    assert recorder.calls == [("start", "compiling", None), ("finish", "")]


def test_a_failure_shows_the_failing_step_only(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        run(tmp_path, FAILURE, "1")
    assert caught.value.what.splitlines() == [
        "compiling failed:",
        "FAILED: [code=1] sub/b.cpp.o",
        "b.cpp: In function 'int main()':",
        "b.cpp:3:5: error: 'x' was not declared in this scope",
    ]
    assert caught.value.where == str(tmp_path / "build.log")
    assert (tmp_path / "build.log").read_text().endswith(FAILURE)


def shown(*output: str) -> list[str]:
    step = FailedStep()
    for line in ["FAILED: a", "command", *output, "FAILED: b", "command", "x: error: in b"]:
        step.feed(line)
    return step.shown()


def test_the_first_error_of_the_first_failure_is_shown() -> None:
    notes = [f"note {number}" for number in range(100)]
    assert shown(*notes) == ["FAILED: a", *notes[-LINES_SHOWN:]]
    error = [*notes[:30], "x.cpp:1:2: error: first", *notes[30:]]
    assert shown(*error) == ["FAILED: a", *error[30 : 30 + LINES_SHOWN]]
    linker = ["undefined reference to `x'", "collect2: error: ld returned 1 exit status"]
    assert shown(*linker) == ["FAILED: a", *linker]
    assert FailedStep().shown() == []


@pytest.mark.parametrize(
    ("output", "code", "hint"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "1", "build.jobs"),
        ("cc1plus: out of memory allocating 65536 bytes", "1", "build.jobs"),
        ("fatal error: error writing to x.s: No space left on device", "1", "disk is full"),
        ("The C++ compiler is not able to compile a simple test program.", "1", "apt install"),
        ("/usr/bin/ld: cannot find -lstdc++", "1", "apt install"),
        ("error: expected ';'", "1", "log holds everything"),
        ("", "__import__('os').kill(__import__('os').getpid(), 15)", "signal 15"),
    ],
)
def test_the_hint_fits_the_cause(tmp_path: Path, output: str, code: str, hint: str) -> None:
    with pytest.raises(BuildError) as caught:
        run(tmp_path, f"FAILED: x.o\ncommand\n{output}\n", code)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_an_interruption_ends_the_child(tmp_path: Path) -> None:
    class Interrupted(Recorder):
        def advance(self, done: float, note: str = "") -> None:
            raise KeyboardInterrupt

    script = "import os,time; print(f'[1/2] {os.getpid()}', flush=True); time.sleep(60)"
    log = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run_logged(
            [sys.executable, "-c", script],
            log,
            Interrupted(),
            what="compiling",
            counted=True,
            environment=os.environ,
        )
    pid = int(log.getvalue().splitlines()[-1].split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

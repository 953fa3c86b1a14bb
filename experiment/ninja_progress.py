"""Runs CMake and Ninja: whole output to a log, Ninja's own counter to the progress bar."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from experiment.errors import BuildError
from experiment.progress import Progress

NINJA_STATUS = "[%f/%t] "
"""Finished and total steps; what `_STEP` reads."""

LINES_SHOWN = 25

_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")


@dataclass
class FailedStep:
    """Collects what the first failing step printed out of Ninja's output, line by line."""

    title: str = ""
    lines: list[str] = field(default_factory=list)
    _state: str = "before"

    def feed(self, line: str) -> None:
        """Take the next line; the command, after ``FAILED:``, is for the log only."""
        if self._state == "before" and line.startswith("FAILED: "):
            self._state, self.title = "command", line
        elif self._state == "command":
            self._state = "output"
        elif self._state == "output":
            if _STEP.match(line) or line.startswith(("FAILED: ", "ninja: ")):
                self._state = "after"
            else:
                self.lines.append(line)

    def shown(self) -> list[str]:
        """Return what a person wants to see: the lines from the first error on, or the last."""
        at = next((at for at, line in enumerate(self.lines) if "error:" in line), len(self.lines))
        start = max(0, min(at, len(self.lines) - LINES_SHOWN))
        return [self.title, *self.lines[start : start + LINES_SHOWN]] if self.title else []


def run_logged(
    command: Sequence[str],
    log: IO[str],
    progress: Progress,
    *,
    what: str,
    counted: bool,
    environment: Mapping[str, str],
    lock: int | None = None,
) -> None:
    """Run a program to its end, copying its output to ``log`` and its steps to the bar.

    Args:
        command: program and arguments.
        log: open for writing.
        progress: told of the work and its steps.
        what: the work in a few words, for the bar and for the error.
        counted: the program is Ninja, which says how many steps there are.
        environment: the child's, in whole.
        lock: file descriptor that the child inherits: should this process be killed, the lock on
            the folder then lasts until the compilers that are still writing to it have ended.

    Raises:
        BuildError: it fails; carries the last lines of the failing step and where the log is.
    """
    if not counted:
        progress.start(what, None)
    failed, tail = FailedStep(), deque[str](maxlen=LINES_SHOWN)
    log.write(f"$ {' '.join(command)}\n")
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environment),
        pass_fds=() if lock is None else (lock,),
    )
    total = 0
    try:
        for line in _lines(child):
            log.write(f"{line}\n")
            tail.append(line)
            failed.feed(line)
            if not counted or not (step := _STEP.match(line)):
                continue
            if int(step[2]) != total:  # Ninja adds steps when a generator is run again
                total = int(step[2])
                progress.start(what, total)
            progress.advance(int(step[1]), Path(step[3].split()[-1]).name if step[3] else "")
        code = child.wait()
    finally:
        # Ninja ends its compilers and removes what they left half-written before it exits.
        child.terminate()
        child.wait()
    if code:
        shown = failed.shown() or list(tail)
        raise BuildError(
            f"{what} failed:\n" + "\n".join(shown),
            where=log.name,
            hint=_hint("\n".join(shown), code),
        )
    progress.finish()


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            yield line.rstrip("\n")


def _hint(text: str, code: int) -> str:
    """Say what to do about the usual causes."""
    if re.search(r"Killed|[Cc]annot allocate memory|out of memory|bad_alloc|SIGKILL", text):
        return "memory ran out: set build.jobs to a smaller number, 1 if need be"
    if "No space left on device" in text:
        return "the disk is full: free some space, or set cache_dir to another one"
    if re.search(r"is not able to compile|No CMAKE_CXX?X?_COMPILER|cannot find -l", text):
        return "the compiler is incomplete (Debian, Ubuntu: apt install g++ make libc6-dev)"
    if code < 0:
        return f"it was ended by signal {-code}"
    return "the log holds everything that was printed"

"""Child processes that cannot outlive the driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs between fork and exec so that the kernel kills it when the driver dies.

    Everything that allocates or imports happens here, in the parent: after a fork only
    async-signal-safe calls are allowed. Other systems than Linux have no such call; there
    `stop` in a ``finally`` is all there is, which SIGKILL of the driver defeats.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the driver died between fork and prctl
            os._exit(1)

    return arm


def spawn(
    argv: Sequence[str | Path],
    *,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child that is killed when the driver dies, however that happens.

    The child gets a process group of its own, so that Ctrl-C reaches only the driver, which then
    ends the child in its own order. Call it from the main thread: the kernel's signal is tied to
    the thread that forks.

    Raises:
        OSError: the program cannot be started.
    """
    return subprocess.Popen(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=None if env is None else dict(env),
        start_new_session=True,
        preexec_fn=_die_with_parent(),
    )


def stop(child: subprocess.Popen[bytes], grace_s: float = 5.0) -> int:
    """End a child: SIGTERM to its group, SIGKILL after ``grace_s`` seconds. Its exit code."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    return child.wait()

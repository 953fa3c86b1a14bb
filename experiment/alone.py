"""One measuring run a machine: a second one would spoil the timings of both."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiment.errors import ExperimentError

LOCK_NAME = "prefix-replay.lock"


class BusyError(ExperimentError):
    """Another run is measuring on this machine."""


@contextlib.contextmanager
def alone(what: str, *, force: bool = False, folder: Path | None = None) -> Iterator[None]:
    """Hold the machine's lock while something is measured.

    The kernel lets go of it when the process ends, however that happens. A container has a
    temporary folder of its own: the process outside, which started it, holds the lock.

    Args:
        what: said to whoever comes second.
        force: measure all the same.
        folder: where the lock lies; the system's temporary folder if None.

    Raises:
        BusyError: another process holds it.
    """
    path = (folder or Path(tempfile.gettempdir())) / LOCK_NAME
    lock = _opened(path)
    if lock is None:
        # A machine where no such file can be made must still be able to measure.
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not force:
                raise BusyError(
                    f"another run is measuring on this machine ({_holder(lock)})",
                    hint="wait until it has ended; --force measures beside it, and both get worse",
                ) from None
            yield
            return
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{what}, process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _opened(path: Path) -> int | None:
    # Without O_CREAT first: Linux does not let one user so open another's file in a shared folder.
    # Never through a link that somebody has put there.
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):  # the umask's doing; not ours to change if not ours
                os.fchmod(descriptor, 0o666)
            return descriptor
    return None


def _holder(lock: int) -> str:
    said = os.pread(lock, 200, 0).decode("utf-8", "replace").strip()
    return said.splitlines()[0] if said else "it does not say which"

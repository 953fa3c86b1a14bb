"""What disturbed a request: cores kept busy by others, taken by the hypervisor, throttling.

Linux counts in clock ticks, mostly of 10 ms, and attributes a whole tick at a time: over a request
of 50 ms the cores are no better than ±0.2 each, over one of a second ±0.01.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from experiment.host import cgroup_folders

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

# The first line of /proc/stat has ten numbers; other files that are read here are as short.
_READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine's counters at one moment, in seconds of CPU time; None = the system is silent.

    ``busy_s`` and ``stolen_s`` are sums over all cores, ``server_s`` and ``driver_s`` over the
    threads of the process.
    """

    at_s: float
    busy_s: float | None
    stolen_s: float | None
    server_s: float | None
    driver_s: float | None
    throttles: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """What disturbed a request; None = the system does not tell.

    Attributes:
        other_cores: mean number of cores that neither the server nor the driver kept busy.
        stolen_cores: mean number of cores that the hypervisor gave to others.
        throttled: times that heat or a CPU quota slowed the machine down.
    """

    other_cores: float | None
    stolen_cores: float | None
    throttled: int | None


def load_between(before: Sample, after: Sample) -> Load:
    """What happened between two samples of the same meter."""
    wall_s = after.at_s - before.at_s

    def spent_s(name: str) -> float | None:
        first, last = getattr(before, name), getattr(after, name)
        return None if first is None or last is None else last - first

    busy_s, stolen_s = spent_s("busy_s"), spent_s("stolen_s")
    server_s, driver_s = spent_s("server_s"), spent_s("driver_s")
    other = stolen = None
    if wall_s > 0:
        if busy_s is not None and server_s is not None and driver_s is not None:
            # The ticks of the machine and of a process are not attributed at the same moment.
            other = max(0.0, (busy_s - server_s - driver_s) / wall_s)
        if stolen_s is not None:
            stolen = max(0.0, stolen_s / wall_s)
    throttled = None
    if before.throttles is not None and after.throttles is not None:
        throttled = max(0, after.throttles - before.throttles)
    return Load(other, stolen, throttled)


class LoadMeter:
    """Samples the machine and two processes; keeps its files open. Use as a context manager.

    Args:
        server_pid: process id of the server.
        root: the folder that holds ``proc`` and ``sys``; another one than ``/`` is for tests.
        clock: the time, in seconds.
    """

    def __init__(
        self,
        server_pid: int,
        root: Path = Path("/"),
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._machine = _Counter.open(root / "proc/stat")
        self._server = _Counter.open(root / "proc" / str(server_pid) / "stat")
        self._driver = _Counter.open(root / "proc/self/stat")
        self._heat = [_Counter.open(path) for path in _throttle_files(root)]
        self._quota = [_Counter.open(path) for path in _quota_files(root)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for counter in (self._machine, self._server, self._driver, *self._heat, *self._quota):
            counter.close()

    def sample(self) -> Sample:
        """Read all counters."""
        machine = self._machine.ticks_of_machine()
        busy, stolen = (None, None) if machine is None else machine
        throttles = [counter.number() for counter in self._heat]
        throttles += [counter.throttled() for counter in self._quota]
        known = [value for value in throttles if value is not None]
        return Sample(
            at_s=self._clock(),
            busy_s=_seconds(busy),
            stolen_s=_seconds(stolen),
            server_s=_seconds(self._server.ticks_of_process()),
            driver_s=_seconds(self._driver.ticks_of_process()),
            throttles=sum(known) if known else None,
        )


def _seconds(ticks: int | None) -> float | None:
    return None if ticks is None else ticks / _TICKS_PER_S


class _Counter:
    """A file of the kernel that is read again and again through one handle."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    @classmethod
    def open(cls, path: Path) -> Self:
        try:
            return cls(os.open(path, os.O_RDONLY))
        except OSError:
            return cls(None)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None

    def _read(self) -> bytes:
        if self._handle is None:
            return b""
        try:
            return os.pread(self._handle, _READ_BYTES, 0)
        except OSError:  # the process has ended
            return b""

    def number(self) -> int | None:
        text = self._read().strip()
        return int(text) if text.isdigit() else None

    def throttled(self) -> int | None:
        """``nr_throttled`` of a control group's ``cpu.stat``."""
        for line in self._read().splitlines():
            name, _, value = line.partition(b" ")
            if name == b"nr_throttled" and value.isdigit():
                return int(value)
        return None

    def ticks_of_machine(self) -> tuple[int, int] | None:
        """Busy and stolen; a machine that was never busy keeps no count."""
        line, _, _ = self._read().partition(b"\n")
        fields = [int(field) for field in line.split()[1:] if field.isdigit()]
        if not line.startswith(b"cpu ") or len(fields) < 8 or not any(fields):
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
        return user + nice + system + irq + softirq, steal

    def ticks_of_process(self) -> int | None:
        """User and system time; all threads are in it, those that have ended too."""
        # The name in parentheses may hold blanks and parentheses.
        _, _, rest = self._read().rpartition(b")")
        fields = rest.split()
        return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None


def _throttle_files(root: Path) -> Iterator[Path]:
    """One counter a core and one a package, which all their processors show."""
    seen: set[tuple[str, ...]] = set()
    for folder in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*")):
        package = _text(folder / "topology/physical_package_id") or folder.name
        core = _text(folder / "topology/core_id") or folder.name
        for kind, key in (("package", (package,)), ("core", (package, core))):
            path = folder / "thermal_throttle" / f"{kind}_throttle_count"
            if key not in seen and path.exists():
                seen.add(key)
                yield path


def _quota_files(root: Path) -> Iterator[Path]:
    """``cpu.stat`` of the control groups around this process, which its server is in as well."""
    seen: set[tuple[int, int]] = set()
    for controller in (None, "cpu"):
        for folder in cgroup_folders(root, controller):
            path = folder / "cpu.stat"
            try:
                found = path.stat()
            except OSError:
                continue
            # A controller may be mounted under several names.
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""

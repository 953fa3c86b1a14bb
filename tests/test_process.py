"""Children: they start apart from the terminal, end when told, and die with the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from experiment.paths import ROOT
from experiment.process import spawn, stop

PYTHON = (sys.executable, "-I", "-S", "-c")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Spawn a Python child that has printed "up"; whatever is left of it is killed."""
    children: list[subprocess.Popen[bytes]] = []

    def started(code: str, **options: object) -> subprocess.Popen[bytes]:
        child = spawn([*PYTHON, code], stdout=subprocess.PIPE, **options)  # type: ignore[arg-type]
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield started
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        assert child.stdout is not None
        child.stdout.close()


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; one that nobody has collected yet counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_a_child_has_a_group_of_its_own(start: Start) -> None:
    child = start("import time; print('up', flush=True); time.sleep(60)")
    assert os.getpgid(child.pid) == child.pid
    assert os.getsid(child.pid) != os.getsid(0)  # Ctrl-C at the terminal does not reach it


def test_a_child_does_not_read_what_is_typed_for_the_driver(start: Start) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"typed\n")
    os.close(writing)
    own = os.dup(0)
    try:
        os.dup2(reading, 0)
        child = start("import sys; print('up'); print(repr(sys.stdin.read()), flush=True)")
        assert child.stdout is not None
        assert child.stdout.readline() == b"''\n"
    finally:
        os.dup2(own, 0)
        for descriptor in (own, reading):
            os.close(descriptor)


def test_the_environment_is_the_one_given(start: Start) -> None:
    code = (
        "import os; print('up'); print(os.environ.get('ONE'), os.environ.get('HOME'), flush=True)"
    )
    child = start(code, env={"ONE": "1"})
    assert child.stdout is not None
    assert child.stdout.readline() == b"1 None\n"
    assert child.wait(10) == 0


def test_arguments_may_be_paths_and_need_no_quoting(tmp_path: Path) -> None:
    odd = tmp_path / "a b'c"
    child = spawn([*PYTHON, "import sys; print(sys.argv[1])", odd], stdout=subprocess.PIPE)
    assert child.communicate(timeout=10)[0].decode() == f"{odd}\n"


def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn([tmp_path / "nothing"])


def test_stop_asks_first(start: Start) -> None:
    child = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True); time.sleep(60)"
    )
    assert stop(child) == 7


def test_stop_kills_what_does_not_listen(start: Start) -> None:
    child = start(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    assert stop(child, grace_s=0.2) == -signal.SIGKILL
    assert 0.2 <= time.monotonic() - began < 5


def test_stop_reaches_what_the_child_has_started(start: Start) -> None:
    child = start(
        "import subprocess, sys, time\n"
        "print('up', flush=True)\n"
        "sleeper = [sys.executable, '-ISc', 'import time; time.sleep(60)']\n"
        "print(subprocess.Popen(sleeper).pid, flush=True)\n"
        "time.sleep(60)"
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    assert stop(child) == -signal.SIGTERM
    assert gone(grandchild)


def test_stop_of_one_that_has_ended_gives_its_code(start: Start) -> None:
    child = start("print('up', flush=True); raise SystemExit(3)")
    child.wait(10)
    assert stop(child) == 3
    assert stop(child) == 3


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_dies_with_the_driver(number: signal.Signals) -> None:
    code = (
        f"import subprocess, sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from experiment.process import spawn\n"
        'code = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 15)];"\n'
        "code += \"print('up', flush=True); time.sleep(60)\"\n"
        "child = spawn([sys.executable, '-ISc', code], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        child = int(driver.stdout.readline())
        assert not gone(child, 0.1)
        driver.send_signal(number)
        driver.wait(10)
    assert gone(child)

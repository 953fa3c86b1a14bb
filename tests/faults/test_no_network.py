"""Nothing of a run asks anything of the network but the server on the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.paths import ROOT
from tests.faults.own_network import is_here

PROGRAM = Path(__file__).with_name("own_network.py")


def watched(tmp_path: Path, module: str, *arguments: object) -> tuple[int, str, str]:
    """Exit code, errors, and what was asked of the network outside."""
    log = tmp_path / "asked.txt"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", tmp_path)))
    done = subprocess.run(
        [sys.executable, PROGRAM, log, module, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr, log.read_text() if log.exists() else ""


def test_a_run_and_its_report_ask_nothing(tmp_path: Path) -> None:
    code, errors, asked = watched(tmp_path, "tests.faults.fake_run", tmp_path)
    assert code == 0, errors
    assert asked == ""
    assert list(tmp_path.glob("results/*/report.html"))


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('192.0.2.1', 80), 1)",
        "import socket; socket.getaddrinfo('example.invalid', 80)",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "import requests; requests.get('http://192.0.2.1/', timeout=1)",
    ],
)
def test_whoever_asks_is_seen(code: str, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(code)
    exit_code, _, asked = watched(tmp_path, "asks")
    assert exit_code != 0
    assert asked.startswith("socket.")


@pytest.mark.parametrize(
    ("address", "here"),
    [
        (("127.0.0.1", 80), True),
        (("127.8.9.1", 80), True),
        (("::1", 80, 0, 0), True),
        ("localhost", True),
        ("/run/docker.sock", True),
        (b"\0abstract", True),
        (None, True),
        (("10.0.0.1", 80), False),
        (("0.0.0.0", 80), False),
        (("::", 80), False),
        ("example.invalid", False),
    ],
)
def test_what_is_here(address: object, here: bool) -> None:
    assert is_here(address) is here

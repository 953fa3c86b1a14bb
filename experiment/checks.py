"""Runs the project's own tests and linters, in the order that fails fastest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from experiment.paths import ROOT

_LINTERS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy",),
)

# Marker expressions, cheapest first.
_PARTS = (
    "not compiler and not browser and not engine and not container and not soak",
    "compiler and not engine and not container and not soak",
    "browser and not soak",
    "engine and not soak",
    "container and not soak",
)
_SOAK = "soak"


def run_tests(*, unit_only: bool, select: str | None, soak: bool = False) -> int:
    """Run pytest by what tests need: nothing, a compiler, a browser, the server, an engine.

    A part starts only after the one before has passed. The fixtures build the server with
    assertions, the ``nano`` model and the image where they are not there yet. Without a browser or
    a container engine those parts skip themselves. Those that take an hour (``soak``) run alone.
    Returns the exit code.
    """
    chosen = ["-k", select] if select else []
    for part in (_SOAK,) if soak else _PARTS[:1] if unit_only else _PARTS:
        if code := _pytest(["-m", part, *chosen]):
            return code
    return 0


def run_lint() -> int:
    """Run every linter, also after one has failed. Returns 0 only if all are content."""
    codes = [_module(*command) for command in _LINTERS]
    return max(codes)


def _pytest(arguments: Sequence[str]) -> int:
    # 5: nothing was selected, which --select of a test of the other part does.
    code = _module("pytest", *arguments)
    return 0 if code == 5 else code


def _module(*command: str) -> int:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode

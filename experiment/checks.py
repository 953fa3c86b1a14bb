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


def run_tests(*, unit_only: bool, select: str | None) -> int:
    """Run pytest: what needs no server first, then what needs one. Returns the exit code.

    The second part starts only after the first has passed. Its fixtures build the server with
    assertions and the ``nano`` model where they are not there yet.
    """
    chosen = ["-k", select] if select else []
    code = _pytest(["-m", "not engine", *chosen])
    if code or unit_only:
        return code
    return _pytest(["-m", "engine", *chosen])


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

"""Programs of these tests that mount disks do so in a namespace of their own: nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    test = [*_UNSHARE, "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(test, capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small disk")


def told(program: Path, *arguments: object) -> Any:
    """What a program of this folder prints as JSON."""
    done = subprocess.run(
        [*_UNSHARE, sys.executable, program, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

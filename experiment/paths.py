"""Where the project's own files lie, whatever the current directory is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: the folder that holds ``tasks.py`` and ``experiment/``."""

"""A program: a run of the fake world in the folder that it is given, and its report."""

from __future__ import annotations

import sys
from pathlib import Path

from fake_world import World

from experiment import compare, report, tables

if __name__ == "__main__":
    folder = World(Path(sys.argv[1]), with_refused=False).start()
    tables.render(compare.load(folder), "table")
    report.write(folder)

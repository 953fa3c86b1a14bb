"""Compiles the pinned llama.cpp inside the image build: ``compile.py --pin NAME --to FOLDER``."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment.build import RECORD, build
from experiment.errors import ExperimentError
from experiment.progress import RichProgress
from experiment.settings import load_settings

VOCABULARY = Path("models") / "ggml-vocab-qwen35.gguf"


def main() -> int:
    """Build, and keep the programs, their libraries, the record and the stand-ins' vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pin", required=True)
    parser.add_argument("--to", required=True, type=Path)
    arguments = parser.parse_args()
    try:
        settings = load_settings({"build.pin": arguments.pin, "cache_dir": "/tmp/build"})
        with RichProgress() as progress:
            made = build(settings, "portable", progress)
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    target: Path = arguments.to
    (target / "bin").mkdir(parents=True)
    names = made.record["binaries"]
    assert isinstance(names, dict)
    for name in names:
        shutil.copy(made.dir / "bin" / name, target / "bin" / name, follow_symlinks=False)
    shutil.copy(made.dir / RECORD, target / RECORD)
    (target / "source" / VOCABULARY).parent.mkdir(parents=True)
    shutil.copy(made.source / VOCABULARY, target / "source" / VOCABULARY)
    return 0


if __name__ == "__main__":
    sys.exit(main())

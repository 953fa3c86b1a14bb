"""The real patch series applies to the real pristine source with zero fuzz, patch by patch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from experiment import patches
from experiment.build import PATCHES, Build
from experiment.pins import pin_named
from experiment.progress import SilentProgress
from experiment.settings import Settings
from experiment.source import obtain

SERIES = patches.load_series(PATCHES)


@pytest.fixture(scope="module")
def pristine(settings: Settings, checked: Build) -> Path:
    # `checked` has it downloaded already, where nothing else has.
    return obtain(pin_named("sdist"), settings.cache_dir, SilentProgress())


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch(1)")
def test_every_hunk_applies_with_its_whole_context(pristine: Path, tmp_path: Path) -> None:
    for patch in SERIES.patches:
        for name in patch.files:
            if not (tmp_path / name).exists():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(pristine / name, tmp_path / name)
        done = subprocess.run(
            ["patch", "-p1", "--fuzz=0", "--input", str(PATCHES / patch.name)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "fuzz" not in done.stdout
        assert "offset" not in done.stdout


def test_build_is_of_the_patched_tree(pristine: Path, checked: Build) -> None:
    for name in {name for patch in SERIES.patches for name in patch.files}:
        assert (checked.source / name).read_bytes() != (pristine / name).read_bytes()


def test_patched_source_that_moved_on_is_refused(pristine: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(pristine / "src", moved / "src")
    shutil.copytree(pristine / "include", moved / "include")
    header = moved / "src" / "llama-memory.h"
    header.write_text(header.read_text().replace("virtual void seq_div", "virtual void seq_split"))
    with pytest.raises(patches.PatchError, match=r"0002.*llama-memory\.h"):
        patches.apply(SERIES, moved, tmp_path / "patched", "moved")


def test_each_patch_has_a_head_and_three_lines_of_context() -> None:
    for patch in SERIES.patches:
        text = (PATCHES / patch.name).read_text(encoding="utf-8")
        head, _, body = text.partition("\ndiff --git ")
        for field in ("Description: ", "Origin: ", "Forwarded: "):
            assert f"\n{field}" in f"\n{head}"
        hunks = body.split("\n@@ ")[1:]
        assert hunks
        for hunk in hunks:
            lines = hunk.split("\ndiff --git ")[0].rstrip("\n").split("\n")[1:]
            before = next(i for i, line in enumerate(lines) if line[:1] in "+-" and line)
            assert before == 3

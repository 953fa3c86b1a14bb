"""The series' form, and applying it: exact context, in order, once, and only where it changes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from experiment import patches
from experiment.errors import PatchError
from experiment.patches import Series, apply, is_applied, load_series

BAD = Path(__file__).parent / "bad" / "patches"
HEADER = "Description: a change\n in two lines\nOrigin: vendor\nForwarded: no\n---\n"
LINES = [f"line {number}" for number in range(1, 21)]


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    tree = tmp_path / "pristine"
    (tree / "sub").mkdir(parents=True)
    (tree / "a.txt").write_text("\n".join(LINES) + "\n")
    (tree / "sub" / "b.txt").write_text("\n".join(LINES) + "\n")
    (tree / "same.txt").write_text("same\n")
    for path in (tree / "a.txt", tree / "sub" / "b.txt", tree / "same.txt"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return tree


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "patched" / "tree"


@pytest.fixture(params=["git", "patch"])
def _tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with git and then on a machine that has only patch."""
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}")
    if request.param == "patch":
        real = shutil.which
        monkeypatch.setattr(
            patches.shutil, "which", lambda name: None if name == "git" else real(name)
        )


both_tools = pytest.mark.usefixtures("_tool")


def hunk(file: str, at: int, old: str, new: str, *, before: str | None = None) -> str:
    """A diff with three lines of context around line ``at`` of a file of `LINES`."""
    above = LINES[at - 4 : at - 1]
    if before is not None:
        above = [before, *above[1:]]
    below = LINES[at : at + 3]
    body = "".join(f" {line}\n" for line in above) + f"-{old}\n+{new}\n"
    body += "".join(f" {line}\n" for line in below)
    start = f"@@ -{at - 3},7 +{at - 3},7 @@"
    return f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n{start}\n{body}"


def series_of(tmp_path: Path, **diffs: str) -> Series:
    folder = tmp_path / "series of patches"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, diff in diffs.items():
        (folder / f"{name}.patch").write_text(HEADER + diff)
    names = "".join(f"{name}.patch  # why\n" for name in diffs)
    (folder / "series").write_text(f"# the series\n\n{names}")
    return load_series(folder)


def snapshot(tree: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(tree).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("case", sorted(path.name for path in BAD.iterdir()))
def test_a_malformed_series_is_refused(case: str) -> None:
    with pytest.raises(PatchError) as caught:
        load_series(BAD / case)
    expected = (BAD / case / "expected").read_text().strip()
    assert str(caught.value).startswith(f"{BAD / case}{os.sep}{expected}")


def test_series_reads_names_order_and_diffs(tmp_path: Path) -> None:
    one, two = hunk("a.txt", 5, "line 5", "fünf"), hunk("sub/b.txt", 9, "line 9", "neun")
    series = series_of(tmp_path, one=one, two=two)
    assert [patch.name for patch in series.patches] == ["one.patch", "two.patch"]
    assert series.files == {"a.txt", "sub/b.txt"}
    assert series.as_diff() == one + two


def test_digest_depends_on_names_contents_and_order(tmp_path: Path) -> None:
    one, two = hunk("a.txt", 5, "line 5", "fünf"), hunk("sub/b.txt", 9, "line 9", "neun")
    digests = {
        series_of(tmp_path, **diffs).digest
        for diffs in ({"a": one, "b": two}, {"b": two, "a": one}, {"a": one, "c": two}, {"a": one})
    }
    assert len(digests | {Series().digest}) == 5
    assert series_of(tmp_path, a=one).digest in digests


@both_tools
def test_patches_apply_in_order(tmp_path: Path, pristine: Path, target: Path) -> None:
    before = snapshot(pristine)
    series = series_of(
        tmp_path,
        z_first=hunk("a.txt", 10, "line 10", "ten"),
        a_second=hunk("a.txt", 10, "ten", "TEN"),
    )
    apply(series, pristine, target, "fake")
    assert (target / "a.txt").read_text().splitlines()[9] == "TEN"
    assert (target / "sub" / "b.txt").read_text() == (pristine / "sub" / "b.txt").read_text()
    assert snapshot(pristine) == before
    assert [path.name for path in target.parent.iterdir()] == ["tree"]
    assert is_applied(series, pristine, target)


@both_tools
def test_new_and_removed_files(tmp_path: Path, pristine: Path, target: Path) -> None:
    new = (
        "diff --git a/new/c.txt b/new/c.txt\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/new/c.txt\n@@ -0,0 +1 @@\n+fresh\n"
    )
    gone = (
        "diff --git a/same.txt b/same.txt\ndeleted file mode 100644\n--- a/same.txt\n"
        "+++ /dev/null\n@@ -1 +0,0 @@\n-same\n"
    )
    apply(series_of(tmp_path, one=new + gone), pristine, target, "fake")
    assert (target / "new" / "c.txt").read_text() == "fresh\n"
    assert not (target / "same.txt").exists()
    apply(Series(), pristine, target, "fake")
    assert not (target / "new" / "c.txt").exists()
    assert (target / "same.txt").read_text() == "same\n"


def test_applying_twice_changes_nothing(tmp_path: Path, pristine: Path, target: Path) -> None:
    series = series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten"))
    apply(series, pristine, target, "fake")
    before = snapshot(target)
    apply(series, pristine, target, "fake")
    assert snapshot(target) == before


def test_only_files_whose_content_changes_get_a_new_time(
    tmp_path: Path, pristine: Path, target: Path
) -> None:
    one = hunk("a.txt", 10, "line 10", "ten")
    apply(series_of(tmp_path, one=one), pristine, target, "fake")
    for path in target.rglob("*.txt"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    before = snapshot(target)
    two = hunk("sub/b.txt", 9, "line 9", "nine")
    apply(series_of(tmp_path, one=one, two=two), pristine, target, "fake")
    after = snapshot(target)
    assert [name for name in before if after[name] != before[name] and name.endswith(".txt")] == [
        "sub/b.txt"
    ]


def test_a_file_that_is_unpatched_again_gets_a_new_time_not_its_old_one(
    tmp_path: Path, pristine: Path, target: Path
) -> None:
    apply(series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten")), pristine, target, "fake")
    patched_ns = (target / "a.txt").stat().st_mtime_ns
    apply(Series(), pristine, target, "fake")
    assert (target / "a.txt").read_text() == (pristine / "a.txt").read_text()
    assert (target / "a.txt").stat().st_mtime_ns >= patched_ns


@pytest.mark.parametrize("harm", ["edited", "same size", "removed", "added", "interrupted"])
def test_a_tree_that_was_changed_or_left_half_done_is_put_right(
    tmp_path: Path, pristine: Path, target: Path, harm: str
) -> None:
    series = series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten"))
    apply(series, pristine, target, "fake")
    wanted = {name: content for name, (_, content) in snapshot(target).items()}
    match harm:
        case "edited":
            (target / "same.txt").write_text("other\n")
        case "same size":
            (target / "same.txt").write_text("emas\n")
        case "removed":
            (target / "a.txt").unlink()
        case "added":
            (target / "stray.txt").write_text("x")
        case _:
            (target / patches.STAMP).unlink()
            (target / "a.txt").write_text("half")
    assert not is_applied(series, pristine, target)
    apply(series, pristine, target, "fake")
    content = {name: content for name, (_, content) in snapshot(target).items()}
    assert content.keys() == wanted.keys()
    assert {**content, patches.STAMP: b""} == {**wanted, patches.STAMP: b""}


@both_tools
def test_a_hunk_that_does_not_apply_is_named(tmp_path: Path, pristine: Path, target: Path) -> None:
    apply(Series(), pristine, target, "fake")
    before = snapshot(target)
    good = hunk("a.txt", 10, "line 10", "ten")
    bad = (
        hunk("sub/b.txt", 5, "line 5", "five")
        + hunk("sub/b.txt", 15, "LINE 15", "x").split("+++ b/sub/b.txt\n")[1]
    )
    series = series_of(tmp_path, good=good, bad=bad)
    with pytest.raises(PatchError) as caught:
        apply(series, pristine, target, "fake")
    text = str(caught.value)
    assert 'bad.patch does not apply to pin "fake": sub/b.txt, hunk at line 12' in text
    path = tmp_path / "series of patches" / "bad.patch"
    number = path.read_text().splitlines().index("@@ -12,7 +12,7 @@") + 1
    assert text.startswith(f"{path}:{number}: ")
    assert snapshot(target) == before
    assert [folder.name for folder in target.parent.iterdir()] == ["tree"]


@both_tools
def test_a_hunk_that_needs_fuzz_is_refused(tmp_path: Path, pristine: Path, target: Path) -> None:
    fuzzy = hunk("a.txt", 10, "line 10", "ten", before="line SEVEN")
    # The case is real: with its default of two lines of fuzz, patch(1) takes it.
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    subprocess.run(["patch", "-p1"], cwd=copy, input=fuzzy.encode(), check=True, timeout=10)
    assert "ten" in (copy / "a.txt").read_text()
    with pytest.raises(PatchError, match=r"a\.txt, hunk at line 7"):
        apply(series_of(tmp_path, one=fuzzy), pristine, target, "fake")
    assert not target.exists()


@both_tools
def test_a_patch_for_a_file_that_is_not_there(tmp_path: Path, pristine: Path, target: Path) -> None:
    series = series_of(tmp_path, one=hunk("none.txt", 10, "line 10", "ten"))
    with pytest.raises(PatchError, match=r'one.patch does not apply to pin "fake": none.txt'):
        apply(series, pristine, target, "fake")


@both_tools
def test_a_patch_that_is_there_already_is_refused(
    tmp_path: Path, pristine: Path, target: Path
) -> None:
    series = series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten"))
    path = pristine / "a.txt"
    path.write_text(path.read_text().replace("line 10", "ten"))
    with pytest.raises(PatchError, match=r"a\.txt"):
        apply(series, pristine, target, "fake")


def test_a_repository_around_the_cache_and_loose_settings_do_not_matter(
    tmp_path: Path, pristine: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    settings = tmp_path / "gitconfig"
    settings.write_text("[apply]\n\tignoreWhitespace = change\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    apply(series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten")), pristine, target, "fake")
    assert (target / "a.txt").read_text().splitlines()[9] == "ten"
    loose = hunk("a.txt", 10, "line 10", "ten", before="line  7")
    with pytest.raises(PatchError):
        apply(series_of(tmp_path, one=loose), pristine, target, "fake")


def test_without_git_and_patch_there_is_a_sentence(
    tmp_path: Path, pristine: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    series = series_of(tmp_path, one=hunk("a.txt", 10, "line 10", "ten"))
    with pytest.raises(PatchError, match="neither git nor patch"):
        apply(series, pristine, target, "fake")

"""Fingerprints, throw-away folders and locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.trees import (
    copy_file,
    files_of,
    fingerprint,
    locked,
    put_in_place,
    read_json,
    same_content,
    temporary_sibling,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a").write_text("one")
    (root / "sub" / "b").write_text("two")
    (root / "link").symlink_to("sub")
    return root


def test_files_are_listed_with_links_but_not_through_them(tree: Path) -> None:
    assert files_of(tree) == ["a", "link", "sub/b"]
    assert files_of(tree, skip=frozenset({"a"})) == ["link", "sub/b"]


def test_fingerprint_notices_missing_added_and_cut_files(tree: Path) -> None:
    seen = {fingerprint(tree)}
    (tree / "a").write_text("on")
    seen.add(fingerprint(tree))
    (tree / "c").write_text("")
    seen.add(fingerprint(tree))
    (tree / "a").unlink()
    seen.add(fingerprint(tree))
    assert len(seen) == 4


def test_fingerprint_goes_by_times_only_if_asked_to(tree: Path) -> None:
    plain, timed = fingerprint(tree), fingerprint(tree, modification_times=True)
    os.utime(tree / "a", (1, 1))
    assert fingerprint(tree) == plain
    assert fingerprint(tree, modification_times=True) != timed


def test_same_content(tmp_path: Path) -> None:
    names = ("one", "same", "same_size", "link", "same_link", "other_link")
    one, same, same_size, link, same_link, other_link = (tmp_path / name for name in names)
    one.write_text("abc")
    same.write_text("abc")
    same_size.write_text("abd")
    for made, to in ((link, "one"), (same_link, "one"), (other_link, "same")):
        made.symlink_to(to)
    assert same_content(one, same)
    assert same_content(link, same_link)
    for other in (same_size, link, tmp_path / "missing"):
        assert not same_content(one, other)
    assert not same_content(link, other_link)


def test_a_copy_has_permissions_and_a_new_time(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("x")
    script.chmod(0o755)
    os.utime(script, (1, 1))
    copy_file(script, tmp_path / "deep" / "copy")
    status = (tmp_path / "deep" / "copy").stat()
    assert status.st_mode & 0o777 == 0o755
    assert status.st_mtime > 1000


def test_a_temporary_folder_goes_away_whatever_happens(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        assert folder.parent == tmp_path / "x"
        (folder / "half").write_text("made")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), temporary_sibling(tmp_path / "x" / "tree") as folder:
        fail(folder)
    assert list((tmp_path / "x").iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-dead").mkdir()
    (tmp_path / ".tmp-dead" / "half").write_text("made")
    with temporary_sibling(tmp_path / "tree"):
        assert not (tmp_path / ".tmp-dead").exists()


def test_put_in_place_takes_away_what_was_there(tree: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    put_in_place(made, tree)
    assert files_of(tree) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


def test_json_that_is_broken_or_not_an_object_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) == {}
    for text in ("{", "[]", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert read_json(path) == {}
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}


def test_a_lock_outlives_its_owner_in_a_child_and_says_that_one_waits(tmp_path: Path) -> None:
    path, waited = tmp_path / "deep" / "lock", []
    with locked(path, lambda: waited.append("first")) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(0.3)"], pass_fds=(descriptor,)
        )
    assert waited == []
    with locked(path, lambda: waited.append("second")):
        assert child.poll() is not None or child.wait(1) == 0
    assert waited == ["second"]

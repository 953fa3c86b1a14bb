"""The state of the checkout: written down by a run, made again from history and difference."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from experiment.errors import HandoffError
from experiment.host import REVISION_VARIABLE, git_state
from experiment.repository import MAX_PATCH_BYTES, PATCH, RECORD, record, restore

SCRIPT = b"#!/bin/sh\n"


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, stdout=-1)
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "folder").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "plain.txt").write_bytes(b"one\r\n")
    (root / "folder" / "ä b").write_bytes(bytes(range(256)))
    (root / "run").write_bytes(SCRIPT)
    (root / "run").chmod(0o755)
    (root / ".gitignore").write_bytes(b"ignored\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def test_a_clean_checkout_is_its_commit(checkout: Path, results: Path) -> None:
    record(results, checkout)
    commit = git(checkout, "rev-parse", "HEAD")
    assert json.loads((results / RECORD).read_text()) == {
        "commit": commit,
        "dirty": False,
        "patch_sha256": None,
    }
    assert not (results / PATCH).exists()
    (checkout / "plain.txt").write_bytes(b"later\n")
    git(checkout, "commit", "-q", "-a", "-m", "two")
    found = restore(results, checkout)
    assert (found.commit, found.dirty, found.patch_sha256) == (commit, False, None)
    assert found.files == {
        "plain.txt": b"one\r\n",
        "folder/ä b": bytes(range(256)),
        "run": SCRIPT,
        ".gitignore": b"ignored\n",
    }
    assert found.executables == {"run"}


def test_changes_new_and_deleted_files_are_in_the_state(checkout: Path, results: Path) -> None:
    (checkout / "plain.txt").write_bytes(b"two\n")
    (checkout / "new.bin").write_bytes(b"\0\1\2")
    (checkout / "new.sh").write_bytes(SCRIPT)
    (checkout / "new.sh").chmod(0o755)
    (checkout / "ignored").write_bytes(b"not this")
    (checkout / "folder" / "ä b").unlink()
    (checkout / "run").chmod(0o644)
    git(checkout, "add", "new.bin")  # part of it staged, part of it not
    before = git(checkout, "status", "--porcelain")
    record(results, checkout)
    assert git(checkout, "status", "--porcelain") == before
    assert "new.bin" in git(checkout, "ls-files")
    assert "new.sh" not in git(checkout, "ls-files")
    git(checkout, "reset", "-q", "--hard")
    found = restore(results, checkout)
    assert found.dirty
    assert found.files == {
        "plain.txt": b"two\n",
        "new.bin": b"\0\1\2",
        "new.sh": SCRIPT,
        "run": SCRIPT,
        ".gitignore": b"ignored\n",
    }
    assert found.executables == {"new.sh"}


def test_recording_leaves_no_objects_in_the_users_repository(checkout: Path, results: Path) -> None:
    (checkout / "new").write_bytes(b"never added")
    before = sorted((checkout / ".git" / "objects").rglob("*"))
    record(results, checkout)
    assert sorted((checkout / ".git" / "objects").rglob("*")) == before


def test_an_altered_difference_is_refused(checkout: Path, results: Path) -> None:
    (checkout / "plain.txt").write_bytes(b"two\n")
    record(results, checkout)
    text = (results / PATCH).read_bytes()
    (results / PATCH).write_bytes(text.replace(b"+two", b"+too"))
    with pytest.raises(HandoffError, match="were not recorded"):
        restore(results, checkout)


def test_a_huge_difference_is_not_kept_and_refused_later(
    checkout: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.repository.MAX_PATCH_BYTES", 10)
    assert MAX_PATCH_BYTES > 10
    (checkout / "plain.txt").write_bytes(b"two\n")
    record(results, checkout)
    assert not (results / PATCH).exists()
    with pytest.raises(HandoffError, match="not committed"):
        restore(results, checkout)


def test_a_checkout_without_that_commit_is_refused(
    checkout: Path, results: Path, tmp_path: Path
) -> None:
    record(results, checkout)
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    with pytest.raises(HandoffError, match="does not hold commit"):
        restore(results, other)


def test_outside_of_a_checkout_nothing_can_be_packed(results: Path, tmp_path: Path) -> None:
    record(results, tmp_path)
    assert json.loads((results / RECORD).read_text())["commit"] is None
    with pytest.raises(HandoffError, match="outside of a git checkout"):
        restore(results, tmp_path)


def test_a_run_of_an_older_version_is_refused(results: Path, checkout: Path) -> None:
    with pytest.raises(HandoffError, match="does not say which state"):
        restore(results, checkout)
    (results / RECORD).write_text("{")
    with pytest.raises(HandoffError, match="cannot be read"):
        restore(results, checkout)


@pytest.mark.parametrize(
    ("revision", "state"),
    [
        ("a" * 40, {"commit": "a" * 40, "dirty": False}),
        ("b" * 40 + "-dirty", {"commit": "b" * 40, "dirty": True}),
        ("unknown", {"commit": None, "dirty": None}),
        ("", {"commit": None, "dirty": None}),
    ],
)
def test_an_image_says_what_it_was_built_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    revision: str,
    state: dict[str, object],
) -> None:
    monkeypatch.setenv(REVISION_VARIABLE, revision)
    assert git_state(tmp_path) == state


def test_links_are_refused(checkout: Path, results: Path) -> None:
    (checkout / "link").symlink_to("plain.txt")
    git(checkout, "add", "link")
    git(checkout, "commit", "-q", "-m", "link")
    record(results, checkout)
    with pytest.raises(HandoffError, match="holds a link: link"):
        restore(results, checkout)

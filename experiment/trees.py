"""Folders of source files: cheap fingerprints, throw-away siblings, stamps, and locks on them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_TEMPORARY = ".tmp-"


def files_of(tree: Path, *, skip: frozenset[str] = frozenset()) -> list[str]:
    """Return the POSIX paths of all files (and links) below ``tree``, sorted, without ``skip``."""
    found: list[str] = []
    # Sliced as text: with pathlib, a tree of llama.cpp's size takes noticeably longer.
    prefix = len(str(tree)) + 1
    for folder, subfolders, names in os.walk(tree):
        linked = [name for name in subfolders if Path(folder, name).is_symlink()]
        found += [f"{folder}/{name}"[prefix:] for name in [*names, *linked]]
    return sorted(path for path in found if path not in skip)


def fingerprint(
    tree: Path, *, skip: frozenset[str] = frozenset(), modification_times: bool = False
) -> str:
    """Return a sha256 over the paths and sizes of all files, and their times if asked for.

    Contents are not read: it is there to notice files that are missing, cut short or added within
    some 20 ms, not to withstand an attack.
    """
    digest = hashlib.sha256()
    for path in files_of(tree, skip=skip):
        status = (tree / path).lstat()
        time_ns = status.st_mtime_ns if modification_times else 0
        digest.update(f"{path}\0{status.st_size}\0{time_ns}\n".encode())
    return digest.hexdigest()


def same_content(one: Path, other: Path) -> bool:
    """Return whether both are links to the same place, or files with the same bytes."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    if not other.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    return one.read_bytes() == other.read_bytes()


def copy_file(source: Path, target: Path) -> None:
    """Copy content and permissions, not times; a link is copied as a link; makes folders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copy(source, target, follow_symlinks=False)


@contextlib.contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield a new empty folder beside ``target`` that is removed at the end, however it comes.

    Beside it, because only within one file system can a rename put it in place at once. What a
    killed process left is removed first; the caller holds the lock on the parent folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(made: Path, target: Path) -> None:
    """Rename ``made`` to ``target``, taking away what is there."""
    if target.exists():
        doomed = made.parent / f"{made.name}.old"
        target.rename(doomed)
        made.rename(target)
        shutil.rmtree(doomed)
    else:
        made.rename(target)


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; empty if the file is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Hold an exclusive lock on ``path``; calls ``on_wait`` once if somebody else holds it.

    Yields the file descriptor: a child that inherits it keeps the lock for as long as it lives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()

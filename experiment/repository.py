"""The exact state of this project's own checkout: written down by a run, made again for a handoff.

A results folder holds ``repository.json`` (commit, whether files differed from it, sha256 of the
difference) and, where files differed or were new, ``repository.patch``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiment.errors import HandoffError
from experiment.host import git_state
from experiment.paths import ROOT
from experiment.whole_file import write_bytes, write_json

RECORD = "repository.json"
PATCH = "repository.patch"

MAX_PATCH_BYTES = 32 << 20
"""A larger difference is a slip (a model in the checkout, say) and is not kept."""

_GIT_PLACES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES"),
)

_HINT = "commit the changes and run again"


@dataclass(frozen=True)
class Repository:
    """All tracked files of the checkout a run was made with, by POSIX path.

    ``executables`` are the paths of those that may be run. ``patch_sha256`` is of the changes that
    were not committed, None where there were none.
    """

    commit: str
    dirty: bool
    patch_sha256: str | None
    files: dict[str, bytes]
    executables: frozenset[str]


def record(folder: Path, root: Path = ROOT) -> None:
    """Write the state of the checkout at ``root`` into a results folder.

    Where there is no checkout (an unpacked archive) the commit is None. A run is never refused for
    what cannot be recorded: its handoff is.
    """
    state = git_state(root)
    patch = _difference(root) if state["commit"] and state["dirty"] else b""
    kept = 0 < len(patch) <= MAX_PATCH_BYTES
    if kept:
        write_bytes(folder / PATCH, patch)
    text = {**state, "patch_sha256": hashlib.sha256(patch).hexdigest() if kept else None}
    write_json(folder / RECORD, text)


def restore(folder: Path, root: Path = ROOT) -> Repository:
    """The files of the state that `record` wrote down, from the history of the checkout at root.

    Raises:
        HandoffError: nothing was recorded, or history and difference do not give that state.
    """
    commit, dirty, sha256 = _read(folder)
    patch = b""
    if dirty:
        try:
            patch = (folder / PATCH).read_bytes()
        except OSError:
            patch = b""
        if sha256 is None or hashlib.sha256(patch).hexdigest() != sha256:
            raise HandoffError(
                "the run was made with changes that are not committed, and they were not recorded",
                where=str(folder),
                hint=_HINT,
            )
    packed = _git(root, "archive", "--format=tar", commit)
    if packed is None:
        raise HandoffError(
            f"the checkout does not hold commit {commit}, which the run was made with",
            where=str(root),
            hint="make the handoff in the checkout that made the run",
        )
    files, executables = _unpacked(packed)
    if dirty:
        files, executables = _patched(files, executables, patch, folder)
    return Repository(commit, dirty, sha256, files, executables)


def _read(folder: Path) -> tuple[str, bool, str | None]:
    path = folder / RECORD
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        commit, dirty, sha256 = found["commit"], found["dirty"], found["patch_sha256"]
    except FileNotFoundError:
        raise HandoffError(
            "the run does not say which state of this project made it",
            where=str(folder),
            hint="it was made by an older version: run again",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HandoffError(
            f"cannot be read: {error}",
            where=str(path),
            hint="the run's record is damaged: run again",
        ) from error
    if not isinstance(commit, str):
        raise HandoffError(
            "the run was made outside of a git checkout, so its code cannot be packed",
            where=str(folder),
            hint="clone the project and run again",
        )
    return commit, bool(dirty), sha256 if isinstance(sha256, str) else None


def _difference(root: Path) -> bytes:
    """All changes and new files against HEAD, as one binary diff; the checkout is only read.

    An index of its own, and objects that go to a folder of their own: nothing of the user's
    repository is touched.
    """
    with tempfile.TemporaryDirectory(prefix="repository-") as work:
        objects = _git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects")
        if objects is None:
            return b""
        (Path(work) / "objects").mkdir()
        environment = {
            "GIT_INDEX_FILE": f"{work}/index",
            "GIT_OBJECT_DIRECTORY": f"{work}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fsdecode(objects).strip(),
        }
        for arguments in (("read-tree", "HEAD"), ("add", "--all")):
            if _git(root, *arguments, environment=environment) is None:
                return b""
        return _git(root, *_DIFF, "--cached", "HEAD", environment=environment) or b""


_DIFF = ("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-renames")


def _unpacked(packed: bytes) -> tuple[dict[str, bytes], frozenset[str]]:
    files: dict[str, bytes] = {}
    executables = set()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise HandoffError(
                    f"the commit holds a link: {member.name}",
                    hint="an archive holds plain files only: put the file itself there",
                )
            files[member.name] = content.read()
            if member.mode & 0o100:
                executables.add(member.name)
    return files, frozenset(executables)


def _patched(
    files: dict[str, bytes], executables: frozenset[str], patch: bytes, folder: Path
) -> tuple[dict[str, bytes], frozenset[str]]:
    with tempfile.TemporaryDirectory(prefix="repository-") as work:
        tree = Path(work)
        for name, content in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)
            (tree / name).chmod(0o755 if name in executables else 0o644)
        # A repository around the temporary folder would make git skip files without a word.
        ceiling = {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
        if _git(tree, "apply", "-p1", "-", environment=ceiling, given=patch) is None:
            raise HandoffError(
                f"{PATCH} does not apply to the commit in {RECORD}", where=str(folder), hint=_HINT
            )
        found = sorted(path for path in tree.rglob("*") if path.is_file() or path.is_symlink())
        if any(path.is_symlink() for path in found):
            raise HandoffError(
                "the checkout held a link that was not committed",
                where=str(folder),
                hint="an archive holds plain files only: put the file itself there and run again",
            )
        return (
            {path.relative_to(tree).as_posix(): path.read_bytes() for path in found},
            frozenset(
                path.relative_to(tree).as_posix() for path in found if path.stat().st_mode & 0o100
            ),
        )


def _git(
    root: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    given: bytes | None = None,
) -> bytes | None:
    """What git printed; None where it fails or there is none."""
    # Not the places that a hook's environment names; what the caller trusts and configures stays.
    clean = {key: value for key, value in os.environ.items() if key not in _GIT_PLACES}
    settings = ("-c", "core.autocrlf=false", "-c", "core.quotepath=false")
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *settings, *arguments],
            env={**clean, **(environment or {}), "LC_ALL": "C"},
            input=given,
            stdin=None if given is not None else subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None

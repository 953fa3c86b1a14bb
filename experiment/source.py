"""Pristine llama.cpp trees: gets what a pin names, proves it, and puts it in place in one step.

``<cache>/source/<pin>-<commit>`` holds the tree. A stamp inside says which pin it was made from and
what its files look like; it is written before the rename, so a tree without a matching stamp is
one that somebody changed, and is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from experiment.errors import SourceError
from experiment.pins import COMMIT_DIGITS, GitPin, LocalPin, Pin, SdistPin
from experiment.progress import Progress
from experiment.trees import (
    copy_file,
    files_of,
    fingerprint,
    locked,
    put_in_place,
    read_json,
    temporary_sibling,
)
from experiment.whole_file import write_json

STAMP = ".experiment-source.json"
MARKERS = ("CMakeLists.txt", "src/llama-memory.h", "tools/server/server-context.cpp")
"""Files that a llama.cpp tree must have to be worth patching."""

_LAST_LINES = 15
_GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass(frozen=True)
class Stamp:
    """What a pristine tree was made from.

    ``digest`` proves the content: the sdist's sha256, the commit, or the sha256 of a local
    checkout's commit and changes. ``dirty`` says that a local checkout had changes.
    """

    pin: str
    commit: str
    digest: str
    dirty: bool = False


def obtain(pin: Pin, cache_dir: Path, progress: Progress, local: Path | None = None) -> Path:
    """Return a pristine llama.cpp tree of the pin; from the cache if it is there and whole.

    Args:
        pin: what to get.
        cache_dir: trees go to ``source/``, a downloaded distribution to ``downloads/``; a file of
            the right name and hash that lies there already is used without network.
        progress: told what is being downloaded or unpacked.
        local: the checkout for the pin "local"; it is only read.

    Raises:
        SourceError: it cannot be had, or it is not what the pin says. Nothing half-made stays.
    """
    stamp, fill = _plan(pin, cache_dir, progress, local)
    changed = f"-{stamp.digest[:COMMIT_DIGITS]}" if stamp.dirty else ""
    tree = cache_dir / "source" / f"{stamp.pin}-{stamp.commit[:COMMIT_DIGITS]}{changed}"
    if _is_whole(tree, stamp):
        return tree
    waiting = "waiting for another process that gets the source"
    with locked(cache_dir / "source" / ".lock", lambda: progress.say(waiting)):
        if _is_whole(tree, stamp):
            return tree
        if tree.exists():
            progress.say(f"source {tree.name} is not as it was made: making it anew")
        with temporary_sibling(tree) as folder:
            made = folder / "tree"
            fill(made)
            _check_markers(made, pin)
            seen = fingerprint(made, skip=frozenset({STAMP}))
            write_json(made / STAMP, {**asdict(stamp), "fingerprint": seen})
            put_in_place(made, tree)
    return tree


def packed(pin: Pin, tree: Path, cache_dir: Path, progress: Progress) -> Path:
    """Return one file that `obtain` can make the tree of the pin from, elsewhere, without network.

    Args:
        pin: what to pack.
        tree: what `obtain` returned for it, which is what a local checkout's file is made from.
        cache_dir: as for `obtain`.
        progress: as for `obtain`.

    Raises:
        SourceError: it cannot be had any more.
    """
    match pin:
        case SdistPin():
            return _sdist(pin, cache_dir, progress)
        case GitPin():
            return _git_pack(pin, cache_dir, progress)
        case LocalPin():
            return _tar(tree, cache_dir)


def _tar(tree: Path, cache_dir: Path) -> Path:
    """The files of a tree as a tar archive; the same files give the same bytes."""
    kept = cache_dir / "downloads" / f"{tree.name}.tar"
    with temporary_sibling(kept) as folder, tarfile.open(folder / kept.name, "w") as tar:
        for name in files_of(tree, skip=frozenset({STAMP})):
            path = tree / name
            entry = tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
                tar.addfile(entry)
                continue
            status = path.stat()
            entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
        tar.close()
        (folder / kept.name).replace(kept)
    return kept


def read_stamp(tree: Path) -> Stamp:
    """Return what a tree that `obtain` made was made from.

    Raises:
        SourceError: it has no stamp.
    """
    stamp = read_json(tree / STAMP)
    try:
        return Stamp(
            str(stamp["pin"]), str(stamp["commit"]), str(stamp["digest"]), stamp["dirty"] is True
        )
    except KeyError as error:
        raise SourceError("not a source tree of this project: no stamp", where=str(tree)) from error


def _plan(
    pin: Pin, cache_dir: Path, progress: Progress, local: Path | None
) -> tuple[Stamp, Callable[[Path], None]]:
    """Return what the tree is to be, and the function that makes it at a path."""
    match pin:
        case SdistPin():
            stamp = Stamp(pin.name, pin.commit, pin.sha256)
            return stamp, lambda made: _unpack(_sdist(pin, cache_dir, progress), pin, made)
        case GitPin():
            stamp = Stamp(pin.name, pin.commit, pin.commit)
            return stamp, lambda made: _check_out(_git_pack(pin, cache_dir, progress), pin, made)
        case LocalPin():
            if local is None:
                raise SourceError(
                    f'the pin "{pin.name}" needs a checkout',
                    hint="name it with the setting build.source",
                )
            stamp = _look_at(local, pin)
            return stamp, lambda made: _export(local, made)


def _is_whole(tree: Path, stamp: Stamp) -> bool:
    found = read_json(tree / STAMP)
    if not found or any(found.get(key) != value for key, value in asdict(stamp).items()):
        return False
    return found.get("fingerprint") == fingerprint(tree, skip=frozenset({STAMP}))


def _check_markers(tree: Path, pin: Pin) -> None:
    missing = [name for name in MARKERS if not (tree / name).is_file()]
    if missing:
        raise SourceError(
            f'the source of pin "{pin.name}" does not look like llama.cpp: no {missing[0]}',
            hint="this project patches llama.cpp of about June 2026",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sdist(pin: SdistPin, cache_dir: Path, progress: Progress) -> Path:
    """Return the distribution's file, downloading it if it is not in the cache with that hash."""
    kept = cache_dir / "downloads" / pin.filename
    if kept.is_file():
        if _sha256(kept) == pin.sha256:
            return kept
        progress.say(f"{kept} has another sha256 than pin {pin.name}: downloading it again")
    with temporary_sibling(kept) as folder:
        progress.start(f"downloading {pin.filename}", None)
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
        # pip, because it already knows the user's proxy, CA bundle and mirror. It runs the
        # distribution's metadata step; its build backend is one of our locked requirements.
        _run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
                *("--disable-pip-version-check", "--require-hashes", "--no-deps"),
                *("--no-binary", pin.package, "--no-build-isolation"),
                *("--dest", str(folder), "--requirement", str(requirement)),
            ],
            what=f"{pin.package} {pin.version} cannot be downloaded",
            hint="pip reads HTTPS_PROXY, PIP_INDEX_URL (a mirror) and PIP_CERT (a CA bundle); or "
            f"put {pin.filename} with sha256 {pin.sha256} into {kept.parent}",
        )
        got = folder / pin.filename
        if not got.is_file():
            raise SourceError(f"pip downloaded no {pin.filename}")
        if (sha256 := _sha256(got)) != pin.sha256:
            raise SourceError(
                f"{pin.filename} has sha256 {sha256}, expected {pin.sha256}",
                hint="the mirror serves another file; use another one",
            )
        got.replace(kept)
        progress.finish()
    return kept


def _unpack(archive: Path, pin: SdistPin, made: Path) -> None:
    """Extract the llama.cpp part of the distribution: plain files only, nothing outside ``made``.

    The ``.git`` file in it points to a repository that is not there, and confuses CMake's look for
    a version: it stays out. (tarfile's own filters are missing from Python 3.11.2, which Debian 12
    has.)
    """
    root = PurePosixPath(pin.stem, pin.subdirectory)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise SourceError(f"refused: leads outside: {member.name}", where=str(archive))
                if not path.is_relative_to(root) or path == root / ".git" or member.isdir():
                    continue
                content = tar.extractfile(member) if member.isfile() else None
                if content is None:
                    raise SourceError(f"refused: not a file: {member.name}", where=str(archive))
                target = made / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
                target.chmod(0o755 if member.mode & 0o100 else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(f"cannot be unpacked: {error}", where=str(archive)) from error


def _git_pack(pin: GitPin, cache_dir: Path, progress: Progress) -> Path:
    """Return the commit's objects as one git pack, fetching them if they are not in the cache."""
    kept = cache_dir / "downloads" / pin.filename
    if kept.is_file():
        return kept
    with temporary_sibling(kept) as folder:
        progress.start(f"fetching llama.cpp {pin.commit[:COMMIT_DIGITS]}", None)
        _git(folder, "init", "--quiet")
        hint = (
            "git reads https_proxy, http.sslCAInfo and url.<mirror>.insteadOf; or put "
            f"{kept.name}, the commit's objects as a git pack, into {kept.parent}"
        )
        _git(folder, "fetch", "--quiet", "--depth", "1", pin.url, pin.commit, hint=hint)
        got = _git(folder, "rev-parse", "FETCH_HEAD").decode().strip()
        if got != pin.commit:
            raise SourceError(f"fetched commit {got}, expected {pin.commit}", where=pin.url)
        # One thread, so that the same objects give the same bytes.
        objects = _git(folder, "rev-list", "--objects", "--no-object-names", "FETCH_HEAD")
        packing = ("pack-objects", "--threads=1", "--stdout", "--quiet")
        (folder / kept.name).write_bytes(_git(folder, *packing, given=objects))
        (folder / kept.name).replace(kept)
        progress.finish()
    return kept


def _check_out(pack: Path, pin: GitPin, made: Path) -> None:
    """Unpack a commit; git names each object by the hash of what the pack really holds.

    So if there is a commit of the pin's name, the tree is the one that the name stands for.
    """
    made.mkdir()
    _git(made, "init", "--quiet")
    hint = f"remove {pack}; it is fetched again"
    # The commit's parents are not there, and are not looked for.
    (made / ".git" / "shallow").write_text(f"{pin.commit}\n")
    with pack.open("rb") as file:
        _git(made, "index-pack", "--stdin", hint=hint, given=file)
    _git(made, "config", "core.autocrlf", "false")
    _git(made, "checkout", "--quiet", pin.commit, hint=hint)
    shutil.rmtree(made / ".git")


def _look_at(checkout: Path, pin: LocalPin) -> Stamp:
    """Return commit and state of the user's checkout."""
    if not checkout.is_dir():
        raise SourceError("there is no such folder", where=str(checkout))
    _check_markers(checkout, pin)
    hint = "build.source has to be a git checkout of llama.cpp"
    top = _git(checkout, "rev-parse", "--show-toplevel", hint=hint).decode().strip()
    if Path(top).resolve() != checkout.resolve():
        raise SourceError("is not the top folder of a git checkout", where=str(checkout), hint=hint)
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    changes = _git(checkout, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")
    digest = hashlib.sha256(commit.encode() + b"\0" + changes).hexdigest()
    return Stamp(pin.name, commit, digest if changes else commit, dirty=bool(changes))


def _export(checkout: Path, made: Path) -> None:
    """Copy the tracked files as they lie there, changes included; untracked files stay out."""
    names = os.fsdecode(_git(checkout, "ls-files", "-z")).split("\0")
    for name in filter(None, names):
        file = checkout / name
        if file.is_symlink() or file.is_file():
            copy_file(file, made / name)


def _git(
    folder: Path,
    *arguments: str,
    hint: str | None = None,
    given: bytes | BinaryIO | None = None,
) -> bytes:
    """Run git in ``folder`` with ``given`` as its input and return what it printed."""
    # Another repository around the cache, or one named by a hook's environment, is not meant.
    environment = {key: value for key, value in os.environ.items() if key not in _GIT_PLACES}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return _run(
        ["git", "-C", str(folder), *arguments],
        what=f"git {arguments[0]} failed",
        hint=hint,
        environment=environment,
        given=given,
    )


def _run(
    command: list[str],
    *,
    what: str,
    hint: str | None,
    environment: dict[str, str] | None = None,
    given: bytes | BinaryIO | None = None,
) -> bytes:
    content, stream = (given, None) if isinstance(given, bytes) else (None, given)
    try:
        done = subprocess.run(
            command,
            input=content,
            stdin=None if content is not None else stream or subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=environment,
        )
    except FileNotFoundError as error:
        raise SourceError(f"there is no {command[0]} here", hint=f"install {command[0]}") from error
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace").strip()
        lines = "\n".join(output.splitlines()[-_LAST_LINES:])
        raise SourceError(f"{what}:\n{lines}", hint=hint)
    return done.stdout

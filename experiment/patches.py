"""The patch series on llama.cpp: reads it, checks its form, and keeps a patched copy of a tree.

A patched tree is kept in place and only files whose content differs are written. Their time of
change is what Ninja goes by: with a tree made anew for every edit of a patch, all of llama.cpp
would be compiled again (minutes) instead of the few files that changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from experiment.errors import PatchError
from experiment.source import STAMP as SOURCE_STAMP
from experiment.trees import (
    copy_file,
    files_of,
    fingerprint,
    read_json,
    same_content,
    temporary_sibling,
)
from experiment.whole_file import write_json

STAMP = ".experiment-patches.json"
HEADER_FIELDS = ("Description", "Origin", "Forwarded")
"""DEP-3 fields that every patch carries: what it does, whose it is, where it stands upstream."""

_STAMPS = frozenset({STAMP, SOURCE_STAMP})
_FILE = re.compile(r"diff --git a/(\S+) b/(\S+)$")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Patch:
    """One file of the series. ``files`` are the POSIX paths that it changes, makes or removes."""

    path: Path
    text: str = field(repr=False)
    diff: str = field(repr=False)
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its file name, as the series lists it."""
        return self.path.name

    @property
    def sha256(self) -> str:
        """Digest of the whole file, header included."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Series:
    """Patches in the order in which they apply; without any, the source stays as it is."""

    patches: tuple[Patch, ...] = ()

    @property
    def digest(self) -> str:
        """A sha256 over names and contents in order."""
        digest = hashlib.sha256()
        for patch in self.patches:
            digest.update(f"{patch.name}\0{patch.sha256}\n".encode())
        return digest.hexdigest()

    @property
    def files(self) -> frozenset[str]:
        """POSIX paths of all files that the series touches."""
        return frozenset(name for patch in self.patches for name in patch.files)

    def as_diff(self) -> str:
        """Return all diffs in order, without the headers: one file for ``patch -p1``."""
        return "".join(patch.diff for patch in self.patches)


def load_series(folder: Path) -> Series:
    """Read ``series`` (a name a line, ``#`` begins a comment) and the patches it lists.

    Raises:
        PatchError: a listed patch is missing or listed twice, a patch is not listed, or one is
            malformed: no header field, no diff, not in git's format, a path that leads outside.
    """
    listing = folder / "series"
    names: list[str] = []
    for number, line in enumerate(_read(listing).splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        where = f"{listing}:{number}"
        if name in names:
            raise PatchError(f"{name} is listed twice", where=where)
        if PurePosixPath(name).name != name or not (folder / name).is_file():
            raise PatchError(f"there is no patch {name} beside it", where=where)
        names.append(name)
    if stray := sorted({path.name for path in folder.glob("*.patch")} - set(names)):
        raise PatchError(f"{stray[0]} is not listed", where=str(listing), hint="list or remove it")
    return Series(tuple(_parse(folder / name) for name in names))


def is_applied(series: Series, pristine: Path, target: Path) -> bool:
    """Return whether ``target`` is this series on this tree, and nobody changed it since."""
    stamp = read_json(target / STAMP)
    return bool(stamp) and stamp == _stamp(series, pristine, target)


def apply(series: Series, pristine: Path, target: Path, pin_name: str) -> None:
    """Make ``target`` a copy of ``pristine`` with the series applied, context matching exactly.

    Files whose content is right already keep their time of change. ``pristine`` is only read. The
    caller holds a lock on ``target``.

    Raises:
        PatchError: a hunk does not apply; ``target`` is then as it was before.
    """
    if is_applied(series, pristine, target):
        return
    with temporary_sibling(target) as patched:
        # Only the touched files are patched in the side folder; the rest comes from `pristine`.
        for name in sorted(series.files):
            if (pristine / name).is_file():
                copy_file(pristine / name, patched / name)
        for patch in series.patches:
            _apply_one(patch, patched, pin_name)
        target.mkdir(parents=True, exist_ok=True)
        (target / STAMP).unlink(missing_ok=True)
        _bring_in_line(target, pristine, patched, series.files)
        write_json(target / STAMP, _stamp(series, pristine, target))


def _stamp(series: Series, pristine: Path, target: Path) -> dict[str, object]:
    source = read_json(pristine / SOURCE_STAMP)
    return {
        "series": series.digest,
        "source": source or fingerprint(pristine),
        "target": fingerprint(target, skip=_STAMPS, modification_times=True),
    }


def _bring_in_line(target: Path, pristine: Path, patched: Path, touched: frozenset[str]) -> None:
    """Give ``target`` the files of ``pristine``, with those of ``patched`` in place of touched."""
    wanted = {name: pristine / name for name in files_of(pristine, skip=_STAMPS | touched)}
    wanted |= {name: patched / name for name in files_of(patched)}
    for name in files_of(target):
        if name not in wanted:
            (target / name).unlink()
    for name, source in wanted.items():
        if not same_content(source, target / name):
            # Not the source's time of change: it can be older than the objects compiled from what
            # stood here before, and Ninja would keep them.
            copy_file(source, target / name)


def _apply_one(patch: Patch, tree: Path, pin_name: str) -> None:
    before = {name: _content(tree / name) for name in patch.files}
    done = _git_apply(patch, tree) if shutil.which("git") else _posix_patch(patch, tree)
    output = f"{done.stdout}\n{done.stderr}".strip()
    untouched = [name for name in patch.files if _content(tree / name) == before[name]]
    if done.returncode == 0 and not untouched:
        return
    file, old_line = _failed_hunk(output)
    file = file or (untouched or patch.files)[0]
    hunk = f", hunk at line {old_line}" if old_line else ""
    number = _hunk_line(patch, file, old_line)
    raise PatchError(
        f'{patch.name} does not apply to pin "{pin_name}": {file}{hunk}\n{output}',
        where=f"{patch.path}:{number}",
        hint="refresh the patch against that source; context has to match exactly (no fuzz)",
    )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _git_apply(patch: Patch, tree: Path) -> subprocess.CompletedProcess[str]:
    """Apply with git, which never drops context lines (it does accept other line numbers).

    Inside somebody's repository git would take paths from its top folder and skip the rest without
    a word, so repositories above are hidden; the user's settings may not loosen the match.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "LC_ALL": "C"}
    settings = ("core.autocrlf=false", "apply.ignoreWhitespace=no", "apply.whitespace=nowarn")
    options = [part for setting in settings for part in ("-c", setting)]
    return _run(["git", *options, "apply", "-p1", "-"], patch, tree, environment)


def _posix_patch(patch: Patch, tree: Path) -> subprocess.CompletedProcess[str]:
    options = ("-p1", "-F0", "-N", "-r", "-")
    return _run(["patch", *options], patch, tree, {**os.environ, "LC_ALL": "C"})


def _run(
    command: list[str], patch: Patch, tree: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=tree,
            env=environment,
            input=patch.diff,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    except FileNotFoundError as error:
        raise PatchError("there is neither git nor patch here", hint="install one") from error


def _failed_hunk(output: str) -> tuple[str | None, int | None]:
    """Find file and old line of the first hunk that git or patch complained about."""
    if found := re.search(r"^error: patch failed: (.+):(\d+)$", output, re.MULTILINE):
        return found[1], int(found[2])
    if found := re.search(r"^error: ([^:\n]+): ", output, re.MULTILINE):
        return found[1], None
    file = None
    for line in output.splitlines():
        if found := re.match(r"(?:patching|checking) file '?([^']+)'?$", line):
            file = found[1]
        elif found := re.match(r"Hunk #\d+ FAILED at (\d+)", line):
            return file, int(found[1])
    return file, None


def _hunk_line(patch: Patch, file: str, old_line: int | None) -> int:
    """Return the line number, in the patch's file, of that hunk or else of that file's part."""
    number, current = 1, None
    for at, line in enumerate(patch.text.splitlines(), 1):
        if found := _FILE.match(line):
            current = found[2]
            number = at if current == file else number
        elif current == file and (found := _HUNK.match(line)) and int(found[1]) == old_line:
            return at
    return number


def _parse(path: Path) -> Patch:
    text = _read(path)
    lines = text.splitlines(keepends=True)
    starts = [at for at, line in enumerate(lines) if re.match(r"diff --git |--- \S", line)]
    if not starts:
        raise PatchError("holds no diff", where=str(path))
    header = "".join(lines[: starts[0]])
    for name in HEADER_FIELDS:
        if not re.search(rf"^{name}:[ \t]*(\S|\n[ \t]+\S)", header, re.MULTILINE):
            raise PatchError(
                f'the header has no "{name}:"',
                where=f"{path}:1",
                hint=f"a patch begins with the fields {', '.join(HEADER_FIELDS)} (DEP-3)",
            )
    if not _FILE.match(lines[starts[0]]):
        raise PatchError(
            'the diff does not begin with "diff --git a/FILE b/FILE"',
            where=f"{path}:{starts[0] + 1}",
            hint="make it with git diff",
        )
    files = tuple(dict.fromkeys(_touched(path, lines)))
    return Patch(path, text, "".join(lines[starts[0] :]), files)


def _touched(path: Path, lines: list[str]) -> Iterator[str]:
    """Yield the path in each ``diff --git`` line; no line of a hunk can begin like one."""
    for number, line in enumerate(lines, 1):
        if not line.startswith("diff --git "):
            continue
        found = _FILE.match(line.rstrip())
        if found is None or found[1] != found[2]:
            raise PatchError("renames and odd names are not supported", where=f"{path}:{number}")
        if ".." in PurePosixPath(found[1]).parts or found[1].startswith("/"):
            raise PatchError(f"leads outside: {found[1]}", where=f"{path}:{number}")
        yield found[1]


def _read(path: Path) -> str:
    try:
        # newline="": a carriage return is content here.
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise PatchError(f"cannot be read: {error}", where=str(path)) from error

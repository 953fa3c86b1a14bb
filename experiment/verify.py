"""Checks a handoff archive, line by line: whole, safe, and every number from the raw answers.

The archive may be anything. What is wrong with it is a failed check with a sentence; the others are
made all the same, unless they need what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec

import duckdb

from experiment import archive, verify_files, verify_raw, verify_tables, verify_texts
from experiment.archive_manifest import MANIFEST, Manifest
from experiment.copied import copied
from experiment.database import DATABASE
from experiment.errors import ArchiveError, ExperimentError
from experiment.folder import TRACE
from experiment.progress import Progress
from experiment.settings import Settings
from experiment.trace import Trace, load_trace
from experiment.verify_raw import Material

Arguments = ParamSpec("Arguments")

_MAX_DETAIL = 600

# What the code that reads a file may run into when that can hold anything at all.
_TROUBLE = (
    ExperimentError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    duckdb.Error,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked, or could not be; ``detail`` is a sentence of one line."""

    name: str
    ok: bool
    detail: str


@contextmanager
def unpacked(file: Path, cache_dir: Path) -> Iterator[Path]:
    """Yield a new folder for what is in an archive; it is removed at the end.

    Raises:
        ArchiveError: it cannot be made.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="verify-", dir=cache_dir) as work:
            yield Path(work)
    except OSError as error:
        raise ArchiveError(
            f"there is no folder to unpack it into: {error.strerror}",
            where=str(error.filename or file),
            hint="set cache_dir to a folder that can be written",
        ) from error


def top(work: Path) -> Path:
    """The top folder of the archive that `verify` has unpacked into ``work``."""
    (manifest,) = work.glob(f"*/{MANIFEST}")
    return manifest.parent


def verify(file: Path, work: Path, progress: Progress) -> tuple[Check, ...]:
    """Unpack an archive into ``work`` and check it; nothing but ``work`` is written.

    Args:
        file: the archive.
        work: an empty folder; what could be unpacked safely stays in it.
        progress: where to show it.
    """
    checks: list[Check] = []
    try:
        found = archive.unpack(file, work, progress=progress)
    except ArchiveError as error:
        told = "; ".join(filter(None, [_line(error, file.parent), error.hint]))
        checks.append(Check("archive", False, told))
        names = ("hashes", "tables", *(part.name for part in _PARTS if not part.optional))
        return (*checks, *(_unmade(name, "archive") for name in names))
    checks.append(_whole(file, found))
    checks.append(_hashes(found))
    folder = work / found.manifest.name
    database = folder / "results" / DATABASE
    with ExitStack() as stack:
        run = _Run(folder, found.manifest, stack)
        progress.start("verify", len(_PARTS) + 1)
        checks += _made("tables", folder, verify_tables.tables, database, found.manifest)
        can_be_read = checks[-1].ok
        for number, part in enumerate(_PARTS, 1):
            progress.advance(number, part.name)
            if can_be_read or not part.reads_tables:
                made = _made(part.name, folder, part.check, run)
                checks += [_with_doubt(check, run) for check in made] if part.is_remade else made
            elif not part.optional:
                checks.append(_unmade(part.name, "tables"))
        progress.finish(f"made {len(checks)} checks")
    return tuple(checks)


class _Run:
    """The parts of an archive that several checks need; read when the first asks for them."""

    def __init__(self, folder: Path, manifest: Manifest, stack: ExitStack) -> None:
        self.folder = folder
        self.manifest = manifest
        self.results = folder / "results"
        self.exports = folder / "export"
        self._stack = stack

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A database of the same rows, laid out by this program; it reads the exports as well."""
        copy = self._stack.enter_context(copied(self.results))
        opened = verify_tables.connect(copy / DATABASE, self.exports)
        return self._stack.enter_context(opened)

    @cached_property
    def trace(self) -> Trace:
        return load_trace(self.results / TRACE)

    @cached_property
    def material(self) -> Material:
        return Material(
            folder=self.results,
            connection=self.connection,
            run_id=self.manifest.run_id,
            steps={(step.task_id, step.step): step for step in self.trace.steps},
            settings=Settings.model_validate(json.loads(self.column("settings"))),
        )

    def column(self, name: str) -> Any:
        """A value of the run's row."""
        ((value,),) = self.connection.execute(f"SELECT {name} FROM run").fetchall()
        return value

    def new_folder(self) -> Path:
        """An empty folder, removed in the end."""
        made = tempfile.TemporaryDirectory(prefix="made-", dir=self.folder.parent)
        return Path(self._stack.enter_context(made))


@dataclass(frozen=True, slots=True)
class _Part:
    """A check.

    Attributes:
        name: of its line.
        check: gives what was checked.
        optional: it may give None: there is nothing to check.
        reads_tables: it cannot be made if the database is not to be trusted.
        is_remade: it compares with what this program makes, which another version may not.
    """

    name: str
    check: Callable[[_Run], str | None]
    optional: bool = False
    reads_tables: bool = True
    is_remade: bool = False


_PARTS = (
    _Part("views", lambda run: verify_tables.views(run.results / DATABASE), is_remade=True),
    _Part(
        "patches",
        lambda run: verify_files.patches(run.folder, run.column("patch_digest"), run.column("pin")),
    ),
    _Part(
        "source",
        lambda run: verify_files.source(run.folder, run.manifest),
        reads_tables=False,
    ),
    _Part(
        "image",
        lambda run: verify_files.image(run.folder, run.column("image_digest")),
        optional=True,
    ),
    _Part("trace", lambda run: verify_tables.steps(run.connection, run.trace)),
    _Part(
        "graph",
        lambda run: verify_tables.graph(
            run.connection, verify_files.read_json(run.results / "graph.json")
        ),
    ),
    _Part("measurements", lambda run: verify_raw.measurements(run.material)),
    _Part("experts", lambda run: verify_raw.experts(run.material)),
    _Part("calibration", lambda run: verify_raw.calibration(run.material)),
    _Part("arithmetic", lambda run: verify_raw.arithmetic(run.material)),
    _Part(
        "exports",
        lambda run: verify_tables.exports(
            run.connection, run.exports, run.results, run.new_folder()
        ),
    ),
    _Part("report", lambda run: verify_texts.page(run.folder), is_remade=True),
    _Part("claims", lambda run: verify_texts.claimed(run.folder), is_remade=True),
    _Part("guide", lambda run: verify_texts.guide(run.folder, run.manifest), is_remade=True),
    _Part(
        "crate",
        lambda run: verify_files.metadata(run.folder, run.manifest),
        reads_tables=False,
    ),
)


def _whole(file: Path, found: archive.Unpacked) -> Check:
    if found.repacked is not None:
        return Check("archive", False, found.repacked)
    with file.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    files, megabytes = len(found.manifest.files), found.manifest.total_bytes / 1e6
    told = (
        f"{files:,} files, {megabytes:,.1f} MB, each where the manifest lists it; sha256 {digest}"
    )
    return Check("archive", True, told)


def _hashes(found: archive.Unpacked) -> Check:
    if not found.altered:
        return Check("hashes", True, "every file has the sha256 that the manifest lists")
    more = f" (and {len(found.altered) - 1:,} more)" if len(found.altered) > 1 else ""
    return Check("hashes", False, found.altered[0] + more)


def _made(
    name: str,
    folder: Path,
    check: Callable[Arguments, str | None],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> list[Check]:
    """A check's line; none where there was nothing to check."""
    try:
        told = check(*arguments, **named)
    except _TROUBLE as error:
        return [Check(name, False, _line(error, folder))]
    return [] if told is None else [Check(name, True, told)]


def _with_doubt(check: Check, run: _Run) -> Check:
    """The check; if it failed, it says where this program is not the one that made the archive."""
    if check.ok or verify_files.is_this_program(run.folder / "repository"):
        return check
    return replace(check, detail=f"{check.detail} (this program is not the one in repository/)")


def _unmade(name: str, needed: str) -> Check:
    return Check(name, False, f"not checked: {needed} failed")


def _line(error: BaseException, folder: Path) -> str:
    """What an error says, on one line that no terminal takes for a command."""
    if isinstance(error, ExperimentError):
        text = f"{error.where}: {error.what}" if error.where else error.what
    else:
        text = f"it cannot be read: {type(error).__name__}: {error}"
    text = " ".join(text.replace(f"{folder}/", "").split())
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= _MAX_DETAIL else f"{shown[:_MAX_DETAIL]}…"

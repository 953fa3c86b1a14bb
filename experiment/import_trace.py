"""Imports a log: its calls become the rows of a trace, with a header row of what was assumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiment.errors import TraceImportError
from experiment.image_files import UnusableImageError
from experiment.importers.base import Call, Context, Counter, Importer, Log, Options, Source
from experiment.importers.registry import AUTO
from experiment.importers.sources import find_inputs
from experiment.importers.steps import Steps
from experiment.progress import Progress
from experiment.screenshot import open_screenshot
from experiment.trace_header import TraceHeader, header_row

DIGEST_CHARACTERS = 16
"""Of an image's sha256, as its name: the same image is kept once, and no name clashes."""

SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg"}


@dataclass(frozen=True)
class Imported:
    """What became of a log.

    Attributes:
        steps: rows of the trace.
        tasks: tasks that they belong to.
        log: assumptions, warnings, and what was left out; the header row says the same.
        seen: by what the format was recognised.
        format: the importer's name.
    """

    steps: int
    tasks: int
    log: Log
    seen: str
    format: str


def import_trace(
    source: Path,
    to: Path,
    options: Options,
    progress: Progress,
    *,
    format: str = AUTO,
    counter: Counter | None = None,
) -> Imported:
    """Write the trace that a log holds to ``to``, and its images into ``<to's stem>-images/``.

    ``to`` appears (or is replaced) only when the whole log was read; ``load_trace`` takes it.

    Args:
        source: a log, or a folder of logs of one format.
        to: the trace to write; its folder must exist.
        options: the assumptions that the user states.
        progress: told the bytes of each file that are read.
        format: an importer's name; ``auto`` recognises the format by content.
        counter: the model that counts tokens, for logs without counts.

    Raises:
        TraceImportError: the log cannot become a trace, or the trace cannot be written.
    """
    _check_target(source, to)
    log = Log()
    inputs = find_inputs(source, format, log)
    steps = Steps(options, log)
    files = tuple(path for _, path in inputs.files) if source.is_dir() else ()
    try:
        with tempfile.TemporaryDirectory(prefix=".import-", dir=to.parent) as name:
            folder = Path(name)
            images = _Images(folder / "images", to)
            with (folder / "rows").open("w", encoding="utf-8") as rows:
                for number, (file, path) in enumerate(inputs.files):
                    steps.begin_file(file)
                    work = folder / f"work-{number}"
                    work.mkdir()
                    opened = Source.open(path)
                    context = Context(options, log, progress, work, counter, files)
                    for call in inputs.importer.calls(opened, context):
                        row = steps.finish(call, images.take(call, opened, work))
                        rows.write(json.dumps(row, ensure_ascii=False) + "\n")
                    shutil.rmtree(work)
            steps.close()
            if not steps.count:
                raise TraceImportError("holds no calls" + _why(log), where=str(source))
            header = header_row(_header(inputs.importer, log, counter))
            _put(folder, header, images, to)
    except OSError as error:
        where = str(error.filename or to)
        raise TraceImportError(
            f"the import failed: {error.strerror or error}", where=where
        ) from error
    progress.finish(f"Imported {steps.count} steps of {steps.tasks} tasks into {to}")
    return Imported(steps.count, steps.tasks, log, inputs.seen, inputs.importer.name)


class _Images:
    """Copies the images of calls as they are, each once."""

    def __init__(self, folder: Path, to: Path) -> None:
        self.folder = folder
        self.target = to.parent / f"{to.stem}-images"
        self._names: dict[Path, str] = {}

    def take(self, call: Call, source: Source, work: Path) -> str | None:
        """The path of a call's image, relative to the trace.

        Raises:
            TraceImportError: the image cannot be used, or is none of the log's.
        """
        if call.screenshot is None:
            return None
        shown = f"the image {call.screenshot.name!r}"
        try:
            path = call.screenshot.resolve()
            roots = (source.path if source.path.is_dir() else source.path.parent, work)
            if not any(path.is_relative_to(root.resolve()) for root in roots):
                what = f"{shown} leads out of the log's folder"
                raise TraceImportError(what, where=call.where)
            # A path in the work folder may hold another image at the next call.
            name = self._names.get(path) if not path.is_relative_to(work.resolve()) else None
            if name is None:
                name = self._names[path] = self._copied(path)
        except UnusableImageError as error:
            raise TraceImportError(f"{shown} {error}", where=call.where) from None
        except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in a circle
            what = f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise TraceImportError(what, where=call.where) from None
        return f"{self.target.name}/{name}"

    def _copied(self, path: Path) -> str:
        open_screenshot(path)
        data = path.read_bytes()
        suffix = next(suffix for magic, suffix in SUFFIXES.items() if data.startswith(magic))
        name = f"{hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]}.{suffix}"
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(data)
        return name

    def put(self) -> None:
        """Move the copies beside the trace. Names follow content, so none replaces another."""
        if not self.folder.exists():
            return
        self.target.mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            path.replace(self.target / path.name)


def _check_target(source: Path, to: Path) -> None:
    where = str(to)
    if not to.parent.is_dir():
        raise TraceImportError("the folder of the trace does not exist", where=str(to.parent))
    if to.is_dir() or (to.exists() and not to.is_file()):
        raise TraceImportError("is no file that a trace could replace", where=where)
    if to.exists() and source.exists() and to.samefile(source):
        what = "the trace would replace the log that it is made from"
        raise TraceImportError(what, where=where, hint="name another file for the trace")
    try:
        to.name.encode()
    except UnicodeEncodeError:
        raise TraceImportError("the name is not UTF-8", where=ascii(where)) from None


def _header(importer: Importer, log: Log, counter: Counter | None) -> TraceHeader:
    counted = counter.name if importer.counts and counter is not None else None
    return TraceHeader(
        importer.name,
        log.tokenizer or counted,
        tuple(log.assumptions),
        tuple(log.warnings),
        tuple(log.dropped.items()),
    )


def _put(folder: Path, header: dict[str, object], images: _Images, to: Path) -> None:
    """Put the header before the rows, and both in their place."""
    whole = folder / "trace"
    with whole.open("wb") as trace, (folder / "rows").open("rb") as rows:
        trace.write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
        shutil.copyfileobj(rows, trace, 1 << 20)
        trace.flush()
        os.fsync(trace.fileno())
    images.put()
    whole.replace(to)


def _why(log: Log) -> str:
    told = "; ".join(f"{count} left out: {reason}" for reason, count in log.dropped.items())
    return f" ({told})" if told else ""

"""The files that an import reads: one, or those of a folder that are of one format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from experiment.errors import TraceImportError
from experiment.importers.base import Importer, Log, Source
from experiment.importers.probe import described, listed
from experiment.importers.registry import AUTO, ambiguous, claims, detect, named


@dataclass(frozen=True)
class Inputs:
    """What to import: ``files`` by their names in the folder, or the one file by its own.

    ``seen`` says by what the format was recognised.
    """

    importer: Importer
    seen: str
    files: tuple[tuple[str, Path], ...]


def find_inputs(path: Path, format: str, log: Log) -> Inputs:
    """What lies at a path.

    A folder that an importer recognises as such (a trajectory with its screenshots) is one input;
    of any other, each file counts that is of the format, in the order of their names.

    Raises:
        TraceImportError: nothing there is of the format, or what is there is of several.
    """
    importer = None if format == AUTO else named(format)
    source = Source.open(path)
    if not path.is_dir():
        if importer is None:
            importer, seen = detect(source)
        else:
            seen = importer.recognise(source) or f"{described(source)}, read as --format says"
        return Inputs(importer, seen, ((path.name, path),))
    whole = _wanted(claims(source), importer)
    if len(whole) > 1:
        raise ambiguous(str(path), whole)
    if whole:
        return Inputs(*whole[0], ((path.name, path),))
    return _of_folder(path, importer, log)


def _of_folder(folder: Path, importer: Importer | None, log: Log) -> Inputs:
    found: dict[str, tuple[Importer, str, list[tuple[str, Path]]]] = {}
    for name in _names(folder, log):
        claimed = _wanted(claims(Source.open(folder / name)), importer)
        if len(claimed) > 1:
            raise ambiguous(str(folder / name), claimed)
        if not claimed:
            log.drop("files of the folder that are no logs of this format")
        for claimer, seen in claimed:
            found.setdefault(claimer.name, (claimer, seen, []))[2].append((name, folder / name))
    if len(found) > 1:
        told = "; ".join(
            f"{name} ({listed([file for file, _ in files])})"
            for name, (_, _, files) in found.items()
        )
        raise TraceImportError(
            f"holds logs of several formats: {told}",
            where=str(folder),
            hint="name one: --format=NAME",
        )
    for claimer, seen, files in found.values():
        number = f"{len(files)} files, the first: " if len(files) > 1 else ""
        return Inputs(claimer, number + seen, tuple(files))
    wanted = "a known format" if importer is None else f"the format {importer.name}"
    raise TraceImportError(f"holds no file of {wanted}", where=str(folder))


def _wanted(
    claimed: list[tuple[Importer, str]], importer: Importer | None
) -> list[tuple[Importer, str]]:
    """Those of the format that was asked for, or all."""
    if importer is None:
        return claimed
    return [claim for claim in claimed if claim[0].name == importer.name]


def _names(folder: Path, log: Log) -> list[str]:
    """The files below a folder, relative to it, in the order of their names.

    Links that lead out of the folder are left out: a log that was handed over does not choose
    what else is read from this machine.
    """
    root = folder.resolve()
    names = []
    for parent, folders, files in os.walk(folder):
        # Hidden ones are no logs: version control, caches, what an import is just writing.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if not path.resolve().is_relative_to(root):
                log.drop("links that lead out of the folder")
            elif path.is_file():
                names.append(path.relative_to(folder).as_posix())
    return sorted(names)

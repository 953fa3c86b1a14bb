"""Finds the importers, and the one whose format a file or folder is."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import cast

from experiment import importers as package
from experiment.errors import TraceImportError
from experiment.importers.base import Importer, Source
from experiment.importers.probe import described

AUTO = "auto"


@cache
def importers() -> Mapping[str, Importer]:
    """Each importer of this package by its name, in the order of the names.

    A module of the package that holds ``IMPORTER`` is a format; the others are what they share.
    """
    found: dict[str, Importer] = {}
    for module in pkgutil.iter_modules(package.__path__):
        importer = getattr(
            importlib.import_module(f"{package.__name__}.{module.name}"), "IMPORTER", None
        )
        if importer is not None:
            found[importer.name] = cast("Importer", importer)
    return MappingProxyType(dict(sorted(found.items())))


def named(name: str) -> Importer:
    """The importer of this name.

    Raises:
        TraceImportError: there is none.
    """
    importer = importers().get(name)
    if importer is None:
        near = difflib.get_close_matches(name, importers(), n=1)
        question = f"; did you mean {near[0]!r}?" if near else ""
        raise TraceImportError(f"{name!r} is not a format{question}", hint=_formats())
    return importer


def claims(source: Source) -> list[tuple[Importer, str]]:
    """The importers that recognise a source, each with what it saw."""
    seen = ((importer, importer.recognise(source)) for importer in importers().values())
    return [(importer, what) for importer, what in seen if what is not None]


def detect(source: Source) -> tuple[Importer, str]:
    """The one importer that recognises a source, and what it saw.

    Raises:
        TraceImportError: none does, or several do.
    """
    found = claims(source)
    if not found:
        raise TraceImportError(
            f"is {described(source)}: no known format", where=str(source.path), hint=_formats()
        )
    if len(found) > 1:
        raise ambiguous(str(source.path), found)
    return found[0]


def ambiguous(where: str, found: list[tuple[Importer, str]]) -> TraceImportError:
    """The error of a source that could be of several formats."""
    told = "; ".join(f"{importer.name} ({what})" for importer, what in found)
    return TraceImportError(
        f"could be of several formats: {told}", where=where, hint="name one: --format=NAME"
    )


def _formats() -> str:
    return f"--format takes {AUTO}, {', '.join(importers())}"

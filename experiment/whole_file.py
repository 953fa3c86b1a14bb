"""Files that appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PATTERN = ".[0-9]*-[0-9]*.draft"
_numbers = itertools.count()


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to; when the block ends well, that becomes ``path``.

    When it does not, ``path`` stays as it was and nothing is left beside it. What a kill leaves
    there has a name that no reader takes for a result, see `remove_drafts`.

    Raises:
        OSError: the file cannot be put in place.
    """
    # Not made of the file's own name, which may be as long as the file system admits.
    made = path.with_name(f".{os.getpid()}-{next(_numbers)}.draft")
    try:
        yield made
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old one or the new one, never a part.

    Raises:
        OSError: the file system refuses; ``path`` is as it was.
    """
    with draft(path) as made:
        made.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as it is, line ends included; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(
    path: Path,
    value: Mapping[str, object],
    *,
    indent: int = 2,
    default: Callable[[object], object] | None = None,
) -> None:
    """Write JSON for people to read as well; see `write_bytes`.

    Args:
        path: the file.
        value: what it holds.
        indent: blanks a level.
        default: makes something JSON knows of what it does not.
    """
    write_text(path, json.dumps(value, indent=indent, default=default) + "\n")


def copy(source: Path, target: Path) -> None:
    """Copy the content of a file; see `write_bytes`."""
    with draft(target) as made:
        shutil.copyfile(source, made)


def remove_drafts(folder: Path) -> None:
    """Remove what killed writers have left in ``folder``. Nobody may be writing there."""
    for left in folder.glob(_PATTERN):
        left.unlink(missing_ok=True)

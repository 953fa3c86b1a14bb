"""A step's screenshot as the bytes that are sent: a user's file, or a rendered desktop."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random

from experiment.desktop import paint_desktop
from experiment.errors import TraceError
from experiment.image_files import UnusableImageError, image_size, size_problem
from experiment.words import load_words

MAX_FILE_BYTES = 64 << 20

COMPRESS_LEVEL = 3
"""Of zlib. Level 6 takes half as long again and saves 2 % (measured at 960x540)."""


@dataclass(frozen=True)
class Screenshot:
    """A PNG or JPEG file of ``width`` x ``height`` pixels or, without a path, one to render."""

    path: Path | None
    width: int
    height: int


def open_screenshot(path: Path) -> Screenshot:
    """The screenshot that a PNG or JPEG file holds; the whole file is read and decoded.

    Raises:
        UnusableImageError: why the file cannot be used, in words that follow its name.
    """
    width, height = image_size(_read(path))
    return Screenshot(path, width, height)


def png_bytes(screenshot: Screenshot, seed: int) -> bytes:
    """The bytes of a PNG file of exactly ``screenshot.width`` x ``screenshot.height`` pixels.

    A screenshot without a file is rendered: the same size and seed give the same picture, other
    seeds others. One with a file gives that file's own bytes, which may be a JPEG's.

    Raises:
        TraceError: the file is not what it was when the trace was loaded, or cannot be used; or
            the size to render is out of bounds.
    """
    where = None if screenshot.path is None else str(screenshot.path)
    try:
        if screenshot.path is None:
            return _rendered(screenshot, seed)
        data = _read(screenshot.path)
        size = image_size(data)
    except UnusableImageError as error:
        raise TraceError(f"the screenshot {error}", where=where) from None
    if size != (screenshot.width, screenshot.height):
        was = f"{screenshot.width}x{screenshot.height}"
        raise TraceError(f"the screenshot was {was} pixels when the trace was loaded", where=where)
    return data


def _rendered(screenshot: Screenshot, seed: int) -> bytes:
    width, height = screenshot.width, screenshot.height
    problem = size_problem(width, height)
    if problem:
        raise UnusableImageError(problem)
    # A string seeds Random by its SHA-512, alike in every process.
    rng = Random(f"desktop {width}x{height} {seed}")
    data = BytesIO()
    image = paint_desktop(width, height, load_words(), rng)
    image.save(data, "PNG", compress_level=COMPRESS_LEVEL)
    return data.getvalue()


def _read(path: Path) -> bytes:
    try:
        # Opening a pipe would wait for somebody to write to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnusableImageError("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UnusableImageError("does not exist") from None
    except OSError as error:
        raise UnusableImageError(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UnusableImageError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    return data

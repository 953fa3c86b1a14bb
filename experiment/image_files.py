"""Decides whether bytes are a whole, still PNG or JPEG of a size that a step can use."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from io import BytesIO

from PIL import Image, UnidentifiedImageError

MIN_SIDE = 32
MAX_SIDE = 8192
MAX_PIXELS = 50_000_000
TOO_MANY_PIXELS = f"holds more than {MAX_PIXELS // 1_000_000} megapixels"

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples a pixel by colour type (PNG specification, 11.2.1)."""
ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""Passes of an interlaced PNG: first column, first row, column step, row step (8.2)."""

INFLATE_BYTES = 1 << 20
"""Pixels are inflated this many bytes at a time, so that a small file cannot fill the memory."""

# What Pillow's parsers raise on files that are not what they say, found by feeding it broken ones.
PILLOW_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
)


class UnusableImageError(Exception):
    """Why a step cannot use an image file, in words that follow the file's name."""


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels of a PNG or JPEG file's bytes, after the whole of it was decoded.

    Raises:
        UnusableImageError: the bytes are no such file, not all of one, or of a useless size.
    """
    try:
        # Pillow warns of large images and of damage that it works around; both are judged here.
        with warnings.catch_warnings(action="ignore"), _opened(data) as image:
            problem = size_problem(*image.size)
            if problem:
                raise UnusableImageError(problem)
            if getattr(image, "n_frames", 1) > 1:
                raise UnusableImageError("holds several pictures; a screenshot is one")
            if data.startswith(PNG_SIGNATURE):
                _check_png(data)
            image.load()
            return image.size
    except Image.DecompressionBombError:
        raise UnusableImageError(TOO_MANY_PIXELS) from None
    except PILLOW_ERRORS as error:
        if "truncated" in str(error):
            raise UnusableImageError("is cut short: rows of pixels are missing") from None
        raise UnusableImageError(f"cannot be decoded: {error}") from None


def size_problem(width: int, height: int) -> str | None:
    """What is wrong with a screenshot of this many pixels, if anything."""
    if not (MIN_SIDE <= width <= MAX_SIDE and MIN_SIDE <= height <= MAX_SIDE):
        return f"is {width}x{height} pixels; each side must be {MIN_SIDE} to {MAX_SIDE}"
    return TOO_MANY_PIXELS if width * height > MAX_PIXELS else None


def _opened(data: bytes) -> Image.Image:
    """Reads the header only: what it promises may be too much to decode."""
    try:
        return Image.open(BytesIO(data), formats=("PNG", "JPEG"))
    except UnidentifiedImageError:
        raise UnusableImageError("is not a PNG or JPEG file") from None


def _check_png(data: bytes) -> None:
    """Each chunk whole, ``IEND`` last, a row of pixels for each row of the image.

    Pillow decodes a PNG that is cut after its pixels, and fills up one that lacks rows; the
    server's decoder refuses the latter.
    """
    header = struct.unpack_from(">IIBBBBB", data, len(PNG_SIGNATURE) + 8)
    missing = _png_pixel_bytes(*header)
    pixels = zlib.decompressobj()
    for kind, body in _chunks(data):
        pending = body if kind == b"IDAT" else b""
        while pending and missing > 0 and not pixels.eof:
            missing -= len(pixels.decompress(pending, INFLATE_BYTES))
            pending = pixels.unconsumed_tail
    if missing > 0:
        raise UnusableImageError("is cut short: rows of pixels are missing")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and body of each chunk; an error unless they end with ``IEND`` and the file with it."""
    position = len(PNG_SIGNATURE)
    kind = b""
    while position < len(data):
        if kind == b"IEND":
            raise UnusableImageError("goes on after the end of its picture (IEND)")
        if position + 12 > len(data):
            raise UnusableImageError("is cut short: its last chunk is not whole")
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            raise UnusableImageError("is cut short: its last chunk is not whole")
        (checksum,) = struct.unpack_from(">I", data, end - 4)
        if zlib.crc32(data[position + 4 : end - 4]) != checksum:
            name = kind.decode("ascii", "replace")
            raise UnusableImageError(f"is damaged: the checksum of its {name!r} chunk is wrong")
        yield kind, data[position + 8 : end - 4]
        position = end
    if kind != b"IEND":
        raise UnusableImageError("is cut short: its end (IEND) is missing")


def _png_pixel_bytes(
    width: int, height: int, depth: int, colour: int, _method: int, _filter: int, interlace: int
) -> int:
    """Bytes that the pixel data of a PNG inflate to: a filter byte and the samples, row by row."""
    total = 0
    for left, top, right_step, down_step in ADAM7 if interlace else ((0, 0, 1, 1),):
        columns = (width - left + right_step - 1) // right_step
        rows = (height - top + down_step - 1) // down_step
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * PNG_CHANNELS[colour] * depth + 7) // 8)
    return total

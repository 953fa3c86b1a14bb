"""Decides whether bytes are a whole, still PNG or JPEG of a size that a step can use.

What is accepted is sent as it is: each kind that the server's decoder (stb_image) makes 8 bits a
channel of, which takes in grey, palette, transparent and 16-bit PNG, CMYK and progressive JPEG. It
has to be decoded to the size that is told here, so what that decoder does not know, or shows
otherwise than a viewer does, is refused.
"""

from __future__ import annotations

import re
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

CRITICAL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
"""Whoever meets another one whose name begins with a capital cannot read the picture (5.4)."""
MAX_EXTRA_BYTES = 1 << 16
"""Pixel data beyond the last row: the server would inflate all of it."""

ORIENTATION = 0x0112
"""The EXIF tag that says how a viewer has to turn the picture (EXIF 2.32, 4.6.4)."""

JPEG_SIGNATURE = b"\xff\xd8"
JPEG_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
"""Kinds of JPEG that the server decodes: baseline, extended, progressive, all Huffman-coded."""
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
MAX_SCANS = 100
"""Passes over a progressive JPEG; encoders make about ten, and each may cost a second."""

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
            else:
                _check_jpeg(data)
            image.load()
            _check_upright(image)
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
    missing = 0
    pixels = zlib.decompressobj()
    for number, (kind, body) in enumerate(_chunks(data)):
        if (kind == b"IHDR") != (number == 0):
            raise UnusableImageError("does not begin with a PNG's one header (IHDR)")
        if kind == b"IHDR":
            missing = _png_pixel_bytes(*struct.unpack(">IIBBBBB", body))
        if kind[:1].isupper() and kind not in CRITICAL_CHUNKS:
            name = kind.decode("ascii", "replace")
            raise UnusableImageError(f"needs its chunk {name!r}, which no PNG has, to be decoded")
        pending = body if kind == b"IDAT" else b""
        while pending and not pixels.eof:
            missing -= len(pixels.decompress(pending, INFLATE_BYTES))
            if missing < -MAX_EXTRA_BYTES:
                raise UnusableImageError("holds more pixels than its size has room for")
            pending = pixels.unconsumed_tail
    if missing > 0 or not pixels.eof:
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
    width: int, height: int, depth: int, colour: int, method: int, filtering: int, interlace: int
) -> int:
    """Bytes that the pixel data of a PNG inflate to: a filter byte and the samples, row by row."""
    if method or filtering or interlace > 1:
        raise UnusableImageError("is packed in a way that no PNG is")
    total = 0
    for left, top, right_step, down_step in ADAM7 if interlace else ((0, 0, 1, 1),):
        columns = (width - left + right_step - 1) // right_step
        rows = (height - top + down_step - 1) // down_step
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * PNG_CHANNELS[colour] * depth + 7) // 8)
    return total


def _check_jpeg(data: bytes) -> None:
    """A frame of a kind that the server decodes, and no more scans than a picture needs."""
    scans = 0
    for kind in _markers(data):
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC) and kind not in JPEG_FRAMES:
            raise UnusableImageError("is coded as few JPEGs are: arithmetically, or without loss")
        scans += kind == 0xDA
        if scans > MAX_SCANS:
            raise UnusableImageError(f"is drawn in more than {MAX_SCANS} scans")


def _markers(data: bytes) -> Iterator[int]:
    """The kinds of a JPEG's segments, up to its end or the first thing that is none."""
    position = len(JPEG_SIGNATURE)
    # Between segments of coded pixels stand; 0xff in them is followed by 0 or a restart marker.
    while found := _MARKER.search(data, position):
        kind = data[found.end() - 1]
        yield kind
        if kind == 0xD9 or found.end() + 2 > len(data):
            return
        (length,) = struct.unpack_from(">H", data, found.end())
        position = found.end() + length


def _check_upright(image: Image.Image) -> None:
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except PILLOW_ERRORS:  # damaged: a viewer turns nothing either
        return
    if orientation in range(2, 9):
        raise UnusableImageError(
            f"is turned by its EXIF orientation ({orientation}), which the server does not follow: "
            "save it upright"
        )

"""Image files: every kind a screenshot comes in is taken, every damaged one is refused."""

from __future__ import annotations

import re
import struct
import tracemalloc
import zlib
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiment.image_files import (
    MAX_EXTRA_BYTES,
    MAX_SCANS,
    UnusableImageError,
    image_size,
    size_problem,
)


def encoded(
    mode: str = "RGB", size: tuple[int, int] = (48, 40), kind: str = "PNG", **options: object
) -> bytes:
    data = BytesIO()
    picture = Image.radial_gradient("L").resize(size)
    (picture.convert("I") if mode == "I;16" else picture).convert(mode).save(data, kind, **options)
    return data.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def interlaced(pixel_bytes: int) -> bytes:
    """An interlaced 33 x 35 grey PNG with this many bytes of pixel data."""
    header = struct.pack(">IIBBBBB", 33, 35, 8, 0, 0, 0, 1)
    pixels = zlib.compress(bytes(pixel_bytes))
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_of_every_pixel_kind(mode: str) -> None:
    assert image_size(encoded(mode)) == (48, 40)
    # Odd sizes: rows of 1-bit pixels end within a byte.
    assert image_size(encoded(mode, size=(33, 35))) == (33, 35)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(mode: str, progressive: bool) -> None:
    data = encoded(mode, kind="JPEG", progressive=progressive)
    assert image_size(data) == (48, 40)


def test_interlaced_png_needs_the_rows_of_all_passes() -> None:
    # Sizes of the seven passes of 33 x 35: a filter byte a row, and one byte a pixel.
    passes = [(5, 5), (4, 5), (9, 4), (8, 9), (17, 9), (16, 18), (33, 17)]
    assert sum(columns * rows for columns, rows in passes) == 33 * 35
    whole = sum((1 + columns) * rows for columns, rows in passes)
    assert image_size(interlaced(whole)) == (33, 35)
    with pytest.raises(UnusableImageError, match="rows of pixels are missing"):
        image_size(interlaced(whole - 1))


PNG = encoded()
JPEG = encoded(kind="JPEG")


@pytest.mark.parametrize("left", range(len(PNG) - 1, 0, -7))
def test_png_cut_anywhere_is_refused(left: int) -> None:
    with pytest.raises(UnusableImageError):
        image_size(PNG[:left])


@pytest.mark.parametrize("left", range(len(JPEG) - 1, 0, -7))
def test_jpeg_cut_anywhere_is_refused(left: int) -> None:
    with pytest.raises(UnusableImageError):
        image_size(JPEG[:left])


@settings(max_examples=300, deadline=None)
@given(
    data=st.sampled_from([PNG, JPEG, encoded("P"), encoded("RGBA")]),
    at=st.floats(0, 1),
    cut=st.integers(0, 6),
    put=st.binary(max_size=6),
    mended=st.booleans(),
)
def test_damage_is_harmless_or_refused(
    data: bytes, at: float, cut: int, put: bytes, mended: bool
) -> None:
    place = int(at * len(data))
    damaged = data[:place] + put + data[place + cut :]
    if mended:
        damaged = with_right_checksums(damaged)
    try:
        width, height = image_size(damaged)
    except UnusableImageError:
        return
    assert size_problem(width, height) is None


def with_right_checksums(png: bytes) -> bytes:
    """So that damage gets past the checksums and at the parsers."""
    mended = bytearray(png)
    place = 8
    while png.startswith(b"\x89PNG") and place + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, place)
        end = place + 12 + length
        if end > len(png):
            break
        struct.pack_into(">I", mended, end - 4, zlib.crc32(png[place + 4 : end - 4]))
        place = end
    return bytes(mended)


def png(pixels: bytes, more: bytes = b"") -> bytes:
    """A grey PNG of 40 x 36 with this compressed pixel data."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 36, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


ROWS = bytes(41 * 36)


def test_pixels_beyond_the_last_row_are_not_inflated() -> None:
    assert image_size(png(zlib.compress(ROWS + bytes(MAX_EXTRA_BYTES)))) == (40, 36)
    with pytest.raises(UnusableImageError, match="more pixels than its size has room for"):
        image_size(png(zlib.compress(ROWS + bytes(MAX_EXTRA_BYTES + 1))))
    squeezed = zlib.compressobj(9)
    bomb = squeezed.compress(ROWS)
    bomb += b"".join(squeezed.compress(bytes(1 << 24)) for _ in range(60)) + squeezed.flush()
    assert len(bomb) < 1 << 20  # of a gigabyte
    tracemalloc.start()
    with pytest.raises(UnusableImageError, match="more pixels than its size has room for"):
        image_size(png(bomb))
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_a_viewer_would_turn_is_refused(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(kind=kind, exif=exif)
    if 2 <= orientation <= 8:
        with pytest.raises(UnusableImageError, match=rf"EXIF orientation \({orientation}\)"):
            image_size(data)
    else:
        assert image_size(data) == (48, 40)


def test_damaged_exif_is_no_reason_to_refuse_a_picture() -> None:
    assert image_size(encoded(kind="JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")) == (48, 40)


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC9, 0xCA, 0xCF])
def test_a_jpeg_that_the_server_does_not_decode_is_refused(marker: int) -> None:
    with pytest.raises(UnusableImageError):
        image_size(JPEG.replace(b"\xff\xc0", bytes((0xFF, marker)), 1))


def test_a_jpeg_in_its_usual_number_of_scans() -> None:
    data = encoded(kind="JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    scan = re.search(rb"\xff\xda.*?(?=\xff[\xc4\xda\xd9])", data, re.DOTALL)
    assert scan is not None
    scans = data.count(b"\xff\xda")
    assert image_size(data[:start] + scan[0] * (MAX_SCANS - scans) + data[start:]) == (48, 40)
    with pytest.raises(UnusableImageError, match="more than 100 scans"):
        image_size(data[:start] + scan[0] * (MAX_SCANS + 1 - scans) + data[start:])


@pytest.mark.parametrize(
    ("width", "height", "problem"),
    [
        (32, 32, None),
        (8192, 6103, None),
        (31, 32, "is 31x32 pixels; each side must be 32 to 8192"),
        (32, 8193, "is 32x8193 pixels; each side must be 32 to 8192"),
        (8192, 6104, "holds more than 50 megapixels"),
    ],
)
def test_bounds_of_the_size(width: int, height: int, problem: str | None) -> None:
    assert size_problem(width, height) == problem

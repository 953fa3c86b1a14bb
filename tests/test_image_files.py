"""Image files: every kind a screenshot comes in is taken, every damaged one is refused."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiment.image_files import UnusableImageError, image_size, size_problem


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

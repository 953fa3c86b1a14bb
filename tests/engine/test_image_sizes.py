"""The size that is told of a picture is the size that the server sees, whatever kind of file."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from io import BytesIO
from random import Random

import pytest
from PIL import Image

from experiment.build import Build
from experiment.client import Client
from experiment.image_files import UnusableImageError, image_size
from experiment.prefix import PrefixBuilder
from experiment.screenshot import Screenshot, png_bytes
from experiment.trace import Baseline, Step

SIZE = (197, 161)

DECODER = """
#define STB_IMAGE_IMPLEMENTATION
#include "stb_image.h"
int decode(const unsigned char *data, int length, int *width, int *height) {
    int channels;
    unsigned char *pixels = stbi_load_from_memory(data, length, width, height, &channels, 3);
    stbi_image_free(pixels);
    return pixels != 0;
}
"""

Decode = Callable[[bytes], "tuple[int, int] | None"]


def encoded(mode: str, kind: str, **options: object) -> bytes:
    data = BytesIO()
    picture = Image.radial_gradient("L").resize(SIZE)
    (picture.convert("I") if mode == "I;16" else picture).convert(mode).save(data, kind, **options)
    return data.getvalue()


KINDS = {
    **{f"png {mode}": encoded(mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    "png 16 bit": encoded("I;16", "PNG"),
    "png transparent palette": encoded("P", "PNG", transparency=3),
    **{f"jpeg {mode}": encoded(mode, "JPEG") for mode in ("L", "RGB", "CMYK")},
    **{f"progressive {mode}": encoded(mode, "JPEG", progressive=True) for mode in ("RGB", "CMYK")},
    **{f"subsampled {n}": encoded("RGB", "JPEG", subsampling=n) for n in (0, 1, 2)},
    "restarting": encoded("RGB", "JPEG", restart_marker_blocks=3),
}


@pytest.fixture(scope="module")
def decode(checked: Build, tmp_path_factory: pytest.TempPathFactory) -> Decode:
    """The decoder of the server, by itself."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("stb")
    (folder / "decoder.c").write_text(DECODER)
    subprocess.run(
        [
            *(compiler, "-O1", "-w", "-shared", "-fPIC"),
            *("-I", checked.source / "vendor" / "stb", "-o", folder / "decoder.so"),
            folder / "decoder.c",
        ],
        check=True,
    )
    library = ctypes.CDLL(str(folder / "decoder.so"))

    def size(data: bytes) -> tuple[int, int] | None:
        width, height = ctypes.c_int(), ctypes.c_int()
        whole = library.decode(data, len(data), ctypes.byref(width), ctypes.byref(height))
        return (width.value, height.value) if whole else None

    return size


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_is_taken_is_decoded_to_its_size(kind: str, decode: Decode) -> None:
    assert image_size(KINDS[kind]) == SIZE
    assert decode(KINDS[kind]) == SIZE


def test_damage_never_makes_another_size(decode: Decode) -> None:
    """What the server cannot decode it refuses; what it can has the size that was told."""
    chance = Random(5)
    files = list(KINDS.values())
    taken = 0
    for _ in range(4000):
        damaged = bytearray(chance.choice(files))
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(damaged))
            match chance.randrange(3):
                case 0:
                    damaged[at] = chance.randrange(256)
                case 1:
                    damaged[at:at] = chance.randbytes(chance.randrange(1, 4))
                case _:
                    del damaged[at : at + chance.randrange(1, 4)]
        try:
            told = image_size(bytes(damaged))
        except UnusableImageError:
            continue
        taken += 1
        assert decode(bytes(damaged)) in (told, None)
    assert taken > 500


def test_the_server_sees_as_many_tokens_in_each_kind(
    client: Client, prefixes: PrefixBuilder
) -> None:
    step = Step("t", 0, 300, "tokens", "look", None, Screenshot(None, *SIZE), Baseline(), 1)
    seen = {}
    pictures = {"rendered": png_bytes(Screenshot(None, *SIZE), 1), **KINDS}
    for kind, picture in pictures.items():
        made = prefixes.step_prompt(step, picture)
        reply = client.complete(
            made.prompt, n_predict=1, cache_prompt=False, n_fake_cached=300, fake_fill="zero"
        )
        seen[kind] = reply.timings["prompt_n"]
    assert set(seen.values()) == {seen["rendered"]}
    assert seen["rendered"] > 20

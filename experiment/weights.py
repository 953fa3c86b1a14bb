"""Seeded tensors: what each tensor of a stand-in is, and the bytes that a seed gives it.

Every value is drawn with integers and multiplied by constants, never with ``exp`` or ``log``: the
bytes are then the same on every machine, whatever its vector units and C library.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

__all__ = ["Tensor", "draw", "matrix_type"]

F32 = GGMLQuantizationType.F32
F16 = GGMLQuantizationType.F16
Q4_0 = GGMLQuantizationType.Q4_0
Q4_K = GGMLQuantizationType.Q4_K

# A nibble 0..15 with its middle taken off: -7.5..7.5 in steps of one.
_NIBBLE_STD = math.sqrt((16**2 - 1) / 12)
# Six-bit scales of the eight sub-blocks of a Q4_K block. Drawn from the upper half: realistic
# variety, and their root mean square is known.
_SCALES = range(32, 64)
_SCALE_RMS = math.sqrt(sum(scale * scale for scale in _SCALES) / len(_SCALES))
# Q4_0 stores q - 8, which is lopsided: nibble 0 is replaced by 8 (the value zero), the rest is
# symmetric about it.
_CENTRED = np.array(
    [(low or 8) | (high or 8) << 4 for high in range(16) for low in range(16)], dtype=np.uint8
)
_CENTRED_STD = math.sqrt(2 * sum(q * q for q in range(1, 8)) / 16)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a plan. Its values are uniform in ``[low, high)``.

    ``ne`` is in GGML's order, the row length first. A quantised tensor has to be symmetric about
    zero and keeps the standard deviation of that interval, not its bounds.
    """

    name: str
    ne: tuple[int, ...]
    type: GGMLQuantizationType
    low: float
    high: float

    @property
    def elements(self) -> int:
        """How many values the tensor has."""
        return math.prod(self.ne)

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored data, without padding."""
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.elements // block * block_bytes

    @property
    def stored_as(self) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        """Type and shape of the array that ``draw`` returns: rows last, quantised ones as bytes."""
        if self.type == F32:
            return np.dtype("<f4"), self.ne[::-1]
        if self.type == F16:
            return np.dtype("<f2"), self.ne[::-1]
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return np.dtype("u1"), (*self.ne[:0:-1], self.ne[0] // block * block_bytes)

    @property
    def std(self) -> float:
        """Standard deviation of the values."""
        return (self.high - self.low) / math.sqrt(12)


def matrix_type(row: int) -> GGMLQuantizationType:
    """Q4_K where rows are whole super-blocks of 256, else Q4_0, which has the same density."""
    return Q4_K if row % GGML_QUANT_SIZES[Q4_K][0] == 0 else Q4_0


def draw(tensor: Tensor, key: str) -> npt.NDArray[np.generic]:
    """The tensor's data as ``stored_as`` says; the same for one ``key`` on every machine."""
    digest = hashlib.sha256(f"{key}/{tensor.name}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    dtype, shape = tensor.stored_as
    if tensor.type in (F32, F16):
        unit = rng.random(shape, dtype=np.float32)
        values = np.float32(tensor.low) + unit * np.float32(tensor.high - tensor.low)
        return values.astype(dtype, copy=False)
    block, block_bytes = GGML_QUANT_SIZES[tensor.type]
    if tensor.low != -tensor.high or tensor.ne[0] % block:
        raise ValueError(f"{tensor.name}: {tensor.type.name} cannot hold it")
    blocks = np.empty((tensor.elements // block, block_bytes), dtype=np.uint8)
    (_fill_q4_k if tensor.type == Q4_K else _fill_q4_0)(blocks, tensor.std, rng)
    return blocks.reshape(shape)


def _fill_q4_k(blocks: npt.NDArray[np.uint8], std: float, rng: np.random.Generator) -> None:
    """block_q4_K: half d, half dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.

    A weight is ``d * scale * q - dmin * min``. With ``min = scale`` and ``dmin = 7.5 * d`` the
    mean over the nibbles is exactly zero.
    """
    unit = _short_mantissa(std / (_NIBBLE_STD * _SCALE_RMS))
    blocks[:, :4] = np.array([unit, 7.5 * unit], dtype="<f2").view(np.uint8)
    count = len(blocks)
    scales = rng.integers(_SCALES.start, _SCALES.stop, size=(count, 8), dtype=np.uint8)
    first, second = scales[:, :4], scales[:, 4:]
    blocks[:, 4:8] = first | (second >> 4) << 6
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (second & 15) | (second & 15) << 4
    blocks[:, 16:] = _random_bytes(count * 128, rng).reshape(count, 128)


def _fill_q4_0(blocks: npt.NDArray[np.uint8], std: float, rng: np.random.Generator) -> None:
    """block_q4_0: half d, 16 bytes of nibbles. A weight is ``d * (q - 8)``."""
    blocks[:, :2] = np.array([std / _CENTRED_STD], dtype="<f2").view(np.uint8)
    count = len(blocks)
    blocks[:, 2:] = _CENTRED[_random_bytes(count * 16, rng)].reshape(count, 16)


def _short_mantissa(value: float) -> float:
    """``value`` to seven significant bits: 7.5 times it is then exact in half precision too."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 128), exponent - 7)


def _random_bytes(count: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """``count`` (a multiple of 8) random bytes; ten times faster than ``rng.bytes``."""
    words = rng.integers(0, 2**64, size=count // 8, dtype=np.uint64)
    return words.astype("<u8", copy=False).view(np.uint8)

"""Reads the head of a GGUF file and writes whole ones: streamed, and never half a file in place."""

from __future__ import annotations

import contextlib
import math
import mmap
import shutil
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

from experiment.errors import ModelError
from experiment.weights import Tensor, draw

if TYPE_CHECKING:
    from experiment.progress import Progress

__all__ = ["Head", "KeyValue", "read_head", "require_disk", "size_text", "write"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_HEAD_BYTES = 64 << 20
"""Of what stands before the weights; the vocabulary of Qwen3.5 takes 6 MB."""
_ENTRY_BYTES = 13
"""At least, of one metadata entry: the length of its key, the kind of its value, a value."""
_TENSOR_BYTES = 24
"""At least, of one tensor in the list: name's length, number of dimensions, kind, offset."""
_MAX_DIMENSIONS = 4
"""Of a tensor (``GGML_MAX_DIMS``)."""
_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[GGUFValueType.UINT32], _SCALARS[GGUFValueType.UINT64]


@dataclass(frozen=True)
class KeyValue:
    """One metadata entry as it stands in a file. ``item_type`` is set for arrays only."""

    value: Any
    type: GGUFValueType
    item_type: GGUFValueType | None = None


@dataclass(frozen=True)
class Head:
    """What stands before the weights: metadata in file order, and how long the file has to be."""

    entries: dict[str, KeyValue] = field(repr=False)
    architecture: str
    end_bytes: int


def read_head(path: Path) -> Head:
    """Metadata of a GGUF file whose tensors all lie inside the file.

    ``gguf.GGUFReader`` makes an array of every token: 8 s for the 151,936 tokens of Qwen3.5 where
    this takes 0.3 s.

    Raises:
        ModelError: not readable, not a GGUF file, cut short, or without an architecture.
    """
    try:
        # Opening a pipe would wait for somebody to write to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError("not a file", where=str(path))
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ModelError("not a GGUF file: it does not begin with GGUF", where=str(path))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                head = _Cursor(data, len(_MAGIC)).head()
    except OSError as error:
        raise ModelError(f"cannot read the file: {error.strerror}", where=str(path)) from error
    except (struct.error, EOFError):
        raise ModelError("the GGUF file is cut short in its metadata", where=str(path)) from None
    except ValueError as error:
        raise ModelError(f"damaged or unknown GGUF file: {error}", where=str(path)) from error
    if not head.architecture:
        raise ModelError("the GGUF file has no general.architecture", where=str(path))
    size_bytes = path.stat().st_size
    if size_bytes < head.end_bytes:
        raise ModelError(
            f"the GGUF file is cut short: {size_bytes} of {head.end_bytes} bytes",
            where=str(path),
            hint="copy or download it again",
        )
    return head


def require_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse early what could not be written to the end.

    Raises:
        ModelError: the file system of ``folder`` has less free space than ``needed_bytes``.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ModelError(
            f"{what} needs {size_text(needed_bytes)} of disk space,"
            f" {size_text(free_bytes)} are free",
            where=str(folder),
            hint="make room, set cache_dir to a larger disk, or take a smaller shape",
        )


def write(
    path: Path,
    architecture: str,
    add_metadata: Callable[[GGUFWriter], None],
    tensors: Sequence[Tensor],
    key: str,
    progress: Progress,
) -> None:
    """Write ``tensors``, drawn with ``key`` one at a time, under a temporary name; then rename.

    The caller keeps other writers of the same path away. Progress counts bytes of tensors.

    Raises:
        ModelError: the file system refused. Nothing is left behind then, nor after an interrupt.
    """
    partial = path.with_name(f"{path.name}.partial")
    progress.start(f"writing {path.name}", sum(tensor.size_bytes for tensor in tensors))
    done_bytes = 0
    try:
        with contextlib.closing(GGUFWriter(partial, architecture)) as writer:
            add_metadata(writer)
            for tensor in tensors:
                dtype, shape = tensor.stored_as
                writer.add_tensor_info(tensor.name, shape, dtype, tensor.size_bytes, tensor.type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in tensors:
                writer.write_tensor_data(draw(tensor, key))
                done_bytes += tensor.size_bytes
                progress.advance(done_bytes, tensor.name)
        partial.replace(path)
    except OSError as error:
        # numpy's "12 requested and 0 written" (a full disk) carries no strerror.
        reason = error.strerror or error
        raise ModelError(f"cannot write the file: {reason}", where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
    progress.finish(f"{path.name}: {size_text(path.stat().st_size)}")


def size_text(size_bytes: int) -> str:
    """``19.4 GB``, ``58.2 MB``: powers of ten, as disks are sold."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


class _Cursor:
    """Walks a GGUF file; ``struct.error`` or ``EOFError`` say that it ends too early."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def head(self) -> Head:
        version = self.number(_U32)
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, known are {_VERSIONS[0]} and {_VERSIONS[1]}")
        tensor_count, entry_count = self.count(_TENSOR_BYTES), self.count(_ENTRY_BYTES)
        entries: dict[str, KeyValue] = {}
        for _ in range(entry_count):
            key = self.string()
            entries[key] = self.entry()
        tensor_ends = [self.tensor_end() for _ in range(tensor_count)]
        end_bytes = self.at
        if tensor_ends:  # a file that holds a vocabulary alone has no weights to pad for
            alignment = self.alignment(entries)
            end_bytes = -(-self.at // alignment) * alignment + max(tensor_ends)
        architecture = entries.get("general.architecture")
        name = architecture.value if architecture else ""
        return Head(entries, name if isinstance(name, str) else "", end_bytes)

    def number(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self.data, self.at)
        self.skip(kind.size)
        return value

    def count(self, item_bytes: int) -> int:
        """A number of items of at least so many bytes, for all of which there is room."""
        number = int(self.number(_U64))
        self.require(number * item_bytes)
        return number

    def skip(self, size_bytes: int) -> None:
        self.require(size_bytes)
        self.at += size_bytes

    def require(self, size_bytes: int) -> None:
        """Without limits, a few bytes that promise much would fill the memory."""
        if self.at + size_bytes > len(self.data):
            raise EOFError
        if self.at + size_bytes > _MAX_HEAD_BYTES:
            raise ValueError(f"its metadata take more than {_MAX_HEAD_BYTES >> 20} MiB")

    def string(self) -> str:
        length = self.number(_U64)
        start = self.at
        self.skip(length)
        return self.data[start : self.at].decode()

    def entry(self) -> KeyValue:
        kind = GGUFValueType(self.number(_U32))
        if kind is not GGUFValueType.ARRAY:
            return KeyValue(self.value(kind), kind)
        item = GGUFValueType(self.number(_U32))
        scalar = _SCALARS.get(item)
        count = self.count(scalar.size if scalar else _U64.size)
        return KeyValue([self.value(item) for _ in range(count)], kind, item)

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        return self.number(_SCALARS[kind])

    def tensor_end(self) -> int:
        """Bytes from the start of the weights to the end of the next tensor in the list."""
        self.string()
        dimensions = self.number(_U32)
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions:,} dimensions")
        elements = math.prod(int(self.number(_U64)) for _ in range(dimensions))
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self.number(_U32))]
        return int(self.number(_U64)) + elements // block * block_bytes

    @staticmethod
    def alignment(entries: dict[str, KeyValue]) -> int:
        entry = entries.get("general.alignment")
        value = entry.value if entry else _DEFAULT_ALIGNMENT
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"general.alignment is {value!r}")
        return value

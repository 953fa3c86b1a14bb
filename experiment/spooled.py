"""Rows of a query that are too many for memory: in a file without a name, made when asked for."""

from __future__ import annotations

import marshal
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

Row = TypeVar("Row")

_READ_BYTES = 1 << 18


class Spooled(Sequence[Row], Generic[Row]):
    """Rows of plain values in a temporary file; of each only its place is in memory, 8 bytes.

    The file is gone with this object, however the process ends.

    Args:
        make: makes a row of its values.
        rows: the values of each row.
    """

    def __init__(self, make: Callable[..., Row], rows: Iterable[Sequence[Any]]) -> None:
        self._make = make
        self._ends = array("Q", [0])
        self._handle, name = tempfile.mkstemp(prefix="rows-")
        weakref.finalize(self, os.close, self._handle)
        Path(name).unlink()
        with open(self._handle, "wb", closefd=False) as file:
            for row in rows:
                size = file.write(marshal.dumps(tuple(row)))
                self._ends.append(self._ends[-1] + size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return tuple(self[one] for one in places)
        begin, end = self._ends[places], self._ends[places + 1]
        return self._row(os.pread(self._handle, end - begin, begin))

    def __iter__(self) -> Iterator[Row]:
        data, start = b"", 0
        for begin, end in pairwise(self._ends):
            if end > start + len(data):
                data, start = os.pread(self._handle, max(_READ_BYTES, end - begin), begin), begin
            yield self._row(data[begin - start : end - start])

    def _row(self, data: bytes) -> Row:
        return self._make(*marshal.loads(data))

"""A file of rows: read once from its start, and then row by row as each is asked for."""

from __future__ import annotations

import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, overload

from experiment.errors import TraceError

MAX_LINE_BYTES = 8 << 20
"""Of a line; of a longer one so much and a byte is read, and nothing behind it."""

SPLIT = "split it by tasks, and run the parts"

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number from 1, where it begins, and its bytes."""

    number: int
    offset: int
    data: bytes


class LineFile:
    """A file of lines that is read more than once; it must stay what it was the first time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._absolute = path.absolute()
        self._first_seen: tuple[int, ...] | None = None

    def lines(self, max_bytes: int) -> Iterator[Line]:
        """All lines; one that is too long comes cut, and is the last.

        Raises:
            TraceError: it is no file, is larger than ``max_bytes``, or cannot be read.
        """
        where = str(self.path)
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise TraceError("is not a file", where=where)
            if found.st_size > max_bytes:
                raise TraceError(f"is larger than {max_bytes >> 30} GiB", where=where, hint=SPLIT)
            with self._open() as file:
                number = offset = 0
                while data := file.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    yield Line(number, offset, data)
                    if len(data) > MAX_LINE_BYTES:
                        return
                    offset += len(data)
        except FileNotFoundError:
            raise TraceError("the trace does not exist", where=where) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TraceError(f"the trace cannot be read: {reason}", where=where) from None

    def lines_at(self, offsets: Iterable[int]) -> Iterator[bytes]:
        """The lines that begin there.

        Raises:
            TraceError: the file is not what it was, or cannot be read.
        """
        try:
            with self._open() as file:
                for offset in offsets:
                    file.seek(offset)
                    yield file.readline()
        except OSError as error:
            raise TraceError(
                f"the trace cannot be read again: {error.strerror}", where=str(self.path)
            ) from None

    def _open(self) -> BinaryIO:
        # By the absolute path: the current folder may be another one by now.
        file = self._absolute.open("rb")
        try:
            found = self._absolute.stat()
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._first_seen is None:
                self._first_seen = seen
            if seen != self._first_seen:
                raise TraceError(
                    "the trace was changed while it was worked with",
                    where=str(self.path),
                    hint="let nothing write the file, and start again",
                )
        except BaseException:
            file.close()
            raise
        return file


class FileRows(Sequence[Row], Generic[Row]):
    """Rows that are made of lines of a file whenever they are asked for, and not kept.

    A row takes 12 bytes of memory: where its line begins, and the line's number.

    Args:
        file: the file, which has been read once.
        make: makes the row of a line that has been found good, by its number and bytes.
    """

    def __init__(self, file: LineFile, make: Callable[[int, bytes], Row]) -> None:
        self._file = file
        self._make = make
        self._offsets = array("Q")
        self._numbers = array("I")

    def add(self, line: Line) -> None:
        """Take in a line behind the others."""
        self._offsets.append(line.offset)
        self._numbers.append(line.number)

    def where(self, wanted: Callable[[Row], bool]) -> FileRows[Row]:
        """The rows alone that are wanted."""
        return self._chosen(place for place, row in enumerate(self) if wanted(row))

    def _chosen(self, places: Iterable[int]) -> FileRows[Row]:
        chosen = FileRows(self._file, self._make)
        for place in places:
            chosen._offsets.append(self._offsets[place])
            chosen._numbers.append(self._numbers[place])
        return chosen

    def __eq__(self, other: object) -> bool:
        """Whether the rows are the same, wherever they come from."""
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> FileRows[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | FileRows[Row]:
        if isinstance(place, slice):
            return self._chosen(range(len(self))[place])
        (data,) = self._file.lines_at((self._offsets[place],))
        return self._make(self._numbers[place], data)

    def __iter__(self) -> Iterator[Row]:
        for number, data in zip(self._numbers, self._file.lines_at(self._offsets), strict=True):
            yield self._make(number, data)

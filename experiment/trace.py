"""Agent traces: reads a JSON Lines file into steps and refuses every bad row with its reason."""

from __future__ import annotations

import hashlib
import json
import posixpath
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from jsonschema import Draft202012Validator

from experiment.errors import TraceError
from experiment.image_files import UnusableImageError, size_problem
from experiment.paths import ROOT
from experiment.schema_check import schema_problems
from experiment.screenshot import Screenshot, open_screenshot
from experiment.strict_json import parse_line, shown
from experiment.trace_header import TraceHeader, header_problems, is_header, parse_header

SCHEMA_FILE = ROOT / "schemas" / "trace.schema.json"
HINT = "schemas/trace.schema.json says what each field holds"

SPLIT = "split it by tasks, and run the parts"

LATE_HEADER = "trace: is the header row's field; a header can only be the first line"

MAX_LINE_BYTES = 8 << 20
MAX_INTEGER = 2**31 - 1
MAX_NEW_TOKENS = 1 << 20
MAX_TASK_ID = 200
MAX_SECONDS = 1_000_000
"""Limits of a row. All but the first stand in the schema."""

MAX_BYTES = 2 << 30
MAX_STEPS = 4_000_000
"""Limits of a trace. All of it is in memory while it is worked with, a row in about 400 bytes."""

MAX_PROBLEMS = 20
"""Problems told at once; reading stops there."""

REASONS = {
    ("task_id", "not"): "holds a control character",
    ("new", "anyOf"): "holds none of 'text', 'tokens' and 'screenshot'",
    ("new", "not"): "holds both 'text' and 'tokens'",
    ("new.text", "not"): "holds a NUL character",
    ("new.screenshot", "not"): "holds a NUL character",
}

DepthUnit = Literal["tokens", "positions"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Seconds a step took in the run the trace was recorded from; None where not known."""

    prefill_s: float | None = None
    decode_s: float | None = None
    exec_s: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One row: ``depth`` cells are in the cache, then text and screenshot are appended.

    At most one of ``new_text`` and ``new_tokens`` (how many tokens of generated text) is given.
    ``line`` is the row's number in the file, from 1.
    """

    task_id: str
    step: int
    depth: int
    depth_unit: DepthUnit
    new_text: str | None
    new_tokens: int | None
    screenshot: Screenshot | None
    baseline: Baseline
    line: int


@dataclass(frozen=True)
class Trace:
    """The steps of a file in its order; ``sha256`` is of the file's bytes.

    ``header`` is what an importer wrote about them on the first line, None where there is none.
    """

    path: Path
    steps: tuple[Step, ...]
    sha256: str
    header: TraceHeader | None = None

    @property
    def max_depth(self) -> int:
        """The largest depth of a step."""
        return max(step.depth for step in self.steps)


def load_trace(path: Path) -> Trace:
    """Reads and checks a whole trace: its rows, and the image files that they name.

    Raises:
        TraceError: the file cannot be read, or has bad rows. Up to ``MAX_PROBLEMS`` of them are
            told, each as ``FILE:LINE: FIELD: REASON``.
    """
    reader = _Reader(path)
    digest = hashlib.sha256()
    for number, line in _lines(path):
        digest.update(line)
        reader.read(number, line)
        if len(reader.problems) >= MAX_PROBLEMS:
            break
        if len(reader.steps) > MAX_STEPS:
            raise TraceError(f"holds more than {MAX_STEPS:,} steps", where=str(path), hint=SPLIT)
    if not reader.problems and not reader.steps:
        raise TraceError("holds no steps", where=str(path), hint=HINT)
    if reader.problems:
        raise _error(path, reader.problems)
    return Trace(path, tuple(reader.steps), digest.hexdigest(), reader.header)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file's lines with their numbers; one that is too long comes cut, and is the last."""
    where = str(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise TraceError("is not a file", where=where)
        if found.st_size > MAX_BYTES:
            raise TraceError(f"is larger than {MAX_BYTES >> 30} GiB", where=where, hint=SPLIT)
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield number, line
                if len(line) > MAX_LINE_BYTES:
                    return
    except FileNotFoundError:
        raise TraceError("the trace does not exist", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"the trace cannot be read: {reason}", where=where) from None


def _error(path: Path, problems: list[tuple[int, str]]) -> TraceError:
    if len(problems) == 1:
        ((line, reason),) = problems
        return TraceError(reason, where=f"{path}:{line}", hint=HINT)
    first = "the first " if len(problems) >= MAX_PROBLEMS else ""
    rows = "".join(f"\n  {path}:{line}: {reason}" for line, reason in problems)
    return TraceError(f"{first}{len(problems)} problems:{rows}", where=str(path), hint=HINT)


class _Reader:
    """Collects steps and problems row by row, with what the rules across rows need."""

    def __init__(self, path: Path) -> None:
        self.steps: list[Step] = []
        self.header: TraceHeader | None = None
        self.problems: list[tuple[int, str]] = []
        self._folder = path.parent
        self._last_of_task: dict[str, Step] = {}
        self._line_of: dict[tuple[str, int], int] = {}
        self._files: dict[str, Screenshot | str] = {}
        self._opened: dict[Path, Screenshot] = {}

    def read(self, line: int, data: bytes) -> None:
        """Takes one line of the file. Blank ones are passed over; a bad one adds its problems."""
        if data.isspace():
            return
        row: object = None
        try:
            if len(data) > MAX_LINE_BYTES:
                raise ValueError(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
            row = parse_line(data)
            found = self._shape_problems(line, row)
        except ValueError as error:
            found = [f"the row {error}"]
        except RecursionError:
            found = ["the row is nested too deeply"]
        if not found:
            found = self._take(line, cast("dict[str, Any]", row))
        room = MAX_PROBLEMS - len(self.problems)
        self.problems.extend((line, problem) for problem in found[:room])

    def _shape_problems(self, line: int, row: object) -> list[str]:
        if is_header(row):
            return header_problems(row) if line == 1 else [LATE_HEADER]
        return [] if _is_plain(row) else schema_problems(_validator(), row, REASONS)

    def _take(self, line: int, row: Mapping[str, Any]) -> list[str]:
        """Adds the step of a row that fits the schema; gives the problems a schema cannot see."""
        if is_header(row):
            self.header = parse_header(row)
            return []
        problems = [
            f"{field}: holds a lone surrogate (half of a UTF-16 pair)"
            for field, text in (("task_id", row["task_id"]), ("new.text", row["new"].get("text")))
            if text is not None and not _encodable(text)
        ]
        screenshot = self._screenshot(row["new"].get("screenshot"))
        if isinstance(screenshot, str):
            problems.append(f"new.screenshot: {screenshot}")
            screenshot = None
        step = _step(line, row, screenshot)
        order = self._order_problem(step)
        if order:
            problems.append(f"step: {order}")
        if not problems:
            self.steps.append(step)
        return problems

    def _order_problem(self, step: Step) -> str | None:
        key = (step.task_id, step.step)
        name = f"step {step.step} of task {shown(step.task_id)}"
        if key in self._line_of:
            return f"{name} stands on line {self._line_of[key]} already"
        self._line_of[key] = step.line
        last = self._last_of_task.get(step.task_id)
        if last and step.step < last.step:
            return f"{name} comes after step {last.step} (line {last.line})"
        self._last_of_task[step.task_id] = step
        return None

    def _screenshot(self, wanted: str | Mapping[str, Any] | None) -> Screenshot | str | None:
        """The screenshot of a row, or what is wrong with it. A file is read once a trace."""
        if wanted is None:
            return None
        if isinstance(wanted, str):
            if wanted not in self._files:
                self._files[wanted] = self._from_file(wanted)
            return self._files[wanted]
        width, height = int(wanted["width"]), int(wanted["height"])
        return size_problem(width, height) or Screenshot(None, width, height)

    def _from_file(self, name: str) -> Screenshot | str:
        if not _encodable(name):
            return "holds a lone surrogate (half of a UTF-16 pair)"
        if PurePosixPath(name).is_absolute():
            return f"{shown(name)} is absolute; the path is relative to the trace"
        if PurePosixPath(posixpath.normpath(name)).parts[:1] == ("..",):
            # Even if it comes back: a run copies the file to the same name below its own folder.
            return f"{shown(name)} leaves the folder of the trace"
        try:
            folder = self._folder.resolve()
            path = (folder / name).resolve()
            if not path.is_relative_to(folder):
                return f"{shown(name)} leaves the folder of the trace"
            if path not in self._opened:  # by its own name: many links may lead to one file
                self._opened[path] = open_screenshot(path)
            return self._opened[path]
        except UnusableImageError as error:
            return f"{shown(name)} {error}"
        except RuntimeError:  # what Python before 3.13 says of links that go round in a circle
            return f"{shown(name)} cannot be read: its links go round in a circle"
        except OSError as error:
            return f"{shown(name)} cannot be read: {error.strerror}"


def _is_plain(row: object) -> bool:
    """Whether a row has only counts, as those of large imports, and each plainly fits the schema.

    The schema would say so too, in 110 µs a row instead of 2 (measured): minutes in 10^6 rows.
    """
    if not isinstance(row, dict) or not row.keys() <= {
        "task_id",
        "step",
        "depth",
        "new",
        "baseline",
    }:
        return False
    task, new, baseline = row.get("task_id"), row.get("new"), row.get("baseline", {})
    return (
        isinstance(task, str)
        and 0 < len(task) <= MAX_TASK_ID
        and task.isprintable()
        and _is_count(row.get("step"), 0, MAX_INTEGER)
        and _is_count(row.get("depth"), 0, MAX_INTEGER)
        and isinstance(new, dict)
        and new.keys() == {"tokens"}
        and _is_count(new["tokens"], 1, MAX_NEW_TOKENS)
        and isinstance(baseline, dict)
        and baseline.keys() <= {"prefill_s", "decode_s", "exec_s"}
        and all(
            type(took) in (int, float) and 0 <= took <= MAX_SECONDS for took in baseline.values()
        )
    )


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _step(line: int, row: Mapping[str, Any], screenshot: Screenshot | None) -> Step:
    """JSON knows no integers: ``3.0`` is one by the schema, and becomes ``3`` here."""
    new = row["new"]
    return Step(
        task_id=row["task_id"],
        step=int(row["step"]),
        depth=int(row["depth"]),
        depth_unit=row.get("depth_unit", "tokens"),
        new_text=new.get("text"),
        new_tokens=int(new["tokens"]) if "tokens" in new else None,
        screenshot=screenshot,
        baseline=Baseline(**{name: float(took) for name, took in row.get("baseline", {}).items()}),
        line=line,
    )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))

"""Agent traces: reads a JSON Lines file into steps and refuses every bad row with its reason."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from jsonschema import Draft202012Validator

from experiment.errors import TraceError
from experiment.image_files import UnusableImageError, size_problem
from experiment.paths import ROOT
from experiment.schema_check import schema_problems
from experiment.screenshot import Screenshot, open_screenshot
from experiment.strict_json import parse_line, shown
from experiment.trace_file import MAX_LINE_BYTES, SPLIT, FileRows, Line, LineFile
from experiment.trace_header import TraceHeader, header_problems, is_header, parse_header

SCHEMA_FILE = ROOT / "schemas" / "trace.schema.json"
HINT = "schemas/trace.schema.json says what each field holds"

LATE_HEADER = "trace: is the header row's field; a header can only be the first line"

MAX_INTEGER = 2**31 - 1
MAX_NEW_TOKENS = 1 << 20
MAX_TASK_ID = 200
MAX_SECONDS = 1_000_000
MIN_SIDE, MAX_SIDE = 32, 8192
"""Limits of a row; they stand in the schema."""

_ANY_SIZE = {"width": MIN_SIDE, "height": MIN_SIDE}

MAX_BYTES = 2 << 30
MAX_STEPS = 4_000_000
"""Limits of a trace. Of a row only its place is in memory, of a task its last step."""

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
    """The steps of a file in its order, made anew by each look; ``sha256`` is of its bytes.

    ``header`` is what an importer wrote about them on the first line, None where there is none.
    """

    path: Path
    steps: Sequence[Step]
    sha256: str
    header: TraceHeader | None = None

    @property
    def max_depth(self) -> int:
        """The largest depth of a step."""
        return max(step.depth for step in self.steps)


def load_trace(path: Path) -> Trace:
    """Reads and checks a whole trace: its rows, and the image files that they name.

    The file has to stay as it is for as long as the trace is used: its steps are made of its lines
    whenever they are asked for.

    Raises:
        TraceError: the file cannot be read, or has bad rows. Up to ``MAX_PROBLEMS`` of them are
            told, each as ``FILE:LINE: FIELD: REASON``.
    """
    reader = _Reader(path)
    digest = hashlib.sha256()
    for line in reader.file.lines(MAX_BYTES):
        digest.update(line.data)
        reader.read(line)
        if len(reader.problems) >= MAX_PROBLEMS:
            break
        if len(reader.steps) > MAX_STEPS:
            raise TraceError(f"holds more than {MAX_STEPS:,} steps", where=str(path), hint=SPLIT)
    if not reader.problems and not reader.steps:
        raise TraceError("holds no steps", where=str(path), hint=HINT)
    if reader.problems:
        raise _error(path, reader.told())
    return Trace(path, reader.steps, digest.hexdigest(), reader.header)


def _error(path: Path, problems: list[tuple[int, str]]) -> TraceError:
    if len(problems) == 1:
        ((line, reason),) = problems
        return TraceError(reason, where=f"{path}:{line}", hint=HINT)
    first = "the first " if len(problems) >= MAX_PROBLEMS else ""
    rows = "".join(f"\n  {path}:{line}: {reason}" for line, reason in problems)
    return TraceError(f"{first}{len(problems)} problems:{rows}", where=str(path), hint=HINT)


@dataclass(frozen=True, slots=True)
class _Disorder:
    """A step that is not behind the last one of its task: an earlier one, or one once more."""

    task_id: str
    step: int
    last_step: int
    last_line: int

    def told(self, earlier_line: int | None) -> str:
        """What is wrong, given the line that has the same step already."""
        name = f"step: step {self.step} of task {shown(self.task_id)}"
        if earlier_line is not None:
            return f"{name} stands on line {earlier_line} already"
        return f"{name} comes after step {self.last_step} (line {self.last_line})"


class _Reader:
    """Collects steps and problems row by row, with what the rules across rows need.

    That is the last step of each task: what is not behind it is out of order, and which of the two
    ways it is shows when the file is read once more, which only a bad one is.
    """

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self.header: TraceHeader | None = None
        self.problems: list[tuple[int, str | _Disorder]] = []
        self._pictures = _Pictures(path.parent)
        self.steps = FileRows(self.file, partial(_made_again, self._pictures))
        self._last_of_task: dict[str, tuple[int, int]] = {}

    def read(self, line: Line) -> None:
        """Takes one line of the file. Blank ones are passed over; a bad one adds its problems."""
        if line.data.isspace():
            return
        row: object = None
        found: Sequence[str | _Disorder]
        try:
            if len(line.data) > MAX_LINE_BYTES:
                raise ValueError(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
            row = parse_line(line.data)
            found = _shape_problems(line.number, row)
        except ValueError as error:
            found = [f"the row {error}"]
        except RecursionError:
            found = ["the row is nested too deeply"]
        if not found:
            found = self._take(line, cast("dict[str, Any]", row))
        room = MAX_PROBLEMS - len(self.problems)
        self.problems.extend((line.number, problem) for problem in found[:room])

    def told(self) -> list[tuple[int, str]]:
        """The problems in words, by the number of the line."""
        first = self._first_lines()
        return [
            (line, problem if isinstance(problem, str) else problem.told(first.get(line)))
            for line, problem in self.problems
        ]

    def _take(self, line: Line, row: Mapping[str, Any]) -> list[str | _Disorder]:
        """Adds the step of a row that fits the schema; gives the problems a schema cannot see."""
        if is_header(row):
            self.header = parse_header(row)
            return []
        problems: list[str | _Disorder] = [
            f"{field}: holds a lone surrogate (half of a UTF-16 pair)"
            for field, text in (("task_id", row["task_id"]), ("new.text", row["new"].get("text")))
            if text is not None and not _encodable(text)
        ]
        screenshot = self._pictures.of(row["new"].get("screenshot"))
        if isinstance(screenshot, str):
            problems.append(f"new.screenshot: {screenshot}")
        if disorder := self._disorder(line.number, row["task_id"], int(row["step"])):
            problems.append(disorder)
        if not problems:
            self.steps.add(line)
        return problems

    def _disorder(self, line: int, task_id: str, step: int) -> _Disorder | None:
        last = self._last_of_task.get(task_id)
        if last and step <= last[0]:
            return _Disorder(task_id, step, *last)
        self._last_of_task[task_id] = (step, line)
        return None

    def _first_lines(self) -> dict[int, int]:
        """For each line with a step that an earlier line has, the first line that does."""
        late = {
            line: (problem.task_id, problem.step)
            for line, problem in self.problems
            if isinstance(problem, _Disorder)
        }
        wanted, last = set(late.values()), max(late, default=0)
        first: dict[tuple[str, int], int] = {}
        for line in self.file.lines(MAX_BYTES) if wanted else ():
            if (key := _key_of(line)) in wanted and key is not None:
                first.setdefault(key, line.number)
            if line.number >= last:
                break
        return {line: first[key] for line, key in late.items() if first.get(key, line) < line}


def _shape_problems(line: int, row: object) -> list[str]:
    if is_header(row):
        return header_problems(row) if line == 1 else [LATE_HEADER]
    return [] if _is_plain(row) else schema_problems(_validator(), row, REASONS)


def _key_of(line: Line) -> tuple[str, int] | None:
    """Task and step of a row that fits the schema."""
    try:
        row = None if line.data.isspace() else parse_line(line.data)
        if not isinstance(row, dict) or is_header(row) or _shape_problems(line.number, row):
            return None
    except (ValueError, RecursionError):
        return None
    return row["task_id"], int(row["step"])


class _Pictures:
    """The screenshots of a trace in ``folder``. A file is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._files: dict[str, Screenshot | str] = {}
        self._opened: dict[Path, Screenshot] = {}

    def of(self, wanted: str | Mapping[str, Any] | None) -> Screenshot | str | None:
        """The screenshot of a row, or what is wrong with it."""
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
    """Whether a row plainly fits the schema, as those of most traces do.

    The schema would say so too, in 110 to 190 µs a row instead of 2 to 3 (measured): minutes in
    10^6 rows.
    """
    if not isinstance(row, dict) or not row.keys() <= {
        "task_id",
        "step",
        "depth",
        "depth_unit",
        "new",
        "baseline",
    }:
        return False
    task, baseline = row.get("task_id"), row.get("baseline", {})
    return (
        isinstance(task, str)
        and 0 < len(task) <= MAX_TASK_ID
        and task.isprintable()
        and _is_count(row.get("step"), 0, MAX_INTEGER)
        and _is_count(row.get("depth"), 0, MAX_INTEGER)
        and row.get("depth_unit", "tokens") in ("tokens", "positions")
        and _is_plain_content(row.get("new"))
        and isinstance(baseline, dict)
        and baseline.keys() <= {"prefill_s", "decode_s", "exec_s"}
        and all(
            type(took) in (int, float) and 0 <= took <= MAX_SECONDS for took in baseline.values()
        )
    )


def _is_plain_content(new: object) -> bool:
    """A text or a number of tokens, a screenshot to render, or one of each."""
    if not isinstance(new, dict) or not new or not new.keys() <= {"text", "tokens", "screenshot"}:
        return False
    text, shot = new.get("text", "-"), new.get("screenshot", _ANY_SIZE)
    return (
        not ("text" in new and "tokens" in new)
        and isinstance(text, str)
        and len(text) > 0
        and "\0" not in text
        and _is_count(new.get("tokens", 1), 1, MAX_NEW_TOKENS)
        and isinstance(shot, dict)
        and shot.keys() == _ANY_SIZE.keys()
        and all(_is_count(side, MIN_SIDE, MAX_SIDE) for side in shot.values())
    )


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _made_again(pictures: _Pictures, line: int, data: bytes) -> Step:
    """The step of a line that was found good when the trace was loaded.

    JSON knows no integers: ``3.0`` is one by the schema, and becomes ``3`` here.
    """
    row = json.loads(data)
    new, screenshot = row["new"], pictures.of(row["new"].get("screenshot"))
    return Step(
        task_id=row["task_id"],
        step=int(row["step"]),
        depth=int(row["depth"]),
        depth_unit=row.get("depth_unit", "tokens"),
        new_text=new.get("text"),
        new_tokens=int(new["tokens"]) if "tokens" in new else None,
        screenshot=None if isinstance(screenshot, str) else screenshot,
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

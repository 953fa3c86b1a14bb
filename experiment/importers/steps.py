"""Turns calls into the rows of a trace: splits T into depth and new, numbers steps, keeps limits.

What grows with the input is one entry a task (about 250 bytes), for its number of steps and its
last prompt and answer.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Log, Options, no_cached_count
from experiment.trace import (
    MAX_INTEGER,
    MAX_NEW_TOKENS,
    MAX_SECONDS,
    MAX_TASK_ID,
)
from experiment.trace_file import MAX_LINE_BYTES

MAX_TEXT_BYTES = MAX_LINE_BYTES - (64 << 10)
"""Of a text as JSON, so that its row fits into a line of a trace."""

COLD = "--assume-cold: calls without a cached-token count had nothing in the cache"
APPEND_ONLY = (
    "--assume-append-only: calls without a cached-token count had the whole previous prompt and "
    "answer of their task in the cache"
)

UNKNOWN = -1
DIGEST_CHARACTERS = 12


class Steps:
    """Numbers the calls of each task in the order in which they come, and checks their figures.

    Raises:
        TraceImportError: the options contradict each other.
    """

    def __init__(self, options: Options, log: Log) -> None:
        if options.assume_cold and options.assume_append_only:
            raise TraceImportError(
                "--assume-cold and --assume-append-only contradict each other", hint="pass one"
            )
        self.count = 0
        self._options = options
        self._log = log
        self._whole_cached = 0
        self._file_name = ""
        self._file = 0
        self._named: dict[str, str] = {}
        # One column a fact instead of an object a task: there may be 10^6 tasks.
        self._index: dict[str, int] = {}
        self._file_of = array("q")
        self._steps_of = array("q")
        self._total_of = array("q")
        self._output_of = array("q")

    @property
    def tasks(self) -> int:
        """How many tasks there are so far."""
        return len(self._index)

    def begin_file(self, name: str) -> None:
        """Say that the calls to come are of another file of a folder.

        A task of an earlier file with the same name is another task: whether the one goes on
        where the other ended, no log says.
        """
        self._file += 1
        self._file_name = name
        self._named.clear()

    def finish(self, call: Call, screenshot: str | None = None) -> dict[str, object]:
        """The row of a call.

        Args:
            call: the next call of its task.
            screenshot: the path of its image, relative to the trace.

        Raises:
            TraceImportError: a figure that cannot be right, that no row can hold, or that is
                missing without an assumption in its place.
        """
        task = self._task(call)
        index = self._index[task]
        depth, new_tokens = self._split(call, index)
        new: dict[str, object] = {}
        if call.new_text:
            new["text"] = _checked_text(call)
        elif new_tokens is not None and call.screenshot is None:
            new["tokens"] = new_tokens
        if screenshot is not None:
            new["screenshot"] = screenshot
        row: dict[str, object] = {
            "task_id": task,
            "step": self._steps_of[index],
            "depth": depth,
            "new": new,
        }
        baseline = self._baseline(call)
        if baseline:
            row["baseline"] = baseline
        if call.assumed is not None:
            self._log.assume(call.assumed)
        self._remember(call, index)
        return row

    def close(self) -> None:
        """Write into the log what holds for all calls together."""
        if self._whole_cached:
            calls = "1 call" if self._whole_cached == 1 else f"{self._whole_cached} calls"
            self._log.assume(
                f"the whole prompt of T tokens was cached in {calls}: depth is T-1 there, and one "
                "token new (an engine computes at least one)"
            )

    def _split(self, call: Call, index: int) -> tuple[int, int | None]:
        """Depth and new tokens of a call; new is None where it has no total."""
        for name, value in (
            ("depth", call.depth),
            ("prompt tokens", call.total),
            ("output tokens", call.output),
        ):
            if value is not None and not 0 <= value <= MAX_INTEGER:
                raise TraceImportError(
                    f"{name} {value} is not 0 to {MAX_INTEGER}", where=call.where
                )
        content = bool(call.new_text) or call.screenshot is not None
        if call.total is None and not content:
            raise TraceImportError("no prompt-token field", where=call.where)
        if call.total == 0:
            what = "a prompt of 0 tokens; a step computes at least one"
            raise TraceImportError(what, where=call.where)
        depth = self._assumed_depth(call, index) if call.depth is None else call.depth
        if call.total is None:
            return depth, None
        if depth > call.total:
            what = f"{depth} cached tokens are more than the prompt's {call.total}"
            raise TraceImportError(what, where=call.where)
        if depth == call.total:
            depth -= 1
            self._whole_cached += 1
        new = call.total - depth
        if new > MAX_NEW_TOKENS and not content:
            what = f"{new} new tokens are more than the {MAX_NEW_TOKENS} a trace's row can hold"
            raise TraceImportError(what, where=call.where)
        return depth, new

    def _assumed_depth(self, call: Call, index: int) -> int:
        if self._options.assume_cold:
            self._log.assume(COLD)
            return 0
        if not self._options.assume_append_only:
            raise no_cached_count(call.where)
        self._log.assume(APPEND_ONLY)
        if not self._steps_of[index]:
            return 0
        total, output = self._total_of[index], self._output_of[index]
        if UNKNOWN in (total, output):
            missing = "prompt" if total == UNKNOWN else "output"
            raise TraceImportError(
                f"the call before it in its task has no {missing}-token field, which "
                "--assume-append-only needs",
                where=call.where,
            )
        if call.total is not None and total + output > call.total:
            raise TraceImportError(
                f"the previous prompt and answer, {total} + {output} = {total + output} tokens, "
                f"are more than this prompt's {call.total}: the history was cut",
                where=call.where,
                hint="--assume-append-only does not hold for this log; --assume-cold is the other "
                "assumption there is",
            )
        return total + output

    def _baseline(self, call: Call) -> dict[str, float]:
        baseline: dict[str, float] = {}
        for name, seconds in (
            ("prefill_s", call.prefill_s),
            ("decode_s", call.decode_s),
            ("exec_s", call.exec_s),
        ):
            if seconds is None:
                continue
            if not math.isfinite(seconds) or seconds < 0:
                what = f"{name} of {seconds} s cannot be"
                raise TraceImportError(what, where=call.where)
            if seconds > MAX_SECONDS:
                self._log.drop(f"{name} of more than {MAX_SECONDS:,} s (the value, not the step)")
                continue
            baseline[name] = seconds
        return baseline

    def _task(self, call: Call) -> str:
        """The name of the call's task in the trace; the task is known from here on."""
        task = self._named.get(call.task_id)
        if task is not None:
            return task
        if not call.task_id:
            raise TraceImportError("the task's name is empty", where=call.where)
        task = clean_task_id(call.task_id)
        index = self._index.get(task)
        if index is not None and self._file_of[index] == self._file:
            return task
        if index is not None:
            self._log.warn(
                "tasks of the same name in several files are kept apart, the later ones with the "
                "file's name behind theirs"
            )
            task = clean_task_id(f"{task} ({self._file_name})")
            self._named[call.task_id] = task
        if task not in self._index:
            self._index[task] = len(self._index)
            self._file_of.append(self._file)
            self._steps_of.append(0)
            self._total_of.append(UNKNOWN)
            self._output_of.append(UNKNOWN)
        return task

    def _remember(self, call: Call, index: int) -> None:
        self.count += 1
        self._steps_of[index] += 1
        self._total_of[index] = UNKNOWN if call.total is None else call.total
        self._output_of[index] = UNKNOWN if call.output is None else call.output


def clean_task_id(task_id: str) -> str:
    """The name itself, or where a trace cannot hold it, one made of it that is as distinct."""
    if task_id.isprintable() and len(task_id) <= MAX_TASK_ID:
        return task_id
    plain = "".join(char if char.isprintable() else "_" for char in task_id)
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain[: MAX_TASK_ID - DIGEST_CHARACTERS - 1]}~{digest[:DIGEST_CHARACTERS]}"


def _checked_text(call: Call) -> str:
    text = call.new_text or ""
    if "\0" in text:
        raise TraceImportError("the new text holds a NUL character", where=call.where)
    try:
        size = len(json.dumps(text, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        what = "the new text holds a lone surrogate (half of a UTF-16 pair)"
        raise TraceImportError(what, where=call.where) from None
    if size > MAX_TEXT_BYTES:
        what = f"the new text has {size} bytes, more than the {MAX_TEXT_BYTES} a trace can hold"
        raise TraceImportError(what, where=call.where)
    return text

"""One request in llama-server's log: what its lines say, and the call that follows from them."""

from __future__ import annotations

import re

from experiment.errors import TraceImportError
from experiment.importers.base import Call
from experiment.importers.json_fields import MAX_COUNT, MAX_SECONDS, scaled

PROMPT = re.compile(rb"new prompt, .*(?:task\.n_tokens|n_prompt_tokens) = (\d+)")
REMOVED = re.compile(rb"(?:n_tokens = (\d+), )?(?:memory_seq_rm|kv cache rm) \[(\d+), end\)")
NOT_REMOVED = re.compile(rb"failed to truncate tokens")
PROGRESS = re.compile(rb"prompt processing(?: progress)?, |prompt done, ")
TIMES = re.compile(rb"(prompt )?eval time = +(\S{1,30}) ms / +(\d+) ")
RELEASED = re.compile(rb"stop processing: (?:n_tokens|n_past) = (\d+), truncated = (\d)")
CHILD = re.compile(rb"processing task, is_child = 1")

NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?")
MS = 1000


class Request:
    """A request of a log ("task N" there), whose statements are read one by one.

    Attributes:
        task: its number.
        where: ``FILE:LINE`` of its first statement.
        released: tokens in the slot when the request ended, None as long as it has not.
    """

    def __init__(self, task: int, where: str) -> None:
        self.task = task
        self.where = where
        self.released: int | None = None
        self._truncated = False
        self._child = False
        self._begun = False  # its beginning is in the log
        self._removals = 0
        self._progressed = False
        self._depth: int | None = None
        self._prompt: int | None = None  # T
        self._new: int | None = None
        self._output: int | None = None
        self._prefill_s: float | None = None
        self._decode_s: float | None = None

    def read(self, message: bytes, where: str) -> None:
        """Take what the log says at ``where``.

        Raises:
            TraceImportError: a number that cannot be.
        """
        if b"processing task" in message:
            self._begun = True
            self._child = CHILD.search(message) is not None
        elif found := PROMPT.search(message):
            self._begun = True
            self._prompt = _count("task.n_tokens", found[1], where)
        elif found := REMOVED.search(message):
            # With images, positions are fewer than tokens; the bracket holds a position.
            self._removed(_count("memory_seq_rm", found[1] or found[2], where))
        elif NOT_REMOVED.search(message) and self._removals == 1:
            self._depth = 0  # the slot's whole memory was cleared
        elif PROGRESS.search(message):
            self._progressed = True
        elif found := TIMES.search(message):
            name = "prompt eval time" if found[1] else "eval time"
            tokens, took_s = _count(name, found[3], where), _seconds(name, found[2], where)
            if found[1]:
                self._new, self._prefill_s = tokens, took_s
            else:
                self._output, self._decode_s = tokens, took_s
        elif found := RELEASED.search(message):
            self.released = _count("stop processing", found[1], where)
            self._truncated = found[2] != b"0"

    def _removed(self, kept: int) -> None:
        """The first removal leaves the cached prefix; later ones follow the prompt's chunks."""
        first = self._removals == 0 and not self._progressed
        # Where the log begins within a request, its first removal there may be a later one.
        if first and (self._begun or kept == 0):
            self._depth = kept
        self._removals += 1

    @property
    def left_out(self) -> str | None:
        """Why it is no call, if it is none."""
        if self._child:
            return "children of a request for several answers (their prompt is the request's)"
        if self._prompt == 0:
            return "requests with an empty prompt"
        ended = self.released is not None and self._prompt is not None and self._new is None
        if ended and (self.released or 0) < (self._prompt or 0):
            return "requests that ended before their prompt was processed"
        return None

    def call(self, task_id: str, *, assume_cold: bool) -> Call:
        """The call of the task ``task_id``.

        Raises:
            TraceImportError: its depth or new tokens do not follow from what was read.
        """
        depth, total = self._split(assume_cold)
        return Call(
            task_id=task_id,
            where=self.where,
            depth=depth,
            total=total,
            output=self._output,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
        )

    def _split(self, assume_cold: bool) -> tuple[int | None, int]:
        total = self._total()
        depth = self._depth
        if depth is None and total is not None and self._new is not None:
            depth = total - self._new
        known = total if total is not None else self._new
        if known is None:
            raise self._refusal("no prompt eval line and no 'new prompt' line: its new tokens")
        if depth is None and assume_cold:
            return None, known
        if depth is None:
            raise self._refusal(
                f"{self._what_is_missing()}: its depth", "pass --assume-cold, or the whole log"
            )
        new = known - depth if self._new is None else self._new
        if depth < 0 or new < 0 or (total is not None and depth + new != total):
            what = f"task {self.task}: depth {depth} and {new} new tokens are not its T = {total}"
            raise TraceImportError(what, where=self.where)
        return depth, depth + new

    def _total(self) -> int | None:
        """All tokens of the prompt. The last token of an answer is never put into the slot."""
        if self._prompt is not None:
            return self._prompt
        if self.released is None or self._output is None or self._truncated:
            return None
        return self.released - self._output + 1

    def _what_is_missing(self) -> str:
        missing = ["no memory_seq_rm line of its beginning"]
        if self._new is None:
            missing.append("no prompt eval line")
        if self._total() is None and self.released is None:
            missing.append("no release line")
        elif self._total() is None:
            missing.append("a truncated context" if self._truncated else "no eval line")
        return ", ".join(missing)

    def _refusal(self, what: str, hint: str | None = None) -> TraceImportError:
        return TraceImportError(
            f"task {self.task} has {what} cannot be told", where=self.where, hint=hint
        )


def _count(name: str, digits: bytes, where: str) -> int:
    value = int(digits[:20])
    if value > MAX_COUNT:
        told = digits[:40].decode()
        raise TraceImportError(f"{name}: {told} is not between 0 and {MAX_COUNT}", where=where)
    return value


def _seconds(name: str, digits: bytes, where: str) -> float | None:
    """Seconds of a number of milliseconds; None for one that is none, as of 0 tokens."""
    text = digits.decode("ascii", errors="replace")
    if not NUMBER.fullmatch(text):
        return None
    value = scaled(text, MS)
    if value > MAX_SECONDS:
        raise TraceImportError(f"{name}: {text} ms is no duration", where=where)
    return value

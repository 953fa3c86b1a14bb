"""The log of llama-server, in the formats of several versions, as calls.

Its statements are those of ``tools/server/server-context.cpp``. Newer versions put a time and a
level before each, and a service manager or the router, which runs several servers, what names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.lines import lines
from experiment.importers.llama_request import Request
from experiment.importers.usage import note_tokenizer

# What stands before a statement holds no quote or brace: a prompt quoted in the log is no match.
PREFIX = rb'([^{"]{0,300}?)'
SLOT = re.compile(PREFIX + rb"\bslot +(\w+): id +(\d{1,9}) \| task +(-?\d{1,18}) \| ?(.*)")
TIMES = re.compile(PREFIX + rb"(?:eval|total) time = ")
LISTENS = re.compile(PREFIX + rb"(?<!router )server is listening on ")
SWAPPED = re.compile(PREFIX + rb"\bsrv +\w+: +- found better prompt")
MODEL = re.compile(PREFIX + rb"\bprint_(?:info|meta): general\.name += ([ -~]{1,200})")

STATEMENTS = (SLOT, TIMES, LISTENS, SWAPPED, MODEL)

PROCESS = re.compile(rb"\[(\d{1,10})\]")
"""A service manager's process id or the router's port: what tells servers in one log apart."""

COLOURS = re.compile(rb"\x1b\[[0-9;]*m")

SELECTED = re.compile(rb"selected slot by (\w+)(?:.* f_keep = (\d{1,9}\.\d{1,9}))?")

MIN_KEPT = 0.5
"""A request that keeps less of its slot's context than this share begins another conversation.

llama-server draws its own line there: below it, it puts the slot's state aside before it goes on
(``get_available_slot``).
"""

TASK_KEY = "slot"


def slot_lines(head: bytes) -> int:
    """How many of these lines are a slot's statements."""
    return sum(1 for line in head.split(b"\n") if SLOT.match(COLOURS.sub(b"", line)))


def log_calls(source: Source, context: Context) -> Iterator[Call]:
    """The calls of a log, those of a slot in their order.

    A task of the log is one request; a conversation is what a slot serves.

    Raises:
        TraceImportError: a request whose depth or new tokens the log does not tell, or whose slot
            served another conversation before it.
    """
    key = context.options.task_key
    if key not in (None, TASK_KEY):
        raise TraceImportError(
            f"a log of llama-server has no field {key!r}",
            where=str(source.path),
            hint=f"the only task key that it has is --task-key={TASK_KEY}",
        )
    context.log.assume(
        "each slot of the server served one conversation"
        + (f" (--task-key={TASK_KEY})" if key else ", as far as its log shows")
    )
    servers: dict[bytes, _Server] = {}
    for number, line in lines(source.path, context.progress):
        if b"\x1b" in line:
            line = COLOURS.sub(b"", line)
        found = next(filter(None, (statement.match(line) for statement in STATEMENTS)), None)
        if found is None:
            continue
        process = (PROCESS.findall(found[1]) or [b""])[-1]
        server = servers.get(process)
        if server is None:
            server = servers[process] = _Server(source, context, process.decode())
        yield from server.take(found, line, f"{source.path}:{number}")
    for server in servers.values():
        yield from server.end()


@dataclass(slots=True)
class _Slot:
    """A slot: the request that it serves, and what is known about the one before.

    ``other`` is why the next request seems to be of another conversation; ``dissimilar`` that it
    may only have been too long an addition.
    """

    number: int
    name: str
    request: Request | None = None
    served: bool = False
    last_task: int | None = None
    last_tokens: int | None = None
    other: str | None = None
    dissimilar: bool = False


class _Server:
    """One server of a log: routes the statements to the requests in its slots."""

    def __init__(self, source: Source, context: Context, process: str) -> None:
        self._source = source
        self._context = context
        self._process = process
        self._start = 1
        self._slots: dict[int, _Slot] = {}
        self._selected: _Slot | None = None
        self._timed: Request | None = None

    def take(self, found: re.Match[bytes], line: bytes, where: str) -> Iterator[Call]:
        """Take a statement; a request that it ends becomes a call."""
        if found.re is SLOT:
            _, function, slot, task, message = found.groups()
            self._timed = None
            yield from self._slot_says(self._slot(int(slot)), function, int(task), message, where)
        elif found.re is TIMES:
            # Older versions print the times on lines of their own, after the slot's.
            if self._timed:
                self._timed.read(line, where)
        elif found.re is SWAPPED:
            if self._selected:
                self._selected.other = "its context came from the prompt cache"
                self._selected.dissimilar = False
        elif found.re is MODEL:
            note_tokenizer(self._context.log, found[2].decode("ascii").strip())
        elif any(slot.served for slot in self._slots.values()):
            yield from self.end()
            self._slots.clear()
            self._start += 1

    def end(self) -> Iterator[Call]:
        """The calls of the requests that have not ended in the log."""
        for slot in self._slots.values():
            yield from self._close(slot)

    def _slot_says(
        self, slot: _Slot, function: bytes, task: int, message: bytes, where: str
    ) -> Iterator[Call]:
        if task < 0:
            self._select(slot, message)
            return
        begins = b"processing task" in message
        if slot.request and (slot.request.task != task or begins):
            yield from self._close(slot)
        if slot.request is None:
            if task == slot.last_task and not begins:
                return  # what is said of a request after its end
            slot.request = Request(task, where)
        slot.request.read(message, where)
        if function == b"print_timing" and not message.strip():
            self._timed = slot.request
        if slot.request.released is not None:
            yield from self._close(slot)

    def _select(self, slot: _Slot, message: bytes) -> None:
        selected = SELECTED.search(message)
        if selected is None:
            return
        self._selected = slot
        if selected[1].lower() == b"lru":
            slot.dissimilar = slot.other is None
            slot.other = "selected slot by LRU"
        elif selected[2] and float(selected[2]) < MIN_KEPT:
            slot.dissimilar = False
            slot.other = f"f_keep = {selected[2].decode()}"

    def _close(self, slot: _Slot) -> Iterator[Call]:
        request, slot.request = slot.request, None
        if request is None:
            return
        slot.last_task = request.task
        if request.left_out:
            self._context.log.drop(request.left_out)
            return
        call = request.call(slot.name, assume_cold=self._context.options.assume_cold)
        if slot.served and slot.other and not self._continues(slot, call):
            raise TraceImportError(
                f"task {request.task} of slot {slot.number} does not go on with "
                f"what the slot held ({slot.other}): several conversations share the slot",
                where=request.where,
                hint="give each conversation a slot of its own (id_slot); if each slot did serve "
                f"one, pass --task-key={TASK_KEY}",
            )
        slot.served, slot.other, slot.last_tokens = True, None, request.released
        yield call

    def _continues(self, slot: _Slot, call: Call) -> bool:
        """Whether a request that seems to be of another conversation is of the slot's after all."""
        if self._context.options.task_key == TASK_KEY:
            return True
        if not slot.dissimilar or call.depth is None or slot.last_tokens is None:
            return False
        return call.depth >= MIN_KEPT * slot.last_tokens

    def _slot(self, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None:
            parts = [self._source.path.name]
            if self._process:
                parts.append(self._process)
            if self._start > 1:
                parts.append(f"start-{self._start}")
            slot = self._slots[number] = _Slot(number, "/".join([*parts, f"slot-{number}"]))
        return slot

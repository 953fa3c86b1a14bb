"""Calls of logs without token counts: each step's prompt is rendered and compared with the last.

What a cache holds when a step begins is the previous prompt and the answer to it. Depth is the
longest common prefix of that and the step's own prompt, in tokens as the chat template renders
them; what lies behind it is new, and goes into the trace as text and screenshot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from experiment.errors import RequestRefused, ServerError, TraceImportError
from experiment.importers.base import Call, Context, Log, needs_tokenizer
from experiment.importers.counting import Message, PromptCounter, Rendered
from experiment.progress import Progress

KEPT = (
    "prompts are made with the model's own chat template; the depth of a step is what its prompt "
    "has in common, token by token from the start, with the previous prompt of its task and the "
    "answer to it (the answer's tokens are in the cache, the mark that ends its turn is not)"
)
FIRST = "the first step of a task finds nothing in the cache; no other task evicts what a task left"


class Counted:
    """The conversations of one import, and what their counting assumes.

    With a number of ``steps`` the progress is told each one that is counted.
    """

    def __init__(
        self, counter: PromptCounter, log: Log, progress: Progress, steps: int | None = None
    ) -> None:
        self.counter = counter
        self.log = log
        self.most_marks = 0
        self._progress = progress
        self._steps = steps
        self._done = 0
        if steps:
            progress.start("Counting tokens", steps)
        log.tokenizer = counter.name
        log.assume(KEPT)
        log.assume(FIRST)

    def advance(self, where: str) -> None:
        """Tell the progress that a step is counted."""
        self._done += 1
        if self._steps:
            self._progress.advance(self._done, Path(where).name)

    def close(self) -> None:
        """Write down what is known only at the end."""
        for note in self.counter.notes:
            self.log.assume(note)
        if self.most_marks:
            self.log.assume(
                "a step's new content is what the log holds; of the chat template's marks around "
                f"it (up to {self.most_marks} tokens a step) those behind it are decoded with it, "
                "those before it are left out"
            )


def counted(context: Context, where: str, what: str, steps: int | None = None) -> Counted:
    """What to count with.

    Args:
        context: of the import.
        where: ``FILE:LINE``, for the message.
        what: the log, as the message's subject.
        steps: how many there are, where that is known before they are counted.

    Raises:
        TraceImportError: no model was named.
    """
    if context.counter is None:
        raise needs_tokenizer(where, what)
    counter = cast("PromptCounter", context.counter)
    return Counted(counter, context.log, context.progress, steps)


class Conversation:
    """One task: its prompts in their order. Only the last one is kept."""

    def __init__(self, counting: Counted, task_id: str) -> None:
        self._counting = counting
        self._task_id = task_id
        self._held: Rendered | None = None
        self._before: list[Message] = []

    def call(
        self,
        messages: Sequence[Message],
        answer: Message | None,
        where: str,
        *,
        exec_s: float | None = None,
    ) -> Call:
        """The call whose prompt is made of ``messages`` and whose answer is ``answer``.

        Raises:
            TraceImportError: a text cannot stand in a prompt, the chat template refuses the
                messages, or the new content holds several images.
        """
        for message in (*messages, *([answer] if answer else [])):
            _check_texts(message, where)
        counter = self._counting.counter
        try:
            prompt = counter.render(messages)
            held = prompt if answer is None else counter.answered(prompt, messages, answer)
        except TraceImportError as error:
            raise TraceImportError(error.what, where=where, hint=error.hint) from None
        except (RequestRefused, ServerError) as error:
            what = f"the server cannot make a prompt of this step: {error.what}"
            raise TraceImportError(what, where=where) from error
        depth = cut = 0
        if self._held is not None:
            depth = common_tokens(self._held.tokens, prompt.tokens)
            cut = common_text(self._held, prompt)
        text, images = self._new_content(messages, prompt.text, prompt.marker, cut)
        if len(images) > 1:
            what = f"the step's new content holds {len(images)} images; a trace's row holds one"
            raise TraceImportError(what, where=where)
        total = len(prompt.tokens)
        if text or images:
            marks = total - depth - counter.content_tokens(text, images)
            self._counting.most_marks = max(self._counting.most_marks, marks)
        self._counting.advance(where)
        self._held = held
        self._before = [*messages, *([answer] if answer else [])]
        return Call(
            task_id=self._task_id,
            where=where,
            depth=depth,
            total=total,
            output=None if answer is None else len(held.tokens) - total,
            new_text=text or None,
            screenshot=images[0] if images else None,
            exec_s=exec_s,
        )

    def _new_content(
        self, messages: Sequence[Message], text: str, marker: str, cut: int
    ) -> tuple[str, list[Path]]:
        """The contents behind the first ``cut`` characters of the prompt."""
        same = 0
        for old, new in zip(self._before, messages, strict=False):
            if old != new:
                break
            same += 1
        # Where a history only grew, what is held is known; to look for its contents could mistake
        # a short one for a piece of the template.
        grew = self._held is not None and (same, cut) == (len(self._before), len(self._held.text))
        texts: list[str] = []
        images: list[Path] = []
        cursor = 0
        places = iter(_places(text, marker))
        for number, message in enumerate(messages):
            if grew and number == same:
                cursor = cut
            for part in parts_of(message):
                if isinstance(part, Path):
                    place = next(places)
                    cursor = place + len(marker)
                    if cursor > cut:
                        images.append(part)
                    continue
                if grew and number < same:
                    continue
                start, found = _find(text, part, cursor)
                if start < 0:
                    # Not in the prompt as it stands in the log: templates leave old turns out,
                    # or write a new one in a form of their own.
                    if number >= same:
                        texts.append(part)
                    continue
                cursor = start + len(found)
                if cursor > cut:
                    texts.append(part if start >= cut else found[cut - start :])
        return "".join(texts), images


def parts_of(message: Message) -> list[str | Path]:
    """The texts and image files of a message, in their order; no empty texts."""
    content = message.get("content")
    if not isinstance(content, list):
        return [str(content)] if content else []
    parts = (part["path"] if part["type"] == "image" else part["text"] for part in content)
    return [part for part in parts if part != ""]


def common_tokens(held: Sequence[object], tokens: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(held), len(tokens))
    while low < high:
        middle = (low + high + 1) // 2
        if held[low:middle] == tokens[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_text(held: Rendered, prompt: Rendered) -> int:
    """Characters that two prompts have in common from the start; other images end it."""
    common = common_tokens(held.text, prompt.text)
    position = 0
    for old, new in zip(held.images, prompt.images, strict=False):
        position = prompt.text.find(prompt.marker, position)
        if not 0 <= position < common:
            break
        if old != new:
            return position
        position += len(prompt.marker)
    return common


def _places(text: str, marker: str) -> list[int]:
    """Where the images of a prompt stand."""
    return [found.start() for found in re.finditer(re.escape(marker), text)] if marker else []


def _find(text: str, written: str, cursor: int) -> tuple[int, str]:
    """Where a content stands in a prompt, and as what; templates may strip the space around it."""
    start = text.find(written, cursor)
    if start >= 0:
        return start, written
    stripped = written.strip()
    return text.find(stripped, cursor) if stripped else -1, stripped


def _check_texts(message: Message, where: str) -> None:
    for part in parts_of(message):
        if isinstance(part, Path):
            continue
        if "\0" in part:
            raise TraceImportError("a text holds a NUL character", where=where)
        try:
            part.encode()
        except UnicodeEncodeError:
            what = "a text holds a lone surrogate (half of a UTF-16 pair)"
            raise TraceImportError(what, where=where) from None

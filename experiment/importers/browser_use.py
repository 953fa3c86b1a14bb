"""browser-use histories: refused, because what was in the cache cannot be told from them.

Old states are removed from the prompt from one step to the next, and the only count is an
estimate. Stated as cold, the estimate becomes a step's tokens.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from experiment.errors import TraceImportError
from experiment.image_files import UnusableImageError, image_size
from experiment.importers.base import Call, Context, Source
from experiment.importers.documents import read_records, shape
from experiment.importers.json_fields import Fields

ESTIMATE = (
    "T is browser-use's own estimate, metadata.input_tokens: characters / 3, and 800 for an image "
    "of any size"
)
WHY = (
    "the depth cannot be derived: old states are removed from the prompt, and input_tokens is an "
    "estimate"
)
WHY_UNCOUNTED = (
    "the depth cannot be derived: old states are removed from the prompt, and there is no field "
    "metadata.input_tokens"
)


@dataclass(frozen=True)
class Seen:
    """What a step of a history tells; None is what it does not tell.

    Attributes:
        size: pixels of the screenshot, where it stands in the history.
        tokens: of the prompt, as estimated.
        seconds: from the step's start to its end, model and browser together.
    """

    size: tuple[int, int] | None
    tokens: int | None
    seconds: float | None

    def __str__(self) -> str:
        told = []
        if self.size is not None:
            told.append(f"a screenshot of {self.size[0]}x{self.size[1]}")
        if self.tokens is not None:
            told.append(f"about {self.tokens} tokens")
        if self.seconds is not None:
            told.append(f"{self.seconds:.3f} s for model and browser together")
        return ", ".join(told) or "no figures"


class BrowserUseImporter:
    """Reads ``AgentHistory`` files; the task is named by the file."""

    name = "browser_use"
    what = "browser-use histories (AgentHistory JSON)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """``history[]`` with ``model_output``, ``result`` and ``state``."""
        seen = shape(source.head)
        if (
            "history[].model_output" in seen
            and {"history[].result", "history[].state"} & seen.keys()
        ):
            return "history[] with model_output and state, as browser-use writes it"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call a step, with --assume-cold only.

        Raises:
            TraceImportError: without that option; or a step has no estimate.
        """
        whole, records = read_records(source.path, "history", context.progress)
        if not records:
            raise whole.bad("history", "holds no steps")
        if not context.options.assume_cold:
            seen = step_seen(records[0])
            told = f"(step 0 of {len(records)}: {seen})"
            where = records[0].where
            if seen.tokens is None:
                raise TraceImportError(f"{WHY_UNCOUNTED} {told}", where=where)
            hint = (
                "--assume-cold states that nothing was cached, and takes the estimates as they "
                "are; --assume-append-only cannot hold"
            )
            raise TraceImportError(f"{WHY} {told}", where=where, hint=hint)
        context.log.assume(ESTIMATE)
        for record in records:
            total = record.needed_fields("metadata").needed_count("input_tokens")
            yield Call(source.path.stem, record.where, depth=None, total=total)


def step_seen(record: Fields) -> Seen:
    """The figures of a step.

    Raises:
        TraceImportError: one of them is not what it should be.
    """
    metadata = record.fields("metadata")
    return Seen(
        _size(record.fields("state")),
        metadata.count("input_tokens") if metadata else None,
        _step_seconds(metadata) if metadata else None,
    )


def _size(state: Fields | None) -> tuple[int, int] | None:
    text = state.text("screenshot") if state else None
    if state is None or not text:
        return None
    try:
        return image_size(base64.b64decode(text.partition("base64,")[2] or text, validate=True))
    except (binascii.Error, ValueError):
        raise state.bad("screenshot", "is not base64") from None
    except UnusableImageError as error:
        raise state.bad("screenshot", f"{error}") from None


def _step_seconds(metadata: Fields) -> float | None:
    start, end = (_epoch(metadata, name) for name in ("step_start_time", "step_end_time"))
    if start is None or end is None:
        return None
    if end < start:
        raise metadata.bad("step_end_time", "is before step_start_time")
    return end - start


def _epoch(metadata: Fields, name: str) -> float | None:
    """Seconds since 1970, a larger number than a duration may be."""
    value = metadata.members.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e11:
        raise metadata.bad(name, "is not a time in seconds since 1970")
    return float(value)


IMPORTER = BrowserUseImporter()

"""What every importer is: it recognises its format by content and yields the calls of a log.

A call is one request to a model: what the prefix cache gave it (depth), what it computed (new).
The rules that hold for all formats are here: missing is never zero, and T = depth + new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from experiment.errors import TraceImportError
from experiment.progress import Progress

PROBE_BYTES = 1 << 20
"""How much of a file's beginning recognising may look at."""


@dataclass(frozen=True)
class Options:
    """The assumptions that the user states, and the format where it is not to be guessed.

    Attributes:
        assume_cold: calls without a cached count had nothing cached.
        assume_append_only: their prefix was the whole previous prompt and answer of the task.
        input_tokens: whether an exporter's input count includes cached tokens.
        task_key: name of the field that tells tasks apart.
        initial_screenshot: what the first step saw, where the log does not keep it.
    """

    assume_cold: bool = False
    assume_append_only: bool = False
    input_tokens: Literal["inclusive", "exclusive"] | None = None
    task_key: str | None = None
    initial_screenshot: Path | None = None


class Counter(Protocol):
    """Counts tokens as the chosen model does: its tokenizer, its chat template, its images."""

    @property
    def name(self) -> str:
        """The model, for the trace's header."""
        ...

    def prompt_tokens(self, messages: Sequence[dict[str, object]]) -> int:
        """Tokens of these chat messages with the template around them.

        ``content`` is a text, or a list of ``{"type": "text", "text": …}`` and
        ``{"type": "image", "path": Path}``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the log tells it; what the log does not tell is None, never 0.

    Attributes:
        task_id: conversation, session or task it belongs to.
        where: ``FILE:LINE`` or the like, for messages about it.
        depth: tokens served from the prefix cache, as reported or derived; None where the log has
            no cached count.
        total: T, all tokens of the prompt; None where the log has no count.
        output: tokens of the answer.
        new_text: the new content itself, instead of a count.
        screenshot: an image file that the call's new content holds; ``depth`` is set then.
        assumed: the assumption that this call's depth rests on, as `Sink` writes it down.
    """

    task_id: str
    where: str
    depth: int | None
    total: int | None
    output: int | None = None
    new_text: str | None = None
    screenshot: Path | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    exec_s: float | None = None
    assumed: str | None = None


@dataclass
class Log:
    """What an importer tells besides calls. Every text goes into the trace's header row.

    Attributes:
        assumptions: what had to be assumed, each once, in the order in which it came up.
        warnings: what the reader of the trace should know.
        dropped: reason -> how many records were left out for it.
        tokenizer: whose tokenizer the counts come from, where the log says so.
    """

    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    tokenizer: str | None = None

    def assume(self, sentence: str) -> None:
        """Write an assumption down, once."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def warn(self, sentence: str) -> None:
        """Write a warning down, once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def drop(self, reason: str) -> None:
        """Count a record that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@dataclass(frozen=True)
class Source:
    """A file or folder to import, and its beginning as bytes (empty for a folder)."""

    path: Path
    head: bytes

    @classmethod
    def open(cls, path: Path) -> Source:
        """Look at a path.

        Raises:
            TraceImportError: it does not exist or cannot be read.
        """
        try:
            if path.is_dir():
                return cls(path, b"")
            with path.open("rb") as file:
                return cls(path, file.read(PROBE_BYTES))
        except OSError as error:
            raise TraceImportError(
                f"cannot be read: {error.strerror or error}", where=str(path)
            ) from error


@dataclass(frozen=True)
class Context:
    """What `Importer.calls` works with.

    ``counter`` is None where no model was asked for: a format that needs one raises
    `needs_tokenizer`. ``work`` is an empty folder for temporary files (a DuckDB spill, images that
    stand inside the log). ``files`` are all files of the import where it is one of a folder: what
    one of them is read with is not read again on its own.
    """

    options: Options
    log: Log
    progress: Progress
    work: Path
    counter: Counter | None = None
    files: tuple[Path, ...] = ()


class Importer(Protocol):
    """One format. A module of this package holds one, under the name ``IMPORTER``."""

    @property
    def name(self) -> str:
        """As ``--format`` takes it."""
        ...

    @property
    def what(self) -> str:
        """What it reads, a few words for the README's table."""
        ...

    @property
    def counts(self) -> bool:
        """Whether it needs the model's tokenizer (no token counts in the log)."""
        ...

    def recognise(self, source: Source) -> str | None:
        """What was seen that makes this the format, in a few words; None if it is another.

        By content, never by name alone. Two importers must not claim the same content.
        """
        ...

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The calls, those of a task in their order; streamed, in bounded memory.

        Raises:
            TraceImportError: ``FILE:LINE``, the missing field, and the option that would help.
        """
        ...


def no_cached_count(where: str) -> TraceImportError:
    """A call whose log has no cached-token field, and no assumption in its place."""
    return TraceImportError(
        "no cached-token field",
        where=where,
        hint="pass --assume-cold, or --assume-append-only",
    )


def needs_tokenizer(where: str, what: str) -> TraceImportError:
    """A log without token counts, imported without a model."""
    return TraceImportError(
        f"{what} has no token counts",
        where=where,
        hint="name the model whose tokenizer and chat template count them: --model=NAME or FILE",
    )

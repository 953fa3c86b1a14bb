"""A counter whose counts are worked out by hand: a character is a token, an image has a few."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import TraceImportError
from experiment.import_trace import import_trace
from experiment.importers.base import Call, Context, Counter, Importer, Log, Options, Source
from experiment.importers.counting import Message, Rendered
from experiment.progress import SilentProgress
from experiment.screenshot import open_screenshot
from experiment.trace import load_trace
from tests.importers.importing import BAD

Header = dict[str, Any]

MARKER = "\x02"
SIDE = 32
"""An image has a token for each whole square of this side."""


class Characters:
    """Contents one behind the other. With marks, ``[role]`` before each and ``.`` behind each."""

    def __init__(self, *, marks: bool = False) -> None:
        self.marks = marks
        self.notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "characters"

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return len(self.render(messages).tokens)

    def render(self, messages: Sequence[Message]) -> Rendered:
        text = "".join(self._turn(message) for message in messages)
        return self._rendered(text + ("[assistant]" if self.marks else ""), messages)

    def answered(self, prompt: Rendered, messages: Sequence[Message], answer: Message) -> Rendered:
        return self._rendered(prompt.text + _text(answer), messages)

    def content_tokens(self, text: str, images: Sequence[Path]) -> int:
        return len(text) + sum(_squares(path) for path in images)

    def _turn(self, message: Message) -> str:
        text = _text(message)
        return f"[{message['role']}]{text}." if self.marks else text

    def _rendered(self, text: str, messages: Sequence[Message]) -> Rendered:
        images = [
            part["path"]
            for message in messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image"
        ]
        digests = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in images)
        places = iter(zip(digests, images, strict=True))
        tokens: list[int | str] = []
        for character in text:
            if character == MARKER:
                digest, path = next(places)
                tokens += [digest] * _squares(path)
            else:
                tokens.append(ord(character))
        return Rendered(text, digests, MARKER, tuple(tokens))


def read(
    importer: Importer,
    path: Path,
    work: Path,
    counter: Counter | None = None,
    files: tuple[Path, ...] = (),
    **options: Any,
) -> tuple[list[Call], Log]:
    """All calls of a log, and what the import told besides."""
    log = Log()
    context = Context(Options(**options), log, SilentProgress(), work, counter, files)
    return list(importer.calls(Source.open(path), context)), log


def counted_trace(source: Path, folder: Path, **options: Any) -> tuple[Header, list[Header]]:
    """Header and rows of the trace that a log becomes when its characters are counted."""
    to = folder / "imported.jsonl"
    import_trace(source, to, Options(**options), SilentProgress(), counter=Characters())
    header, *rows = [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    assert len(load_trace(to).steps) == len(rows)
    return header["trace"], rows


def size_of(row: Header, folder: Path) -> tuple[int, int] | None:
    """Pixels of the image file that a row of an imported trace names."""
    if "screenshot" not in row["new"]:
        return None
    picture = open_screenshot(folder / row["new"]["screenshot"])
    return picture.width, picture.height


def check_bad(format: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a malformed log is the one beside it, and no trace comes of it.

    Options may stand in the first line of the expected file; ``counted`` counts characters.
    """
    monkeypatch.chdir(BAD / format)
    expected = Path(name).with_suffix(".expected").read_text(encoding="utf-8").rstrip("\n")
    words: list[str] = []
    if expected.startswith("options: "):
        first, expected = expected.split("\n", 1)
        words = first.removeprefix("options: ").split()
    counter = Characters() if "counted" in words else None
    options = Options(**{word: True for word in words if word != "counted"})  # type: ignore[arg-type]
    with pytest.raises(TraceImportError) as caught:
        import_trace(
            Path(name), folder / "t", options, SilentProgress(), format=format, counter=counter
        )
    assert str(caught.value) == expected
    assert list(folder.iterdir()) == []


def _text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    return "".join(MARKER if part["type"] == "image" else part["text"] for part in content)


def _squares(path: Path) -> int:
    picture = open_screenshot(path)
    return (picture.width // SIDE) * (picture.height // SIDE)

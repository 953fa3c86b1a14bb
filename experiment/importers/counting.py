"""Counts the tokens of chat messages as the chosen model does, by asking its server."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Protocol

from PIL import Image

from experiment.client import Client, Prompt, Reply
from experiment.errors import RequestRefused, ServerError, TraceImportError
from experiment.image_files import UnusableImageError
from experiment.importers.base import Counter
from experiment.screenshot import open_screenshot

Message = dict[str, object]
"""``role`` and ``content`` as `Counter` takes them; an assistant's may hold ``tool_calls``."""

MAX_CACHED_CHARACTERS = 64 << 20
"""Of texts whose tokens are kept; about five times as many bytes."""

CHECKED_TEXTS = 3
"""How many texts are tokenised both whole and in pieces before the pieces are trusted."""

GREY = (128, 128, 128)

_SPECIAL = re.compile(r"<\|[^<>|\s]{1,40}\|>|<[a-z_/]{3,40}>|</?s>|\[/?[A-Z_]{3,20}\]")
"""What the special tokens of chat templates look like."""

_QUESTION, _ANSWER, _NEXT = "SENTINEL0QUESTION", "SENTINEL0ANSWER", "SENTINEL0NEXT"
_TOOL, _ARGUMENT, _RESULT = "sentinel0tool", "SENTINEL0ARGUMENT", "SENTINEL0RESULT"

NO_TOOLS = (
    "the chat template has no form for tool calls: they are counted as JSON behind the answer's "
    "text, their results as turns of the user"
)


@dataclass(frozen=True)
class Rendered:
    """A prompt as the chat template makes it.

    Attributes:
        text: with ``marker`` where an image stands.
        images: digests of the images, in the order of their markers.
        tokens: a number for a token of text; for each token of an image the image's digest.
    """

    text: str
    images: tuple[str, ...]
    marker: str
    tokens: tuple[int | str, ...]


class PromptCounter(Counter, Protocol):
    """A counter that shows the prompts it counts, so that two of them can be compared."""

    @property
    def notes(self) -> Sequence[str]:
        """What had to be assumed so far, for the trace's header."""
        ...

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The prompt of these messages, up to where the model begins its answer."""
        ...

    def answered(self, prompt: Rendered, messages: Sequence[Message], answer: Message) -> Rendered:
        """The prompt of these messages and what the model wrote, without its end-of-turn mark."""
        ...

    def content_tokens(self, text: str, images: Sequence[Path]) -> int:
        """Tokens of a text and of images, without any chat template."""
        ...


class ModelServer(Protocol):
    """The part of `experiment.client.Client` that counting needs."""

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""
        ...

    def apply_template(self, messages: Sequence[dict[str, object]]) -> str:
        """The prompt that the chat template makes of messages."""
        ...

    def complete(self, prompt: Prompt, **parameters: object) -> Reply:
        """The completion of a prompt."""
        ...


class ServerCounter:
    """Counts with the tokenizer, chat template and vision tower of a running server's model.

    A text's pieces between the template's special tokens are tokenised once; an image's tokens are
    asked for once a size, with a grey image of that size, because they depend on nothing else.

    Args:
        server: of the model.
        name: of the model, for the trace's header.
        media_marker: what stands for an image in a prompt (``media_marker`` of ``GET /props``);
            empty where the model takes none.
    """

    def __init__(self, server: ModelServer, name: str, *, media_marker: str = "") -> None:
        self._server = server
        self._name = name
        self._marker = media_marker
        self._pieces = _Pieces(server)
        self._notes: list[str] = []
        self._images: dict[Path, tuple[str, int]] = {}
        self._tokens_of_size: dict[tuple[int, int], int] = {}

    @classmethod
    def of(cls, client: Client, name: str) -> ServerCounter:
        """The counter of a running server; ``name`` is its model's."""
        props = client.props()
        sees = (props.get("modalities") or {}).get("vision")
        return cls(client, name, media_marker=str(props.get("media_marker", "")) if sees else "")

    @property
    def name(self) -> str:
        """The model, for the trace's header."""
        return self._name

    @property
    def notes(self) -> Sequence[str]:
        """What had to be assumed so far, for the trace's header."""
        return self._notes

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of these chat messages with the template around them."""
        return len(self.render(messages).tokens)

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The prompt of these messages, up to where the model begins its answer.

        Raises:
            TraceImportError: a text holds the server's marker for images, or an image is unusable
                or of no use to this model.
            RequestRefused, ServerError: the template refuses these messages.
        """
        prepared = [self._prepared(message) for message in messages]
        images = [path for message in messages for path in _images(message)]
        return self._rendered(self._server.apply_template(prepared), images)

    def answered(self, prompt: Rendered, messages: Sequence[Message], answer: Message) -> Rendered:
        """The prompt of these messages and what the model wrote, without its end-of-turn mark.

        A plain answer stands as it was written. One with tool calls stands as the template writes
        it into the history, because no log holds the model's own words for them.
        """
        images = [path for message in messages for path in _images(message)]
        return self._rendered(prompt.text + self._generated(prompt, messages, answer), images)

    def content_tokens(self, text: str, images: Sequence[Path]) -> int:
        """Tokens of a text and of images, without any chat template."""
        pictures = sum(self._picture(path)[1] for path in images)
        return pictures + len(self._pieces.tokens(text))

    def _rendered(self, text: str, images: Sequence[Path]) -> Rendered:
        parts = text.split(self._marker) if self._marker else [text]
        if len(parts) != len(images) + 1:
            raise TraceImportError(
                f"the prompt came out with {len(parts) - 1} places for {len(images)} images",
                hint="a text of the log holds the server's marker for images, or the chat "
                "template drops images",
            )
        pictures = [self._picture(path) for path in images]
        tokens: list[int | str] = [*self._pieces.begin]
        for index, part in enumerate(parts):
            tokens.extend(self._pieces.tokens(part))
            if index < len(pictures):
                digest, count = pictures[index]
                tokens.extend([digest] * count)
        return Rendered(text, tuple(digest for digest, _ in pictures), self._marker, tuple(tokens))

    def _generated(self, prompt: Rendered, messages: Sequence[Message], answer: Message) -> str:
        prepared = self._prepared(answer)
        if prepared.keys() == {"role", "content"}:
            return str(prepared["content"])
        before = [self._prepared(message) for message in messages]
        user: Message = {"role": "user", "content": _NEXT}
        whole = self._server.apply_template([*before, prepared, user])
        end = whole.rfind(_NEXT)
        if end < 0 or not whole.startswith(prompt.text):
            return str(prepared["content"])
        return whole[len(prompt.text) : end].removesuffix(self._between)

    def _prepared(self, message: Message) -> Message:
        """A message as ``/apply-template`` takes it: texts only, a marker for each image."""
        content = self._content(message.get("content"))
        calls = message.get("tool_calls")
        prepared: Message = {"role": message["role"], "content": content}
        if message.get("reasoning_content"):
            prepared["reasoning_content"] = message["reasoning_content"]
        if isinstance(calls, list) and calls:
            if self._knows_tools:
                prepared["tool_calls"] = calls
            else:
                called = (json.dumps(_called(call), ensure_ascii=False) for call in calls)
                prepared["content"] = "\n".join(filter(None, [content, *called]))
        if message["role"] == "tool":
            if self._knows_tools:
                prepared["tool_call_id"] = message.get("tool_call_id", "")
            else:
                prepared["role"] = "user"
        return prepared

    def _content(self, content: object) -> str:
        # As llama.cpp joins the parts of a message (common_chat_msg::to_json_oaicompat): a new
        # line between texts, none beside an image.
        if not isinstance(content, list):
            self._refuse_marker(str(content or ""))
            return str(content or "")
        joined, beside_image = "", True
        for part in content:
            if part["type"] == "image":
                if not self._marker:
                    raise TraceImportError(
                        f"the model {self._name} takes no images",
                        hint="choose one with a vision tower: --model=NAME, or --mmproj=FILE",
                    )
                joined, beside_image = joined + self._marker, True
                continue
            self._refuse_marker(part["text"])
            joined += ("" if beside_image else "\n") + part["text"]
            beside_image = False
        return joined

    def _refuse_marker(self, text: str) -> None:
        if self._marker and self._marker in text:
            raise TraceImportError("a text of the log holds the server's marker for images")

    def _picture(self, path: Path) -> tuple[str, int]:
        """Digest and tokens of an image file."""
        if path not in self._images:
            try:
                picture = open_screenshot(path)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except (UnusableImageError, OSError) as error:
                raise TraceImportError(f"the image {error}", where=str(path)) from None
            size = picture.width, picture.height
            if size not in self._tokens_of_size:
                self._tokens_of_size[size] = self._asked(*size)
            self._images[path] = digest, self._tokens_of_size[size]
        return self._images[path]

    def _asked(self, width: int, height: int) -> int:
        """Tokens of an image of this size: those of a prompt that holds it, less the text's."""
        data = BytesIO()
        Image.new("RGB", (width, height), GREY).save(data, "PNG")
        text = self._server.apply_template([{"role": "user", "content": self._marker}])
        prompt = Prompt(text, (data.getvalue(),))
        try:
            timings = self._server.complete(prompt, n_predict=1, cache_prompt=False).timings
            whole = int(timings["cache_n"]) + int(timings["prompt_n"])
        except RequestRefused as error:
            raise TraceImportError(
                f"the model {self._name} does not take an image of {width}x{height} pixels: "
                f"{error.what}"
            ) from None
        except (KeyError, TypeError, ValueError):
            raise TraceImportError("the server's timings do not say what it computed") from None
        texts = sum(len(self._pieces.tokens(part)) for part in text.split(self._marker))
        count = whole - texts - len(self._pieces.begin)
        if count < 1:
            raise TraceImportError(
                f"an image of {width}x{height} pixels came out at {count} tokens",
                hint="choose a model with a vision tower: --model=NAME, or --mmproj=FILE",
            )
        return count

    @cached_property
    def _knows_tools(self) -> bool:
        """Whether the template writes tool calls and their results into the prompt."""
        function = {"name": _TOOL, "arguments": json.dumps({"name": _ARGUMENT})}
        call = {"type": "function", "id": "call_1", "function": function}
        try:
            text = self._server.apply_template(
                [
                    {"role": "user", "content": _QUESTION},
                    {"role": "assistant", "content": _ANSWER, "tool_calls": [call]},
                    {"role": "tool", "content": _RESULT, "tool_call_id": "call_1"},
                ]
            )
        except (RequestRefused, ServerError):
            text = ""
        known = all(word in text for word in (_ANSWER, _TOOL, _ARGUMENT, _RESULT))
        if not known:
            self._notes.append(NO_TOOLS)
        return known

    @cached_property
    def _between(self) -> str:
        """What the template writes between the end of an answer and the user's next text."""
        return _between(self._server)


class _Pieces:
    """Tokens of texts, cut before the special tokens of the chat template.

    Text is tokenised on either side of a special token on its own, so a conversation that grows
    needs only its new turns tokenised. The first texts are tokenised whole as well; where that
    makes a difference, pieces are given up.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._kept: dict[str, array[int]] = {}
        self._characters = 0
        self._to_check = CHECKED_TEXTS

    def tokens(self, text: str) -> Sequence[int]:
        """Tokens of a text, without those that the tokenizer puts before a prompt."""
        pieces = (
            [text] if self._cut is None else [piece for piece in self._cut.split(text) if piece]
        )
        found = [token for piece in pieces for token in self._piece(piece)]
        if self._to_check and len(pieces) > 1:
            self._to_check -= 1
            whole = self._server.tokenize(text, add_special=False)
            if found != whole:
                self._cut = None
                return whole
        return found

    @cached_property
    def begin(self) -> list[int]:
        """The tokens that the tokenizer puts before a prompt."""
        return self._server.tokenize("", add_special=True)

    def _piece(self, text: str) -> array[int]:
        if text not in self._kept:
            while self._kept and self._characters + len(text) > MAX_CACHED_CHARACTERS:
                oldest = next(iter(self._kept))
                self._characters -= len(oldest)
                del self._kept[oldest]
            self._kept[text] = array("i", self._server.tokenize(text, add_special=False))
            self._characters += len(text)
        return self._kept[text]

    @cached_property
    def _cut(self) -> re.Pattern[str] | None:
        """Matches the empty text before each special token that the template uses."""
        question = self._server.apply_template([{"role": "user", "content": _QUESTION}])
        words = dict.fromkeys(_SPECIAL.findall(question + _between(self._server)))
        special = [word for word in words if self._stands_alone(word)]
        if not special:
            return None
        return re.compile("(?=" + "|".join(re.escape(word) for word in special) + ")")

    def _stands_alone(self, word: str) -> bool:
        alone = self._server.tokenize(word, add_special=False)
        letter = self._server.tokenize("a", add_special=False)
        among = self._server.tokenize(f"a{word}a", add_special=False)
        return len(alone) == 1 and among == [*letter, *alone, *letter]


def _between(server: ModelServer) -> str:
    text = server.apply_template(
        [
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _NEXT},
        ]
    )
    return text.partition(_ANSWER)[2].partition(_NEXT)[0]


def _images(message: Message) -> list[Path]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part["path"] for part in content if part["type"] == "image"]


def _called(call: Mapping[str, object]) -> object:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    return {"name": function.get("name"), "arguments": function.get("arguments")}

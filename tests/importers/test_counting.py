"""Counting through a server: templates, pieces of text, tool calls and images."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from experiment.client import Client, Prompt, Reply
from experiment.errors import RequestRefused, ServerError, TraceImportError
from experiment.importers.counting import NO_TOOLS, Message, ServerCounter

MARKER = "<__media_x__>"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|call|>"]


class FakeServer:
    """ChatML. A word, a character that is none, or a special token is a token; 1 goes before."""

    def __init__(self, *, tools: bool = True, merging: bool = False) -> None:
        self.tools = tools
        self.merging = merging
        self.ids: dict[str, int] = {}
        self.tokenized: list[str] = []
        self.templates = 0
        self.completed: list[tuple[Prompt, dict[str, Any]]] = []
        self.refused: str | None = None
        self.timings: dict[str, Any] | None = None

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        self.tokenized.append(text)
        special = "|".join(map(re.escape, SPECIAL))
        if self.merging:  # a tokenizer that takes the space before a special token into it
            special = rf"\s*(?:{special})"
        pieces = re.findall(rf"{special}|\w+|.", text, re.DOTALL)
        ids = [self.ids.setdefault(piece, 100 + len(self.ids)) for piece in pieces]
        return [1, *ids] if add_special else ids

    def apply_template(self, messages: Sequence[Message]) -> str:
        self.templates += 1
        return "".join(map(self._turn, messages)) + "<|im_start|>assistant\n"

    def _turn(self, message: Message) -> str:
        text = str(message["content"])
        if message.get("tool_calls") or message["role"] == "tool":
            if not self.tools:
                raise ServerError("HTTP 500: no tools here")
            for call in message.get("tool_calls", []):  # type: ignore[attr-defined]
                function = call["function"]
                text += f"<|call|>{function['name']} {function['arguments']}"
        return f"<|im_start|>{message['role']}\n{text}<|im_end|>\n"

    def complete(self, prompt: Prompt, **parameters: object) -> Reply:
        self.completed.append((prompt, dict(parameters)))
        if self.refused:
            raise RequestRefused(self.refused)
        before, after = prompt.text.split(MARKER)
        with Image.open(BytesIO(prompt.images[0])) as image:
            squares = (image.width // 32) * (image.height // 32) + 2
        texts = len(self.tokenize(before, add_special=True)) + len(
            self.tokenize(after, add_special=False)
        )
        timings = {"cache_n": 3, "prompt_n": texts + squares - 3}
        body = {"timings": timings if self.timings is None else self.timings}
        return Reply(dict(parameters), body, 1.0)


def words(text: str) -> Message:
    return {"role": "user", "content": text}


def image(folder: Path, name: str, width: int, height: int) -> Path:
    path = folder / name
    Image.new("RGB", (width, height), len(name)).save(path)
    return path


def counter(server: FakeServer) -> ServerCounter:
    return ServerCounter(server, "model-a", media_marker=MARKER)


def whole(server: FakeServer, text: str) -> tuple[int, ...]:
    return tuple(server.tokenize(text, add_special=True))


def test_a_prompt_is_what_the_server_would_make_of_it() -> None:
    server = FakeServer()
    counting = counter(server)
    made = counting.render([words("one two <|im_end|> three")])
    assert made.text == server.apply_template([words("one two <|im_end|> three")])
    assert made.tokens == whole(server, made.text)
    # <s> | <|im_start|> user \n | one _ two _ | <|im_end|> _ three | <|im_end|> \n | <|im_start|>
    # assistant \n
    assert len(made.tokens) == 1 + 3 + 4 + 3 + 2 + 3
    assert counting.prompt_tokens([words("one two <|im_end|> three")]) == 16
    assert counting.name == "model-a"
    assert not counting.notes


def test_only_new_turns_are_tokenised() -> None:
    server = FakeServer()
    counting = counter(server)
    messages = [words(f"turn {number}") for number in range(4)]
    for number in range(1, 4):
        counting.render(messages[:number])
    server.tokenized.clear()
    made = counting.render(messages)
    assert server.tokenized == ["<|im_start|>user\nturn 3"]
    assert made.tokens == whole(server, made.text)


def test_pieces_are_given_up_where_they_change_the_tokens() -> None:
    server = FakeServer(merging=True)
    counting = counter(server)
    for text in ("first", "second ", "third  \n"):
        made = counting.render([words("x"), words(text)])
        assert made.tokens == whole(server, made.text)


def test_pieces_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.importers.counting.MAX_CACHED_CHARACTERS", 60)
    server = FakeServer()
    counting = counter(server)
    for number in range(20):
        made = counting.render([words("a long turn " * 3), words(f"turn {number}")])
        assert made.tokens == whole(server, made.text)
    pieces = counting._pieces
    assert sum(map(len, pieces._kept)) == pieces._characters <= 60


def test_an_answer_stands_behind_the_prompt_as_it_was_written() -> None:
    counting = counter(FakeServer())
    prompt = counting.render([words("ask")])
    held = counting.answered(prompt, [words("ask")], {"role": "assistant", "content": "so  so"})
    assert held.text == prompt.text + "so  so"
    assert held.tokens[: len(prompt.tokens)] == prompt.tokens
    assert len(held.tokens) - len(prompt.tokens) == 4


CALL = {"type": "function", "id": "c", "function": {"name": "look", "arguments": '{"at": 1}'}}


def test_tool_calls_stand_as_the_template_writes_them() -> None:
    counting = counter(FakeServer())
    messages = [words("ask")]
    answer: Message = {"role": "assistant", "content": "Well.", "tool_calls": [CALL]}
    prompt = counting.render(messages)
    held = counting.answered(prompt, messages, answer)
    assert held.text == prompt.text + 'Well.<|call|>look {"at": 1}'
    result: Message = {"role": "tool", "content": "seen", "tool_call_id": "c"}
    later = counting.render([*messages, answer, result])
    assert later.text.startswith(held.text + "<|im_end|>\n<|im_start|>tool\nseen<|im_end|>\n")
    assert not counting.notes


def test_without_a_form_for_tools_calls_are_json_and_results_the_users() -> None:
    counting = counter(FakeServer(tools=False))
    messages = [words("ask")]
    answer: Message = {"role": "assistant", "content": "Well.", "tool_calls": [CALL]}
    prompt = counting.render(messages)
    held = counting.answered(prompt, messages, answer)
    written = json.dumps({"name": "look", "arguments": '{"at": 1}'})
    assert held.text == f"{prompt.text}Well.\n{written}"
    result: Message = {"role": "tool", "content": "seen", "tool_call_id": "c"}
    later = counting.render([*messages, answer, result])
    assert later.text.startswith(held.text + "<|im_end|>\n<|im_start|>user\nseen<|im_end|>\n")
    assert list(counting.notes) == [NO_TOOLS]


def test_an_image_is_asked_for_once_a_size(tmp_path: Path) -> None:
    server = FakeServer()
    counting = counter(server)
    a, b, c = (
        image(tmp_path, "a.png", 64, 64),
        image(tmp_path, "bb.png", 64, 64),
        image(tmp_path, "ccc.png", 128, 64),
    )
    content = [{"type": "image", "path": path} for path in (a, b, c, a)]
    content.insert(1, {"type": "text", "text": "and"})
    content.append({"type": "text", "text": "what"})
    content.append({"type": "text", "text": "now"})
    made = counting.render([{"role": "user", "content": content}])
    assert f"{MARKER}and{MARKER}{MARKER}{MARKER}what\nnow<|im_end|>" in made.text
    # 4 + 2 (begin and end) for 64x64, 8 + 2 for 128x64.
    assert len(made.tokens) == 1 + 3 + 6 + 1 + 6 + 10 + 6 + 3 + 2 + 3
    assert made.images[0] == made.images[3] != made.images[1]
    assert made.tokens[4:10] == (made.images[0],) * 6
    assert len(server.completed) == 2
    for prompt, parameters in server.completed:
        assert parameters == {"n_predict": 1, "cache_prompt": False}
        with Image.open(BytesIO(prompt.images[0])) as sent:
            assert len(sent.getcolors() or []) == 1  # not the log's own picture
    assert counting.content_tokens("one two", [a, c]) == 3 + 6 + 10


def test_a_model_without_eyes(tmp_path: Path) -> None:
    path = image(tmp_path, "a.png", 64, 64)
    message: Message = {"role": "user", "content": [{"type": "image", "path": path}]}
    with pytest.raises(TraceImportError, match="the model blind takes no images"):
        ServerCounter(FakeServer(), "blind").render([message])
    server = FakeServer()
    server.refused = "image input is not supported"
    with pytest.raises(TraceImportError, match="does not take an image of 64x64 pixels: image in"):
        counter(server).render([message])
    server = FakeServer()
    server.timings = {"cache_n": 0, "prompt_n": 4}
    with pytest.raises(TraceImportError, match="an image of 64x64 pixels came out at -5 tokens"):
        counter(server).render([message])
    server.timings = {"prompt_n": 4}
    with pytest.raises(TraceImportError, match="do not say what it computed"):
        counter(server).render([message])


def test_images_are_checked_and_the_marker_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    message: Message = {"role": "user", "content": [{"type": "image", "path": tmp_path / "a.png"}]}
    with pytest.raises(TraceImportError, match=r"a\.png: the image is not a PNG or JPEG file"):
        counter(FakeServer()).render([message])
    for content in (f"see {MARKER}", [{"type": "text", "text": MARKER}]):
        with pytest.raises(TraceImportError, match="holds the server's marker"):
            counter(FakeServer()).render([{"role": "user", "content": content}])


class Forgetful(FakeServer):
    def _turn(self, message: Message) -> str:
        return super()._turn(message).replace(MARKER, "" if "drop" in str(message) else MARKER)


def test_a_template_that_drops_images_is_told(tmp_path: Path) -> None:
    path = image(tmp_path, "a.png", 64, 64)
    content = [{"type": "image", "path": path}, {"type": "text", "text": "drop"}]
    with pytest.raises(TraceImportError, match="came out with 0 places for 1 images"):
        counter(Forgetful()).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("props", "marker"),
    [
        ({"modalities": {"vision": True}, "media_marker": MARKER}, MARKER),
        # The server names a marker whether or not its model can see.
        ({"modalities": {"vision": False}, "media_marker": MARKER}, ""),
        ({}, ""),
    ],
)
def test_the_counter_of_a_server(props: dict[str, Any], marker: str) -> None:
    class Asked(FakeServer):
        def props(self) -> dict[str, Any]:
            return props

    counting = ServerCounter.of(cast("Client", Asked()), "model-a")
    assert counting.name == "model-a"
    assert counting.render([words("x")]).marker == marker

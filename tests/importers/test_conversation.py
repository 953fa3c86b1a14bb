"""Depth and new content of counted prompts, with templates that keep and that rewrite history."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiment.errors import RequestRefused, TraceImportError
from experiment.importers.base import Call, Log
from experiment.importers.conversation import Conversation, Counted, common_tokens
from experiment.importers.counting import Message, Rendered
from experiment.progress import SilentProgress
from tests.importers.characters import Characters


def user(*parts: str | Path) -> Message:
    return {
        "role": "user",
        "content": [
            {"type": "image", "path": part}
            if isinstance(part, Path)
            else {"type": "text", "text": part}
            for part in parts
        ],
    }


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def picture(folder: Path, name: str, side: int = 64) -> Path:
    path = folder / f"{name}.png"
    Image.new("RGB", (side, side), len(name)).save(path)
    return path


def talk(counter: Characters, *turns: tuple[list[Message], Message | None]) -> list[Call]:
    conversation = Conversation(Counted(counter, Log(), SilentProgress()), "t")
    return [conversation.call(messages, answer, "log:1") for messages, answer in turns]


def told(call: Call) -> tuple[int | None, int | None, int | None, str | None, str | None]:
    name = None if call.screenshot is None else call.screenshot.name
    return call.depth, call.total, call.output, call.new_text, name


def test_history_that_grows_is_cached_with_its_answers(tmp_path: Path) -> None:
    image = picture(tmp_path, "a")
    first, answer, second = user(image, "Look."), assistant("I see."), user("And now?")
    calls = talk(Characters(), ([first], answer), ([first, answer, second], assistant("Yes")))
    assert list(map(told, calls)) == [
        (0, 9, 6, "Look.", "a.png"),
        (15, 23, 3, "And now?", None),
    ]


def test_marks_of_the_template_are_computed_but_are_no_content() -> None:
    first, answer, second = user("Look."), assistant("I see."), user("And now?")
    log = Log()
    counting = Counted(Characters(marks=True), log, SilentProgress())
    conversation = Conversation(counting, "t")
    calls = [
        conversation.call([first], answer, "log:1"),
        conversation.call([first, answer, second], None, "log:2"),
    ]
    counting.close()
    # [user]Look..[assistant] has 23, I see. 6; the dot behind it is the end of the turn, and new,
    # as are [user], the other dot and [assistant]: 19 in all around the 8 of the content.
    assert list(map(told, calls)) == [(0, 23, 6, "Look.", None), (29, 56, None, "And now?", None)]
    assert "(up to 19 tokens a step)" in log.assumptions[-1]


class Thinking(Characters):
    """Puts a mark before the answer that is not in the history later on."""

    def render(self, messages: list[Message]) -> Rendered:  # type: ignore[override]
        text = "".join(f"<{message['content']}>" for message in messages)
        return self._rendered(text + "<?", messages)


def test_an_answer_that_the_template_writes_otherwise_is_computed_again() -> None:
    first, answer, second = user("A"), assistant("B"), user("C")
    first["content"], second["content"] = "ask", "more"
    calls = talk(Thinking(), ([first], answer), ([first, answer, second], None))
    # Held: <ask><?B. The next prompt: <ask><B><more><?. In common: <ask><.
    assert list(map(told, calls)) == [(0, 7, 1, "ask", None), (6, 16, None, "Bmore", None)]


class Trimming(Characters):
    """Strips contents, and drops all answers but the last."""

    def render(self, messages: list[Message]) -> Rendered:  # type: ignore[override]
        last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        kept = [m for i, m in enumerate(messages) if m["role"] != "assistant" or i == last]
        return self._rendered("".join(f"{m['content']!s}".strip() for m in kept), messages)


def test_contents_that_the_template_strips_or_drops() -> None:
    one, two, three = ({"role": "user", "content": text} for text in ("one ", " two", "three"))
    a, b = assistant("a"), assistant("b")
    calls = talk(Trimming(), ([one], a), ([one, a, two], b), ([one, a, two, b, three], None))
    # one | oneatwo after onea | onetwobthree after oneatwob: only "one" is in common.
    assert list(map(told, calls)) == [
        (0, 3, 1, "one ", None),
        (4, 7, 1, " two", None),
        (3, 12, None, " twobthree", None),
    ]


def test_an_empty_turn_is_a_count(tmp_path: Path) -> None:
    first, answer, second = user("Look."), assistant("I see."), user("")
    calls = talk(Characters(marks=True), ([first], answer), ([first, answer, second], None))
    assert told(calls[1]) == (29, 48, None, None, None)


def test_an_image_that_changes_ends_what_is_cached(tmp_path: Path) -> None:
    one, other, new = (picture(tmp_path, name) for name in ("a", "bb", "ccc"))
    calls = talk(
        Characters(),
        ([user("x", one, "y")], assistant("z")),
        ([user("x", other, "y")], None),
    )
    assert told(calls[1]) == (1, 6, None, "y", "bb.png")
    with pytest.raises(TraceImportError, match="holds 2 images; a trace's row holds one"):
        talk(Characters(), ([user(one, new)], None))


def test_history_that_was_cut_is_not_cached() -> None:
    one, two = user("abc"), user("abX")
    calls = talk(Characters(), ([one], assistant("d")), ([two], None), ([two], None))
    assert [told(call)[:4] for call in calls] == [
        (0, 3, 1, "abc"),
        (2, 3, None, "X"),
        (3, 3, None, None),
    ]


def test_contents_that_look_like_earlier_ones_are_not_taken_for_them() -> None:
    ask = {"role": "user", "content": "ok"}
    ok = assistant("ok")
    calls = talk(
        Characters(marks=True), ([ask], ok), ([ask, ok, ask], ok), ([ask, ok, ask, ok, ask], ok)
    )
    assert [call.new_text for call in calls] == ["ok", "ok", "ok"]


class Refusing(Characters):
    def render(self, messages: list[Message]) -> Rendered:  # type: ignore[override]
        raise RequestRefused("HTTP 400: roles must alternate")


def test_what_the_server_refuses_is_told_with_its_place() -> None:
    with pytest.raises(TraceImportError) as caught:
        talk(Refusing(), ([user("a")], None))
    assert str(caught.value) == (
        "log:1: the server cannot make a prompt of this step: HTTP 400: roles must alternate"
    )


def test_the_common_prefix() -> None:
    assert common_tokens([], [1]) == 0
    assert common_tokens([1, 2], [1, 2, 3]) == 2
    assert common_tokens([1, 2, 3], [1, 9, 3]) == 1
    for n in range(9):
        held = [1] * n + [0] * (9 - n)
        assert common_tokens(held, [1] * 9) == n


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.text("ab[]. ", min_size=1, max_size=5), st.text("ab[]. ", max_size=5)),
        min_size=1,
        max_size=5,
    )
)
def test_a_history_that_only_grows_is_cached_whole(turns: list[tuple[str, str]]) -> None:
    messages: list[Message] = []
    talked = []
    for asked, said in turns:
        messages = [*messages, user(asked)]
        talked.append((messages, assistant(said)))
        messages = [*messages, assistant(said)]
    calls = talk(Characters(marks=True), *talked)
    assert [call.new_text for call in calls] == [asked for asked, _ in turns]
    held = 0
    for call in calls:
        assert call.depth == held
        held = (call.total or 0) + (call.output or 0)


def test_counting_tells_its_progress() -> None:
    class Listening(SilentProgress):
        heard: list[object] = []  # noqa: RUF012

        def start(self, what: str, total: float | None) -> None:
            self.heard.append((what, total))

        def advance(self, done: float, note: str = "") -> None:
            self.heard.append((done, note))

    progress = Listening()
    conversation = Conversation(Counted(Characters(), Log(), progress, 2), "t")
    for line in (1, 2):
        conversation.call([user("a")], None, f"/folder/log:{line}")
    assert progress.heard == [("Counting tokens", 2), (1, "log:1"), (2, "log:2")]

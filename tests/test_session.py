"""How large the context is, what a server must be able to do, and the prompts of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment.client import Prompt
from experiment.errors import ModelError, PrefixError
from experiment.graph import GraphValue
from experiment.models import ModelFiles
from experiment.prefix import StepPrompt
from experiment.screenshot import Screenshot, png_bytes
from experiment.session import _check_support, _prompt_maker
from experiment.step_size import context_size
from experiment.trace import Baseline, Step

MODEL = ModelFiles(Path("some.gguf"), None, "some", "0" * 64, None)
GRAPH: dict[str, GraphValue] = {
    "memory_class": "hybrid",
    "can_fake_prefix": True,
    "can_save_prefix": True,
}
SEES: dict[str, object] = {"modalities": {"vision": True, "audio": False}}


def step(
    depth: int = 300,
    *,
    text: str | None = None,
    tokens: int | None = None,
    size: tuple[int, int] | None = None,
    line: int = 1,
) -> Step:
    shot = Screenshot(None, *size) if size else None
    return Step("t", line - 1, depth, "tokens", text, tokens, shot, Baseline(), line)


@pytest.mark.parametrize(
    ("steps", "cells"),
    [
        ([step(300, tokens=20)], 768),  # 300 + 20 + 256 = 576
        ([step(512)], 768),  # exactly full: 512 + 256
        ([step(512, tokens=1)], 1024),
        ([step(100, text="é" * 100)], 768),  # 100 + 200 bytes + 256 = 556
        ([step(1000, size=(1280, 720))], 2560),  # 1000 + 46 * 26 + 256 = 2452
        ([step(1000, tokens=200, size=(1280, 720))], 2816),  # 2652
        ([step(9000), step(100, tokens=5000), step(8000, tokens=2000)], 10496),  # 10256
    ],
)
def test_the_context_holds_the_largest_step(steps: list[Step], cells: int) -> None:
    assert context_size(steps) == cells


def test_the_context_has_room_and_is_a_multiple_of_256() -> None:
    for depth in range(0, 2000, 37):
        one = step(depth, text="word " * 30, size=(641, 361))
        size = context_size([one])
        assert size % 256 == 0
        assert size >= depth + 150 + 23 * 13 + 100
        assert size < depth + 150 + 23 * 13 + 600


@pytest.mark.parametrize("side", [1, 28, 29, 56, 1000])
def test_a_strip_of_pixels_counts_as_a_whole_token(side: int) -> None:
    tokens = -(-side // 28)
    depth = 10_240 - 256
    for size in ((side, 28 * 256), (28 * 256, side)):
        assert context_size([step(depth, size=size)]) == 10_240 + 256 * tokens


def check(
    graph: dict[str, GraphValue] | None = None,
    props: dict[str, Any] | None = None,
    steps: tuple[Step, ...] = (step(),),
) -> None:
    _check_support(
        GRAPH if graph is None else graph, SEES if props is None else props, steps, MODEL
    )


def test_a_model_that_can_do_all_is_taken() -> None:
    check()
    check(steps=(step(), step(size=(640, 360))))


def test_text_alone_needs_no_vision_tower() -> None:
    for props in ({}, {"modalities": {"vision": False}}, {"modalities": None}):
        check(props=props)


def test_a_server_without_the_patches_is_refused() -> None:
    with pytest.raises(ModelError, match="does not know prefixes") as caught:
        check(graph={"n_ctx": 4096})
    assert "invoke build" in str(caught.value)


@pytest.mark.parametrize(
    ("lacks", "what"), [("can_fake_prefix", "fabricated"), ("can_save_prefix", "restored")]
)
def test_a_memory_that_takes_no_prefix_is_refused_by_its_class(lacks: str, what: str) -> None:
    with pytest.raises(ModelError) as caught:
        check(graph=GRAPH | {"memory_class": "iswa", lacks: False})
    assert caught.value.what == (f"the model's memory (class: iswa) cannot take a {what} prefix")
    assert caught.value.where == "some.gguf"
    assert "sliding-window" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "props", [{}, {"modalities": None}, {"modalities": {}}, {"modalities": {"vision": False}}]
)
def test_a_screenshot_without_a_vision_tower_is_refused_by_its_line(props: dict[str, Any]) -> None:
    steps = (step(line=1), step(line=2, size=(640, 360)), step(line=3, size=(640, 360)))
    with pytest.raises(ModelError, match="line 2 of the trace has a screenshot") as caught:
        check(props=props, steps=steps)
    assert "--mmproj" in (caught.value.hint or "")


class FakePrefixes:
    """Keeps what it was asked to make a prompt of."""

    def __init__(self) -> None:
        self.asked: list[tuple[Step, bytes | None]] = []

    def step_prompt(self, step: Step, image: bytes | None) -> StepPrompt:
        self.asked.append((step, image))
        if step.depth < 3:
            raise PrefixError("too small")
        return StepPrompt(
            Prompt(f"prompt of {step.line}", (image,) if image else ()), step.depth, 1
        )


def test_a_prompt_is_made_once_for_all_rounds() -> None:
    prefixes = FakePrefixes()
    prompt_of = _prompt_maker(prefixes, seed=5)  # type: ignore[arg-type]
    one, two = step(line=1), step(line=2)
    assert [prompt_of(one), prompt_of(two), prompt_of(one)] == [
        StepPrompt(Prompt("prompt of 1"), 300, 1),
        StepPrompt(Prompt("prompt of 2"), 300, 1),
        StepPrompt(Prompt("prompt of 1"), 300, 1),
    ]
    assert prefixes.asked == [(one, None), (two, None)]


def test_a_step_that_cannot_be_asked_for_is_refused_each_time() -> None:
    prompt_of = _prompt_maker(FakePrefixes(), seed=5)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(PrefixError):
            prompt_of(step(2))


def test_each_line_of_the_trace_shows_a_screen_of_its_own() -> None:
    prefixes = FakePrefixes()
    prompt_of = _prompt_maker(prefixes, seed=2**32 - 1)  # type: ignore[arg-type]
    steps = [step(line=line, size=(320, 200)) for line in (1, 2)]
    images = [prompt_of(one).prompt.images for one in steps]
    assert images[0] != images[1]
    other = FakePrefixes()
    again = _prompt_maker(other, seed=2**32 - 1)  # type: ignore[arg-type]
    assert again(steps[0]).prompt.images == images[0]
    assert images[0] == (png_bytes(Screenshot(None, 320, 200), 0),)  # the seed stays in its range


def test_a_screenshot_from_a_file_is_sent_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "s.png"
    file.write_bytes(png_bytes(Screenshot(None, 320, 200), 1))
    one = replace(step(), screenshot=Screenshot(file, 320, 200))
    prompt_of = _prompt_maker(FakePrefixes(), seed=5)  # type: ignore[arg-type]
    assert prompt_of(one).prompt.images == (file.read_bytes(),)

"""How many tokens a step appends, as far as that is known before its content is decoded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from experiment.recorded import StepKey
from experiment.trace import Step

TEXT_BYTES_PER_TOKEN = 4.0
"""UTF-8 bytes of a token of text; the texts of the default trace have 2.9 to 5.0 with the
vocabulary of Qwen, 4.2 all together."""

MAX_TEXT_BYTES_PER_TOKEN = 8.0
"""More bytes a token than any ordinary text has."""

IMAGE_GRID_PIXELS = 32
"""Side of the square that is one token to the vision towers of Qwen3-VL and its kin."""

FINEST_GRID_PIXELS = 28
"""The same of the finest grid among the towers that llama.cpp knows for such models."""


# Template head and tail, markers around an image, the token that is decoded in the end.
_CONTEXT_MARGIN = 256
_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens: what is likely, and what they are at least and at most; all alike if known."""

    low: int
    likely: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether the number is known."""
        return self.low == self.high


def exactly(tokens: int) -> Size:
    """A number that is known."""
    return Size(tokens, tokens, tokens)


NONE = exactly(0)


@dataclass(frozen=True)
class Sizes:
    """What is known of how a model counts; the default is what holds before one is asked.

    Attributes:
        tail: tokens of the chat template behind a step's own content.
        bytes_per_token: of texts, where some have been counted.
        images: width and height in pixels -> tokens, those of the markers included.
    """

    tail: int = 0
    bytes_per_token: float = TEXT_BYTES_PER_TOKEN
    images: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def of(self, step: Step) -> Size:
        """All tokens that a step adds behind its depth."""
        text, image, tail = self.text(step), self.image(step), self.tail
        return Size(
            tail + text.low + image.low,
            tail + text.likely + image.likely,
            tail + text.high + image.high,
        )

    def text(self, step: Step) -> Size:
        """Those of its text. A text has no more tokens than UTF-8 bytes."""
        if step.new_tokens is not None:
            return exactly(step.new_tokens)
        if step.new_text is None:
            return NONE
        size = len(step.new_text.encode())
        low = max(1, math.ceil(size / MAX_TEXT_BYTES_PER_TOKEN))
        return Size(low, min(size, max(low, round(size / self.bytes_per_token))), size)

    def image(self, step: Step) -> Size:
        """Those of its screenshot, 0 without one."""
        shot = step.screenshot
        if shot is None:
            return NONE
        size = (shot.width, shot.height)
        known = self.images.get(size)
        if known is not None:
            return exactly(known)
        likely = max(1, round(math.prod(size) * self._tokens_per_pixel))
        finest = math.prod(math.ceil(side / FINEST_GRID_PIXELS) for side in size)
        return Size(max(1, likely // 2), likely, max(likely, finest))

    @cached_property
    def _tokens_per_pixel(self) -> float:
        if not self.images:
            return IMAGE_GRID_PIXELS**-2
        return sum(self.images.values()) / sum(map(math.prod, self.images))


def context_size(steps: Sequence[Step]) -> int:
    """KV cells that hold the largest step: depth, text, image and some room, a multiple of 256.

    Of what is not counted yet the most is taken that it can have; what that overestimates costs
    only address space.
    """
    sizes = Sizes()
    largest = max(step.depth + sizes.of(step).high for step in steps)
    return math.ceil((largest + _CONTEXT_MARGIN) / _CONTEXT_STEP) * _CONTEXT_STEP


def learned(
    steps: Iterable[Step], counted: Mapping[StepKey, tuple[int, int]], before: Sizes | None = None
) -> Sizes:
    """What measured steps tell about the sizes of others.

    Args:
        steps: of the trace.
        counted: of each measured step all tokens that were decoded behind the prefix, and how many
            of them are its own text.
        before: what holds where they tell nothing.
    """
    before = before or Sizes()
    known = [(step, *found) for step in steps if (found := counted.get((step.task_id, step.step)))]
    tails = [new - text for step, new, text in known if step.screenshot is None]
    tail = min(tails, default=before.tail)
    texts = [
        (len(step.new_text.encode()), text) for step, _, text in known if step.new_text and text > 0
    ]
    images = dict(before.images)
    for step, new, text in known:
        if step.screenshot is not None and new - text > tail:
            images[step.screenshot.width, step.screenshot.height] = new - text - tail
    size, tokens = (sum(column) for column in zip(*texts, strict=True)) if texts else (0, 0)
    return Sizes(tail, size / tokens if tokens else before.bytes_per_token, images)

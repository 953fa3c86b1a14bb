"""Prompts whose new content starts at token L exactly, for any tokenizer and chat template."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from experiment.client import Prompt
from experiment.errors import PrefixError
from experiment.trace import Step

_SENTINEL = "SENTINEL0CONTENT"
_MIN_DISTINCT_UNITS = 2


class Tokenizer(Protocol):
    """The part of the server's API that this module needs (`experiment.client.Client`)."""

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""
        ...

    def apply_template(self, messages: Sequence[dict[str, object]]) -> str:
        """The prompt that the chat template makes of messages."""
        ...


@dataclass(frozen=True)
class StepPrompt:
    """A step's request text and what is known of its size before it is sent.

    Attributes:
        prompt: what to send.
        depth: L, the tokens before the new content.
        new_text_tokens: tokens of the step's own text, without image and template tail.
    """

    prompt: Prompt
    depth: int
    new_text_tokens: int


class PrefixBuilder:
    """Fills the space between the chat template's head and a step's new content with words.

    The placeholder run is a seeded sequence of varied ordinary words, so that a real prefix of
    it has ordinary values. It is one sequence: the run for a smaller L is a prefix of the run for
    a larger one, and a state saved for one L serves every larger L as a start.

    Args:
        tokenizer: the server whose model decides what a token is.
        words: candidate placeholders; those that are not one token each are left out.
        seed: of the sequence.
        max_depth: the largest L that is going to be asked for.
        media_marker: what stands for an image in a prompt.

    Raises:
        PrefixError: no placeholder adds exactly one token with this tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Sequence[str],
        *,
        seed: int,
        max_depth: int,
        media_marker: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._marker = media_marker
        self._head, self._tail = self._template_frame()
        head_tokens = tokenizer.tokenize(self._head, add_special=True)
        self.head_tokens = len(head_tokens)
        self._tail_tokens = len(tokenizer.tokenize(self._tail, add_special=False))
        self._units = self._usable_units(words)
        chooser = random.Random(seed)
        self._run = [
            chooser.choice(self._units) for _ in range(max(0, max_depth - self.head_tokens))
        ]
        self._tokens = tuple(tokenizer.tokenize(self._head + "".join(self._run), add_special=True))
        if len(self._tokens) != self.head_tokens + len(self._run):
            raise PrefixError(
                f"{len(self._run)} placeholders after the template's {self.head_tokens} tokens "
                f"made {len(self._tokens)} tokens",
                hint="this tokenizer merges words that are single tokens one by one",
            )

    @property
    def min_depth(self) -> int:
        """The smallest L of a prefix: the chat template's head alone."""
        return self.head_tokens

    def prefix_text(self, depth: int) -> str:
        """Template head and placeholders, exactly ``depth`` tokens.

        Raises:
            PrefixError: ``depth`` is smaller than the head or larger than ``max_depth``, or the
                text does not come out at ``depth`` tokens.
        """
        self._check_depth(depth)
        text = self._head + "".join(self._run[: depth - self.head_tokens])
        tokens = self._tokenizer.tokenize(text, add_special=True)
        if tuple(tokens) != self._tokens[:depth]:
            raise PrefixError(f"the placeholders for depth {depth} made {len(tokens)} tokens")
        return text

    def _check_depth(self, depth: int) -> None:
        """Refuse a depth that no prompt has: one within the head, or beyond what is prepared."""
        if depth < self.head_tokens:
            raise PrefixError(
                f"depth {depth} is too small: the chat template's head alone has "
                f"{self.head_tokens} tokens"
            )
        if depth > len(self._tokens):
            raise PrefixError(f"depth {depth} is beyond the {len(self._tokens)} tokens prepared")

    def step_prompt(self, step: Step, image: bytes | None) -> StepPrompt:
        """The whole prompt of a step: ``depth`` tokens of prefix, then its image and text.

        With nothing cached the template's head is there all the same: it belongs to what is new.

        Raises:
            PrefixError: this step cannot be made to land exactly; the message says why.
        """
        text = self._step_text(step)
        count = self._text_tokens(step, text) if text else 0
        before = step.depth or self.head_tokens
        if image is not None:
            # The marker cuts the text in two: nothing before it can merge with what follows.
            joined = f"{self.prefix_text(before)}{self._marker}{text}{self._tail}"
            return StepPrompt(Prompt(joined, (image,)), step.depth, count)
        # Tokens that are sent as ids cannot merge with the text behind them.
        self._check_depth(before)
        tokens = self._tokens[:before]
        return StepPrompt(Prompt(text + self._tail, tokens=tokens), step.depth, count)

    def _text_tokens(self, step: Step, text: str) -> int:
        # The server tokenises it on its own, together with the template's tail.
        count = len(self._tokenizer.tokenize(text + self._tail, add_special=False))
        count -= self._tail_tokens
        if step.new_tokens is not None and count != step.new_tokens:
            raise PrefixError(f"{step.new_tokens} new text tokens came out as {count}")
        if count < 1:
            raise PrefixError("the new text merges with the chat template's tail: no token is new")
        return count

    def _step_text(self, step: Step) -> str:
        if step.new_text is not None:
            return step.new_text
        chooser = random.Random(f"{self._seed}/{step.task_id}/{step.step}")
        return "".join(chooser.choice(self._units) for _ in range(step.new_tokens or 0))

    def _template_frame(self) -> tuple[str, str]:
        prompt = self._tokenizer.apply_template([{"role": "user", "content": _SENTINEL}])
        head, found, tail = prompt.partition(_SENTINEL)
        if not found or _SENTINEL in tail:
            raise PrefixError("the chat template does not show the user's text exactly once")
        return head, tail

    def _usable_units(self, words: Sequence[str]) -> list[str]:
        # Words first; a tokenizer without whole words (of bytes, or of characters) has letters.
        families = [
            [f" {word}" for word in words],
            [f" {letter}" for letter in string.ascii_letters],
            list(string.ascii_letters + string.digits),
        ]
        for family in families:
            units = self._single_token_units(family)
            if len(units) >= _MIN_DISTINCT_UNITS:
                return units
        raise PrefixError(
            "no placeholder word or letter adds exactly one token with this model's tokenizer"
        )

    def _single_token_units(self, units: Sequence[str]) -> list[str]:
        """The units that add one token each, found by halving: one request if all of them do."""
        if not units:
            return []
        tokens = self._tokenizer.tokenize(self._head + "".join(units), add_special=True)
        if len(tokens) == self.head_tokens + len(units):
            return list(units)
        if len(units) == 1:
            return []
        middle = len(units) // 2
        return self._single_token_units(units[:middle]) + self._single_token_units(units[middle:])

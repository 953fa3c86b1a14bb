"""Whether an answer may count: its prefix is the one asked for, its structure the step's own."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from experiment.records import Fill, Variant
from experiment.trace import Step

# What an answer must hold to be judged and recorded.
_FIGURES = (
    ("timings", "prompt_n"),
    ("timings", "prompt_ms"),
    ("timings", "encode_ms"),
    ("prefix", "install_ms"),
    ("prefix", "n_kv"),
)
_KIND: Mapping[Variant, str] = {
    "fake": "fake",
    "control": "fake",
    "restored": "state",
    "full": "none",
}
_FIELDS = 4  # of Expected

FABRICATED: tuple[Variant, ...] = ("fake", "control")
"""The variants whose prefix is never computed."""


@dataclass(frozen=True, slots=True)
class Ubatches:
    """What each ubatch of an answer's new content was, in order.

    New tokens, KV columns that its attention read, nodes of its compute graph.
    """

    tokens: tuple[int, ...]
    n_kv: tuple[int, ...]
    nodes: tuple[int, ...]


def read_ubatches(timings: Mapping[str, Any]) -> Ubatches | None:
    """``prefix.ubatches`` of an answer's timings; None where that is not a list of such records."""
    prefix = timings.get("prefix")
    items = prefix.get("ubatches") if isinstance(prefix, Mapping) else None
    if not isinstance(items, list) or not items:
        return None
    columns: list[tuple[int, ...]] = []
    for name in ("n_tokens", "n_kv", "n_nodes"):
        values = [item.get(name) if isinstance(item, Mapping) else None for item in items]
        counts = tuple(value for value in values if type(value) is int and value >= 0)
        if len(counts) < len(items):
            return None
        columns.append(counts)
    return Ubatches(*columns)


@dataclass(frozen=True, slots=True)
class Expected:
    """What earlier valid measurements of a step say about the next one of it.

    The ubatches are those of fake, control and restored; None = none of them measured so far.
    """

    new: int
    n_kv: int
    ubatch_tokens: tuple[int, ...] | None = None
    ubatch_n_kv: tuple[int, ...] | None = None


class _Memory:
    """What is expected of each step, by its line in the trace.

    A line takes 16 bytes, and each different value is there once: steps are as many as the trace
    is long, but numbers of tokens and columns only as many as a model's context has.
    """

    def __init__(self) -> None:
        self._places = array("I")
        self._values: list[Any] = [None]
        self._place_of: dict[Any, int] = {}

    def get(self, line: int) -> Expected | None:
        places = self._places[_FIELDS * line : _FIELDS * (line + 1)]
        if not any(places):
            return None
        return Expected(*(self._values[place] for place in places))

    def put(self, line: int, expected: Expected) -> None:
        new = (line + 1) * _FIELDS - len(self._places)
        self._places.extend(repeat(0, new))
        fields = (expected.new, expected.n_kv, expected.ubatch_tokens, expected.ubatch_n_kv)
        for field, value in enumerate(fields):
            self._places[_FIELDS * line + field] = self._place(value)

    def _place(self, value: Any) -> int:
        if value is None:
            return 0
        place = self._place_of.setdefault(value, len(self._values))
        if place == len(self._values):
            self._values.append(value)
        return place


class Judge:
    """Checks each answer against the step's depth and against the step's other variants.

    ``cache_n == L`` for fake, control and restored, ``prompt_n`` equal between them, and
    ``full.prompt_n == L + fake.prompt_n``; all of them read the same number of KV columns. The
    ubatches add up to ``prompt_n`` and end at ``n_kv``; those of fake, control and restored are
    alike. Steps are told apart by their lines in the trace.

    Args:
        fill: the data that a fabricated prefix is to have.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._expected = _Memory()

    def learn(self, step: Step, expected: Expected) -> None:
        """Take over what an earlier part of the run (before a resume) has measured."""
        self._expected.put(step.line, expected)

    def problem(self, step: Step, variant: Variant, timings: Mapping[str, Any]) -> str | None:
        """Why an answer must not count, or None. A first good one sets what later ones must be."""
        problem = self._of_itself(step, variant, timings)
        if problem is not None:
            return problem
        wanted = _wanted(step, variant)
        found = Expected(timings["prompt_n"] - (step.depth - wanted), timings["prefix"]["n_kv"])
        ubatches = read_ubatches(timings)
        if variant != "full" and ubatches is not None:
            found = replace(found, ubatch_tokens=ubatches.tokens, ubatch_n_kv=ubatches.n_kv)
        seen = self._expected.get(step.line) or found
        problem = _difference(found, seen)
        if problem is None:
            # A first `full` does not know the ubatches of the others.
            self._expected.put(step.line, found if seen.ubatch_tokens is None else seen)
        return problem

    def _of_itself(self, step: Step, variant: Variant, timings: Mapping[str, Any]) -> str | None:
        prefix = timings.get("prefix")
        if not isinstance(prefix, Mapping):
            return "the server did not report how the prefix was put in place; is it patched?"
        for place, name in _FIGURES:
            value = (prefix if place == "prefix" else timings).get(name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                return f"{name} is {value}, which is no figure"
        wanted = _wanted(step, variant)
        if prefix.get("kind") != _KIND[variant]:
            return f"prefix kind is {prefix.get('kind')!r}, not {_KIND[variant]!r}"
        if variant in FABRICATED and prefix.get("fill") != self._fill:
            return f"the prefix's fill is {prefix.get('fill')!r}, not {self._fill!r}"
        if timings.get("cache_n") != wanted:
            return f"cache_n is {timings.get('cache_n')}, not {wanted}"
        new = timings["prompt_n"] - (step.depth - wanted)
        if new < 1:
            return f"prompt_n is {timings['prompt_n']}, less than the depth of {step.depth}"
        if prefix["n_kv"] < step.depth + new:
            return f"the attention read {prefix['n_kv']} KV columns of {step.depth + new}"
        ubatches = read_ubatches(timings)
        if ubatches is None:
            return "the server did not report the ubatches (n_tokens, n_kv and n_nodes of each)"
        if sum(ubatches.tokens) != timings["prompt_n"]:
            return f"ubatches of {sum(ubatches.tokens)} tokens, but prompt_n {timings['prompt_n']}"
        if ubatches.n_kv[-1] != prefix["n_kv"]:
            return f"the last ubatch read {ubatches.n_kv[-1]} KV columns, n_kv is {prefix['n_kv']}"
        return None


def _wanted(step: Step, variant: Variant) -> int:
    return 0 if variant == "full" else step.depth


def _difference(found: Expected, seen: Expected) -> str | None:
    if found.new != seen.new:
        return f"{found.new} new tokens, but {seen.new} in the step's other measurements"
    if found.n_kv != seen.n_kv:
        return f"n_kv is {found.n_kv}, but {seen.n_kv} in the step's other measurements"
    for what, one, other in (
        ("ubatches have tokens", found.ubatch_tokens, seen.ubatch_tokens),
        ("ubatches read KV columns", found.ubatch_n_kv, seen.ubatch_n_kv),
    ):
        if one is not None and other is not None and one != other:
            return f"{what} {list(one)}, but {list(other)} in the step's other measurements"
    return None

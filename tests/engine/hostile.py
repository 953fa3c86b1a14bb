"""Requests that nobody should send: generated from a seed, sent, and judged by what must hold."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import requests

from experiment.client import Client, Prompt
from experiment.prefix import PrefixBuilder
from experiment.screenshot import png_bytes
from tests.engine.asking import SMALL, ask, prompt

CONTEXT = 2048
SLOTS = 4
TIMEOUT_S = 120
CANCELLED = 0
"""What stands for the status of a request whose sender has gone away."""

_COMPLAINTS = (
    "GGML_ASSERT",
    "Assertion",
    "AddressSanitizer",
    "runtime error:",
    "wrong tail",
    "duplicate tail",
    "terminate called",
)
"""What a server prints that has done something it must never do."""

_GIBBERISH = "Failed to parse input at pos"
"""What upstream's chat parser says, with HTTP 500, of what a model with random weights writes."""


def complaints(log: str) -> list[str]:
    """The lines of a server's log in which it complains of itself.

    Not those that quote what a model has written: with random weights that is any word at all.
    """
    return [
        line
        for line in log.splitlines()
        if any(word in line for word in _COMPLAINTS) and _GIBBERISH not in line
    ]


# Wrong types, and numbers beyond what any counter holds.
_JUNK: Sequence[Any] = (
    *(-1, -(2**31), -(2**63), 2**31, 2**32, 2**53, 2**63, 2**64, 10**30),
    *(0.0, 1.0, 0.5, -0.5, 1e300, None, True, False),
    *("", "1", "300", [], [1], {}, {"n": 1}, [[]], "\u0000", "x" * 1000),
)
_SIDE_FIELDS: Mapping[str, Sequence[Any]] = {
    "fake_fill": ("tile", "zero", "tile", "none", "", 1, None, [], "TILE"),
    "count_experts": (True, False, True, 1, "yes", None),
    "n": (1, 2, 3, 0, -1, "2", None),
    "id_slot": (0, 1, 2, 3, -1, 4, 99, "0", 2**40),
    "n_probs": (0, 1, 5, -1),
    "stream": (True, False),
}
_ENDPOINTS = ("/completion", "/completion", "/completion", "/v1/completions", "/completions")
_OTHERS = ("/infill", "/embedding", "/v1/embeddings", "/rerank", "/tokenize", "/apply-template")


@dataclass(frozen=True)
class Case:
    """A prompt, how many tokens it has, and the lengths at which something changes."""

    name: str
    prompt: Any = field(repr=False)
    total: int
    edges: tuple[int, ...]


@dataclass(frozen=True)
class Hostile:
    """One request: where it goes, what it says, and whether its sender goes away early."""

    endpoint: str
    case: Case | None
    fields: Mapping[str, Any] = field(hash=False)
    leaves_after_bytes: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """What is sent; a prompt of thousands of numbers is not what one wants to read."""
        return {**({"prompt": self.case.prompt} if self.case else {}), **self.fields}


def cases(client: Client, prefixes: PrefixBuilder, *, images: bool = True) -> tuple[Case, ...]:
    """Prompts of every kind, measured by ordinary requests."""
    head = prefixes.head_tokens
    prompts = {"short": Prompt("Say yes."), "text": prompt(prefixes, 300)}
    if images:
        marker = str(client.props()["media_marker"])
        picture = png_bytes(SMALL, 7)
        prompts["image"] = prompt(prefixes, 300, image=True)
        prompts["images"] = Prompt(f"{marker} and then {marker} at last", (picture, picture))
    found = []
    for name, what in prompts.items():
        total = ask(client, what, n_fake_cached=0).timings["prompt_n"]
        edges = {0, 1, 2, head - 1, head, 255, 256, 257, 299, 300, 301, total - 2, total - 1}
        edges |= {total, total + 1, CONTEXT - 1, CONTEXT, CONTEXT + 1, total // 2, total // 3}
        found.append(Case(name, what.as_json(), total, tuple(sorted(e for e in edges if e >= 0))))
    return tuple(found)


def hostile(chance: Random, known: Sequence[Case]) -> Hostile:
    """A request of which most parts are right, so that it gets far before it fails.

    ``chance`` is the fuzzer's own, or one whose choices Hypothesis makes (and shrinks).
    """
    if chance.randrange(20) == 0:
        names = ["prompt", "n_fake_cached", "n_state_cached", "input", "content"]
        fields = {name: chance.choice(_JUNK) for name in names if chance.randrange(2)}
        fields["n_predict"] = 1  # which is otherwise as many as the context takes
        return Hostile(chance.choice(_OTHERS + _ENDPOINTS), None, fields)
    case = chance.choice(known)

    def length() -> Any:
        kind = chance.randrange(8)
        if kind < 4:
            return chance.choice(case.edges)
        return chance.randrange(case.total + 10) if kind < 7 else chance.choice(_JUNK)

    fields = {
        "n_predict": chance.choice([0, 1, 1, 1, 3]),
        "cache_prompt": chance.randrange(2) == 0,
        "temperature": 0.0,
        "seed": 1,
    }
    prefixes = chance.choice(["n_fake_cached"] * 4 + ["n_state_cached"] * 3 + ["both", "none"])
    for name in ("n_fake_cached", "n_state_cached"):
        if prefixes in (name, "both"):
            fields[name] = length()
    for name, values in _SIDE_FIELDS.items():
        if chance.randrange(6) == 0:
            fields[name] = chance.choice(values)
    leaves = None
    if chance.randrange(10) == 0:
        fields["stream"], fields["n_predict"] = True, chance.choice([1, 40])
        leaves = chance.choice([0, 1, 200])
    return Hostile(chance.choice(_ENDPOINTS), case, fields, leaves)


def send(client: Client, request: Hostile) -> tuple[int, Any]:
    """Status and body of the answer; the text of a streamed one.

    Raises:
        requests.RequestException: the server went away.
    """
    streamed = request.leaves_after_bytes is not None
    with requests.Session() as session:
        # A connection of its own: one that is given up half-way cannot be used again.
        session.headers.update(client._session.headers)
        session.trust_env = False
        answer = session.post(
            client.url + request.endpoint, json=request.body, timeout=TIMEOUT_S, stream=streamed
        )
        if streamed:
            wanted = request.leaves_after_bytes or 0
            if wanted:
                with contextlib.suppress(requests.RequestException):
                    next(answer.iter_content(wanted), b"")
            return CANCELLED, None
        try:
            return answer.status_code, answer.json()
        except requests.JSONDecodeError:
            return answer.status_code, answer.text


def problem(request: Hostile, status: int, body: Any) -> str | None:
    """What is wrong with an answer, or None."""
    if status == CANCELLED:
        return None
    # Upstream's own parsing of other fields answers some wrong types with 500: not ours to judge.
    ours = request.case is not None and _GIBBERISH not in str(body)
    if status >= 500 and status != 501 and ours:
        return f"HTTP {status}: {str(body)[:300]}"
    if status != 200:
        error = body.get("error") if isinstance(body, Mapping) else None
        sentence = error.get("message") if isinstance(error, Mapping) else error
        return None if isinstance(sentence, str) and sentence else f"no sentence: {body!r}"
    if not isinstance(body, Mapping) or request.case is None or "timings" not in body:
        return None
    timings = body["timings"]
    for name in ("n_fake_cached", "n_state_cached"):
        length = request.fields.get(name)
        if length and timings["cache_n"] != length:
            return f"{name} {length} gave cache_n {timings['cache_n']}"
        if length and timings["prompt_n"] != request.case.total - length:
            return f"{name} {length} of {request.case.total} gave prompt_n {timings['prompt_n']}"
    return None

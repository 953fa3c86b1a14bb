"""One request becomes one measurement: send it, read its timings, judge whether it may count."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiment.client import Client, Prompt, Reply
from experiment.errors import PrefixError, RequestRefused, TraceError
from experiment.prefix import StepPrompt
from experiment.records import Measurement, Status, Variant
from experiment.schedule import Planned
from experiment.trace import Step

# The field that asks for each variant. `full` names one too, as 0: the server then reports
# n_kv and encode_ms, which it does not do for a request that names none.
_PREFIX_FIELD: Mapping[Variant, str] = {
    "fake": "n_fake_cached",
    "restored": "n_state_cached",
    "full": "n_fake_cached",
}
# What an answer must hold to be judged and recorded.
_FIGURES = (
    ("timings", "prompt_n"),
    ("timings", "prompt_ms"),
    ("timings", "encode_ms"),
    ("prefix", "install_ms"),
    ("prefix", "n_kv"),
)
_KIND: Mapping[Variant, str] = {"fake": "fake", "restored": "state", "full": "none"}


@dataclass(frozen=True, slots=True)
class Expected:
    """What earlier valid measurements of a step say about the next one of it."""

    new: int
    n_kv: int


class Judge:
    """Checks each answer against the step's depth and against the step's other variants.

    ``cache_n == L`` for fake and restored, ``prompt_n`` equal between them, and
    ``full.prompt_n == L + fake.prompt_n``; all of them read the same number of KV columns.
    """

    def __init__(self) -> None:
        self._expected: dict[tuple[str, int], Expected] = {}

    def learn(self, task_id: str, step: int, expected: Expected) -> None:
        """Take over what an earlier part of the run (before a resume) has measured."""
        self._expected[(task_id, step)] = expected

    def problem(self, step: Step, variant: Variant, timings: Mapping[str, Any]) -> str | None:
        """Why an answer must not count, or None. A first good one sets what later ones must be."""
        prefix = timings.get("prefix")
        if not isinstance(prefix, Mapping):
            return "the server did not report how the prefix was put in place; is it patched?"
        for place, name in _FIGURES:
            value = (prefix if place == "prefix" else timings).get(name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                return f"{name} is {value}, which is no figure"
        wanted = 0 if variant == "full" else step.depth
        if prefix.get("kind") != _KIND[variant]:
            return f"prefix kind is {prefix.get('kind')!r}, not {_KIND[variant]!r}"
        if timings.get("cache_n") != wanted:
            return f"cache_n is {timings.get('cache_n')}, not {wanted}"
        new = timings["prompt_n"] - (step.depth - wanted)
        if new < 1:
            return f"prompt_n is {timings['prompt_n']}, less than the depth of {step.depth}"
        if prefix["n_kv"] < step.depth + new:
            return f"the attention read {prefix['n_kv']} KV columns of {step.depth + new}"
        seen = self._expected.setdefault(
            (step.task_id, step.step), Expected(new, int(prefix["n_kv"]))
        )
        if new != seen.new:
            return f"{new} new tokens, but {seen.new} in the step's other measurements"
        if prefix["n_kv"] != seen.n_kv:
            return f"n_kv is {prefix['n_kv']}, but {seen.n_kv} in the step's other measurements"
        return None


class Measurer:
    """Makes measurements of one server.

    Args:
        client: the server.
        prompt_of: a step's prompt; may raise `PrefixError` or `TraceError`.
        raw: folder for each request's parameters and the response.
        judge: see `Judge`.
    """

    def __init__(
        self, client: Client, prompt_of: Callable[[Step], StepPrompt], raw: Path, judge: Judge
    ) -> None:
        self._client = client
        self._prompt_of = prompt_of
        self._raw = raw
        self._judge = judge

    def measure(self, item: Planned) -> Measurement:
        """Do what ``item`` plans.

        A step that cannot be asked for, or that the server refuses, comes back as ``refused`` with
        the reason.

        Raises:
            ServerError: no answer; nothing is known about this measurement.
        """
        started_at = datetime.now(UTC)
        step, variant = item.step, item.variant
        blank = Measurement(
            task_id=step.task_id,
            step=step.step,
            variant=variant,
            round=item.round,
            depth=step.depth,
            status="refused",
            started_at=started_at,
            position_in_round=item.position_in_round,
            error="not asked",
        )
        parameters = {
            "n_predict": 1,
            "cache_prompt": False,
            "temperature": 0.0,
            "response_fields": ["timings", "tokens_evaluated", "content", "truncated"],
            _PREFIX_FIELD[variant]: 0 if variant == "full" else step.depth,
        }
        try:
            prompt = self._prompt_of(step).prompt
            reply = self._client.complete(prompt, **parameters)
        except (PrefixError, RequestRefused, TraceError) as error:
            return replace(blank, error=error.what)
        raw = self._keep(item, prompt, reply)
        timings = reply.timings
        problem = self._judge.problem(step, variant, timings)
        prefix = timings.get("prefix") or {}
        status: Status = "warmup" if item.round < 0 else "ok"
        return replace(
            blank,
            status="invalid" if problem else status,
            error=problem,
            cache_n=timings.get("cache_n"),
            prompt_n=timings.get("prompt_n"),
            prompt_ms=timings.get("prompt_ms"),
            install_ms=prefix.get("install_ms"),
            encode_ms=timings.get("encode_ms"),
            wall_ms=reply.wall_ms,
            prime_ms=prefix.get("prime_ms"),
            size_bytes=prefix.get("size_bytes"),
            pos_min=prefix.get("pos_min"),
            pos_max=prefix.get("pos_max"),
            n_kv=prefix.get("n_kv"),
            raw=raw,
        )

    def _keep(self, item: Planned, prompt: Prompt, reply: Reply) -> str:
        """Write what was sent and what came back; the prompt by digest, it can be rebuilt."""
        step = item.step
        name = f"{step.line:06d}_{item.variant}_{item.round}.json"
        record = {
            "task_id": step.task_id,
            "step": step.step,
            "variant": item.variant,
            "round": item.round,
            "prompt": {
                "sha256": hashlib.sha256(prompt.text.encode()).hexdigest(),
                "characters": len(prompt.text),
                "images": [
                    {"sha256": hashlib.sha256(image).hexdigest(), "bytes": len(image)}
                    for image in prompt.images
                ],
            },
            "parameters": reply.parameters,
            "response": reply.body,
            "wall_ms": reply.wall_ms,
        }
        (self._raw / name).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return name

"""One request to the server: the fields that ask for a variant, its raw file, what disturbed it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment.client import Client, Prompt, Reply
from experiment.errors import StoreError
from experiment.judge import FABRICATED
from experiment.load import Load, LoadMeter, load_between
from experiment.pauses import PauseMeter
from experiment.prefix import StepPrompt
from experiment.records import Fill, Variant
from experiment.trace import Step
from experiment.whole_file import write_json

# The field that asks for each variant. `full` names one too, as 0: the server then reports
# n_kv and encode_ms, which it does not do for a request that names none.
_PREFIX_FIELD: Mapping[Variant, str] = {
    "fake": "n_fake_cached",
    "control": "n_fake_cached",
    "restored": "n_state_cached",
    "full": "n_fake_cached",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's reply, the name of its raw file, and what else the machine did meanwhile.

    ``paused_s``: seconds of the request in which the machine or the driver stood still.
    """

    reply: Reply
    raw: str
    load: Load
    paused_s: float = 0.0


class Asker:
    """Makes requests to one server.

    Args:
        client: the server.
        prompt_of: a step's prompt; may raise `PrefixError` or `TraceError`.
        raw: folder for each request's parameters and the response.
        fill: the data that a fabricated prefix is to have.
        meter: samples the machine before and after.
        pauses: open; tells whether the machine stood still.
    """

    def __init__(
        self,
        client: Client,
        prompt_of: Callable[[Step], StepPrompt],
        raw: Path,
        fill: Fill,
        meter: LoadMeter,
        pauses: PauseMeter,
    ) -> None:
        self._client = client
        self._prompt_of = prompt_of
        self._raw = raw
        self._fill = fill
        self._meter = meter
        self._pauses = pauses

    def ask(self, step: Step, variant: Variant, round: int) -> Answer:
        """Ask for a measurement.

        Raises:
            PrefixError: the step has no prompt that lands exactly.
            TraceError: its screenshot cannot be read any more.
            RequestRefused: the server answers with HTTP 4xx.
            ServerError: it does not answer, or fails.
            StoreError: the answer cannot be kept.
        """
        return self._ask(step, variant, str(round), {"round": round}, {})

    def ask_experts(self, step: Step, variant: Variant) -> Answer:
        """Ask for the experts that are routed to, which is not timed; raises as `ask` does."""
        return self._ask(step, variant, "experts", {}, {"count_experts": True})

    def _ask(
        self,
        step: Step,
        variant: Variant,
        suffix: str,
        about: Mapping[str, object],
        more: Mapping[str, object],
    ) -> Answer:
        parameters: dict[str, object] = {
            "n_predict": 1,
            "cache_prompt": False,
            "temperature": 0.0,
            "response_fields": ["timings", "tokens_evaluated", "content", "truncated"],
            _PREFIX_FIELD[variant]: 0 if variant == "full" else step.depth,
            **more,
        }
        if variant in FABRICATED:
            parameters["fake_fill"] = self._fill
        prompt = self._prompt_of(step).prompt
        lost_s = self._pauses.lost_s()
        before = self._meter.sample()
        reply = self._client.complete(prompt, **parameters)
        load = load_between(before, self._meter.sample())
        paused_s = self._pauses.lost_s() - lost_s
        name = f"{step.line:06d}_{variant}_{suffix}.json"
        head = {"task_id": step.task_id, "step": step.step, "variant": variant, **about}
        record = {**head, **_kept(prompt, reply), "load": asdict(load)}
        if paused_s:
            record["paused_s"] = paused_s
        try:
            write_json(self._raw / name, record, indent=1)
        except OSError as error:
            raise StoreError(
                f"the answer cannot be kept: {error.strerror}",
                where=str(self._raw / name),
                hint="once it can be written, `invoke run --resume NAME` goes on",
            ) from error
        return Answer(reply, name, load, paused_s)


def _kept(prompt: Prompt, reply: Reply) -> dict[str, Any]:
    """What was sent and what came back; the prompt by digests, it can be rebuilt."""
    return {
        "prompt": {
            "tokens": {
                "sha256": hashlib.sha256(json.dumps(prompt.tokens).encode()).hexdigest(),
                "count": len(prompt.tokens),
            },
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

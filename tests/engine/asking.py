"""How the engine tests ask a server: steps, prompts and the parts of a reply that they look at."""

from __future__ import annotations

from typing import Any

import requests

from experiment.client import Client, Prompt, Reply
from experiment.prefix import PrefixBuilder
from experiment.screenshot import Screenshot, png_bytes
from experiment.server import Server
from experiment.trace import Baseline, Step

SMALL = Screenshot(None, 320, 192)
TEXT = "Say what the window shows."
FIELDS = ["timings", "content", "tokens", "completion_probabilities"]


def step(depth: int, *, image: bool = False, text: str | None = TEXT) -> Step:
    return Step("t", 0, depth, "tokens", text, None, SMALL if image else None, Baseline(), 1)


def prompt(prefixes: PrefixBuilder, depth: int, *, image: bool = False, text: str = TEXT) -> Prompt:
    picture = png_bytes(SMALL, 7) if image else None
    return prefixes.step_prompt(step(depth, image=image, text=text), picture).prompt


def ask(client: Client, what: Prompt, **parameters: object) -> Reply:
    defaults: dict[str, object] = {
        "n_predict": 1,
        "cache_prompt": False,
        "temperature": 0.0,
        "seed": 1,
        "n_probs": 8,
        "response_fields": FIELDS,
    }
    return client.complete(what, **(defaults | parameters))


def top_tokens(reply: Reply, position: int = 0) -> dict[int, float]:
    """Token id -> log probability of the most probable tokens at a position."""
    choices: list[dict[str, Any]] = reply.body["completion_probabilities"][position]["top_logprobs"]
    return {choice["id"]: choice["logprob"] for choice in choices}


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer of any endpoint, with the server's key."""
    answer = requests.post(
        server.client.url + path, json=body, headers=server.client._session.headers, timeout=600
    )
    return answer.status_code, answer.json()

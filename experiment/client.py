"""HTTP client of one llama.cpp server: the few endpoints that the experiment uses."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from experiment.errors import RequestRefused, ServerError


@dataclass(frozen=True)
class Prompt:
    """What a completion request sends: text, and images where the server's marker stands in it.

    Without images, ids of ``tokens`` may stand before the text: the server tokenises a text at
    less than a million tokens a second, so a deep prefix is sent as what it becomes.
    """

    text: str
    images: tuple[bytes, ...] = ()
    tokens: tuple[int, ...] = ()

    def as_json(self) -> str | list[int | str] | dict[str, object]:
        """The ``prompt`` member of a ``/completion`` request."""
        if not self.images:
            return [*self.tokens, self.text] if self.tokens else self.text
        encoded = [base64.b64encode(image).decode("ascii") for image in self.images]
        return {"prompt_string": self.text, "multimodal_data": encoded}


@dataclass(frozen=True)
class Reply:
    """A completion: the parameters sent (without the prompt), the response, the driver's clock.

    ``wall_ms`` spans building the JSON, the request and parsing the response.
    """

    parameters: dict[str, Any]
    body: dict[str, Any]
    wall_ms: float

    @property
    def timings(self) -> dict[str, Any]:
        """``timings`` of the response.

        Raises:
            ServerError: the response has none.
        """
        timings = self.body.get("timings")
        if not isinstance(timings, dict):
            raise ServerError("the server's response has no `timings`")
        return timings


class Client:
    """Talks to one server over one kept-alive connection.

    Every method raises `RequestRefused` for HTTP 4xx, with the server's own sentence, and
    `ServerError` when the server does not answer or fails.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 1800.0) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self._session = requests.Session()
        # A proxy from the environment must never stand between the driver and the loopback server.
        self._session.trust_env = False
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def props(self) -> dict[str, Any]:
        """``GET /props``."""
        return self._json("GET", "/props")

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text; markers of special tokens in it are parsed as such."""
        request = {"content": text, "add_special": add_special, "parse_special": True}
        return [int(token) for token in self._json("POST", "/tokenize", request)["tokens"]]

    def apply_template(self, messages: Sequence[dict[str, object]]) -> str:
        """The prompt that the model's chat template makes of some messages."""
        reply = self._json("POST", "/apply-template", {"messages": list(messages)})
        return str(reply["prompt"])

    def complete(self, prompt: Prompt, **parameters: object) -> Reply:
        """``POST /completion``, not streamed."""
        started = time.perf_counter()
        body = self._json("POST", "/completion", {"prompt": prompt.as_json(), **parameters})
        return Reply(dict(parameters), body, (time.perf_counter() - started) * 1e3)

    def _json(self, method: str, path: str, request: object = None) -> dict[str, Any]:
        try:
            response = self._session.request(
                method, self.url + path, json=request, timeout=self.timeout_s
            )
        except requests.Timeout as error:
            raise ServerError(
                f"no answer to {path} within {self.timeout_s:.0f} s",
                hint="raise server.request_timeout_s",
            ) from error
        except requests.RequestException as error:
            raise ServerError(f"the server went away during {path}: {error}") from error
        try:
            body = response.json()
        except requests.JSONDecodeError:
            body = None
        if response.ok and isinstance(body, dict):
            return body
        sentence = _error_sentence(body) or response.text[:500] or "no explanation"
        if 400 <= response.status_code < 500:
            raise RequestRefused(f"HTTP {response.status_code} from {path}: {sentence}")
        raise ServerError(f"HTTP {response.status_code} from {path}: {sentence}")


def _error_sentence(body: object) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None

"""A request that names none of the new fields is answered as by the unpatched server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from experiment.build import Build
from experiment.client import Prompt
from experiment.screenshot import png_bytes
from experiment.server import Server
from tests.engine.asking import SMALL, post
from tests.engine.conftest import make_prefixes
from tests.soak.conftest import StartBuild

PICTURE = png_bytes(SMALL, 7)
LONG = "The quick brown fox jumps over the lazy dog. " * 40
VOLATILE = ("created", "id", "model", "system_fingerprint", "timings", "generation_settings")


@pytest.fixture(scope="module")
def both(stock: Build, checked: Build, start: StartBuild) -> Iterator[tuple[Server, Server]]:
    """An unpatched server and a patched one, with the same flags."""
    flags = ("--ctx-checkpoints", "32", "--cache-ram", "256", "--parallel", "2", "--kv-unified")
    with (
        start(stock, *flags, context=4096, own=False) as one,
        start(checked, *flags, context=4096) as two,
    ):
        yield one, two


def bodies(server: Server) -> list[tuple[str, dict[str, Any]]]:
    marker = str(server.client.props()["media_marker"])
    common = {"temperature": 0.0, "seed": 1, "n_probs": 5}
    image = Prompt(f"{marker} What is this?", (PICTURE,)).as_json()
    return [
        ("/completion", {"prompt": "Once upon a time", "n_predict": 16, **common}),
        ("/completion", {"prompt": LONG, "n_predict": 4, "cache_prompt": True, **common}),
        ("/completion", {"prompt": LONG + "And?", "n_predict": 4, "cache_prompt": True, **common}),
        ("/completion", {"prompt": image, "n_predict": 4, **common}),
        ("/completion", {"prompt": LONG, "n_predict": 8, "n": 2, "temperature": 0.0}),
        ("/v1/completions", {"prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "logprobs": 3}),
        ("/v1/embeddings", {"input": "text"}),
        ("/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("/tokenize", {"content": "Once upon a time"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/completion", {"prompt": "x", "n_predict": 2, "top_k": "many", **common}),
        ("/completion", {}),
    ]


def _steady(value: Any) -> Any:
    """What of an answer cannot differ from one run of a server to the next."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in VOLATILE}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def test_same_tokens_and_logits(both: tuple[Server, Server]) -> None:
    stock, patched = both
    # Markers are drawn at random by each server; what they stand for is the same.
    for (path, one), (_, two) in zip(bodies(stock), bodies(patched), strict=True):
        expected, found = (
            (status, _steady(answer))
            for status, answer in (post(stock, path, one), post(patched, path, two))
        )
        assert found == expected, path


def test_the_patched_one_is_patched(both: tuple[Server, Server]) -> None:
    # Without this the test above would also pass on two servers of one build.
    stock, patched = both
    assert "prefix" not in stock.client.props()
    prefixes = make_prefixes(patched.client, max_depth=400)
    text = prefixes.prefix_text(300) + " and"
    request = {"prompt": text, "n_predict": 1, "n_fake_cached": 300}
    for server, cached in ((stock, 0), (patched, 300)):
        timings = server.client._json("POST", "/completion", request)["timings"]
        assert timings["cache_n"] == cached

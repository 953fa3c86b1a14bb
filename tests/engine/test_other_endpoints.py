"""Embeddings and rerank know nothing of prefixes: their answers are the same with our fields."""

from __future__ import annotations

import pytest

from tests.engine.asking import post
from tests.engine.conftest import StartServer

OURS = ({"n_fake_cached": 3}, {"n_state_cached": 3}, {"count_experts": True}, {"fake_fill": "zero"})

CASES = {
    "embeddings": (
        ("--embeddings", "--pooling", "mean"),
        ("/embedding", "/embeddings", "/v1/embeddings"),
        {"input": ["An open window.", "Another one, with a list in it."], "content": "A window."},
    ),
    "rerank": (
        ("--embeddings", "--pooling", "rank"),
        ("/rerank", "/v1/rerank"),
        {"query": "a list", "documents": ["An open window.", "A list.", "Nothing."]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_our_fields_change_nothing(name: str, start_server: StartServer) -> None:
    flags, paths, body = CASES[name]
    with start_server(*flags, "--parallel", "4", "--kv-unified", context=1024) as server:
        for path in paths:
            status, expected = post(server, path, body)
            assert status == 200, expected
            for fields in OURS:
                assert post(server, path, body | fields) == (200, expected), (path, fields)
        server.check()

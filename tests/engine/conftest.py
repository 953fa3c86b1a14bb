"""The checked build, the nano model and servers of them, made once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from experiment.build import Build
from experiment.client import Client
from experiment.models import ModelFiles
from experiment.prefix import PrefixBuilder
from experiment.server import Server, server_arguments
from experiment.settings import Settings
from experiment.words import load_words
from tests.builds import checked, nano, settings

__all__ = ["checked", "nano", "settings"]  # fixtures

CONTEXT = 4096
MAX_DEPTH = 4000

StartServer = Callable[..., AbstractContextManager[Server]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def start_server(
    settings: Settings,
    checked: Build,
    nano: ModelFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartServer:
    """Start a server of the checked build; later flags win over the project's own."""

    def start(*more: str, context: int = CONTEXT) -> Server:
        log = tmp_path_factory.mktemp("server") / "server.log"
        arguments = [*server_arguments(settings, nano, context), *more]
        return Server(checked.server, arguments, log, start_timeout_s=120, request_timeout_s=300)

    return start


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> Iterator[Server]:
    with start_server() as running:
        yield running
        running.check()
    log = running.log_text()
    # What the assertions of the checked build and the bookkeeping of the memory would print.
    for complaint in ("GGML_ASSERT", "Assertion", "wrong tail", "duplicate tail"):
        assert complaint not in log


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    yield server.client
    server.check()


def make_prefixes(client: Client, max_depth: int = MAX_DEPTH) -> PrefixBuilder:
    return PrefixBuilder(
        client,
        load_words(),
        seed=1,
        max_depth=max_depth,
        media_marker=str(client.props()["media_marker"]),
    )


@pytest.fixture(scope="session")
def prefixes(server: Server) -> PrefixBuilder:
    return make_prefixes(server.client)

"""Builds for the long tests: one with sanitizers, one without the patches."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from experiment import build
from experiment.build import Build
from experiment.models import ModelFiles
from experiment.patches import Series
from experiment.pins import pin_named
from experiment.server import Server, server_arguments
from experiment.settings import Settings
from experiment.source import obtain, packed
from tests.builds import checked, nano, settings, shown

__all__ = ["checked", "nano", "settings"]  # fixtures

StartBuild = Callable[..., AbstractContextManager[Server]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def sanitized(settings: Settings, pytestconfig: pytest.Config) -> Build:
    with shown(pytestconfig) as progress:
        return build.build(settings, "sanitized", progress)


@pytest.fixture(scope="session")
def stock(settings: Settings, pytestconfig: pytest.Config) -> Build:
    """The same flags as those of the checked build, without the patches."""
    # In a cache of its own, so that the tree of the patched builds stays as it is.
    cache = settings.cache_dir / "stock"
    pin = pin_named(settings.build.pin)
    with shown(pytestconfig) as progress:
        tree = obtain(pin, settings.cache_dir, progress)
        file = packed(pin, tree, settings.cache_dir, progress)
        kept = cache / "downloads" / file.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        if not kept.exists():
            os.link(file, kept)
        return build.build(settings, "checked", progress, series=Series(), cache_dir=cache)


@pytest.fixture(scope="session")
def start(
    settings: Settings, nano: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> StartBuild:
    """Start a server of a build; later flags win over the project's own."""

    def server(made: Build, *more: str, context: int = 2048, own: bool = True) -> Server:
        arguments = server_arguments(settings, nano, context)
        if not own:  # those that only a patched server knows
            for flag in ("--prefix-ram", "--fake-tile"):
                place = arguments.index(flag)
                del arguments[place : place + 2]
        log = tmp_path_factory.mktemp("server") / "server.log"
        return Server(
            made.server, [*arguments, *more], log, start_timeout_s=300, request_timeout_s=600
        )

    return server

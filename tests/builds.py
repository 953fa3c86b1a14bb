"""The fixtures that tests of a server share: settings, the checked build, the nano model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from experiment import build, models
from experiment.build import Build
from experiment.models import ModelFiles
from experiment.progress import Progress, RichProgress
from experiment.settings import Settings, load_settings


@contextmanager
def shown(config: pytest.Config) -> Iterator[Progress]:
    """Progress on the terminal: a build takes minutes."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), RichProgress() as progress:
        yield progress


@pytest.fixture(scope="session")
def settings() -> Settings:
    return load_settings({"model.name": "nano"})


@pytest.fixture(scope="session")
def checked(settings: Settings, pytestconfig: pytest.Config) -> Build:
    with shown(pytestconfig) as progress:
        return build.build(settings, "checked", progress)


@pytest.fixture(scope="session")
def nano(settings: Settings, checked: Build, pytestconfig: pytest.Config) -> ModelFiles:
    with shown(pytestconfig) as progress:
        return models.resolve(settings, checked.source, progress)

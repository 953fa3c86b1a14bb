"""A server of the chosen model for as long as a log's tokens are counted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiment import build, models
from experiment.importers.counting import ServerCounter
from experiment.progress import Progress
from experiment.server import Server, server_arguments
from experiment.settings import Settings

CONTEXT = 16384
"""KV cells of the server: it tokenises texts of any length, but decodes one image of each size."""


@contextmanager
def open_counter(settings: Settings, progress: Progress) -> Iterator[ServerCounter]:
    """Start a server of ``settings.model`` and stop it at the end.

    Raises:
        ExperimentError: there is no build or model, or the server does not start.
    """
    made = build.build(settings, "release", progress)
    model = models.resolve(settings, made.source, progress)
    progress.start("start the server that counts tokens", None)
    with (
        tempfile.TemporaryDirectory(prefix="count-") as folder,
        Server(
            made.server,
            server_arguments(settings, model, settings.server.context or CONTEXT),
            Path(folder) / "server.log",
            start_timeout_s=settings.server.start_timeout_s,
            request_timeout_s=settings.server.request_timeout_s,
        ) as server,
    ):
        progress.finish()
        yield ServerCounter.of(server.client, model.name)

"""Where an experiment happens. An engine builds and runs; what happens is the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiment import build, models
from experiment.build import Build
from experiment.patches import load_series
from experiment.paths import ROOT
from experiment.progress import Progress
from experiment.run import Ingredients, resume, start
from experiment.settings import Settings
from experiment.trace import Trace

PATCHES = ROOT / "patches"


class Engine(Protocol):
    """What `choose` returns.

    Attributes:
        name: as ``--engine`` takes it.
        reason: why this one, for the first line a task prints.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def reason(self) -> str: ...  # noqa: D102

    def build(self, settings: Settings, progress: Progress) -> str:
        """Make everything that a run needs and return a line that says what there is now."""
        ...

    def run(self, settings: Settings, trace: Trace, name: str, progress: Progress) -> Path:
        """Measure a trace in a new results folder and return that folder."""
        ...

    def resume(self, folder: Path, progress: Progress) -> Path:
        """Go on with an interrupted run, with the settings it began with."""
        ...


@dataclass(frozen=True)
class NativeEngine:
    """This machine itself: its compiler, its processes."""

    reason: str
    name: str = "native"

    def build(self, settings: Settings, progress: Progress) -> str:
        """Build the patched server and, for a stand-in model, its files."""
        made = self._ingredients(settings, progress)
        return f"{made.build.server} ({made.build.kind}), model {made.model.name}"

    def run(self, settings: Settings, trace: Trace, name: str, progress: Progress) -> Path:
        """See `Engine.run`."""
        made = self._ingredients(settings, progress)
        return start(settings, trace, name, self.name, made, progress)

    def resume(self, folder: Path, progress: Progress) -> Path:
        """See `Engine.resume`."""
        return resume(folder, lambda settings: self._ingredients(settings, progress), progress)

    def _ingredients(self, settings: Settings, progress: Progress) -> Ingredients:
        built: Build = build.build(settings, "release", progress)
        return Ingredients(
            built, load_series(PATCHES), models.resolve(settings, built.source, progress)
        )


def choose(settings: Settings) -> Engine:
    """The engine that the settings ask for; ``auto`` takes the first one that works here."""
    if settings.engine == "native":
        return NativeEngine("asked for")
    return NativeEngine("the only engine there is")

"""Where an experiment happens. An engine builds and runs; what happens is the same everywhere."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from docker.types import Mount

from experiment import build, models, repository, whole_file
from experiment.build import Build
from experiment.container import (
    CACHE,
    IMAGE_VARIABLE,
    MODEL,
    RESULTS,
    TRACE,
    bind,
    run_inside,
)
from experiment.docker_client import Connection, connect
from experiment.errors import EngineError
from experiment.host import cgroup_limits
from experiment.image import Image, build_image
from experiment.limits import context_of, memory_of
from experiment.patches import load_series
from experiment.paths import ROOT
from experiment.probe import trace_costs
from experiment.progress import Progress
from experiment.run import Ingredients, resume, start
from experiment.scope import ALL, Asked, scope_of
from experiment.settings import Settings
from experiment.shapes import SHAPES
from experiment.store import Store
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

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        """Measure a trace, or what is asked of it, in a new results folder; return that folder."""
        ...

    def resume(self, settings: Settings, folder: Path, progress: Progress) -> Path:
        """Go on with an interrupted run, with the settings it began with."""
        ...


@dataclass(frozen=True)
class NativeEngine:
    """The place where this very process runs: a bare machine, or the inside of a container."""

    reason: str

    @property
    def name(self) -> str:
        """``docker`` inside a container of the image, since that is where results come from."""
        return "docker" if IMAGE_VARIABLE in os.environ else "native"

    def build(self, settings: Settings, progress: Progress) -> str:
        """Build the patched server and, for a stand-in model, its files."""
        made = self._ingredients(settings, progress)
        return f"{made.build.server} ({made.build.kind}), model {made.model.name}"

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        """See `Engine.run`."""
        check_limits(settings)
        made = self._ingredients(settings, progress)
        image = os.environ.get(IMAGE_VARIABLE)
        allowed, scope = scope_of(
            settings,
            trace,
            asked,
            context=context_of(settings, made.model.model),
            memory_of=lambda steps: memory_of(settings, made.build, made.model, steps, progress),
            costs_of=lambda steps: trace_costs(self, settings, steps, progress),
        )
        for sentence in (*scope.notes, *scope.sentences(len(trace.steps))):
            progress.say(sentence)
        return start(
            allowed, trace, name, self.name, made, progress, scope=scope, image_digest=image
        )

    def resume(
        self,
        settings: Settings,  # noqa: ARG002 - a container's limits; here the run's own settings hold
        folder: Path,
        progress: Progress,
    ) -> Path:
        """See `Engine.resume`."""

        def gather(began_with: Settings) -> Ingredients:
            check_limits(began_with)
            return self._ingredients(began_with, progress)

        return resume(folder, self.name, gather, progress)

    def _ingredients(self, settings: Settings, progress: Progress) -> Ingredients:
        built: Build = build.build(settings, "release", progress)
        return Ingredients(
            built, load_series(PATCHES), models.resolve(settings, built.source, progress)
        )


@dataclass(frozen=True)
class DockerEngine:
    """A container of the image, on whatever engine answers; inside it a `NativeEngine` works.

    ``image`` is one that is there already; otherwise it is built from this checkout.
    """

    connection: Connection
    reason: str
    name: str = "docker"
    image: Image | None = None

    def build(self, settings: Settings, progress: Progress) -> str:
        """Build the image."""
        image = self._image(settings, progress)
        return f"image {image.tag} ({image.id[:19]}, {image.size_bytes / 1e6:.0f} MB)"

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        """See `Engine.run`. What fits into a budget is probed and chosen inside."""
        image = self._image(settings, progress)
        path = trace.path.resolve()
        command = ["run", f"--trace={TRACE}/{path.name}", *self._model(settings, image)]
        command += asked.flags()
        mounts = [bind(path.parent, TRACE, read_only=True), *self._mounts(settings)]
        with tempfile.TemporaryDirectory(prefix="run-") as state:
            # Inside there is no checkout to look at, and this one may change while the run goes on.
            if self.image is None:
                repository.record(Path(state))
            folder = run_inside(self.connection, image, settings, command, mounts, label=name)
            if folder is None:
                raise EngineError("the container did not say where its results are")
            for record in Path(state).iterdir():
                whole_file.copy(record, settings.results_dir / folder / record.name)
        return settings.results_dir / folder

    def resume(self, settings: Settings, folder: Path, progress: Progress) -> Path:
        """See `Engine.resume`."""
        image = self._image(settings, progress)
        if folder.resolve().parent != settings.results_dir.resolve():
            raise EngineError(
                "a container only sees the results folder",
                where=str(folder),
                hint="set results_dir to the folder that holds the run",
            )
        began_with = _as_it_began(settings, folder)
        command = ["run", f"--resume={folder.name}"]
        mounts = self._mounts(began_with)
        run_inside(self.connection, image, began_with, command, mounts, label=folder.name)
        return folder

    def _image(self, settings: Settings, progress: Progress) -> Image:
        if self.image is not None:
            return self.image
        return build_image(self.connection, settings, load_series(PATCHES), progress)

    def _model(self, settings: Settings, image: Image) -> list[str]:
        """The flags that choose the model inside; a stand-in is made first and kept."""
        name, mmproj = settings.model.name, settings.model.mmproj
        if name in SHAPES:
            cache = settings.cache_dir / "container"
            cache.mkdir(parents=True, exist_ok=True)
            make = ["model", f"--shape={name}"]
            mounts = [bind(cache, CACHE, read_only=False)]
            run_inside(self.connection, image, settings, make, mounts, label="model")
        flags = [f"--model={name if name in SHAPES else f'{MODEL}/model/{Path(name).name}'}"]
        return [*flags, f"--mmproj={MODEL}/mmproj/{mmproj.name}"] if mmproj else flags

    def _mounts(self, settings: Settings) -> list[Mount]:
        settings.results_dir.mkdir(parents=True, exist_ok=True)
        mounts = [bind(settings.results_dir, RESULTS, read_only=False)]
        name, mmproj = settings.model.name, settings.model.mmproj
        if name in SHAPES:
            mounts.append(bind(settings.cache_dir / "container", CACHE, read_only=True))
        else:
            mounts.append(bind(Path(name).parent, f"{MODEL}/model", read_only=True))
        if mmproj:
            mounts.append(bind(mmproj.parent, f"{MODEL}/mmproj", read_only=True))
        return mounts


def _as_it_began(settings: Settings, folder: Path) -> Settings:
    """The settings of now with the model and the limits that the run in ``folder`` began with."""
    with Store.open(folder) as store:
        began_with = Settings.model_validate(store.settings())
    limits = {"memory_mib": began_with.container.memory_mib, "cpus": began_with.container.cpus}
    changes: dict[str, object] = {"container": settings.container.model_copy(update=limits)}
    if began_with.model.name in SHAPES:
        changes["model"] = began_with.model
    elif Path(began_with.model.name).name != Path(settings.model.name).name:
        raise EngineError(
            f"the run's model is the file {Path(began_with.model.name).name}",
            where=str(folder),
            hint="say where it is: --model (and --mmproj) with --resume",
        )
    return settings.model_copy(update=changes)


def check_limits(settings: Settings) -> None:
    """Refuse to measure in a container whose cgroup does not have the limits that were asked for.

    Raises:
        EngineError: the engine has not set what the settings say.
    """
    if IMAGE_VARIABLE not in os.environ:
        return
    asked, found = settings.container, cgroup_limits()
    if asked.memory_mib and found.memory_bytes != asked.memory_mib << 20:
        raise EngineError(
            f"the memory limit is {found.memory_bytes} bytes, not {asked.memory_mib} MiB",
            hint="the engine's cgroup has no memory controller; set container.memory_mib to 0",
        )
    if asked.cpus and (found.cores is None or abs(found.cores - asked.cpus) > 0.01):
        raise EngineError(
            f"the CPU limit is {found.cores} cores, not {asked.cpus}",
            hint="the engine's cgroup has no CPU controller; set container.cpus to 0",
        )


def choose(settings: Settings) -> Engine:
    """The engine that the settings ask for; ``auto`` takes Docker where an engine answers.

    Raises:
        EngineError: ``docker`` was asked for and none answers.
    """
    if settings.engine == "native":
        return NativeEngine("asked for" if IMAGE_VARIABLE not in os.environ else "in a container")
    try:
        connection = connect()
    except EngineError as error:
        if settings.engine == "docker":
            raise
        return NativeEngine(f"no container engine answers: {error.what}")
    where = f"{connection.kind} {connection.version} at {connection.endpoint}"
    return DockerEngine(
        connection, f"asked for, {where}" if settings.engine == "docker" else f"{where} answers"
    )

"""Replays the run of a handoff archive here, from what the archive holds, and judges its claims."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import requests

from experiment import claims as claiming
from experiment import compare, whole_file
from experiment.claims import Claim
from experiment.container import IMAGE_VARIABLE
from experiment.database import DATABASE
from experiment.docker_client import Connection, connect
from experiment.engine import PATCHES, DockerEngine, Engine, NativeEngine
from experiment.errors import EngineError, HandoffError
from experiment.image import Image
from experiment.patches import load_series
from experiment.pins import LocalPin, pin_named
from experiment.progress import Progress
from experiment.reader import Reader, read
from experiment.recorded import StepKey
from experiment.settings import Settings
from experiment.shapes import SHAPES
from experiment.trace import Step, Trace, load_trace

QUICK_STEPS = 6
QUICK_BUDGET_S = 240.0
"""What the steps of a quick rerun took together, at most, in the run that is checked."""

# Enough pairs for an interval (6 steps, 3 rounds), and no more precision than minutes can give.
_QUICK_SCHEDULE = {"rounds": 3, "max_rounds": 6, "time_limit_s": 30.0, "structure_steps": 2}
_QUICK_CALIBRATION = {"points": 3, "repetitions": 1}

_IDENTITY = ("pin", "model", "patch_digest", "model_digest", "mmproj_digest", "trace_digest")


@dataclass(frozen=True)
class Judged:
    """One claim, expecting the archive's value over the steps that were replayed; the value here.

    ``holds`` is None where the claim is not judged on another machine.
    """

    claim: Claim
    here: float | None
    holds: bool | None


@dataclass(frozen=True)
class Rerun:
    """What came of replaying ``steps`` of the archive's ``steps_in_all`` in ``folder``.

    ``unsteady`` says what disturbed the measurements here, None where nothing did.
    """

    folder: Path
    steps: int
    steps_in_all: int
    judged: tuple[Judged, ...]
    unsteady: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every claim that is judged here is within its tolerance."""
        return all(item.holds is not False for item in self.judged)


def rerun(top: Path, settings: Settings, progress: Progress, *, quick: bool) -> Rerun:
    """Replay the trace of an archive that was checked and unpacked.

    Args:
        top: the archive's top folder.
        settings: where it happens: engine, folders, compiler jobs, limits, and the model's files
            where the run had its own. What is measured, and how, is as in the archive.
        progress: where to show it.
        quick: a few steps, from the shallowest to the deepest, in a few rounds.

    Raises:
        HandoffError: this checkout, model or engine cannot make that run.
        ExperimentError: the run itself failed.
    """
    results = top / "results"
    with read(results) as archived:
        columns = ", ".join(_IDENTITY)
        ((text, *values),) = archived.connection.execute(
            f"SELECT settings, {columns} FROM run WHERE id = ?", [archived.run_id]
        ).fetchall()
        costs = _costs(archived) if quick else {}
        left_out = _left_out(archived)
    identity = dict(zip(_IDENTITY, values, strict=True))
    began_with = Settings.model_validate(json.loads(text))
    trace = load_trace(results / "trace.jsonl")
    claims = claiming.read((top / "claims.toml").read_text(encoding="utf-8"), "claims.toml")
    engine = _engine(top, settings, identity, progress)
    here = _settings(began_with, settings, top, quick=quick)
    with tempfile.TemporaryDirectory(prefix="rerun-") as work:
        chosen: Collection[StepKey] | None = None
        replayed = trace
        if quick:
            chosen = quick_steps(trace.steps, costs)
        elif left_out:
            chosen = {(step.task_id, step.step) for step in trace.steps} - left_out
        if chosen is not None:
            replayed = _subset(trace, chosen, Path(work))
        folder = engine.run(here, replayed, "rerun-quick" if quick else "rerun", progress)
    _check_identity(folder, identity, is_part=chosen is not None)
    claimed = claiming.values(results, claims, chosen)
    found = claiming.values(folder, claims)
    return Rerun(
        folder=folder,
        steps=len(replayed.steps),
        steps_in_all=len(trace.steps),
        judged=tuple(
            Judged(
                claim,
                found[claim.key],
                claim.holds(found[claim.key]) if claim.judged_elsewhere else None,
            )
            for claim in claiming.restated(claims, claimed)
        ),
        unsteady=_unsteady(folder),
    )


def _unsteady(folder: Path) -> str | None:
    stability = compare.load(folder).stability
    word, _, why = (stability.verdict or "" if stability else "").partition(": ")
    return why if word == "unsteady" else None


def quick_steps(steps: Sequence[Step], costs: dict[StepKey, float]) -> frozenset[StepKey]:
    """The shallowest, the deepest and some between, as many as their cost allows; at least one.

    Args:
        steps: of the trace.
        costs: seconds that a few rounds of each took; a step without one was not measured.
    """
    measured = sorted(
        (step for step in steps if (step.task_id, step.step) in costs),
        key=lambda step: (step.depth, step.line),
    )
    keys = [(step.task_id, step.step) for step in measured]
    if not keys:
        raise HandoffError("the archived run measured no step that could be replayed")
    wanted = [keys[place] for place in _spread(len(keys)) if place < len(keys)]
    chosen: list[StepKey] = []
    spent_s = 0.0
    for key in wanted:
        if len(chosen) < QUICK_STEPS and spent_s + costs[key] <= QUICK_BUDGET_S:
            chosen.append(key)
            spent_s += costs[key]
    return frozenset(chosen or [min(keys, key=lambda key: costs[key])])


def _spread(n: int) -> list[int]:
    """The places 0 … n - 1: both ends, the middle, the middles of the halves, and so on."""
    order = dict.fromkeys([0, n - 1])
    parts = 2
    while len(order) < n:
        order.update(dict.fromkeys(round((n - 1) * i / parts) for i in range(1, parts)))
        parts *= 2
    return list(order)


def _left_out(reader: Reader) -> set[StepKey]:
    """The steps of the archive's trace that its run did not replay."""
    rows = reader.connection.execute(
        "SELECT task_id, step FROM step WHERE run_id = ? AND left_out IS NOT NULL", [reader.run_id]
    ).fetchall()
    return {(task_id, step) for task_id, step in rows}


def _costs(reader: Reader) -> dict[StepKey, float]:
    """Seconds that a few rounds of each step took; its full request and its priming once."""
    rows = reader.connection.execute(
        "SELECT task_id, step, sum(CASE WHEN variant = 'full' THEN wall ELSE $rounds * wall END "
        "+ prime) / 1000 FROM (SELECT task_id, step, variant, median(wall_ms) AS wall, "
        "coalesce(max(prime_ms), 0) AS prime FROM measurement WHERE variant <> 'arithmetic' "
        "AND status IN ('ok', 'warmup') GROUP BY task_id, step, variant) "
        "GROUP BY task_id, step HAVING bool_or(variant = 'fake')",
        {"rounds": _QUICK_SCHEDULE["rounds"]},
    ).fetchall()
    return {(task_id, step): float(cost) for task_id, step, cost in rows if cost is not None}


def _subset(trace: Trace, chosen: Collection[StepKey], work: Path) -> Trace:
    """A trace of these steps alone. Each keeps its line, which its rendered screenshot follows."""
    lines = trace.path.read_bytes().split(b"\n")
    kept = {step.line for step in trace.steps if (step.task_id, step.step) in chosen}
    header = {1} - {step.line for step in trace.steps}
    text = b"\n".join(
        line if number in kept | header else b"" for number, line in enumerate(lines, 1)
    )
    for step in trace.steps:
        if step.line in kept and step.screenshot and step.screenshot.path:
            name = step.screenshot.path.relative_to(trace.path.parent.resolve())
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(step.screenshot.path, work / name)
    (work / "quick.jsonl").write_bytes(text.rstrip(b"\n") + b"\n")
    return load_trace(work / "quick.jsonl")


def _settings(began_with: Settings, here: Settings, top: Path, *, quick: bool) -> Settings:
    """How it was measured, from the archive; where it is measured, from here."""
    changes: dict[str, object] = {
        "seed": began_with.seed,
        "server": began_with.server,
        "schedule": began_with.schedule,
        "calibration": began_with.calibration,
    }
    if quick:
        full = min(1, began_with.schedule.full_rounds)
        changes["schedule"] = began_with.schedule.model_copy(
            update={**_QUICK_SCHEDULE, "full_rounds": full}
        )
        fewer = _QUICK_CALIBRATION if began_with.calibration.at == "points" else {"repetitions": 1}
        changes["calibration"] = began_with.calibration.model_copy(update=fewer)
    if began_with.model.name in SHAPES:
        changes["model"] = began_with.model
    elif here.model.name in SHAPES:
        raise HandoffError(
            f"the run's model was the file {Path(began_with.model.name).name}, which is not in "
            "the archive",
            hint="say where it is: --model (and --mmproj)",
        )
    pin = pin_named(began_with.build.pin)
    if isinstance(pin, LocalPin) and here.build.source is None and here.build.prebuilt is None:
        raise HandoffError(
            "the run was made with a local llama.cpp checkout",
            hint=f"unpack {top / 'source'}, make it a git checkout, and name it with the setting "
            "build.source",
        )
    changes["build"] = here.build.model_copy(update={"pin": pin.name})
    return here.model_copy(update=changes)


def _engine(
    top: Path, settings: Settings, identity: dict[str, str | None], progress: Progress
) -> Engine:
    """The image of the archive where there is one and an engine answers, else this machine."""
    packed = top / "image" / "image.tar"
    inside = IMAGE_VARIABLE in os.environ
    if settings.engine == "docker" and not packed.is_file():
        raise HandoffError(
            "the archive holds no image",
            hint="--engine native builds its llama.cpp source here; `handoff --with-image` packs "
            "the image",
        )
    if packed.is_file() and settings.engine != "native" and not inside:
        try:
            connection = connect()
        except EngineError:
            if settings.engine == "docker":
                raise
        else:
            image = load_image(connection, packed, top / "image" / "image.json", progress)
            return DockerEngine(connection, "the image of the archive", image=image)
    series = load_series(PATCHES)
    if series.digest != identity["patch_digest"]:
        raise HandoffError(
            "the patches of this checkout are not those of the run",
            hint="verify with the archive's own code: tar xf FILE, then ./inv in its repository/",
        )
    if not inside:
        _place_source(top, settings.cache_dir)
    return NativeEngine("the archive's source" if not inside else "in a container")


def load_image(connection: Connection, packed: Path, record: Path, progress: Progress) -> Image:
    """Hand a saved image to the engine and check that what it loaded has the recorded layers.

    Image IDs differ between engines and their stores; the layers' digests do not.

    Raises:
        HandoffError: it has not.
        EngineError: the engine does not take it.
    """
    wanted = json.loads(record.read_text(encoding="utf-8"))
    progress.start("load the image", None)
    try:
        with packed.open("rb") as file:
            loaded = connection.client.images.load(file)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EngineError(f"the engine could not load the image: {error}") from error
    progress.finish()
    for image in loaded:
        if list(image.attrs["RootFS"]["Layers"]) == wanted["layers"]:
            return Image(str(image.id), str(image.id), int(image.attrs["Size"]))
    raise HandoffError("the engine loaded other layers than the archive names", where=str(packed))


def _place_source(top: Path, cache_dir: Path) -> None:
    """Put the archive's source file where `source.obtain` looks before it asks the network."""
    source = json.loads((top / "source.json").read_text(encoding="utf-8"))
    packed = top / "source" / source["file"]
    kept = cache_dir / "downloads" / packed.name
    if source["kind"] == "local" or (kept.is_file() and _sha256(kept) == source["sha256"]):
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    whole_file.copy(packed, kept)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_identity(folder: Path, archived: dict[str, str | None], *, is_part: bool) -> None:
    """Refuse to compare with a run of something else: other patches, another model."""
    with read(folder) as reader:
        columns = ", ".join(_IDENTITY)
        (values,) = reader.connection.execute(
            f"SELECT {columns} FROM run WHERE id = ?", [reader.run_id]
        ).fetchall()
    for name, value in zip(_IDENTITY, values, strict=True):
        if value != archived[name] and not (is_part and name == "trace_digest"):
            raise HandoffError(
                f"the rerun has {name} {value}, the archived run {archived[name]}: they cannot be "
                "compared",
                where=str(folder / DATABASE),
            )

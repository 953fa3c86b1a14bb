"""What the tool itself costs, against its speed targets: which runs are made, and how."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, assert_never

from experiment.bench_data import write_synthetic
from experiment.bench_figures import (
    Figure,
    Part,
    RunData,
    Target,
    depth_figures,
    measurements,
    read,
    saved_bytes,
    six_steps_figures,
    speedup_figures,
)
from experiment.bench_load import load_figures
from experiment.bench_probes import compare_command_s, comparing, memcpy_gbps
from experiment.engine import Engine
from experiment.errors import SettingsError
from experiment.paths import ROOT
from experiment.progress import Progress
from experiment.settings import Settings
from experiment.shapes import DEFAULT_SHAPE
from experiment.trace import load_trace

TRACES = ROOT / "data" / "traces"

PartName = Literal["depths", "speedup", "default", "compare", "load", "six-steps"]
PARTS: tuple[PartName, ...] = ("depths", "speedup", "default", "compare", "load", "six-steps")

NO_RUN: tuple[PartName, ...] = ("compare", "load")
"""The parts that replay nothing, and so need no build."""

DEFAULT_TARGET_S = 150.0
COMPARE_TARGET_S = 1.0
COMPARE_TARGET_MB = 500.0

# Four variants in each step and round, and one estimate a step: 1,001,000 measurements.
SYNTHETIC_STEPS, SYNTHETIC_ROUNDS = 1_000, 250
COMPARE_REPETITIONS = 5
MEMCPY_REPETITIONS = 20

Changes = Mapping[str, Mapping[str, object]]

DEPTHS: Changes = {
    # Nothing is decoded at depth L but the new tokens: a real prefix of 262,144 tokens takes longer
    # than all the rest. That leaves the calibration out too.
    "schedule": {
        "rounds": 20,
        "max_rounds": 20,
        "full_rounds": 0,
        "restored_max_depth": 0,
        "structure_steps": 0,
    },
}
SPEEDUP: Changes = {
    # `full` takes some 30 s, as does llama-bench, which has one chunk and one repetition to do.
    "schedule": {
        "rounds": 20,
        "max_rounds": 20,
        "full_rounds": 3,
        "restored_max_depth": 32_768,
        "full_max_depth": 32_768,
        "structure_steps": 0,
    },
    "calibration": {"at": "steps", "chunk": 256, "repetitions": 1},
}
# The full shape decodes about 31 tokens a second on two cores, so 30 minutes are 55,800 tokens.
# The trace's new tokens are about 600 a pass, text, screens and template together:
#   warm-up (2 passes) and three rounds of three variants: 11 * 600               6,600 tokens
#   the deepest prefix, once; the shallower ones are saved on the way             8,192
#   full at the two steps up to 2,048: 344 + 127 + 1,949 + 118                    2,538
#   llama-bench at 0 and 8,192, a warm-up and one sample of 128 tokens each       8,704
#   experts of six steps, fake and restored, watched: 2 * 600                     1,200
#   the tile                                                                        256
# That makes 27,490 tokens, 15 min; attention at depth adds up to a fifth, 3 min. 54 screens of 60
# tokens are encoded in about 4 s each, 4 min, and 19.4 GB are loaded three times, once a minute.
SIX_STEPS: Changes = {
    "schedule": {
        "rounds": 3,
        "max_rounds": 3,
        "full_rounds": 1,
        "restored_max_depth": 8192,
        "full_max_depth": 2048,
        "structure_steps": 6,
        "warmup_rounds": 1,
    },
    "calibration": {"at": "points", "points": 2, "chunk": 128, "repetitions": 1},
}


def parts(only: str | None, model: str) -> tuple[PartName, ...]:
    """The parts that are asked for, in the order of `PARTS`.

    Args:
        only: names with commas between them; None = what suits the model: everything but the six
            steps for the default stand-in, and nothing else for any other model.
        model: ``model.name`` of the settings.

    Raises:
        SettingsError: a name that is none of `PARTS`.
    """
    if only is None:
        small = model == DEFAULT_SHAPE
        return tuple(part for part in PARTS if (part != "six-steps") == small)
    asked = [name.strip() for name in only.split(",")]
    for name in asked:
        if name not in PARTS:
            near = get_close_matches(name, PARTS, n=1)
            raise SettingsError(
                f"there is no part {name!r}" + (f"; is {near[0]} meant?" if near else ""),
                where="--only",
                hint=f"choose from {', '.join(PARTS)}",
            )
    return tuple(part for part in PARTS if part in asked)


def measure(
    engine: Engine, settings: Settings, wanted: Sequence[PartName], progress: Progress
) -> Iterator[Part]:
    """Measure the parts one by one; each is yielded as soon as it is there.

    Every run leaves its results folder, so that each figure can be looked up.

    Args:
        engine: where the runs are made.
        settings: what `changed` does not set for a part.
        wanted: names out of `PARTS`.
        progress: where to show it.

    Raises:
        ExperimentError: a run or a comparison fails.
    """
    if set(wanted) - set(NO_RUN):
        progress.say(engine.build(settings, progress))
    for part in wanted:
        progress.say(f"bench: {part}")
        match part:
            case "depths":
                run, _ = _run(engine, changed(settings, DEPTHS), part, part, progress)
                yield Part(part, _origin(run), depth_figures(run))
            case "speedup":
                run, _ = _run(engine, changed(settings, SPEEDUP), part, part, progress)
                size_bytes = saved_bytes(run)
                copying = memcpy_gbps(size_bytes, MEMCPY_REPETITIONS) if size_bytes else ()
                yield Part(part, _origin(run), speedup_figures(run, copying))
            case "default":
                run, whole_s = _run(engine, settings, "computer-use", part, progress)
                what = "whole default run, build excluded"
                figure = Figure(what, "s", (whole_s,), Target(DEFAULT_TARGET_S))
                yield Part(part, _origin(run), (figure,))
            case "compare":
                yield _compare(settings.cache_dir / "bench-compare", progress)
            case "load":
                folder = settings.cache_dir / "bench-load"
                yield Part(part, "./inv bench --only=load", load_figures(folder, progress))
            case "six-steps":
                run, whole_s = _run(engine, changed(settings, SIX_STEPS), part, part, progress)
                yield Part(part, _origin(run), six_steps_figures(run, whole_s))
            case _:
                assert_never(part)


def changed(settings: Settings, changes: Changes) -> Settings:
    """The settings with those of a part in place of their own."""
    values = settings.model_dump()
    for group, fields in changes.items():
        values[group] |= fields
    return Settings.model_validate(values)


def _run(
    engine: Engine, settings: Settings, trace: str, part: str, progress: Progress
) -> tuple[RunData, float]:
    """A run of one of the project's traces, and its wall time in seconds."""
    steps = load_trace(TRACES / f"{trace}.jsonl")
    began_s = time.monotonic()
    folder = engine.run(settings, steps, f"bench-{part}", progress)
    whole_s = time.monotonic() - began_s
    return read(folder), whole_s


def _origin(run: RunData) -> str:
    return f"{_shown(run.folder)} ({run.described})"


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _compare(folder: Path, progress: Progress) -> Part:
    progress.start("write a large run", None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_synthetic(folder, SYNTHETIC_STEPS, SYNTHETIC_ROUNDS)
    n = measurements(folder)
    progress.finish(f"wrote {n:,} measurements")
    progress.start("compare it", COMPARE_REPETITIONS)
    within, whole_s = [], []
    for number in range(COMPARE_REPETITIONS):
        progress.advance(number)
        within.append(comparing(folder))
        whole_s.append(compare_command_s(folder))
    progress.finish()
    of = f"{n:,} measurements ({SYNTHETIC_STEPS:,} steps)"
    return Part(
        "compare",
        f"./inv compare --run={_shown(folder)}",
        (
            Figure(f"the whole command, {of}", "s", tuple(whole_s), Target(COMPARE_TARGET_S)),
            Figure("loading alone", "s", tuple(one.load_s for one in within)),
            Figure("rendering alone", "s", tuple(one.render_s for one in within)),
            Figure(
                "loading and rendering, peak of memory",
                "MB",
                tuple(one.peak_bytes / 1e6 for one in within),
                Target(COMPARE_TARGET_MB),
            ),
        ),
    )

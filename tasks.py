"""The command line: every task parses its flags, calls one function of the package and prints."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from experiment import compare, tables
from experiment import structure as structures
from experiment.errors import ExperimentError, SettingsError
from experiment.paths import ROOT
from experiment.progress import RichProgress
from experiment.settings import Settings, load_settings
from experiment.shapes import SHAPES
from experiment.trace import Trace, load_trace

# What builds and measures is imported by the tasks that do so: `compare` need not wait for it.
if TYPE_CHECKING:
    from experiment.engine import Engine

SMOKE_TRACE = ROOT / "data" / "traces" / "smoke.jsonl"
DEFAULT_TRACE = ROOT / "data" / "traces" / "computer-use.jsonl"

Form = TypeVar("Form", bound=str)

SHARED = {
    "engine": "where it happens: docker, native, or auto (docker where an engine answers)",
    "pin": "llama.cpp source to build, a name in docker/pins.toml",
    "source": "llama.cpp checkout, for --pin local",
    "model": "stand-in shape (nano, holo3-mini, holo3-35b-a3b) or path of a GGUF file",
    "mmproj": "vision tower (GGUF) of one's own model",
}


def _terminate(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn what a user can cause into one message and an exit code; anything else is our fault."""
    # Like Ctrl-C: what is running is stopped in order, and a run can be resumed.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except ExperimentError as error:
        raise Exit(f"error: {error}", code=error.exit_code) from error
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise Exit(f"error: {error.strerror or error}{where}", code=1) from error
    except KeyboardInterrupt:
        raise Exit("interrupted; `invoke run --resume NAME` goes on with a run", code=130) from None


def _settings(**flags: object) -> Settings:
    names = {
        "engine": "engine",
        "pin": "build.pin",
        "source": "build.source",
        "jobs": "build.jobs",
        "base_image": "container.base_image",
        "ca_bundle": "container.ca_bundle",
        "model": "model.name",
        "mmproj": "model.mmproj",
        "rounds": "schedule.rounds",
        "full_rounds": "schedule.full_rounds",
        "fake_fill": "server.fake_fill",
        "seed": "seed",
    }
    return load_settings(
        {names[flag]: _value(flag, value) for flag, value in flags.items() if value is not None}
    )


def _value(flag: str, value: object) -> object:
    """Refuse what is surely a slip: invoke hands over `--trace --dry` as the value `--dry`."""
    option = f"--{flag.replace('_', '-')}"
    if isinstance(value, str) and not value.strip():
        raise SettingsError("needs a value after the equals sign", where=option)
    if isinstance(value, str) and value.startswith("-"):
        raise SettingsError(
            f"got {value!r}, which looks like another flag",
            where=option,
            hint=f"give the value as {option}=VALUE; a file whose name begins with - as ./{value}",
        )
    return value


def _form(asked: str, known: Sequence[Form]) -> Form:
    """The known form that is asked for."""
    for form in known:
        if form == asked:
            return form
    raise SettingsError(
        f"there is no format {asked!r}",
        where="--format",
        hint=f"choose one of {', '.join(known)}",
    )


def _choose(settings: Settings) -> Engine:
    from experiment import engine

    chosen = engine.choose(settings)
    print(f"engine: {chosen.name} ({chosen.reason})")
    return chosen


def _trace(trace: Any) -> tuple[Trace, str]:
    """The trace that --trace asks for, checked before anything is built, and the run's name."""
    if trace is None or trace is False:
        return load_trace(SMOKE_TRACE), "smoke"
    if trace is True:
        return load_trace(DEFAULT_TRACE), DEFAULT_TRACE.stem
    path = Path(str(_value("trace", trace)))
    return load_trace(path), path.stem


def _refuse_with_resume(flags: Mapping[str, object], exempt: Sequence[str] = ()) -> None:
    for name, value in flags.items():
        if value is not None and name not in exempt:
            raise SettingsError(
                f"--{name.replace('_', '-')} cannot go with --resume: "
                "the run keeps what it began with"
            )


@task(
    help=SHARED
    | {
        "jobs": "compiler jobs at once (default: usable cores)",
        "base-image": "image to build on, in place of the pinned one",
        "ca-bundle": "certificates for a build behind a proxy (default: pip's own)",
    }
)
def build(
    c: Context,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    jobs: int | None = None,
    base_image: str | None = None,
    ca_bundle: str | None = None,
) -> None:
    """Build the patched llama.cpp server: here with the stand-in model, or as an image."""
    with _user_errors(), RichProgress() as progress:
        settings = _settings(
            engine=engine,
            pin=pin,
            source=source,
            model=model,
            mmproj=mmproj,
            jobs=jobs,
            base_image=base_image,
            ca_bundle=ca_bundle,
        )
        progress.say(_choose(settings).build(settings, progress))


@task(
    optional=["trace"],
    help=SHARED
    | {
        "trace": "replay the default trace (--trace) or a file (--trace=FILE); without it, "
        "a four-step smoke trace",
        "rounds": "rounds of fake, control and restored at least",
        "full-rounds": "rounds of full, the whole prompt",
        "fake-fill": "data of a fabricated prefix: tile or zero",
        "resume": "go on with this run (name or folder); it keeps its own settings and trace",
    },
)
def run(
    c: Context,
    trace: str | None = None,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    rounds: int | None = None,
    full_rounds: int | None = None,
    fake_fill: str | None = None,
    resume: str | None = None,
) -> None:
    """Replay an agent trace and compare fake, restored, full and arithmetic prefill."""
    with _user_errors():
        flags = {
            "pin": pin,
            "source": source,
            "model": model,
            "mmproj": mmproj,
            "rounds": rounds,
            "full_rounds": full_rounds,
            "fake_fill": fake_fill,
        }
        settings = _settings(engine=engine, **flags)
        if resume is not None:
            # A container is not told where on the host a model file of the user's own lies, so that
            # is said again.
            again = () if settings.engine == "native" else ("model", "mmproj")
            _refuse_with_resume({"trace": trace, **flags}, exempt=again)
            folder = compare.find_run(settings.results_dir, str(_value("resume", resume)))
            chosen = _choose(settings)
            if chosen.name != "docker":
                _refuse_with_resume({name: flags[name] for name in again})
            with RichProgress() as progress:
                folder = chosen.resume(settings, folder, progress)
        else:
            steps, name = _trace(trace)
            with RichProgress() as progress:
                folder = _choose(settings).run(settings, steps, name, progress)
        print(tables.render(compare.load(folder), "table"), end="")


@task(
    help=SHARED
    | {
        "depths": "depths L with commas between, rounded to 256 (default: 256 to 131072)",
        "new": "numbers of new tokens, template tail included (default: 16 to 2048)",
        "time-limit": "longest time in minutes; what does not fit is left out (default: 20)",
        "rounds": "rounds of fake, control and restored at least",
        "fake-fill": "data of a fabricated prefix: tile or zero",
        "show": "print this sweep again (name or folder) and measure nothing",
        "format": "table, json, csv or md",
    }
)
def sweep(
    c: Context,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    depths: str | None = None,
    new: str | None = None,
    time_limit: str | None = None,
    rounds: int | None = None,
    fake_fill: str | None = None,
    show: str | None = None,
    format: str = "table",
) -> None:
    """Compare fake and restored prefill on a grid of depths and sizes, within a time limit."""
    from experiment import sweep as sweeping
    from experiment import sweep_results, sweep_tables

    with _user_errors():
        form = _form(format, sweep_tables.FORMATS)
        settings = _settings(
            engine=engine,
            pin=pin,
            source=source,
            model=model,
            mmproj=mmproj,
            rounds=rounds,
            fake_fill=fake_fill,
        )
        if show is not None:
            folder = compare.find_run(settings.results_dir, str(_value("show", show)))
        else:
            request = sweeping.parse_request(depths, new, time_limit)
            chosen = _choose(settings)
            with RichProgress() as progress:
                plan = sweeping.prepare(chosen, settings, request, progress)
                progress.say(sweep_tables.render_plan(plan).rstrip())
                folder = sweeping.measure(chosen, settings, plan, progress)
        print(sweep_tables.render(sweep_results.load(folder), form), end="")


@task(
    name="compare",
    help={
        "run": "name or folder of a run (default: the newest)",
        "format": "table, json, csv or md",
        "structure": "what the graphs did in place of how long they took",
    },
)
def compare_(
    c: Context, run: str | None = None, format: str = "table", structure: bool = False
) -> None:
    """Print what a run measured, from its database alone."""
    with _user_errors():
        form = _form(format, tables.FORMATS)
        wanted = None if run is None else str(_value("run", run))
        folder = compare.find_run(_settings().results_dir, wanted)
        if structure:
            print(structures.render(structures.load(folder), form), end="")
        else:
            print(tables.render(compare.load(folder), form), end="")


@task(
    help={
        "shape": "nano, holo3-mini or holo3-35b-a3b",
        "seed": "of the random weights",
        "pin": SHARED["pin"],
        "source": SHARED["source"],
    }
)
def model(
    c: Context,
    shape: str = "nano",
    seed: int | None = None,
    pin: str | None = None,
    source: str | None = None,
) -> None:
    """Write a stand-in model: the real architecture and tokenizer, random weights."""
    from experiment import models
    from experiment.build import source_tree

    with _user_errors(), RichProgress() as progress:
        if shape not in SHAPES:
            raise SettingsError(
                f"there is no shape {shape!r}",
                where="--shape",
                hint=f"choose one of {', '.join(SHAPES)}",
            )
        settings = _settings(model=shape, seed=seed, pin=pin, source=source)
        made = models.resolve(settings, source_tree(settings, progress), progress)
        print(f"{made.model}\n{made.mmproj}")


@task(help={"unit": "only what needs neither a compiler nor the server", "select": "pytest's -k"})
def test(c: Context, unit: bool = False, select: str | None = None) -> None:
    """Run the tests; those of the server use the build with assertions, made if need be."""
    from experiment import checks

    with _user_errors():
        raise Exit(code=checks.run_tests(unit_only=unit, select=select))


@task(help={"engine": SHARED["engine"], "model": SHARED["model"]})
def doctor(c: Context, engine: str | None = None, model: str | None = None) -> None:
    """Tell whether this machine can do the job, in a container and natively, and what it lacks."""
    from experiment import doctor as diagnosis

    with _user_errors():
        checks_made = diagnosis.examine(_settings(engine=engine, model=model))
        print(diagnosis.render(checks_made), end="")
        raise Exit(code=diagnosis.exit_code(checks_made))


@task(
    help={
        "base-image": "image to build on, in place of the pinned one",
        "ca-bundle": "certificates for a build behind a proxy (default: pip's own)",
    }
)
def reproduce(c: Context, base_image: str | None = None, ca_bundle: str | None = None) -> None:
    """Compile the image's programs twice from nothing and compare them bit by bit."""
    from experiment import image
    from experiment.docker_client import connect
    from experiment.engine import PATCHES
    from experiment.patches import load_series

    with _user_errors(), RichProgress() as progress:
        settings = _settings(base_image=base_image, ca_bundle=ca_bundle)
        pairs = image.reproduce(connect(), settings, load_series(PATCHES), progress)
    for name, (first, second) in pairs.items():
        print(f"{'same' if first == second else 'DIFFERENT'}  {first}  {name}")
    if any(first != second for first, second in pairs.values()):
        raise Exit(code=1)


@task
def lint(c: Context) -> None:
    """Check style and types (ruff, mypy)."""
    from experiment import checks

    raise Exit(code=checks.run_lint())


@task(
    help=SHARED
    | {
        "only": "parts with commas between: depths, speedup, default, compare, six-steps "
        "(default: all but six-steps; for another model than nano six-steps alone)",
        "format": "table or md",
    }
)
def bench(
    c: Context,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    only: str | None = None,
    format: str = "table",
) -> None:
    """Measure what the tool itself costs, each figure against its target."""
    from experiment import bench as benchmark
    from experiment import bench_tables

    with _user_errors(), RichProgress() as progress:
        form = _form(format, bench_tables.FORMATS)
        settings = _settings(engine=engine, pin=pin, source=source, model=model, mmproj=mmproj)
        asked = None if only is None else str(_value("only", only))
        parts = benchmark.parts(asked, settings.model.name)
        for part in benchmark.measure(_choose(settings), settings, parts, progress):
            print(bench_tables.render(part, form), end="")


@task(help={"results": "remove the results as well"})
def clean(c: Context, results: bool = False) -> None:
    """Remove downloaded sources, builds and stand-in models; the next build starts from nothing."""
    with _user_errors():
        settings = _settings()
        for folder in [settings.cache_dir, *([settings.results_dir] if results else [])]:
            if folder.exists():
                shutil.rmtree(folder)
                print(f"removed {folder}")


namespace = Collection(
    build, run, sweep, compare_, model, doctor, test, lint, bench, reproduce, clean
)

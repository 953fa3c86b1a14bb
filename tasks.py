"""The command line: every task parses its flags, calls one function of the package and prints."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from experiment import compare, tables
from experiment import structure as structures
from experiment.alone import alone
from experiment.errors import ArchiveError, ExperimentError, SettingsError
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

INPUT_TOKENS: tuple[Literal["inclusive", "exclusive"], ...] = ("inclusive", "exclusive")

FORCE = {"force": "measure although another run is measuring on this machine"}


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


def _text(flag: str, value: str | None) -> str | None:
    """The value of a flag that may be left out."""
    return None if value is None else str(_value(flag, value))


def _form(asked: str, known: Sequence[Form]) -> Form:
    """The known form that is asked for."""
    return _choice("format", asked, known)


def _choice(flag: str, asked: str, known: Sequence[Form]) -> Form:
    """The value of a flag that takes few."""
    for form in known:
        if form == asked:
            return form
    raise SettingsError(
        f"there is no {flag} {asked!r}",
        where=f"--{flag}",
        hint=f"choose one of {', '.join(known)}",
    )


def _choose(settings: Settings, say: Callable[[str], None] = print) -> Engine:
    from experiment import engine

    chosen = engine.choose(settings)
    say(f"engine: {chosen.name} ({chosen.reason})")
    return chosen


def _trace(trace: Any) -> tuple[Trace, str]:
    """The trace that --trace asks for, checked before anything is built, and the run's name."""
    if trace is None or trace is False:
        return load_trace(SMOKE_TRACE), "smoke"
    if trace is True:
        return load_trace(DEFAULT_TRACE), DEFAULT_TRACE.stem
    path = Path(str(_value("trace", trace)))
    return load_trace(path), path.stem


def _folder(run: str | None) -> Path:
    """The folder of the run that --run names, or of the newest."""
    wanted = None if run is None else str(_value("run", run))
    return compare.find_run(_settings().results_dir, wanted)


def _folders(runs: Sequence[str]) -> list[Path]:
    """The folders of the runs that are named, or of the newest."""
    return [_folder(run) for run in runs] or [_folder(None)]


def _report(folder: Path) -> None:
    """Write the report of a run that has ended and say where it is."""
    from experiment import report as reporting

    print(f"Report: {reporting.write(folder)}")


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
    iterable=["task"],
    help=SHARED
    | {
        "trace": "replay the default trace (--trace) or a file (--trace=FILE); without it, "
        "a four-step smoke trace",
        "budget": "longest time, as 30m or 1h30m: a sample of the steps that fits is replayed, "
        "with the rest extrapolated",
        "max-depth": "leave out steps deeper than this many tokens",
        "limit": "replay so many steps at most, the first ones",
        "task": "replay this task of the trace; may be given several times",
        "rounds": "rounds of fake, control and restored at least",
        "full-rounds": "rounds of full, the whole prompt",
        "fake-fill": "data of a fabricated prefix: tile or zero",
        "resume": "go on with this run (name or folder); it keeps its own settings and trace",
    }
    | FORCE,
)
def run(
    c: Context,
    trace: str | None = None,
    budget: str | None = None,
    max_depth: str | None = None,
    limit: str | None = None,
    task: Sequence[str] | None = None,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    rounds: int | None = None,
    full_rounds: int | None = None,
    fake_fill: str | None = None,
    resume: str | None = None,
    force: bool = False,
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
            narrowing = {"budget": budget, "max_depth": max_depth, "limit": limit}
            asked_for = {"trace": trace, **narrowing, "task": task or None, **flags}
            _refuse_with_resume(asked_for, exempt=again)
            folder = compare.find_run(settings.results_dir, str(_value("resume", resume)))
            chosen = _choose(settings)
            if chosen.name != "docker":
                _refuse_with_resume({name: flags[name] for name in again})
            with alone(f"run --resume={folder.name}", force=force), RichProgress() as progress:
                folder = chosen.resume(settings, folder, progress)
        else:
            from experiment.scope import Asked

            steps, name = _trace(trace)
            asked = Asked.parse(
                steps,
                _text("max_depth", max_depth),
                _text("limit", limit),
                [str(_value("task", one)) for one in task or ()],
                _text("budget", budget),
            )
            with alone(f"run of {name}", force=force), RichProgress() as progress:
                folder = _choose(settings).run(settings, steps, name, progress, asked)
        print(tables.render(compare.load(folder), "table"), end="")
        _report(folder)


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
    | FORCE
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
    force: bool = False,
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
            with alone("sweep", force=force), RichProgress() as progress:
                plan = sweeping.prepare(chosen, settings, request, progress)
                progress.say(sweep_tables.render_plan(plan).rstrip())
                folder = sweeping.measure(chosen, settings, plan, progress)
        print(sweep_tables.render(sweep_results.load(folder), form), end="")
        if show is None and form == "table":
            _report(folder)


@task(
    name="import-trace",
    help={
        "from": "the log, or a folder of logs of one format",
        "to": "the trace to write",
        "format": "the log's format (default: recognised by its content)",
        "model": "stand-in shape or GGUF file whose tokenizer and chat template count tokens, for "
        "logs without counts",
        "mmproj": SHARED["mmproj"],
        "assume-cold": "calls without a cached count had nothing cached",
        "assume-append-only": "their prefix was the whole previous prompt and answer of the task",
        "input-tokens": "inclusive or exclusive: whether input counts contain cached tokens",
        "task-key": "field that tells tasks apart, dotted where nested; slot for a server log",
        "initial-screenshot": "what the first step saw, where the log does not keep it",
    },
)
def import_trace_(
    c: Context,
    from_: str,
    to: str,
    format: str = "auto",
    model: str | None = None,
    mmproj: str | None = None,
    assume_cold: bool = False,
    assume_append_only: bool = False,
    input_tokens: str | None = None,
    task_key: str | None = None,
    initial_screenshot: str | None = None,
) -> None:
    """Turn a log that you have into a trace, with what had to be assumed in its first line."""
    from experiment import import_trace as importing
    from experiment.importers.base import Options
    from experiment.importers.model_counter import open_counter

    with _user_errors(), RichProgress() as progress, ExitStack() as stack:
        options = Options(
            assume_cold=assume_cold,
            assume_append_only=assume_append_only,
            input_tokens=None
            if input_tokens is None
            else _choice("input-tokens", input_tokens, INPUT_TOKENS),
            task_key=None if task_key is None else str(_value("task-key", task_key)),
            initial_screenshot=None
            if initial_screenshot is None
            else Path(str(_value("initial-screenshot", initial_screenshot))),
        )
        counter = None
        if model is not None:
            settings = _settings(model=model, mmproj=mmproj)
            counter = stack.enter_context(open_counter(settings, progress))
        elif mmproj is not None:
            raise SettingsError("goes with --model", where="--mmproj")
        made = importing.import_trace(
            Path(str(_value("from", from_))),
            Path(str(_value("to", to))),
            options,
            progress,
            format=format,
            counter=counter,
        )
        progress.say(f"{made.format}: {made.seen}")
        for kind, sentences in (("assumed", made.log.assumptions), ("note", made.log.warnings)):
            for sentence in sentences:
                progress.say(f"{kind}: {sentence}")
        for reason, number in made.log.dropped.items():
            progress.say(f"left out: {number:,} ({reason})")


@task(
    name="trace-info",
    positional=["trace"],
    help={
        "trace": "the trace, as `import-trace` writes it",
        "format": "table or json",
        "html": "write it as a page to this file instead",
        "estimate": "reckon how long a run takes here, from a probe of the model (--no-estimate)",
        "engine": SHARED["engine"],
        "pin": SHARED["pin"],
        "source": SHARED["source"],
        "model": SHARED["model"],
        "mmproj": SHARED["mmproj"],
    }
    | FORCE,
)
def trace_info_(
    c: Context,
    trace: str,
    format: str = "table",
    html: str | None = None,
    estimate: bool = True,
    engine: str | None = None,
    pin: str | None = None,
    source: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    force: bool = False,
) -> None:
    """Tell what a trace is made of, what is odd in it, and how long a run of it takes here."""
    from experiment import trace_info, trace_info_page, trace_info_tables
    from experiment.probe import reckoned

    with _user_errors():
        form = _form(format, trace_info_tables.FORMATS)
        target = None if html is None else Path(str(_value("html", html)))
        steps = load_trace(Path(str(_value("trace", trace))))
        settings = _settings(engine=engine, pin=pin, source=source, model=model, mmproj=mmproj)
        if estimate:
            with alone("trace-info", force=force), RichProgress() as progress:
                costs, made = reckoned(_choose(settings, progress.say), settings, steps, progress)
            info = trace_info.look_at(steps, sizes=costs.sizes, context=costs.context)
        else:
            info, made = trace_info.look_at(steps), None
        if target is None:
            print(trace_info_tables.render(info, form, made), end="")
        else:
            print(trace_info_page.write(info, target, made))


@task(
    name="compare",
    iterable=["run"],
    help={
        "run": "name or folder of a run (default: the newest); several are set side by side, each "
        "against the first",
        "format": "table, json, csv or md",
        "structure": "what the graphs did in place of how long they took",
    },
)
def compare_(
    c: Context,
    run: Sequence[str] | None = None,
    format: str = "table",
    structure: bool = False,
) -> None:
    """Print what a run measured, from its database alone, or how several differ."""
    with _user_errors():
        form = _form(format, tables.FORMATS)
        folders = _folders(run or [])
        if len(folders) > 1:
            from experiment import compare_runs, compare_runs_tables

            if structure:
                raise SettingsError("takes one run, not several", where="--structure")
            print(compare_runs_tables.render(compare_runs.load(folders), form), end="")
        elif structure:
            print(structures.render(structures.load(folders[0]), form), end="")
        else:
            for piece in tables.pieces(compare.load(folders[0]), form):
                print(piece, end="")


@task(
    help={
        "run": "name or folder of a run (default: the newest)",
        "format": "html, a file that opens from the disk, or md, printed",
        "to": "the HTML file (default: report.html in the run's folder)",
    }
)
def report(c: Context, run: str | None = None, format: str = "html", to: str | None = None) -> None:
    """Make a run's report: the answer, plots with their tables and queries, where it was made."""
    from experiment import report as reporting

    with _user_errors():
        form = _form(format, ("html", "md"))
        folder = _folder(run)
        if form == "md":
            if to is not None:
                raise SettingsError("is for --format=html; the text is printed", where="--to")
            print(reporting.render_md(folder), end="")
        else:
            target = None if to is None else Path(str(_value("to", to)))
            print(reporting.write(folder, target))


@task(
    help={
        "run": "name or folder of a run (default: the newest)",
        "format": "parquet, csv, jsonl, with commas between (default: all three)",
        "to": "folder for the files (default: export in the run's folder)",
    }
)
def export(
    c: Context,
    run: str | None = None,
    format: str = "parquet,csv,jsonl",
    to: str | None = None,
) -> None:
    """Write a run's tables as Parquet and CSV, and its steps as JSON Lines."""
    from experiment import export as exporting

    with _user_errors():
        folder = _folder(run)
        target = folder / "export" if to is None else Path(str(_value("to", to)))
        for path in exporting.export(folder, target, format.split(",")):
            print(path)


@task(
    help={
        "run": "name or folder of a run (default: the newest)",
        "with-image": "put the image in that the run was made with",
        "with-host-name": "leave the machine's name in (it is taken out otherwise)",
        "to": "the archive (default: NAME.tar.gz beside the runs)",
    }
)
def handoff(
    c: Context,
    run: str | None = None,
    with_image: bool = False,
    with_host_name: bool = False,
    to: str | None = None,
) -> None:
    """Pack a run with all that a reviewer needs to check it and to run it again."""
    from experiment import handoff as packing
    from experiment.docker_client import connect

    with _user_errors(), RichProgress() as progress:
        settings = _settings()
        progress.say(
            str(
                packing.pack(
                    _folder(run),
                    settings,
                    progress,
                    with_image=with_image,
                    with_host_name=with_host_name,
                    to=None if to is None else Path(str(_value("to", to))),
                    connection=connect() if with_image else None,
                )
            )
        )


@task(
    positional=["file"],
    help={
        "file": "the archive that `handoff` made",
        "rerun": "replay its trace here, with its code and model, and judge each claim",
        "quick": "with --rerun: a few of the steps, in minutes",
        "engine": SHARED["engine"],
        "model": "the model file, where the run had one of its own",
        "mmproj": SHARED["mmproj"],
    }
    | FORCE,
)
def verify(
    c: Context,
    file: str,
    rerun: bool = False,
    quick: bool = False,
    engine: str | None = None,
    model: str | None = None,
    mmproj: str | None = None,
    force: bool = False,
) -> None:
    """Check a handoff archive: every file, every number, every claim; with --rerun, here again."""
    from experiment import rerun as again
    from experiment import rerun_tables
    from experiment import verify as verifying

    with _user_errors():
        if quick and not rerun:
            raise SettingsError("goes with --rerun", where="--quick")
        settings = _settings(engine=engine, model=model, mmproj=mmproj)
        archive = Path(str(_value("file", file)))
        if not archive.is_file():
            raise ArchiveError("there is no such file", where=str(archive))
        with verifying.unpacked(archive, settings.cache_dir) as work, RichProgress() as progress:
            checks_made = verifying.verify(archive, work, progress)
            progress.finish()
            for check in checks_made:
                print(f"{'ok    ' if check.ok else 'FAILED'}  {check.name}: {check.detail}")
            if not all(check.ok for check in checks_made):
                raise Exit(code=1)
            if rerun:
                with alone(f"verify of {archive.name}", force=force):
                    made = again.rerun(verifying.top(work), settings, progress, quick=quick)
                print(rerun_tables.render(made), end="")
                raise Exit(code=0 if made.holds else 1)


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


@task(
    help={
        "unit": "only what needs neither a compiler nor the server",
        "soak": "only what takes an hour: 20,000 hostile requests, memory, the unpatched server",
        "select": "pytest's -k",
    }
)
def test(c: Context, unit: bool = False, soak: bool = False, select: str | None = None) -> None:
    """Run the tests; those of the server use the build with assertions, made if need be."""
    from experiment import checks

    with _user_errors():
        raise Exit(code=checks.run_tests(unit_only=unit, soak=soak, select=select))


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
def advisories(c: Context) -> None:
    """Tell known vulnerabilities of the locked packages, as far as pip's index tells any."""
    from experiment import advisories as examining

    with _user_errors(), RichProgress() as progress:
        found = examining.examine(progress)
        print(examining.render(found), end="")
        raise Exit(code=examining.exit_code(found))


@task
def lint(c: Context) -> None:
    """Check style and types (ruff, mypy)."""
    from experiment import checks

    raise Exit(code=checks.run_lint())


@task(
    help=SHARED
    | {
        "only": "parts with commas between: depths, speedup, default, compare, load, "
        "six-steps "
        "(default: all but six-steps; for another model than nano six-steps alone)",
        "format": "table or md",
    }
    | FORCE
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
    force: bool = False,
) -> None:
    """Measure what the tool itself costs, each figure against its target."""
    from experiment import bench as benchmark
    from experiment import bench_tables

    with _user_errors(), alone("bench", force=force), RichProgress() as progress:
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
    build,
    run,
    sweep,
    compare_,
    import_trace_,
    trace_info_,
    report,
    export,
    handoff,
    verify,
    model,
    doctor,
    test,
    lint,
    bench,
    reproduce,
    advisories,
    clean,
)

if __name__ == "__main__":
    from experiment.program import Program

    Program(namespace).run()

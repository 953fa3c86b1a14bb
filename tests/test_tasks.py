"""The command line: what each flag does, what is refused, and that a refusal starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fake_sweep
import pytest
from canned import canned_run
from invoke.program import Program

import tasks
from experiment.errors import BuildError
from experiment.paths import ROOT
from experiment.progress import Progress
from experiment.scope import ALL, Asked
from experiment.settings import Settings
from experiment.trace import Trace


@dataclass(frozen=True)
class Called:
    """How a call ended and what it printed."""

    code: int
    out: str
    err: str


DEPTHS_TRACE = ROOT / "data" / "traces" / "depths.jsonl"


class Elsewhere:
    """Calls invoke as a user does, from a folder of their own; sources and results lie there."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "cwd"
        self.cache = folder / "cache"
        self.results = folder / "results"
        self.cwd.mkdir()

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "EXPERIMENT_" not in name}
        return kept | {
            "EXPERIMENT_CACHE_DIR": str(self.cache),
            "EXPERIMENT_RESULTS_DIR": str(self.results),
            **more,
        }

    def __call__(self, *arguments: str, **environ: str) -> Called:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments],
            cwd=self.cwd,
            env=self.environment(**environ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Called(done.returncode, done.stdout, done.stderr)

    def untouched(self) -> bool:
        """Nothing was built, downloaded or measured."""
        return not (self.cache.exists() or self.results.exists() or any(self.cwd.iterdir()))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "environ", "sentences"),
    [
        (["run", "--trace="], {}, ["--trace", "needs a value after the equals sign"]),
        (
            ["run", "--trace", "--dry"],
            {},
            ["--trace", "got '--dry', which looks like another flag", "./--dry"],
        ),
        (
            ["run", "--trace=missing.jsonl"],
            {},
            ["missing.jsonl", "does not exist"],
        ),
        (
            ["build", "run", "--trace"],
            {"EXPERIMENT_BULD__JOBS": "1"},
            ["EXPERIMENT_BULD__JOBS", "EXPERIMENT_BUILD__JOBS"],
        ),
        (
            ["run", "--resume=some-run", "--trace", "--rounds=2"],
            {},
            ["--trace cannot go with --resume", "keeps what it began with"],
        ),
        (["compare", "--format", "xml"], {}, ["--format", "'xml'", "table, json, csv, md"]),
        (["bench", "--format=csv"], {}, ["--format", "'csv'", "table, md"]),
        (["bench", "--only=deep"], {}, ["--only", "'deep'", "depths"]),
        (["sweep", "--depths=1k"], {}, ["--depths", "'1k'"]),
        (["sweep", "--new="], {}, ["--new"]),
        (["sweep", "--time-limit=0"], {}, ["--time-limit"]),
        (["run", "--fake-fill=one"], {}, ["server.fake_fill", '"zero" or "tile"']),
        (["run", "--budget=5"], {}, ["--budget", "'5' has no unit", "--budget=30m"]),
        (["run", "--task=smok"], {}, ["--task", "'smok'", "did you mean 'smoke'?"]),
        (["run", "--max-depth=4"], {}, ["--max-depth", "no step is left"]),
        (["run", "--resume=x", "--budget=5m"], {}, ["--budget cannot go with --resume"]),
        (["trace-info", "missing.jsonl"], {}, ["missing.jsonl", "does not exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_users_slip_is_told_in_a_sentence_before_anything_starts(
    elsewhere: Elsewhere,
    arguments: list[str],
    environ: dict[str, str],
    sentences: list[str],
) -> None:
    called = elsewhere(*arguments, **environ)
    assert called.code == 2
    assert called.err.startswith("error: ")
    for sentence in sentences:
        assert sentence in called.err
    assert "Traceback" not in called.err
    assert called.out == ""
    assert elsewhere.untouched()


def test_the_list_reads_well(elsewhere: Elsewhere) -> None:
    called = elsewhere("--list")
    assert called.code == 0
    listed = re.findall(r"^  (\S+)\s+(\S.*)$", called.out, re.MULTILINE)
    assert dict(listed).keys() == {
        *("build", "run", "sweep", "compare", "model", "doctor"),
        *("report", "export", "handoff", "verify", "import-trace", "trace-info"),
        *("test", "lint", "bench", "reproduce", "advisories", "clean"),
    }
    assert all(sentence[0].isupper() for _, sentence in listed)
    assert elsewhere.untouched()


def test_the_help_of_a_task_reads_well(elsewhere: Elsewhere) -> None:
    called = elsewhere("--help", "run")
    assert called.code == 0
    assert "Replay an agent trace" in called.out
    for flag in ("--trace[=", "--resume=", "--rounds=", "--full-rounds=", "--model=", "--pin="):
        assert flag in called.out
    assert "none" not in called.out.lower().split()
    assert elsewhere.untouched()


def flags(name: str) -> set[str]:
    """The flags of a task, from its own parameters."""
    names = (argument.name for argument in tasks.namespace[name].get_arguments())
    return {name.strip("_").replace("_", "-") for name in names}  # `from_` is --from


@pytest.mark.parametrize("name", sorted(tasks.namespace.task_names))
def test_every_task_says_what_it_does_and_what_each_flag_means(name: str) -> None:
    task = tasks.namespace[name]
    sentence = (task.__doc__ or "").strip()
    assert re.fullmatch(r"[A-Z][^\n]*\.", sentence)
    for argument in task.get_arguments():
        assert argument.help, f"{name} --{argument.name}"
        assert not argument.help.endswith(".")
        # Help texts stand in one column: one that begins with a capital would look odd.
        assert argument.help[0].islower() or argument.help.startswith("llama.cpp")


def test_the_flags_that_are_fixed() -> None:
    shared = {"engine", "pin", "source", "model", "mmproj"}
    assert flags("build") == shared | {"jobs", "base-image", "ca-bundle"}
    assert flags("run") == shared | {
        *("trace", "rounds", "full-rounds", "fake-fill", "resume", "force"),
        *("budget", "max-depth", "limit", "task"),
    }
    assert flags("trace-info") == shared | {"trace", "format", "html", "estimate", "force"}
    assert flags("sweep") == shared | {
        *("depths", "new", "time-limit", "rounds", "fake-fill", "show", "format", "force")
    }
    assert flags("bench") == shared | {"only", "format", "force"}
    assert flags("compare") == {"run", "format", "structure"}
    assert flags("report") == {"run", "format", "to"}
    assert flags("export") == {"run", "format", "to"}
    assert flags("handoff") == {"run", "with-image", "with-host-name", "to"}
    assert flags("verify") == {"file", "rerun", "quick", "engine", "model", "mmproj", "force"}
    assert flags("import-trace") == {
        *("from", "to", "format", "model", "mmproj", "assume-cold", "assume-append-only"),
        *("input-tokens", "task-key", "initial-screenshot"),
    }
    assert flags("model") == {"shape", "seed", "pin", "source"}
    assert flags("test") == {"unit", "soak", "select"}
    assert flags("doctor") == {"engine", "model"}
    assert flags("reproduce") == {"base-image", "ca-bundle"}


class FakeEngine:
    """Stands for a build and a server: remembers what it was asked for, and has canned results."""

    name = "fake"
    reason = "for the tests"

    def __init__(self, canned: Path) -> None:
        self.canned = canned
        self.asked: list[tuple[object, ...]] = []
        self.narrowed: list[Asked] = []
        self.error: BaseException | None = None

    def _do(self, *what: object) -> None:
        self.asked.append(what)
        if self.error:
            raise self.error

    def build(self, settings: Settings, progress: Progress) -> str:
        self._do("build", settings)
        return "built it"

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        self._do("run", settings, trace, name)
        self.narrowed.append(asked)
        folder = settings.results_dir / f"2026-11-30_02-41-05_box_{name}"
        shutil.copytree(self.canned, folder, dirs_exist_ok=True)
        return folder

    def resume(self, settings: Settings, folder: Path, progress: Progress) -> Path:
        self._do("resume", settings, folder)
        return folder


Call = Callable[..., Called]


@pytest.fixture(scope="module")
def canned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder; its making takes a while."""
    return canned_run(tmp_path_factory.mktemp("canned") / "2026-11-30_02-41-05_box_smoke")


@pytest.fixture
def engine(canned: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine(canned)
    monkeypatch.setattr("experiment.engine.choose", lambda _: fake)
    return fake


@pytest.fixture
def here(
    elsewhere: Elsewhere,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """The same in this process, which takes a hundredth of the time, with `FakeEngine`."""
    for name in [name for name in os.environ if "EXPERIMENT_" in name]:
        monkeypatch.delenv(name)
    for name, value in elsewhere.environment().items():
        if name.startswith("EXPERIMENT_"):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(elsewhere.cwd)

    def call(*arguments: str) -> Called:
        program = Program(namespace=tasks.namespace, binary="invoke", name="invoke")
        code = 0
        try:
            program.run(["invoke", *arguments])
        except SystemExit as ending:
            code = int(ending.code or 0)
        return Called(code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--trace= "], "needs a value"),
        (["run", "--resume="], "--resume: needs a value"),
        (["run", "--resume=nothing"], "there is no run nothing"),
        (["run", "--resume=x", "--pin=guide"], "--pin cannot go with --resume"),
        (["run", "--resume=x", "--full-rounds=0"], "--full-rounds cannot go with --resume"),
        (["run", "--resume=x", "--task=a", "--task=b"], "--task cannot go with --resume"),
        (["run", "--resume=x", "--max-depth=9"], "--max-depth cannot go with --resume"),
        (["run", "--limit=0"], "--limit: must be a whole number from 1, not 0"),
        (["run", "--limit=few"], "--limit: must be a whole number, not 'few'"),
        (["run", "--budget="], "--budget: needs a value"),
        (["run", "--max-depth=1.5"], "--max-depth: must be a whole number"),
        (
            ["run", "--resume=x", "--model=nano", "--engine=native"],
            "--model cannot go with --resume",
        ),
        (["run", "--rounds=0"], "schedule.rounds must be"),
        (["run", "--rounds=many"], "not 'many'"),
        (["run", "--engine=podman"], "not 'podman'"),
        (["run", "--model="], "--model: needs a value"),
        (["run", "--pin=local"], "build.source names no checkout"),
        (["run", "--trace=."], "is not a file"),
        (["run", "--trace=" + "x" * 300], "x" * 300),
        (["build", "--jobs=-1"], "looks like another flag"),
        (["build", "--jobs=x"], "build.jobs must be"),
        (["compare"], "there is no run"),
        (["compare", "--run=nothing"], "there is no run nothing"),
        (["compare", "--format="], "--format"),
        (["model", "--shape=huge"], "there is no shape 'huge'"),
        (["model", "--seed=-1"], "looks like another flag"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_other_slips(
    here: Call, elsewhere: Elsewhere, engine: FakeEngine, arguments: list[str], sentence: str
) -> None:
    called = here(*arguments)
    assert called.code in (1, 2)
    assert called.err.startswith("error: ")
    assert sentence in called.err
    assert called.out == ""
    assert engine.asked == []
    assert elsewhere.untouched()


def test_a_bad_row_is_told_before_anything_is_built(
    here: Call, elsewhere: Elsewhere, engine: FakeEngine
) -> None:
    bad = elsewhere.cwd / "bad.jsonl"
    bad.write_text('{"task_id": "t", "step": 0, "depth": -1, "new": {"tokens": 3}}\n')
    called = here("run", "--trace=bad.jsonl")
    assert called.code == 2
    assert called.err.startswith("error: bad.jsonl:1: depth: ")
    assert (called.out, engine.asked) == ("", [])


@pytest.mark.parametrize(
    ("arguments", "file", "name"),
    [
        ([], tasks.SMOKE_TRACE, "smoke"),
        (["--trace"], tasks.DEFAULT_TRACE, "computer-use"),
        ([f"--trace={DEPTHS_TRACE}"], DEPTHS_TRACE, "depths"),
    ],
)
def test_run_takes_the_trace_that_is_asked_for_and_prints_the_table(
    here: Call, engine: FakeEngine, arguments: list[str], file: Path, name: str
) -> None:
    called = here("run", *arguments)
    assert called.code == 0
    ((what, settings, trace, named),) = engine.asked
    assert (what, named) == ("run", name)
    assert isinstance(trace, Trace)
    assert trace.path == file
    assert isinstance(settings, Settings)
    assert settings.schedule.rounds == 3
    assert "engine: fake (for the tests)" in called.out
    assert "fake" in called.out
    assert "restored" in called.out


def test_run_narrows_the_trace_as_it_is_asked_to(here: Call, engine: FakeEngine) -> None:
    called = here(
        *("run", "--trace", "--budget=1h30m", "--max-depth=5000", "--limit=9"),
        *("--task=dark-theme", "--task=check-backup"),
    )
    assert called.code == 0, called.err
    assert here("run").code == 0
    assert engine.narrowed == [Asked(5000, 9, ("dark-theme", "check-backup"), 5400.0), ALL]


def test_a_trace_is_found_from_where_the_user_stands(
    here: Call, elsewhere: Elsewhere, engine: FakeEngine
) -> None:
    text = DEPTHS_TRACE.read_text(encoding="utf-8")
    (elsewhere.cwd / "mine.jsonl").write_text(text, encoding="utf-8")
    (elsewhere.cwd / "-odd.jsonl").write_text(text, encoding="utf-8")
    assert here("run", "--trace=mine.jsonl").code == 0
    assert here("run", "--trace", "./-odd.jsonl").code == 0
    assert [asked[3] for asked in engine.asked] == ["mine", "-odd"]


def test_flags_win_over_the_environment(
    here: Call, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPERIMENT_SCHEDULE__ROUNDS", "7")
    monkeypatch.setenv("EXPERIMENT_SCHEDULE__FULL_ROUNDS", "6")
    monkeypatch.setenv("EXPERIMENT_MODEL__NAME", "holo3-mini")
    assert here("run", "--rounds=2", "--pin=guide", "--engine=native").code == 0
    settings = engine.asked[0][1]
    assert isinstance(settings, Settings)
    assert (settings.schedule.rounds, settings.schedule.full_rounds) == (2, 6)
    assert (settings.build.pin, settings.model.name) == ("guide", "holo3-mini")
    assert settings.engine == "native"


def test_build_and_run_in_one_call(here: Call, engine: FakeEngine) -> None:
    called = here("build", "--jobs=3", "run", "--trace")
    assert called.code == 0
    assert [asked[0] for asked in engine.asked] == ["build", "run"]
    settings = engine.asked[0][1]
    assert isinstance(settings, Settings)
    assert settings.build.jobs == 3
    assert "built it" in called.err


def test_resume_takes_a_name_or_a_folder(
    here: Call, elsewhere: Elsewhere, engine: FakeEngine, canned: Path
) -> None:
    folder = elsewhere.results / canned.name
    shutil.copytree(canned, folder)
    for wanted in (folder.name, str(folder)):
        called = here("run", f"--resume={wanted}", "--engine=native")
        assert called.code == 0
        assert "restored" in called.out
    assert [what[0] for what in engine.asked] == ["resume"] * 2
    assert [what[2] for what in engine.asked] == [folder] * 2


def test_an_interrupt_says_how_to_go_on(here: Call, engine: FakeEngine) -> None:
    engine.error = KeyboardInterrupt()
    called = here("run")
    assert called.code == 130
    assert "--resume" in called.err


def test_a_failure_of_the_build_ends_the_chain(here: Call, engine: FakeEngine) -> None:
    engine.error = BuildError("the compiler is missing", hint="install one")
    called = here("build", "run")
    assert called.code == 1
    assert "error: the compiler is missing\n  hint: install one" in called.err
    assert len(engine.asked) == 1


def test_a_fault_of_our_own_keeps_its_traceback(here: Call, engine: FakeEngine) -> None:
    engine.error = ZeroDivisionError("ours")
    with pytest.raises(ZeroDivisionError):
        here("run")


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_compare_prints_each_format(
    here: Call, elsewhere: Elsewhere, canned: Path, form: str
) -> None:
    shutil.copytree(canned, elsewhere.results / canned.name)
    called = here("compare", f"--format={form}")
    assert called.code == 0
    assert called.err == ""
    assert "restored" in called.out
    assert called.out.endswith("\n")
    assert not called.out.endswith("\n\n")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ([], {"unit_only": False, "soak": False, "select": None}),
        (
            ["--unit", "--select=landing"],
            {"unit_only": True, "soak": False, "select": "landing"},
        ),
        (["--soak"], {"unit_only": False, "soak": True, "select": None}),
    ],
)
def test_the_exit_code_of_the_tests_is_that_of_the_task(
    here: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], asked: dict[str, object]
) -> None:
    seen: list[dict[str, object]] = []
    for code in (0, 1):

        def run_tests(answer: int = code, **options: object) -> int:
            seen.append(options)
            return answer

        monkeypatch.setattr("experiment.checks.run_tests", run_tests)
        assert here("test", *arguments).code == code
    assert seen == [asked, asked]


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_the_linters_is_that_of_the_task(
    here: Call, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("experiment.checks.run_lint", lambda: code)
    assert here("lint").code == code


def test_clean_keeps_the_results_unless_told(here: Call, elsewhere: Elsewhere) -> None:
    for folder in (elsewhere.cache, elsewhere.results):
        (folder / "deep").mkdir(parents=True)
    assert here("clean").code == 0
    assert (elsewhere.cache.exists(), elsewhere.results.exists()) == (False, True)
    called = here("clean", "--results")
    assert called.code == 0
    assert called.out == f"removed {elsewhere.results}\n"
    assert not elsewhere.results.exists()


def test_report_is_written_beside_the_run_or_printed(
    here: Call, elsewhere: Elsewhere, canned: Path
) -> None:
    folder = elsewhere.results / canned.name
    shutil.copytree(canned, folder)
    called = here("report")
    assert (called.code, called.out) == (0, f"{folder / 'report.html'}\n")
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    called = here("report", "--to=mine.html")
    assert (called.code, called.out) == (0, "mine.html\n")
    assert (elsewhere.cwd / "mine.html").read_bytes() == (folder / "report.html").read_bytes()
    called = here("report", "--format=md")
    assert called.code == 0
    assert called.out.count("\n|") > 4
    called = here("report", "--format=md", "--to=x")
    assert (called.code, called.out) == (2, "")


def test_export_prints_the_files_it_writes(here: Call, elsewhere: Elsewhere, canned: Path) -> None:
    folder = elsewhere.results / canned.name
    shutil.copytree(canned, folder)
    called = here("export", "--format=csv,jsonl", "--to=out")
    assert called.code == 0
    written = [Path(line) for line in called.out.splitlines()]
    assert Path("out/measurement.csv") in written
    assert Path("out/steps.jsonl") in written
    assert {path.suffix for path in written} == {".csv", ".jsonl"}
    assert all((elsewhere.cwd / path).is_file() for path in written)
    called = here("export")
    assert called.code == 0
    assert (folder / "export" / "measurement.parquet").is_file()
    called = here("export", "--format=xlsx")
    assert called.code == 1
    assert "xlsx" in called.err


def test_trace_info_without_an_estimate_starts_nothing(
    here: Call, elsewhere: Elsewhere, engine: FakeEngine
) -> None:
    called = here("trace-info", str(DEPTHS_TRACE), "--no-estimate")
    assert called.code == 0, called.err
    assert called.out.startswith("depths.jsonl: 4 steps of 4 tasks\n")
    assert "a run here" not in called.out
    told = json.loads(here("trace-info", str(DEPTHS_TRACE), "--no-estimate", "--format=json").out)
    assert (told["steps"], told["estimate"]) == (4, None)
    called = here("trace-info", str(DEPTHS_TRACE), "--no-estimate", "--html=trace.html")
    assert (called.code, called.out) == (0, "trace.html\n")
    assert "<html" in (elsewhere.cwd / "trace.html").read_text(encoding="utf-8")
    assert here("trace-info", str(DEPTHS_TRACE), "--format=csv").code == 2
    assert engine.asked == []


def test_trace_info_reckons_a_run_from_a_probe(
    here: Call, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    probing = fake_sweep.FakeEngine()
    monkeypatch.setattr("experiment.engine.choose", lambda _: probing)
    called = here("trace-info", str(DEPTHS_TRACE), "--model=nano")
    assert called.code == 0, called.err
    (row,) = (line for line in called.out.splitlines() if line.startswith("a run here"))
    assert row.split() == ["a", "run", "here", "likely", "at", "least", "at", "most"]
    ((name, settings, steps),) = probing.runs
    assert name == "trace-probe"
    assert settings.model.name == "nano"
    assert max(step.depth for step in steps) == 65_536
    # What is printed for programs is not mixed with what is said to people.
    called = here("trace-info", str(DEPTHS_TRACE), "--format=json")
    assert json.loads(called.out)["estimate"]["seconds"] > 0
    assert "engine: native (a test)" in called.err


def test_several_runs_are_set_side_by_side(
    here: Call, elsewhere: Elsewhere, canned: Path, tmp_path: Path
) -> None:
    shutil.copytree(canned, elsewhere.results / canned.name)
    other = canned_run(tmp_path / "other")
    called = here("compare", f"--run={canned.name}", f"--run={other}", "--format=json")
    assert called.code == 0, called.err
    assert len(json.loads(called.out)["runs"]) == 2
    called = here("compare", f"--run={canned.name}", f"--run={other}", "--structure")
    assert (called.code, called.out) == (2, "")
    assert "takes one run" in called.err


def test_what_cannot_be_handed_on_or_verified_is_told(
    here: Call, elsewhere: Elsewhere, canned: Path
) -> None:
    shutil.copytree(canned, elsewhere.results / canned.name)
    called = here("handoff")
    assert called.code == 1
    assert "hint" in called.err
    for arguments, code, sentence in (
        (["verify", "nothing.tar.gz"], 1, "nothing.tar.gz"),
        (["verify", "nothing.tar.gz", "--quick"], 2, "--quick: goes with --rerun"),
    ):
        called = here(*arguments)
        assert (called.code, called.out) == (code, "")
        assert sentence in called.err


def test_a_log_becomes_a_trace(here: Call, elsewhere: Elsewhere) -> None:
    (elsewhere.cwd / "log.csv").write_text(
        "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "s,0,0,900,10,5\ns,1,910,40,10,6\n"
    )
    called = here("import-trace", "--from=log.csv", "--to=mine.jsonl")
    assert called.code == 0, called.err
    rows = [json.loads(line) for line in (elsewhere.cwd / "mine.jsonl").read_text().splitlines()]
    assert rows[0]["trace"]["from"] == "tracelab"
    assert [(row["depth"], row["new"]["tokens"]) for row in rows[1:]] == [(0, 900), (910, 40)]
    for arguments, sentence in (
        (["--input-tokens=both"], "there is no input-tokens 'both'"),
        (["--mmproj=x.gguf"], "--mmproj: goes with --model"),
        (["--format=xlsx"], "xlsx"),
    ):
        called = here("import-trace", "--from=log.csv", "--to=other.jsonl", *arguments)
        assert called.code == 2
        assert sentence in called.err
        assert not (elsewhere.cwd / "other.jsonl").exists()

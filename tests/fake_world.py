"""What stands for a server, its model and llama-bench in the tests of the main job."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb

from experiment import run
from experiment.build import Build
from experiment.client import Prompt, Reply
from experiment.database import DATABASE
from experiment.errors import PrefixError, ServerError
from experiment.models import ModelFiles
from experiment.patches import Patch, Series
from experiment.prefix import StepPrompt
from experiment.progress import Progress, SilentProgress
from experiment.records import CalibrationRow
from experiment.session import Session
from experiment.settings import Settings, load_settings
from experiment.trace import Step, load_trace

HEAD = 3  # tokens of the chat template's head: what no depth can be below
ENCODE_MS = 20.0
MS_PER_TOKEN = 0.5
INSTALL_MS = {"fake": 1.0, "restored": 4.0, "full": 0.0}
KINDS = {"fake": "fake", "restored": "state", "full": "none"}
TPS = 100.0  # what the fake calibration measures at every depth
ROUNDS, FULL_ROUNDS = 3, 1

Ask = tuple[str, int, str]
"""task_id, step, variant."""

Trouble = Callable[[int, Ask], "dict[str, Any] | BaseException | None"]
"""From number (from 0) and kind of a request: what to change of the timings, or to raise."""


def new_tokens(task_id: str, step: int) -> int:
    return 17 + 10 * step if task_id == "a" else 40


class World:
    """A trace, settings, and what stands for the server, its model and llama-bench.

    The k-th answer to the same question (the warm-up's being the 0th) takes k ms longer, the
    warm-up's a second; ``trouble`` may change an answer or raise.
    """

    def __init__(self, folder: Path, *, with_refused: bool = True) -> None:
        rows: list[dict[str, Any]] = [
            {"task_id": "a", "step": 0, "depth": 300, "new": {"tokens": 5}},
            {"task_id": "a", "step": 1, "depth": 900, "new": {"tokens": 5}},
        ]
        if with_refused:  # in the middle of the trace
            rows.insert(1, {"task_id": "b", "step": 0, "depth": 2, "new": {"tokens": 5}})
        self.trace_file = folder / "mine.jsonl"
        if not self.trace_file.exists():
            self.trace_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.settings = load_settings(
            {
                "results_dir": str(folder / "results"),
                "schedule.rounds": ROUNDS,
                "schedule.full_rounds": FULL_ROUNDS,
                "calibration.points": 4,
            },
            environ={},
        )
        self.ingredients = ingredients(folder)
        self.progress: Progress = SilentProgress()
        self.trouble: Trouble = lambda _number, _ask: None
        self.starting: Callable[[int], None] = lambda _session: None
        self.benching: Callable[[int], None] = lambda _depth: None
        self.dead: ServerError | None = None
        self.sessions = 0
        self.open_sessions = 0
        self.steps: list[Step] = []
        self.asked: list[Ask] = []
        self.answered: Counter[Ask] = Counter()
        self.benched: list[int] = []

    def start(self) -> Path:
        trace = load_trace(self.trace_file)
        with self._in_place():
            return run.start(
                self.settings, trace, "mine", "native", self.ingredients, self.progress
            )

    def resume(
        self,
        folder: Path,
        gather: Callable[[Settings], run.Ingredients] | None = None,
        engine: str = "native",
    ) -> Path:
        with self._in_place():
            return run.resume(folder, engine, gather or (lambda _: self.ingredients), self.progress)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        with (
            mock.patch.object(run, "open_session", self._open_session),
            mock.patch.object(run, "run_llama_bench", self._run_llama_bench),
            # Three processes; what they print is tested with the folder.
            mock.patch("experiment.folder.raw_outputs", dict),
            mock.patch("experiment.folder.git_state", return_value={}),
        ):
            yield

    @contextmanager
    def _open_session(
        self, settings: Settings, build: Build, model: ModelFiles, steps: Sequence[Step], log: Path
    ) -> Iterator[Session]:
        assert build is self.ingredients.build
        assert model is self.ingredients.model
        assert log.name == "server.log"
        self.sessions += 1
        self.steps = list(steps)
        self.starting(self.sessions)
        self.open_sessions += 1
        try:
            yield Session(self, self, {"n_ctx": 1536, "fused": True}, prompt_of)  # type: ignore[arg-type]
        finally:
            self.open_sessions -= 1

    def check(self) -> None:
        """The server's: raises if it has ended."""
        if self.dead:
            raise self.dead

    def complete(self, prompt: Prompt, **parameters: Any) -> Reply:
        """The client's."""
        assert self.open_sessions == 1
        task_id, number, depth = json.loads(prompt.text)
        variant = "restored" if "n_state_cached" in parameters else "fake"
        wanted = parameters["n_state_cached" if variant == "restored" else "n_fake_cached"]
        if not wanted:
            variant = "full"
        ask = (task_id, number, variant)
        self.asked.append(ask)
        changes = self.trouble(len(self.asked) - 1, ask)
        if isinstance(changes, BaseException):
            raise changes
        new = new_tokens(task_id, number) + depth - wanted
        # There is no warm-up for `full`.
        k = self.answered[ask] + (variant == "full")
        self.answered[ask] += 1
        timings: dict[str, Any] = {
            "cache_n": wanted,
            "prompt_n": new,
            "prompt_ms": answer_ms(variant, new, k),
            "encode_ms": ENCODE_MS,
            "prefix": {
                "kind": KINDS[variant],
                "install_ms": INSTALL_MS[variant],
                "prime_ms": 0.0,
                "size_bytes": 1 << 20,
                "n_kv": (depth + new_tokens(task_id, number) + 255) // 256 * 256,
            },
        }
        changes = dict(changes or {})
        timings["prefix"].update(changes.pop("prefix", {}))
        return Reply(dict(parameters), {"timings": timings | changes}, 123.0)

    def _run_llama_bench(
        self,
        bench: Path,
        model: Path,
        depths: Iterable[int],
        chunk: int,
        repetitions: int,
        threads: int,
        batch: int,
        ubatch: int,
        progress: Progress,
        log: Path,
    ) -> Iterator[CalibrationRow]:
        assert (bench, model) == (self.ingredients.build.bench, self.ingredients.model.model)
        assert (batch, ubatch, repetitions) == (2048, 512, 3)
        for depth in depths:
            self.benching(depth)
            self.benched.append(depth)
            yield CalibrationRow(depth, chunk, TPS, (TPS,) * repetitions)


def answer_ms(variant: str, new: int, k: int) -> float:
    warm_up_ms = 1000.0 if k == 0 else 0.0
    return INSTALL_MS[variant] + ENCODE_MS + new * MS_PER_TOKEN + k + warm_up_ms


def prompt_of(step: Step) -> StepPrompt:
    if step.depth < HEAD:
        raise PrefixError(f"depth {step.depth} is too small")
    prompt = Prompt(json.dumps([step.task_id, step.step, step.depth]))
    return StepPrompt(prompt, step.depth, new_tokens(step.task_id, step.step))


def ingredients(
    folder: Path, *, patch: str = "one", model_sha256: str = "m" * 64
) -> run.Ingredients:
    record: dict[str, object] = {"commit": "abc"}
    files = (folder / "llama-server", folder / "llama-bench", folder / "tree")
    build = Build("release", folder, *files, record, folder / "log")
    series = Series((Patch(Path("0001-x.patch"), patch, "the diff\n", ("x",)),))
    model = ModelFiles(folder / "m.gguf", None, "nano", model_sha256, None)
    return run.Ingredients(build, series, model)


class Recording(SilentProgress):
    """Keeps what a person would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.totals: dict[str, float | None] = {}
        self.done: dict[str, list[float]] = {}
        self.notes: list[str] = []
        self._what = ""

    def start(self, what: str, total: float | None) -> None:
        self._what = what
        self.totals[what] = total
        self.done[what] = []

    def advance(self, done: float, note: str = "") -> None:
        self.done[self._what].append(done)
        self.notes.append(note)

    def say(self, line: str) -> None:
        self.lines.append(line)


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def counts(folder: Path) -> dict[tuple[str, str], int]:
    """How many rows there are by variant and status."""
    sql = "SELECT variant, status, count(*) FROM measurement GROUP BY variant, status"
    return {(variant, status): count for variant, status, count in query(folder, sql)}


def events(folder: Path, kind: str) -> list[str]:
    return [
        message
        for (message,) in query(
            folder, f"SELECT message FROM event WHERE kind = '{kind}' ORDER BY happened_at"
        )
    ]


def status(folder: Path) -> str:
    ((found, finished),) = query(folder, "SELECT status, finished IS NOT NULL FROM run")
    assert finished == (found != "running")
    return str(found)


def the_run(world: World) -> Path:
    """The one results folder that there is."""
    (folder,) = world.settings.results_dir.iterdir()
    return folder


def structure(folder: Path) -> list[tuple[Any, ...]]:
    """Everything about the rows that does not depend on when they were measured."""
    return query(
        folder,
        # A warm-up after a restart is a round of its own, of the steps with something left.
        "SELECT task_id, step, variant, round, if(round < 0, NULL, position_in_round), depth, "
        "status, error, cache_n, prompt_n, n_kv, raw FROM measurement ORDER BY ALL",
    )


def killed_at(folder: Path, at: int) -> None:
    """Run in a process of its own, which dies at a request without any goodbye."""
    world = World(folder, with_refused=False)

    def trouble(number: int, ask: Ask) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    world.trouble = trouble
    world.start()

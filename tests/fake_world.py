"""What stands for a server, its model and llama-bench in the tests of the main job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb

from experiment import calibrate, replay, run
from experiment.build import Build
from experiment.client import Prompt, Reply
from experiment.database import DATABASE
from experiment.errors import PrefixError, ServerError
from experiment.measure import Measurer
from experiment.models import ModelFiles
from experiment.patches import Patch, Series
from experiment.prefix import StepPrompt
from experiment.progress import Progress, SilentProgress
from experiment.records import CalibrationRow, Measurement
from experiment.schedule import Planned
from experiment.scope import Scope
from experiment.session import Session
from experiment.settings import Settings, load_settings
from experiment.trace import Step, load_trace

HEAD = 3  # tokens of the chat template's head: what no depth can be below
ENCODE_MS = 20.0
MS_PER_TOKEN = 0.5
INSTALL_MS = {"fake": 1.0, "control": 1.0, "restored": 4.0, "full": 0.0}
KINDS = {"fake": "fake", "control": "fake", "restored": "state", "full": "none"}
FILL = "tile"
FILL_MS = 3.0
UBATCH = 16  # tokens
NODES = 1000
KV_BYTES = 512  # of a column, in all layers
LAYERS = 2
DISTINCT_EXPERTS = {"fake": 6, "restored": 8}  # in the first ubatch's first layer
TPS = 100.0  # what the fake calibration measures at every depth
ROUNDS, FULL_ROUNDS = 3, 1
WALL_MS = 123.0

LOST = 7
"""A request in the first round, after four of the warm-up: `full` of the first step."""

SIMPLE_COUNTS = {
    **dict.fromkeys([("fake", "warmup"), ("restored", "warmup")], 2),
    **dict.fromkeys([("fake", "ok"), ("control", "ok"), ("restored", "ok")], 2 * ROUNDS),
    ("full", "ok"): 2 * FULL_ROUNDS,
    ("arithmetic", "ok"): 2,
}
"""Measurements by variant and status of a run without trouble and without the refused step."""

Ask = tuple[str, int, str]
"""task_id, step, variant."""

Trouble = Callable[[int, Ask], "dict[str, Any] | BaseException | None"]
"""From number (from 0) and kind of a request: what to change of the timings, or to raise."""


def new_tokens(task_id: str, step: int) -> int:
    return 17 + 10 * step if task_id == "a" else 40


class World:
    """A trace, settings, and what stands for the server, its model and llama-bench.

    An answer in round k (from 0) takes k + 1 ms longer, a warm-up's a second; ``trouble`` may
    change an answer or raise. ``counting`` says which experts are counted, or raises, and
    ``recounting`` changes such an answer. ``item`` is what is being measured.
    """

    def __init__(self, folder: Path, *, with_refused: bool = True, **schedule: object) -> None:
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
                "server.fake_fill": FILL,
                "calibration.points": 4,
                **{f"schedule.{name}": value for name, value in schedule.items()},
            },
            environ={},
        )
        self.ingredients = ingredients(folder)
        self.progress: Progress = SilentProgress()
        self.trouble: Trouble = lambda _number, _ask: None
        self.counting: Callable[[Ask, int], Any] = distinct_experts
        self.recounting: dict[str, Any] = {}
        self.starting: Callable[[int], None] = lambda _session: None
        self.benching: Callable[[int], None] = lambda _depth: None
        self.dead: ServerError | None = None
        self.sessions = 0
        self.open_sessions = 0
        self.steps: list[Step] = []
        self.asked: list[Ask] = []
        self.counted: list[Ask] = []
        self.item: Planned
        self.pid = os.getpid()
        self.benched: list[int] = []

    def start(self, scope: Scope | None = None) -> Path:
        trace = load_trace(self.trace_file)
        with self._in_place():
            return run.start(
                self.settings,
                trace,
                "mine",
                "native",
                self.ingredients,
                self.progress,
                scope=scope,
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
        measure = Measurer.measure

        def noting(measurer: Measurer, item: Planned) -> Measurement:
            self.item = item  # nothing in a request tells control from fake
            return measure(measurer, item)

        with (
            mock.patch.object(Measurer, "measure", noting),
            mock.patch.object(replay, "open_session", self._open_session),
            mock.patch.object(calibrate, "run_llama_bench", self._run_llama_bench),
            # Three processes; what they print is tested with the folder.
            mock.patch("experiment.folder.raw_outputs", dict),
            mock.patch("experiment.folder.git_state", return_value={}),
            mock.patch("experiment.folder.record"),
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
        assert parameters.get("fake_fill") == (FILL if variant == "fake" and wanted else None)
        if parameters.get("count_experts"):
            return self._count((task_id, number, variant), depth, parameters)
        if not wanted:
            variant = "full"
        assert self.item.variant in (variant, *(("control",) if variant == "fake" else ()))
        ask = (task_id, number, self.item.variant)
        self.asked.append(ask)
        changes = self.trouble(len(self.asked) - 1, ask)
        if isinstance(changes, BaseException):
            raise changes
        timings = timings_of(ask, depth, wanted, max(0, self.item.round + 1))
        changes = dict(changes or {})
        timings["prefix"].update(changes.pop("prefix", {}))
        return Reply(dict(parameters), {"timings": timings | changes}, WALL_MS)

    def _count(self, ask: Ask, depth: int, parameters: dict[str, Any]) -> Reply:
        self.counted.append(ask)
        timings = timings_of(ask, depth, depth, 0)
        experts = self.counting(ask, len(timings["prefix"]["ubatches"]))
        if isinstance(experts, BaseException):
            raise experts
        timings |= {"experts": experts} | self.recounting
        return Reply(dict(parameters), {"timings": timings}, WALL_MS)

    def _run_llama_bench(
        self,
        bench: Path,
        model: Path,
        chunks: Mapping[int, Sequence[int]],
        repetitions: int,
        threads: int,
        batch: int,
        ubatch: int,
        progress: Progress,
        log: Path,
    ) -> Iterator[CalibrationRow]:
        assert (bench, model) == (self.ingredients.build.bench, self.ingredients.model.model)
        assert (batch, ubatch) == (2048, 512)
        assert repetitions in (1, 3)  # 1: a quick rerun
        for depth, sizes in chunks.items():
            self.benching(depth)
            self.benched.append(depth)
            for chunk in sizes:
                yield CalibrationRow(depth, chunk, TPS, (TPS,) * repetitions, 2.5)


def timings_of(ask: Ask, depth: int, wanted: int, k: int) -> dict[str, Any]:
    """What the server reports when all is well, ``k`` as `answer_ms` takes it."""
    task_id, number, variant = ask
    new = new_tokens(task_id, number) + depth - wanted
    ubatches = ubatches_of(wanted, new)
    fabricated = KINDS[variant] == "fake"
    return {
        "cache_n": wanted,
        "prompt_n": new,
        "prompt_ms": answer_ms(variant, new, k),
        "encode_ms": ENCODE_MS,
        "prefix": {
            "kind": KINDS[variant],
            "fill": FILL if fabricated else "none",
            "fill_ms": FILL_MS if fabricated else 0.0,
            "install_ms": INSTALL_MS[variant],
            "prime_ms": 0.0,
            "size_bytes": 1 << 20,
            "n_kv": ubatches[-1]["n_kv"],
            "kv_bytes": sum(ubatch["n_kv"] for ubatch in ubatches) * KV_BYTES,
            "ubatches": ubatches,
        },
    }


def ubatches_of(before: int, new: int) -> list[dict[str, int]]:
    """Ubatches of ``new`` tokens that begin after ``before`` cells."""
    made = []
    for start in range(0, new, UBATCH):
        tokens = min(UBATCH, new - start)
        n_kv = (before + start + tokens + 255) // 256 * 256
        made.append({"n_tokens": tokens, "n_kv": n_kv, "n_nodes": NODES})
    return made


def distinct_experts(ask: Ask, ubatches: int) -> list[list[int]]:
    """One more from layer to layer and from ubatch to ubatch."""
    first = DISTINCT_EXPERTS[ask[2]]
    return [[first + layer + ubatch for layer in range(LAYERS)] for ubatch in range(ubatches)]


def slowed(world: World, factor: Callable[[Planned], float]) -> Trouble:
    """Makes the prefill of what is measured longer by a factor."""

    def trouble(number: int, ask: Ask) -> dict[str, Any] | None:
        item = world.item
        if item.round < 0 or factor(item) == 1.0:
            return None
        install_ms = INSTALL_MS[item.variant]
        new = new_tokens(item.step.task_id, item.step.step)
        prefill_ms = answer_ms(item.variant, new, item.round + 1) - install_ms
        return {"prompt_ms": install_ms + prefill_ms * factor(item)}

    return trouble


def answer_ms(variant: str, new: int, k: int) -> float:
    warm_up_ms = 1000.0 if k == 0 else 0.0
    return INSTALL_MS[variant] + ENCODE_MS + new * MS_PER_TOKEN + k + warm_up_ms


def prompt_of(step: Step) -> StepPrompt:
    if 0 < step.depth < HEAD:
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
        "status, error, cache_n, prompt_n, prompt_ms, n_kv, fake_fill, fill_ms, "
        "ubatch_tokens::VARCHAR, ubatch_n_kv::VARCHAR, graph_nodes::VARCHAR, kv_bytes, raw "
        "FROM measurement ORDER BY ALL",
    )


def killed_at(folder: Path, at: int) -> None:
    """Run in a process of its own, which dies at a request without any goodbye."""
    world = World(folder, with_refused=False)

    def trouble(number: int, ask: Ask) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    world.trouble = trouble
    world.start()

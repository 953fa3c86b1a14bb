"""A run of the fake world that is killed at a chosen stroke, and what has to hold afterwards.

A stroke is each file operation of Python below the run's folder, each half of a file's content and
each statement of the database, counted from the start of the run to its written report. This file
is a program: it forks for every kill, so that what is slow to import is imported once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":  # started as a program, not by pytest
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fake_world import ROUNDS, World, events, query, slowed, status, structure

from experiment import report
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.recorded import Recorded
from experiment.under_way import INTERRUPTED, NAME

MAX_ROUNDS = 5

PHASES = {
    "write": "report",
    "estimate": "estimate",
    "_calibrate": "calibration",
    "run": "experts",  # of ExpertPass
    "make": "rounds",
    "create": "creation",
    "write_records": "before the database",
    "keep_trace": "before the database",
    "new_folder": "before the database",
}
"""What a stroke belongs to, by a function that it is made in."""

ALL_PHASES = {*PHASES.values(), "added rounds", "between"}

IDENTITY = (
    "SELECT task_id, step, variant, round, prompt_ms, started_at FROM measurement "
    "WHERE status NOT IN ('failed', 'warmup') ORDER BY ALL"
)

_OWN = "* EXCLUDE run_id"

CLEAN = {"build.json", "git_diff.patch", "graph.json", "host.json", "raw", "report.html"} | {
    DATABASE,
    "trace.jsonl",
}


@dataclass(frozen=True)
class Kill:
    """At which stroke, and how many seconds after it: in the midst of what comes next."""

    at: int
    delay_s: float = 0.0


class Strokes:
    """Counts, and kills this process at one of them."""

    def __init__(self, root: Path, world: World, kill: Kill | None) -> None:
        self.root = str(root)
        self.world = world
        self.kill = kill
        self.phases: list[str] = []
        self.on = True

    def stroke(self) -> None:
        if not self.on:
            return
        self.phases.append(self._phase())
        if self.kill and len(self.phases) == self.kill.at + 1:
            self.on = False
            (Path(self.root) / "killed.txt").write_text(self.phases[-1])
            self.on = True
            if self.kill.delay_s:
                _kill_later(self.kill.delay_s)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _phase(self) -> str:
        frame: Any = sys._getframe(2)
        while frame is not None:
            name = PHASES.get(frame.f_code.co_name)
            if name and "experiment" in frame.f_code.co_filename:
                if name == "rounds" and self.world.item and self.world.item.round >= ROUNDS:
                    return "added rounds"
                return name
            frame = frame.f_back
        return "between"

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        if str(arguments[0]).startswith(self.root):
            self.stroke()


def _kill_later(delay_s: float) -> None:
    victim = os.getpid()
    if os.fork() == 0:
        time.sleep(delay_s)
        if os.getppid() == victim:  # it has not ended before
            os.kill(victim, signal.SIGKILL)
        os._exit(0)


def begin(root: Path, kill: Kill | None) -> tuple[World, Strokes]:
    """A world whose run adds rounds, and its strokes; this process is of no other use any more."""
    world = World(
        root, with_refused=False, rounds=ROUNDS, max_rounds=MAX_ROUNDS, half_width_pct=1e-6
    )
    world.item = None  # type: ignore[assignment]
    world.trouble = slowed(world, lambda item: 1 + (item.variant == "fake") * 0.01 * item.round)
    strokes = Strokes(root, world, kill)
    sys.addaudithook(strokes.audit)
    write_bytes, copyfile, execute = Path.write_bytes, shutil.copyfile, Recorded._execute
    complete = World.complete

    def write(path: Path, data: bytes) -> int:
        write_bytes(path, data[: len(data) // 2])
        strokes.stroke()
        return write_bytes(path, data)

    def copy(source: Any, target: Any) -> Any:
        write_bytes(Path(target), Path(source).read_bytes()[:10])
        strokes.stroke()
        return copyfile(source, target)

    def executing(store: Any, statement: str, values: Any = None) -> Any:
        strokes.stroke()
        made = execute(store, statement, values)
        strokes.stroke()
        return made

    def completing(asked: World, *arguments: Any, **parameters: Any) -> Any:
        strokes.stroke()
        return complete(asked, *arguments, **parameters)

    mock.patch.object(Path, "write_bytes", write).start()
    mock.patch.object(shutil, "copyfile", copy).start()
    mock.patch.object(Recorded, "_execute", executing).start()
    mock.patch.object(World, "complete", completing).start()
    return world, strokes


def whole(root: Path, kill: Kill | None = None) -> dict[str, Any]:
    """Run and report, killed at a stroke or not at all; of the latter what came of it."""
    world, strokes = begin(root, kill)
    folder = world.start()
    report.write(folder)
    strokes.on = False
    return described(folder) | {"phases": strokes.phases}


def resumed(root: Path, kill: Kill | None = None, *, reported: bool = True) -> dict[str, Any]:
    """Go on with the run in ``root``, killed again or not; what came of it.

    The report takes longer than all the rest, so it may be left out.
    """
    (folder,) = (root / "results").iterdir()
    world, strokes = begin(root, kill)
    world.resume(folder)
    if reported:
        report.write(folder)
    strokes.on = False
    return described(folder)


def described(folder: Path) -> dict[str, Any]:
    """Everything about a finished run that a kill must not change."""
    return {
        "rows": [list(row) for row in structure(folder)],
        "steps": query(folder, f"SELECT {_OWN} FROM step ORDER BY ALL"),
        "experts": query(folder, f"SELECT {_OWN} FROM expert ORDER BY ALL"),
        "calibration": query(folder, f"SELECT {_OWN} FROM calibration ORDER BY ALL"),
        "status": status(folder),
        "rounds": events(folder, "rounds"),
        "files": sorted(p.name for p in folder.iterdir() if p.name != report.NAME),
        "report": bool(report.figures_in((folder / report.NAME).read_text(encoding="utf-8")))
        if (folder / report.NAME).exists()
        else "not written",
        "raw": sorted(path.name for path in (folder / "raw").iterdir()),
    }


def left_behind(root: Path) -> Iterator[str]:
    """What is wrong with the files that a kill has left, before anything goes on."""
    for folder in (root / "results").glob("*"):
        for path in [*folder.glob("*.json"), *folder.glob("raw/*.json")]:
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                yield f"{path.name} is half written"
        wholes = {"trace.jsonl": (root / "mine.jsonl").read_text(), "git_diff.patch": "the diff\n"}
        for name, text in wholes.items():
            if (folder / name).exists() and (folder / name).read_text() != text:
                yield f"{name} is half written"
        if (folder / report.NAME).exists():
            report.figures_in((folder / report.NAME).read_text(encoding="utf-8"))
        for path in folder.rglob("*"):
            if path.name not in CLEAN | {NAME, DATABASE + ".wal", DATABASE + ".new"} | {
                DATABASE + ".new.wal"
            } and not (path.suffix == ".draft" or path.parent.name == "raw"):
                yield f"there is {path.name}"


def after(root: Path, reference: dict[str, Any], *, kills: int) -> dict[str, Any]:
    """Inspect what a kill has left, go on, and compare; ``problems`` is empty where all holds."""
    problems = list(left_behind(root))
    folders = list((root / "results").glob("*"))
    phase = (root / "killed.txt").read_text()
    if not any((folder / DATABASE).exists() for folder in folders):
        for folder in folders:
            try:
                World(root, with_refused=False).resume(folder)
                problems.append("a folder without a database was resumed")
            except StoreError:
                pass
            shutil.rmtree(folder)
        found = whole(root)
        interrupted: list[Any] = []
    else:
        (folder,) = folders
        before = query(folder, IDENTITY)
        was_under_way = (folder / NAME).exists()
        found = resumed(root, reported=phase == "report")
        interrupted = query(
            folder, f"SELECT task_id, variant, round FROM event WHERE kind = '{INTERRUPTED}'"
        )
        now = query(folder, IDENTITY)
        problems += [f"{row} is gone or was made again" for row in before if row not in now]
        if len(now) != len(set(now)):
            problems.append("a measurement is there twice")
        if interrupted and not was_under_way and kills == 1:
            problems.append("nothing was under way, but something was interrupted")
    for key, value in reference.items():
        if key not in ("phases", "report"):
            told = json.loads(json.dumps(found[key], default=str))
            if told != value:
                problems.append(f"{key}: {str(told)[:300]} in place of {str(value)[:300]}")
    if phase == "report" and found["report"] is not True:
        problems.append("there is no report")
    return {"phase": phase, "problems": problems, "interrupted": interrupted}


def forked(work: Callable[[], dict[str, Any]], answer: Path) -> dict[str, Any] | None:
    """What ``work`` gives in a process of its own; None if that was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            answer.write_text(json.dumps(work(), default=str))
            code = 0
        except Exception:  # noqa: BLE001 - whatever it is, the program that forked tells it
            traceback.print_exc()
        finally:
            os._exit(code)
    _, code = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(code) == -signal.SIGKILL:
        return None
    if code:
        raise SystemExit(f"a process failed: {answer}")
    made: dict[str, Any] = json.loads(answer.read_text())
    return made


def chosen(phases: list[str], moments: int, chance: random.Random) -> list[Kill]:
    """One random stroke of each phase, and others, one in each of as many equal parts of a run."""
    strokes = [chance.choice([i for i, p in enumerate(phases) if p == q]) for q in set(phases)]
    rest = moments - len(strokes)
    strokes += [int((number + chance.random()) * len(phases) / rest) for number in range(rest)]
    return [Kill(at, chance.choice([0.0, chance.uniform(0, 0.004)])) for at in sorted(strokes)]


def main(scratch: Path, moments: int, seed: int, kills: int) -> dict[str, Any]:
    """Kill at ``moments`` random strokes and go on; ``kills`` times in a row."""
    chance = random.Random(seed)
    root = scratch / "whole"
    root.mkdir()
    reference = forked(lambda: whole(root), scratch / "whole.json")
    assert reference is not None
    cases = []
    for number, kill in enumerate(chosen(reference["phases"], moments, chance)):
        root = scratch / str(number)
        root.mkdir()
        answer = scratch / f"{number}.json"
        died = forked(lambda root=root, kill=kill: whole(root, kill), answer) is None
        for _ in range(kills - 1):
            if not any(root.glob(f"results/*/{DATABASE}")):
                break
            again = Kill(chance.randrange(len(reference["phases"]) // 2))
            forked(lambda root=root, again=again: resumed(root, again), answer)
        case = forked(lambda root=root: after(root, reference, kills=kills), answer)
        assert case is not None
        cases.append(case | {"at": kill.at, "delay_s": kill.delay_s, "killed": died})
        shutil.rmtree(root)
    return {"cases": cases, "reference": reference}


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(folder), *map(int, numbers))))

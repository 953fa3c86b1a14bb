"""Writes the traces and the registry of this folder: ``python data/generate.py [FOLDER]``.

The agent is made up; README.md states the rule that each number follows. The same seed gives the
same bytes in every Python version.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
SEED = 20260605

KEPT_SCREENSHOTS = 3
PIXELS_PER_IMAGE_TOKEN_SIDE = 32  # patch 16, merged 2 x 2: the vision tower of Qwen3-VL
TOKENS_PER_WORD = 4 / 3
PREFILL_TOKENS_PER_S = 1500
ENCODE_TOKENS_PER_S = 900
DECODE_TOKENS_PER_S = 25

SMALL = (640, 360)  # a 1280x720 display, halved
LARGE = (960, 540)  # a 1920x1080 display, halved
TINY = (320, 180)  # a 1280x720 display, quartered: what a large model encodes in a few seconds


@dataclass(frozen=True)
class Move:
    """One step: a screenshot unless it is a tool's result; words, or a drawn number of tokens."""

    text: str = ""
    tokens: tuple[int, int] = (20, 60)
    screen: bool = True


@dataclass(frozen=True)
class Task:
    """An agent's task. Over ``most_screenshots`` in its context, the old ones are evicted."""

    task_id: str
    display: tuple[int, int]
    most_screenshots: int
    answer_tokens: tuple[int, int]
    moves: tuple[Move, ...]


INVOICES = Task(
    "file-invoices",
    LARGE,
    most_screenshots=8,
    answer_tokens=(240, 420),
    moves=(
        Move(
            "Open the mail program, find the three invoices that arrived this week, save each of "
            "them in the folder for the accounts and enter number, date and amount in the table. "
            "Do not answer any of the letters. Say what you did when the table is complete."
        ),
        Move(tokens=(90, 140)),
        Move(tokens=(90, 160)),
        Move(
            "The first invoice is open. Save it in the folder, then go back to the list of letters "
            "and open the next one."
        ),
        Move(tokens=(120, 190)),
        Move(tokens=(140, 200)),
        Move(tokens=(150, 200)),
        Move(
            "The dialog asks whether the older file of that name may be replaced. It may not: "
            "choose another name."
        ),
        Move(tokens=(130, 200)),
        Move(tokens=(60, 120)),
        Move(tokens=(40, 80)),
    ),
)

SETTINGS = Task(
    "dark-theme",
    SMALL,
    most_screenshots=4,
    answer_tokens=(40, 110),
    moves=(
        Move(
            "Switch the desktop to its dark theme, make the text one size larger and check that "
            "both are still set after the settings were closed and opened again."
        ),
        Move(tokens=(20, 60)),
        Move(tokens=(20, 60)),
        Move(
            "The settings are closed. Open them once more and compare what they show with the task."
        ),
        Move(tokens=(20, 50)),
        Move(tokens=(20, 60)),
        Move(tokens=(20, 60)),
    ),
)

BACKUP = Task(
    "check-backup",
    SMALL,
    most_screenshots=4,
    answer_tokens=(40, 120),
    moves=(
        Move(
            "Find out from the backup program when the last backup of the photos ended, and "
            "start a new one if that was more than two days ago."
        ),
        Move(
            "The command printed: last run finished on Monday at 04:12, 18 folders, 2,911 files, "
            "no errors; next run on Friday at 04:00; free space on the target 41 percent.",
            screen=False,
        ),
        Move(tokens=(20, 60)),
        Move(tokens=(120, 180), screen=False),
        Move("A window says that the backup has begun. Close it and say when the last one ended."),
    ),
)

SMOKE = Task(
    "smoke",
    SMALL,
    most_screenshots=4,
    answer_tokens=(150, 220),
    moves=(
        Move("Open the editor and write down the names of the files in the open folder."),
        Move(tokens=(20, 40)),
        Move(
            "The command printed: notes.txt, plan.txt, letter.txt, budget.txt; four files, none "
            "of them changed since Monday.",
            screen=False,
        ),
    ),
)

SMOKE_LARGE = Task(
    "smoke-large",
    LARGE,
    most_screenshots=4,
    answer_tokens=(150, 220),
    moves=(Move(tokens=(30, 60)),),
)

LIBRARY = Task(
    "renew-books",
    TINY,
    most_screenshots=8,
    answer_tokens=(1450, 1550),  # an agent that reasons at length and keeps what it thought
    moves=(
        Move(
            "Renew the three books that are due this week on the page of the library. If one of "
            "them cannot be renewed, write its title and the day it is due into the notes."
        ),
        Move(tokens=(20, 50)),
        Move(
            "The command printed: 3 books due by Friday, one of them reserved by another reader; "
            "no fees; the account is valid until the end of the year.",
            screen=False,
        ),
        Move(tokens=(20, 50)),
        Move(tokens=(80, 140), screen=False),
        Move("Two books are renewed. Write the third one into the notes and close the page."),
    ),
)

TEXT = Task(
    "",
    SMALL,
    most_screenshots=1,
    answer_tokens=(1, 1),
    moves=(Move(tokens=(64, 64), screen=False),),
)
"""A step of 64 tokens on which `bench` measures what does not depend on the new content."""

SAMPLE = replace(TEXT, moves=(Move(tokens=(251, 251), screen=False),))
"""The stand-ins' chat template adds five tokens: 256 in all."""


FEW = replace(TEXT, moves=(Move(tokens=(11, 11), screen=False),))
"""With the template's five, 16 tokens: few enough for their experts to decide the cost."""


def at(task: Task, depth: int) -> tuple[Task, tuple[int, int]]:
    """The task by the name of the only depth it has."""
    return replace(task, task_id=f"depth-{depth}"), (depth, depth)


TRACES = {
    "traces/computer-use.jsonl": (
        (INVOICES, (300, 340)),
        (SETTINGS, (300, 400)),
        (BACKUP, (300, 400)),
    ),
    "traces/depths.jsonl": tuple(at(TEXT, depth) for depth in (4096, 8192, 65_536, 262_144)),
    "traces/fills.jsonl": (at(FEW, 512), at(TEXT, 768)),
    "traces/six-steps.jsonl": ((LIBRARY, (344, 344)),),
    "traces/smoke.jsonl": ((SMOKE, (300, 340)), (SMOKE_LARGE, (1400, 1500))),
    "traces/speedup.jsonl": (at(SAMPLE, 32_768),),
}
"""Tasks of each trace, each with the bounds of the depth it begins at."""


SYSTEM_TOKENS = 18_000
"""A coding agent's system prompt and the definitions of its tools, the same for all its tasks."""

MAX_CONTEXT_TOKENS = 60_000
"""What it holds before it compacts."""

SUMMARY_TOKENS = (2400, 3200)

TOOLS = {
    "read": ((700, 4200), (40, 300)),
    "search": ((250, 1300), (60, 900)),
    "edit": ((70, 220), (30, 120)),
    "shell": ((60, 500), (100, 4000)),
    "test": ((180, 1600), (2000, 38_000)),
}
"""Of each tool the bounds of its result, tokens, and of its time, ms."""


@dataclass(frozen=True)
class CodingTask:
    """A coding agent's task: what it is told, and the tools it calls, one a step."""

    task_id: str
    text: str
    calls: tuple[str, ...]
    answer_tokens: tuple[int, int]


FLAKY = CodingTask(
    "fix-flaky-test",
    "The test of the scheduler fails about once in twenty runs. Find out why, repair the cause and "
    "not the test, and run the tests of that folder thirty times to show that it holds.",
    (
        *("search", "read", "read", "test", "read", "search", "edit", "test", "edit", "test"),
        *("shell", "test"),
    ),
    answer_tokens=(120, 700),
)

EXPORT = CodingTask(
    "add-csv-export",
    "The reports can only be printed. Add an export of each table as CSV with a flag that names "
    "the folder, tests for odd texts, and a paragraph in the manual. Keep to the style of the "
    "modules that are there and change nothing else.",
    (
        *("search", "read", "read", "read", "search", "read", "read", "read", "shell", "read"),
        *("edit", "edit", "test", "read", "edit", "test", "read", "read", "edit", "edit"),
        *("test", "search", "read", "edit", "test", "edit", "shell", "test"),
    ),
    answer_tokens=(150, 1100),
)

QUESTION = CodingTask(
    "answer-question",
    "Where is it decided how long a request may take, and can a user change that without a new "
    "build? Name the files and lines.",
    ("search", "read", "search", "read"),
    answer_tokens=(80, 350),
)

RENAME = CodingTask(
    "rename-option",
    "Rename the option for the number of workers to jobs everywhere, keep the old name working "
    "with a warning for one release, and say so in the list of changes.",
    ("search", "read", "edit", "edit", "edit", "test", "edit", "test"),
    answer_tokens=(80, 400),
)

CODING = "traces/coding-agent.jsonl"
CODING_TASKS = (FLAKY, EXPORT, QUESTION, RENAME)


def draw(rng: Random, bounds: tuple[int, int]) -> int:
    """A whole number within ``bounds``, from ``Random.random()``, whose numbers never change."""
    low, high = bounds
    return low + int(rng.random() * (high - low + 1))


def image_tokens(size: tuple[int, int]) -> int:
    """Tokens of a screenshot: both sides rounded to whole 32 pixel squares."""
    columns, rows = (round(side / PIXELS_PER_IMAGE_TOKEN_SIDE) for side in size)
    return columns * rows


def _row(
    task_id: str, step: int, depth: int, new: dict[str, object], baseline: dict[str, float]
) -> dict[str, object]:
    named = {"task_id": task_id, "step": step, "depth": depth, "depth_unit": "tokens"}
    return named | {"new": new, "baseline": baseline}


def rows_of(task: Task, first_depth: tuple[int, int], rng: Random) -> list[dict[str, object]]:
    """The trace rows of a task, its depths by the arithmetic of appending and evicting."""
    rows: list[dict[str, object]] = []
    depth = draw(rng, first_depth)
    held = 0
    for step, move in enumerate(task.moves):
        new: dict[str, object]
        if move.text:
            new = {"text": move.text}
            text_tokens = round(len(move.text.split()) * TOKENS_PER_WORD)
        else:
            text_tokens = draw(rng, move.tokens)
            new = {"tokens": text_tokens}
        seen = image_tokens(task.display) if move.screen else 0
        if move.screen:
            width, height = task.display
            new["screenshot"] = {"width": width, "height": height}
        answer = draw(rng, task.answer_tokens)
        prompt = depth + text_tokens + seen
        exec_ms = draw(rng, (300, 2500) if move.screen else (100, 800))
        baseline = {
            "prefill_s": round(prompt / PREFILL_TOKENS_PER_S + seen / ENCODE_TOKENS_PER_S, 3),
            "decode_s": round(answer / DECODE_TOKENS_PER_S, 3),
            "exec_s": exec_ms / 1000,
        }
        rows.append(_row(task.task_id, step, depth, new, baseline))
        held += move.screen
        depth = prompt + answer
        if held > task.most_screenshots:
            depth -= (held - KEPT_SCREENSHOTS) * image_tokens(task.display)
            held = KEPT_SCREENSHOTS
    return rows


def coding_rows_of(task: CodingTask, rng: Random, *, is_first: bool) -> list[dict[str, object]]:
    """The rows of a coding agent's task: long prefixes, small appends, compaction when it is full.

    Before the first task of a trace nothing is cached, not even the system prompt.
    """
    rows: list[dict[str, object]] = []
    depth = 0 if is_first else SYSTEM_TOKENS
    told = round(len(task.text.split()) * TOKENS_PER_WORD)
    new_tokens, new = told, dict[str, object](text=task.text)
    if is_first:
        new_tokens = SYSTEM_TOKENS + told
        new = {"tokens": new_tokens}
    for step, call in enumerate((*task.calls, None)):
        answer = draw(rng, task.answer_tokens)
        exec_ms = draw(rng, TOOLS[call][1]) if call else 0  # of the tool that the answer calls
        prompt = depth + new_tokens
        baseline = {
            "prefill_s": round(prompt / PREFILL_TOKENS_PER_S, 3),
            "decode_s": round(answer / DECODE_TOKENS_PER_S, 3),
            "exec_s": exec_ms / 1000,
        }
        rows.append(_row(task.task_id, step, depth, new, baseline))
        if call is None:
            break
        new_tokens = draw(rng, TOOLS[call][0])
        depth = prompt + answer
        if depth + new_tokens > MAX_CONTEXT_TOKENS:
            # A summary takes the place of everything but the system prompt.
            depth = SYSTEM_TOKENS
            new_tokens += draw(rng, SUMMARY_TOKENS)
        new = {"tokens": new_tokens}
    return rows


def generated() -> dict[str, bytes]:
    """Content of each trace by its path in this folder."""
    files = {}
    for name, tasks in TRACES.items():
        rng = Random(f"{name} {SEED}")
        rows = [row for task, first_depth in tasks for row in rows_of(task, first_depth, rng)]
        files[name] = _lines(rows)
    rng = Random(f"{CODING} {SEED}")
    files[CODING] = _lines(
        [
            row
            for task in CODING_TASKS
            for row in coding_rows_of(task, rng, is_first=task is CODING_TASKS[0])
        ]
    )
    return files


def _lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")


def main(folder: Path) -> None:
    """Writes the traces and ``registry.txt`` (path and sha256 a line) into ``folder``."""
    files = generated()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    files["words.txt"] = (HERE / "words.txt").read_bytes()
    lines = [f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files)]
    (folder / "registry.txt").write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

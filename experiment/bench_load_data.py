"""A made-up trace of any length, and runs of it, to see what those cost that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import duckdb

from experiment.bench_data import add_measurements
from experiment.database import DATABASE, connect, explain
from experiment.records import CalibrationRow, RunRecord
from experiment.run import step_record
from experiment.scope import Scope
from experiment.settings import CalibrationSettings, ScheduleSettings
from experiment.store import Store
from experiment.trace import Trace
from experiment.words import load_words

STARTED = datetime(2026, 1, 1, tzinfo=UTC)

STEPS_OF_A_TASK = 160
"""About: 100,000 steps are 625 tasks."""

SHOTS = ((960, 540), (640, 360), (1280, 720))

DEEPEST = 120_000

# What the tokenizer would have counted: a token is about four characters.
COUNTED = """
UPDATE step SET new_text_tokens = coalesce(new_text_tokens, length(new_text) // 4 + 1, 0)
"""


def write_trace(path: Path, steps: int) -> None:
    """Write a trace in the shape of real ones, always the same for the same number.

    Tasks of some 160 steps; texts, numbers of tokens and screenshots to render by turns; depths
    that grow with what is appended and fall where a context is compacted; mostly with a baseline.
    """
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(steps))


def _rows(steps: int) -> Iterator[dict[str, object]]:
    rng, words = Random(20260605), load_words()
    task, number, depth = -1, 0, 0
    for index in range(steps):
        if index % STEPS_OF_A_TASK == 0:
            task, number, depth = task + 1, 0, rng.randrange(300, 3000)
        elif depth > DEEPEST or rng.random() < 0.02:
            depth = max(300, depth // 4)
        new, tokens = _content(rng, words)
        row = {"task_id": f"{words[task % len(words)]}-{task}", "step": number, "depth": depth}
        baseline = {"prefill_s": round(depth / 900, 3), "decode_s": 4.25, "exec_s": 0.5}
        yield row | {"new": new} | ({"baseline": baseline} if rng.random() < 0.9 else {})
        number, depth = number + 1, depth + tokens + rng.randrange(20, 400)


def _content(rng: Random, words: tuple[str, ...]) -> tuple[dict[str, object], int]:
    """What a step appends, and about how many tokens that are."""
    tokens = rng.randrange(20, 600)
    kind = rng.randrange(4)
    new: dict[str, object] = {"tokens": tokens}
    if kind in (1, 3):
        new = {"text": " ".join(rng.choices(words, k=tokens // 4))}
    if kind >= 2:
        width, height = rng.choice(SHOTS)
        new["screenshot"] = {"width": width, "height": height}
        tokens += width * height // 1024
    return new, tokens


def write_empty_run(folder: Path, trace: Trace) -> None:
    """Write the database of a run that has measured nothing yet.

    Raises:
        StoreError: the folder already has a database, or cannot be written.
    """
    record = RunRecord(
        folder.name,
        name=folder.name,
        started=STARTED,
        engine="native",
        pin="sdist",
        model="nano",
        settings={},
        trace_digest=trace.sha256,
    )
    scope = Scope()

    def begin(store: Store) -> None:
        store.add_steps(step_record(step, scope) for step in trace.steps)
        # What the estimates of a finished run have been made from.
        store.add_calibration(
            CalibrationRow(depth, CalibrationSettings().chunk, 900.0, (900.0,), 60.0)
            for depth in (0, 2 * DEEPEST)
        )

    Store.create(folder, record, begin).close()


def write_finished_run(folder: Path, trace: Trace) -> None:
    """Write the database of a run that has measured the rounds that are made unless told.

    Raises:
        StoreError: the folder already has a database, or cannot be written.
    """
    write_empty_run(folder, trace)
    schedule, database = ScheduleSettings(), folder / DATABASE
    with connect(database, read_only=False) as connection:
        try:
            connection.execute(COUNTED)
            connection.execute("CHECKPOINT")  # an updated row has no place in the same commit
            connection.execute("BEGIN")
            add_measurements(
                connection, folder.name, schedule.rounds, full_rounds=schedule.full_rounds
            )
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")
        except duckdb.Error as error:
            raise explain(error, database) from error

"""The write side of ``results.duckdb``: creates it, commits row by row, opens it after a kill.

One connection, one run per folder. Every ``record`` is its own transaction, so a kill loses at
most the measurement under way; DuckDB replays its write-ahead log on the next opening.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from experiment.clock import CLOCK
from experiment.database import DATABASE, SCHEMA, SCHEMA_VERSION, connect, find_run_id
from experiment.errors import StoreError
from experiment.host import HostFacts
from experiment.recorded import Recorded
from experiment.records import (
    CalibrationRow,
    ExpertRow,
    Measurement,
    RunRecord,
    RunStatus,
    StepRecord,
)

_KEY_COLUMNS = ("run_id", "task_id", "step", "variant", "round")

MEMORY_MB = 64
"""What DuckDB may take while measurements are recorded. Most of it are parts of the file that it
has read; without a limit it keeps all of them. Recording takes less than 32 (measured with
1,100,000 rows). The steps come before, without a limit: a text takes several times its size."""

# Handed over as columns: row by row they take a thousand times as long, 100 s for 20,000.
_STEPS_AT_ONCE = 10_000


def utc(moment: datetime) -> datetime:
    """The UTC time without a zone, which is what a TIMESTAMP column holds.

    Raises:
        ValueError: ``moment`` has no time zone, so its UTC time cannot be known.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC).replace(tzinfo=None)


def _values(row: Mapping[str, object]) -> list[object]:
    return [list(value) if isinstance(value, tuple) else value for value in row.values()]


def _insert(table: str, columns: Iterable[str], *, then: str = "") -> str:
    names = list(columns)
    marks = ", ".join("?" for _ in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) {then}"


class Store(Recorded):
    """A results folder's database, open for writing. Use as a context manager.

    Every method raises StoreError where the database refuses (disk full, a broken constraint).
    """

    @classmethod
    def create(
        cls, folder: Path, run: RunRecord, begin: Callable[[Store], None] = lambda _: None
    ) -> Store:
        """Make ``folder`` if needed and a database in it that holds ``run``.

        Args:
            folder: of the results.
            run: its one run.
            begin: records what there has to be from the first moment on: a kill leaves either no
                database or one that has it.

        Raises:
            StoreError: the folder already has a database, or cannot be written.
        """
        database = folder / DATABASE
        if database.exists():
            raise StoreError(
                "there is already a database here", where=str(database), hint="use --resume"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the results folder cannot be made: {error.strerror}", where=str(folder)
            ) from error
        # Made aside and renamed.
        draft = folder / (DATABASE + ".new")
        draft.unlink(missing_ok=True)
        with cls(connect(draft, read_only=False), folder, run.id) as store:
            store._lay_out(run)
            begin(store)
        draft.replace(database)
        return cls(connect(database, read_only=False, memory_mb=MEMORY_MB), folder, run.id)

    def _lay_out(self, run: RunRecord) -> None:
        row: dict[str, object] = {
            **asdict(run),
            "schema_version": SCHEMA_VERSION,
            "started": utc(run.started),
            "status": "running",
            "settings": json.dumps(dict(run.settings), default=str),
        }
        with self._transaction():
            self._execute(SCHEMA.read_text(encoding="utf-8"))
            self._execute(_insert("run", row), _values(row))

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Open a run again, after a kill too: what was committed is there, the rest is not.

        Raises:
            StoreError: no database, in use, not one of ours, or of another schema version.
        """
        database = folder / DATABASE
        if not database.is_file():
            raise StoreError(
                f"there is no {DATABASE} here",
                where=str(folder),
                hint="name a results folder that a run has written",
            )
        connection = connect(database, read_only=False, memory_mb=MEMORY_MB)
        try:
            run = find_run_id(connection, database)
        except BaseException:
            connection.close()
            raise
        store = cls(connection, folder, run)
        # The machine's clock may have been set back since: what comes now is later all the same.
        CLOCK.go_on_after(store.last_moment().replace(tzinfo=UTC))
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(StoreError):  # what went wrong first is what is told
                self.close()

    def close(self) -> None:
        """Fold the write-ahead log into the file, so that the file alone is the whole result."""
        try:
            self._execute("CHECKPOINT")
        finally:
            self._connection.close()

    def set_status(self, status: RunStatus) -> None:
        """Say what became of the run; every status but ``running`` also stamps its end."""
        finished = None if status == "running" else utc(CLOCK.now())
        self._execute(
            "UPDATE run SET status = ?, finished = ? WHERE id = ?",
            [status, finished, self.run_id],
        )

    def add_host(self, facts: HostFacts) -> None:
        """Record the machine as it is now; a resumed run has one row for each time it went on."""
        row: dict[str, object] = {
            "run_id": self.run_id,
            "recorded_at": utc(CLOCK.now()),
            **facts,
        }
        self._execute(_insert("host", row), _values(row))

    def set_graph(self, graph: Mapping[str, str | int | float | bool]) -> None:
        """Record the resolved graph configuration; a key that is there already is replaced."""
        rows: list[list[object]] = [
            [self.run_id, key, json.dumps(value) if isinstance(value, bool) else str(value)]
            for key, value in graph.items()
        ]
        statement = _insert(
            "graph",
            ("run_id", "key", "value"),
            then="ON CONFLICT DO UPDATE SET value = excluded.value",
        )
        self._execute_many(statement, rows)

    def add_steps(self, steps: Iterable[StepRecord]) -> None:
        """Record the trace's steps; a step that is there already stays as it is (resume)."""
        types: dict[str, str] = dict(
            self._execute(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'step'"
            ).fetchall()
        )
        columns = ", ".join(f"unnest(?::{kind}[])" for kind in types.values())
        statement = f"INSERT INTO step ({', '.join(types)}) SELECT {columns} ON CONFLICT DO NOTHING"
        left = iter(steps)
        with self._transaction():
            while some := list(islice(left, _STEPS_AT_ONCE)):
                rows = [{"run_id": self.run_id, **asdict(step)} for step in some]
                self._execute(statement, [[row[name] for row in rows] for name in types])

    def set_new_text_tokens(self, task_id: str, step: int, tokens: int) -> None:
        """Record how many tokens the step's text really has with this model's tokenizer."""
        self._execute(
            "UPDATE step SET new_text_tokens = ? WHERE run_id = ? AND task_id = ? AND step = ?",
            [tokens, self.run_id, task_id, step],
        )

    def record(self, measurement: Measurement) -> None:
        """Commit one measurement. It may replace a ``failed`` one or one of a warm-up round.

        Raises:
            StoreError: this step, variant and round is already measured.
        """
        row = {"run_id": self.run_id, **asdict(measurement)}
        row["started_at"] = utc(measurement.started_at)
        replaced = ", ".join(
            f"{name} = excluded.{name}" for name in row if name not in _KEY_COLUMNS
        )
        statement = _insert(
            "measurement",
            row,
            then=f"ON CONFLICT DO UPDATE SET {replaced} "
            "WHERE measurement.status IN ('failed', 'warmup') OR measurement.round < 0",
        )
        changed = self._execute(statement, _values(row)).fetchone()
        if changed is None or changed[0] != 1:
            raise StoreError(
                f"{measurement.variant} in round {measurement.round} is already measured",
                where=f"task {measurement.task_id}, step {measurement.step}",
                hint="each measurement is recorded once; resume skips what done() lists",
            )

    def add_calibration(self, rows: Iterable[CalibrationRow]) -> None:
        """Record calibrated depths; a depth that is there already is replaced."""
        self._replace("calibration", ("depth", "chunk"), rows)

    def add_experts(self, rows: Iterable[ExpertRow]) -> None:
        """Record counted experts, all or none; a count that is there already is replaced."""
        self._replace(
            "expert", ("task_id", "step", "variant", "fake_fill", "ubatch", "layer"), rows
        )

    def add_event(
        self,
        kind: str,
        message: str,
        *,
        task_id: str | None = None,
        step: int | None = None,
        variant: str | None = None,
        round: int | None = None,
    ) -> None:
        """Record a warning, restart, retry or refusal, at the present time."""
        row: dict[str, object] = {
            "run_id": self.run_id,
            "happened_at": utc(CLOCK.now()),
            "kind": kind,
            "message": message,
            "task_id": task_id,
            "step": step,
            "variant": variant,
            "round": round,
        }
        self._execute(_insert("event", row), _values(row))

    def _replace(
        self,
        table: str,
        key: Collection[str],
        rows: Iterable[CalibrationRow] | Iterable[ExpertRow],
    ) -> None:
        made = [{"run_id": self.run_id, **asdict(row)} for row in rows]
        if made:
            changed = ", ".join(
                f"{name} = excluded.{name}"
                for name in made[0]
                if name != "run_id" and name not in key
            )
            self._execute_many(
                _insert(table, made[0], then=f"ON CONFLICT DO UPDATE SET {changed}"),
                [_values(row) for row in made],
            )

    def _execute_many(self, statement: str, rows: list[list[object]]) -> None:
        with self._transaction():
            for values in rows:
                self._execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._execute("COMMIT")

"""The write side of ``results.duckdb``: creates it, commits row by row, and resumes a killed run.

One connection, one run per folder. Every ``record`` is its own transaction, so a kill loses at
most the measurement under way; DuckDB replays its write-ahead log on the next opening.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from experiment.database import DATABASE, SCHEMA_VERSION, connect, explain, find_run_id
from experiment.errors import StoreError
from experiment.host import HostFacts
from experiment.paths import ROOT
from experiment.records import CalibrationRow, Measurement, RunRecord, RunStatus, StepRecord

SCHEMA = ROOT / "schemas" / "results.sql"

Key = tuple[str, int, str, int]
"""task_id, step, variant, round."""

_IDENTITY = (
    "engine",
    "patch_digest",
    "image_digest",
    "model_digest",
    "mmproj_digest",
    "trace_digest",
)

_KEY_COLUMNS = ("run_id", "task_id", "step", "variant", "round")


def utc(moment: datetime) -> datetime:
    """The UTC time without a zone, which is what a TIMESTAMP column holds.

    Raises:
        ValueError: ``moment`` has no time zone, so its UTC time cannot be known.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC).replace(tzinfo=None)


def _insert(table: str, columns: Iterable[str], *, then: str = "") -> str:
    names = list(columns)
    marks = ", ".join("?" for _ in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) {then}"


class Store:
    """A results folder's database, open for writing. Use as a context manager.

    Every method raises StoreError where the database refuses (disk full, a broken constraint).
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, run: str) -> None:
        self._connection = connection
        self.folder = folder
        self.run_id = run

    @classmethod
    def create(cls, folder: Path, run: RunRecord) -> Store:
        """Make ``folder`` if needed and a database in it that holds ``run`` and nothing else.

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
        # Made aside and renamed: a kill leaves either no database or one that has its tables.
        draft = folder / (DATABASE + ".new")
        draft.unlink(missing_ok=True)
        with cls(connect(draft, read_only=False), folder, run.id) as store:
            store._lay_out(run)
        draft.replace(database)
        return cls(connect(database, read_only=False), folder, run.id)

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
            self._execute(_insert("run", row), list(row.values()))

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
        connection = connect(database, read_only=False)
        try:
            run = find_run_id(connection, database)
        except BaseException:
            connection.close()
            raise
        return cls(connection, folder, run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fold the write-ahead log into the file, so that the file alone is the whole result."""
        try:
            self._execute("CHECKPOINT")
        finally:
            self._connection.close()

    def settings(self) -> dict[str, object]:
        """The settings that the run began with."""
        (text,) = self._execute("SELECT settings FROM run WHERE id = ?", [self.run_id]).fetchall()[
            0
        ]
        settings: dict[str, object] = json.loads(text)
        return settings

    def identity(self) -> dict[str, str | None]:
        """Engine and digests that the run began with, by column."""
        row = self._execute(
            f"SELECT {', '.join(_IDENTITY)} FROM run WHERE id = ?", [self.run_id]
        ).fetchall()[0]
        return dict(zip(_IDENTITY, row, strict=True))

    def set_status(self, status: RunStatus) -> None:
        """Say what became of the run; every status but ``running`` also stamps its end."""
        finished = None if status == "running" else utc(datetime.now(UTC))
        self._execute(
            "UPDATE run SET status = ?, finished = ? WHERE id = ?",
            [status, finished, self.run_id],
        )

    def add_host(self, facts: HostFacts) -> None:
        """Record the machine as it is now; a resumed run has one row for each time it went on."""
        row: dict[str, object] = {
            "run_id": self.run_id,
            "recorded_at": utc(datetime.now(UTC)),
            **facts,
        }
        self._execute(_insert("host", row), list(row.values()))

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
        rows = [{"run_id": self.run_id, **asdict(step)} for step in steps]
        if rows:
            self._execute_many(
                _insert("step", rows[0], then="ON CONFLICT DO NOTHING"),
                [list(row.values()) for row in rows],
            )

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
        changed = self._execute(statement, list(row.values())).fetchone()
        if changed is None or changed[0] != 1:
            raise StoreError(
                f"{measurement.variant} in round {measurement.round} is already measured",
                where=f"task {measurement.task_id}, step {measurement.step}",
                hint="each measurement is recorded once; resume skips what done() lists",
            )

    def done(self) -> set[Key]:
        """The measurements that need not be repeated: ``ok``, ``invalid`` and ``refused`` ones."""
        rows = self._execute(
            "SELECT task_id, step, variant, round FROM measurement "
            "WHERE run_id = ? AND status NOT IN ('failed', 'warmup')",
            [self.run_id],
        ).fetchall()
        return {(task_id, step, variant, number) for task_id, step, variant, number in rows}

    def new_content(self) -> dict[tuple[str, int], tuple[int, float]]:
        """Per task and step what ``fake`` really decoded: new tokens, and the median ``encode_ms``.

        This is what the arithmetic estimate starts from; steps without a valid measurement are
        left out.
        """
        rows = self._execute(
            "SELECT task_id, step, prompt_n, encode_ms FROM step_variant "
            "WHERE run_id = ? AND variant = 'fake' AND prompt_n IS NOT NULL",
            [self.run_id],
        ).fetchall()
        return {(task_id, step): (new, encode_ms) for task_id, step, new, encode_ms in rows}

    def structure(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Per task and step what its valid answers agree on: new tokens, and KV columns read.

        A resumed run judges its further answers by this.
        """
        rows = self._execute(
            "SELECT task_id, step, max(prompt_n), max(n_kv) FROM measurement "
            "WHERE run_id = ? AND status = 'ok' AND variant IN ('fake', 'restored') "
            "AND prompt_n IS NOT NULL AND n_kv IS NOT NULL GROUP BY task_id, step",
            [self.run_id],
        ).fetchall()
        return {(task_id, step): (new, n_kv) for task_id, step, new, n_kv in rows}

    def add_calibration(self, rows: Iterable[CalibrationRow]) -> None:
        """Record calibrated depths; a depth that is there already is replaced."""
        self._execute_many(
            _insert(
                "calibration",
                ("run_id", "depth", "chunk", "tps_median", "tps_samples"),
                then="ON CONFLICT DO UPDATE SET tps_median = excluded.tps_median, "
                "tps_samples = excluded.tps_samples",
            ),
            [
                [self.run_id, row.depth, row.chunk, row.tps_median, list(row.tps_samples)]
                for row in rows
            ],
        )

    def calibration(self) -> tuple[CalibrationRow, ...]:
        """The calibrated depths, shallowest first."""
        rows = self._execute(
            "SELECT depth, chunk, tps_median, tps_samples FROM calibration "
            "WHERE run_id = ? ORDER BY depth, chunk",
            [self.run_id],
        ).fetchall()
        return tuple(
            CalibrationRow(depth, chunk, median, tuple(samples))
            for depth, chunk, median, samples in rows
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
            "happened_at": utc(datetime.now(UTC)),
            "kind": kind,
            "message": message,
            "task_id": task_id,
            "step": step,
            "variant": variant,
            "round": round,
        }
        self._execute(_insert("event", row), list(row.values()))

    def _execute(
        self, statement: str, values: list[object] | None = None
    ) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(statement, values or [])
        except (duckdb.InterruptException, RuntimeError) as error:
            # How DuckDB reports a Ctrl-C that reaches it in the middle of a statement.
            if "interrupt" in str(error).lower():
                raise KeyboardInterrupt from error
            raise
        except duckdb.Error as error:
            raise explain(error, self.folder / DATABASE) from error

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

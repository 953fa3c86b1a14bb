"""What a run has recorded so far, as a resumed run, the judge and the stopping rule need it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from experiment.database import DATABASE, explain
from experiment.records import CalibrationRow, Variant

StepKey = tuple[str, int]
"""task_id, step."""

Key = tuple[str, int, str, int]
"""task_id, step, variant, round."""

Structure = tuple[int, int, tuple[int, ...] | None, tuple[int, ...] | None]
"""New tokens, KV columns read in the end, and both of every ubatch; None = not known."""

PAIR: tuple[Variant, Variant] = ("fake", "restored")
CONTROL: tuple[Variant, Variant] = ("control", "fake")

_IDENTITY = (
    "engine",
    "patch_digest",
    "image_digest",
    "model_digest",
    "mmproj_digest",
    "trace_digest",
)

# One row a step and round in which both variants are valid.
_PAIRS = (
    "SELECT task_id, step, round, above_ms / nullif(below_ms, 0) AS ratio FROM ("
    "SELECT task_id, step, round, max(prefill_ms) FILTER (WHERE variant = $first) AS above_ms, "
    "max(prefill_ms) FILTER (WHERE variant = $second) AS below_ms FROM measurement "
    "WHERE run_id = $run AND status = 'ok' AND round < $before {among} "
    "GROUP BY task_id, step, round"
    ") WHERE ratio IS NOT NULL"
)
_NO_ROUND = 2**31 - 1

_DONE = "run_id = $run AND status NOT IN ('failed', 'warmup')"


class Recorded:
    """One run of an open database.

    Every method raises StoreError where the database refuses.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, run: str) -> None:
        self._connection = connection
        self.folder = folder
        self.run_id = run

    def settings(self) -> dict[str, object]:
        """The settings that the run began with."""
        ((text,),) = self._rows("SELECT settings FROM run WHERE id = $run")
        settings: dict[str, object] = json.loads(text)
        return settings

    def identity(self) -> dict[str, str | None]:
        """Engine and digests that the run began with, by column."""
        (row,) = self._rows(f"SELECT {', '.join(_IDENTITY)} FROM run WHERE id = $run")
        return dict(zip(_IDENTITY, row, strict=True))

    def done(self, among: Sequence[StepKey] | None = None, round: int | None = None) -> set[Key]:
        """The measurements that need not be repeated: ``ok``, ``invalid`` and ``refused`` ones.

        Args:
            among: these steps alone; None = all.
            round: this round alone; None = all.
        """
        rows = self._rows(
            f"SELECT task_id, step, variant, round FROM measurement WHERE {_DONE} "
            f"AND ($round IS NULL OR round = $round) {_among(among)}",
            round=round,
            **_listed(among),
        )
        return {(task_id, step, variant, number) for task_id, step, variant, number in rows}

    def done_number(self) -> int:
        """How many measurements need not be repeated."""
        ((number,),) = self._rows(f"SELECT count(*) FROM measurement WHERE {_DONE}")
        return int(number)

    def left_out(self) -> set[StepKey]:
        """The steps of the trace that are not replayed."""
        rows = self._rows(
            "SELECT task_id, step FROM step WHERE run_id = $run AND left_out IS NOT NULL"
        )
        return {(task_id, step) for task_id, step in rows}

    def new_content(
        self, among: Sequence[StepKey] | None = None
    ) -> dict[StepKey, tuple[int, float]]:
        """Per task and step what was really decoded: new tokens, and the median ``encode_ms``.

        By ``fake``; at L = 0, where it does not exist, by ``full``. This is what the arithmetic
        estimate starts from; steps without a valid measurement are left out.

        Args:
            among: these steps alone; None = all.
        """
        # The view step_variant has the same, but works out all steps for the few of ``among``.
        rows = self._rows(
            "SELECT task_id, step, max(m.prompt_n) AS new, median(m.encode_ms) "
            f"FROM measurement AS m JOIN (FROM step WHERE run_id = $run {_among(among)}) AS s "
            "USING (run_id, task_id, step) WHERE run_id = $run AND m.status = 'ok' "
            "AND m.variant = CASE WHEN s.depth = 0 THEN 'full' ELSE 'fake' END "
            "GROUP BY task_id, step HAVING new IS NOT NULL",
            **_listed(among),
        )
        return {(task_id, step): (new, encode_ms) for task_id, step, new, encode_ms in rows}

    def structure(self, among: Sequence[StepKey] | None = None) -> dict[StepKey, Structure]:
        """Per task and step what its valid answers agree on.

        A resumed run judges its further answers by this.

        Args:
            among: these steps alone; None = all.
        """
        rows = self._rows(
            "SELECT task_id, step, max(prompt_n), max(n_kv), any_value(ubatch_tokens), "
            "any_value(ubatch_n_kv) FROM measurement WHERE run_id = $run AND status = 'ok' "
            "AND variant IN ('fake', 'control', 'restored') "
            f"AND prompt_n IS NOT NULL AND n_kv IS NOT NULL {_among(among)} "
            "GROUP BY task_id, step",
            **_listed(among),
        )
        return {
            (task_id, step): (new, n_kv, _tuple(tokens), _tuple(columns))
            for task_id, step, new, n_kv, tokens, columns in rows
        }

    def rounds_begun(self) -> int:
        """How many rounds of fake, control and restored there are, the last one maybe in part."""
        ((last,),) = self._rows(
            "SELECT max(round) FROM measurement WHERE run_id = $run "
            "AND variant IN ('fake', 'control', 'restored')"
        )
        return 0 if last is None else max(0, last + 1)

    def pair_ratios(
        self,
        of: tuple[Variant, Variant] = PAIR,
        *,
        before: int | None = None,
        among: Sequence[StepKey] | None = None,
    ) -> dict[StepKey, list[float]]:
        """Per task and step the prefill ratios of complete, valid pairs, in the order of rounds.

        Args:
            of: variant above and variant below the line.
            before: leaves this round and later ones out.
            among: these steps alone; None = all.
        """
        rows = self._rows(
            "SELECT task_id, step, list(ratio ORDER BY round) "
            f"FROM ({_PAIRS.format(among=_among(among))}) "
            "GROUP BY task_id, step ORDER BY task_id, step",
            first=of[0],
            second=of[1],
            before=_NO_ROUND if before is None else before,
            **_listed(among),
        )
        return {(task_id, step): ratios for task_id, step, ratios in rows}

    def paired_steps(
        self,
        of: tuple[Variant, Variant] = PAIR,
        *,
        before: int | None = None,
        among: Sequence[StepKey] | None = None,
    ) -> set[StepKey]:
        """The steps whose newest round (below ``before``) gave a pair: another may give one too."""
        rows = self._rows(
            "SELECT task_id, step FROM (SELECT task_id, step, max(round) AS round "
            "FROM measurement WHERE run_id = $run AND round < $before "
            f"AND variant IN ($first, $second) {_among(among)} GROUP BY task_id, step) "
            f"JOIN ({_PAIRS.format(among=_among(among))}) USING (task_id, step, round)",
            first=of[0],
            second=of[1],
            before=_NO_ROUND if before is None else before,
            **_listed(among),
        )
        return {(task_id, step) for task_id, step in rows}

    def added_seconds(self, rounds: int, *, before: int | None = None) -> float:
        """Wall time of the requests of added rounds: of ``rounds`` and later, below ``before``."""
        ((wall_ms,),) = self._rows(
            "SELECT sum(wall_ms ORDER BY round, position_in_round, task_id, step) "
            "FROM measurement WHERE run_id = $run AND round >= $rounds AND round < $before "
            "AND variant IN ('fake', 'control', 'restored')",
            rounds=rounds,
            before=_NO_ROUND if before is None else before,
        )
        return float(wall_ms or 0.0) / 1000

    def expert_steps(self) -> set[tuple[str, int, str]]:
        """Task, step and variant of what has been asked for its experts."""
        rows = self._rows("SELECT DISTINCT task_id, step, variant FROM expert WHERE run_id = $run")
        return {(task_id, step, variant) for task_id, step, variant in rows}

    def calibration(self) -> tuple[CalibrationRow, ...]:
        """The calibrated depths, shallowest first."""
        rows = self._rows(
            "SELECT depth, chunk, tps_median, tps_samples, wall_s FROM calibration "
            "WHERE run_id = $run ORDER BY depth, chunk"
        )
        return tuple(
            CalibrationRow(depth, chunk, median, tuple(samples), wall_s)
            for depth, chunk, median, samples, wall_s in rows
        )

    def last_moment(self) -> datetime:
        """The latest time that is recorded anywhere, UTC without a zone."""
        ((moment,),) = self._rows(
            "SELECT max(moment) FROM (SELECT greatest(started, finished) AS moment FROM run "
            "WHERE id = $run UNION ALL SELECT recorded_at FROM host WHERE run_id = $run "
            "UNION ALL SELECT happened_at FROM event WHERE run_id = $run "
            "UNION ALL SELECT started_at FROM measurement WHERE run_id = $run)"
        )
        assert isinstance(moment, datetime)  # a run has begun
        return moment

    def messages(self, kind: str) -> list[str]:
        """What the events of a kind say, oldest first."""
        rows = self._rows(
            "SELECT message FROM event WHERE run_id = $run AND kind = $kind ORDER BY happened_at",
            kind=kind,
        )
        return [message for (message,) in rows]

    def _rows(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        return self._execute(statement, {"run": self.run_id, **values}).fetchall()

    def _execute(
        self, statement: str, values: list[object] | dict[str, object] | None = None
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


def _among(steps: Sequence[StepKey] | None) -> str:
    """The condition that keeps to some steps; `_listed` gives its values."""
    return "" if steps is None else "AND (task_id, step) IN (SELECT unnest($tasks), unnest($steps))"


def _listed(steps: Sequence[StepKey] | None) -> dict[str, object]:
    if steps is None:
        return {}
    return {"tasks": [task_id for task_id, _ in steps], "steps": [step for _, step in steps]}


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)

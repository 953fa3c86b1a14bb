"""A run's rows worked out once more from the raw files of its requests, by the code of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, get_args

import duckdb

from experiment.arithmetic import estimates
from experiment.asking import Answer
from experiment.client import Reply
from experiment.errors import ArchiveError, ExperimentError
from experiment.folder import BENCH_LOG, RAW, SERVER_LOG
from experiment.judge import Expected, Judge
from experiment.load import Load
from experiment.measure import Counted, counted_experts, judged
from experiment.recorded import Recorded, StepKey
from experiment.records import ExpertRow, Measurement
from experiment.schedule import Planned
from experiment.settings import Settings
from experiment.strict_json import parse_line
from experiment.trace import Step

MAX_RAW_BYTES = 64 << 20
"""Of a raw file: one answer, whose lists have an item an ubatch."""

# When and in which order it was asked for: the clock's and the schedule's, not the answer's.
_NOT_IN_RAW = ("started_at", "position_in_round")
_LOAD = tuple(field.name for field in fields(Load))
_COLUMNS = tuple(field.name for field in fields(Measurement))
# What became of it last: where a figure is another one, that is the reason.
_LAST = ("error", "status")
_COMPARED = [name for name in _COLUMNS if name not in (*_NOT_IN_RAW, *_LAST)] + list(_LAST)
_HEAD = ("task_id", "step", "variant", "round")


@dataclass(frozen=True)
class Material:
    """A run whose rows are checked.

    Attributes:
        folder: of the results; only ``raw/`` is read.
        connection: the database.
        run_id: the run.
        steps: those of the trace, by task and step.
        settings: those that the run began with.
    """

    folder: Path
    connection: duckdb.DuckDBPyConnection
    run_id: str
    steps: Mapping[StepKey, Step]
    settings: Settings

    @property
    def recorded(self) -> Recorded:
        """The run as those see it that wrote it."""
        return Recorded(self.connection, self.folder, self.run_id)

    def rows(self, columns: Sequence[str], table: str, rest: str) -> Iterator[dict[str, Any]]:
        """Rows of the run by column, lists as tuples."""
        found = self.connection.execute(
            f"SELECT {', '.join(columns)} FROM {table} WHERE run_id = ? {rest}", [self.run_id]
        ).fetchall()
        for row in found:
            values = [tuple(value) if isinstance(value, list) else value for value in row]
            yield dict(zip(columns, values, strict=True))

    def judge(self) -> Judge:
        """One that has seen nothing yet."""
        return Judge(self.settings.server.fake_fill)


def measurements(material: Material) -> str:
    """Check every row that a request gave, and that every raw file gave one.

    Returns:
        what was checked, as a sentence.

    Raises:
        ArchiveError: a row is not what its raw file gives; says which column.
    """
    judge, problems, used = material.judge(), list[str](), set[str]()
    prompts: dict[StepKey, object] = {}
    answered = unanswered = without_load = 0
    asked = (
        "AND variant <> 'arithmetic' "
        "ORDER BY started_at, round, position_in_round, task_id, step, variant"
    )
    for row in material.rows(_COLUMNS, "measurement", asked):
        what = f"{row['task_id']}/{row['step']} {row['variant']} round {row['round']}"
        name = _name(material, row, str(row["round"]))
        if row["raw"] is None:
            unanswered += 1
            problems += _unanswered(what, row)
            if row["status"] == "failed":
                used.add(name)  # an answer without timings is kept, but gives no row
            continue
        answered += 1
        if row["raw"] != name:
            problems.append(f"{what}: raw is {row['raw']!r:.80}, not {name}")
            continue
        used.add(name)
        try:
            record = _record(material.folder, name)
            without_load += "load" not in record
            problems += _differences(f"{what}, {RAW}/{name}", row, record, material, judge)
            prompt = record.get("prompt")
            if prompt != prompts.setdefault((row["task_id"], row["step"]), prompt):
                problems.append(f"{what}: its prompt is not that of the step's other requests")
        except ExperimentError as error:
            problems.append(str(error))
    problems += _strays(material, used)
    _refuse(problems)
    told = [f"{answered:,} rows are what their raw files give, column by column"]
    if unanswered:
        told.append(f"{unanswered:,} refused or failed ones have no answer and no figure")
    absent = [*_NOT_IN_RAW, *(_LOAD if without_load else ())]
    told.append(f"raw files do not tell {', '.join(absent)}")
    return "; ".join(told)


def arithmetic(material: Material) -> str:
    """Check the estimates, which have no raw file, against calibration and measured content.

    Raises:
        ArchiveError: an estimate is not the one that these give.
    """
    recorded = material.recorded
    wanted = {
        (row.task_id, row.step): asdict(row)
        for row in estimates(
            material.steps.values(),
            recorded.new_content(),
            recorded.calibration(),
            material.settings.calibration.chunk,
            datetime.now(UTC),
        )
    }
    problems = []
    rows = list(material.rows(_COLUMNS, "measurement", "AND variant = 'arithmetic' ORDER BY ALL"))
    for row in rows:
        what = f"{row['task_id']}/{row['step']} arithmetic"
        estimate = wanted.pop((row["task_id"], row["step"]), None)
        if estimate is None:
            problems.append(f"{what}: there is nothing to estimate it from")
            continue
        problems += [
            f"{what}: {name} is {row[name]}, calibration and new tokens give {estimate[name]}"
            for name in _COMPARED
            if not _same(row[name], estimate[name])
        ]
    problems += [f"{task_id}/{step} arithmetic: there is no row" for task_id, step in wanted]
    _refuse(problems)
    return f"{len(rows):,} estimates are what calibration and new tokens give"


def experts(material: Material) -> str:
    """Check the counted experts against the raw files of their requests.

    Raises:
        ArchiveError: a count is not the one in its raw file.
    """
    judge = _taught(material)
    problems: list[str] = []
    wanted: dict[tuple[object, ...], int] = {}
    variants: tuple[Counted, ...] = get_args(Counted)
    files = 0
    for step in material.steps.values():
        for variant in variants:
            name = f"{step.line:06d}_{variant}_experts.json"
            if not (material.folder / RAW / name).is_file():
                continue
            files += 1
            try:
                head = {"task_id": step.task_id, "step": step.step, "variant": variant}
                timings = _reply(_record(material.folder, name), head, name).timings
                found = counted_experts(
                    step, variant, material.settings.server.fake_fill, timings, judge
                )
            except ExperimentError as error:
                problems.append(str(error))
                continue
            if not isinstance(found, str):  # one that breaks a rule gives no rows
                wanted |= {_expert_key(asdict(row)): row.distinct_experts for row in found}
    columns = [field.name for field in fields(ExpertRow)]
    rows = {
        _expert_key(row): row["distinct_experts"]
        for row in material.rows(columns, "expert", "ORDER BY ALL")
    }
    for key in [*rows, *(key for key in wanted if key not in rows)]:
        if rows.get(key) != wanted.get(key):
            task_id, step_number, variant_name, _, ubatch, layer = key
            problems.append(
                f"{task_id}/{step_number} {variant_name} ubatch {ubatch} layer {layer}: "
                f"distinct_experts is {rows.get(key)}, its raw file gives {wanted.get(key)}"
            )
    _refuse(problems)
    return f"{len(rows):,} counts are what {files:,} raw files give"


def calibration(material: Material) -> str:
    """Check the calibration against what ``llama-bench`` printed.

    Raises:
        ArchiveError: the log gives another throughput, or none.
    """
    log = material.folder / BENCH_LOG
    rows = {(row.depth, row.chunk): row for row in material.recorded.calibration()}
    if not rows and not log.is_file():
        return "nothing was calibrated"
    printed = dict(_printed(_read(log)))
    problems = []
    for key in sorted(rows.keys() | printed.keys()):
        row, samples = rows.get(key), printed.get(key, ())
        found = (row.tps_samples, row.tps_median) if row else None
        if found != (samples, median(samples) if samples else None):
            depth, chunk = key
            problems.append(
                f"depth {depth:,}, chunk {chunk:,}: the table has {found and list(found[0])} "
                f"tokens per second, {BENCH_LOG} gives {list(samples)}"
            )
    _refuse(problems)
    return f"{len(rows):,} throughputs are what {BENCH_LOG} gives; it does not tell wall_s"


def _printed(log: bytes) -> Iterator[tuple[tuple[int, int], tuple[float, ...]]]:
    """Depth and chunk, and the throughput of each sample; a later process counts for an earlier."""
    for text in re.findall(rb"^\[\n.*?^\]$", log, re.MULTILINE | re.DOTALL):
        try:
            tests = json.loads(text)
            for test in tests:
                chunk, depth = test["n_prompt"], test["n_depth"]
                yield (depth, chunk), tuple(1e9 * chunk / float(ns) for ns in test["samples_ns"])
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            raise ArchiveError(
                f"what llama-bench printed is not its JSON: {error}", where=BENCH_LOG
            ) from error


def _unanswered(what: str, row: Mapping[str, Any]) -> list[str]:
    """A row without a raw file says why, and nothing else."""
    if row["status"] not in ("refused", "failed"):
        return [f"{what}: its status is {row['status']}, but it names no raw file"]
    known = (*_HEAD, *_NOT_IN_RAW, "depth", "status", "error")
    figures = [name for name in _COLUMNS if name not in known and row[name] is not None]
    return [f"{what}: it names no raw file, but has {', '.join(figures)}"] if figures else []


def _differences(
    what: str, row: Mapping[str, Any], record: Mapping[str, Any], material: Material, judge: Judge
) -> list[str]:
    """Columns of a row that are not what its raw file gives."""
    reply = _reply(record, {name: row[name] for name in _HEAD}, what)
    load = record.get("load", {name: row[name] for name in _LOAD})
    if not isinstance(load, dict) or set(load) != set(_LOAD):
        raise ArchiveError("its load is not what a run keeps", where=what)
    step = material.steps[(row["task_id"], row["step"])]
    item = Planned(step, row["variant"], row["round"], row["position_in_round"])
    began_at = row["started_at"].replace(tzinfo=UTC)
    try:
        answer = Answer(reply, row["raw"], Load(**load), float(record.get("paused_s", 0.0)))
        made = asdict(judged(item, answer, judge, began_at))
    except (ValueError, TypeError, AttributeError) as error:
        raise ArchiveError(f"its answer gives no row: {error}", where=what) from error
    return [
        f"{what}: {name} is {row[name]!r:.80} in the table, {made[name]!r:.80} in the raw file"
        for name in _COMPARED
        if not _same(row[name], made[name])
    ]


def _same(one: object, other: object) -> bool:
    # true is 1 to Python, but not to a reader of JSON.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _taught(material: Material) -> Judge:
    """A judge that knows what a run's valid answers agree on, as after a resume."""
    judge = material.judge()
    for key, structure in material.recorded.structure().items():
        if step := material.steps.get(key):
            judge.learn(step, Expected(*structure))
    return judge


def _name(material: Material, row: Mapping[str, Any], suffix: str) -> str:
    step = material.steps.get((row["task_id"], row["step"]))
    if step is None:
        raise ArchiveError(f"{row['task_id']}/{row['step']} is measured, but not in the trace")
    return f"{step.line:06d}_{row['variant']}_{suffix}.json"


def _record(folder: Path, name: str) -> dict[str, Any]:
    where = f"{RAW}/{name}"
    try:
        record = parse_line(_read(folder / RAW / name))
    except ValueError as error:
        raise ArchiveError(f"the file {error}", where=where) from error
    if not isinstance(record, dict):
        raise ArchiveError("the file holds no JSON object", where=where)
    return record


def _reply(record: Mapping[str, Any], head: Mapping[str, object], where: str) -> Reply:
    for key, value in head.items():
        if not _same(record.get(key), value):
            raise ArchiveError(f"its {key} is {record.get(key)!r:.80}, not {value!r}", where=where)
    body, wall_ms = record.get("response"), record.get("wall_ms")
    if not isinstance(body, dict) or isinstance(wall_ms, bool) or not isinstance(wall_ms, float):
        raise ArchiveError("it lacks response or wall_ms", where=where)
    return Reply({}, body, wall_ms)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_RAW_BYTES:
            raise ArchiveError("is too large for what it is to hold", where=path.name)
        return path.read_bytes()
    except OSError as error:
        raise ArchiveError(
            f"cannot be read: {error.strerror}", where=f"{RAW}/{path.name}"
        ) from error


def _strays(material: Material, used: set[str]) -> list[str]:
    logs = {Path(log).name for log in (SERVER_LOG, BENCH_LOG)}
    counted = {
        f"{step.line:06d}_{variant}_experts.json"
        for step in material.steps.values()
        for variant in get_args(Counted)
    }
    found = {path.name for path in (material.folder / RAW).iterdir()}
    return [f"{RAW}/{name} belongs to no row" for name in sorted(found - used - logs - counted)]


def _expert_key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(
        row[name] for name in ("task_id", "step", "variant", "fake_fill", "ubatch", "layer")
    )


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise ArchiveError(problems[0] + more)

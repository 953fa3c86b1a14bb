"""What a run says about its variants, as numbers only: the views of its database, and intervals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.notes import notes, some
from experiment.reader import STEP_KEY, Reader, read
from experiment.rows import (
    Comparison,
    DepthRow,
    OverallRow,
    RunRow,
    RunStability,
    StepRow,
    StepStability,
    TaskRow,
)

if TYPE_CHECKING:
    from experiment.extrapolated import Extrapolation

FOLDER_NAME = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}_.+")
"""``<UTC date_time>_<host>_<name>``: the order of the names is the order of the runs."""

SWEEP_PROBE, TRACE_PROBE = "sweep-probe", "trace-probe"
"""Names of runs that others begin with: nobody asks for them, so none is the newest."""

STEP_TIMES = {
    f"{variant}_{time}": f"CASE WHEN variant = '{variant}' THEN {time} END"
    for variant, times in {
        "fake": ("prefill_ms", "install_ms", "encode_ms", "lm_prefill_ms"),
        "control": ("prefill_ms",),
        "restored": ("prefill_ms", "install_ms"),
        "full": ("prefill_ms",),
    }.items()
    for time in times
}

RATIOS = {"ratio": "ratio", "lm_ratio": "lm_ratio", "aa": "aa_ratio"}

SUMMED = (
    "fake_prefill_ms",
    "fake_install_ms",
    "fake_encode_ms",
    "control_prefill_ms",
    "restored_prefill_ms",
    "restored_install_ms",
    "full_prefill_ms",
)

OVER_STEPS = {
    "speedup_median": "speedup",
    "arithmetic_error_pct_median": "arithmetic_error_pct",
    "fake_ms_per_new_token": "fake_prefill_ms / nullif(new_tokens, 0)",
}

OVER_STEPS_OF_DEPTH = {
    **{name: expression for name, expression in OVER_STEPS.items() if name != "speedup_median"},
    **{
        name: name
        for name in (
            "fake_prefill_ms",
            "fake_install_ms",
            "restored_prefill_ms",
            "restored_install_ms",
            "full_prefill_ms",
        )
    },
}

# The ends of a quotient are the quotients of the ends: as if both erred to opposite sides.
STEP_FIGURES = f"""
CREATE TEMP TABLE step_figures AS
SELECT
    c.*,
    t.* EXCLUDE ({STEP_KEY}),
    p.* EXCLUDE ({STEP_KEY}),
    c.depth // 1024 * 1024 AS depth_from,
    t.full_prefill_ms_low / nullif(t.fake_prefill_ms_high, 0) AS speedup_low,
    t.full_prefill_ms_high / nullif(t.fake_prefill_ms_low, 0) AS speedup_high,
    100 * (c.arithmetic_lm_prefill_ms / nullif(t.fake_lm_prefill_ms_high, 0) - 1)
        AS arithmetic_error_pct_low,
    100 * (c.arithmetic_lm_prefill_ms / nullif(t.fake_lm_prefill_ms_low, 0) - 1)
        AS arithmetic_error_pct_high,
    s.verdict AS stability,
    e.fake_extrapolated_ms
FROM step_comparison AS c
LEFT JOIN step_times AS t USING ({STEP_KEY})
LEFT JOIN step_ratios AS p USING ({STEP_KEY})
LEFT JOIN stability AS s USING ({STEP_KEY})
LEFT JOIN step_estimate AS e USING ({STEP_KEY})
"""

STEP_ESTIMATE = """
CREATE OR REPLACE TEMP TABLE step_estimate (
    run_id VARCHAR, task_id VARCHAR, step INTEGER, fake_extrapolated_ms DOUBLE
)
"""


def _sum_if_all(end: str, of: str, condition: str = "TRUE") -> str:
    """The sum of an end, NULL if a step has the figure without it."""
    chosen = f"FILTER (WHERE {condition} AND {of} IS NOT NULL)"
    return f"CASE WHEN count({end}) {chosen} = count({of}) {chosen} THEN sum({end}) {chosen} END"


def _speedup(keys: str) -> str:
    """Ends of the ratio of sums of full and fake, over the steps that have both."""
    both = "speedup IS NOT NULL"
    ends = {
        (name, end): _sum_if_all(f"{name}_prefill_ms_{end}", f"{name}_prefill_ms", both)
        for name in ("fake", "full")
        for end in ("low", "high")
    }
    return (
        f"SELECT {keys}, {ends['full', 'low']} / nullif({ends['fake', 'high']}, 0) AS speedup_low, "
        f"{ends['full', 'high']} / nullif({ends['fake', 'low']}, 0) AS speedup_high "
        f"FROM step_figures GROUP BY {keys}"
    )


def _sums() -> str:
    """Ends of the sums over a run's steps, and of the arithmetic estimate's error in sum."""
    sums = [
        f"{_sum_if_all(f'{name}_{end}', name)} AS {name}_{end}"
        for name in SUMMED
        for end in ("low", "high")
    ]
    both = "arithmetic_error_pct IS NOT NULL"
    estimate = f"sum(arithmetic_lm_prefill_ms) FILTER (WHERE {both})"
    for end, other in (("low", "high"), ("high", "low")):
        fake = _sum_if_all(f"fake_lm_prefill_ms_{other}", "fake_lm_prefill_ms", both)
        sums.append(f"100 * ({estimate} / nullif({fake}, 0) - 1) AS arithmetic_error_pct_sum_{end}")
    return f"SELECT run_id, {', '.join(sums)} FROM step_figures GROUP BY run_id"


def load(folder_or_database: Path, run_id: str | None = None) -> Comparison:
    """Read a run (the last one started if ``run_id`` is None) from its database, and only that.

    Raises:
        StoreError: there is no database, or it holds no such run.
    """
    with read(folder_or_database, run_id) as reader:
        return of(reader)


def of(reader: Reader) -> Comparison:
    """Compare the variants of a run that is open; the tables of its intervals stay in it.

    Raises:
        StoreError: it holds no steps.
    """
    (run,) = reader.rows(RunRow, "run", key="id")
    extrapolation = _extrapolation(reader)
    _add_figures(reader)
    steps = reader.many_rows(StepRow, "step_figures", order="line, task_id, step")
    if not steps:
        raise StoreError("the run holds no steps", where=str(reader.folder))
    (overall,) = reader.rows(
        OverallRow,
        f"run_comparison LEFT JOIN run_ratios USING (run_id) LEFT JOIN run_medians USING (run_id) "
        f"LEFT JOIN ({_sums()}) USING (run_id) LEFT JOIN ({_speedup('run_id')}) USING (run_id)",
    )
    depth = "run_id, depth_from"
    return Comparison(
        folder=reader.folder,
        run=run,
        steps=steps,
        overall=overall,
        depths=reader.rows(
            DepthRow,
            f"depth_comparison LEFT JOIN depth_ratios USING ({depth}) "
            f"LEFT JOIN depth_medians USING ({depth}) "
            f"LEFT JOIN ({_speedup(depth)}) USING ({depth})",
            order="depth_from",
        ),
        tasks=reader.rows(TaskRow, "task_wall", order="task_id, variant"),
        extrapolation=extrapolation,
        stability=next(iter(reader.rows(RunStability, "run_stability")), None),
        step_stability=reader.many_rows(
            StepStability,
            f"stability JOIN step USING ({STEP_KEY})",
            order="line, task_id, step",
        ),
        rounds=_rounds(reader),
        notes=tuple(notes(reader, run, steps, overall, extrapolation)),
    )


def _extrapolation(reader: Reader) -> Extrapolation | None:
    """The totals of a run whose budget left steps out; makes the table ``step_estimate``."""
    reader.connection.execute(STEP_ESTIMATE)
    ((has_budget,),) = reader.connection.execute(
        "SELECT count(*) > 0 FROM step WHERE run_id = ? AND starts_with(left_out, 'budget: ')",
        [reader.run_id],
    ).fetchall()
    if not has_budget:
        return None
    # Few runs have a budget, and what fits a model to them takes a while to be imported.
    from experiment.extrapolated import load as extrapolate

    found = extrapolate(reader)
    if found is None:
        return None
    task_ids, numbers = zip(*found.fake_ms, strict=True) if found.fake_ms else ((), ())
    reader.connection.execute(
        "INSERT INTO step_estimate SELECT ?, unnest(?::VARCHAR[]), unnest(?::INTEGER[]), "
        "unnest(?::DOUBLE[])",
        [reader.run_id, list(task_ids), list(numbers), list(found.fake_ms.values())],
    )
    return found.totals


def _add_figures(reader: Reader) -> None:
    """Work out every interval that does not follow from others, each in one pass."""
    reader.add_bounds("step_times", "(FROM measurement WHERE status = 'ok')", STEP_KEY, STEP_TIMES)
    add_ratios(reader)
    reader.connection.execute(STEP_FIGURES)
    reader.add_bounds("run_medians", "step_figures", "run_id", OVER_STEPS)
    depth = "run_id, depth_from"
    pairs = f"(SELECT p.*, f.depth_from FROM pair AS p JOIN step_figures AS f USING ({STEP_KEY}))"
    reader.add_bounds(
        "depth_ratios", pairs, depth, {name: RATIOS[name] for name in ("ratio", "aa")}
    )
    reader.add_bounds("depth_medians", "step_figures", depth, OVER_STEPS_OF_DEPTH)


def add_ratios(reader: Reader) -> None:
    """Make the tables ``step_ratios`` and ``run_ratios``: intervals of each step's, of all."""
    reader.add_bounds("step_ratios", "pair", STEP_KEY, RATIOS)
    reader.add_bounds("run_ratios", "pair", "run_id", RATIOS)


def _rounds(reader: Reader) -> str | None:
    """What ended the rounds, as the run said it last."""
    found = reader.connection.execute(
        "SELECT message FROM event WHERE run_id = ? AND kind = 'rounds' "
        "ORDER BY happened_at DESC LIMIT 1",
        [reader.run_id],
    ).fetchone()
    return None if found is None else str(found[0])


def find_run(results_dir: Path, name_or_path: str | Path | None = None) -> Path:
    """The folder of a run: a path to it, its name below ``results_dir``, or (None) the newest.

    Raises:
        StoreError: there is no such run; the hint lists those there are.
    """
    runs = sorted(path.parent.name for path in results_dir.glob(f"*/{DATABASE}"))
    there = f"there are: {some(runs[::-1])}" if runs else "the first run makes one"
    if name_or_path is None:
        dated = [name for name in runs if FOLDER_NAME.fullmatch(name) and not _is_probe(name)]
        if not dated:
            raise StoreError("there is no run yet", where=str(results_dir), hint=there)
        return results_dir / dated[-1]
    for folder in (Path(name_or_path), results_dir / name_or_path):
        if (folder / DATABASE).is_file():
            return folder
    raise StoreError(f"there is no run {name_or_path}", where=str(results_dir), hint=there)


def _is_probe(folder_name: str) -> bool:
    return folder_name.endswith((f"_{SWEEP_PROBE}", f"_{TRACE_PROBE}"))

"""The queries behind a report's figures: SQL over the stored views of a run, for any DuckDB."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiment.cost_model import CostModel

MIN_WIDTH = 1e-5
"""Of a bar: ratios of times are not known more closely."""

ORDER = "line, task_id, step"

VARIANT_ORDER = "list_position(['fake', 'restored', 'full', 'arithmetic'], variant)"


@dataclass(frozen=True, slots=True)
class Bins:
    """``number`` bins, the first from ``start * width``; a width is ``mantissa / scale``."""

    start: int
    number: int
    mantissa: int
    scale: int


def bins(low: float, high: float, number: int) -> Bins:
    """Up to about ``number`` bins from ``low`` to ``high``, each 1, 2 or 5 times a power of ten."""
    wished = max((high - low) / number, MIN_WIDTH)
    power = math.floor(math.log10(wished))
    mantissa = next((m for m in (1, 2, 5) if m * 10.0**power >= wished * (1 - 1e-9)), 0)
    if not mantissa:
        mantissa, power = 1, power + 1
    scale = 10 ** max(-power, 0)
    mantissa *= 10 ** max(power, 0)
    start = math.floor(low * scale / mantissa)
    return Bins(start, math.floor(high * scale / mantissa) - start + 1, mantissa, scale)


def prefill_by_step(run_id: str, tasks: Sequence[str], every: int) -> str:
    """Of ``tasks`` only (none: of all), each ``every``-th step."""
    return (
        "SELECT\n"
        "    task_id, step, depth, new_tokens,\n"
        "    fake_n, fake_prefill_ms,\n"
        "    restored_n, restored_prefill_ms,\n"
        "    full_n, full_prefill_ms,\n"
        "    arithmetic_prefill_ms\n"
        "FROM step_comparison\n"
        f"WHERE run_id = {text(run_id)} AND left_out IS NULL{_among(tasks)}\n"
        f"{_thinned(ORDER, every)}"
        f"ORDER BY {ORDER}"
    )


def prefill_by_depth(run_id: str, model: CostModel | str, every: int) -> str:
    """Of the measured steps; without the model's columns where there is none."""
    order = f"depth, new_tokens, {ORDER}"
    columns = (
        f",\n"
        f"    {number(model.a_ms)} + {number(model.b_ms)} * new_tokens\n"
        f"        + {number(model.c_ms)} * new_tokens * depth AS model_ms,\n"
        f"    100 * (model_ms / nullif(fake_lm_prefill_ms, 0) - 1) AS model_error_pct\n"
        if isinstance(model, CostModel)
        else "\n"
    )
    return (
        "SELECT\n"
        "    task_id, step, depth, new_tokens,\n"
        "    fake_n, fake_lm_prefill_ms,\n"
        f"    restored_n, restored_lm_prefill_ms{columns}"
        f"FROM step_comparison\n"
        f"WHERE run_id = {text(run_id)} AND (fake_n > 0 OR restored_n > 0)\n"
        f"{_thinned(order, every)}"
        f"ORDER BY {order}"
    )


def install_by_depth(run_id: str, every: int) -> str:
    """Of the measured steps."""
    order = f"depth, {ORDER}"
    return (
        "SELECT\n"
        "    task_id, step, depth,\n"
        "    fake_n, fake_install_ms,\n"
        "    restored_n, restored_install_ms\n"
        "FROM step_comparison\n"
        f"WHERE run_id = {text(run_id)} AND (fake_n > 0 OR restored_n > 0)\n"
        f"{_thinned(order, every)}"
        f"ORDER BY {order}"
    )


def ratios(run_id: str, bins: Bins) -> str:
    """How many pairs fall into each bin, and below and above them all."""
    first, mantissa, scale = bins.start, bins.mantissa, bins.scale
    return (
        "WITH value AS (\n"
        "    SELECT 'fake / restored' AS what, ratio AS x FROM pair\n"
        f"    WHERE run_id = {text(run_id)}\n"
        "    UNION ALL\n"
        "    SELECT 'control / fake', aa_ratio FROM pair\n"
        f"    WHERE run_id = {text(run_id)}\n"
        "),\n"
        "placed AS (\n"
        "    SELECT what,\n"
        f"        greatest(-1, least({bins.number}, "
        f"floor(x * {scale} / {mantissa})::BIGINT - {first})) AS bin\n"
        "    FROM value\n"
        "    WHERE x IS NOT NULL\n"
        ")\n"
        "SELECT\n"
        f"    CASE WHEN bin >= 0 THEN ({first} + bin) * {mantissa} / {scale} END AS ratio_from,\n"
        f"    CASE WHEN bin < {bins.number} THEN ({first} + bin + 1) * {mantissa} / {scale} END "
        "AS ratio_to,\n"
        "    count(*) FILTER (WHERE what = 'fake / restored') AS fake_restored_pairs,\n"
        "    count(*) FILTER (WHERE what = 'control / fake') AS control_fake_pairs\n"
        f"FROM range(-1, {bins.number + 1}) AS every_bin(bin)\n"
        "LEFT JOIN placed USING (bin)\n"
        "GROUP BY bin\n"
        "ORDER BY bin"
    )


def time_parts(run_id: str) -> str:
    """Sums over the steps in which all variants of the run are measured."""
    sums = {"install_ms": "install_ms", "encode_ms": "encode_ms", "lm_prefill_ms": "decode_ms"}
    # In order: the sum of floats in whatever order threads finish differs in its last digits.
    added = ",\n".join(
        f"    sum({part} ORDER BY task_id, step) AS {name}" for part, name in sums.items()
    )
    return (
        "WITH measured AS (\n"
        "    SELECT *, count(*) OVER (PARTITION BY task_id, step) AS variants\n"
        "    FROM step_variant\n"
        f"    WHERE run_id = {text(run_id)} AND variant <> 'control'\n"
        ")\n"
        "SELECT\n"
        "    variant, count(*) AS steps,\n"
        f"{added}\n"
        "FROM measured\n"
        "WHERE variants = (SELECT count(DISTINCT variant) FROM measured)\n"
        "GROUP BY variant\n"
        f"ORDER BY {VARIANT_ORDER}"
    )


def task_wall(run_id: str, tasks: Sequence[str]) -> str:
    """Of ``tasks`` only (none: of all), in the trace's order."""
    # Rounded: the view adds floats in whatever order threads finish.
    names = ("opt_prefill_s", "baseline_prefill_s", "baseline_decode_s", "baseline_exec_s")
    walls = ("opt_wall_s", "baseline_wall_s")
    rounded = ",\n".join(f"    round({name}, 6) AS {name}" for name in (*names, *walls))
    return (
        "SELECT\n"
        "    task_id, variant, steps, steps_counted,\n"
        f"{rounded}\n"
        "FROM task_wall\n"
        "JOIN (\n"
        "    SELECT task_id, min(line) AS line FROM step\n"
        f"    WHERE run_id = {text(run_id)} GROUP BY task_id\n"
        ") USING (task_id)\n"
        f"WHERE run_id = {text(run_id)}{_among(tasks)}\n"
        f"ORDER BY line, task_id, {VARIANT_ORDER}"
    )


def task_wall_of_all(run_id: str, tasks: Sequence[str]) -> str:
    """The same of every task that has a step which could be measured, and a baseline of it."""
    names = ("opt_prefill_s", "baseline_prefill_s", "baseline_decode_s", "baseline_exec_s")
    walls = ("opt_wall_s", "baseline_wall_s")
    rounded = ",\n".join(f"    round({name}, 6) AS {name}" for name in (*names, *walls))
    complete = " AND ".join(f"{name} IS NOT NULL" for name in names[1:])
    return (
        "WITH wall AS (\n"
        f"    SELECT * FROM task_wall WHERE run_id = {text(run_id)}\n"
        "),\n"
        "task AS (\n"
        "    SELECT task_id, min(line) AS line, count(*) AS steps FROM step\n"
        f"    WHERE run_id = {text(run_id)}{_among(tasks)}\n"
        "    GROUP BY task_id\n"
        f"    HAVING bool_or({complete}\n"
        "        AND (left_out IS NULL OR stratum IS NOT NULL "
        "OR starts_with(left_out, 'budget: ')))\n"
        ")\n"
        "SELECT\n"
        "    task_id, variant, task.steps, coalesce(steps_counted, 0) AS steps_counted,\n"
        f"{rounded}\n"
        "FROM task\n"
        "CROSS JOIN (SELECT DISTINCT variant FROM wall) AS measured\n"
        "LEFT JOIN wall USING (task_id, variant)\n"
        f"ORDER BY task.line, task_id, {VARIANT_ORDER}"
    )


def text(value: str) -> str:
    """``value`` as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def number(value: float) -> str:
    """``value`` as an SQL literal of type DOUBLE: without an exponent it would be a DECIMAL."""
    written = repr(float(value))
    return written if "e" in written else f"{written}e0"


def _among(tasks: Sequence[str]) -> str:
    if not tasks:
        return ""
    return f"\n    AND task_id IN ({', '.join(map(text, tasks))})"


def _thinned(order: str, every: int) -> str:
    if every == 1:
        return ""
    return f"QUALIFY (row_number() OVER (ORDER BY {order}) - 1) % {every} = 0\n"

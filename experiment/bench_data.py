"""Made-up results of any size, to time what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb

from experiment.database import DATABASE, connect, explain
from experiment.errors import StoreError
from experiment.records import RunRecord
from experiment.store import Store

STARTED = datetime(2026, 1, 1, tzinfo=UTC)

RUN = "synthetic"

STEPS = """
INSERT INTO step BY NAME
SELECT
    $run AS run_id,
    'task-' || lpad(CAST(i // 20 AS VARCHAR), 5, '0') AS task_id,
    i % 20 AS step,
    i + 1 AS line,
    256 + 37 * i % 65536 AS depth,
    'tokens' AS depth_unit,
    100 + 41 * i % 400 AS new_text_tokens,
    2.0 AS baseline_prefill_s,
    8.0 AS baseline_decode_s,
    0.5 AS baseline_exec_s
FROM range($steps) AS t (i)
"""

# The noise, uniform within ±1 %, is a hash of the row: no random numbers.
MEASUREMENTS = """
INSERT INTO measurement BY NAME
SELECT
    run_id, task_id, step, variant, r AS round,
    place AS position_in_round,
    depth,
    CASE WHEN variant = 'full' THEN 0 ELSE depth END AS cache_n,
    new + CASE WHEN variant = 'full' THEN depth ELSE 0 END AS prompt_n,
    noise * (new + CASE WHEN variant = 'full' THEN depth ELSE 0 END) * (0.4 + depth / 65536)
        + install_ms + encode_ms AS prompt_ms,
    install_ms, encode_ms,
    prompt_ms + 5 AS wall_ms,
    n_kv,
    CASE WHEN variant IN ('fake', 'control') THEN 'tile' END AS fake_fill,
    [new] AS ubatch_tokens, [n_kv] AS ubatch_n_kv, [950] AS graph_nodes,
    4096 * n_kv AS kv_bytes,
    0.05 * noise AS other_cores, 0.0 AS stolen_cores, 0 AS throttled,
    'ok' AS status,
    format('raw/{}-{}-{}-{}.json', task_id, step, variant, r) AS raw,
    TIMESTAMP '2026-01-01' + to_seconds(r) AS started_at
FROM (
    SELECT
        *,
        new_text_tokens + coalesce(image_width * image_height // 1024, 0) AS new,
        0.99 + 0.02 * (hash(line, variant, r) % 10007) / 10007 AS noise,
        CASE variant WHEN 'full' THEN 0.0 WHEN 'restored' THEN 0.8 ELSE 0.1 END
            * (1 + (hash(variant, line, r) % 101) / 1000) AS install_ms,
        CASE WHEN step % 2 = 0 THEN 17 + (hash(r, line, variant) % 1009) / 1009 ELSE 0.0 END
            AS encode_ms,
        CAST((depth + new_text_tokens + 255) // 256 * 256 AS INTEGER) AS n_kv
    FROM range($rounds) AS a (r), step,
        (VALUES (0, 'fake'), (1, 'control'), (2, 'restored'), (3, 'full')) AS b (place, variant)
    WHERE run_id = $run AND (variant <> 'full' OR r < $full_rounds)
)
"""

ESTIMATES = """
INSERT INTO measurement BY NAME
SELECT
    run_id, task_id, step, 'arithmetic' AS variant, 0 AS round, depth,
    0.97 * prefill_ms AS prompt_ms, 0.0 AS install_ms, encode_ms,
    'ok' AS status, TIMESTAMP '2026-01-01' AS started_at
FROM step_variant JOIN step USING (run_id, task_id, step)
WHERE variant = 'fake'
"""


def write_synthetic(folder: Path, steps: int, rounds: int) -> Path:
    """Write the database of a finished run, always the same for the same numbers.

    It holds ``4 * steps * rounds`` measurements (fake, control, restored, full) and an arithmetic
    estimate a step; there is nothing beside it (no raw/). Returns the path of the database.

    Raises:
        StoreError: the folder already has a database, or cannot be written.
    """
    if steps < 1 or rounds < 1:
        raise StoreError(f"{steps} steps in {rounds} rounds are no results", where=str(folder))
    record = RunRecord(
        RUN, name=RUN, started=STARTED, engine="native", pin="sdist", model="nano", settings={}
    )
    Store.create(folder, record).close()
    database = folder / DATABASE
    with connect(database, read_only=False) as connection:
        try:
            connection.execute("BEGIN")
            connection.execute(STEPS, {"run": RUN, "steps": steps})
            add_measurements(connection, RUN, rounds, full_rounds=rounds)
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")
        except duckdb.Error as error:
            raise explain(error, database) from error
    return database


def add_measurements(
    connection: duckdb.DuckDBPyConnection, run_id: str, rounds: int, *, full_rounds: int
) -> None:
    """Make up what a finished run would have measured of the steps that it has.

    Raises:
        duckdb.Error: the database refuses.
    """
    connection.execute(MEASUREMENTS, {"run": run_id, "rounds": rounds, "full_rounds": full_rounds})
    connection.execute(ESTIMATES)
    connection.execute("UPDATE run SET status = 'finished', finished = started")

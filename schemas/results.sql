-- Tables and views of results.duckdb. A change here that an older reader cannot take raises
-- SCHEMA_VERSION in experiment/store.py. Every timestamp is UTC without a zone.
-- Times are milliseconds unless the name says otherwise; depth and counts are tokens (KV cells).

CREATE TABLE run (
    id             VARCHAR PRIMARY KEY,  -- run_id in the other tables
    schema_version INTEGER NOT NULL,
    name           VARCHAR NOT NULL,
    started        TIMESTAMP NOT NULL,
    finished       TIMESTAMP,
    status         VARCHAR NOT NULL CHECK (status IN ('running', 'finished', 'failed', 'interrupted')),
    engine         VARCHAR NOT NULL,
    pin            VARCHAR NOT NULL,
    patch_digest   VARCHAR,
    image_digest   VARCHAR,
    model          VARCHAR NOT NULL,
    model_digest   VARCHAR,
    mmproj_digest  VARCHAR,
    trace_digest   VARCHAR,
    settings       JSON NOT NULL
);

CREATE TABLE host (  -- the keys of HostFacts in experiment/host.py; one row each time a run is opened
    run_id                 VARCHAR NOT NULL,
    recorded_at            TIMESTAMP NOT NULL,
    hostname               VARCHAR,
    system                 VARCHAR,
    kernel                 VARCHAR,
    architecture           VARCHAR,
    cpu_model              VARCHAR,
    cpu_flags              VARCHAR[],
    cores_total            INTEGER,
    cores_affinity         INTEGER,
    cores_quota            DOUBLE,
    cores_usable           INTEGER,
    governor               VARCHAR,
    load_1min              DOUBLE,
    load_5min              DOUBLE,
    load_15min             DOUBLE,
    memory_total_bytes     BIGINT,
    memory_available_bytes BIGINT,
    memory_limit_bytes     BIGINT,
    container              VARCHAR,
    python_version         VARCHAR
);

CREATE TABLE graph (
    run_id VARCHAR NOT NULL,
    key    VARCHAR NOT NULL,
    value  VARCHAR NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE step (
    run_id             VARCHAR NOT NULL,
    task_id            VARCHAR NOT NULL,
    step               INTEGER NOT NULL,
    line               INTEGER,  -- of the trace file
    depth              BIGINT NOT NULL,
    depth_unit         VARCHAR NOT NULL CHECK (depth_unit IN ('tokens', 'positions')),
    new_text           VARCHAR,
    new_text_tokens    INTEGER,  -- as asked for; once measured, as the tokenizer counts them
    image_width        INTEGER,
    image_height       INTEGER,
    baseline_prefill_s DOUBLE,
    baseline_decode_s  DOUBLE,
    baseline_exec_s    DOUBLE,
    PRIMARY KEY (run_id, task_id, step)
);

CREATE TABLE measurement (
    run_id            VARCHAR NOT NULL,
    task_id           VARCHAR NOT NULL,
    step              INTEGER NOT NULL,
    variant           VARCHAR NOT NULL CHECK (variant IN ('fake', 'control', 'restored', 'full', 'arithmetic')),
    round             INTEGER NOT NULL,  -- 0, 1, ...; a warm-up's round is negative
    position_in_round INTEGER,
    depth             BIGINT NOT NULL,
    cache_n           BIGINT,
    prompt_n          BIGINT,
    prompt_ms         DOUBLE,
    install_ms        DOUBLE,
    encode_ms         DOUBLE,
    prefill_ms        DOUBLE GENERATED ALWAYS AS (prompt_ms - install_ms) VIRTUAL,
    lm_prefill_ms     DOUBLE GENERATED ALWAYS AS (prompt_ms - install_ms - encode_ms) VIRTUAL,
    wall_ms           DOUBLE,
    prime_ms          DOUBLE,  -- outside prompt_ms
    size_bytes        BIGINT,
    pos_min           BIGINT,
    pos_max           BIGINT,
    n_kv              BIGINT,
    fake_fill         VARCHAR CHECK (fake_fill IN ('zero', 'tile')),  -- of fake and control: what the prefix's data were set to
    fill_ms           DOUBLE,     -- setting them, outside prompt_ms
    ubatch_tokens     INTEGER[],  -- new tokens of each ubatch, in order
    ubatch_n_kv       INTEGER[],  -- KV columns that its attention read
    graph_nodes       INTEGER[],  -- nodes of its compute graph
    kv_bytes          BIGINT,     -- K and V that all of them read: n_kv times the bytes of a column, over the attention layers
    other_cores       DOUBLE,     -- mean number of cores that other processes kept busy during the request
    stolen_cores      DOUBLE,     -- the same, taken by the hypervisor
    throttled         INTEGER,    -- times that heat or a CPU quota slowed the machine down during the request
    status            VARCHAR NOT NULL CHECK (status IN ('ok', 'warmup', 'invalid', 'refused', 'failed')),
    error             VARCHAR,
    raw               VARCHAR,  -- file below raw/ with the request and the response
    started_at        TIMESTAMP NOT NULL,
    PRIMARY KEY (run_id, task_id, step, variant, round),
    CHECK (status <> 'ok' OR round >= 0),
    CHECK (status <> 'warmup' OR round < 0),
    CHECK (status IN ('ok', 'warmup') OR error IS NOT NULL),
    CHECK (status <> 'ok' OR (prompt_ms IS NOT NULL AND install_ms IS NOT NULL AND encode_ms IS NOT NULL))
);

-- Untimed: experts that a router chose for at least one token of the ubatch.
CREATE TABLE expert (
    run_id    VARCHAR NOT NULL,
    task_id   VARCHAR NOT NULL,
    step      INTEGER NOT NULL,
    variant   VARCHAR NOT NULL CHECK (variant IN ('fake', 'restored')),
    fake_fill VARCHAR NOT NULL CHECK (fake_fill IN ('none', 'zero', 'tile')),  -- 'none' for restored
    ubatch    INTEGER NOT NULL,
    layer     INTEGER NOT NULL,  -- counts the layers that have experts
    distinct_experts INTEGER NOT NULL,
    PRIMARY KEY (run_id, task_id, step, variant, fake_fill, ubatch, layer)
);

CREATE TABLE calibration (
    run_id      VARCHAR NOT NULL,
    depth       BIGINT NOT NULL,
    chunk       INTEGER NOT NULL,
    tps_median  DOUBLE NOT NULL,
    tps_samples DOUBLE[] NOT NULL,
    wall_s      DOUBLE,  -- of the whole process: load, decode the prefix, all samples of all chunks
    PRIMARY KEY (run_id, depth, chunk)
);

CREATE TABLE event (
    run_id      VARCHAR NOT NULL,
    happened_at TIMESTAMP NOT NULL,
    kind        VARCHAR NOT NULL,
    message     VARCHAR NOT NULL,
    task_id     VARCHAR,
    step        INTEGER,
    variant     VARCHAR,
    round       INTEGER
);

-- One row a step and variant: medians over its valid measurements. The only place where 'ok' is
-- filtered besides pair; every other view reads these two.
CREATE VIEW step_variant AS
SELECT
    run_id, task_id, step, variant,
    count(*) AS n,
    median(prefill_ms) AS prefill_ms,
    median(install_ms) AS install_ms,
    median(encode_ms) AS encode_ms,
    median(lm_prefill_ms) AS lm_prefill_ms,
    max(prompt_n) AS prompt_n,
    max(n_kv) AS n_kv
FROM measurement
WHERE status = 'ok'
GROUP BY run_id, task_id, step, variant;

-- One row a step and round in which both fake and restored are valid.
CREATE VIEW pair AS
SELECT
    run_id, task_id, step, round, depth,
    fake_prefill_ms, restored_prefill_ms,
    fake_prefill_ms / nullif(restored_prefill_ms, 0) AS ratio,
    fake_lm_prefill_ms / nullif(restored_lm_prefill_ms, 0) AS lm_ratio
FROM (
    SELECT
        run_id, task_id, step, round,
        max(depth) AS depth,
        max(prefill_ms) FILTER (WHERE variant = 'fake') AS fake_prefill_ms,
        max(prefill_ms) FILTER (WHERE variant = 'restored') AS restored_prefill_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'fake') AS fake_lm_prefill_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'restored') AS restored_lm_prefill_ms
    FROM measurement
    WHERE status = 'ok' AND variant IN ('fake', 'restored')
    GROUP BY run_id, task_id, step, round
)
WHERE fake_prefill_ms IS NOT NULL AND restored_prefill_ms IS NOT NULL;

-- One row a step of the trace, measured or not.
CREATE VIEW step_comparison AS
WITH wide AS (
    SELECT
        run_id, task_id, step,
        max(n) FILTER (WHERE variant = 'fake') AS fake_n,
        max(prefill_ms) FILTER (WHERE variant = 'fake') AS fake_prefill_ms,
        max(install_ms) FILTER (WHERE variant = 'fake') AS fake_install_ms,
        max(encode_ms) FILTER (WHERE variant = 'fake') AS fake_encode_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'fake') AS fake_lm_prefill_ms,
        max(n_kv) FILTER (WHERE variant = 'fake') AS fake_n_kv,
        max(n) FILTER (WHERE variant = 'restored') AS restored_n,
        max(prefill_ms) FILTER (WHERE variant = 'restored') AS restored_prefill_ms,
        max(install_ms) FILTER (WHERE variant = 'restored') AS restored_install_ms,
        max(encode_ms) FILTER (WHERE variant = 'restored') AS restored_encode_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'restored') AS restored_lm_prefill_ms,
        max(n_kv) FILTER (WHERE variant = 'restored') AS restored_n_kv,
        max(n) FILTER (WHERE variant = 'full') AS full_n,
        max(prefill_ms) FILTER (WHERE variant = 'full') AS full_prefill_ms,
        max(install_ms) FILTER (WHERE variant = 'full') AS full_install_ms,
        max(encode_ms) FILTER (WHERE variant = 'full') AS full_encode_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'full') AS full_lm_prefill_ms,
        max(n_kv) FILTER (WHERE variant = 'full') AS full_n_kv,
        max(n) FILTER (WHERE variant = 'arithmetic') AS arithmetic_n,
        max(prefill_ms) FILTER (WHERE variant = 'arithmetic') AS arithmetic_prefill_ms,
        max(install_ms) FILTER (WHERE variant = 'arithmetic') AS arithmetic_install_ms,
        max(encode_ms) FILTER (WHERE variant = 'arithmetic') AS arithmetic_encode_ms,
        max(lm_prefill_ms) FILTER (WHERE variant = 'arithmetic') AS arithmetic_lm_prefill_ms,
        max(prompt_n) FILTER (WHERE variant IN ('fake', 'restored')) AS new_tokens,
        max(prompt_n) FILTER (WHERE variant = 'full') AS full_tokens
    FROM step_variant
    GROUP BY run_id, task_id, step
),
paired AS (
    SELECT
        run_id, task_id, step,
        count(ratio) AS pair_n,
        median(ratio) AS ratio_median,
        min(ratio) AS ratio_min,
        max(ratio) AS ratio_max,
        median(lm_ratio) AS lm_ratio_median
    FROM pair
    GROUP BY run_id, task_id, step
)
SELECT
    s.run_id, s.task_id, s.step, s.line, s.depth,
    coalesce(w.new_tokens, w.full_tokens - s.depth) AS new_tokens,
    coalesce(w.fake_n, 0) AS fake_n,
    w.fake_prefill_ms, w.fake_install_ms, w.fake_encode_ms, w.fake_lm_prefill_ms, w.fake_n_kv,
    coalesce(w.restored_n, 0) AS restored_n,
    w.restored_prefill_ms, w.restored_install_ms, w.restored_encode_ms, w.restored_lm_prefill_ms, w.restored_n_kv,
    coalesce(w.full_n, 0) AS full_n,
    w.full_prefill_ms, w.full_install_ms, w.full_encode_ms, w.full_lm_prefill_ms, w.full_n_kv,
    coalesce(w.arithmetic_n, 0) AS arithmetic_n,
    w.arithmetic_prefill_ms, w.arithmetic_install_ms, w.arithmetic_encode_ms, w.arithmetic_lm_prefill_ms,
    coalesce(p.pair_n, 0) AS pair_n,
    p.ratio_median, p.ratio_min, p.ratio_max, p.lm_ratio_median,
    w.full_prefill_ms / nullif(w.fake_prefill_ms, 0) AS speedup,
    100 * (w.arithmetic_lm_prefill_ms / nullif(w.fake_lm_prefill_ms, 0) - 1) AS arithmetic_error_pct
FROM step AS s
LEFT JOIN wide AS w ON w.run_id = s.run_id AND w.task_id = s.task_id AND w.step = s.step
LEFT JOIN paired AS p ON p.run_id = s.run_id AND p.task_id = s.task_id AND p.step = s.step;

-- One row a run. A ratio of sums is taken over the steps that have both of its sides (…_steps).
CREATE VIEW run_comparison AS
WITH over_steps AS (
    SELECT
        run_id,
        count(*) AS steps,
        count(fake_prefill_ms) AS fake_steps,
        sum(fake_prefill_ms) AS fake_prefill_ms,
        sum(fake_install_ms) AS fake_install_ms,
        sum(fake_encode_ms) AS fake_encode_ms,
        sum(new_tokens) FILTER (WHERE fake_prefill_ms IS NOT NULL) AS fake_new_tokens,
        count(restored_prefill_ms) AS restored_steps,
        sum(restored_prefill_ms) AS restored_prefill_ms,
        sum(restored_install_ms) AS restored_install_ms,
        count(full_prefill_ms) AS full_steps,
        sum(full_prefill_ms) AS full_prefill_ms,
        count(arithmetic_prefill_ms) AS arithmetic_steps,
        sum(arithmetic_prefill_ms) AS arithmetic_prefill_ms,
        count(speedup) AS speedup_steps,
        sum(full_prefill_ms) FILTER (WHERE speedup IS NOT NULL)
            / nullif(sum(fake_prefill_ms) FILTER (WHERE speedup IS NOT NULL), 0) AS speedup,
        median(speedup) AS speedup_median,
        count(arithmetic_error_pct) AS arithmetic_error_steps,
        median(arithmetic_error_pct) AS arithmetic_error_pct_median,
        min(arithmetic_error_pct) AS arithmetic_error_pct_min,
        max(arithmetic_error_pct) AS arithmetic_error_pct_max,
        100 * (
            sum(arithmetic_lm_prefill_ms) FILTER (WHERE arithmetic_error_pct IS NOT NULL)
            / nullif(sum(fake_lm_prefill_ms) FILTER (WHERE arithmetic_error_pct IS NOT NULL), 0) - 1
        ) AS arithmetic_error_pct_sum
    FROM step_comparison
    GROUP BY run_id
),
over_pairs AS (
    SELECT
        run_id,
        count(ratio) AS pair_n,
        median(ratio) AS ratio_median,
        median(lm_ratio) AS lm_ratio_median
    FROM pair
    GROUP BY run_id
)
SELECT s.*, coalesce(p.pair_n, 0) AS pair_n, p.ratio_median, p.lm_ratio_median
FROM over_steps AS s
LEFT JOIN over_pairs AS p ON p.run_id = s.run_id;

-- One row a bucket of 1,024 tokens of depth: depth_from <= L < depth_to.
CREATE VIEW depth_comparison AS
WITH bucketed AS (
    SELECT *, depth // 1024 * 1024 AS depth_from FROM step_comparison
),
over_steps AS (
    SELECT
        run_id, depth_from,
        count(*) AS steps,
        count(fake_prefill_ms) AS fake_steps,
        median(fake_prefill_ms) AS fake_prefill_ms,
        median(fake_install_ms) AS fake_install_ms,
        median(fake_prefill_ms / nullif(new_tokens, 0)) AS fake_ms_per_new_token,
        median(restored_prefill_ms) AS restored_prefill_ms,
        median(restored_install_ms) AS restored_install_ms,
        median(full_prefill_ms) AS full_prefill_ms,
        median(arithmetic_prefill_ms) AS arithmetic_prefill_ms,
        count(speedup) AS speedup_steps,
        sum(full_prefill_ms) FILTER (WHERE speedup IS NOT NULL)
            / nullif(sum(fake_prefill_ms) FILTER (WHERE speedup IS NOT NULL), 0) AS speedup,
        count(arithmetic_error_pct) AS arithmetic_error_steps,
        median(arithmetic_error_pct) AS arithmetic_error_pct_median
    FROM bucketed
    GROUP BY run_id, depth_from
),
over_pairs AS (
    SELECT
        b.run_id, b.depth_from,
        count(p.ratio) AS pair_n,
        median(p.ratio) AS ratio_median,
        min(p.ratio) AS ratio_min,
        max(p.ratio) AS ratio_max
    FROM pair AS p
    JOIN bucketed AS b ON b.run_id = p.run_id AND b.task_id = p.task_id AND b.step = p.step
    GROUP BY b.run_id, b.depth_from
)
SELECT
    s.run_id, s.depth_from, s.depth_from + 1024 AS depth_to,
    s.* EXCLUDE (run_id, depth_from),
    coalesce(p.pair_n, 0) AS pair_n, p.ratio_median, p.ratio_min, p.ratio_max
FROM over_steps AS s
LEFT JOIN over_pairs AS p ON p.run_id = s.run_id AND p.depth_from = s.depth_from;

-- One row a task and variant. Both walls are sums over the same steps: those that have a measured
-- prefill of the variant and a complete baseline (steps_counted of steps).
CREATE VIEW task_wall AS
WITH counted AS (
    SELECT
        v.run_id, v.task_id, v.variant,
        count(*) AS steps_counted,
        sum(v.prefill_ms) / 1000 AS opt_prefill_s,
        sum(s.baseline_prefill_s) AS baseline_prefill_s,
        sum(s.baseline_decode_s) AS baseline_decode_s,
        sum(s.baseline_exec_s) AS baseline_exec_s
    FROM step_variant AS v
    JOIN step AS s ON s.run_id = v.run_id AND s.task_id = v.task_id AND s.step = v.step
    WHERE s.baseline_prefill_s IS NOT NULL AND s.baseline_decode_s IS NOT NULL AND s.baseline_exec_s IS NOT NULL
    GROUP BY v.run_id, v.task_id, v.variant
),
total AS (
    SELECT run_id, task_id, count(*) AS steps FROM step GROUP BY run_id, task_id
)
SELECT
    c.run_id, c.task_id, c.variant, t.steps, c.steps_counted,
    c.opt_prefill_s, c.baseline_prefill_s, c.baseline_decode_s, c.baseline_exec_s,
    c.opt_prefill_s + c.baseline_decode_s + c.baseline_exec_s AS opt_wall_s,
    c.baseline_prefill_s + c.baseline_decode_s + c.baseline_exec_s AS baseline_wall_s
FROM counted AS c
JOIN total AS t ON t.run_id = c.run_id AND t.task_id = c.task_id;

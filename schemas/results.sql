-- Tables and views of results.duckdb. A change here that an older reader cannot take raises
-- SCHEMA_VERSION in experiment/database.py. Every timestamp is UTC without a zone.
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
    left_out           VARCHAR,  -- why it is not replayed, the kind first ("budget: ..."); NULL = it is
    stratum            INTEGER,  -- of the sample that a budget allows; 0 = taken without a lot, NULL = none
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
    sampler_ms        DOUBLE,     -- part of prompt_ms: showing the prompt to the sampler, sampling the first token
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

-- Views. Those that read measurement itself (step_variant, pair, outer_third, step_load,
-- structure) filter 'ok'; every other view reads them. `compare` makes each anew from this text.

-- One row a step and variant: medians over its valid measurements.
CREATE VIEW step_variant AS
SELECT
    run_id, task_id, step, variant,
    count(*) AS n,
    max(round) + 1 AS rounds,
    median(prefill_ms) AS prefill_ms,
    median(install_ms) AS install_ms,
    median(encode_ms) AS encode_ms,
    median(lm_prefill_ms) AS lm_prefill_ms,
    max(prompt_n) AS prompt_n,
    max(n_kv) AS n_kv
FROM measurement
WHERE status = 'ok'
GROUP BY run_id, task_id, step, variant;

-- One row a step and variant: the times that stand for it. At L = 0, where nothing is cached, there is
-- no prefix to fabricate or to restore: what fake and (in a run that restores) restored would do there
-- is what full does, which is measured once for all of them.
CREATE VIEW step_time AS
SELECT run_id, task_id, step, variant, n, prefill_ms, encode_ms, lm_prefill_ms
FROM step_variant
UNION ALL
SELECT f.run_id, f.task_id, f.step, c.variant, f.n, f.prefill_ms, f.encode_ms, f.lm_prefill_ms
FROM step_variant AS f
JOIN step AS s ON s.run_id = f.run_id AND s.task_id = f.task_id AND s.step = f.step
JOIN (
    SELECT DISTINCT run_id, 'restored' AS variant FROM step_variant WHERE variant = 'restored'
    UNION ALL
    SELECT id, 'fake' FROM run
) AS c ON c.run_id = f.run_id
WHERE f.variant = 'full' AND s.depth = 0;

-- One row a step and round with at least one ratio. ratio and lm_ratio are fake / restored; aa_ratio
-- is control / fake, two measurements of one and the same thing: what the machine's noise makes of 1.
CREATE VIEW pair AS
SELECT
    f.run_id, f.task_id, f.step, f.round, f.depth,
    f.prefill_ms AS fake_prefill_ms,
    c.prefill_ms AS control_prefill_ms,
    r.prefill_ms AS restored_prefill_ms,
    f.prefill_ms / nullif(r.prefill_ms, 0) AS ratio,
    f.lm_prefill_ms / nullif(r.lm_prefill_ms, 0) AS lm_ratio,
    c.prefill_ms / nullif(f.prefill_ms, 0) AS aa_ratio
FROM (FROM measurement WHERE status = 'ok' AND variant = 'fake') AS f
LEFT JOIN (FROM measurement WHERE status = 'ok' AND variant = 'control') AS c
    ON c.run_id = f.run_id AND c.task_id = f.task_id AND c.step = f.step AND c.round = f.round
LEFT JOIN (FROM measurement WHERE status = 'ok' AND variant = 'restored') AS r
    ON r.run_id = f.run_id AND r.task_id = f.task_id AND r.step = f.step AND r.round = f.round
WHERE ratio IS NOT NULL OR aa_ratio IS NOT NULL;

-- One row a step of the trace, measured or not. A step at L = 0 has figures of full and arithmetic only.
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
        max(n) FILTER (WHERE variant = 'control') AS control_n,
        max(prefill_ms) FILTER (WHERE variant = 'control') AS control_prefill_ms,
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
        max(prompt_n) FILTER (WHERE variant IN ('fake', 'control', 'restored')) AS new_tokens,
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
        median(lm_ratio) AS lm_ratio_median,
        count(aa_ratio) AS aa_n,
        median(aa_ratio) AS aa_median
    FROM pair
    GROUP BY run_id, task_id, step
)
SELECT
    s.run_id, s.task_id, s.step, s.line, s.depth, s.left_out,
    coalesce(w.new_tokens, w.full_tokens - s.depth) AS new_tokens,
    coalesce(w.fake_n, 0) AS fake_n,
    w.fake_prefill_ms, w.fake_install_ms, w.fake_encode_ms, w.fake_lm_prefill_ms, w.fake_n_kv,
    coalesce(w.control_n, 0) AS control_n,
    w.control_prefill_ms,
    coalesce(w.restored_n, 0) AS restored_n,
    w.restored_prefill_ms, w.restored_install_ms, w.restored_encode_ms, w.restored_lm_prefill_ms, w.restored_n_kv,
    coalesce(w.full_n, 0) AS full_n,
    w.full_prefill_ms, w.full_install_ms, w.full_encode_ms, w.full_lm_prefill_ms, w.full_n_kv,
    coalesce(w.arithmetic_n, 0) AS arithmetic_n,
    w.arithmetic_prefill_ms, w.arithmetic_install_ms, w.arithmetic_encode_ms, w.arithmetic_lm_prefill_ms,
    coalesce(p.pair_n, 0) AS pair_n,
    p.ratio_median, p.ratio_min, p.ratio_max, p.lm_ratio_median,
    coalesce(p.aa_n, 0) AS aa_n,
    p.aa_median,
    w.full_prefill_ms / nullif(w.fake_prefill_ms, 0) AS speedup,
    100 * (w.arithmetic_lm_prefill_ms / nullif(w.fake_lm_prefill_ms, 0) - 1) AS arithmetic_error_pct
FROM step AS s
LEFT JOIN wide AS w ON w.run_id = s.run_id AND w.task_id = s.task_id AND w.step = s.step
LEFT JOIN paired AS p ON p.run_id = s.run_id AND p.task_id = s.task_id AND p.step = s.step;

-- One row a run: sums of the steps' medians, and medians over steps where the name or a comment says
-- so. A ratio of sums is taken over the steps that have both of its sides (…_steps). steps are those that
-- are replayed, cold_steps of them those at L = 0.
CREATE VIEW run_comparison AS
WITH over_steps AS (
    SELECT
        run_id,
        count(*) FILTER (WHERE left_out IS NULL) AS steps,
        count(*) FILTER (WHERE left_out IS NOT NULL) AS left_out_steps,
        count(*) FILTER (WHERE left_out IS NULL AND depth = 0) AS cold_steps,
        count(fake_prefill_ms) AS fake_steps,
        sum(fake_prefill_ms) AS fake_prefill_ms,
        sum(fake_install_ms) AS fake_install_ms,
        sum(fake_encode_ms) AS fake_encode_ms,
        sum(new_tokens) FILTER (WHERE fake_prefill_ms IS NOT NULL) AS fake_new_tokens,
        median(fake_prefill_ms / nullif(new_tokens, 0)) AS fake_ms_per_new_token,
        count(control_prefill_ms) AS control_steps,
        sum(control_prefill_ms) AS control_prefill_ms,
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
        median(lm_ratio) AS lm_ratio_median,
        count(aa_ratio) AS aa_n,
        median(aa_ratio) AS aa_median
    FROM pair
    GROUP BY run_id
)
SELECT
    s.*,
    coalesce(p.pair_n, 0) AS pair_n, p.ratio_median, p.lm_ratio_median,
    coalesce(p.aa_n, 0) AS aa_n, p.aa_median
FROM over_steps AS s
LEFT JOIN over_pairs AS p ON p.run_id = s.run_id;

-- One row a bucket of 1,024 tokens of depth: depth_from <= L < depth_to. Times are medians over steps, of
-- those that are replayed.
CREATE VIEW depth_comparison AS
WITH bucketed AS (
    SELECT *, depth // 1024 * 1024 AS depth_from FROM step_comparison WHERE left_out IS NULL
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
        max(p.ratio) AS ratio_max,
        count(p.aa_ratio) AS aa_n,
        median(p.aa_ratio) AS aa_median
    FROM pair AS p
    JOIN bucketed AS b ON b.run_id = p.run_id AND b.task_id = p.task_id AND b.step = p.step
    GROUP BY b.run_id, b.depth_from
)
SELECT
    s.run_id, s.depth_from, s.depth_from + 1024 AS depth_to,
    s.* EXCLUDE (run_id, depth_from),
    coalesce(p.pair_n, 0) AS pair_n, p.ratio_median, p.ratio_min, p.ratio_max,
    coalesce(p.aa_n, 0) AS aa_n, p.aa_median
FROM over_steps AS s
LEFT JOIN over_pairs AS p ON p.run_id = s.run_id AND p.depth_from = s.depth_from;

-- One row a task and variant. Both walls are sums over the same steps: those that have a measured
-- prefill of the variant (as step_time has it) and a complete baseline (steps_counted of steps). control
-- is fake once more and has no row. Where steps are left out, it is a sum over some of them.
CREATE VIEW task_wall AS
WITH counted AS (
    SELECT
        v.run_id, v.task_id, v.variant,
        count(*) AS steps_counted,
        sum(v.prefill_ms) / 1000 AS opt_prefill_s,
        sum(s.baseline_prefill_s) AS baseline_prefill_s,
        sum(s.baseline_decode_s) AS baseline_decode_s,
        sum(s.baseline_exec_s) AS baseline_exec_s
    FROM step_time AS v
    JOIN step AS s ON s.run_id = v.run_id AND s.task_id = v.task_id AND s.step = v.step
    WHERE v.variant <> 'control'
        AND s.baseline_prefill_s IS NOT NULL AND s.baseline_decode_s IS NOT NULL AND s.baseline_exec_s IS NOT NULL
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

-- The valid measurements of fake in the first third of a step's rounds and in the last (late), thirds
-- rounded up (the only round of a step is late); relative: to the step's median, so that steps can be
-- put together.
CREATE VIEW outer_third AS
SELECT
    m.run_id, m.task_id, m.step, m.round,
    m.round >= v.rounds - (v.rounds + 2) // 3 AS late,
    m.prefill_ms,
    m.prefill_ms / nullif(v.prefill_ms, 0) AS relative
FROM measurement AS m
JOIN step_variant AS v
    ON v.run_id = m.run_id AND v.task_id = m.task_id AND v.step = m.step AND v.variant = m.variant
WHERE m.status = 'ok' AND m.variant = 'fake'
    AND (m.round < (v.rounds + 2) // 3 OR m.round >= v.rounds - (v.rounds + 2) // 3);

-- What a step, and a run, may show and still be called steady.
CREATE VIEW stability_limit AS
SELECT
    5.0 AS spread_pct,
    10.0 AS outliers_pct,  -- of the pairs,
    2 AS outliers_least,   -- but one alone is no sign
    3 * 1.4826 AS outlier_mads,  -- 1.4826 MAD estimates a standard deviation (normal distribution)
    10.0 AS drift_pct,
    0.25 AS other_cores,
    0.05 AS stolen_cores,
    0 AS throttled,
    20.0 AS unsteady_steps_pct;

-- One row a step with a valid measurement: what disturbed its requests, those of all variants.
CREATE VIEW step_load AS
SELECT
    run_id, task_id, step,
    median(other_cores) AS other_cores_median,
    max(other_cores) AS other_cores_max,
    median(stolen_cores) AS stolen_cores_median,
    max(stolen_cores) AS stolen_cores_max,
    sum(throttled) AS throttled
FROM measurement
WHERE status = 'ok' AND variant <> 'arithmetic'
GROUP BY run_id, task_id, step;

-- One row a step with a pair: the middle of its ratios fake / restored, and how far they lie from it.
CREATE VIEW step_centre AS
SELECT
    run_id, task_id, step,
    count(ratio) AS n,
    quantile_cont(ratio, [0.25, 0.5, 0.75]) AS quartiles,
    mad(ratio) AS deviation
FROM pair
GROUP BY run_id, task_id, step;

-- One row a step with a valid measurement of fake: its last rounds against its first.
CREATE VIEW step_drift AS
SELECT
    run_id, task_id, step,
    100 * (
        median(relative) FILTER (WHERE late) / nullif(median(relative) FILTER (WHERE NOT late), 0) - 1
    ) AS drift_pct
FROM outer_third
GROUP BY run_id, task_id, step;

-- One row a step with a valid measurement, and one (task_id and step NULL) for the run as a whole.
--   n, spread_pct, outliers: the ratios fake / restored; spread is their interquartile range against
--     their median, an outlier is farther than outlier_mads median absolute deviations from it
--   drift_pct: fake.prefill_ms in the last third of the rounds against the first, medians
--   other_cores, stolen_cores, throttled: over the requests of all variants; the run's medians are
--     those of the steps' medians
--   broken: the limits that are not kept, with the figures; empty if all are
CREATE VIEW stability_figures AS
WITH load AS (
    FROM step_load
    UNION ALL
    SELECT
        run_id, NULL, NULL,
        median(other_cores_median), max(other_cores_max),
        median(stolen_cores_median), max(stolen_cores_max),
        sum(throttled)
    FROM step_load
    GROUP BY run_id
),
centre AS (
    FROM step_centre
    UNION ALL
    SELECT run_id, NULL, NULL, count(ratio), quantile_cont(ratio, [0.25, 0.5, 0.75]), mad(ratio)
    FROM pair
    GROUP BY run_id
),
far AS (
    SELECT
        p.run_id, p.task_id, p.step,
        count(*) FILTER (WHERE abs(p.ratio - s.quartiles[2]) > l.outlier_mads * s.deviation) AS of_step,
        count(*) FILTER (WHERE abs(p.ratio - r.quartiles[2]) > l.outlier_mads * r.deviation) AS of_run
    FROM pair AS p
    JOIN centre AS s ON s.run_id = p.run_id AND s.task_id = p.task_id AND s.step = p.step
    JOIN centre AS r ON r.run_id = p.run_id AND r.task_id IS NULL
    CROSS JOIN stability_limit AS l
    GROUP BY GROUPING SETS ((p.run_id, p.task_id, p.step), (p.run_id))
),
drift AS (
    FROM step_drift
    UNION ALL
    SELECT
        run_id, NULL, NULL,
        100 * (
            median(relative) FILTER (WHERE late) / nullif(median(relative) FILTER (WHERE NOT late), 0) - 1
        )
    FROM outer_third
    GROUP BY run_id
),
figures AS (
    SELECT
        o.run_id, o.task_id, o.step,
        coalesce(c.n, 0) AS n,
        100 * (c.quartiles[3] - c.quartiles[1]) / nullif(c.quartiles[2], 0) AS spread_pct,
        coalesce(CASE WHEN o.task_id IS NULL THEN f.of_run ELSE f.of_step END, 0) AS outliers,
        d.drift_pct,
        o.other_cores_median, o.other_cores_max, o.stolen_cores_median, o.stolen_cores_max, o.throttled
    FROM load AS o
    LEFT JOIN centre AS c
        ON c.run_id = o.run_id AND c.task_id IS NOT DISTINCT FROM o.task_id AND c.step IS NOT DISTINCT FROM o.step
    LEFT JOIN far AS f
        ON f.run_id = o.run_id AND f.task_id IS NOT DISTINCT FROM o.task_id AND f.step IS NOT DISTINCT FROM o.step
    LEFT JOIN drift AS d
        ON d.run_id = o.run_id AND d.task_id IS NOT DISTINCT FROM o.task_id AND d.step IS NOT DISTINCT FROM o.step
)
SELECT
    g.*,
    concat_ws(
        ', ',
        CASE WHEN g.spread_pct > l.spread_pct THEN printf('spread %.1f %%', g.spread_pct) END,
        CASE
            WHEN g.outliers >= l.outliers_least AND 100 * g.outliers > l.outliers_pct * g.n
            THEN printf('%d outliers', g.outliers)
        END,
        CASE WHEN abs(g.drift_pct) > l.drift_pct THEN printf('drift %+.1f %%', g.drift_pct) END,
        CASE
            WHEN g.other_cores_median > l.other_cores
            THEN printf('other processes on %.2f cores', g.other_cores_median)
        END,
        CASE
            WHEN g.stolen_cores_median > l.stolen_cores
            THEN printf('%.2f cores stolen', g.stolen_cores_median)
        END,
        CASE WHEN g.throttled > l.throttled THEN printf('throttled %d times', CAST(g.throttled AS BIGINT)) END
    ) AS broken
FROM figures AS g
CROSS JOIN stability_limit AS l;

-- One row a step with a valid measurement. verdict: 'steady', 'unsteady: ' and why, or NULL (nothing
-- is wrong, but there are no two rounds to judge by).
CREATE VIEW stability AS
SELECT
    run_id, task_id, step, n, spread_pct, outliers, drift_pct,
    other_cores_median, other_cores_max, stolen_cores_median, stolen_cores_max, throttled,
    CASE
        WHEN broken <> '' THEN 'unsteady: ' || broken
        WHEN n >= 2 OR drift_pct IS NOT NULL THEN 'steady'
    END AS verdict
FROM stability_figures
WHERE task_id IS NOT NULL;

-- One row a run: the same over all its steps, and how many of the judged ones are unsteady.
CREATE VIEW run_stability AS
WITH judged AS (
    SELECT
        run_id,
        count(verdict) AS judged_steps,
        count(*) FILTER (WHERE starts_with(verdict, 'unsteady')) AS unsteady_steps
    FROM stability
    GROUP BY run_id
),
broken AS (
    SELECT
        g.*, j.judged_steps, j.unsteady_steps,
        concat_ws(
            ', ',
            nullif(g.broken, ''),
            CASE
                WHEN 100 * j.unsteady_steps > l.unsteady_steps_pct * j.judged_steps
                THEN printf('%d of %d steps unsteady', j.unsteady_steps, j.judged_steps)
            END
        ) AS all_broken
    FROM stability_figures AS g
    JOIN judged AS j ON j.run_id = g.run_id
    CROSS JOIN stability_limit AS l
    WHERE g.task_id IS NULL
)
SELECT
    run_id, judged_steps, unsteady_steps, n, spread_pct, outliers, drift_pct,
    other_cores_median, other_cores_max, stolen_cores_median, stolen_cores_max, throttled,
    CASE WHEN all_broken <> '' THEN 'unsteady: ' || all_broken WHEN judged_steps > 0 THEN 'steady' END AS verdict
FROM broken;

-- One row a step and variant: what the graph did. The lists and bytes are those of the first valid
-- round; distinct_… counts the different ones over all valid rounds, agrees says whether that is 1.
CREATE VIEW structure AS
WITH counted AS (
    SELECT
        run_id, task_id, step, variant,
        count(*) AS n,
        max(fake_fill) AS fake_fill,
        count(DISTINCT ubatch_tokens) AS distinct_ubatch_tokens,
        count(DISTINCT ubatch_n_kv) AS distinct_ubatch_n_kv,
        count(DISTINCT graph_nodes) AS distinct_graph_nodes,
        count(DISTINCT kv_bytes) AS distinct_kv_bytes,
        arg_min(ubatch_tokens, round) AS ubatch_tokens,
        arg_min(ubatch_n_kv, round) AS ubatch_n_kv,
        arg_min(graph_nodes, round) AS graph_nodes,
        arg_min(kv_bytes, round) AS kv_bytes
    FROM measurement
    WHERE status = 'ok' AND variant <> 'arithmetic'
    GROUP BY run_id, task_id, step, variant
)
SELECT
    *,
    nullif(
        greatest(distinct_ubatch_tokens, distinct_ubatch_n_kv, distinct_graph_nodes, distinct_kv_bytes), 0
    ) = 1 AS agrees
FROM counted;

-- One row a step: fake against restored. same_… is NULL where one of them does not tell; experts are
-- summed over ubatches and layers, those of fake with the fill that its measurements had.
CREATE VIEW structure_comparison AS
WITH routed AS (
    SELECT run_id, task_id, step, variant, fake_fill, sum(distinct_experts) AS experts
    FROM expert
    GROUP BY run_id, task_id, step, variant, fake_fill
)
SELECT
    c.run_id, c.task_id, c.step, c.line, c.depth, c.left_out, c.new_tokens,
    f.fake_fill,
    coalesce(f.n, 0) AS fake_n,
    f.agrees AS fake_agrees,
    len(f.ubatch_tokens) AS fake_ubatches,
    f.ubatch_n_kv[-1] AS fake_n_kv,
    list_sum(f.graph_nodes) AS fake_graph_nodes,
    f.kv_bytes AS fake_kv_bytes,
    coalesce(r.n, 0) AS restored_n,
    r.agrees AS restored_agrees,
    len(r.ubatch_tokens) AS restored_ubatches,
    r.ubatch_n_kv[-1] AS restored_n_kv,
    list_sum(r.graph_nodes) AS restored_graph_nodes,
    r.kv_bytes AS restored_kv_bytes,
    f.ubatch_tokens = r.ubatch_tokens AS same_ubatches,
    f.ubatch_n_kv = r.ubatch_n_kv AS same_n_kv,
    f.graph_nodes = r.graph_nodes AS same_graph_nodes,
    f.kv_bytes = r.kv_bytes AS same_kv_bytes,
    ef.experts AS fake_experts,
    er.experts AS restored_experts,
    100 * (ef.experts / nullif(er.experts, 0) - 1) AS expert_difference_pct,
    c.pair_n, c.ratio_median
FROM step_comparison AS c
LEFT JOIN structure AS f
    ON f.run_id = c.run_id AND f.task_id = c.task_id AND f.step = c.step AND f.variant = 'fake'
LEFT JOIN structure AS r
    ON r.run_id = c.run_id AND r.task_id = c.task_id AND r.step = c.step AND r.variant = 'restored'
LEFT JOIN routed AS ef
    ON ef.run_id = c.run_id AND ef.task_id = c.task_id AND ef.step = c.step
    AND ef.variant = 'fake' AND ef.fake_fill = f.fake_fill
LEFT JOIN routed AS er
    ON er.run_id = c.run_id AND er.task_id = c.task_id AND er.step = c.step AND er.variant = 'restored';

"""What a run is said to show, as claims: a sentence, the query behind it, and its tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiment.claim_file import Claim, read, write
from experiment.claim_values import values
from experiment.compare import load
from experiment.intervals import noise_floor
from experiment.rows import OverallRow
from experiment.sentences import pairs
from experiment.sentences import steps as count_steps

__all__ = ["Claim", "make", "read", "restated", "values", "write"]

FIDELITY = 0.02
"""Absolute: a ratio of two prefills that differ by no more is the same for what it is used for."""

SPEEDUP = 0.30
"""Relative. Two runs of one trace on one machine gave 5.5 and 5.7."""

ARITHMETIC_POINTS = 25.0
"""Percentage points. llama-bench measures in another process, minutes before: on one machine its
throughput against the server's was 0.77 to 1.08, and drifted by a quarter."""

INSTALL_POINTS = 1.0
"""Percentage points of the prefill."""

RESTORE = 0.50
"""Relative. Runs of one model on one machine gave 58 to 69."""

TIMING = 0.25
"""Relative. So much do unpaired measurements on one machine drift within minutes."""

DIGITS = 4
"""Decimals of a tolerance that is worked out: what the run's figures are told with."""

_EXACT = "A count that follows from the trace and the program, not from the machine: it is equal."


@dataclass(frozen=True, slots=True)
class _Draft:
    """A claim before its value is known; ``sentence`` has a place for it."""

    key: str
    sentence: str
    query: str
    why: str = _EXACT
    tolerance: float = 0.0
    is_relative: bool = False
    judged_elsewhere: bool = True


def make(folder: Path) -> tuple[Claim, ...]:
    """The claims that the data of the run in ``folder`` support, the most important first.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no steps.
    """
    overall = load(folder).overall
    drafts = list(_drafts(overall))
    # Asked as any other query is, so that a claim expects what its own query gives.
    found = values(folder, [_claim(draft, 0) for draft in drafts])
    return tuple(
        _claim(draft, value) for draft in drafts if (value := found[draft.key]) is not None
    )


def restated(claims: Iterable[Claim], found: Mapping[str, float | int | None]) -> tuple[Claim, ...]:
    """The claims as they are for a part of their run, in which ``values`` found ``found``.

    Those without data there are left out. The sentences still tell the values of the whole run.
    """
    return tuple(
        replace(claim, expected=value)
        for claim in claims
        if (value := found.get(claim.key)) is not None
    )


def _claim(draft: _Draft, value: float | int) -> Claim:
    return Claim(
        key=draft.key,
        sentence=draft.sentence.format(value),
        query=draft.query,
        expected=value,
        tolerance=draft.tolerance,
        is_relative=draft.is_relative,
        judged_elsewhere=draft.judged_elsewhere,
        why=draft.why,
    )


def _drafts(overall: OverallRow) -> Iterator[_Draft]:
    yield from _ratios(overall)
    yield from _counts(overall)
    yield from _install(overall)
    yield from _timings(overall)


def _ratios(overall: OverallRow) -> Iterator[_Draft]:
    floor = noise_floor(overall.aa) or 0.0
    width = 0.0 if overall.ratio is None else overall.ratio.high - overall.ratio.low
    yield _Draft(
        "speedup",
        "Decoding everything anew (full) takes {:.2f} times as long as decoding only the new "
        f"tokens at depth L (fake), in sum over {count_steps(overall.speedup_steps)}.",
        "SELECT speedup FROM run_comparison",
        "The ratio depends on how a machine's arithmetic compares with its memory: attention at "
        "depth reads memory, decoding a long prompt computes. 30 % either way allows for other "
        "processors; a machine of another kind (a GPU) may be farther away.",
        SPEEDUP,
        is_relative=True,
    )
    yield _Draft(
        "fidelity",
        "Fake takes {:.4f} times as long as the same decoding behind a real prefix (restored): "
        f"median of {pairs(overall.pair_n)} of the same round.",
        "SELECT ratio_median FROM run_comparison",
        "Both do the same work in the same process, so the ratio does not depend on the machine, "
        f"but on its noise: {FIDELITY} or, where that is more, this run's own noise floor "
        f"({floor:.4f}) or the width of the ratio's 95 % interval ({width:.4f}).",
        round(max(FIDELITY, floor, width), DIGITS),
    )
    yield _Draft(
        "noise",
        "Fake against itself (control) takes {:.4f} times as long: "
        f"median of {pairs(overall.aa_n)} of the same round, nothing but noise.",
        "SELECT aa_median FROM run_comparison",
        "Two measurements of the same thing: what keeps the ratio from 1 is noise. As for "
        f"fidelity, {FIDELITY} or this run's own noise floor ({floor:.4f}), the larger one.",
        round(max(FIDELITY, floor), DIGITS),
    )
    yield _Draft(
        "arithmetic_error_pct",
        "The arithmetic estimate new / prefill_tps(L) is off by {:+.1f} % in sum over "
        f"{count_steps(overall.arithmetic_error_steps)} (image encoding left out).",
        "SELECT arithmetic_error_pct_sum FROM run_comparison",
        f"In percentage points. The throughput comes from llama-bench, another process that ran "
        f"some minutes before; unpaired like this, measurements on one and the same machine differ "
        f"by up to {ARITHMETIC_POINTS:g} %.",
        ARITHMETIC_POINTS,
    )


# Each is NULL where nothing was measured that could break the rule: 0 of nothing claims nothing.
_CACHED_WRONG = """\
SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (
    WHERE m.cache_n IS DISTINCT FROM CASE WHEN m.variant = 'full' THEN 0 ELSE s.depth END
) END
FROM measurement AS m JOIN step AS s USING (run_id, task_id, step)
WHERE m.status = 'ok' AND m.variant <> 'arithmetic'
"""
_READ_TOO_LITTLE = """\
SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (WHERE coalesce(
    m.n_kv < m.prompt_n + CASE WHEN m.variant = 'full' THEN 0 ELSE s.depth END, TRUE
)) END
FROM measurement AS m JOIN step AS s USING (run_id, task_id, step)
WHERE m.status = 'ok' AND m.variant <> 'arithmetic'
"""
_FULL_DIFFERS = """\
WITH decoded AS (
    SELECT
        s.depth,
        min(m.prompt_n) FILTER (WHERE m.variant = 'fake') AS fake_least,
        max(m.prompt_n) FILTER (WHERE m.variant = 'fake') AS fake_most,
        min(m.prompt_n) FILTER (WHERE m.variant = 'full') AS full_least,
        max(m.prompt_n) FILTER (WHERE m.variant = 'full') AS full_most
    FROM measurement AS m JOIN step AS s USING (run_id, task_id, step)
    WHERE m.status = 'ok'
    GROUP BY s.run_id, s.task_id, s.step, s.depth
)
SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (
    WHERE full_least <> depth + fake_most OR full_most <> depth + fake_least
) END
FROM decoded
WHERE fake_least IS NOT NULL AND full_least IS NOT NULL
"""
_STRUCTURE_DIFFERS = """\
SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (WHERE NOT (
    same_ubatches AND same_n_kv AND same_graph_nodes AND same_kv_bytes
    AND fake_agrees AND restored_agrees
)) END
FROM structure_comparison
WHERE same_ubatches IS NOT NULL AND same_n_kv IS NOT NULL
    AND same_graph_nodes IS NOT NULL AND same_kv_bytes IS NOT NULL
"""


def _unmeasured(status: str, *unless: str) -> str:
    """The query for the steps without a valid fake, of which one was answered with ``status``."""

    def seen(wanted: str) -> str:
        return (
            "EXISTS (\n    FROM measurement AS m WHERE m.run_id = c.run_id "
            "AND m.task_id = c.task_id AND m.step = c.step\n"
            f"        AND m.variant = 'fake' AND m.status = '{wanted}'\n)"
        )

    excluded = "".join(f" AND NOT {seen(other)}" for other in unless)
    return (
        f"SELECT count(*) FROM step_comparison AS c WHERE c.fake_n = 0 AND {seen(status)}"
        f"{excluded}\n"
    )


def _counts(overall: OverallRow) -> Iterator[_Draft]:
    yield _Draft(
        "cached_wrong",
        "The number of valid measurements whose cache_n is not the depth L that was asked for "
        "(0 for full) is {:,}.",
        _CACHED_WRONG,
    )
    yield _Draft(
        "full_differs",
        "The number of steps in which full.prompt_n is not L + fake.prompt_n is {:,}.",
        _FULL_DIFFERS,
    )
    yield _Draft(
        "structure_differs",
        "The number of steps in which the graphs of fake and restored differ (ubatches, KV columns "
        "read, nodes, K/V bytes read) is {:,}.",
        _STRUCTURE_DIFFERS,
    )
    yield _Draft(
        "read_too_little",
        "The number of valid measurements whose attention did not read all of L + new KV columns "
        "is {:,}.",
        _READ_TOO_LITTLE,
    )
    yield _Draft(
        "steps_measured",
        f"The number of steps with a valid measurement of fake is {{:,}} of {overall.steps:,}.",
        "SELECT count(*) FROM step_comparison WHERE fake_n > 0",
    )
    yield _Draft(
        "steps_refused",
        "The number of steps without a valid measurement of fake because the server or the plan "
        "refused them is {:,}.",
        _unmeasured("refused"),
    )
    yield _Draft(
        "steps_invalid",
        "The number of steps without a valid measurement of fake because every answer broke a rule "
        "is {:,}.",
        _unmeasured("invalid", "refused"),
    )


def _install(overall: OverallRow) -> Iterator[_Draft]:
    fake_ms, install_ms = overall.fake_prefill_ms, overall.fake_install_ms
    share_pct = 100 * install_ms / fake_ms if fake_ms and install_ms else 0.0
    yield _Draft(
        "install_share_pct",
        "Putting a fabricated prefix in place takes {:.3g} % of the prefill behind it, in sum over "
        f"{count_steps(overall.fake_steps)}.",
        "SELECT 100 * fake_install_ms / nullif(fake_prefill_ms, 0) FROM run_comparison",
        f"In percentage points. The claim is that it is little: {INSTALL_POINTS:g} more, or where "
        "that is more twice as much, changes no conclusion.",
        round(max(INSTALL_POINTS, share_pct), DIGITS),
    )
    yield _Draft(
        "restore_ratio",
        "Putting a real prefix in place (restored) takes {:.1f} times as long as a fabricated one, "
        f"in sum over {count_steps(min(overall.fake_steps, overall.restored_steps))}.",
        "SELECT sum(restored_install_ms) / nullif(sum(fake_install_ms), 0) FROM step_comparison\n"
        "WHERE restored_install_ms IS NOT NULL AND fake_install_ms IS NOT NULL\n",
        "Restoring copies the state, so it goes with the machine's memory bandwidth; fabricating "
        "marks cells, which goes with its cores. Half of it more or less.",
        RESTORE,
        is_relative=True,
    )


def _timings(overall: OverallRow) -> Iterator[_Draft]:
    why = (
        "A time of this machine, never expected to be equal on another. On this one, unpaired "
        "measurements drift by a quarter within minutes."
    )
    yield _Draft(
        "fake_prefill_s",
        "Prefill of only the new tokens at depth L (fake) takes {:.3f} s in sum over "
        f"{count_steps(overall.fake_steps)}.",
        "SELECT fake_prefill_ms / 1000 FROM run_comparison",
        why,
        TIMING,
        is_relative=True,
        judged_elsewhere=False,
    )
    yield _Draft(
        "fake_ms_per_new_token",
        "The median step takes {:.3f} ms a new token.",
        "SELECT fake_ms_per_new_token FROM run_comparison",
        why,
        TIMING,
        is_relative=True,
        judged_elsewhere=False,
    )

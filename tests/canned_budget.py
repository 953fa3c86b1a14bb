"""A run whose budget left steps out, with times that follow a law, so that all totals are known."""

from __future__ import annotations

from pathlib import Path

from canned import measurement, run_record

from experiment.records import StepRecord
from experiment.store import Store

TAIL, IMAGE, ENCODE_MS = 5, 500, 50.0


def law_ms(new: int, depth: int) -> float:
    return 3.0 + 0.4 * new + 4e-5 * new * (depth + new // 2)


# Depth, text tokens, whether it has a screenshot, stratum, what it was left out for.
Plan = list[tuple[int, int, bool, int | None, str | None]]
PLAN: Plan = [
    (100, 10, False, 0, None),
    (10_000, 10, True, 0, None),
    (100, 1500, False, 0, None),
    (1000, 100, True, 1, None),
    (2000, 200, False, 1, None),
    (3000, 300, True, 1, None),
    (4000, 400, False, 1, None),
    (5000, 500, True, 1, "budget: not drawn, 4 of 6 steps like it fit into the 60.0 s there are"),
    (6000, 600, False, 1, "memory: the chosen steps' states fill server.state_cache_mib (4,096)"),
    (7000, 700, False, None, "--max-depth: deeper than 6,500 tokens"),
]


def make(folder: Path, plan: Plan) -> Path:
    """A run of which the law holds; every second step is of task b, the ninth has no baseline."""
    with Store.create(folder, run_record()) as store:
        store.add_steps(
            StepRecord(
                "ab"[i % 2],
                i,
                depth,
                line=i + 1,
                new_text_tokens=text,
                image_width=960 if seen else None,
                image_height=540 if seen else None,
                baseline_prefill_s=None if i == 8 else 1.0,
                baseline_decode_s=2.0,
                baseline_exec_s=4.0,
                left_out=left_out,
                stratum=stratum,
            )
            for i, (depth, text, seen, stratum, left_out) in enumerate(plan)
        )
        for i, (depth, text, seen, _, left_out) in enumerate(plan):
            if left_out is not None:
                continue
            new = TAIL + text + IMAGE * seen
            encode_ms = ENCODE_MS * seen
            variants = [("fake", 0.0), ("control", 0.0), ("restored", 10.0)]
            for variant, more_ms in variants if depth else [("full", 0.0)]:
                lm_ms = law_ms(new, depth) + more_ms
                store.record(
                    measurement(
                        "ab"[i % 2],
                        i,
                        variant,  # type: ignore[arg-type]
                        0,
                        lm_ms + encode_ms + 1.0,
                        1.0,
                        encode_ms,
                        depth=depth,
                        prompt_n=new,
                        n_kv=depth + new,
                    )
                )
    return folder


def all_ms(steps: list[int], more_ms: float = 0.0, plan: Plan | None = None) -> float:
    """What these steps of the plan take in sum, by the law."""
    total = 0.0
    for depth, text, seen, _, _ in ((plan or PLAN)[i] for i in steps):
        total += law_ms(TAIL + text + IMAGE * seen, depth) + ENCODE_MS * seen + more_ms
    return total

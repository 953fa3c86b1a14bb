from __future__ import annotations

import time
from pathlib import Path

import pytest
from canned_steps import FULL_BASELINE, step, trace

from experiment.paths import ROOT
from experiment.screenshot import Screenshot
from experiment.step_size import Sizes
from experiment.trace import Baseline, load_trace
from experiment.trace_anomalies import Anomaly, Place
from experiment.trace_info import BaselineSum, Distribution, Fall, ImageSize, Share, look_at


def test_distributions_by_hand() -> None:
    steps = [step(number=i, depth=100 * i, new=i + 1) for i in range(10)]
    info = look_at(trace(*steps))
    # Of ten values the 25 % quantile is the third, the median the fifth, 75 % the eighth.
    assert info.depth == Distribution(10, 0, 200, 400, 700, 800, 900, 4500)
    assert info.new == info.told_tokens == Distribution(10, 1, 3, 5, 8, 9, 10, 55)
    assert (info.new_low, info.new_high) == (55, 55)
    assert info.news == tuple(range(1, 11))
    assert info.text_bytes is None
    assert info.steps == 10


def test_cache_hits_as_they_are_told() -> None:
    info = look_at(trace(step(depth=900, new=100), step(number=1, depth=700, new=300)))
    assert info.cache_hit == Share(0.8, 0.8, 0.8)


def test_cache_hits_between_bounds_where_texts_are_not_counted() -> None:
    info = look_at(trace(step(depth=80, new="x" * 80)))  # 10 to 80 tokens, likely 20
    assert info.cache_hit == Share(0.5, 0.8, pytest.approx(80 / 90))
    assert info.text_bytes == Distribution(1, *[80] * 7)
    assert info.told_tokens is None
    assert (info.new_low, info.new.total, info.new_high) == (10, 20, 80)


def test_the_models_own_count() -> None:
    info = look_at(trace(step(depth=95, new=0 + 4)), sizes=Sizes(tail=1))
    assert info.cache_hit.likely == 0.95


def test_falls_of_depth_within_a_task() -> None:
    info = look_at(
        trace(
            step("a", 0, 1000),
            step("b", 0, 500, line=2),
            step("a", 1, 3000, line=3),
            step("a", 4, 2900, line=4),
            step("b", 1, 100, line=5),
            step("a", 5, 2900, line=6),
        )
    )
    assert (info.followers, info.falls) == (4, 2)
    assert info.worst_fall == Fall(Place("b", 1, 5), 500, 100)
    assert info.worst_fall.tokens == 400
    assert [(task.task_id, task.depths, task.falls) for task in info.tasks] == [
        ("a", (1000, 3000, 2900, 2900), 1),
        ("b", (500, 100), 1),
    ]


def test_no_falls() -> None:
    info = look_at(trace(step("a"), step("b", line=2)))
    assert (info.followers, info.falls, info.worst_fall) == (0, 0, None)


def test_images_by_size() -> None:
    file = Screenshot(Path("shot.png"), 960, 540)
    info = look_at(
        trace(
            step(number=0, shot=(960, 540)),
            step(number=1, shot=file),
            step(number=2, shot=(640, 360)),
            step(number=3),
        )
    )
    assert info.images == (ImageSize(640, 360, 1, 0), ImageSize(960, 540, 2, 1))
    assert info.image_steps == 3


def test_baselines() -> None:
    info = look_at(
        trace(
            step(number=0, baseline=FULL_BASELINE),
            step(number=1, baseline=Baseline(prefill_s=0.5)),
            step(number=2),
        )
    )
    assert info.baselines == {
        "prefill_s": BaselineSum(2, 1.5),
        "decode_s": BaselineSum(1, 2.0),
        "exec_s": BaselineSum(1, 4.0),
    }
    assert info.complete_baselines == 1


def test_a_plain_trace_has_nothing_odd() -> None:
    info = look_at(trace(step(), step(number=1, depth=1500)), context=2000)
    assert info.anomalies == ()


def test_the_default_trace_has_nothing_odd() -> None:
    info = look_at(load_trace(ROOT / "data" / "traces" / "computer-use.jsonl"), context=262144)
    assert info.anomalies == ()
    assert (info.steps, len(info.tasks), info.falls) == (23, 3, 2)


def anomalies(*steps: object, **more: object) -> list[tuple[str, int, list[int], int]]:
    found = look_at(trace(*steps), **more).anomalies  # type: ignore[arg-type]
    return [(a.kind, a.steps, [place.line for place in a.first], a.limit) for a in found]


def test_no_depth_and_a_shallow_one() -> None:
    steps = [step(str(i), 0, depth, line=i + 1) for i, depth in enumerate((0, 1, 63, 64, 0, 0, 0))]
    assert anomalies(*steps) == [("no_depth", 4, [1, 5, 6], 0), ("shallow", 2, [2, 3], 64)]


def test_as_deep_as_the_step_before() -> None:
    steps = [step(number=i, depth=d) for i, d in enumerate((1000, 1000, 1100, 1100))]
    assert anomalies(*steps) == [("stuck", 2, [2, 4], 0)]
    other = [step("a", 0, 1000), step("b", 0, 1000, line=2)]
    assert anomalies(*other) == []


def test_deeper_than_what_came_before_accounts_for() -> None:
    # 1,000 deep and 100 new: up to 1,100 and the margin.
    steps = [step(number=0, depth=1000, new=100), step(number=1, depth=1150)]
    assert anomalies(*steps, jump_margin=50) == []
    assert anomalies(*steps, jump_margin=49) == [("jump", 1, [2], 49)]
    assert anomalies(step(depth=100), step(number=1, depth=4297)) == [("jump", 1, [2], 4096)]
    # A text has as many tokens as bytes at most.
    text = [step(number=0, depth=1000, new="x" * 100), step(number=1, depth=1150)]
    assert anomalies(*text, jump_margin=50) == []


def test_content_that_recurs() -> None:
    shot = Screenshot(Path("shot.png"), 64, 64)
    other = Screenshot(Path("other.png"), 64, 64)
    steps = [
        step(number=0, new="Go on."),
        step(number=1, depth=1100, new="Go on.", shot=shot),
        step(number=2, depth=1200, new=7, shot=shot),
        step(number=3, depth=1300, new="Go on."),
        step(number=4, depth=1400, new=9, shot=shot),
        step(number=5, depth=1500, new=9, shot=other),
        # What is made up is made up anew for each step.
        step(number=6, depth=1600, new=7),
        step(number=7, depth=1700, new=7, shot=(64, 64)),
        step(number=8, depth=1800, new=7, shot=(64, 64)),
    ]
    assert anomalies(*steps) == [("repeated", 2, [4, 5], 0)]


def test_beyond_a_context() -> None:
    steps = [
        step(number=0, depth=899, new=100),  # and a cell for the token that is generated
        step(number=1, depth=900, new=100),
        step(number=2, depth=950, new="x" * 80),  # 10 to 80 tokens
        step(number=3, depth=991, new="y" * 80),
    ]
    assert anomalies(*steps, context=1000) == [
        ("beyond_context", 2, [2, 4], 1000),
        ("maybe_beyond_context", 1, [3], 1000),
    ]
    assert anomalies(*steps) == []


def test_positions() -> None:
    assert look_at(trace(step(unit="positions"))).anomalies == (
        Anomaly("positions", 1, (Place("a", 0, 1),)),
    )


def test_a_hundred_thousand_steps() -> None:
    steps = [step(f"t{i // 100}", i, 100 + i % 7000, 1 + i % 900) for i in range(100_000)]
    began_s = time.perf_counter()
    info = look_at(trace(*steps), context=4096)
    assert info.steps == 100_000
    assert time.perf_counter() - began_s < 10  # 0.7 s on a machine that does nothing else

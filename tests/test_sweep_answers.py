from __future__ import annotations

from dataclasses import replace

from canned_sweep import ALONE, EQUAL, MODEL, SLOWER, SWEEP, figure

from experiment.sweep_answers import answers
from experiment.sweep_estimate import LeftOut


def test_all_sentences() -> None:
    assert answers(SWEEP) == (
        "In 1 of 2 cells the 95 % interval of fake/restored contains 1 (by chance alone 0.1 would "
        "miss it); in 1 the half-width is above the 0.5 % that was wished for.",
        "At L = 256, new = 2,048 fake differs from restored by +3.00 % (1.0100 to 1.0500, 6 "
        "pairs); both had the same ubatches, KV columns, graph nodes and K/V bytes; fake touched "
        "90 experts, restored 100 (-10.0 %).",
        "Noise floor: control/fake is 1.0005 (0.9985 to 1.0025, 1,200 pairs of all cells), so up "
        "to 0.25 % is no difference.",
        "No cost model of restored: 2 cells are too few.",
        "A prefill costs 3.000 ms + 0.5000 ms a token + 0.04000 ms a token and 1,000 cells of "
        "depth: R2 = 0.99900, largest residual -2.0 % at L = 256, new = 2,048.",
        "fake takes 1.040 to 1.100 times as long as llama-bench at the same cell, in the median "
        "of 2 cells 1.070.",
        "Batching: in 2 of 2 cells the server split the new tokens as llama-bench does, so "
        "batching is no reason.",
        # (11 - 1) / 10 and (1,040 - 2) / 1,000.
        "Sampling, which llama-bench does without: 1.00 to 2.00 ms of a request of fake; without "
        "it fake takes 1.000 to 1.038 times as long, in the median 1.019.",
        "By term, fake against llama-bench: a request 3.000 and 0.250 ms, a token 0.5000 and "
        "0.5000 ms, a token and 1,000 cells of depth 0.04000 and 0.04000 ms.",
        "Another process: llama-bench with 512 tokens at L = 256 takes +3.4 % in the sweep "
        "against another process in the probe.",
        "Another time: fake itself changed by -1.5 % from the first third of the rounds to the "
        "last, and llama-bench ran after them.",
        # 5.5 / 11 and 1,092 / 1,040; llama-bench 10 ms against 5.5 ms.
        "The arithmetic estimate new / prefill_tps(L) departs from fake by -50.0 to +5.0 %, in "
        "the median cell by -22.5 %; most at L = 256, new = 16, where llama-bench itself needs "
        "1.82 times as long a token for 16 tokens as for 512, and fake 1.10 times as long as "
        "llama-bench.",
    )


def test_a_median_within_the_noise_is_no_difference() -> None:
    noisy = replace(SWEEP, noise=figure(1.0, 0.031))
    assert answers(noisy)[0].startswith(
        "In 1 of 2 cells the 95 % interval of fake/restored contains 1 (by chance alone 0.1 would "
        "miss it); in 1 more the median lies within the noise"
    )
    assert answers(noisy)[1] == "No cell shows a difference between fake and restored."


def test_the_largest_bias_comes_first_and_its_structure_is_told() -> None:
    larger = replace(SLOWER, ratio=figure(0.95, 0.01), is_same_structure=False, fake_experts=None)
    told = answers(replace(SWEEP, cells=(EQUAL, SLOWER, larger)))
    assert told[1].endswith(
        "by -5.00 % (0.9400 to 0.9600, 6 pairs); their structure is not the same."
    )
    assert "+3.00 %" in told[2]


def test_a_variant_of_the_model_is_told_where_it_is_clearly_better() -> None:
    better = replace(MODEL, r2_mean_depth=0.9996)
    told = answers(replace(SWEEP, models=SWEEP.models | {"fake": better}))  # type: ignore[operator]
    assert any(line.endswith("with L + new / 2 in place of L, R2 = 0.99960.") for line in told)


def test_batching_that_differs_is_told() -> None:
    told = answers(replace(SWEEP, cells=(EQUAL, replace(SLOWER, is_batched_alike=False))))
    assert any("in 1 of 2 cells" in line and line.endswith("batching differs.") for line in told)


def test_without_data_there_are_no_sentences_but_one() -> None:
    bare = replace(
        SWEEP,
        cells=(ALONE,),
        models=dict.fromkeys(("fake", "restored", "bench"), "too few"),
        noise=None,
        drift_pct=None,
        bench_again=(),
        left_out=(LeftOut(None, 2048, "it is too dear"),),
        run=replace(SWEEP.run, status="interrupted"),
    )
    assert answers(bare) == (
        "The run is interrupted: these are the cells it had measured until then.",
        "No cell has two pairs of fake and restored: nothing can be said about fidelity.",
        *(f"No cost model of {name}: too few." for name in ("fake", "restored", "bench")),
        "Left out: new = 2,048: it is too dear.",
    )

"""Runs side by side, worked out by hand: what they share, paired differences, verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from canned import STEPS, canned_run, measurement, run_record
from canned_runs import other_run, slower

from experiment.compare_runs import MODEL_BOUND, load
from experiment.compare_runs_rows import LeftOut, Row, RunsComparison, Value, Verdict
from experiment.errors import StoreError
from experiment.records import StepRecord
from experiment.store import Store


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> RunsComparison:
    results = tmp_path_factory.mktemp("results")
    return load([canned_run(results / "a"), other_run(results / "b", slower, run_id="r2")])


def figure(compared: RunsComparison, key: str) -> Row:
    (row,) = [row for row in compared.figures if row.key == key]
    return row


def verdict(compared: RunsComparison, key: str, label: str = "B") -> Verdict:
    (found,) = [v for v in compared.verdicts if (v.claim.key, v.label) == (key, label)]
    return found


def about(value: Value | None) -> tuple[object, ...]:
    assert value is not None
    return tuple(
        None if x is None else pytest.approx(x, rel=1e-12)
        for x in (value.value, value.low, value.high, value.n)
    )


# fake: A 100, 110, 120 and 200, 240; B 200, 220, 240 and 300, 360. New tokens 100 and 200.
# full: A 1100 and 880; B 2200 and 1760. arithmetic, without the encoding of 20 in step a 1:
# A 99 and 198; B 2 * 119 - 20 = 218 and 396. fake without it: A 80, 90, 100 and 200, 240;
# B 180, 200, 220 and 300, 360.
@pytest.mark.parametrize(
    ("key", "a", "b", "against"),
    [
        ("fake_prefill_ms", (330, 300, 360, 2), (550, 500, 600, 2), (1.75, 1.5, 2.0, 2)),
        (
            "fake_ms_per_new_token",
            *((1.1, 1.1, 1.1, 2), (1.925, 1.65, 2.2, 2), (1.75, 1.5, 2.0, 2)),
        ),
        (
            "speedup",
            *((6.0, None, None, 2), (7.2, None, None, 2), (7 / 6, 1.0, 4 / 3, 2)),
        ),
        ("fidelity", (1.0, 0.8, 1.1, 5), (1.0, 0.8, 1.1, 5), (1.0, 1.0, 1.0, 2)),
        (
            "arithmetic_error_pct",
            (100 * (297 / 310 - 1), 100 * (297 / 340 - 1), 100 * (297 / 280 - 1), 2),
            (100 * (614 / 530 - 1), 100 * (614 / 580 - 1), 100 * (614 / 480 - 1), 2),
            (14.5, -1.0, 30.0, 2),  # 10 to 9, and -10 to 20
        ),
        ("fake_install_ms", (12, 12, 12, 2), (36, 36, 36, 2), (3.0, 3.0, 3.0, 2)),
        ("restored_install_ms", (11, 11, 11, 2), (11, 11, 11, 2), (1.0, 1.0, 1.0, 2)),
    ],
)
def test_a_figure_by_hand(
    compared: RunsComparison,
    key: str,
    a: tuple[float, float | None, float | None, int],
    b: tuple[float, float | None, float | None, int],
    against: tuple[float, float, float, int],
) -> None:
    row = figure(compared, key)
    assert [about(run) for run in row.runs] == [a, b]
    assert row.against_base[0] is None
    assert about(row.against_base[1]) == against
    assert row.steps == 2
    assert row.in_points is (key == "arithmetic_error_pct")


def test_what_is_shared_and_what_is_left_out(compared: RunsComparison) -> None:
    assert [run.label for run in compared.runs] == ["A", "B"]
    assert [run.run.id for run in compared.runs] == ["r1", "r2"]
    assert compared.left_out == (LeftOut("b", 1, "fake is not measured in A and B"),)
    assert [(s.task_id, s.step, s.label, s.figures["fake_prefill_ms"]) for s in compared.steps] == [
        *(("a", 1, "A", 110.0), ("a", 1, "B", 220.0)),
        *(("a", 2, "A", 220.0), ("a", 2, "B", 330.0)),
    ]
    assert [step.against_base["fake_prefill_ms"] for step in compared.steps] == [
        *(None, 2.0, None, 1.5)
    ]
    assert compared.differences == {}
    assert compared.notes == ()


# Each is the figure of A over the steps in common, that of B, and what of it is too much.
@pytest.mark.parametrize(
    ("key", "expected", "value", "outside_by"),
    [
        ("speedup", 6.0, 7.2, 0.0),  # 30 % are 1.8
        ("fidelity", 1.0, 1.0, 0.0),
        ("noise", 1.0, 1.0, 0.0),
        ("arithmetic_error_pct", 100 * (297 / 310 - 1), 100 * (614 / 530 - 1), 0.0),
        ("install_share_pct", 100 * 12 / 330, 100 * 36 / 550, 0.0),
        ("restore_ratio", 11 / 12, 11 / 36, 11 / 12 - 11 / 36 - 0.5 * 11 / 12),
        ("steps_measured", 2, 2, 0.0),
        ("steps_refused", 1, 1, 0.0),
    ],
)
def test_a_verdict_by_hand(
    compared: RunsComparison, key: str, expected: float, value: float, outside_by: float
) -> None:
    found = verdict(compared, key)
    assert found.claim.expected == pytest.approx(expected, rel=1e-12)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.outside_by == pytest.approx(outside_by, abs=1e-12)
    assert found.within is (outside_by == 0)
    assert found.reason == ""


def test_times_are_never_judged(compared: RunsComparison) -> None:
    keys = {found.claim.key for found in compared.verdicts}
    assert len(keys) == 13
    assert not keys & {"fake_prefill_s", "fake_ms_per_new_token"}


def test_steps_are_the_same_only_at_the_same_depth(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    steps = (*STEPS[:1], replace(STEPS[1], depth=3001), StepRecord("c", 5, 700))
    b = other_run(tmp_path / "b", steps=steps)
    c = other_run(tmp_path / "c", steps=STEPS[:2])
    found = load([a, b, c])
    assert found.left_out == (
        LeftOut("a", 2, "the depth differs: 3,000 in A, 3,001 in B"),
        LeftOut("b", 1, "not in the trace of B and C"),
        LeftOut("c", 5, "not in the trace of A and C"),
    )
    assert {(step.task_id, step.step) for step in found.steps} == {("a", 1)}
    assert [step.label for step in found.steps] == ["A", "B", "C"]
    row = figure(found, "fake_prefill_ms")
    assert row.runs == (Value(110.0, 100.0, 120.0, 1),) * 3
    # One step has no interval.
    assert row.against_base == (None, *[Value(1.0, None, None, 1)] * 2)
    # The claims of A are restated for that step: 1100 / 110.
    assert verdict(found, "speedup", "C").claim.expected == 10.0
    assert verdict(found, "steps_measured", "C").claim.expected == 1


def test_a_step_that_one_run_did_not_measure(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    b = other_run(
        tmp_path / "b",
        lambda row: (
            replace(row, status="refused", error="too deep")
            if (row.step, row.variant) == (2, "fake")
            else row
        ),
    )
    found = load([a, b])
    assert found.left_out[0] == LeftOut("a", 2, "fake is not measured in B")
    # That is judged over the steps that both traces hold; ratios over those that both measured.
    counted = verdict(found, "steps_measured")
    assert (counted.claim.expected, counted.value, counted.within) == (2, 1, False)
    assert counted.outside_by == 1
    refused = verdict(found, "steps_refused")
    assert (refused.claim.expected, refused.value) == (1, 2)
    speedup = verdict(found, "speedup")
    assert (speedup.claim.expected, speedup.value, speedup.within) == (10.0, 10.0, True)


def test_a_figure_is_taken_over_the_steps_that_have_it_in_all_runs(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    b = other_run(
        tmp_path / "b",
        lambda row: (
            replace(row, status="failed", error="lost")
            if (row.step, row.variant) == (1, "full")
            else row
        ),
    )
    found = load([a, b])
    assert figure(found, "fake_prefill_ms").steps == 2
    row = figure(found, "speedup")
    assert row.steps == 1
    assert row.runs == (Value(4.0, None, None, 1),) * 2


def test_what_only_one_run_measured_is_not_comparable(tmp_path: Path) -> None:
    def fake_only(variant: str) -> bool:
        return variant in ("fake", "control")

    a = canned_run(tmp_path / "a")
    b = other_run(
        tmp_path / "b",
        lambda row: (
            row if fake_only(row.variant) else replace(row, status="failed", error="not asked for")
        ),
    )
    found = load([a, b])
    row = figure(found, "fidelity")
    assert (row.steps, row.runs, row.against_base) == (0, (None, None), (None, None))
    for key in ("speedup", "fidelity", "arithmetic_error_pct", "restore_ratio"):
        one = verdict(found, key)
        assert (one.within, one.outside_by, one.value) == (None, None, None)
        assert one.reason == "B has no such figure over the steps in common"
    assert verdict(found, "noise").within is True
    # The other way round these are no claims at all.
    back = load([b, a])
    assert {v.claim.key for v in back.verdicts} & {"speedup", "fidelity"} == set()


def test_a_claim_that_the_base_has_only_elsewhere(tmp_path: Path) -> None:
    # A measures full in step a 2 alone, which is not in B's trace.
    a = other_run(
        tmp_path / "a",
        lambda row: (
            replace(row, status="failed", error="lost")
            if (row.step, row.variant) == (1, "full")
            else row
        ),
    )
    b = other_run(tmp_path / "b", steps=STEPS[:1])
    one = verdict(load([a, b]), "speedup")
    assert (one.within, one.value) == (None, 10.0)
    assert one.reason == "A has no such figure over the steps in common"


def test_another_model_is_not_judged_by_what_a_model_costs(tmp_path: Path) -> None:
    a = other_run(tmp_path / "a", model_digest="1" * 64)
    b = other_run(tmp_path / "b", model_digest="2" * 64, model="holo3-mini")
    c = other_run(tmp_path / "c", model_digest="1" * 64, model="the same file elsewhere")
    found = load([a, b, c])
    apart = {v.claim.key for v in found.verdicts if v.label == "B" and v.within is None}
    assert apart == MODEL_BOUND
    assert {v.reason for v in found.verdicts if v.within is None} == {"another model"}
    assert all(v.within for v in found.verdicts if v.label == "C")
    assert found.differences == {
        "model": ("nano", "holo3-mini", "the same file elsewhere"),
        "model_digest": ("1" * 64, "2" * 64, "1" * 64),
    }


def test_what_differs(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    b = other_run(
        tmp_path / "b",
        pin="guide",
        patch_digest="abc",
        settings={"seed": 2, "cache_dir": "elsewhere", "server": {"ubatch": 256, "mmproj": None}},
    )
    with Store.open(b) as store:
        store.set_graph({"n_threads": "4"})
    assert load([a, b]).differences == {
        "pin": ("sdist", "guide"),
        "patch_digest": ("", "abc"),
        "settings.seed": ("1", "2"),
        "graph.n_threads": ("", "4"),
        "settings.server.ubatch": ("", "256"),
    }


def test_an_unfinished_run_and_another_tokenizer_are_told(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a", status="interrupted")
    b = other_run(
        tmp_path / "b",
        lambda row: replace(row, prompt_n=101) if (row.step, row.prompt_n) == (1, 100) else row,
    )
    assert load([a, b]).notes == (
        "A: The run is interrupted.",
        "B decodes another number of new tokens than A in 1 of 2 steps in common (a step 1).",
    )


def test_runs_without_a_step_in_common(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    with Store.create(tmp_path / "b", run_record()) as store:
        store.add_steps([StepRecord("z", 1, 1000)])
        store.record(measurement("z", 1))
    with pytest.raises(StoreError) as caught:
        load([a, tmp_path / "b"])
    assert str(caught.value) == (
        f"{a}, {tmp_path}/b: the runs have no measured step in common\n"
        "  hint: runs are compared over the steps with the same task_id, step and depth; "
        "a step 1: not in the trace of B"
    )


def test_a_run_named_twice(tmp_path: Path) -> None:
    a = canned_run(tmp_path / "a")
    (tmp_path / "link").symlink_to(a)
    with pytest.raises(StoreError, match="this run is named twice") as caught:
        load([a, tmp_path / "link"])
    assert caught.value.where == str(tmp_path / "link")


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_runs(tmp_path: Path, number: int) -> None:
    with pytest.raises(StoreError, match="not compared with others"):
        load([canned_run(tmp_path / "a")][:number])


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no results\.duckdb here"):
        load([canned_run(tmp_path / "a"), tmp_path])

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment.database import connect
from experiment.errors import StoreError
from experiment.intervals import Interval
from experiment.records import StepRecord, Variant
from experiment.store import Store
from experiment.structure import StructureComparison, StructureRow, answer, load, render
from experiment.tables import FORMATS


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pairs are enough here, so that the values can be worked out by hand."""
    monkeypatch.setattr("experiment.structure.MIN_PAIRS", 3)


@pytest.fixture(scope="module")
def structure(tmp_path_factory: pytest.TempPathFactory) -> StructureComparison:
    canned = load(canned_run(tmp_path_factory.mktemp("results") / "run"))
    return replace(canned, folder=Path("results/run"))


def test_a_step_by_hand(structure: StructureComparison) -> None:
    # Experts 5 + 7 with the fill of the measurements (tile, not zero), against 6 + 9.
    assert structure.rows[0] == StructureRow(
        task_id="a",
        step=1,
        depth=1000,
        new_tokens=100,
        fake_fill="tile",
        fake_n=3,
        fake_agrees=True,
        fake_ubatches=1,
        fake_n_kv=1280,
        fake_graph_nodes=700,
        fake_kv_bytes=5_000_000,
        restored_n=3,
        restored_agrees=True,
        restored_ubatches=1,
        restored_n_kv=1280,
        restored_graph_nodes=700,
        restored_kv_bytes=5_000_000,
        same_ubatches=True,
        same_n_kv=True,
        same_graph_nodes=True,
        same_kv_bytes=True,
        fake_experts=12,
        restored_experts=15,
        expert_difference_pct=pytest.approx(-20.0),
        pair_n=3,
        ratio_median=1.0,
        ratio_low=0.96,
        ratio_high=1.1,
        aa_n=3,
        aa_median=1.0,
        aa_low=0.95,
        aa_high=1.02,
        flag="",
    )


def test_a_step_whose_last_ubatch_read_more(structure: StructureComparison) -> None:
    row = structure.rows[1]
    assert (row.fake_ubatches, row.fake_graph_nodes, row.same_ubatches) == (2, 1350, True)
    assert (row.fake_n_kv, row.restored_n_kv, row.same_n_kv) == (3328, 3584, False)
    assert (row.same_graph_nodes, row.same_kv_bytes) == (True, False)
    assert (row.fake_experts, row.restored_experts, row.expert_difference_pct) == (8, None, None)
    assert row.flag == "structure differs: n_kv, K/V bytes"


def test_a_step_that_was_not_measured(structure: StructureComparison) -> None:
    row = structure.rows[2]
    assert (row.task_id, row.fake_n, row.restored_n) == ("b", 0, 0)
    assert (row.same_n_kv, row.fake_agrees, row.ratio_median, row.flag) == (None, None, None, "")


def test_the_whole_run(structure: StructureComparison) -> None:
    assert structure.ratio == Interval(low=0.8, high=1.1, median=1.0, n=5)
    assert structure.aa == Interval(low=0.95, high=1.05, median=1.0, n=5)


def test_the_view_of_single_variants(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with connect(tmp_path / "results.duckdb", read_only=True) as connection:
        rows = connection.execute(
            "SELECT step, variant, n, distinct_ubatch_tokens, distinct_ubatch_n_kv, "
            "distinct_graph_nodes, distinct_kv_bytes, ubatch_tokens, ubatch_n_kv, graph_nodes, "
            "kv_bytes, agrees FROM structure WHERE step = 2 ORDER BY variant"
        ).fetchall()
    alike = ([128, 72], [3072, 3328], [700, 650], 26_000_000, True)
    assert rows == [
        (2, "control", 2, 1, 1, 1, 1, *alike),
        (2, "fake", 2, 1, 1, 1, 1, *alike),
        # Nothing told: neither agreement nor the lack of it.
        (2, "full", 1, 0, 0, 0, 0, None, None, None, None, None),
        (2, "restored", 3, 1, 1, 1, 1, [128, 72], [3072, 3584], [700, 650], 27_000_000, True),
    ]


def made(
    folder: Path,
    times: dict[Variant, list[float]],
    changes: dict[tuple[str, int], dict[str, object]] | None = None,
) -> StructureComparison:
    """One step with these prefill times; all of one structure but for ``changes`` to a request."""
    told: dict[str, object] = {
        "ubatch_tokens": (9,),
        "ubatch_n_kv": (256,),
        "graph_nodes": (5,),
        "kv_bytes": 10,
    }
    with Store.create(folder, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        for variant, values in times.items():
            for number, time_ms in enumerate(values):
                more = told | (changes or {}).get((variant, number), {})
                store.record(measurement("a", 1, variant, number, time_ms + 1, **more))
    return load(folder)


SLOW: dict[Variant, list[float]] = {"fake": [103.0, 102.0, 103.0], "restored": [100.0] * 3}


def test_a_few_pairs_are_not_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    more: dict[Variant, list[float]] = {"fake": [103.0, 102.0] * 3, "restored": [100.0] * 6}
    assert made(tmp_path / "three", SLOW).rows[0].flag == ""
    assert made(tmp_path / "six", more).rows[0].flag == "same structure, time differs"


def test_equal_structure_with_unequal_time_is_flagged(tmp_path: Path) -> None:
    unknown = made(tmp_path / "unknown", SLOW)
    assert unknown.rows[0].flag == "same structure, time differs"
    # A/A from 102/103 to 104/103: 1.03 is beyond. From 104/103 to 107/102: it is within the noise.
    quiet = made(tmp_path / "quiet", SLOW | {"control": [104.0, 102.0, 102.0]})
    assert quiet.rows[0].flag == "same structure, time differs"
    noisy = made(tmp_path / "noisy", SLOW | {"control": [104.0, 107.0, 103.0]})
    assert noisy.rows[0].flag == ""


def test_the_noise_of_a_step_is_its_own_or_that_of_the_run_whichever_is_more(
    tmp_path: Path,
) -> None:
    told: dict[str, object] = {
        "ubatch_tokens": (9,),
        "ubatch_n_kv": (256,),
        "graph_nodes": (5,),
        "kv_bytes": 10,
    }

    def flags(folder: Path, controls: dict[int, list[float]]) -> list[str]:
        with Store.create(folder, run_record()) as store:
            store.add_steps([StepRecord("a", step, 10) for step in controls])
            for step, values in controls.items():
                for number, control in enumerate(values):
                    times: dict[Variant, float] = {"fake": 103, "restored": 100, "control": control}
                    for variant, time_ms in times.items():
                        row = measurement("a", step, variant, number, 1.0 + time_ms, **told)
                        store.record(row)
        return [row.flag for row in load(folder).rows]

    quiet, noisy = [103.0] * 3, [103.0, 103.0, 110.0]
    slow = "same structure, time differs"
    # Of six A/A ratios the interval is all of them: the noise of one step is that of the run.
    assert flags(tmp_path / "run", {1: quiet, 2: noisy}) == ["", ""]
    # Of eighteen it is not: ranks 5 and 14.
    many = {1: quiet, 2: noisy, **dict.fromkeys(range(3, 7), quiet)}
    assert flags(tmp_path / "step", many) == [slow, "", slow, slow, slow, slow]


def test_unequal_structure_is_flagged_whatever_the_time(tmp_path: Path) -> None:
    changes: dict[tuple[str, int], dict[str, object]] = {
        ("fake", number): {"ubatch_tokens": (5, 4), "graph_nodes": (6,)} for number in range(3)
    }
    found = made(tmp_path, SLOW, changes)
    assert found.rows[0].flag == "structure differs: ubatches, graph nodes"


def test_rounds_that_disagree_are_flagged(tmp_path: Path) -> None:
    found = made(tmp_path, SLOW, {("restored", 2): {"kv_bytes": 11}})
    assert found.rows[0].same_kv_bytes is True  # of the first rounds
    assert found.rows[0].restored_agrees is False
    assert found.rows[0].flag == "structure differs: rounds of restored"


def test_a_server_that_tells_nothing_is_not_flagged(tmp_path: Path) -> None:
    nothing: dict[str, object] = dict.fromkeys(
        ("ubatch_tokens", "ubatch_n_kv", "graph_nodes", "kv_bytes")
    )
    changes = {("restored", number): nothing for number in range(3)}
    found = made(tmp_path, SLOW, changes)
    assert found.rows[0].flag == ""
    assert answer(found) == (
        "In no step do both fake and restored tell what their graphs did.",
        "Over the run fake takes 1.0300 times as long as restored: median of 3 pairs, 95 % "
        "bootstrap interval 1.0200 to 1.0300, fewer than the 6 pairs that a conclusion needs; the "
        "noise floor is not known (A/A, fake against itself, is not measured).",
        "Experts are not counted: the model has none, or schedule.structure_steps is 0.",
    )


def test_the_sentences_by_hand(structure: StructureComparison) -> None:
    assert answer(structure) == (
        "In 1 of 2 steps fake and restored do the same: ubatches, KV columns, graph nodes and K/V "
        "bytes read are equal; the structure differs in 1 step (a step 2: n_kv, K/V bytes).",
        "Among those with pairs, 1 step, the time differs by more than noise in none. Over the run "
        "fake takes 1.0000 times as long as restored: median of 5 pairs, 95 % bootstrap interval "
        "0.8000 to 1.1000, fewer than the 6 pairs that a conclusion needs; the noise floor is "
        "0.0500 (A/A, fake against itself: 1.0000, 0.9500 to 1.0500, 5 pairs).",
        "Experts touched, in sum over 1 step: 12 by fake (fill tile), 15 by restored, -20.00 %.",
    )


def test_the_sentence_about_time_and_experts_of_several_steps(
    structure: StructureComparison,
) -> None:
    first = replace(structure.rows[0], flag="same structure, time differs")
    second = replace(first, step=7, fake_experts=30, restored_experts=30, expert_difference_pct=0.0)
    _, time, experts = answer(replace(structure, rows=(first, second), ratio=None))
    assert time == (
        "Among those with pairs, 2 steps, the time differs by more than noise in 2 (a step 1, a "
        "step 7)."
    )
    # 42 / 45; the median of -20 and 0.
    assert experts == (
        "Experts touched, in sum over 2 steps: 42 by fake (fill tile), 45 by restored, -6.67 %; "
        "the median step -10.0 ±10.0 %, the steps from -20.0 % to +0.0 %."
    )


TABLE = """\
                                          graph     K/V MB experts  experts experts
task step     L new ubatches         n_kv nodes       read    fake restored       % n  fake/restored flag
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
a       1 1,000 100        1 1,280          700  5.0            12       15   -20.0 3 1.0000 ±0.1000
a       2 3,000 200        2 3,328 /3,584 1,350 26.0 /27.0       8        -       - 2 0.9000 ±0.1000 structure differs: n_kv, K/V bytes
b       1   500   -        -     -            -    -             -        -       - -      -
"""  # noqa: E501


def test_the_table_on_a_terminal(structure: StructureComparison) -> None:
    lines = render(structure, "table").splitlines()
    assert lines[0] == "r1: nano, pin sdist, engine native; structure"
    assert lines[1:7] == TABLE.splitlines()
    told = " ".join(" ".join(lines).split())
    for sentence in answer(structure):
        assert sentence in told
    assert lines[-1] == "Results: results/run"


def test_other_forms(structure: StructureComparison) -> None:
    read = list(csv.DictReader(io.StringIO(render(structure, "csv"))))
    assert list(read[0]) == [field.name for field in fields(StructureRow)]
    assert read[1]["flag"] == "structure differs: n_kv, K/V bytes"
    value = json.loads(render(structure, "json"))
    assert (value["folder"], value["aa"]["high"]) == ("results/run", 1.05)
    assert value["rows"][1]["same_n_kv"] is False
    assert "| 3,328 /3,584 |" in render(structure, "md")
    for form in FORMATS:
        text = render(structure, form)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no results\.duckdb here"):
        load(tmp_path)
    with Store.create(tmp_path, run_record()):
        pass
    with pytest.raises(StoreError, match="holds no steps"):
        load(tmp_path)

"""What a comparison says of a run whose budget left steps out: rows, sentences, formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from canned import canned_run, run_record
from canned_budget import PLAN, all_ms, make

from experiment.compare import find_run, load
from experiment.errors import StoreError
from experiment.notes import MAX_NOTED
from experiment.records import StepRecord
from experiment.rows import Comparison
from experiment.sentences import answer
from experiment.store import Store
from experiment.tables import render

ALL_S = all_ms(list(range(9))) / 1000


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(make(tmp_path_factory.mktemp("runs") / "r", PLAN))


def test_steps_say_why_they_are_left_out_and_what_they_would_take(comparison: Comparison) -> None:
    assert [step.left_out for step in comparison.steps] == [reason for *_, reason in PLAN]
    estimates = [step.fake_extrapolated_ms for step in comparison.steps]
    assert estimates[:7] == [None] * 7
    assert estimates[7:9] == [pytest.approx(all_ms([7])), pytest.approx(all_ms([8]))]
    # What was left out by hand is not what a budget samples.
    assert estimates[9] is None


def test_sums_are_over_what_is_replayed(comparison: Comparison) -> None:
    overall = comparison.overall
    assert (overall.steps, overall.left_out_steps, overall.cold_steps) == (7, 3, 0)
    assert overall.fake_prefill_ms == pytest.approx(all_ms(list(range(7))))
    # The walls too: the extrapolated ones stand beside them.
    assert {task.task_id: task.steps_counted for task in comparison.tasks} == {"a": 4, "b": 3}
    assert {task.steps for task in comparison.tasks} == {5}
    assert [bucket.steps for bucket in comparison.depths] == [3, 1, 1, 1, 1]


def test_the_sentences_tell_what_is_extrapolated(comparison: Comparison) -> None:
    told = [text for text in answer(comparison) if "xtrapolated" in text or "same for" in text]
    assert told[0] == (
        f"Extrapolated to 9 of 10 steps of the trace, prefill in sum: fake {ALL_S:.1f} s "
        f"({ALL_S:.1f} to {ALL_S:.1f}), 7 of them measured; restored {ALL_S + 0.09:.1f} s "
        f"({ALL_S + 0.09:.1f} to {ALL_S + 0.09:.1f}), 7 of them measured."
    )
    wall_s = all_ms(list(range(8))) / 1000 + 8 * 6
    assert told[1].startswith(
        "The same for the walls of all tasks (measured prefill, decode and exec of the baseline), "
        f"over 8 steps with a complete baseline of 56.0 s: fake {wall_s:.1f} s ({wall_s:.1f} to "
    )


def test_what_cannot_be_said_is_told(comparison: Comparison, tmp_path: Path) -> None:
    assert "full: nothing is extrapolated, since it was not measured." in comparison.notes
    few = load(make(tmp_path / "few", [*PLAN[:3], *PLAN[7:]]))
    told = answer(few)
    assert any("fake " in text and "s (no interval), 3 of them" in text for text in told)
    assert "fake and restored have no interval there: 3 measured steps are too few for an " in (
        " ".join(told)
    )
    none = load(make(tmp_path / "none", [*PLAN[:2], *PLAN[7:]]))
    assert none.extrapolation is not None
    assert none.extrapolation.rows == ()
    assert not [text for text in answer(none) if text.startswith("Extrapolated")]
    assert any(
        note.startswith("fake: nothing is extrapolated, since these 2 cells do not determine")
        for note in none.notes
    )


def test_a_run_without_a_budget_is_not_extrapolated(tmp_path: Path) -> None:
    assert load(canned_run(tmp_path)).extrapolation is None


def test_tables_show_what_is_replayed_and_files_all(comparison: Comparison) -> None:
    for form in ("table", "md"):
        text = render(comparison, form)  # type: ignore[arg-type]
        assert "10,000" in text
        assert "5,000" not in text
        assert "Extrapolated to 9 of 10 steps" in " ".join(text.split())
    rows = list(csv.DictReader(io.StringIO(render(comparison, "csv"))))
    assert len(rows) == 10
    assert rows[7]["left_out"] == PLAN[7][4]
    assert float(rows[7]["fake_extrapolated_ms"]) == pytest.approx(all_ms([7]))
    told = json.loads(render(comparison, "json"))
    assert told["extrapolation"]["covered"] == 9
    (of_all,) = (
        row
        for row in told["extrapolation"]["rows"]
        if (row["task_id"], row["variant"]) == (None, "fake")
    )
    assert of_all["prefill"]["ms"] == pytest.approx(1000 * ALL_S)
    assert of_all["opt_wall_s_low"] == pytest.approx(of_all["opt_wall_s"])


def test_many_sentences_of_an_import_are_cut(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 10)])
        for number in range(MAX_NOTED + 3):
            store.add_event("assumed", f"Assumed by the import: number {number}.")
        store.add_event("left_out", "1 of 2 steps are left out.")
        store.set_status("finished")
    notes = load(tmp_path).notes
    assert notes[:2] == ("Assumed by the import: number 0.", "Assumed by the import: number 1.")
    assert notes[MAX_NOTED] == "3 more events of the kind assumed are in the database."
    assert notes[MAX_NOTED + 1] == "1 of 2 steps are left out."


def test_a_probe_is_never_the_newest_run(tmp_path: Path) -> None:
    names = [
        "2026-11-30_02-41-05_host_mine",
        "2026-11-30_02-41-06_host_trace-probe",
        "2026-11-30_02-41-07_host_sweep-probe",
    ]
    for name in names:
        canned_run(tmp_path / name)
    assert find_run(tmp_path).name == names[0]
    assert find_run(tmp_path, names[1]).name == names[1]
    (tmp_path / names[0]).rename(tmp_path / "kept")
    with pytest.raises(StoreError, match="there is no run yet"):
        find_run(tmp_path)

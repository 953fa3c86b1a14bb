from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from canned import canned_run, measurement, run_record
from canned_report import A_MS, B_MS, C_MS, EVIL, whole_run

from experiment import report_data, report_figure, report_walls
from experiment.cost_model import CostModel
from experiment.database import DATABASE
from experiment.errors import StoreError
from experiment.records import StepRecord
from experiment.report_data import Report, load
from experiment.store import Store


@pytest.fixture(scope="module")
def canned(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return load(canned_run(tmp_path_factory.mktemp("results") / "run"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return load(whole_run(tmp_path_factory.mktemp("results") / "run"))


def named(report: Report, key: str) -> list[dict[str, report_figure.Value]]:
    figure = report.figures[key]
    return [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]


def test_prefill_by_step_holds_medians_and_the_ends_of_their_intervals(canned: Report) -> None:
    # Worked out in test_compare.py.
    first, second, refused = named(canned, "prefill_by_step")
    assert first == {
        "task_id": "a",
        "step": 1,
        "depth": 1000,
        "new_tokens": 100,
        "fake_n": 3,
        "fake_prefill_ms": 110.0,
        "fake_prefill_ms_low": 100.0,
        "fake_prefill_ms_high": 120.0,
        "restored_n": 3,
        "restored_prefill_ms": 100.0,
        "restored_prefill_ms_low": 100.0,
        "restored_prefill_ms_high": 125.0,
        "full_n": 1,
        "full_prefill_ms": 1100.0,
        "full_prefill_ms_low": None,
        "full_prefill_ms_high": None,
        "arithmetic_prefill_ms": 119.0,
    }
    assert (second["fake_prefill_ms"], second["fake_prefill_ms_high"]) == (220.0, 240.0)
    assert (refused["task_id"], refused["fake_n"], refused["fake_prefill_ms"]) == ("b", 0, None)
    figure = canned.figures["prefill_by_step"]
    assert figure.missing == ""
    assert figure.notes == ("Not drawn, since nothing was measured in them: b.",)
    assert figure.measured_steps("prefill_ms") == {"a": [1, 2]}


def test_prefill_by_depth_has_the_model_where_the_cells_determine_it(
    canned: Report, whole: Report
) -> None:
    assert isinstance(canned.model, str)
    assert "model_ms" not in canned.figures["prefill_by_depth"].columns
    assert canned.figures["prefill_by_depth"].notes == (
        "No model T(new, L) = a + b new + c new L is fitted: these 2 cells do not determine the "
        "three terms of a cost model.",
    )
    assert isinstance(whole.model, CostModel)
    assert (whole.model.a_ms, whole.model.b_ms) == (A_MS, B_MS)
    # Of the terms seven digits are kept: 2**-13 is 1.220703125e-4.
    assert whole.model.c_ms == 0.0001220703
    rows = named(whole, "prefill_by_depth")
    assert [(row["depth"], row["new_tokens"]) for row in rows] == [
        (1024, 64),
        (1024, 256),
        (4096, 64),
        (8192, 256),
    ]
    for row in rows:
        new, depth = int(row["new_tokens"] or 0), int(row["depth"] or 0)
        ms = A_MS + B_MS * new + C_MS * new * depth
        assert row["fake_lm_prefill_ms"] == row["restored_lm_prefill_ms"] == ms
        assert row["model_ms"] == whole.model.ms(new, depth) == pytest.approx(ms, rel=1e-6)
        assert row["model_error_pct"] == pytest.approx(0, abs=1e-4)


def test_install_by_depth(canned: Report) -> None:
    rows = named(canned, "install_by_depth")
    assert [(row["fake_install_ms"], row["restored_install_ms"]) for row in rows] == [
        (10.0, 5.0),
        (2.0, 6.0),
    ]


def test_ratios_count_each_pair_once(canned: Report) -> None:
    rows = named(canned, "ratios")
    # Ratios 1.0, 1.1, 0.96 and 0.8, 1.0; A/A 1.02, 1.0, 0.95 and 0.95, 1.05.
    counted = {
        (row["ratio_from"], row["ratio_to"]): (
            row["fake_restored_pairs"],
            row["control_fake_pairs"],
        )
        for row in rows
    }
    assert counted[0.8, 0.85] == (1, 0)
    assert counted[0.95, 1.0] == (1, 2)
    assert counted[1.0, 1.05] == (2, 2)
    assert counted[1.05, 1.1] == (0, 1)
    assert counted[1.1, 1.15] == (1, 0)
    assert sum(pairs for pairs, _ in counted.values()) == 5


def test_one_disturbed_pair_does_not_press_the_others_into_a_single_bar(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        for number in range(40):
            ms = 900.0 if number == 7 else 90.0 + number / 4
            store.record(measurement("a", 1, "fake", number, ms, 0.0))
            store.record(measurement("a", 1, "restored", number, 100.0, 0.0))
        store.set_status("finished")
    rows = named(load(tmp_path / "run"), "ratios")
    inner = [row["fake_restored_pairs"] for row in rows[1:-1]]
    assert rows[-1]["fake_restored_pairs"] == 1  # 9.0
    assert sum(count for count in inner if isinstance(count, int)) == 39
    assert len([count for count in inner if count]) >= 5


def test_time_parts_are_sums_over_the_steps_that_have_all_variants(canned: Report) -> None:
    # Installs 10 + 2 and 5 + 6; fake decodes 90 + 220, restored 80 + 240, full 1080 + 880.
    assert canned.figures["time_parts"].rows == (
        ("fake", 2, 12.0, 20.0, 310.0),
        ("restored", 2, 11.0, 20.0, 320.0),
        ("full", 2, 0.0, 20.0, 1960.0),
        ("arithmetic", 2, 0.0, 20.0, 297.0),
    )


def test_task_wall_follows_the_trace(whole: Report) -> None:
    rows = named(whole, "task_wall")
    assert [(row["task_id"], row["variant"]) for row in rows] == [
        (task, variant)
        for task in ("mail", "files")
        for variant in ("fake", "restored", "full", "arithmetic")
    ]
    # T(64, 1024) = 2 + 32 + 8 = 42, T(64, 4096) = 2 + 32 + 32 = 66, each and 3 ms of encoding;
    # two steps of 2.5 s besides.
    assert (rows[0]["opt_prefill_s"], rows[0]["opt_wall_s"]) == (0.114, 5.114)
    assert (rows[0]["baseline_wall_s"], rows[0]["steps_counted"]) == (7.0, 2)


def test_the_figures_come_from_queries_that_any_duckdb_answers(
    tmp_path: Path, canned: Report, whole: Report
) -> None:
    for report in (canned, whole, load(whole_run(tmp_path / "evil", EVIL))):
        database = report.comparison.folder / DATABASE
        with duckdb.connect(str(database), read_only=True) as connection:
            for figure in report.figures.values():
                found = connection.execute(figure.query)
                columns = [column[0] for column in found.description]
                assert columns == [c for c in figure.columns if c not in figure.intervals]
                places = [figure.columns.index(name) for name in columns]
                shown = [tuple(row[place] for place in places) for row in figure.rows]
                assert shown == found.fetchall()


def test_the_page_is_bounded_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_data, "MAX_ROWS", 10)
    monkeypatch.setattr(report_data, "MAX_PANELS", 3)
    monkeypatch.setattr(report_walls, "MAX_TASKS", 2)
    tasks = [f"task {number}" for number in range(5)]
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps(
            StepRecord(
                task,
                step,
                100 * step,
                line=1 + 6 * i + step,
                baseline_prefill_s=1.0,
                baseline_decode_s=1.0,
                baseline_exec_s=1.0,
            )
            for i, task in enumerate(tasks)
            for step in range(6)
        )
        for task in tasks:
            for step in range(6):
                store.record(measurement(task, step, "fake", depth=100 * step, prompt_n=10))
        store.set_status("finished")
    report = load(tmp_path / "run")
    by_step = report.figures["prefill_by_step"]
    # Three of five tasks, 18 steps, every second of them.
    assert [(row[0], row[1]) for row in by_step.rows] == [
        (task, step) for task in ("task 0", "task 2", "task 4") for step in (0, 2, 4)
    ]
    assert "3 of 5 tasks" in by_step.notes[0]
    assert "one step of every 2" in by_step.notes[1]
    by_depth = report.figures["prefill_by_depth"]
    # 30 steps sorted by depth, every third.
    assert [row[2] for row in by_depth.rows] == [0, 0, 100, 100, 200, 300, 300, 400, 400, 500][:10]
    assert "one step of every 3" in by_depth.notes[-1]
    wall = report.figures["task_wall"]
    assert [row[0] for row in wall.rows] == ["task 0", "task 4"]
    assert "2 of 5 tasks" in wall.notes[0]


def test_a_run_without_some_variants(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.record(measurement("a", 1, "fake", prompt_n=10))
    report = load(tmp_path / "run")
    figures = report.figures
    assert not figures["prefill_by_step"].missing
    assert not figures["install_by_depth"].missing
    assert figures["ratios"].missing == "No round has both fake and restored: there is no ratio."
    assert all(row[2:] == (0, 0) for row in figures["ratios"].rows)
    assert figures["time_parts"].rows == (("fake", 1, 1.0, 0.0, 9.0),)
    assert figures["task_wall"].missing.startswith("The trace has no baselines")
    assert report.comparison.run.status == "running"


def test_a_run_that_measured_nothing(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.set_status("interrupted")
    report = load(tmp_path / "run")
    assert all(figure.missing for figure in report.figures.values())
    assert report.model == "0 cells with no depth do not determine a cost model"


def test_what_is_not_finite_is_not_shown(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE step SET baseline_decode_s = 'inf' WHERE task_id = 'mail'")
    mail, files = (named(load(folder), "task_wall")[i] for i in (0, 4))
    assert (mail["opt_prefill_s"], mail["opt_wall_s"]) == (0.114, None)
    assert files["opt_wall_s"] is not None


def test_no_run_no_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no results\.duckdb here"):
        load(tmp_path)

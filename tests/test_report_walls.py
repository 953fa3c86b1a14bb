"""The walls of tasks in a report of a run whose budget left steps out."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from canned import canned_run
from canned_budget import PLAN, all_ms, make

from experiment import report, report_md, report_walls
from experiment.database import DATABASE
from experiment.report_charts import charts
from experiment.report_data import Report, load
from experiment.report_walls import EXTRAPOLATED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("runs") / "r", PLAN)


@pytest.fixture(scope="module")
def made(folder: Path) -> Report:
    return load(folder)


def named(report: Report) -> list[dict[str, object]]:
    figure = report.figures["task_wall"]
    return [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]


def test_measured_walls_and_those_of_all_steps_side_by_side(made: Report) -> None:
    rows = named(made)
    assert [(row["task_id"], row["variant"]) for row in rows] == [
        *(("a", "fake"), ("a", "restored"), ("b", "fake"), ("b", "restored")),
    ]
    of_a, _, of_b, _ = rows
    assert (of_a["steps"], of_a["steps_counted"], of_a["extrapolated_steps"]) == (5, 4, 4)
    assert (of_b["steps"], of_b["steps_counted"], of_b["extrapolated_steps"]) == (5, 3, 4)
    assert of_b["opt_wall_s"] == pytest.approx(all_ms([1, 3, 5]) / 1000 + 3 * 6, abs=1e-5)
    wall_s = all_ms([1, 3, 5, 7]) / 1000 + 4 * 6
    assert of_b["extrapolated_wall_s"] == pytest.approx(wall_s, abs=6e-4)
    assert of_b["extrapolated_wall_s_low"] == pytest.approx(wall_s, abs=2e-3)
    assert (of_b["baseline_wall_s"], of_b["extrapolated_baseline_s"]) == (21.0, 28.0)


def test_the_query_gives_what_is_not_extrapolated(folder: Path, made: Report) -> None:
    figure = made.figures["task_wall"]
    assert figure.extrapolated == EXTRAPOLATED
    assert figure.columns[-len(EXTRAPOLATED) :] == EXTRAPOLATED
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        found = connection.execute(figure.query)
        columns = [column[0] for column in found.description]
        rows = found.fetchall()
    assert columns == list(figure.columns[: -len(EXTRAPOLATED)])
    assert rows == [row[: -len(EXTRAPOLATED)] for row in figure.rows]


def test_a_task_of_which_nothing_was_measured_is_there(tmp_path: Path) -> None:
    plan = [*PLAN[:7], (5000, 500, False, 1, "budget: not drawn"), *PLAN[8:]]
    folder = make(tmp_path / "r", plan)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE step SET task_id = 'c' WHERE step = 7")
    rows = [row for row in named(load(folder)) if row["task_id"] == "c"]
    assert [(row["variant"], row["steps_counted"], row["opt_wall_s"]) for row in rows] == [
        *(("fake", 0, None), ("restored", 0, None)),
    ]
    assert rows[0]["extrapolated_wall_s"] == pytest.approx(
        all_ms([7], plan=plan) / 1000 + 6, abs=6e-4
    )


def test_a_task_that_was_left_out_by_hand_is_not(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", PLAN)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE step SET task_id = 'c' WHERE step = 9")
    assert {row["task_id"] for row in named(load(folder))} == {"a", "b"}


def test_the_chart_marks_them_as_extrapolated(made: Report) -> None:
    (spec,) = charts(made)["task_wall"]
    text = str(spec)
    assert "wall time, extrapolated, s" in text
    assert "extrapolated_wall_s_low" in text
    assert "'strokeDash': [4, 3]" in text
    assert "measured, extrapolated to" in text


def test_without_an_interval_the_figure_says_why(tmp_path: Path) -> None:
    made = load(make(tmp_path / "r", [*PLAN[:3], *PLAN[7:]]))
    figure = made.figures["task_wall"]
    assert figure.notes == (
        "fake has no interval over all tasks: 3 measured steps are too few for an interval.",
        "restored has no interval over all tasks: 3 measured steps are too few for an interval.",
    )
    assert figure.values("extrapolated_wall_s_low") == []
    assert charts(made)["task_wall"]


def test_nothing_to_extrapolate_from(tmp_path: Path) -> None:
    made = load(make(tmp_path / "r", [*PLAN[:2], *PLAN[7:]]))
    assert made.figures["task_wall"].missing == report_walls.NO_BASELINE
    assert charts(made)["task_wall"] == ()


def test_the_page_and_the_text_tell_both(folder: Path, made: Report) -> None:
    page = report.render(made)
    assert "Wall time of each task against its baseline, extrapolated" in page
    assert "worked out by experiment/extrapolated.py" in page
    assert "Extrapolated to 9 of 10 steps" in page
    assert report.figures_in(page) == report.figures_of(folder)
    text = report_md.render(made)
    wall_s = all_ms(list(range(8))) / 1000 + 8 * 6
    assert "**The same extrapolated to all steps, s**" in text
    assert f"| all | 8 | 56.0 | {wall_s:.1f} ({wall_s:.1f} to {wall_s:.1f}) | " in text


def test_a_report_reads_the_database_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiment import report_data

    opened: list[Path] = []
    read = report_data.read

    def noting(folder: Path) -> object:
        opened.append(folder)
        return read(folder)

    monkeypatch.setattr(report_data, "read", noting)
    monkeypatch.setattr("experiment.compare.read", noting)
    load(canned_run(tmp_path))
    assert opened == [tmp_path]

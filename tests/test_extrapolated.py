from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from canned_budget import PLAN, all_ms, make

from experiment.database import DATABASE
from experiment.extrapolated import Extrapolated, Extrapolation, Row, load
from experiment.reader import read


def loaded(folder: Path) -> Extrapolated | None:
    with read(folder) as reader:
        return load(reader)


def extrapolated(folder: Path) -> Extrapolation | None:
    found = loaded(folder)
    return None if found is None else found.totals


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Extrapolation:
    found = extrapolated(make(tmp_path_factory.mktemp("runs") / "r", PLAN))
    assert found is not None
    return found


def row(made: Extrapolation, task_id: str | None, variant: str = "fake") -> Row:
    (found,) = (r for r in made.rows if (r.task_id, r.variant) == (task_id, variant))
    return found


def test_prefill_of_all_that_could_be_drawn(made: Extrapolation) -> None:
    whole = row(made, None).prefill
    assert (whole.steps, whole.measured_steps) == (9, 7)
    assert whole.ms == pytest.approx(all_ms(list(range(9))))
    assert whole.measured_ms == pytest.approx(all_ms(list(range(7))))
    assert (whole.low_ms, whole.high_ms) == (pytest.approx(whole.ms), pytest.approx(whole.ms))
    assert (made.steps, made.covered) == (10, 9)


def test_tasks(made: Extrapolation) -> None:
    assert row(made, "a").prefill.ms == pytest.approx(all_ms([0, 2, 4, 6, 8]))
    assert row(made, "b").prefill.ms == pytest.approx(all_ms([1, 3, 5, 7]))
    assert row(made, "b", "restored").prefill.ms == pytest.approx(all_ms([1, 3, 5, 7], 10.0))
    assert [(r.task_id, r.variant) for r in made.rows] == [
        *(("a", "fake"), ("b", "fake"), (None, "fake")),
        *(("a", "restored"), ("b", "restored"), (None, "restored")),
    ]


def test_walls_count_the_steps_with_a_baseline(made: Extrapolation) -> None:
    of_a = row(made, "a")
    assert of_a.wall.steps == 4
    assert of_a.opt_wall_s == pytest.approx(all_ms([0, 2, 4, 6]) / 1000 + 4 * 6)
    assert of_a.baseline_wall_s == pytest.approx(4 * 7)
    of_b = row(made, "b")
    assert of_b.wall.is_extrapolated
    assert of_b.opt_wall_s_low == pytest.approx(of_b.opt_wall_s)
    assert of_b.opt_wall_s_high == pytest.approx(of_b.opt_wall_s)


def test_each_step_that_was_not_measured(tmp_path: Path) -> None:
    found = loaded(make(tmp_path / "r", PLAN))
    assert found is not None
    assert found.fake_ms == {
        ("b", 7): pytest.approx(all_ms([7])),
        ("a", 8): pytest.approx(all_ms([8])),
    }


def test_a_cold_step_counts_with_what_full_took(tmp_path: Path) -> None:
    cold = [*PLAN[:7], (0, 800, False, 1, None), *PLAN[7:]]
    found = loaded(make(tmp_path / "r", cold))
    assert found is not None
    of_fake = row(found.totals, None).prefill
    assert (of_fake.steps, of_fake.measured_steps) == (10, 8)
    assert of_fake.ms == pytest.approx(all_ms(list(range(10)), plan=cold))
    # Restored is that very request as well; what is put on top of it here has no place in it.
    of_restored = row(found.totals, None, "restored").prefill
    assert of_restored.measured_steps == 8
    assert of_restored.measured_ms == pytest.approx(all_ms(list(range(8)), 10.0, cold) - 10.0)


def test_variants_that_were_not_measured(made: Extrapolation) -> None:
    assert made.refused == {"full": "it was not measured", "arithmetic": "it was not measured"}


def test_steps_that_do_not_determine_a_model(tmp_path: Path) -> None:
    plan = [*PLAN[:2], *PLAN[7:]]
    made = extrapolated(make(tmp_path / "r", plan))
    assert made is not None
    assert made.rows == ()
    assert "do not determine" in made.refused["fake"]


def test_no_budget_no_extrapolation(tmp_path: Path) -> None:
    by_hand = [(*row[:4], "--limit: behind the first 7 steps" if row[4] else None) for row in PLAN]
    assert extrapolated(make(tmp_path / "r", by_hand)) is None


def test_without_any_baseline_there_is_no_wall(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", PLAN)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE step SET baseline_exec_s = NULL")
    made = extrapolated(folder)
    assert made is not None
    found = row(made, None)
    assert (found.opt_wall_s, found.opt_wall_s_low, found.wall.steps) == (None, None, 0)
    assert found.prefill.ms is not None


def test_texts_are_counted_as_the_measured_ones_were(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", PLAN)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        # 5 bytes a token where measured: the 600 tokens of the one that was not are 3,000 bytes.
        connection.execute("UPDATE step SET new_text = repeat('x', 5 * new_text_tokens)")
        connection.execute("UPDATE step SET new_text_tokens = NULL WHERE left_out IS NOT NULL")
    made = extrapolated(folder)
    assert made is not None
    assert row(made, None).prefill.ms == pytest.approx(all_ms(list(range(9))))

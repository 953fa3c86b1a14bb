from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from canned import measurement, run_record

from experiment.database import DATABASE
from experiment.extrapolated import Extrapolation, Row, load
from experiment.reader import read
from experiment.records import StepRecord
from experiment.store import Store

TAIL, IMAGE, ENCODE_MS = 5, 500, 50.0


def law_ms(new: int, depth: int) -> float:
    return 3.0 + 0.4 * new + 4e-5 * new * depth


# Depth, text tokens, whether it has a screenshot, stratum, what it was left out for.
PLAN: list[tuple[int, int, bool, int | None, str | None]] = [
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


def make(folder: Path, plan: list[tuple[int, int, bool, int | None, str | None]]) -> Path:
    """A run of which the law holds; every second step is of task b, the last has no baseline."""
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
            )
            for i, (depth, text, seen, _, _) in enumerate(plan)
        )
        for i, (depth, text, seen, _, left_out) in enumerate(plan):
            if left_out is not None:
                continue
            new = TAIL + text + IMAGE * seen
            encode_ms = ENCODE_MS * seen
            for variant, more_ms in (("fake", 0.0), ("control", 0.0), ("restored", 10.0)):
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
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("ALTER TABLE step ADD COLUMN IF NOT EXISTS left_out VARCHAR")
        connection.execute("ALTER TABLE step ADD COLUMN IF NOT EXISTS stratum INTEGER")
        for i, (_, _, _, stratum, left_out) in enumerate(plan):
            connection.execute(
                "UPDATE step SET left_out = ?, stratum = ? WHERE step = ?", [left_out, stratum, i]
            )
    return folder


def extrapolated(folder: Path) -> Extrapolation | None:
    with read(folder) as reader:
        return load(reader)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Extrapolation:
    found = extrapolated(make(tmp_path_factory.mktemp("runs") / "r", PLAN))
    assert found is not None
    return found


def row(made: Extrapolation, task_id: str | None, variant: str = "fake") -> Row:
    (found,) = (r for r in made.rows if (r.task_id, r.variant) == (task_id, variant))
    return found


def all_ms(steps: list[int], more_ms: float = 0.0) -> float:
    total = 0.0
    for depth, text, seen, _, _ in (PLAN[i] for i in steps):
        total += law_ms(TAIL + text + IMAGE * seen, depth) + ENCODE_MS * seen + more_ms
    return total


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

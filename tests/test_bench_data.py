from __future__ import annotations

from pathlib import Path

import pytest

from experiment.bench_data import write_synthetic
from experiment.compare import load
from experiment.database import connect
from experiment.errors import StoreError
from experiment.structure import load as load_structure
from experiment.tables import render


def test_a_made_up_run_is_a_whole_one(tmp_path: Path) -> None:
    database = write_synthetic(tmp_path / "run", steps=30, rounds=7)
    assert database == tmp_path / "run" / "results.duckdb"
    with connect(database, read_only=True) as connection:
        counts = connection.execute(
            "SELECT variant, count(*) FROM measurement GROUP BY variant ORDER BY variant"
        ).fetchall()
    each = 30 * 7
    assert counts == [
        ("arithmetic", 30),
        *((variant, each) for variant in ("control", "fake", "full", "restored")),
    ]
    comparison = load(database)
    assert (comparison.run.status, comparison.notes) == ("finished", ())
    assert (comparison.overall.pair_n, comparison.overall.aa_n) == (each, each)
    assert all(step.ratio is not None for step in comparison.steps)
    # The noise is uniform within ±1 % and the same for all.
    assert comparison.overall.ratio is not None
    assert 0.995 < comparison.overall.ratio.low <= comparison.overall.ratio.high < 1.005
    assert comparison.stability is not None
    assert comparison.stability.verdict == "steady"
    assert {row.flag for row in load_structure(database).rows} <= {
        "",
        "same structure, time differs",
    }


def test_it_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (
        render(load(write_synthetic(tmp_path / name, steps=3, rounds=4)), "csv") for name in "ab"
    )
    assert first == second


def test_it_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    write_synthetic(tmp_path, steps=1, rounds=1)
    with pytest.raises(StoreError, match="already a database"):
        write_synthetic(tmp_path, steps=1, rounds=1)
    with pytest.raises(StoreError, match="0 steps in 1 rounds"):
        write_synthetic(tmp_path / "other", steps=0, rounds=1)

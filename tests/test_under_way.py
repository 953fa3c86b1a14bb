"""What was under way when a run was stopped is recorded, once, as interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from canned import measurement, run_record
from fake_answers import DEPTH, STEP

from experiment.records import Variant
from experiment.schedule import Planned
from experiment.store import Store
from experiment.under_way import INTERRUPTED, NAME, UnderWay, settle

ROWS = "SELECT task_id, step, variant, round, position_in_round, depth, status, error"
EVENTS = f"SELECT task_id, step, variant, round, message FROM event WHERE kind = '{INTERRUPTED}'"
STOPPED = "the run was stopped while this was measured"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path, run_record()) as made:
        yield made


def rows(store: Store, sql: str) -> list[tuple[object, ...]]:
    return store._execute(sql).fetchall()


def item(variant: Variant = "fake", round: int = 1) -> Planned:
    return Planned(STEP, variant, round, 4)


def test_what_has_ended_leaves_nothing(store: Store) -> None:
    under_way = UnderWay(store.folder)
    under_way.begin(item())
    assert (store.folder / NAME).is_file()
    under_way.end()
    assert not (store.folder / NAME).exists()
    settle(store)
    assert rows(store, f"{ROWS} FROM measurement") == rows(store, EVENTS) == []


@pytest.mark.parametrize("round", [1, -1])
def test_a_measurement_under_way_is_recorded_and_can_be_made_again(
    store: Store, round: int
) -> None:
    UnderWay(store.folder).begin(item("restored", round))
    settle(store)
    key = ("t", 3, "restored", round)
    assert rows(store, f"{ROWS} FROM measurement") == [(*key, 4, DEPTH, "failed", STOPPED)]
    assert rows(store, EVENTS) == [(*key, STOPPED)]
    assert not (store.folder / NAME).exists()
    assert store.done() == set()
    settle(store)  # a second resume
    assert len(rows(store, EVENTS)) == 1
    status = "ok" if round >= 0 else "warmup"
    store.record(measurement(task_id="t", step=3, variant="restored", round=round, status=status))
    assert rows(store, "SELECT status FROM measurement") == [(status,)]


def test_one_that_was_committed_before_the_stop_is_not_interrupted(store: Store) -> None:
    UnderWay(store.folder).begin(item())
    store.record(measurement(task_id="t", step=3, variant="fake", round=1))
    settle(store)
    assert rows(store, "SELECT status FROM measurement") == [("ok",)]
    assert rows(store, EVENTS) == []
    assert not (store.folder / NAME).exists()


def test_anything_else_is_an_event(store: Store) -> None:
    UnderWay(store.folder).begin_phase("calibrating")
    settle(store)
    assert rows(store, EVENTS) == [(None,) * 4 + ("the run was stopped while calibrating",)]
    assert rows(store, "SELECT * FROM measurement") == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\xff", '{"doing": 1}', '{"variant": "x"}']
)
def test_a_file_that_somebody_has_changed_stops_nothing(store: Store, text: str) -> None:
    (store.folder / NAME).write_text(text, encoding="latin-1")
    settle(store)
    assert len(rows(store, EVENTS)) == 1
    assert not (store.folder / NAME).exists()

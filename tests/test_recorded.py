"""What a run can be asked for while it goes on: where it stands, and what its pairs say."""

from __future__ import annotations

from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment.recorded import CONTROL, PAIR
from experiment.records import ExpertRow, StepRecord
from experiment.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path, run_record())


def test_a_resumed_run_finds_what_it_began_with(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record(model_digest="m1", trace_digest="t1")):
        pass
    with Store.open(tmp_path) as store:
        assert store.settings() == {"seed": 1, "cache_dir": "cache"}
        assert store.identity() == {
            "engine": "native",
            "patch_digest": None,
            "image_digest": None,
            "model_digest": "m1",
            "mmproj_digest": None,
            "trace_digest": "t1",
        }


def test_structure_is_what_the_valid_answers_agree_on(store: Store) -> None:
    with store:
        seen: dict[str, object] = {"prompt_n": 64, "n_kv": 1280}
        lists: dict[str, object] = {"ubatch_tokens": (40, 24), "ubatch_n_kv": (1024, 1280)}
        store.record(measurement(variant="control", **seen, **lists))
        store.record(measurement(**seen, **lists))
        store.record(measurement(variant="full", prompt_n=1064, n_kv=1280, ubatch_tokens=(1064,)))
        store.record(measurement(number=1, status="invalid", error="why", prompt_n=65, n_kv=1536))
        store.record(measurement(step=2, variant="restored", prompt_n=9, n_kv=256))
        store.record(measurement(step=3, variant="full", prompt_n=1064, n_kv=1280))
        assert store.structure() == {
            ("a", 1): (64, 1280, (40, 24), (1024, 1280)),
            ("a", 2): (9, 256, None, None),
        }


def test_new_content_is_what_fake_decoded(tmp_path: Path) -> None:
    canned_run(tmp_path)
    with Store.open(tmp_path) as store:
        assert store.new_content() == {("a", 1): (100, 20.0), ("a", 2): (200, 0.0)}


def test_new_content_of_a_cold_step_is_what_full_decoded(store: Store) -> None:
    with store:
        store.add_steps([StepRecord("a", 1, 0), StepRecord("a", 2, 1000)])
        store.record(measurement(variant="full", depth=0, prompt_n=900, encode_ms=2.0))
        store.record(measurement(step=2, variant="full", prompt_n=1064))
        assert store.new_content() == {("a", 1): (900, 2.0)}


def test_which_steps_are_left_out(store: Store) -> None:
    with store:
        store.add_steps(
            [
                StepRecord("a", 1, 10, stratum=0),
                StepRecord("a", 2, 10, left_out="budget: not drawn", stratum=1),
                StepRecord("b", 2, 10, left_out="--task: another"),
            ]
        )
        assert store.left_out() == {("a", 2), ("b", 2)}


def fill(store: Store) -> None:
    """Prefill (ms) by step and round: pairs with the ratios that the tests below expect."""
    for step, number, fake, control, restored in (
        (1, 0, 11.0, 22.0, 10.0),
        (1, 1, 12.0, 6.0, 10.0),
        (1, 2, 9.0, 9.0, 10.0),
        (2, 0, 30.0, 30.0, 20.0),
        (2, 1, 30.0, 33.0, None),
        (3, 0, 8.0, 8.0, None),
    ):
        for variant, prefill_ms in (("fake", fake), ("control", control), ("restored", restored)):
            status = "ok" if prefill_ms else "invalid"
            # The install is outside of prefill.
            row = measurement(
                step=step,
                variant=variant,  # type: ignore[arg-type]
                number=number,
                prompt_ms=(prefill_ms or 1.0) + 5.0,
                install_ms=5.0,
                status=status,  # type: ignore[arg-type]
                error=None if prefill_ms else "why",
                wall_ms=100.0,
            )
            store.record(row)
    store.record(measurement(step=1, variant="full", number=2, wall_ms=5000.0))
    store.record(measurement(step=1, number=-1, status="warmup", wall_ms=9000.0))


def test_pair_ratios_are_those_of_complete_valid_pairs_in_the_order_of_rounds(
    store: Store,
) -> None:
    with store:
        assert store.pair_ratios() == {}
        fill(store)
        assert store.pair_ratios() == {("a", 1): [1.1, 1.2, 0.9], ("a", 2): [1.5]}
        assert store.pair_ratios(PAIR, before=1) == {("a", 1): [1.1], ("a", 2): [1.5]}
        assert store.pair_ratios(before=0) == {}


def test_of_some_steps_is_told_what_is_theirs(store: Store) -> None:
    with store:
        store.add_steps([StepRecord("a", step, 10) for step in range(1, 6)])
        fill(store)
        for step in (4, 5):
            store.record(measurement(step=step, prompt_n=step, n_kv=256))
        some = [("a", 1), ("a", 3), ("a", 4), ("b", 1)]
        for of in (PAIR, CONTROL):
            whole, alive = store.pair_ratios(of), store.paired_steps(of)
            assert store.pair_ratios(of, among=some) == {k: whole[k] for k in some if k in whole}
            assert store.paired_steps(of, among=some) == alive & {*some}
            assert store.pair_ratios(of, among=[]) == {}
        everything = store.done()
        assert store.done_number() == len(everything) == 21
        assert store.done(some) == {key for key in everything if key[:2] in some}
        assert store.done(some, 1) == {key for key in everything if key[1] == 1 and key[3] == 1}
        assert store.done(round=2) == {key for key in everything if key[3] == 2}
        content, structure = store.new_content(), store.structure()
        assert set(content) == set(structure) == {("a", 4), ("a", 5)}
        assert store.new_content(some) == {("a", 4): content["a", 4]}
        assert store.structure(some) == {("a", 4): structure["a", 4]}


def test_control_ratios_are_control_over_fake(store: Store) -> None:
    with store:
        fill(store)
        assert store.pair_ratios(CONTROL) == {
            ("a", 1): [2.0, 0.5, 1.0],
            ("a", 2): [1.0, 1.1],
            ("a", 3): [1.0],
        }


def test_a_prefill_of_nothing_gives_no_ratio(store: Store) -> None:
    with store:
        store.record(measurement(prompt_ms=2.0, install_ms=1.0))
        store.record(measurement(variant="restored", prompt_ms=1.0, install_ms=1.0))
        assert store.pair_ratios() == {}
        assert store.paired_steps() == set()


def test_a_step_whose_newest_round_gave_no_pair_gives_none_any_more(store: Store) -> None:
    with store:
        fill(store)
        assert store.paired_steps() == {("a", 1)}
        assert store.paired_steps(before=1) == {("a", 1), ("a", 2)}
        assert store.paired_steps(CONTROL) == {("a", 1), ("a", 2), ("a", 3)}
        # A round that has begun, and is lost so far, counts as the newest.
        store.record(measurement(number=3, status="failed", error="gone"))
        assert store.paired_steps() == set()
        assert store.paired_steps(before=3) == {("a", 1)}


def test_rounds_begun_count_up_to_the_newest(store: Store) -> None:
    with store:
        assert store.rounds_begun() == 0
        store.record(measurement(number=-1, status="warmup"))
        store.record(measurement(variant="full", number=7))
        assert store.rounds_begun() == 0
        store.record(measurement(number=0))
        assert store.rounds_begun() == 1
        store.record(measurement(number=4, variant="control", status="failed", error="gone"))
        assert store.rounds_begun() == 5


def test_added_seconds_are_those_of_later_rounds_without_full_and_warm_up(store: Store) -> None:
    with store:
        fill(store)
        assert store.added_seconds(1) == pytest.approx(0.9)  # 9 requests of 100 ms
        assert store.added_seconds(2) == pytest.approx(0.3)
        assert store.added_seconds(1, before=2) == pytest.approx(0.6)
        assert store.added_seconds(3) == 0.0
        store.record(measurement(number=5, status="failed", error="gone"))  # nobody knows
        assert store.added_seconds(3) == 0.0


def test_what_has_been_asked_for_its_experts(store: Store) -> None:
    with store:
        assert store.expert_steps() == set()
        store.add_experts(
            ExpertRow("a", 1, "fake", "tile", ubatch, layer, 5)
            for ubatch in (0, 1)
            for layer in (0, 1)
        )
        store.add_experts([ExpertRow("b", 2, "restored", "none", 0, 0, 5)])
        assert store.expert_steps() == {("a", 1, "fake"), ("b", 2, "restored")}


def test_messages_are_those_of_one_kind_oldest_first(store: Store) -> None:
    with store:
        for kind, message in (("rounds", "b"), ("warning", "x"), ("rounds", "a")):
            store.add_event(kind, message)
        assert store.messages("rounds") == ["b", "a"]
        assert store.messages("experts") == []

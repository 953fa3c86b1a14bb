from __future__ import annotations

from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record
from canned_report import whole_run

from experiment.compare import load
from experiment.records import StepRecord
from experiment.report_answers import UNKNOWN, answers
from experiment.rows import Comparison
from experiment.store import Store


@pytest.fixture(scope="module")
def canned(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(canned_run(tmp_path_factory.mktemp("results") / "run"))


def test_the_answers_by_hand(canned: Comparison) -> None:
    # The figures are worked out in test_compare.py.
    speedup, fidelity, arithmetic = answers(canned)
    assert (speedup.figure, speedup.margin) == ("6.00 ×", "")  # full is measured once
    assert speedup.sentence == (
        "Decoding only the new tokens behind a fabricated prefix (fake) is 6.00 times as fast as "
        "decoding everything anew (full), in sum over 2 steps; the median step is 7.00 ±3.00 "
        "times as fast."
    )
    assert (fidelity.figure, fidelity.margin) == ("1.0000", "0.8000 to 1.1000")
    assert fidelity.sentence == (
        "Prefill behind a fabricated prefix takes 1.0000 times as long as behind a real one "
        "(restored): median of 5 pairs, fewer than the 6 pairs that a conclusion needs."
    )
    assert arithmetic.figure == "-4.2 %"
    assert arithmetic.sentence == (
        "The arithmetic estimate new / prefill_tps(L) is off by -4.2 ±10.3 % in sum over 2 steps "
        "(image encoding left out); single steps from -10.0 % to +10.0 %."
    )
    assert all(answer.is_known for answer in (speedup, fidelity, arithmetic))


def test_enough_pairs_give_a_verdict(tmp_path: Path) -> None:
    # All 24 ratios are 1, and so are those of control / fake.
    _, fidelity, arithmetic = answers(load(whole_run(tmp_path / "run")))
    assert fidelity.sentence.endswith(
        "median of 24 pairs, 95 % bootstrap interval 1.0000 to 1.0000; the noise floor is 0.0000 "
        "(A/A, fake against itself: 1.0000, 1.0000 to 1.0000, 24 pairs): no difference."
    )
    assert (arithmetic.figure, arithmetic.margin) == ("+25.0 %", "+25.0 to +25.0 %")


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.record(measurement("a", 1, "fake", prompt_n=10))
    told = answers(load(tmp_path / "run"))
    assert [answer.figure for answer in told] == [UNKNOWN] * 3
    assert not any(answer.is_known for answer in told)
    assert [answer.sentence for answer in told] == [
        "No step has both fake and full: the speed-up is not known.",
        "No round has both fake and restored: whether the fake is faithful is not known.",
        "No step has both fake and the arithmetic estimate: its error is not known.",
    ]

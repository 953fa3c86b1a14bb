from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record

from experiment.compare import Comparison, Interval, StepRow, load
from experiment.records import StepRecord
from experiment.store import Store
from experiment.tables import FORMATS, WIDTH, answer, render


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    canned = load(canned_run(tmp_path_factory.mktemp("results") / "run"))
    return replace(canned, folder=Path("results/run"))


# Every figure is worked out in test_compare.py.
TABLE = """\
                    fake restored fake/restored  full full/fake arithm.   error % encode install  install
task step     L new   ms       ms       (pairs)    ms       (n)      ms       (n)     ms fake ms rest. ms
a       1 1,000 100  110      100    1.0000 (3) 1,100  10.0 (1)     119 +10.0 (3)   20.0    10.0     5.00
a       2 3,000 200  220      240    0.9000 (2)   880  4.00 (1)     198 -10.0 (2)   0.00    2.00     6.00
b       1   500   -    -        -             -     -         -       -         -      -       -        -
all     3       300  330      340    1.0000 (5) 1,980  6.00 (2)     317  -4.2 (2)   20.0    12.0     11.0
"""  # noqa: E501


def test_the_table_on_a_terminal(comparison: Comparison) -> None:
    lines = render(comparison, "table").splitlines()
    assert lines[0].strip() == "r1: nano, pin sdist, engine native"
    got = [line.split() for line in lines[1:9] if line and "─" not in line]
    assert got == [line.split() for line in TABLE.splitlines()]
    assert lines[-1] == "Results: results/run"
    assert max(map(len, lines)) <= WIDTH


def test_the_sentences_answer_by_hand(comparison: Comparison) -> None:
    assert answer(comparison) == (
        "Prefill of only the new tokens at depth L costs 330 ms over 2 steps: 110 ms for 100 new "
        "tokens at L = 1,000 (n = 3), 220 ms for 200 new tokens at L = 3,000 (n = 2); 1.10 ms a "
        "new token on average.",
        "Against the fallback (restored), fake takes 1.0000 times as long: median of 5 pairs, too "
        "few for a 95 % interval. Putting the prefix in place costs 6.00 ms a step for fake and "
        "5.50 ms for restored (means of the steps' medians).",
        "Decoding everything anew (full) takes 6.0 times as long as fake in sum over 2 steps; the "
        "median step 7.0 times.",
        "The arithmetic estimate new / prefill_tps(L) is off by -4.2 % in sum over 2 steps; the "
        "median step by +0.0 %, the steps from -10.0 % to +10.0 % (image encoding left out).",
    )
    told = " ".join(render(comparison, "table").split())
    for sentence in (*answer(comparison), *comparison.notes):
        assert sentence in told


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.01, "0.9900 to 1.0100, which contains 1: no difference is seen."),
        (1.0, 1.01, "1.0000 to 1.0100, which contains 1: no difference is seen."),
        (1.002, 1.01, "1.0020 to 1.0100, which does not contain 1: fake is slower."),
        (0.98, 0.99, "0.9800 to 0.9900, which does not contain 1: fake is faster."),
    ],
)
def test_the_interval_gives_the_verdict(
    comparison: Comparison, low: float, high: float, verdict: str
) -> None:
    judged = replace(comparison, ratio_interval=Interval(low, high, 0.9648, 100))
    assert f"96.5 % interval {verdict}" in answer(judged)[1]


def test_a_run_without_any_figure(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 3)])
        store.record(measurement(status="refused", error="too small"))
    empty = load(tmp_path)
    assert answer(empty) == (
        "No step has a valid measurement of fake: there is nothing to compare.",
    )
    text = render(empty, "table")
    assert "fake: 1 measurement refused, kept out: too small (1)." in text
    assert not re.search(r"\b(None|nan|inf)\b", text)


def test_one_measured_step_is_told_once(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 3)])
        store.record(measurement(prompt_ms=2501.0, prompt_n=4))
    (sentence,) = answer(load(tmp_path))
    assert sentence == (
        "Prefill of only the new tokens at depth L costs 2.50 s over 1 step: 2.50 s for 4 new "
        "tokens at L = 3 (n = 1); 625 ms a new token on average."
    )


def test_a_long_name_is_cut_and_no_figure_is(comparison: Comparison) -> None:
    wide = replace(
        comparison.steps[0],
        task_id="fill in the very long form of the tax office [draft]" * 2,
        depth=262_144,
        full_prefill_ms=123_456_789.4,
        fake_prefill_ms=1_234_567.4,
        restored_prefill_ms=1_234_568.4,
    )
    lines = render(replace(comparison, steps=(wide,)), "table").splitlines()
    row = next(line for line in lines if line.startswith("fill"))
    assert "…" in row
    for figure in ("262,144", "123,456,789", "1,234,567", "1,234,568", "1.0000 (3)", "+10.0 (3)"):
        assert figure in row
    assert row.endswith("5.00")


def test_markdown_has_a_cell_for_every_column(comparison: Comparison) -> None:
    odd = replace(comparison.steps[0], task_id="a|b")
    lines = render(replace(comparison, steps=(odd,)), "md").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.replace("\\|", "").count("|") for line in table} == {15}
    assert table[2].startswith("| a\\|b | 1 | 1,000 | 100 | 110 | 100 | 1.0000 (3) | 1,100 |")
    assert "- Decoding everything anew" in "\n".join(lines)
    assert lines[-1] == "Results: `results/run`"


def test_csv_has_a_line_a_step_with_full_precision(comparison: Comparison) -> None:
    read = list(csv.DictReader(io.StringIO(render(comparison, "csv"))))
    assert list(read[0]) == [field.name for field in fields(StepRow)]
    assert [row["task_id"] for row in read] == ["a", "a", "b"]
    assert float(read[0]["lm_ratio_median"]) == 1.0
    assert read[2]["fake_prefill_ms"] == ""


def test_json_has_everything(comparison: Comparison) -> None:
    read = json.loads(render(comparison, "json"))
    assert set(read) == {field.name for field in fields(Comparison)}
    assert read["folder"] == "results/run"
    assert read["overall"]["speedup"] == 6.0
    assert read["steps"][1]["ratio_min"] == 0.8
    assert read["steps"][2]["speedup"] is None
    assert read["ratio_interval"] is None
    assert len(read["tasks"]) == 4
    assert read["notes"] == list(comparison.notes)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_ends_its_last_line_once(comparison: Comparison, form: str) -> None:
    text = render(comparison, form)  # type: ignore[arg-type]
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.splitlines())

"""How a comparison of runs is written, against figures that are worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from canned import canned_run
from canned_runs import other_run, slower

from experiment.compare_runs import load
from experiment.compare_runs_rows import LeftOut, RunsComparison
from experiment.compare_runs_tables import CLAIMS_LEGEND, LEGEND, answer, render
from experiment.layout import WIDTH
from experiment.tables import FORMATS


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> RunsComparison:
    results = tmp_path_factory.mktemp("results")
    found = load(
        [
            canned_run(results / "a"),
            other_run(results / "b", slower, run_id="r2", pin="guide", patch_digest="f" * 64),
        ]
    )
    runs = (replace(run, folder=Path("results", run.run.id)) for run in found.runs)
    return replace(found, runs=tuple(runs))


# Every figure is worked out in test_compare_runs.py; ± is the longer side of its interval.
TABLE = """\
B against A, over 2 steps in common

what differs
              A      B
run           r1     r2
pin           sdist  guide
patch_digest  -      ffffffffffff

over the steps in common
                              steps               A               B             B against A
fake prefill, sum, ms             2         330 ±30         550 ±50  1.7500 ±0.2500 (n = 2)
fake, ms a new token              2      1.10 ±0.00      1.93 ±0.28  1.7500 ±0.2500 (n = 2)
full/fake                         2            6.00            7.20  1.1667 ±0.1667 (n = 2)
fake/restored                     2  1.0000 ±0.2000  1.0000 ±0.2000  1.0000 ±0.0000 (n = 2)
arithmetic error, %               2      -4.2 ±10.3     +15.8 ±12.1     +14.5 ±15.5 (n = 2)
install of fake, sum, ms          2       12.0 ±0.0       36.0 ±0.0  3.0000 ±0.0000 (n = 2)
install of restored, sum, ms      2       11.0 ±0.0       11.0 ±0.0  1.0000 ±0.0000 (n = 2)
"""

CLAIMS = """\
claims of A
                           A  tolerance       B
speedup                    6      ±30 %     7.2  within
fidelity                   1       ±0.3       1  within
noise                      1      ±0.05       1  within
arithmetic_error_pct  -4.194        ±25   15.85  within
cached_wrong              18      equal      18  within
full_differs               0      equal       0  within
structure_differs          1      equal       1  within
read_too_little            2      equal       2  within
steps_measured             2      equal       2  within
steps_refused              1      equal       1  within
steps_invalid              0      equal       0  within
install_share_pct      3.636      ±3.64   6.545  within
restore_ratio         0.9167      ±50 %  0.3056  OUTSIDE by 0.1528
"""


def test_the_tables_on_a_terminal(compared: RunsComparison) -> None:
    text = render(compared, "table")
    assert text.startswith(TABLE)
    assert f"\n\n{CLAIMS}\n" in text
    assert text.endswith(
        "\nNotes:\n- 1 step left out, fake is not measured in A and B: b step 1.\n\n"
        "Results of A: results/r1\nResults of B: results/r2\n"
    )
    assert max(map(len, text.splitlines())) <= WIDTH
    told = " ".join(text.split())
    for sentence in (LEGEND, CLAIMS_LEGEND, *answer(compared)):
        assert sentence in told


def test_the_sentences_by_hand(compared: RunsComparison) -> None:
    assert answer(compared) == (
        "B against A: fake prefill takes 1.750 ±0.250 times as long, median of 2 steps; 12 of 13 "
        "claims of A within tolerance, outside: restore_ratio.",
    )


def test_a_third_run_of_another_model(tmp_path: Path) -> None:
    a = other_run(tmp_path / "a", model_digest="1" * 64)
    b = other_run(tmp_path / "b", model_digest="1" * 64)
    c = other_run(tmp_path / "c", slower, model_digest="2" * 64, model="holo3-mini")
    compared = load([a, b, c])
    text = render(compared, "table")
    assert text.startswith("B, C against A, over 2 steps in common\n")
    assert "model_digest  111111111111  111111111111  222222222222" in text
    assert answer(compared) == (
        "B against A: fake prefill takes 1.000 ±0.000 times as long, median of 2 steps; 13 of 13 "
        "claims of A within tolerance.",
        "C against A: fake prefill takes 1.750 ±0.250 times as long, median of 2 steps; 9 of 9 "
        "claims of A within tolerance; not comparable: speedup, arithmetic_error_pct, "
        "install_share_pct, restore_ratio.",
    )
    (row,) = [line for line in text.splitlines() if line.startswith("speedup ")]
    assert re.split(r"\s{2,}", row)[-3:] == ["within", "7.2", "not comparable: another model"]


def test_texts_are_cut_to_the_width_and_figures_are_not(compared: RunsComparison) -> None:
    long = ("x" * 300, "y" * 300)
    text = render(replace(compared, differences={"graph.cpu_features": long}), "table")
    (row,) = [line for line in text.splitlines() if line.startswith("graph.cpu_features")]
    assert len(row) <= WIDTH
    assert re.fullmatch(r"graph\.cpu_features  x{40,}…  y{40,}…", row)
    assert "…" not in text.replace(row, "")


def test_steps_that_are_left_out_are_told_by_reason(compared: RunsComparison) -> None:
    left_out = tuple(LeftOut("t", i, "not in the trace of B") for i in range(5))
    other = LeftOut("u", 1, "the depth differs: 3,000 in A, 3,001 in B")
    text = render(replace(compared, left_out=(*left_out, other), differences={}), "md")
    assert text.split("Notes:\n\n")[1].split("\n\n")[0].splitlines() == [
        "- Nothing that is recorded of model, pin, patches, machine, graph or settings differs.",
        "- 5 steps left out, not in the trace of B: t step 0, t step 1, t step 2 and 2 more.",
        "- 1 step left out, the depth differs: 3,000 in A, 3,001 in B: u step 1.",
    ]


def test_markdown_has_a_cell_for_every_column(compared: RunsComparison) -> None:
    lines = render(replace(compared, differences={"pin": ("a|b", "c")}), "md").splitlines()
    assert lines[0] == "### B against A, over 2 steps in common"
    tables = "\n".join(line.replace("\\|", "") if line.startswith("|") else "" for line in lines)
    wide = [
        {row.count("|") for row in table.splitlines()} for table in re.split(r"\n{2,}", tables)[1:]
    ]
    assert [counts for counts in wide if counts] == [{4}, {6}, {6}]
    assert "| pin | a\\|b | c |" in lines
    assert "| fake prefill, sum, ms | 2 | 330 ±30 | 550 ±50 | 1.7500 ±0.2500 (n = 2) |" in lines
    assert "| restore_ratio | 0.9167 | ±50 % | 0.3056 | OUTSIDE by 0.1528 |" in lines
    assert lines[-1].strip() == "Results of B: `results/r2`"


def test_csv_has_a_line_a_step_and_run(compared: RunsComparison) -> None:
    rows = list(csv.DictReader(io.StringIO(render(compared, "csv"))))
    assert [(row["task_id"], row["step"], row["run"], row["run_id"]) for row in rows] == [
        *(("a", "1", "A", "r1"), ("a", "1", "B", "r2")),
        *(("a", "2", "A", "r1"), ("a", "2", "B", "r2")),
    ]
    assert (rows[1]["fake_prefill_ms"], rows[1]["fake_prefill_ms_against_base"]) == ("220.0", "2.0")
    assert (rows[0]["fake_prefill_ms"], rows[0]["fake_prefill_ms_against_base"]) == ("110.0", "")
    assert float(rows[3]["speedup_against_base"]) == pytest.approx(4 / 3, rel=1e-12)
    assert float(rows[3]["arithmetic_error_pct_against_base"]) == pytest.approx(30, rel=1e-12)
    assert rows[3]["depth"] == "3000"


def test_json_has_everything(compared: RunsComparison) -> None:
    read = json.loads(render(compared, "json"))
    assert set(read) == {field.name for field in fields(RunsComparison)}
    assert [run["folder"] for run in read["runs"]] == ["results/r1", "results/r2"]
    assert read["differences"]["pin"] == ["sdist", "guide"]
    assert read["figures"][0]["against_base"][1] == {"value": 1.75, "low": 1.5, "high": 2.0, "n": 2}
    (found,) = [v for v in read["verdicts"] if v["claim"]["key"] == "restore_ratio"]
    assert found["within"] is False
    assert found["outside_by"] == pytest.approx(11 / 12 - 11 / 36 - 11 / 24, rel=1e-9)
    assert "takes 0.9 times as long" in found["claim"]["sentence"]
    assert found["claim"]["why"].startswith("Restoring copies the state")
    assert read["left_out"] == [
        {"task_id": "b", "step": 1, "reason": "fake is not measured in A and B"}
    ]
    assert [step["label"] for step in read["steps"]] == ["A", "B", "A", "B"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_is_the_same_twice_and_says_no_none(compared: RunsComparison, form: str) -> None:
    text = render(compared, form)  # type: ignore[arg-type]
    assert text == render(compared, form)  # type: ignore[arg-type]
    assert text.endswith("\n")
    assert not re.search(r"\b(None|nan|inf)\b", text)

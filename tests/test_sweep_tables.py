from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from canned_sweep import ALONE, EQUAL, SLOWER, SWEEP, figure

from experiment.sweep_answers import answers
from experiment.sweep_estimate import DepthCost, LeftOut, Plan
from experiment.sweep_tables import FORMATS, blocks, render, render_plan


def test_the_grid_has_marks_for_bias_and_for_width() -> None:
    grid = blocks(SWEEP)[0]
    assert grid.head == ("L \\ new", "16", "2,048")
    assert grid.rows == (
        ("256", "1.0010 ±0.40 %", "1.0300 ±1.94 %*~"),
        ("4,096", "-", "-"),
    )


def test_one_pair_has_no_interval() -> None:
    alone = replace(ALONE, ratio=figure(1.002, n=1))
    assert blocks(replace(SWEEP, cells=(alone,)))[0].rows == (("4,096", "1.0020 (n = 1)~"),)


def test_instruments() -> None:
    assert blocks(SWEEP)[1].rows == (
        ("256", "16", "11.00 ±1.00 %", "10.99 ±1.00 %", "10.00 ±2.00 %", "1.100", "5.50", "-50.00"),
        (
            *("256", "2,048", "1,040 ±0.00 %", "10.99 ±1.00 %", "1,000 ±0.00 %"),
            *("1.040", "1,092", "+5.00"),
        ),
        ("4,096", "16", "14.00 (n = 1)", "-", "-", "-", "-", "-"),
    )


def test_what_is_inside() -> None:
    first, second, third = blocks(SWEEP)[2].rows
    assert first == (
        *("256", "16", "11.11", "+1.00", "0.0500 ±2.00 %", "1.25 ±2.00 %", "90", "100", "same"),
    )
    assert second[3] == "-2.00"
    assert third[2:] == ("-",) * 7
    different = replace(SWEEP, cells=(replace(EQUAL, is_same_structure=False),))
    assert blocks(different)[2].rows[0][-1] == "DIFFERENT"


def test_models() -> None:
    assert blocks(SWEEP)[3].rows == (
        ("fake", "3.000", "0.5000", "0.04000", "0.99900", "0.99910", "-2.00"),
        ("restored", "-", "-", "-", "-", "-", "-"),
        ("bench", "0.250", "0.5000", "0.04000", "0.99900", "0.99910", "-2.00"),
    )


def test_terminal_columns_line_up() -> None:
    text = render(SWEEP, "table")
    lines = text.splitlines()
    assert lines[0] == "x_sweep: nano, pin sdist, engine native, fill tile"
    start = lines.index("fake / restored") + 1
    assert lines[start : start + 3] == [
        "L \\ new              16             2,048",
        "    256  1.0010 ±0.40 %  1.0300 ±1.94 %*~",
        "  4,096               -                 -",
    ]
    assert lines[-1] == "Results: results/x_sweep"
    assert max(map(len, lines)) <= 140
    assert " ".join(answers(SWEEP)) in " ".join(lines)


def test_markdown_rows_have_as_many_cells_as_their_heads() -> None:
    lines = render(SWEEP, "md").splitlines()
    assert "| 256 | 1.0010 ±0.40 % | 1.0300 ±1.94 %*~ |" in lines
    tables = [line.count("|") for line in lines if line.startswith("|")]
    # Grid, instruments, inside, models: head, rule and rows.
    assert tables == [4] * 4 + [9] * 5 + [10] * 5 + [8] * 5
    assert f"- {answers(SWEEP)[0]}" in lines


def test_json_holds_everything() -> None:
    value = json.loads(render(SWEEP, "json"))
    assert value["folder"] == "results/x_sweep"
    assert value["floor"] == pytest.approx(0.0025)
    assert value["cells"][0]["ratio"]["interval"]["high"] == pytest.approx(1.005)
    assert value["cells"][1]["contains_one"] is False
    assert value["cells"][1]["sees_difference"] is True
    assert value["cells"][2]["restored"] is None
    assert value["models"]["fake"]["c_ms"] == 4e-5
    assert value["models"]["restored"] == "2 cells are too few"
    assert value["answers"] == list(answers(SWEEP))


def test_csv_holds_the_cells() -> None:
    rows = list(csv.DictReader(io.StringIO(render(SWEEP, "csv"))))
    assert [row["depth"] for row in rows] == ["256", "256", "4096"]
    assert (rows[0]["fake"], rows[0]["fake_n"]) == ("11.0", "6")
    assert float(rows[0]["ratio_low"]) == pytest.approx(0.997)
    assert (rows[2]["bench"], rows[2]["bench_n"], rows[2]["fake_low"]) == ("", "0", "")
    assert rows[1]["bench_ratio"] == "1.04"


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_and_gaps_are_written_in_every_format(form: str) -> None:
    nothing = replace(SLOWER, fake_install=figure(0.0, 0.001), fake=None, ratio=None, noise=None)
    bare = replace(SWEEP, cells=(nothing,), noise=None, models={"fake": "none", "bench": "none"})
    text = render(bare, form)  # type: ignore[arg-type]
    assert "inf" not in text.replace("information", "")
    assert "nan" not in text.replace("nano", "")


def test_a_plan() -> None:
    plan = Plan(
        depths=(256, 4096),
        sizes=(16, 2048),
        left_out=(LeftOut(65536, None, "it takes too long"), LeftOut(None, 4096, "too")),
        costs=(DepthCost(256, 6.0, 30.0, 2.0**20), DepthCost(4096, 66.0, 90.0, 2.0**29)),
        prime_s=18.0,
        probe_s=12.0,
        limit_s=1800.0,
        added_s=1578.0,
        memory_bytes=1.5 * 2**30,
        available_bytes=8.0 * 2**30,
        tail_tokens=5,
        probe="probe",
    )
    assert render_plan(plan).splitlines() == [
        "sweep of 2 depths by 2 sizes (new = 16, 2,048)",
        "    L  cells  requests min  llama-bench min  state GiB",
        "  256      2           0.1              0.5       0.00",
        "4,096      2           1.1              1.5       0.50",
        # 6 + 30 + 66 + 90 + 18 s
        "estimate: 3.5 min, of them 0.3 min decoding real prefixes, and up to 26.3 min of further "
        "rounds; the probe took 0.2 min; the limit is 30.0 min",
        "memory: 1.5 GiB of 8.0 GiB available",
        "left out: L = 65,536: it takes too long",
        "left out: new = 4,096: too",
    ]

from __future__ import annotations

from pathlib import Path

import pytest
from canned import canned_run, run_record
from canned_report import EVIL, whole_run

from experiment import report, report_md
from experiment.records import StepRecord
from experiment.report_md import escaped
from experiment.store import Store


def test_the_tables_by_hand(tmp_path: Path) -> None:
    lines = report.render_md(whole_run(tmp_path / "run")).splitlines()
    assert lines[:3] == [
        "### Prefix replay: r1",
        "",
        "model nano · pin sdist · engine native · Model 5 &amp; &lt;b&gt;more&lt;/b&gt;, 6 usable "
        "cores · 2026-11-30 02:41 UTC.",
    ]
    # full takes 8 times as long as fake, arithmetic 25 % longer.
    assert any(line.startswith("| Speed-up | 8.00 × | - | Decoding only") for line in lines)
    assert any(line.startswith("| Error of the arithmetic | +25.0 % | +25.0 to") for line in lines)
    at = lines.index("**By depth** (medians over the steps; L is in tokens, n counts pairs)") + 2
    assert lines[at + 2 : at + 5] == [
        # 1,024: T(64) + 3 = 45 and T(256) + 3 = 165, median 105, ends 45 and 165.
        "| 1,024 | 2,048 | 2 | 12 | 105 ±60 | 105 ±60 | 1.0000 ±0.0000 | 8.00 | +25.0 ±0.0 | "
        "0.25 ±0.00 | 2.50 ±0.00 |",
        "| 4,096 | 5,120 | 1 | 6 | 69.0 | 69.0 | 1.0000 ±0.0000 | 8.00 | +25.0 | 0.25 | 2.50 |",
        "| 8,192 | 9,216 | 1 | 6 | 389 | 389 | 1.0000 ±0.0000 | 8.00 | +25.0 | 0.25 | 2.50 |",
    ]
    # In the trace's order. mail: 45 + 69 ms and 5 s; files: 165 + 389 ms and 5 s.
    at = lines.index("| task | steps | baseline | fake | restored | full | arithmetic |") + 2
    assert lines[at : at + 2] == [
        "| mail | 2 | 7.000 | 5.114 | 5.114 | 5.912 | 5.141 |",
        "| files | 2 | 7.000 | 5.554 | 5.554 | 9.432 | 5.691 |",
    ]
    for title in ("Steps", "In detail", "Run", "Machine", "Build", "Settings"):
        assert f"<details><summary>{title}</summary>" in lines
    assert "| seed | 1 |" in lines


def test_an_unfinished_run_says_so_and_notes_are_listed(tmp_path: Path) -> None:
    text = report.render_md(canned_run(tmp_path / "run", status="interrupted"))
    assert "This run is **interrupted**." in text
    assert "\n- fake: 2 measurements refused, kept out: L = 500 is too small (2).\n" in text


def test_every_row_of_a_table_has_as_many_cells_as_its_head(tmp_path: Path) -> None:
    width = 0
    for line in report.render_md(whole_run(tmp_path / "run", "a|b\n`c`\\")).splitlines():
        if line.startswith("|"):
            cells = line.replace("\\|", "").count("|")
            assert width in (0, cells), line
            width = cells
        else:
            width = 0
    assert width == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("`x` *y* _z_ [l](m)", "\\`x\\` \\*y\\* \\_z\\_ \\[l\\](m)"),
        ("a\\|b", "a\\\\\\|b"),
        ("two\nlines", "two lines"),
        ("@all, see #12", "@<!-- -->all, see #<!-- -->12"),
        ("a & b", "a &amp; b"),
        (EVIL, EVIL.replace("<", "&lt;").replace(">", "&gt;")),
    ],
)
def test_nothing_from_the_database_is_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_long_table_says_how_many_rows_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_md, "MAX_ROWS", 4)
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps(StepRecord("a", step, 10 * step, line=step) for step in range(1, 8))
    lines = report.render_md(tmp_path / "run").splitlines()
    shown = ("| a |", "| … 3 of 7 ")
    steps = [line.split(" | ")[:2] for line in lines if line.startswith(shown)]
    assert steps == [
        ["| a", "1"],
        ["| a", "2"],
        ["| … 3 of 7 rows are left out", ""],
        ["| a", "6"],
        ["| a", "7"],
    ]

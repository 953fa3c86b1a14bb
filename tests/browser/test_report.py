"""The report as a reader sees it, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record
from canned_report import EVIL, whole_run

from browser.conftest import Shown
from experiment import report
from experiment.records import StepRecord
from experiment.report_charts import charts
from experiment.report_data import load
from experiment.store import Store

MARKS = "[role='graphics-symbol'], .mark-symbol path, .mark-rect path, .mark-rule line"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of runs that differ in what they have, by name."""
    folder = tmp_path_factory.mktemp("results")
    whole_run(folder / "whole", EVIL)
    canned_run(folder / "canned", status="interrupted")
    one_variant(folder / "lonely")
    with Store.create(folder / "empty", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
    many_tasks(folder / "many")
    return {path.name: report.write(path) for path in sorted(folder.iterdir())}


def one_variant(folder: Path) -> None:
    """fake alone, once."""
    with Store.create(folder, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.record(measurement("a", 1, "fake", prompt_n=10))


def many_tasks(folder: Path) -> None:
    """More tasks than get a chart, with long names, and a model that is far off."""
    with Store.create(folder, run_record()) as store:
        tasks = [f"{number} {'a very long name ' * 10}" for number in range(15)]
        store.add_steps(StepRecord(task, 1, 100 * i, line=i + 1) for i, task in enumerate(tasks))
        for i, task in enumerate(tasks):
            for variant in ("fake", "restored"):
                ms = 1.0 if i % 2 else 900.0 + i
                more = {"depth": 100 * i, "prompt_n": 10 + i}
                store.record(measurement(task, 1, variant, 0, ms, 0.0, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["whole", "canned", "lonely", "empty", "many"])
def test_every_plot_is_drawn_without_a_word_and_without_the_network(
    pages: dict[str, Path], shown: Shown, name: str
) -> None:
    shown.open(pages[name])
    expected = sum(map(len, charts(load(pages[name].parent)).values()))
    places = shown.page.locator(".chart")
    assert places.count() == expected
    for place in places.all():
        assert place.locator("svg").count() == 1
        assert place.locator(MARKS).count() > 0
        box = place.locator("svg").bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 40
    assert shown.said == []
    assert shown.dialogs == []
    assert shown.requests == [pages[name].as_uri()]


def test_each_step_has_a_mark_for_each_variant(pages: dict[str, Path], shown: Shown) -> None:
    shown.open(pages["whole"])
    # Two steps and four variants each.
    for number in range(2):
        marks = shown.page.locator(f"#chart-prefill_by_step-{number} .mark-symbol.role-mark path")
        assert marks.count() == 8


def test_hover_tells_the_exact_value(pages: dict[str, Path], shown: Shown) -> None:
    shown.open(pages["whole"])
    # fake is drawn last: T(64, 1024) = 2 + 32 + 8, and 3 of encoding.
    told = hover(shown, "prefill_by_step-0", last=True)
    assert told["task"] == EVIL
    assert told["L"] in ("1024", "4096")
    ms = {"1024": "45.000", "4096": "69.000"}[told["L"]]
    assert told["fake, ms"] == told["restored, ms"] == f"{ms} ({ms} to {ms})"
    assert told["full, ms"] == {"45.000": "360.000", "69.000": "552.000"}[ms]
    assert shown.dialogs == shown.said == []


@pytest.mark.parametrize(
    ("chart", "known"),
    [
        ("prefill_by_depth-0", {"L", "fake, ms", "model, ms", "model off by, %"}),
        ("install_by_depth-0", {"L", "fake, ms", "restored, ms"}),
        ("task_wall-0", {"task", "variant", "opt_wall, s", "baseline, s"}),
    ],
)
def test_hover_over_the_other_plots(
    pages: dict[str, Path], shown: Shown, chart: str, known: set[str]
) -> None:
    shown.open(pages["whole"])
    told = hover(shown, chart, last=True)
    assert known <= set(told)
    assert all(told.values())


def test_hover_over_bars(pages: dict[str, Path], shown: Shown) -> None:
    shown.open(pages["canned"])
    bars = shown.page.locator("#chart-time_parts-0 .mark-rect path")
    bars.first.hover()
    assert tooltip(shown)["variant"] in ("fake", "restored", "full", "arithmetic")
    # 5 pairs in the bins; the first bar that has any is that of 0.8.
    shown.page.locator("#chart-ratios-0 .mark-rect path").nth(2).hover()
    assert tooltip(shown)["ratio"] == "0.8 to 0.85"


def hover(shown: Shown, chart: str, *, last: bool) -> dict[str, str]:
    marks = shown.page.locator(f"#chart-{chart} .mark-symbol.role-mark path")
    (marks.last if last else marks.first).hover(force=True)
    return tooltip(shown)


def tooltip(shown: Shown) -> dict[str, str]:
    element = shown.page.locator("#vg-tooltip-element.visible")
    element.wait_for()
    rows = element.locator("tr").all()
    cells = [row.locator("td").all_text_contents() for row in rows]
    return {key.removesuffix(":"): value for key, value in cells}


@pytest.mark.parametrize("name", ["whole", "canned", "many"])
def test_a_narrow_window_needs_no_sideways_scrolling(
    pages: dict[str, Path], shown: Shown, name: str
) -> None:
    shown.page.set_viewport_size({"width": 800, "height": 900})
    shown.open(pages[name])
    for summary in shown.page.locator("summary").all():
        if not summary.evaluate("element => element.parentElement.open"):
            summary.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 800
    for svg in shown.page.locator(".chart svg").all():
        box = svg.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 800


def test_a_window_that_is_made_smaller_has_charts_that_fit(
    pages: dict[str, Path], shown: Shown
) -> None:
    shown.open(pages["whole"])
    shown.page.set_viewport_size({"width": 800, "height": 900})
    shown.page.wait_for_function("document.documentElement.scrollWidth === 800")


def test_on_paper_the_details_are_open_and_charts_are_whole(
    pages: dict[str, Path], shown: Shown
) -> None:
    shown.open(pages["whole"])
    pdf = shown.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    counts = [int(count) for count in re.findall(rb"/Type /Pages\s*/Count (\d+)", pdf)]
    assert max(counts) >= 3
    # What is opened for the paper is closed again.
    assert shown.page.locator("details[open]").count() == 1
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.page.locator("details.printed[open]").count() >= 11
    assert shown.page.locator("details.printed:not([open])").count() == 0
    assert shown.page.locator("#query-ratios").is_visible()
    breaks = shown.page.evaluate(
        "[...document.querySelectorAll('.chart')].map(e => getComputedStyle(e).breakInside)"
    )
    assert set(breaks) == {"avoid"}
    assert shown.said == []


def test_the_page_forbids_the_network_itself(pages: dict[str, Path], shown: Shown) -> None:
    shown.open(pages["whole"])
    blocked = shown.page.evaluate(
        """async () => {
            try { await fetch("https://example.org/"); return "loaded"; }
            catch (error) { return String(error); }
        }"""
    )
    assert "Failed to fetch" in blocked
    assert any("Content Security Policy" in line for line in shown.said)
    # Nor does a script run that somebody has slipped in.
    shown.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.slipped = true";
            document.body.append(script);
        }"""
    )
    assert shown.page.evaluate("window.slipped") is None

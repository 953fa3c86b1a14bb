from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from canned_costs import COSTS, settings
from canned_steps import step, trace

from experiment.errors import ReportError
from experiment.trace_estimate import estimate
from experiment.trace_header import TraceHeader
from experiment.trace_info import look_at
from experiment.trace_info_page import figures_of, render, spaced, write

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
HEADER = TraceHeader(HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,), ((HOSTILE, 3),))
INFO = look_at(
    trace(
        step(HOSTILE, 0, 0),
        step(HOSTILE, 1, 900),
        step("plain", 0, 100, line=3),
        header=HEADER,
    )
)


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page() -> str:
    return render(INFO, estimate([step()], COSTS, settings()))


def test_texts_from_a_log_stay_texts(page: str) -> None:
    found = _Elements(page)
    assert [tag for tag, _ in found.seen].count("img") == 0
    scripts = [attrs for tag, attrs in found.seen if tag == "script"]
    assert [attrs.get("id") for attrs in scripts] == [
        *("data-by_step", "data-depths", "data-news", "drawing", None, None)
    ]
    assert "alert(1)" not in "".join(found.scripts[4:])
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page


def test_it_reaches_nothing(page: str) -> None:
    found = _Elements(page)
    for _, attrs in found.seen:
        assert not {"src", "href", "action", "srcset"} & attrs.keys()
    policy = next(attrs for tag, attrs in found.seen if "http-equiv" in attrs)["content"] or ""
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/=]{44}'", policy)) == 2


def test_the_data_are_those_of_the_trace(page: str) -> None:
    by_step, depths, news, drawing = (json.loads(text) for text in _Elements(page).scripts[:4])
    assert by_step == {
        "columns": ["task_id", "place", "depth"],
        "rows": [[HOSTILE, 0, 0], [HOSTILE, 1, 900], ["plain", 0, 100]],
    }
    assert sum(count for _, count in depths["rows"]) == sum(count for _, count in news["rows"]) == 3
    assert set(drawing["specs"]) == {"by_step", "depths", "news"}
    assert all("$schema" not in specs[0] for specs in drawing["specs"].values())


def test_a_run_is_reckoned_only_if_asked(page: str) -> None:
    assert "A run here" in page
    assert "A run here" not in render(INFO)


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert render(INFO) == render(INFO)


def test_a_long_trace_is_drawn_in_part() -> None:
    steps = [step(f"t{i % 40}", i, 100 + i, line=i + 1) for i in range(40_000)]
    by_step = figures_of(look_at(trace(*steps)))[0]
    assert len(by_step.rows) == 3000
    assert len({row[0] for row in by_step.rows}) == 12
    assert "Drawn are the 12 of 40 tasks with the most steps." in by_step.about
    assert "Of their 12,000 steps 3,000 are drawn, evenly spaced." in by_step.about


def test_evenly_spaced_places() -> None:
    assert spaced(5, 5) == [0, 1, 2, 3, 4]
    assert spaced(5, 3) == [0, 2, 4]
    assert spaced(1000, 4) == [0, 333, 666, 999]
    assert spaced(9, 1) == [0]
    assert spaced(0, 3) == []


def test_the_file(tmp_path: Path) -> None:
    target = tmp_path / "trace.html"
    assert write(INFO, target) == target
    assert target.read_text(encoding="utf-8") == render(INFO)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.html"]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="this is a folder"):
        write(INFO, tmp_path)
    with pytest.raises(ReportError, match="the page cannot be written"):
        write(INFO, tmp_path / "missing" / "trace.html")

"""A run's report: one HTML file that needs nothing beside it, or Markdown for a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from experiment import report_data, report_md
from experiment.errors import ReportError
from experiment.html_page import TEMPLATES, environment, library, policy, script_json
from experiment.report_answers import answers
from experiment.report_charts import charts
from experiment.report_data import Report
from experiment.report_figure import Figure
from experiment.report_style import CONFIG
from experiment.report_tables import table
from experiment.sentences import answer
from experiment.whole_file import write_text

NAME = "report.html"

DATA = "data-"
"""Before a figure's key: the id of the element that holds its data."""

MAX_PRINTED = 60
"""Rows of a table that is printed; longer ones stay closed."""


def write(folder: Path, to: Path | None = None) -> Path:
    """Write the report of the last run in ``folder``, by default beside its database.

    Returns:
        where it is.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no steps.
        ReportError: the file cannot be written.
    """
    target = folder / NAME if to is None else to
    if target.is_dir():
        raise ReportError("this is a folder", where=str(target), hint=f"name a file, as {NAME}")
    page = render(report_data.load(folder))
    try:
        write_text(target, page)
    except OSError as error:
        raise ReportError(
            f"the report cannot be written: {error.strerror}",
            where=str(target),
            hint="name a file in a folder that is there and can be written",
        ) from error
    return target


def render(report: Report) -> str:
    """The page; the same bytes for the same results."""
    drawn = charts(report)
    scripts = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            run=report.comparison.run,
            answers=answers(report.comparison),
            sentences=answer(report.comparison),
            tables={key: table(figure) for key, figure in report.figures.items()},
            max_printed=MAX_PRINTED,
            charts={key: len(specs) for key, specs in drawn.items()},
            data={DATA + key: script_json(_data(figure)) for key, figure in report.figures.items()},
            drawing=script_json({"config": CONFIG, "specs": drawn}),
            policy=policy(scripts),
            style=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
            scripts=scripts,
        )
    )


def render_md(folder: Path) -> str:
    """The tables of the last run in ``folder`` for a pull request, as GitHub reads Markdown.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no steps.
    """
    return report_md.render(report_data.load(folder))


def figures_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The data of each figure by key, ``columns`` and ``rows``, as the report of ``folder`` has it.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no steps.
    """
    return {key: _data(figure) for key, figure in report_data.load(folder).figures.items()}


def figures_in(page: str) -> dict[str, dict[str, Any]]:
    """The data of each figure in a report's HTML; equal to `figures_of` of the run it is of.

    Raises:
        ReportError: there are none, or one is not what a report holds.
    """
    reader = _DataReader()
    reader.feed(page)
    reader.close()
    if not reader.found:
        raise ReportError("this HTML holds no data of figures", hint="is it a report of a run?")
    figures = {}
    for key, text in reader.found.items():
        try:
            figure = json.loads(text)
        except ValueError as error:
            raise ReportError(f"the data of figure {key} are not JSON: {error}") from error
        if not isinstance(figure, dict) or set(figure) != {"columns", "rows"}:
            raise ReportError(f"the data of figure {key} are not columns and rows")
        figures[key] = figure
    return figures


class _DataReader(HTMLParser):
    """Collects what the script elements with data hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._key: str | None = None

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        name = named.get("id") or ""
        if tag == "script" and named.get("type") == "application/json" and name.startswith(DATA):
            self._key = name.removeprefix(DATA)
            self.found[self._key] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._key = None

    def handle_data(self, data: str) -> None:
        if self._key is not None:
            self.found[self._key] += data


def _data(figure: Figure) -> dict[str, Any]:
    return {"columns": list(figure.columns), "rows": [list(row) for row in figure.rows]}

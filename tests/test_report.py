from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import pytest
from canned import canned_run, run_record
from canned_report import EVIL, whole_run

from experiment import report
from experiment.database import DATABASE
from experiment.errors import ReportError, StoreError
from experiment.store import Store

KEYS = (
    *("prefill_by_step", "prefill_by_depth", "install_by_depth"),
    *("ratios", "time_parts", "task_wall"),
)


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, texts by id, and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self._open: list[tuple[str, str]] = []
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        self._open.append((tag, named.get("id") or ""))
        if tag == "section":
            self._section = named.get("id") or ""
        elif tag == "tr":
            self.tables.setdefault(self._section, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1].append("")
        elif tag == "script" and "type" not in named:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass  # an element without an end, as <meta>

    def handle_data(self, data: str) -> None:
        tag, name = self._open[-1] if self._open else ("", "")
        if name:
            self.texts[name] = self.texts.get(name, "") + data
        if tag in ("td", "th"):
            self.tables[self._section][-1][-1] += data
        elif tag == "script" and not name:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("results") / "run", EVIL)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return report.write(folder).read_text(encoding="utf-8")


def test_the_report_lies_beside_the_database_or_where_it_is_wanted(
    tmp_path: Path, folder: Path, text: str
) -> None:
    assert (folder / "report.html").read_text(encoding="utf-8") == text
    target = tmp_path / "elsewhere.html"
    assert report.write(folder, target) == target
    # The same run, the same bytes; and nothing else is left behind.
    assert target.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [target]


def test_the_page_depends_on_the_results_only(tmp_path: Path, folder: Path, text: str) -> None:
    copy = tmp_path / "other name"
    copy.mkdir()
    for name in (DATABASE, "build.json", "host.json"):
        (copy / name).write_bytes((folder / name).read_bytes())
    assert report.write(copy).read_text(encoding="utf-8") == text
    assert str(folder) not in text


def test_the_answer_comes_first(text: str) -> None:
    body = text[text.index("<body>") :]
    places = [body.index(said) for said in ("8.00 ×", "1.0000", "+25.0 %", 'class="plot"')]
    assert places == sorted(places)


def test_nothing_is_loaded_and_only_the_scripts_of_the_page_run(text: str) -> None:
    page = Page(text)
    loading = {"src", "href", "srcset", "data", "action", "poster", "style"}
    assert not [(tag, named) for tag, named in page.tags if loading & set(named)]
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "img", "base", "form"}
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policies = [
        named["content"] or ""
        for tag, named in page.tags
        if named.get("http-equiv") == "Content-Security-Policy"
    ]
    (policy,) = policies
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in page.scripts
    ]
    assert len(hashes) == 2
    assert rules["script-src"].split() == hashes


def test_a_task_named_like_an_attack_is_only_a_name(text: str) -> None:
    page = Page(text)
    assert not [tag for tag, named in page.tags if "onerror" in named]
    assert EVIL not in text
    # It is there all the same: in tables, queries, charts and data.
    assert page.tables["prefill_by_step"][1][0] == EVIL
    assert EVIL in [row[0] for row in report.figures_in(text)["prefill_by_step"]["rows"]]
    drawing = json.loads(page.texts["drawing"])
    assert drawing["specs"]["prefill_by_step"][0]["title"] == EVIL
    for script in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S):
        assert not set("<>&") & set(script)


def test_what_the_database_names_is_escaped_everywhere(tmp_path: Path) -> None:
    folder = canned_run(tmp_path / "run")
    with duckdb.connect(str(folder / DATABASE)) as connection:
        for table in ("step", "measurement", "event", "expert"):
            connection.execute(f"UPDATE {table} SET run_id = ?", [EVIL])
        names = ("id", "name", "engine", "pin", "model", "patch_digest", "image_digest")
        connection.execute(f"UPDATE run SET {', '.join(f'{name} = $1' for name in names)}", [EVIL])
        connection.execute("UPDATE run SET settings = ?", [json.dumps({EVIL: EVIL})])
        connection.execute("UPDATE measurement SET error = ? WHERE error IS NOT NULL", [EVIL])
        connection.execute("UPDATE event SET kind = $1, message = $1, task_id = $1", [EVIL])
        connection.execute("INSERT INTO graph VALUES ($1, $1, $1)", [EVIL])
    (folder / "build.json").write_text(json.dumps({EVIL: [EVIL]}), encoding="utf-8")
    text = report.write(folder).read_text(encoding="utf-8")
    assert EVIL not in text
    assert len(re.findall("<script", text)) == len(KEYS) + 3  # data, specifications, two scripts
    assert not [named for _, named in Page(text).tags if "onerror" in named]
    assert text.count("&lt;img") >= 12


def test_each_plot_has_its_table_and_its_query_and_its_data(folder: Path, text: str) -> None:
    page = Page(text)
    figures = report.figures_in(text)
    assert tuple(figures) == KEYS
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        for key, figure in figures.items():
            head, *rows = page.tables[key]
            columns = [name.replace("\u200b", "") for name in head]
            assert columns == figure["columns"]
            assert len(rows) == len(figure["rows"]) > 0
            found = connection.execute(page.texts[f"query-{key}"])
            names = [column[0] for column in found.description]
            left_out = [name for name in columns if name not in names]
            assert all(name.endswith(("_low", "_high")) for name in left_out)
            for row, shown, exact in zip(found.fetchall(), rows, figure["rows"], strict=True):
                for name, value in zip(names, row, strict=True):
                    place = columns.index(name)
                    assert exact[place] == value
                    assert_shows(shown[place], value)


def assert_shows(cell: str, value: object) -> None:
    if value is None:
        assert cell == "–"
    elif isinstance(value, str):
        assert cell == value
    else:
        assert float(cell.replace(",", "")) == pytest.approx(value, rel=1e-4, abs=5.1e-3)


def test_the_data_in_the_page_are_those_of_the_run(folder: Path, text: str) -> None:
    assert report.figures_in(text) == report.figures_of(folder)


def test_an_unfinished_run_says_so_on_top(tmp_path: Path) -> None:
    for status, said in (("interrupted", True), ("finished", False)):
        page = report.write(canned_run(tmp_path / status, status=status)).read_text("utf-8")
        assert ("This run is <strong>interrupted</strong>" in page) == said


def test_a_run_without_steps_has_no_report(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.set_status("interrupted")
    with pytest.raises(StoreError, match="the run holds no steps"):
        report.write(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_hundred_thousand_steps_stay_below_five_megabytes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Store.create(folder, run_record()) as store:
        store.set_status("finished")
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute(
            "INSERT INTO step (run_id, task_id, step, line, depth, depth_unit, baseline_prefill_s, "
            "baseline_decode_s, baseline_exec_s) SELECT 'r1', repeat('long ', 20) || i // 50, "
            "i % 50, i + 1, 100 + i % 9973, 'tokens', 1, 2, 3 FROM range(100_000) AS t(i)"
        )
        connection.execute(
            "INSERT INTO measurement (run_id, task_id, step, variant, round, depth, prompt_n, "
            "prompt_ms, install_ms, encode_ms, status, started_at) SELECT 'r1', task_id, step, v, "
            "0, depth, 200 + step, 100 + depth / 7, 0.3, 1.7, 'ok', TIMESTAMP '2026-11-30' "
            "FROM step, unnest(['fake', 'restored', 'full', 'arithmetic']) AS u(v)"
        )
    path = report.write(folder)
    assert path.stat().st_size < 5_000_000
    figures = report.figures_in(path.read_text(encoding="utf-8"))
    assert len(figures["prefill_by_depth"]["rows"]) == 1000


def test_a_failed_write_leaves_the_old_report_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = canned_run(tmp_path / "run")
    (folder / "report.html").write_text("old", encoding="utf-8")

    def full(self: Path, *_: object, **__: object) -> int:
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ReportError, match="No space left on device") as caught:
        report.write(folder)
    assert caught.value.where == str(folder / "report.html")
    assert (folder / "report.html").read_bytes() == b"old"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", DATABASE]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = canned_run(tmp_path / "run")
    with pytest.raises(ReportError, match="this is a folder") as caught:
        report.write(folder, tmp_path)
    assert caught.value.hint == "name a file, as report.html"
    with pytest.raises(ReportError, match="No such file or directory") as caught:
        report.write(folder, tmp_path / "none" / "report.html")
    assert caught.value.where == str(tmp_path / "none" / "report.html")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "holds no data of figures"),
        ("<script>1</script><p id='data-x'>{}</p>", "holds no data of figures"),
        ('<script type="application/json" id="data-x">{</script>', "of figure x are not JSON"),
        ('<script type="application/json" id="data-x">[]</script>', "x are not columns and rows"),
        (
            '<script type="application/json" id="data-x">{"rows": []}</script>',
            "x are not columns and rows",
        ),
    ],
)
def test_what_is_no_report_is_refused(page: str, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        report.figures_in(page)

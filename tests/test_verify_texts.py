"""Report, claims and guide that do not say what the results do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from canned_archive import Handoff, change_database, handoff

from experiment import verify_texts
from experiment.errors import ExperimentError


@pytest.fixture
def made(tmp_path: Path) -> Handoff:
    return handoff(tmp_path / "top")


@pytest.fixture
def made_before(made: Handoff, monkeypatch: pytest.MonkeyPatch) -> Handoff:
    """The same, where what is made anew is what `test_a_right_…` have found to be made."""
    page = made.path("report.html").read_text()
    monkeypatch.setattr(verify_texts.report, "render", lambda report: page)
    claims = verify_texts.claiming.read(made.path("claims.toml").read_text(), "claims.toml")
    monkeypatch.setattr(verify_texts.claiming, "make", lambda folder: claims)
    return made


def sentence(check: Callable[[], object]) -> str:
    with pytest.raises(ExperimentError) as caught:
        check()
    return str(caught.value)


def replaced(made: Handoff, name: str, old: str, new: str) -> None:
    assert made.path(name).read_text().count(old) >= 1
    made.change(name, lambda data: data.replace(old.encode(), new.encode(), 1))


# --- report ---


def test_a_right_report(made: Handoff) -> None:
    said = verify_texts.page(made.top)
    assert said == "made anew, it is the same, 6 figures and every text"


def scaled(made: Handoff, factor: float) -> None:
    """Multiply a time in the data of the first figure."""
    page = made.path("report.html").read_text()
    start = page.index('id="data-')
    found = re.compile(r"(?<=,)[0-9]+\.[0-9]+(?=,)").search(page, start)
    assert found is not None
    changed = repr(float(found[0]) * factor)
    assert changed != found[0]
    made.path("report.html").write_text(page[: found.start()] + changed + page[found.end() :])


def test_a_figure_whose_last_digit_differs_is_the_same(made_before: Handoff) -> None:
    # As sums in another order give it.
    scaled(made_before, 1 + 1e-14)
    assert (
        verify_texts.page(made_before.top) == "6 figures are those of the results, and every text"
    )


def test_a_changed_figure_is_found(made_before: Handoff) -> None:
    scaled(made_before, 1 + 1e-6)
    said = sentence(lambda: verify_texts.page(made_before.top))
    assert said == "the data of its figure prefill_by_step are not those of the results"


def test_a_changed_answer_is_found(made_before: Handoff) -> None:
    before = made_before.path("report.html").read_text()
    start = before.index("<h1")
    text = before[start : start + 2000]
    word = next(word for word in text.split() if word.endswith("×") or word.isalpha())
    replaced(made_before, "report.html", word, f"{word}99")
    said = sentence(lambda: verify_texts.page(made_before.top))
    assert "99" in said
    assert " where the results give " in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("</body>", "<script>alert(1)</script></body>", "it says '<script>' where the results"),
        ("</body>", '<p class="x">no</p></body>', "it says '<p class=\"x\">' where the results"),
        ("</body>", "<!-- a note --></body>", "it says 'a note' where the results give"),
        ("<body>\n", '<body onload="x()">\n', "it says '<body onload=\"x()\">' where the results"),
        ("</html>", "</html>more", "it is longer or shorter than the results make it"),
    ],
)
def test_something_more_on_the_page_is_found(
    made_before: Handoff, old: str, new: str, said: str
) -> None:
    # The last one: the library of the charts holds HTML as well.
    before, _, after = made_before.path("report.html").read_text().rpartition(old)
    made_before.path("report.html").write_text(before + new + after)
    assert said in sentence(lambda: verify_texts.page(made_before.top))


def test_a_report_of_other_results(made: Handoff) -> None:
    change_database(made.top / "results", "UPDATE measurement SET prompt_ms = prompt_ms + 1")
    assert "the data of its figure" in sentence(lambda: verify_texts.page(made.top))


def test_a_page_that_is_none(made_before: Handoff) -> None:
    made_before.path("report.html").write_text("hello")
    assert "this HTML holds no data of figures" in sentence(
        lambda: verify_texts.page(made_before.top)
    )


# --- claims ---


def claimed(made: Handoff) -> str:
    return verify_texts.claimed(made.top)


def test_right_claims(made: Handoff) -> None:
    assert claimed(made) == "15 claims: each query gives what is claimed"


CLAIM_CHANGES = {
    "value": (
        "SELECT speedup FROM run_comparison",
        "SELECT 2 * speedup FROM run_comparison",
        "speedup: its query gives ",
    ),
    "comment": ("format = 1", "format = 1 # one", "it is not written as handoff writes it"),
    "why": ('why = "', 'why = "x', "speedup: its why is not the one of these results"),
    "sentence": (
        'sentence = "',
        'sentence = "x',
        "speedup: its sentence is not the one of these results",
    ),
    "tolerance": (
        "tolerance = { relative = 0.3,",
        "tolerance = { relative = 0.9,",
        "speedup: its tolerance is not the one of these results",
    ),
    "elsewhere": (
        "elsewhere = true",
        "elsewhere = false",
        "speedup: its judged_elsewhere is not the one of these results",
    ),
    "key": ('key = "speedup"', 'key = "faster"', "faster: the results do not support such a claim"),
    "field": ('key = "speedup"', 'ky = "speedup"', "claims.toml: claim 1: ky: is not a field"),
    "query": ("SELECT speedup FROM", "SELEC speedup FROM", "claim speedup: query: is not SQL"),
    "a query that writes": (
        "SELECT speedup FROM run_comparison",
        "DELETE FROM run",
        "claim speedup: query: is not a single SELECT",
    ),
    "a query that reads files": (
        "SELECT speedup FROM run_comparison",
        "SELECT count(*) FROM read_text('/etc/passwd')",
        "file system operations are disabled",
    ),
    "a query for text": (
        "SELECT speedup FROM run_comparison",
        "SELECT 'x'",
        "gives a str, not a number",
    ),
}


@pytest.mark.parametrize("kind", CLAIM_CHANGES)
def test_a_changed_claim_is_found(made_before: Handoff, kind: str) -> None:
    old, new, said = CLAIM_CHANGES[kind]
    replaced(made_before, "claims.toml", old, new)
    assert said in sentence(lambda: claimed(made_before))


def test_another_value_is_found(made_before: Handoff) -> None:
    # The sums of full over fake: (1100 + 880) / ((120 - 10) + (222 - 2))
    text = made_before.path("claims.toml").read_text()
    assert "\nexpected = 6.0\n" in text
    replaced(made_before, "claims.toml", "\nexpected = 6.0\n", "\nexpected = 7.5\n")
    assert sentence(lambda: claimed(made_before)) == (
        "speedup: its query gives 6.0, the claim says 7.5"
    )


def test_a_claim_less_and_claims_in_another_order(made_before: Handoff) -> None:
    text = made_before.path("claims.toml").read_text()
    head, first, second, *rest = text.split("\n[[claim]]\n")
    made_before.path("claims.toml").write_text("\n[[claim]]\n".join([head, second, *rest]))
    assert sentence(lambda: claimed(made_before)) == "speedup: this claim of the results is missing"
    made_before.path("claims.toml").write_text("\n[[claim]]\n".join([head, second, first, *rest]))
    assert sentence(lambda: claimed(made_before)) == "the claims are not in order"


# --- guide ---


def test_a_right_guide(made: Handoff) -> None:
    lines = len(made.path("REPRODUCE.md").read_text().splitlines())
    said = verify_texts.guide(made.top, made.manifest())
    assert said == f"its {lines} lines are what this program writes"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("./inv doctor", "curl example.org | sh", "says 'curl example.org | sh' where the results"),
        ("# Reproduce", "# reproduce", "line 1 says '# reproduce"),
    ],
)
def test_a_changed_guide_is_found(made: Handoff, old: str, new: str, said: str) -> None:
    replaced(made, "REPRODUCE.md", old, new)
    assert said in sentence(lambda: verify_texts.guide(made.top, made.manifest()))


def test_a_guide_with_more_in_it(made: Handoff) -> None:
    made.change("REPRODUCE.md", lambda data: data + b"and more\n")
    said = sentence(lambda: verify_texts.guide(made.top, made.manifest()))
    assert said.startswith("it has ")

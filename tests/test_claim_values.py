"""Running the queries of claims: one number each, and nothing else that a query could do."""

from __future__ import annotations

from pathlib import Path

import pytest
from canned import canned_run

from experiment import claim_process, claim_values
from experiment.claim_file import Claim
from experiment.claim_values import values
from experiment.database import DATABASE, connect
from experiment.errors import ClaimError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canned_run(tmp_path_factory.mktemp("results") / "run")


def claim(query: str, key: str = "k") -> Claim:
    return Claim(key, "A sentence.", query, 0, 0.0, False, True, "Because.")


def test_a_figure_a_key(folder: Path) -> None:
    # 1980 / 330; 1100 / 110 and 880 / 220.
    asked = [
        claim("SELECT speedup FROM run_comparison", "whole"),
        claim("SELECT max(speedup) FROM step_comparison", "most"),
        claim("FROM (SELECT count(*) FROM step)", "steps"),
        claim("SELECT speedup FROM step_comparison WHERE task_id = 'b';", "nothing"),
    ]
    assert values(folder, asked) == {"whole": 6.0, "most": 10.0, "steps": 3, "nothing": None}
    assert values(folder, []) == {}


def test_only_the_wanted_steps_are_seen(folder: Path) -> None:
    asked = [
        claim("SELECT speedup FROM run_comparison", "speedup"),
        claim("SELECT count(*) FROM step", "steps"),
    ]
    assert values(folder, asked, [("a", 2), ("c", 9)]) == {"speedup": 4.0, "steps": 1}
    assert values(folder, asked, {("b", 1)}) == {"speedup": None, "steps": 1}


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("1.5", 1.5),  # a DECIMAL
        ("0.1::DOUBLE", 0.1),
        ("sum(i) FROM range(4) AS t (i)", 6),  # a HUGEINT
        ("1e300", 1e300),
        ("NULL", None),
        ("NULL::VARCHAR", None),
    ],
)
def test_numbers_of_every_type(folder: Path, number: str, value: float | None) -> None:
    found = values(folder, [claim(f"SELECT {number}")])
    assert found == {"k": value}
    assert type(found["k"]) is type(value)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT depth FROM step", "gives more than one row of 1 columns, not one number"),
        ("SELECT 1 WHERE FALSE", "gives 0 rows of 1 columns, not one number"),
        ("SELECT 1, 2", "gives 1 rows of 2 columns, not one number"),
        ("SELECT 'seven'", "gives a str, not a number"),
        ("SELECT TRUE", "gives a bool, not a number"),
        ("SELECT DATE '2026-11-30'", "gives a date, not a number"),
        ("SELECT [1]", "gives a list, not a number"),
        ("SELECT 'nan'::DOUBLE", "gives nan, which is no figure"),
        ("SELECT '-inf'::DOUBLE", "gives -inf, which is no figure"),
        ("SELECT nothing FROM run", 'Referenced column "nothing" not found'),
        ("SELECT speedup FROM main.nowhere", "nowhere does not exist"),
    ],
)
def test_anything_but_one_number_is_refused(folder: Path, query: str, problem: str) -> None:
    with pytest.raises(ClaimError) as caught:
        values(folder, [claim("SELECT 1", "good"), claim(query, "bad"), claim("SELECT 2", "last")])
    assert problem in caught.value.what
    assert caught.value.where == "claim bad: query"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM measurement",
        "SELECT 1; DROP TABLE measurement",
        "COPY run TO 'stolen.csv'",
        "EXPORT DATABASE 'stolen'",
        "ATTACH 'other.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CREATE TEMP TABLE run AS SELECT 1",
        "EXPLAIN SELECT 1",
        "",
    ],
)
def test_only_a_single_select_is_run(folder: Path, query: str) -> None:
    with pytest.raises(ClaimError, match="not a single SELECT statement"):
        values(folder, [claim(query)])


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT count(*) FROM read_csv('{secret}')", "file system operations are disabled"),
        (
            "SELECT length(content) FROM read_text('{secret}')",
            "file system operations are disabled",
        ),
        ("SELECT count(*) FROM glob('{secret}*')", "file system operations are disabled"),
        ("SELECT count(*) FROM '{secret}'", "file system operations are disabled"),
        ("SELECT count(*) FROM query('DROP TABLE run')", "single SELECT statement"),
        (
            "WITH d AS (DELETE FROM measurement RETURNING 1 AS one) SELECT sum(one) FROM d",
            "read-only",
        ),
        ("SELECT speedup FROM old.main.run_comparison", "does not exist"),
        ("SELECT len(range(2000000000))", "Out of Memory"),
        ("SELECT length(repeat('x', 4000000000))", "Out of Memory"),
    ],
)
def test_a_query_reaches_nothing_else(
    folder: Path, tmp_path: Path, query: str, problem: str
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    before = (folder / DATABASE).read_bytes()
    with pytest.raises(ClaimError) as caught:
        values(folder, [claim(query.format(secret=secret))])
    assert problem in caught.value.what
    assert (folder / DATABASE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_query_that_does_not_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_values, "TIME_LIMIT_S", 3.0)
    endless = "SELECT count(*) FROM range(1000000000) AS a, range(1000000000) AS b"
    with pytest.raises(ClaimError, match="the time for all queries, 3 s, is over") as caught:
        values(folder, [claim("SELECT 1", "quick"), claim(endless, "endless")])
    assert caught.value.where == "claim endless: query"


def test_a_query_that_breaks_the_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import os; print('{\"value\": 1}'); print('{\"val', end='', flush=True); 1/0"
    )
    monkeypatch.setattr(claim_process, "__file__", str(broken))
    with pytest.raises(ClaimError, match=r"ended the process that ran it \(code 1\)") as caught:
        values(folder, [claim("SELECT 1", "good"), claim("SELECT 2", "bad")])
    assert caught.value.where == "claim bad: query"


def test_an_altered_view_does_not_answer(tmp_path: Path) -> None:
    folder = canned_run(tmp_path)
    with connect(folder / DATABASE, read_only=False) as connection:
        connection.execute("CREATE OR REPLACE VIEW run_comparison AS SELECT 99 AS speedup")
    asked = [claim("SELECT speedup FROM run_comparison")]
    assert values(folder, asked) == {"k": 6.0}

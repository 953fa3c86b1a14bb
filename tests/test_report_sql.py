from __future__ import annotations

import duckdb
import pytest

from experiment.report_sql import Bins, bins, number, ratios, text


@pytest.mark.parametrize(
    ("low", "high", "wished", "found"),
    [
        # 0.2 over 10 bins: 0.02; 0.9 is the start of the 46th.
        (0.9, 1.1, 10, Bins(45, 11, 2, 100)),
        # 0.07 / 10 = 0.007: the next round width is 0.01.
        (0.97, 1.04, 10, Bins(97, 8, 1, 100)),
        # 0.04 / 10 = 0.004: 0.005.
        (0.98, 1.02, 10, Bins(196, 9, 5, 1000)),
        # 60 / 10 = 6: 10.
        (0.0, 60.0, 10, Bins(0, 7, 10, 1)),
        # All ratios are the same: the smallest width, 0.00001.
        (1.0, 1.0, 10, Bins(100_000, 1, 1, 100_000)),
    ],
)
def test_bins_are_round_and_cover_the_values(
    low: float, high: float, wished: int, found: Bins
) -> None:
    assert bins(low, high, wished) == found


def test_a_float_is_written_so_that_it_is_read_as_the_same_double() -> None:
    for value in (0.1, -1.5, 123456789.12345679, 4.309e-05, 1e300, 3.0):
        ((found, kind),) = duckdb.sql(
            f"SELECT x, typeof(x) FROM (SELECT {number(value)} AS x)"
        ).fetchall()
        assert (found, kind) == (value, "DOUBLE")


def test_a_quote_in_a_text_stays_in_it() -> None:
    evil = "o'brien'; DROP TABLE step; --"
    assert duckdb.sql(f"SELECT {text(evil)}").fetchall() == [(evil,)]


def test_ratios_fall_into_their_bins_and_beyond_them() -> None:
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE pair AS SELECT 'r' AS run_id, * FROM (VALUES (0.5, 1.01), (0.981, 1.02), "
            "(0.999, 1.001), (1.001, NULL), (NULL, 9.0)) AS v(ratio, aa_ratio)"
        )
        connection.execute("INSERT INTO pair VALUES ('other', 1.0, 1.0)")
        rows = connection.execute(ratios("r", Bins(49, 2, 2, 100))).fetchall()
    # Bins from 0.98, each 0.02 wide; a bin holds its lower end and not its upper one.
    assert rows == [
        (None, 0.98, 1, 0),
        (0.98, 1.0, 2, 0),
        (1.0, 1.02, 1, 2),
        (1.02, None, 0, 2),
    ]

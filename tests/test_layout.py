"""The rows of a long table that are shown."""

from __future__ import annotations

import pytest

from experiment.layout import MAX_ROWS, Page, markdown, shortened, terminal


@pytest.mark.parametrize("number", [0, 1, MAX_ROWS - 1, MAX_ROWS, MAX_ROWS + 1, 3 * MAX_ROWS])
def test_the_first_and_the_last_rows_are_left(number: int) -> None:
    rows = list(range(number))
    kept, found = shortened(iter(rows))
    assert found == number
    if number <= MAX_ROWS:
        assert kept == rows
    else:
        assert kept == [*rows[: MAX_ROWS // 2], *rows[-MAX_ROWS // 2 :]]


@pytest.mark.parametrize("number", [3, MAX_ROWS, MAX_ROWS + 1, 5 * MAX_ROWS])
def test_a_table_that_was_shortened_is_the_same(number: int) -> None:
    rows = [[f"row {place}", str(place)] for place in range(number)]
    kept, found = shortened(rows)

    def page(shown: list[list[str]], number: int | None) -> Page:
        return Page("t", ["a", "b"], shown, None, "", [], [], "f", number=number)

    for write in (terminal, markdown):
        assert write(page(kept, found)) == write(page(rows, None))

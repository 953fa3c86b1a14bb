"""The file of claims: an exact round trip, a strict reader, and when a value holds."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.claim_file import Claim, read, write
from experiment.errors import ClaimError

BAD = sorted((Path(__file__).parent / "bad" / "claims").glob("*.toml"))

CLAIM = Claim(
    key="speedup",
    sentence="Full takes 7.00 times as long as fake.",
    query="SELECT speedup\nFROM run_comparison\n",
    expected=7.0,
    tolerance=0.5,
    is_relative=False,
    judged_elsewhere=True,
    why="Machines differ.",
)

TEXT = '''\
format = 1

[[claim]]
key = "speedup"
sentence = "Full takes 7.00 times as long as fake."
query = """
SELECT speedup
FROM run_comparison
"""
expected = 7.0
tolerance = { absolute = 0.5, elsewhere = true }
why = "Machines differ."

[[claim]]
key = "seconds"
sentence = "It takes \\"10\\" s."
query = "SELECT 10"
expected = 10
tolerance = { relative = 0.25, elsewhere = false }
why = "A time."
'''

SECONDS = Claim("seconds", 'It takes "10" s.', "SELECT 10", 10, 0.25, True, False, "A time.")


def test_the_file_as_it_is_written() -> None:
    assert write([CLAIM, SECONDS]) == TEXT
    assert read(TEXT, "claims.toml") == (CLAIM, SECONDS)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(1 - 2**63, 2**63 - 1)


@given(
    sentence=TEXTS,
    why=TEXTS,
    comment=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r")),
    expected=NUMBERS,
    tolerance=st.floats(0, allow_infinity=False),
)
def test_the_round_trip_is_exact(
    sentence: str, why: str, comment: str, expected: float, tolerance: float
) -> None:
    query = f"SELECT 1 -- {comment}\r\nFROM run"
    claim = Claim("a_1", sentence, query, expected, tolerance, True, False, why)
    text = write([claim])
    assert tomllib.loads(text)["claim"][0]["query"] == query
    (found,) = read(text, "claims.toml")
    assert found == claim
    assert repr(found) == repr(claim)  # 1 and 1.0, 0.0 and -0.0 are equal
    assert write([found]) == text


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_file_gives_its_sentence(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    told = [line for line in text.splitlines() if line.startswith("#= ")]
    with pytest.raises(ClaimError) as caught:
        read(text, path.name)
    expected = "\n".join(line.removeprefix("#= ") for line in told)
    assert str(caught.value) == expected.replace("{file}", path.name)


def test_there_are_bad_files() -> None:
    assert len(BAD) > 40


@pytest.mark.parametrize(
    ("value", "holds", "outside_by"),
    [
        (7.0, True, 0.0),
        (7.5, True, 0.0),
        (6.5, True, 0.0),
        (7.75, False, 0.25),
        (6.0, False, 0.5),
        (-7.0, False, 13.5),
    ],
)
def test_an_absolute_tolerance(value: float, holds: bool, outside_by: float) -> None:
    assert CLAIM.holds(value) is holds
    assert CLAIM.outside_by(value) == outside_by


@pytest.mark.parametrize("expected", [-8.0, 8.0])
def test_a_relative_tolerance_is_a_share_of_the_size(expected: float) -> None:
    claim = replace(CLAIM, expected=expected, tolerance=0.25, is_relative=True)
    assert claim.allowed == 2.0
    assert [claim.holds(expected + away) for away in (-2.5, -2.0, 0.0, 2.0, 2.5)] == [
        *(False, True, True, True, False)
    ]


def test_an_exact_claim_holds_for_its_value_alone() -> None:
    claim = replace(CLAIM, expected=23, tolerance=0.0)
    assert [claim.holds(value) for value in (22, 23, 23.0, 24)] == [False, True, True, False]


def test_no_value_never_holds() -> None:
    assert not CLAIM.holds(None)
    assert not replace(CLAIM, expected=0).is_reproduced_by(None)


def test_the_same_data_give_the_same_figure_whatever_the_tolerance() -> None:
    claim = replace(CLAIM, expected=5.453031538702721)
    assert claim.is_reproduced_by(5.4530315387027235)
    assert not claim.is_reproduced_by(5.45303)
    count = replace(CLAIM, expected=1_000_000)
    assert not count.is_reproduced_by(1_000_001)
    assert not replace(CLAIM, expected=0).is_reproduced_by(1e-6)

"""A claim, and the file ``claims.toml`` that holds a run's claims: reading it strictly, writing it.

The file is written by hand, a field a line, so that the same claims give the same bytes and a
query can be copied out of it as it is.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import duckdb

from experiment.errors import ClaimError
from experiment.strict_json import shown

FORMAT = 1
"""Of the file; raised by a change that an older reader cannot take."""

MAX_TEXT = 10_000
"""Characters of a claim's text."""

SAME = 1e-9
"""Difference, absolute or relative, of a figure that is worked out twice from the same data: sums
in another order, or by another version of DuckDB, differ by far less."""

_KEY = re.compile(r"[a-z][a-z0-9_]{0,59}")
_TEXTS = ("sentence", "query", "why")
_FIELDS = ("key", "sentence", "query", "expected", "tolerance", "why")


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that a run is said to show.

    Attributes:
        key: its name, lower-case letters, digits and underscores.
        sentence: what is claimed, the value included.
        query: SQL on the tables and views of ``schemas/results.sql`` that gives the figure.
        expected: the figure.
        tolerance: how far from ``expected`` another run's may be; in its unit, or as a share of it.
        is_relative: whether ``tolerance`` is a share of ``expected``.
        judged_elsewhere: whether it is to hold on another machine too; timings are not.
        why: why this tolerance.
    """

    key: str
    sentence: str
    query: str
    expected: float | int
    tolerance: float
    is_relative: bool
    judged_elsewhere: bool
    why: str

    @property
    def allowed(self) -> float:
        """The tolerance in the unit of ``expected``."""
        return self.tolerance * abs(self.expected) if self.is_relative else self.tolerance

    def holds(self, value: float | int | None) -> bool:
        """Whether another run's value is within the tolerance; None (no data) is not."""
        return value is not None and abs(value - self.expected) <= self.allowed

    def outside_by(self, value: float | int) -> float:
        """How far a value is beyond the tolerance, in its unit; 0 within it."""
        return 0.0 if self.holds(value) else abs(value - self.expected) - self.allowed

    def is_reproduced_by(self, value: float | int | None) -> bool:
        """Whether a value of the very same data is the figure itself, whatever the tolerance."""
        return value is not None and math.isclose(value, self.expected, rel_tol=SAME, abs_tol=SAME)


def query_problem(query: str) -> str | None:
    """Why a query must not be run, or None. It is only parsed."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        return f"is not SQL: {str(error).strip().splitlines()[0]}"
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        return "is not a single SELECT statement"
    if statements[0].named_parameters:
        return "has parameters, which nobody fills in"
    return None


def write(claims: Iterable[Claim]) -> str:
    """The text of ``claims.toml``; ``read`` gives the same claims back, to the last digit."""
    return "\n".join([f"format = {FORMAT}\n", *(_table(claim) for claim in claims)])


def _table(claim: Claim) -> str:
    unit = "relative" if claim.is_relative else "absolute"
    elsewhere = "true" if claim.judged_elsewhere else "false"
    return (
        "[[claim]]\n"
        f"key = {_string(claim.key)}\n"
        f"sentence = {_string(claim.sentence)}\n"
        f"query = {_lines(claim.query)}\n"
        f"expected = {claim.expected!r}\n"
        f"tolerance = {{ {unit} = {claim.tolerance!r}, elsewhere = {elsewhere} }}\n"
        f"why = {_string(claim.why)}\n"
    )


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(text: str, plain: str = "") -> str:
    def one(character: str) -> str:
        if character in plain:
            return character
        if character in _ESCAPES:
            return _ESCAPES[character]
        return f"\\u{ord(character):04x}" if character < " " or character == "\x7f" else character

    return "".join(map(one, text))


def _string(text: str) -> str:
    return f'"{_escaped(text)}"'


def _lines(text: str) -> str:
    """A string, over as many lines as it has; the break behind the quotes is not part of it."""
    if "\n" not in text:
        return _string(text)
    inner = _escaped(text, plain="\n")
    return f'"""\n{inner}"""'


def read(text: str, where: str) -> tuple[Claim, ...]:
    """The claims that the text of a ``claims.toml`` holds, in their order.

    Args:
        text: of the file.
        where: its name, for messages.

    Raises:
        ClaimError: it is not TOML, or a claim is malformed; says which claim and field.
    """
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ClaimError(f"is not TOML: {what}", where=where) from None
    for name in value:
        if name not in ("format", "claim"):
            raise ClaimError("is not a field", where=f"{where}: {_name(name)}")
    if value.get("format") != FORMAT or isinstance(value["format"], bool):
        raise ClaimError(
            f"is {shown(value.get('format'))}; this program reads {FORMAT}",
            where=f"{where}: format",
        )
    tables = value.get("claim")
    if not isinstance(tables, list) or not tables:
        raise ClaimError("holds no claim", where=where, hint="a claim begins with [[claim]]")
    claims: dict[str, Claim] = {}
    for number, table in enumerate(tables, 1):
        claim = _claim(table, number, where)
        if claim.key in claims:
            raise ClaimError("is the key of two claims", where=f"{where}: claim {claim.key}: key")
        claims[claim.key] = claim
    return tuple(claims.values())


def _claim(table: object, number: int, where: str) -> Claim:
    if not isinstance(table, dict):
        raise ClaimError(f"{shown(table)} is not a table", where=f"{where}: claim {number}")
    key = table.get("key")
    is_key = isinstance(key, str) and _KEY.fullmatch(key)
    place = f"{where}: claim {key if is_key else number}"

    def refuse(field: str, problem: str) -> ClaimError:
        return ClaimError(problem, where=f"{place}: {field}")

    for name in table:
        if name not in _FIELDS:
            raise refuse(_name(name), "is not a field")
    for name in _FIELDS:
        if name not in table:
            raise refuse(name, "is missing")
    if not is_key:
        raise refuse("key", f"{shown(key)} is no name of lower-case letters, digits and _")
    for name in _TEXTS:
        text = table[name]
        if not isinstance(text, str) or not text.strip():
            raise refuse(name, f"{shown(text)} is no text")
        if len(text) > MAX_TEXT:
            raise refuse(name, f"has {len(text):,} characters; at most {MAX_TEXT:,} are allowed")
    problem = query_problem(table["query"])
    if problem:
        raise refuse("query", problem)
    if not _is_number(table["expected"]):
        raise refuse("expected", f"{shown(table['expected'])} is not a number")
    problem = _tolerance_problem(table["tolerance"])
    if problem:
        raise refuse("tolerance", problem)
    tolerance: Mapping[str, Any] = table["tolerance"]
    is_relative = "relative" in tolerance
    return Claim(
        key=table["key"],
        sentence=table["sentence"],
        query=table["query"],
        expected=table["expected"],
        tolerance=tolerance["relative" if is_relative else "absolute"],
        is_relative=is_relative,
        judged_elsewhere=tolerance["elsewhere"],
        why=table["why"],
    )


def _tolerance_problem(value: object) -> str | None:
    if not isinstance(value, dict):
        return f"{shown(value)} is not a table"
    units = [unit for unit in ("absolute", "relative") if unit in value]
    if len(units) != 1:
        return "needs one of absolute and relative"
    size = value[units[0]]
    if not _is_number(size) or size < 0:
        return f"{units[0]} is {shown(size)}, not a number from 0 on"
    if not isinstance(value.get("elsewhere"), bool):
        return f"elsewhere is {shown(value.get('elsewhere'))}, not true or false"
    unknown = sorted(value.keys() - {units[0], "elsewhere"})
    return f"{_name(unknown[0])} is not a field" if unknown else None


def _is_number(value: object) -> TypeGuard[float | int]:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) < 1 << 63  # TOML's range; Python's has no end
    return isinstance(value, float) and math.isfinite(value)


def _name(name: str) -> str:
    """A name from the file, escaped unless it is plain."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else shown(name)

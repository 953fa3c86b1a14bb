"""Checks a value against a JSON schema and says each problem in a sentence that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from experiment.strict_json import shown

TYPE_NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "object": "an object",
}

Reasons = Mapping[tuple[str, str], str]
"""Reasons by field and schema keyword, for keywords that do not speak for themselves (``not``)."""


def schema_problems(validator: Draft202012Validator, value: object, reasons: Reasons) -> list[str]:
    """Each problem of ``value`` as ``FIELD: REASON``, in the schema's order; none if valid."""
    found = (
        f"{field}: {reason}" if field else f"the row: {reason}"
        for error in validator.iter_errors(value)
        for field, reason in _explained(error, reasons)
    )
    return list(dict.fromkeys(found))


def _explained(error: ValidationError, reasons: Reasons) -> Iterator[tuple[str, str]]:
    field = ".".join(str(part) for part in error.absolute_path)
    # A problem that came out of iter_errors() has these set.
    limit: Any = error.validator_value
    value: Any = error.instance
    schema: Any = error.schema
    given = reasons.get((field, str(error.validator)))
    if given:
        yield field, given
        return
    match error.validator:
        case "required":
            for name in limit:
                if name not in value:
                    yield _member(field, name), "is missing"
        case "additionalProperties":
            known = list(schema["properties"])
            for name in value:
                if name not in known:
                    yield _member(field, name), _unknown(name, known)
        case "type":
            names = [limit] if isinstance(limit, str) else limit
            wanted = " or ".join(TYPE_NAMES[name] for name in names)
            yield field, f"{shown(value)} is not {wanted}"
        case "enum":
            yield field, f"{shown(value)} is none of {', '.join(map(repr, limit))}"
        case "minimum":
            yield field, f"{shown(value)} is less than {limit}"
        case "maximum":
            yield field, f"{shown(value)} is more than {limit}"
        case "minLength":
            yield field, "is empty"
        case "maxLength":
            yield field, f"has {len(value)} characters; at most {limit} are allowed"
        case _:
            yield field, f"breaks the rule {error.validator!r} of the schema"


def _member(field: str, name: str) -> str:
    # A known name is plain; an unknown one may hold anything, and is shown escaped.
    plain = name if name.isidentifier() and len(name) <= 60 else shown(name)
    return f"{field}.{plain}" if field else plain


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:60], known, n=1)
    return f"is not a field; did you mean {near[0]!r}?" if near else "is not a field"

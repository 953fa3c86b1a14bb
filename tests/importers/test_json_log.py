"""JSON logs: lines or one document, where each record stands, and what is read of a beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers import json_log
from experiment.importers.base import Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import first_objects, records
from experiment.progress import SilentProgress


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path) -> list[tuple[object, str]]:
    """The member ``n`` of each record, and its place."""
    return [
        (record.members.get("n"), record.where.removeprefix(str(path)))
        for record in records(path, SilentProgress())
    ]


def refused(path: Path) -> str:
    with pytest.raises(TraceImportError) as caught:
        read(path)
    return str(caught.value).replace(str(path), "LOG")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"n": 1}\n\n{"n": 2}\n', [(1, ":1"), (2, ":3")]),
        ('\ufeff{"n": 1}\n', [(1, ":1")]),
        ('{"n": 1}', [(1, ":1")]),
        ('{\n "n": 1\n}\n', [(1, ":1")]),
        ('[{"n": 1}, {"n": 2},\n {"n": 3}]', [(1, ":1"), (2, ":1"), (3, ":2")]),
        ('\n[\n{"n": [1,\n2]},\n\n{"n": 2}\n]', [([1, 2], ":3"), (2, ":6")]),
        ("[]", []),
        ("[\n\n]\n", []),
        # Python refuses to read an integer of so many digits.
        (f'[{{"n": 0, "big": {"9" * 5000}}},\n{{"n": 2}}]', [(0, ":1"), (2, ":2")]),
    ],
)
def test_records_and_their_places(
    text: str, found: list[tuple[object, str]], tmp_path: Path
) -> None:
    assert read(written(tmp_path, text)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7\n", "LOG:1: 7 is not a JSON object"),
        ("[\n7]\n", "LOG:2: 7 is not a JSON object"),
        ('{"n": 1}\n7\n', "LOG:2: the line is 7, not a JSON object"),
        ('[{"n": 1},\n', "LOG:2: the document is not JSON: Expecting value (column 1)"),
        ('[{"n": 1, "n": 2}]', "LOG: the document names 'n' twice in one object"),
        (b'[{"n": "\xff"}]', "LOG: the document is not UTF-8 (byte 9 of the line)"),
        ("[" * 100_000 + "]" * 100_000, "LOG: the document is nested too deeply"),
    ],
)
def test_what_is_no_log_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert refused(written(tmp_path, text)) == message


def test_document_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_log, "MAX_DOCUMENT_BYTES", 1 << 20)
    path = written(tmp_path, '[{"n": "' + "x" * (1 << 20) + '"}]')
    assert refused(path) == "LOG: the document is larger than 1 MiB"


def test_absent_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == "LOG: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ('{"n": 1}\nno\n{"n": 2}\n{"n": ', [1, 2]),
        ('{\n "n": 1\n}', [1]),
        ('[{"n": 1}, {"n": 2}]', [1, 2]),
        ('[{"n": 1}, {"n": ', [1]),
        ("[7, {", []),
        ("[" * 100_000, []),
        ("", []),
    ],
)
def test_first_objects(head: str, found: list[int], tmp_path: Path) -> None:
    source = Source.open(written(tmp_path, head))
    assert [record["n"] for record in first_objects(source)] == found


def test_milliseconds_are_divided_in_decimal() -> None:
    fields = Fields({"a": 3634.18, "b": 30.958, "c": 7}, "LOG:1")
    assert 3634.18 / 1000 != 3.63418
    assert fields.seconds("a", per_second=1000) == 3.63418
    assert fields.seconds("b", per_second=1000) == 0.030958
    assert fields.seconds("c", per_second=1000) == 0.007
    assert fields.seconds("d") is None

"""What the tests of importers share: import a file, and look at the rows or at the refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import TraceImportError
from experiment.import_trace import import_trace
from experiment.importers.base import Options
from experiment.paths import ROOT
from experiment.progress import SilentProgress
from experiment.trace import load_trace

DATA = Path(__file__).parent / "data"
BAD = Path(__file__).parent.parent / "bad" / "imports"

SHARED = ROOT.parent / "shared" / "traces"
"""Samples of other people's logs: not a part of the project, and not everywhere."""

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the samples are not here")

Row = tuple[Any, ...]


def trace_of(
    source: Path, folder: Path, *, format: str = "auto", **options: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of the trace that a log becomes; `load_trace` takes it."""
    to = folder / "imported.jsonl"
    made = import_trace(source, to, Options(**options), SilentProgress(), format=format)
    header, *rows = [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    trace = load_trace(to)
    assert made.steps == len(rows) == len(trace.steps)
    assert made.tasks == len({row["task_id"] for row in rows})
    assert trace.header is not None
    assert trace.header.source_format == made.format == header["trace"]["from"]
    return header["trace"], rows


def rows_of(source: Path, folder: Path, **options: Any) -> list[Row]:
    """The rows as (task, step, depth, new tokens), and a baseline behind them if there is one."""
    _, rows = trace_of(source, folder, **options)
    return [short(row) for row in rows]


def short(row: Mapping[str, Any]) -> Row:
    told = (row["task_id"], row["step"], row["depth"], row["new"].get("tokens"))
    return (*told, row["baseline"]) if "baseline" in row else told


def refusal_of(
    source: Path, folder: Path, *, format: str = "auto", **options: Any
) -> TraceImportError:
    """Why a log is refused; nothing is left behind."""
    to = folder / "refused.jsonl"
    before = sorted(folder.iterdir())
    with pytest.raises(TraceImportError) as caught:
        import_trace(source, to, Options(**options), SilentProgress(), format=format)
    assert sorted(folder.iterdir()) == before
    return caught.value


def bad_names(format: str) -> list[str]:
    """The malformed logs of a format, each with the message that it must give beside it."""
    files = [path for path in (BAD / format).iterdir() if path.suffix != ".expected"]
    assert {path.with_suffix(".expected") for path in files} <= set((BAD / format).iterdir())
    return sorted(path.name for path in files)


def check_bad(format: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a malformed log is the one beside it; paths in it are relative to its folder.

    Options may stand in the first line of the expected file, as ``options: assume_cold``.
    """
    monkeypatch.chdir(BAD / format)
    expected = Path(name).with_suffix(".expected").read_text(encoding="utf-8").rstrip("\n")
    options: dict[str, bool] = {}
    if expected.startswith("options: "):
        first, expected = expected.split("\n", 1)
        options = dict.fromkeys(first.removeprefix("options: ").split(), True)
    assert str(refusal_of(Path(name), folder, format=format, **options)) == expected

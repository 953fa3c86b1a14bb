"""A trace by its tasks, as the tests of logs with token counts look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment.importers.base import Log, Source
from experiment.importers.registry import claims
from tests.importers.importing import trace_of


def tasks_of(
    source: Path, folder: Path, **options: Any
) -> tuple[dict[str, list[dict[str, Any]]], Log]:
    """The rows of each task, without its name and their numbers, and what the header tells."""
    header, rows = trace_of(source, folder, **options)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        task = tasks.setdefault(row.pop("task_id"), [])
        assert row.pop("step") == len(task)
        task.append(row)
    told = {name: header[name] for name in ("assumptions", "warnings", "dropped")}
    return tasks, Log(**told, tokenizer=header.get("tokenizer"))


def row(depth: int, new: int, **baseline: float) -> dict[str, Any]:
    """A row as `tasks_of` gives it."""
    fields: dict[str, Any] = {"depth": depth, "new": {"tokens": new}}
    return {**fields, "baseline": baseline} if baseline else fields


def recognised_by(path: Path) -> list[str]:
    """The importers that take a file for theirs."""
    return [importer.name for importer, _ in claims(Source.open(path))]

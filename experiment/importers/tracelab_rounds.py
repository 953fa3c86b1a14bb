"""What a round of TraceLab's JSONL and database says: its depth, its prompt, its tools' time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from experiment.importers.base import Log
from experiment.importers.fields import Record

BACKWARDS = "exec_s of a round whose last tool ends before its first begins (the value only)"
UNFINISHED = "exec_s of a round with a tool whose begin or end is not known (the value only)"


def depth_and_total(row: Record) -> tuple[int | None, int]:
    """Depth, None where the row has no cached count, and T.

    Raises:
        TraceImportError: T does not follow, or is not depth + new.
    """
    depth = row.count("prefix_tokens")
    new = row.count("newly_append_tokens")
    total = row.count("input_tokens_total")
    if depth is None or new is None:
        if total is None:
            raise row.missing("input_tokens_total")
        return depth, total
    if total is not None and total != depth + new:
        what = f"{total} is not prefix_tokens + newly_append_tokens = {depth + new}"
        raise row.bad("input_tokens_total", what)
    return depth, depth + new


def exec_s(
    begins: Sequence[datetime | None], ends: Sequence[datetime | None], log: Log
) -> float | None:
    """Seconds from the first tool's call to the last one's result; tools overlap."""
    known_begins = [time for time in begins if time is not None]
    known_ends = [time for time in ends if time is not None]
    if len(known_begins) < len(begins) or len(known_ends) < len(ends):
        log.drop(UNFINISHED)
        return None
    if not known_begins:
        return None
    took = (max(known_ends) - min(known_begins)).total_seconds()
    if took < 0:
        log.drop(BACKWARDS)
        return None
    return took

"""Logs whose rows are requests without a cached-token count, most of them without a session too."""

from __future__ import annotations

from experiment.errors import TraceImportError
from experiment.importers.base import Log, Options
from experiment.importers.fields import Record


def task_of(row: Record, number: int, prefix: str, options: Options, log: Log) -> str:
    """The task of a request: what ``--task-key`` names, or one of its own.

    Args:
        row: the request.
        number: its row, from 0.
        prefix: of its task's name.
        options: what the user states.
        log: told of tasks of their own.

    Raises:
        TraceImportError: there is nothing that a previous request could be found by, and
            ``--assume-append-only`` asks for one.
    """
    if options.task_key is not None:
        return row.needed_label(options.task_key)
    if options.assume_append_only:
        raise TraceImportError(
            "no session field: no request before this one to append to",
            where=row.where,
            hint="pass --assume-cold, or name the field that tells sessions apart: --task-key=NAME",
        )
    log.assume(
        f"the log has no session: each request is a task, named {prefix}-<row of it, from 0>"
    )
    return f"{prefix}-{number}"

"""Whose tokenizer the counts of a log come from, where each of its records names a model."""

from __future__ import annotations

from experiment.importers.base import Log

MAX_NAMES = 8


class Tokenizers:
    """Gathers the names of models for the trace's header."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._names: dict[str, None] = {}

    def add(self, name: str | None) -> None:
        """Take the model of a record, None where it has none."""
        if not name or name in self._names or len(self._names) > MAX_NAMES:
            return
        self._names[name] = None
        first = list(self._names)[:MAX_NAMES]
        others = " and others" if len(self._names) > MAX_NAMES else ""
        self._log.tokenizer = ", ".join(sorted(first)) + others

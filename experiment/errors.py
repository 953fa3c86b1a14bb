"""Every error the project raises on purpose: what was wrong, where, and what to do next.

A subclass names the stage that failed. The command line prints ``str(error)`` and exits with
``exit_code``; a traceback therefore always means a fault of the project's own.
"""

from __future__ import annotations


class ExperimentError(Exception):
    """A failure that the user can act on.

    Args:
        what: one sentence, what was wrong.
        where: file and line, step and field, or request; left out where ``what`` says it already.
        hint: one sentence, what to do next.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class SettingsError(ExperimentError):
    """A setting that does not exist, or a value it cannot take."""

    exit_code = 2


class SourceError(ExperimentError):
    """The pinned llama.cpp source is missing, cannot be had, or is not what the pin says."""


class PatchError(ExperimentError):
    """A patch of the series is malformed or does not apply with zero fuzz."""


class BuildError(ExperimentError):
    """Configuring or compiling llama.cpp failed."""


class EngineError(ExperimentError):
    """No container engine answers, or it refuses what it is asked for."""


class ModelError(ExperimentError):
    """A model file is missing, cannot be written, or cannot take a prefix."""


class TraceError(ExperimentError):
    """A trace has a bad row; raised before anything is built or started."""

    exit_code = 2


class ServerError(ExperimentError):
    """The llama.cpp server did not start, died, or does not answer."""


class ServerStartError(ServerError):
    """The server ended or hung before it served anything; starting it again would do the same."""


class RequestRefused(ExperimentError):
    """The server answered a request with HTTP 4xx; the step is recorded as refused."""


class PrefixError(ExperimentError):
    """A prefix of exactly L tokens cannot be made for a step; the step is recorded as refused."""


class StoreError(ExperimentError):
    """A results folder or database is missing, locked, or of another schema version."""


class CalibrationError(ExperimentError):
    """``llama-bench`` failed or printed something that is not its JSON."""


class ArchiveError(ExperimentError):
    """A handoff archive is damaged, hostile, or not one of this project's."""


class ClaimError(ExperimentError):
    """A claim is malformed, or its query does not give one number."""


class HandoffError(ExperimentError):
    """A run cannot be packed: unfinished, not reproducible from what is there, or not private."""


class ReportError(ExperimentError):
    """A report cannot be made or written."""


class ExportError(ExperimentError):
    """An export was asked for in an unknown format, or cannot be written."""


class TraceImportError(ExperimentError):
    """A log cannot become a trace: not understood, or only with an assumption nobody has made."""

    exit_code = 2

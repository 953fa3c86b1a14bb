"""What the queries of claims give, asked of a copy of a run's rows and of nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from experiment import claim_process
from experiment.claim_file import Claim, query_problem
from experiment.copied import copied
from experiment.database import DATABASE
from experiment.errors import ClaimError
from experiment.recorded import StepKey

TIME_LIMIT_S = 300.0
"""For all queries of a run together."""


def values(
    folder: Path, claims: Sequence[Claim], steps: Collection[StepKey] | None = None
) -> dict[str, float | int | None]:
    """Run each claim's query against the run in ``folder``; None = there are no data for it.

    Args:
        folder: of the results; its database is only read, and its own views are not asked.
        claims: their queries see the tables and views of ``schemas/results.sql``.
        steps: the only steps that the queries see; None = all.

    Raises:
        StoreError: there is no database, or it is not one that this program wrote.
        ClaimError: a query is not a single SELECT, fails, takes too much time or memory, or gives
            anything but one number.
    """
    for claim in claims:
        problem = query_problem(claim.query)
        if problem:
            raise _error(claim, problem)
    with copied(folder, steps) as copy:
        answers, ended = _ask(copy / DATABASE, [claim.query for claim in claims])
    for claim, answer in zip(claims, answers, strict=False):
        if "error" in answer:
            raise _error(claim, answer["error"])
    if len(answers) < len(claims):
        raise _error(claims[len(answers)], ended)
    return {claim.key: answer["value"] for claim, answer in zip(claims, answers, strict=True)}


def _error(claim: Claim, problem: str) -> ClaimError:
    return ClaimError(problem, where=f"claim {claim.key}: query")


def _ask(database: Path, queries: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The answers, and why the process ended where they are fewer than the queries."""
    try:
        asked = subprocess.run(
            [sys.executable, "-I", claim_process.__file__, str(database)],
            input=json.dumps(queries).encode(),
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        ended = f"is not answered when the time for all queries, {TIME_LIMIT_S:g} s, is over"
        return _answers(expired.stdout), ended
    return _answers(asked.stdout), f"ended the process that ran it (code {asked.returncode})"


def _answers(printed: bytes | None) -> list[dict[str, Any]]:
    # The last line has no end where the process was stopped while it wrote it.
    return [json.loads(line) for line in (printed or b"").split(b"\n")[:-1]]

"""What a comparison of runs holds, as frozen rows of numbers and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiment.claims import Claim
from experiment.rows import RunRow


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run: ``label`` (A, B, …) is what the others call it, ``facts`` what may differ."""

    label: str
    folder: Path
    run: RunRow
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step that is not compared, and why."""

    task_id: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Value:
    """A figure of ``n`` values, with its 95 % bootstrap interval where it has one."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: of each run over the same ``steps`` steps, and of the others against the base.

    ``against_base`` is the median over these steps of ``run / base``, or (``in_points``) of
    ``run - base``; None for the base itself, and where there is nothing to compare.
    """

    key: str
    name: str
    steps: int
    in_points: bool
    runs: tuple[Value | None, ...]
    against_base: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim of the base, expecting its value over the steps in common, and another run's value.

    ``within`` and ``outside_by`` are None where the two are not comparable; ``reason`` says why.
    """

    label: str
    claim: Claim
    value: float | int | None
    within: bool | None
    outside_by: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class StepOfRun:
    """A step of one run: the figures by their key, and against the base's (None for the base)."""

    task_id: str
    step: int
    depth: int
    label: str
    figures: Mapping[str, float | None]
    against_base: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class RunsComparison:
    """Everything that a comparison of runs shows; ``differences`` is a text a run, by name."""

    runs: tuple[ComparedRun, ...]
    differences: Mapping[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    figures: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    steps: tuple[StepOfRun, ...]
    notes: tuple[str, ...]

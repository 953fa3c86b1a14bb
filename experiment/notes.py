"""What a reader of a comparison must know beside its figures: what is missing or was kept out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from experiment.reader import Reader
from experiment.records import NOTED, VARIANTS
from experiment.rows import OverallRow, RunRow, StepRow

if TYPE_CHECKING:
    from experiment.extrapolated import Extrapolation

MAX_REASONS = 3

MAX_NOTED = 10
"""Sentences of one kind about the trace; what an importer may write has no such bound."""

WITHOUT_PREFIX = ("full", "arithmetic")
"""The variants that a step at L = 0 has."""

# Measured with nano on two cores: samples of one depth lie within 16 % of each other, mostly within
# 6 %; a burst of other work moves single ones by factors.
UNSTEADY = 1.2


def notes(
    reader: Reader,
    run: RunRow,
    steps: Iterable[StepRow],
    overall: OverallRow,
    extrapolation: Extrapolation | None,
) -> Iterable[str]:
    """A sentence for each thing that keeps the figures from covering the whole trace."""
    if run.status != "finished":
        yield f"The run is {run.status}: the figures cover what it had measured until then."
    yield from _about_the_trace(reader)
    found = _over(steps)
    if overall.cold_steps:
        yield (
            f"{_count(overall.cold_steps, 'step')} of {overall.steps} had nothing cached (L = 0): "
            "there the whole prompt is new, and is measured as full, which stands for fake and "
            "restored in the walls of tasks and in what is extrapolated."
        )
    for variant in VARIANTS:
        of, without = found.of[variant], found.without[variant]
        if of and without.number == of:
            yield f"{variant}: not measured in any step."
        elif without.number:
            yield (
                f"{variant}: no valid measurement in {_count(without.number, 'step')} of "
                f"{of} ({without.some()})."
            )
    if extrapolation is not None:
        for refused, reason in extrapolation.refused.items():
            yield f"{refused}: nothing is extrapolated, since {reason}."
    yield from _kept_out(reader)
    if found.differing.number:
        yield (
            f"fake and restored read different numbers of KV columns in "
            f"{_count(found.differing.number, 'step')} ({found.differing.some()})."
        )
    yield from _calibration(reader)
    # What ended the rounds is told as a sentence of its own.
    events = reader.connection.execute(
        "SELECT kind, count(*) FROM event WHERE run_id = ? AND NOT list_contains(?, kind) "
        "GROUP BY kind ORDER BY kind",
        [reader.run_id, ["rounds", "experts", *NOTED]],
    ).fetchall()
    if events:
        yield "Events on the way: " + ", ".join(f"{count} {kind}" for kind, count in events) + "."


@dataclass
class _Names:
    """How many steps there are of a kind, and the names of the first."""

    number: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, step: StepRow) -> None:
        self.number += 1
        if len(self.first) < MAX_REASONS:
            self.first.append(_name(step))

    def some(self) -> str:
        return some(self.first, number=self.number)


@dataclass
class _Found:
    """What the notes tell of steps: by variant those that can have it, and those without it."""

    of: Counter[str] = field(default_factory=Counter)
    without: defaultdict[str, _Names] = field(default_factory=lambda: defaultdict(_Names))
    differing: _Names = field(default_factory=_Names)


def _over(steps: Iterable[StepRow]) -> _Found:
    """Go through the steps once, since they may be very many."""
    found = _Found()
    for step in steps:
        for variant in VARIANTS if step.left_out is None else ():
            if variant in WITHOUT_PREFIX or step.depth > 0:
                found.of[variant] += 1
                if getattr(step, f"{variant}_n") == 0:
                    found.without[variant].add(step)
        n_kv = (step.fake_n_kv, step.restored_n_kv)
        if None not in n_kv and n_kv[0] != n_kv[1]:
            found.differing.add(step)
    return found


def _about_the_trace(reader: Reader) -> Iterable[str]:
    """Where it comes from, what was assumed of it, what a budget lowered, what is left out."""
    for kind in NOTED:
        told = reader.connection.execute(
            "SELECT message FROM event WHERE run_id = ? AND kind = ? ORDER BY happened_at, message",
            [reader.run_id, kind],
        ).fetchall()
        for (message,) in told[:MAX_NOTED]:
            yield str(message)
        if len(told) > MAX_NOTED:
            yield f"{len(told) - MAX_NOTED:,} more events of the kind {kind} are in the database."


def _calibration(reader: Reader) -> Iterable[str]:
    unsteady = reader.connection.execute(
        "SELECT DISTINCT depth FROM calibration WHERE run_id = ? "
        "AND list_max(tps_samples) > ? * list_min(tps_samples) ORDER BY depth",
        [reader.run_id, UNSTEADY],
    ).fetchall()
    if unsteady:
        depths = some([f"{depth:,}" for (depth,) in unsteady], "; ")
        yield f"arithmetic: the calibration's samples differ by more than 20 % at depth {depths}."


def _kept_out(reader: Reader) -> Iterable[str]:
    """One note a variant and status, with the most frequent reasons."""
    rows = reader.connection.execute(
        "SELECT variant, status, error, count(*) AS n FROM measurement "
        "WHERE run_id = ? AND status IN ('invalid', 'refused', 'failed') "
        "GROUP BY variant, status, error ORDER BY n DESC, error",
        [reader.run_id],
    ).fetchall()
    reasons: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for variant, status, error, count in rows:
        reasons.setdefault((variant, status), []).append((error, count))
    for (variant, status), told in sorted(reasons.items()):
        total = sum(count for _, count in told)
        texts = [f"{reason} ({count})" for reason, count in told]
        yield f"{variant}: {_count(total, 'measurement')} {status}, kept out: {some(texts, '; ')}."


def _name(step: StepRow) -> str:
    return f"{step.task_id} step {step.step}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def some(texts: list[str], between: str = ", ", *, number: int | None = None) -> str:
    """The first few of ``texts``, and how many more there are of ``number``; None = of them."""
    more = (len(texts) if number is None else number) - MAX_REASONS
    return between.join(texts[:MAX_REASONS]) + (f" and {more} more" if more > 0 else "")

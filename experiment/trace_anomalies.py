"""What is odd in a trace: depths that do not follow from the steps before, content that recurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from experiment.step_size import Size
from experiment.trace import Step

TEMPLATE_HEAD = 64
"""Tokens below which hardly any chat template's head with a system text fits."""

JUMP_MARGIN = 4096
"""Tokens by which depth may grow beyond the step before and its content: the model's answer."""

MAX_EXAMPLES = 3

AnomalyKind = Literal[
    "no_depth",
    "shallow",
    "stuck",
    "jump",
    "repeated",
    "beyond_context",
    "maybe_beyond_context",
    "positions",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A step, and the line of the trace that it stands on."""

    task_id: str
    step: int
    line: int


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something odd, in how many steps, and the first of them.

    ``kind``: no depth at all; a shallow one; as deep as the step before; deeper than it and what it
    appends account for; content that an earlier step has; more than the context takes, surely or
    perhaps; depth that counts positions. ``limit`` is what the kind goes by, in tokens; 0 where it
    goes by none.
    """

    kind: AnomalyKind
    steps: int
    first: tuple[Place, ...]
    limit: int = 0


def anomalies(
    steps: Sequence[Step],
    news: Sequence[Size],
    tasks: Iterable[Sequence[Step]],
    context: int | None,
    jump_margin: int,
) -> Iterator[Anomaly]:
    """Find what is odd in a trace.

    Args:
        steps: all of them.
        news: tokens that each appends.
        tasks: the same steps, task by task.
        context: KV cells that the model takes; None = no limit is known.
        jump_margin: tokens that a model may answer with between two steps.
    """
    yield from _found("no_depth", (step for step in steps if step.depth == 0))
    yield from _found(
        "shallow", (step for step in steps if 0 < step.depth < TEMPLATE_HEAD), TEMPLATE_HEAD
    )
    size_of = {(step.task_id, step.step): size for step, size in zip(steps, news, strict=True)}
    stuck: list[Step] = []
    jumps: list[Step] = []
    for task in tasks:
        for before, step in pairwise(task):
            appended = size_of[before.task_id, before.step]
            if step.depth == before.depth and appended.low > 0:
                stuck.append(step)
            elif step.depth > before.depth + appended.high + jump_margin:
                jumps.append(step)
    yield from _found("stuck", stuck)
    yield from _found("jump", jumps, jump_margin)
    yield from _found("repeated", _repeated(steps))
    if context is not None:
        # One cell is left for the token that is generated.
        pairs = list(zip(steps, news, strict=True))
        surely = [step for step, new in pairs if step.depth + new.low >= context]
        maybe = [
            step for step, new in pairs if step.depth + new.low < context <= step.depth + new.high
        ]
        yield from _found("beyond_context", surely, context)
        yield from _found("maybe_beyond_context", maybe, context)
    yield from _found("positions", (step for step in steps if step.depth_unit == "positions"))


def _repeated(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps whose content another one had before, as far as they hold any."""
    seen: set[tuple[str | None, Path | None, tuple[int, int] | None]] = set()
    for step in steps:
        shot = step.screenshot
        path = shot.path if shot else None
        if step.new_text is None and path is None:
            continue
        content = (step.new_text, path, (shot.width, shot.height) if shot else None)
        if content in seen:
            yield step
        seen.add(content)


def _found(kind: AnomalyKind, steps: Iterable[Step], limit: int = 0) -> Iterator[Anomaly]:
    found = list(steps)
    if found:
        yield Anomaly(kind, len(found), tuple(map(place_of, found[:MAX_EXAMPLES])), limit)


def place_of(step: Step) -> Place:
    """Where it stands."""
    return Place(step.task_id, step.step, step.line)

"""Which steps of a trace are replayed: those asked for that model and machine can take.

A step is taken whole or left out with its reason. Its depth is never changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from experiment.errors import SettingsError
from experiment.recorded import StepKey
from experiment.step_size import Sizes, context_size
from experiment.strict_json import shown
from experiment.trace import Step, Trace

Kind = Literal["--max-depth", "--limit", "--task", "context", "memory", "budget"]

MAX_NAMED = 5
"""Tasks that a message names."""

MAX_COMPARED = 2000
"""Tasks among which the nearest to a mistyped one is looked for, which takes a second for 10^5."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step is left out: ``str`` gives the text that is stored, its kind first."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def kind_of(stored: str) -> Kind:
    """The kind of a reason that was stored.

    Raises:
        ValueError: the text is not what `Reason` writes.
    """
    found = stored.partition(": ")[0]
    for kind in get_args(Kind):
        if kind == found:
            return kind  # type: ignore[no-any-return]  # get_args does not tell its type
    raise ValueError(f"no reason for leaving a step out: {shown(stored)}")


@dataclass(frozen=True)
class Narrowed:
    """The steps that stay, in their order, and why each of the others does not."""

    kept: tuple[Step, ...]
    left_out: Mapping[StepKey, Reason]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a server needs and may take; all in bytes.

    Attributes:
        usable: of the machine's memory.
        fixed: the model and its compute buffers.
        per_cell: the KV cache, a cell of context.
        state: a saved prefix of depth 0, and for each cell of depth ``state_per_cell``.
        restored_max_depth: deepest L of which a state is saved.
    """

    usable: float
    fixed: float
    per_cell: float
    state: float = 0.0
    state_per_cell: float = 0.0
    restored_max_depth: int = 1 << 24

    def needed(self, step: Step) -> float:
        """By a server whose context is just large enough for ``step``, with its saved state."""
        state = self.state + self.state_per_cell * step.depth
        is_saved = step.depth <= self.restored_max_depth
        return self.fixed + self.per_cell * context_size((step,)) + is_saved * state


def narrow(
    trace: Trace,
    max_depth: int | None = None,
    limit: int | None = None,
    tasks: Sequence[str] = (),
) -> Narrowed:
    """Keep what is asked for by hand: these tasks, up to this depth, the first ``limit`` of them.

    Args:
        trace: all steps.
        max_depth: deepest L, in tokens; None = any.
        limit: how many steps at most, in the trace's order; None = all.
        tasks: names of tasks; none = all.

    Raises:
        SettingsError: a value is out of range, a task is not in the trace, or no step is left.
    """
    _check("--max-depth", max_depth, 0)
    _check("--limit", limit, 1)
    _check_tasks(trace, tasks)
    wanted = set(tasks)
    other = Reason("--task", f"another task than {', '.join(map(shown, tasks))}")
    deeper = Reason("--max-depth", f"deeper than {max_depth or 0:,} tokens")
    behind = Reason("--limit", f"behind the first {limit or 0:,} steps")
    kept: list[Step] = []
    left_out: dict[StepKey, Reason] = {}
    for step in trace.steps:
        if wanted and step.task_id not in wanted:
            reason = other
        elif max_depth is not None and step.depth > max_depth:
            reason = deeper
        elif limit is not None and len(kept) >= limit:
            reason = behind
        else:
            kept.append(step)
            continue
        left_out[step.task_id, step.step] = reason
    if not kept:
        shallowest = min(step.depth for step in trace.steps if not wanted or step.task_id in wanted)
        raise SettingsError(
            f"no step is left: the shallowest has a depth of {shallowest:,}",
            where="--max-depth",
            hint=f"give at least --max-depth={shallowest}",
        )
    return Narrowed(tuple(kept), left_out)


def within(
    steps: Iterable[Step],
    *,
    sizes: Sizes | None = None,
    context: int | None = None,
    memory: Memory | None = None,
) -> Narrowed:
    """Keep what model and machine can take.

    Args:
        steps: to be looked at.
        sizes: what is known of the model's tokens.
        context: KV cells that the model's context, or ``server.context``, has at most; None = no
            limit is known.
        memory: what the server needs of the machine's; None = not known.

    Raises:
        SettingsError: no step is left.
    """
    sizes = sizes or Sizes()
    kept: list[Step] = []
    left_out: dict[StepKey, Reason] = {}
    for step in steps:
        reason = _beyond(step, sizes, context) or (memory and _too_large(step, memory))
        if reason:
            left_out[step.task_id, step.step] = reason
        else:
            kept.append(step)
    if not kept:
        example = next(iter(left_out.values()), None)
        raise SettingsError(
            "no step of the trace can be replayed here" + (f": {example}" if example else ""),
            hint="choose a model with a larger context, or one that needs less memory",
        )
    return Narrowed(tuple(kept), left_out)


def merged(parts: Iterable[Mapping[StepKey, Reason]]) -> dict[StepKey, Reason]:
    """All that was left out, one after the other; the first reason of a step counts."""
    together: dict[StepKey, Reason] = {}
    for part in parts:
        together = {**part, **together}
    return together


def tell(left_out: Mapping[StepKey, Reason], steps: int) -> tuple[str, ...]:
    """A sentence for each reason: how many steps it keeps out, most first.

    Args:
        left_out: steps and reasons.
        steps: how many the trace has.
    """
    by_kind: dict[Kind, list[Reason]] = {}
    for reason in left_out.values():
        by_kind.setdefault(reason.kind, []).append(reason)
    return tuple(
        f"{len(reasons):,} of {steps:,} steps are left out, {reasons[0]}"
        + (" (the first of them)" if len(set(reasons)) > 1 else "")
        + "."
        for _, reasons in sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _beyond(step: Step, sizes: Sizes, context: int | None) -> Reason | None:
    if context is None:
        return None
    new = sizes.of(step)
    # What may fit is tried: the server refuses what does not, and says so.
    if step.depth + new.low < context:
        return None
    least = "" if new.is_exact else "at least "
    return Reason(
        "context",
        f"depth {step.depth:,}, {least}{new.low:,} new tokens and the one that is generated do not "
        f"fit the {context:,} cells of the context",
    )


def _too_large(step: Step, memory: Memory) -> Reason | None:
    needed = memory.needed(step)
    if needed <= memory.usable:
        return None
    return Reason(
        "memory",
        f"depth {step.depth:,} needs {_bytes(needed)}, usable are {_bytes(memory.usable)}",
    )


def _bytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _check(flag: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise SettingsError(f"must be a whole number from {least}, not {value}", where=flag)


def _check_tasks(trace: Trace, tasks: Sequence[str]) -> None:
    known = list(dict.fromkeys(step.task_id for step in trace.steps))
    there = set(known)
    for task in tasks:
        if task in there:
            continue
        near = difflib.get_close_matches(task, known[:MAX_COMPARED], n=1)
        named = ", ".join(shown(name) for name in known[:MAX_NAMED])
        more = f" and {len(known) - MAX_NAMED:,} more" if len(known) > MAX_NAMED else ""
        raise SettingsError(
            f"there is no task {shown(task)} in {trace.path.name}",
            where="--task",
            hint=f"did you mean {shown(near[0])}?" if near else f"there are {named}{more}",
        )

"""The totals of a run whose budget left steps out: prefill and wall time of each task, in sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiment.errors import StoreError
from experiment.extrapolate import Times, Total, Unit
from experiment.narrow import kind_of
from experiment.reader import Reader
from experiment.recorded import StepKey
from experiment.records import VARIANTS
from experiment.screenshot import Screenshot
from experiment.step_size import learned
from experiment.trace import Baseline, Step

COUNTED = tuple(variant for variant in VARIANTS if variant != "control")
"""``control`` is ``fake`` once more."""


@dataclass(frozen=True, slots=True)
class Row:
    """A task and variant; ``task_id`` None = all tasks together.

    Attributes:
        prefill: over all steps that could be drawn, in ms.
        wall: the same over those with a complete baseline, which ``opt_wall_s`` takes.
        decode_exec_s: decode and exec of their baseline.
        baseline_wall_s: prefill, decode and exec of it.
        opt_wall_s: prefill of the variant, decode and exec of the baseline; None where no step has
            a complete baseline, or nothing can be said.
        opt_wall_s_low: lower end of its 95 % interval; None without one.
        opt_wall_s_high: upper end.
    """

    task_id: str | None
    variant: str
    prefill: Total
    wall: Total
    decode_exec_s: float
    baseline_wall_s: float
    opt_wall_s: float | None
    opt_wall_s_low: float | None
    opt_wall_s_high: float | None


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """What the sample of a run says of all its steps.

    Attributes:
        rows: a task and variant each, and all tasks together at the end.
        refused: variants of which nothing can be said, and why.
        steps: of the trace.
        covered: of them those that could be drawn, to which all figures extend.
    """

    rows: tuple[Row, ...]
    refused: Mapping[str, str]
    steps: int
    covered: int


@dataclass(frozen=True)
class Extrapolated:
    """The totals, and what ``fake`` is estimated to take in each step that was not measured, ms."""

    totals: Extrapolation
    fake_ms: Mapping[StepKey, float]


@dataclass(frozen=True)
class _Known:
    """A step of the run and what is known of it: times of each variant as lm and encode, ms."""

    step: Step
    left_out: str | None
    stratum: int | None
    new_tokens: int | None
    text_tokens: int | None
    times_ms: Mapping[str, tuple[float, float]]


def load(reader: Reader) -> Extrapolated | None:
    """Extrapolate the run; None where no budget left steps out.

    Steps that were left out by hand, or that model or machine cannot take, are not in it.
    """
    all_steps = list(_steps(reader))
    if not any(known.left_out and kind_of(known.left_out) == "budget" for known in all_steps):
        return None
    frame = [known for known in all_steps if _is_in_frame(known)]
    new = _new_tokens(frame)
    rows: list[Row] = []
    refused: dict[str, str] = {}
    fake_ms: dict[StepKey, float] = {}
    for variant in COUNTED:
        units = [_unit(known, tokens, variant) for known, tokens in zip(frame, new, strict=True)]
        if not any(unit.is_measured for unit in units):
            refused[variant] = "it was not measured"
            continue
        try:
            times = Times(units, whole=variant == "full")
        except StoreError as error:
            refused[variant] = error.what
            continue
        rows += _rows(frame, units, times, variant)
        if variant == "fake":
            fake_ms = _estimates(frame, units, times)
    totals = Extrapolation(tuple(rows), refused, len(all_steps), len(frame))
    return Extrapolated(totals, fake_ms)


def _estimates(
    frame: Sequence[_Known], units: Sequence[Unit], times: Times
) -> dict[StepKey, float]:
    places = [place for place, unit in enumerate(units) if not unit.is_measured]
    found = times.estimated_ms([units[place] for place in places])
    return {
        (frame[place].step.task_id, frame[place].step.step): ms
        for place, ms in zip(places, found, strict=True)
        if ms is not None
    }


def _is_in_frame(known: _Known) -> bool:
    if known.left_out is None or known.stratum is not None:
        return True
    return kind_of(known.left_out) == "budget"


def _new_tokens(frame: Sequence[_Known]) -> list[int]:
    """As decoded; of steps that were not measured, as the measured ones let expect."""
    counted = {
        (known.step.task_id, known.step.step): (known.new_tokens, known.text_tokens)
        for known in frame
        if known.new_tokens is not None and known.text_tokens is not None
    }
    sizes = learned((known.step for known in frame), counted)
    return [
        sizes.of(known.step).likely if known.new_tokens is None else known.new_tokens
        for known in frame
    ]


def _unit(known: _Known, new: int, variant: str) -> Unit:
    shot = known.step.screenshot
    lm_ms, encode_ms = known.times_ms.get(variant, (None, 0.0))
    return Unit(
        known.step.depth,
        new,
        shot.width * shot.height if shot else 0,
        known.stratum,
        lm_ms,
        encode_ms,
    )


def _rows(
    frame: Sequence[_Known], units: Sequence[Unit], times: Times, variant: str
) -> Iterator[Row]:
    by_task: dict[str | None, list[int]] = {}
    for place, known in enumerate(frame):
        by_task.setdefault(known.step.task_id, []).append(place)
    by_task[None] = list(range(len(frame)))
    for task_id, places in by_task.items():
        steps = [frame[place].step for place in places]
        with_baseline = [
            place for place, step in zip(places, steps, strict=True) if _wall_s(step) is not None
        ]
        told = [frame[place].step for place in with_baseline]
        wall = times.total([units[place] for place in with_baseline])
        decode_exec_s = _sum_s(step.baseline.decode_s for step in told)
        decode_exec_s += _sum_s(step.baseline.exec_s for step in told)
        yield Row(
            task_id,
            variant,
            times.total([units[place] for place in places]),
            wall,
            decode_exec_s,
            _sum_s(map(_wall_s, told)),
            *(
                None if ms is None or not told else ms / 1000 + decode_exec_s
                for ms in (wall.ms, wall.low_ms, wall.high_ms)
            ),
        )


def _wall_s(step: Step) -> float | None:
    of = step.baseline
    if of.prefill_s is None or of.decode_s is None or of.exec_s is None:
        return None
    return of.prefill_s + of.decode_s + of.exec_s


def _sum_s(values: Iterable[float | None]) -> float:
    return sum(value or 0.0 for value in values)


def _steps(reader: Reader) -> Iterator[_Known]:
    times: dict[StepKey, dict[str, tuple[float, float]]] = {}
    for task_id, step, variant, lm_ms, encode_ms in reader.connection.execute(
        "SELECT task_id, step, variant, lm_prefill_ms, encode_ms FROM step_time "
        "WHERE run_id = ? AND variant <> 'control'",
        [reader.run_id],
    ).fetchall():
        times.setdefault((task_id, step), {})[variant] = (lm_ms, encode_ms)
    rows: list[tuple[Any, ...]] = reader.connection.execute(
        "SELECT s.task_id, s.step, s.line, s.depth, s.depth_unit, s.new_text, s.new_text_tokens, "
        "s.image_width, s.image_height, s.baseline_prefill_s, s.baseline_decode_s, "
        "s.baseline_exec_s, s.left_out, s.stratum, c.new_tokens "
        "FROM step AS s JOIN step_comparison AS c USING (run_id, task_id, step) "
        "WHERE s.run_id = ? ORDER BY s.line, s.task_id, s.step",
        [reader.run_id],
    ).fetchall()
    for task_id, step, line, depth, unit, text, text_tokens, width, height, *rest in rows:
        prefill_s, decode_s, exec_s, left_out, stratum, new_tokens = rest
        yield _Known(
            Step(
                task_id,
                step,
                depth,
                unit,
                text,
                # Once a step was measured its text is counted too.
                text_tokens if text is None else None,
                None if width is None else Screenshot(None, width, height),
                Baseline(prefill_s, decode_s, exec_s),
                line or 0,
            ),
            left_out,
            stratum,
            new_tokens,
            text_tokens,
            times.get((task_id, step), {}),
        )

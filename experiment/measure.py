"""One planned request becomes one measurement: ask, judge whether it may count, make the row.

What makes a row of an answer needs no server, so that answers which were kept can be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from experiment.asking import Answer, Asker
from experiment.clock import CLOCK
from experiment.errors import PrefixError, RequestRefused, TraceError
from experiment.judge import FABRICATED, Judge, read_ubatches
from experiment.pauses import MAX_REPEATS
from experiment.records import ExpertRow, Fill, Measurement, Status, Variant
from experiment.schedule import Planned
from experiment.trace import Step

Counted = Literal["fake", "restored"]
"""The variants whose experts are counted."""


class Measurer:
    """Makes measurements of one server.

    Args:
        asker: makes the requests.
        judge: has seen the earlier answers.
        on_pause: told of each request that is made again, with the reason.
    """

    def __init__(
        self,
        asker: Asker,
        judge: Judge,
        on_pause: Callable[[Planned, str], None] = lambda _item, _reason: None,
    ) -> None:
        self._asker = asker
        self._judge = judge
        self._on_pause = on_pause

    def measure(self, item: Planned) -> Measurement:
        """Do what ``item`` plans.

        A step that cannot be asked for, or that the server refuses, comes back as ``refused`` with
        the reason. What was asked for while the machine stood still says nothing about the step
        and is asked for again; ``invalid`` if that happens each time.

        Raises:
            ServerError: no answer; nothing is known about this measurement.
            StoreError: the answer cannot be kept.
        """
        for attempt in range(MAX_REPEATS + 1):
            started_at = CLOCK.now()
            try:
                answer = self._asker.ask(item.step, item.variant, item.round)
            except (PrefixError, RequestRefused, TraceError) as error:
                return replace(_blank(item, started_at), error=error.what)
            reason = _pause_problem(item, answer)
            if reason is None or attempt == MAX_REPEATS:
                break
            self._on_pause(item, reason)
        return judged(item, answer, self._judge, started_at)


def _pause_problem(item: Planned, answer: Answer) -> str | None:
    if item.round < 0 or not answer.paused_s:  # nothing is read off a warm-up's time
        return None
    return f"the machine or this program stood still for {answer.paused_s:.1f} s meanwhile"


def judged(item: Planned, answer: Answer, judge: Judge, started_at: datetime) -> Measurement:
    """The row of an answer: ``ok`` or ``warmup``, or ``invalid`` with the rule that it breaks.

    Args:
        item: what was asked for.
        answer: what came back.
        judge: has seen the earlier answers of the same run.
        started_at: when it was asked for.

    Raises:
        ServerError: the answer has no timings.
    """
    timings = answer.reply.timings
    problem = judge.problem(item.step, item.variant, timings) or _pause_problem(item, answer)
    prefix = timings.get("prefix") or {}
    ubatches = read_ubatches(timings)
    status: Status = "warmup" if item.round < 0 else "ok"
    return replace(
        _blank(item, started_at),
        status="invalid" if problem else status,
        error=problem,
        cache_n=timings.get("cache_n"),
        prompt_n=timings.get("prompt_n"),
        prompt_ms=timings.get("prompt_ms"),
        install_ms=prefix.get("install_ms"),
        encode_ms=timings.get("encode_ms"),
        wall_ms=answer.reply.wall_ms,
        prime_ms=prefix.get("prime_ms"),
        size_bytes=prefix.get("size_bytes"),
        pos_min=prefix.get("pos_min"),
        pos_max=prefix.get("pos_max"),
        n_kv=prefix.get("n_kv"),
        fake_fill=_fill(item.variant, prefix),
        fill_ms=prefix.get("fill_ms") if item.variant in FABRICATED else None,
        ubatch_tokens=ubatches.tokens if ubatches else None,
        ubatch_n_kv=ubatches.n_kv if ubatches else None,
        graph_nodes=ubatches.nodes if ubatches else None,
        kv_bytes=prefix.get("kv_bytes"),
        sampler_ms=prefix.get("sampler_ms"),
        other_cores=answer.load.other_cores,
        stolen_cores=answer.load.stolen_cores,
        throttled=answer.load.throttled,
        raw=answer.raw,
    )


def counted_experts(
    step: Step, variant: Counted, fill: Fill, timings: Mapping[str, Any], judge: Judge
) -> tuple[ExpertRow, ...] | str:
    """The rows of an answer that was asked for experts, or the rule that it breaks.

    There are none if the model has no experts.

    Args:
        step: what was asked for.
        variant: likewise.
        fill: of the run's fabricated prefixes.
        timings: of the answer.
        judge: has seen the measurements of the same run.
    """
    counts: Any = timings.get("experts")
    if counts == []:
        return ()
    problem = judge.problem(step, variant, timings) or _expert_problem(counts, timings)
    if problem is not None:
        return problem
    return tuple(
        ExpertRow(
            task_id=step.task_id,
            step=step.step,
            variant=variant,
            fake_fill=fill if variant == "fake" else "none",
            ubatch=ubatch,
            layer=layer,
            distinct_experts=distinct,
        )
        for ubatch, layers in enumerate(counts)
        for layer, distinct in enumerate(layers)
    )


def _blank(item: Planned, started_at: datetime) -> Measurement:
    return Measurement(
        task_id=item.step.task_id,
        step=item.step.step,
        variant=item.variant,
        round=item.round,
        depth=item.step.depth,
        status="refused",
        started_at=started_at,
        position_in_round=item.position_in_round,
        error="not asked",
    )


def _fill(variant: Variant, prefix: Mapping[str, Any]) -> Fill | None:
    if variant not in FABRICATED:
        return None
    # The column takes these alone; what else a server says stands in the reason and the raw file.
    match prefix.get("fill"):
        case "zero":
            return "zero"
        case "tile":
            return "tile"
    return None


def _expert_problem(counts: Any, timings: Mapping[str, Any]) -> str | None:
    ubatches = len(timings["prefix"]["ubatches"])  # which the judge has seen
    if not isinstance(counts, list) or len(counts) != ubatches:
        return f"the server did not report experts for each of {ubatches} ubatches"
    if not all(isinstance(layers, list) and layers for layers in counts):
        return "an ubatch has no layers with experts"
    if not all(type(value) is int and value >= 0 for layers in counts for value in layers):
        return "a layer's number of distinct experts is no whole number"
    return None

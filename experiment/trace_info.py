"""What a trace is made of: distributions, cache hits, falls in depth, images, and what is odd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from experiment.step_size import Sizes
from experiment.trace import Step, Trace
from experiment.trace_anomalies import JUMP_MARGIN, Anomaly, Place, anomalies, place_of
from experiment.trace_header import TraceHeader

BASELINES = ("prefill_s", "decode_s", "exec_s")


@dataclass(frozen=True, slots=True)
class Distribution:
    """``n`` values; the quantiles are values that occur."""

    n: int
    low: int
    q1: int
    median: int
    q3: int
    p90: int
    high: int
    total: int


@dataclass(frozen=True, slots=True)
class Share:
    """Likely, and at least and at most where content is not counted yet."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Fall:
    """Where depth is less than at the step before, of the same task."""

    place: Place
    depth_before: int
    depth: int

    @property
    def tokens(self) -> int:
        """How far it falls."""
        return self.depth_before - self.depth


@dataclass(frozen=True, slots=True)
class ImageSize:
    """How many steps have a screenshot of this size in pixels, and how many of them a file."""

    width: int
    height: int
    steps: int
    files: int


@dataclass(frozen=True, slots=True)
class BaselineSum:
    """Seconds in sum over the ``steps`` that tell them."""

    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task: ``depths`` of its steps in their order, and how often they fall."""

    task_id: str
    depths: tuple[int, ...]
    falls: int


@dataclass(frozen=True)
class TraceInfo:
    """Everything about a trace that can be told without a model.

    Attributes:
        path: of the file.
        sha256: of its bytes.
        header: what an importer wrote about it.
        tasks: in the order of their first step.
        depth: L of each step.
        new: tokens that each step appends, as likely; its ``total`` is between ``new_low`` and
            ``new_high``.
        news: the same, step by step in the trace's order.
        told_tokens: of the steps that tell a number of text tokens.
        text_bytes: of those that hold text, UTF-8: they have at most as many tokens.
        images: by number of pixels.
        cache_hit: sum of depth / (sum of depth + sum of new).
        followers: steps that follow another of their task.
        falls: of them those that are less deep.
        worst_fall: the largest of them.
        baselines: by name.
        complete_baselines: steps that tell all of them.
        anomalies: only those that occur.
    """

    path: Path
    sha256: str
    header: TraceHeader | None
    tasks: tuple[TaskInfo, ...]
    depth: Distribution
    new: Distribution
    new_low: int
    new_high: int
    news: tuple[int, ...]
    told_tokens: Distribution | None
    text_bytes: Distribution | None
    images: tuple[ImageSize, ...]
    cache_hit: Share
    followers: int
    falls: int
    worst_fall: Fall | None
    baselines: Mapping[str, BaselineSum]
    complete_baselines: int
    anomalies: tuple[Anomaly, ...]

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.depth.n

    @property
    def image_steps(self) -> int:
        """How many have a screenshot."""
        return sum(size.steps for size in self.images)


def look_at(
    trace: Trace,
    *,
    sizes: Sizes | None = None,
    context: int | None = None,
    jump_margin: int = JUMP_MARGIN,
) -> TraceInfo:
    """Go through a trace.

    Args:
        trace: at least one step.
        sizes: how the model counts; None = what holds before one is asked.
        context: KV cells that the model takes; None = no limit is known.
        jump_margin: tokens that a model may answer with between two steps.
    """
    steps = trace.steps
    news = [(sizes or Sizes()).of(step) for step in steps]
    depth = distribution(step.depth for step in steps)
    new = distribution(size.likely for size in news)
    low, high = sum(size.low for size in news), sum(size.high for size in news)
    by_task: dict[str, list[Step]] = {}
    for step in steps:
        by_task.setdefault(step.task_id, []).append(step)
    falls = [
        Fall(place_of(step), before.depth, step.depth)
        for task in by_task.values()
        for before, step in pairwise(task)
        if step.depth < before.depth
    ]
    falls_of: dict[str, int] = {}
    for fall in falls:
        falls_of[fall.place.task_id] = falls_of.get(fall.place.task_id, 0) + 1
    told = [step.new_tokens for step in steps if step.new_tokens is not None]
    texts = [len(step.new_text.encode()) for step in steps if step.new_text is not None]
    return TraceInfo(
        path=trace.path,
        sha256=trace.sha256,
        header=trace.header,
        tasks=tuple(
            TaskInfo(name, tuple(step.depth for step in task), falls_of.get(name, 0))
            for name, task in by_task.items()
        ),
        depth=depth,
        new=new,
        new_low=low,
        new_high=high,
        news=tuple(size.likely for size in news),
        told_tokens=distribution(told) if told else None,
        text_bytes=distribution(texts) if texts else None,
        images=_images(steps),
        cache_hit=Share(*(_share(depth.total, total) for total in (high, new.total, low))),
        followers=len(steps) - len(by_task),
        falls=len(falls),
        worst_fall=max(falls, key=lambda fall: fall.tokens, default=None),
        baselines={name: _baseline(steps, name) for name in BASELINES},
        complete_baselines=sum(
            all(getattr(step.baseline, name) is not None for name in BASELINES) for step in steps
        ),
        anomalies=tuple(anomalies(steps, news, by_task.values(), context, jump_margin)),
    )


def distribution(values: Iterable[int]) -> Distribution:
    """Quantiles of at least one value: of n the one that the share q of them does not exceed."""
    found = np.fromiter(values, dtype=np.int64)
    q1, median, q3, p90 = np.quantile(found, [0.25, 0.5, 0.75, 0.9], method="inverted_cdf").tolist()
    return Distribution(
        len(found), int(found.min()), q1, median, q3, p90, int(found.max()), int(found.sum())
    )


def _share(depth: int, new: int) -> float:
    return depth / (depth + new) if depth + new else 0.0


def _images(steps: Sequence[Step]) -> tuple[ImageSize, ...]:
    counts: dict[tuple[int, int], list[int]] = {}
    for step in steps:
        if step.screenshot is not None:
            shot = step.screenshot
            count = counts.setdefault((shot.width, shot.height), [0, 0])
            count[0] += 1
            count[1] += shot.path is not None
    ordered = sorted(counts.items(), key=lambda item: (item[0][0] * item[0][1], item[0]))
    return tuple(ImageSize(*size, *count) for size, count in ordered)


def _baseline(steps: Sequence[Step], name: str) -> BaselineSum:
    known: list[float] = [
        value for step in steps if (value := getattr(step.baseline, name)) is not None
    ]
    return BaselineSum(len(known), sum(known))

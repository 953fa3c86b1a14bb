"""What a probe tells besides `Costs`: images, the start of the server, the driver's share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiment.folder import SERVER_LOG
from experiment.reader import Reader, read
from experiment.step_size import Sizes
from experiment.sweep_costs import Costs, read_costs
from experiment.trace import Step

# What the server prints about the model while it loads.
_CONTEXT = re.compile(r"print_info: n_ctx_train\s+= (\d+)")
_EXPERTS = re.compile(r"print_info: n_expert\s+= (\d+)")

MAX_IMAGE_SIZES = 3
"""Screenshots of a probe: the smallest, the middle one and the largest of a trace."""


@dataclass(frozen=True, slots=True)
class ImageTimes:
    """Time to encode an image by its number of pixels: measured ones, ascending, and ms of each."""

    pixels: tuple[int, ...] = ()
    ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, measured: Iterable[tuple[int, float]]) -> ImageTimes:
        """The medians of (pixels, ms); images of the same number of pixels are put together."""
        by_size: dict[int, list[float]] = {}
        for pixels, ms in measured:
            by_size.setdefault(pixels, []).append(ms)
        sizes = sorted(by_size)
        return cls(tuple(sizes), tuple(float(np.median(by_size[size])) for size in sizes))

    def ms_of(self, pixels: ArrayLike) -> NDArray[np.float64]:
        """Along straight lines between what is measured; 0 for no pixels.

        Beyond the measured sizes time is taken to be proportional to pixels, without any measured
        size nothing is known and it is 0.
        """
        asked = np.asarray(pixels, dtype=np.float64)
        if not self.pixels:
            return np.zeros_like(asked)
        first, last = self.pixels[0], self.pixels[-1]
        between = np.interp(asked, self.pixels, self.ms)
        below = asked * (self.ms[0] / first)
        above = asked * (self.ms[-1] / last)
        return np.where(asked < first, below, np.where(asked > last, above, between))


@dataclass(frozen=True, slots=True)
class TraceCosts:
    """What one needs to reckon how long a trace takes here.

    Attributes:
        costs: of text, as a sweep reckons with them.
        sizes: how the model counts.
        images: encoding of screenshots.
        start_s: from the beginning of a run to its first request: load the model, make prompts.
        driver_s: between the end of a request and the beginning of the next.
        context: KV cells that the model was trained for, beyond which the server goes for no one;
            None if not known.
        has_experts: whether there are any to be counted; None if not known.
        probed_depth: deepest L that was measured.
    """

    costs: Costs
    sizes: Sizes = field(default_factory=Sizes)
    images: ImageTimes = field(default_factory=ImageTimes)
    start_s: float = 0.0
    driver_s: float = 0.0
    context: int | None = None
    has_experts: bool | None = None
    probed_depth: int = 0


def read_trace_costs(folder: Path) -> TraceCosts:
    """What the probe in ``folder`` has measured.

    Raises:
        StoreError: there is no database, or the probe has no valid measurements to go by.
    """
    costs = read_costs(folder)
    with read(folder) as reader:
        sizes, images = read_images(reader, costs.tail_tokens)
        start_s, driver_s = _driver(reader)
        ((probed_depth,),) = _rows(
            reader, "SELECT max(depth) FROM measurement WHERE run_id = $run AND status = 'ok'"
        )
    context, experts = _model_facts(folder)
    return TraceCosts(
        costs,
        sizes,
        images,
        start_s,
        driver_s,
        context,
        None if experts is None else experts > 0,
        int(probed_depth),
    )


def read_images(reader: Reader, tail_tokens: int) -> tuple[Sizes, ImageTimes]:
    """How many tokens the measured screenshots have, and how long they take to encode.

    Args:
        reader: of a run with screenshots, or without.
        tail_tokens: of the chat template, behind a step's own content.
    """
    found = _rows(
        reader,
        "SELECT s.image_width, s.image_height, max(m.prompt_n - s.new_text_tokens), "
        "median(m.encode_ms) FROM measurement AS m JOIN step AS s USING (run_id, task_id, step) "
        "WHERE m.run_id = $run AND m.status = 'ok' AND m.variant IN ('fake', 'control') "
        "AND s.image_width IS NOT NULL AND s.new_text_tokens IS NOT NULL "
        "GROUP BY s.image_width, s.image_height ORDER BY ALL",
    )
    tokens = {(width, height): new - tail_tokens for width, height, new, _ in found}
    times = ImageTimes.of((width * height, ms) for width, height, _, ms in found)
    return Sizes(tail_tokens, images=tokens), times


def images_to_probe(steps: Iterable[Step]) -> list[tuple[int, int]]:
    """Sizes in pixels of the screenshots that a probe for ``steps`` should measure, few of them."""
    sizes = {
        (step.screenshot.width, step.screenshot.height)
        for step in steps
        if step.screenshot is not None
    }
    ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
    if len(ordered) <= MAX_IMAGE_SIZES:
        return ordered
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]


def _driver(reader: Reader) -> tuple[float, float]:
    """Seconds before the first request, and between one and the next (the median)."""
    ((start_ms, between_ms),) = _rows(
        reader,
        "SELECT date_diff('millisecond', (SELECT started FROM run WHERE id = $run), "
        "min(started_at)), median(gap_ms) FROM (SELECT started_at, date_diff('microsecond', "
        "started_at, lead(started_at) OVER (ORDER BY started_at)) / 1000.0 - wall_ms AS gap_ms "
        "FROM measurement WHERE run_id = $run AND variant <> 'arithmetic')",
    )
    return max(0.0, (start_ms or 0) / 1000), max(0.0, (between_ms or 0.0) / 1000)


def _model_facts(folder: Path) -> tuple[int | None, int | None]:
    """Trained context and number of experts, from the server's log; None where it does not tell."""
    try:
        log = (folder / SERVER_LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, None
    found = (pattern.search(log) for pattern in (_CONTEXT, _EXPERTS))
    context, experts = (int(match[1]) if match else None for match in found)
    return context, experts


def _rows(reader: Reader, statement: str) -> list[tuple[Any, ...]]:
    return reader.connection.execute(statement, {"run": reader.run_id}).fetchall()

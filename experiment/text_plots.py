"""Small plots of characters: a line of bars, and a histogram over bins that double in width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"
FULL = "█"


def sparkline(values: Sequence[float], top: float, width: int) -> str:
    """A column a value, from 0 to ``top``; more values than ``width`` are told by their largest."""
    if not values:
        return ""
    if len(values) > width:
        ends = [len(values) * i // width for i in range(width + 1)]
        values = [max(values[a:b]) for a, b in pairwise(ends)]
    steps = len(LEVELS) - 1
    return "".join(
        LEVELS[min(steps, round(steps * max(0.0, value) / top)) if top > 0 else 0]
        for value in values
    )


def bar(value: float, top: float, width: int) -> str:
    """A bar of up to ``width`` characters, to an eighth of one; nothing only for 0."""
    if value <= 0 or top <= 0:
        return ""
    eighths = max(1, round(8 * width * min(1.0, value / top)))
    return (FULL * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def histogram(values: Sequence[int], most: int = 12) -> list[tuple[int, int, int]]:
    """Bins of whole numbers from 0 on, as first, last and how many: at most ``most`` of them.

    The first bin holds what is below the second, which begins at a power of two; from there each
    is twice as wide as the one before, or wider by a higher power of two where those are too many.
    """
    top, first = max(values), min((value for value in values if value > 0), default=1)
    start = 1 << (first.bit_length() - 1)
    for power in range(1, 64):
        edges = [0, start]
        while edges[-1] <= top:
            edges.append(edges[-1] << power)
        if len(edges) - 1 <= most:
            break
    counts, _ = np.histogram(np.asarray(values), np.asarray(edges))
    bins = [
        (low, high - 1, int(count))
        for (low, high), count in zip(pairwise(edges), counts.tolist(), strict=True)
    ]
    # The first bin is empty wherever the smallest value is above 0.
    return bins if bins[0][2] else bins[1:]

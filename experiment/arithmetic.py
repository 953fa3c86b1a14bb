"""The arithmetic estimate: what prefill of ``new`` tokens at depth L costs by calibration alone.

The calibration gives, for a few depths, the throughput of one chunk of tokens that starts there.
Attention reads every KV cell before a token, everything else is the same for each token, so the
time per token is ``b + c * L``: seconds per token (not tokens per second) are interpolated, which
is exact for that law.

Two assumptions stand in the estimate and are what its error against the measured prefill shows:
a step of ``new`` tokens runs as efficiently per token as the calibrated chunk (smaller batches use
matrix multiplication and the experts worse), and its mean depth lies as far behind L as the
chunk's does (``L + new / 2`` against ``L + chunk / 2``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from experiment.errors import CalibrationError
from experiment.recorded import StepKey
from experiment.records import CalibrationRow, Measurement
from experiment.trace import Step


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrated throughput over depth; make it with ``from_rows``."""

    chunk: int
    depths: tuple[int, ...]
    token_s: tuple[float, ...]
    """Seconds per token at each of ``depths``."""

    @classmethod
    def from_rows(cls, rows: Iterable[CalibrationRow], chunk: int) -> Calibration:
        """Take the depths that are calibrated with ``chunk`` tokens, in any order.

        Rows of other chunks are passed over: they are what llama-bench says about a step itself,
        and an estimate made of them would be that measurement.

        Raises:
            CalibrationError: there is none, a depth occurs twice, or a throughput is not positive.
        """
        ordered = sorted((row for row in rows if row.chunk == chunk), key=lambda row: row.depth)
        if not ordered:
            raise CalibrationError(f"no depth is calibrated with {chunk} tokens")
        depths = tuple(row.depth for row in ordered)
        if len(set(depths)) < len(depths):
            raise CalibrationError(f"a depth is calibrated twice: {list(depths)}")
        if any(row.tps_median <= 0 for row in ordered):
            raise CalibrationError("a calibrated throughput is not positive")
        return cls(chunk, depths, tuple(1 / row.tps_median for row in ordered))

    def covers(self, depth: int) -> bool:
        """Whether an estimate can be made at ``depth``."""
        return depth <= self.depths[-1]

    def tps(self, depth: int) -> float:
        """Prefill throughput at ``depth`` in tokens per second.

        Below the shallowest calibrated depth that one's throughput is taken.

        Raises:
            CalibrationError: ``depth`` is beyond the deepest calibrated one; extrapolating would
                hide a change of regime such as a cache that no longer fits.
        """
        return 1 / self._token_s(depth)

    def estimate_lm_ms(self, new: int, depth: int) -> float:
        """Milliseconds the language model needs for ``new`` tokens at ``depth``; no image encoding.

        Raises:
            CalibrationError: ``depth`` is beyond the deepest calibrated one.
        """
        return 1000 * new * self._token_s(depth)

    def _token_s(self, depth: int) -> float:
        if not self.covers(depth):
            raise CalibrationError(
                f"depth {depth} is beyond the deepest calibrated one, {self.depths[-1]}",
                hint="calibrate up to the trace's deepest step",
            )
        right = bisect_left(self.depths, depth)
        if right == 0:
            return self.token_s[0]
        low, high = self.depths[right - 1], self.depths[right]
        share = (depth - low) / (high - low)
        return (1 - share) * self.token_s[right - 1] + share * self.token_s[right]


def estimates(
    steps: Iterable[Step],
    content: Mapping[StepKey, tuple[int, float]],
    rows: Sequence[CalibrationRow],
    chunk: int,
    made_at: datetime,
) -> Iterator[Measurement]:
    """The arithmetic variant of each step: new tokens by calibration, plus image encoding.

    Steps without a valid measurement, or deeper than what is calibrated, get none.

    Args:
        steps: of the trace.
        content: per step what was really decoded: new tokens, and the median ``encode_ms``.
        rows: the calibration; without any there are no estimates.
        chunk: tokens of the chunk that the throughput is taken of.
        made_at: when the estimates are made.

    Raises:
        CalibrationError: the rows are no calibration with this chunk.
    """
    if not rows:
        return
    calibration = Calibration.from_rows(rows, chunk)
    for step in steps:
        key = (step.task_id, step.step)
        if key not in content or not calibration.covers(step.depth):
            continue
        new, encode_ms = content[key]
        yield Measurement(
            task_id=step.task_id,
            step=step.step,
            variant="arithmetic",
            round=0,
            depth=step.depth,
            status="ok",
            started_at=made_at,
            prompt_n=new,
            prompt_ms=calibration.estimate_lm_ms(new, step.depth) + encode_ms,
            install_ms=0.0,
            encode_ms=encode_ms,
        )

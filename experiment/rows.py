"""What a comparison holds, as frozen rows of numbers: a run, its steps, depths and tasks.

Times are milliseconds unless a name says otherwise. A figure ``x`` is a median; ``x_low`` and
``x_high`` are the ends of its 95 % bootstrap interval (``experiment/intervals.py``), None where
there are fewer than two values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.intervals import Interval

if TYPE_CHECKING:
    from experiment.extrapolated import Extrapolation


@dataclass(frozen=True, slots=True)
class RunRow:
    """The row of the run itself; times are UTC."""

    id: str
    name: str
    status: str
    engine: str
    pin: str
    model: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: medians in ms and sample counts ``…_n`` of each variant, and their ratios.

    ``prefill_ms`` leaves the install out, ``lm_prefill_ms`` the image encoding too. ``ratio_…`` is
    ``fake / restored`` of ``prefill_ms`` and ``aa_…`` is ``control / fake``, paired within rounds.
    ``speedup`` is ``full / fake`` of the medians, its interval the quotients of the ends of both;
    ``arithmetic_error_pct`` compares ``lm_prefill_ms`` with ``fake``, its interval is that of
    ``fake``. ``stability`` is the step's verdict. A step that is not replayed has a reason in
    ``left_out``; where a budget is that reason, ``fake_extrapolated_ms`` is what ``fake`` is
    estimated to take.
    """

    task_id: str
    step: int
    depth: int
    left_out: str | None
    new_tokens: int | None
    fake_n: int
    fake_prefill_ms: float | None
    fake_prefill_ms_low: float | None
    fake_prefill_ms_high: float | None
    fake_install_ms: float | None
    fake_install_ms_low: float | None
    fake_install_ms_high: float | None
    fake_encode_ms: float | None
    fake_encode_ms_low: float | None
    fake_encode_ms_high: float | None
    fake_lm_prefill_ms: float | None
    fake_lm_prefill_ms_low: float | None
    fake_lm_prefill_ms_high: float | None
    fake_n_kv: int | None
    control_n: int
    control_prefill_ms: float | None
    control_prefill_ms_low: float | None
    control_prefill_ms_high: float | None
    restored_n: int
    restored_prefill_ms: float | None
    restored_prefill_ms_low: float | None
    restored_prefill_ms_high: float | None
    restored_install_ms: float | None
    restored_install_ms_low: float | None
    restored_install_ms_high: float | None
    restored_encode_ms: float | None
    restored_lm_prefill_ms: float | None
    restored_n_kv: int | None
    full_n: int
    full_prefill_ms: float | None
    full_prefill_ms_low: float | None
    full_prefill_ms_high: float | None
    full_install_ms: float | None
    full_encode_ms: float | None
    full_lm_prefill_ms: float | None
    full_n_kv: int | None
    arithmetic_n: int
    arithmetic_prefill_ms: float | None
    arithmetic_encode_ms: float | None
    arithmetic_lm_prefill_ms: float | None
    pair_n: int
    ratio_median: float | None
    ratio_low: float | None
    ratio_high: float | None
    ratio_min: float | None
    ratio_max: float | None
    lm_ratio_median: float | None
    lm_ratio_low: float | None
    lm_ratio_high: float | None
    aa_n: int
    aa_median: float | None
    aa_low: float | None
    aa_high: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    arithmetic_error_pct: float | None
    arithmetic_error_pct_low: float | None
    arithmetic_error_pct_high: float | None
    stability: str | None
    fake_extrapolated_ms: float | None

    @property
    def ratio(self) -> Interval | None:
        """``fake / restored`` with its interval."""
        return interval(self.ratio_median, self.ratio_low, self.ratio_high, self.pair_n)

    @property
    def aa(self) -> Interval | None:
        """``control / fake`` with its interval."""
        return interval(self.aa_median, self.aa_low, self.aa_high, self.aa_n)


@dataclass(frozen=True, slots=True)
class OverallRow:
    """A run over all its steps: sums of the steps' medians in ms, and how many steps each sums.

    ``steps`` are those that are replayed, ``cold_steps`` of them those at L = 0, which only
    ``full`` measures; ``left_out_steps`` are the others of the trace.
    ``…_low`` and ``…_high`` of a sum are the sums of the steps' ends, None unless all have them:
    wider than an interval of the sum, because not all steps err to the same side. ``speedup`` and
    ``arithmetic_error_pct_sum`` are ratios of sums over the steps that have both sides, with the
    quotients of the ends. ``ratio_…`` and ``aa_…`` take all pairs of the run as one sample.
    ``speedup_median``, ``arithmetic_error_pct_median`` and ``fake_ms_per_new_token`` are medians
    over the steps, each step one value.
    """

    steps: int
    left_out_steps: int
    cold_steps: int
    fake_steps: int
    fake_prefill_ms: float | None
    fake_prefill_ms_low: float | None
    fake_prefill_ms_high: float | None
    fake_install_ms: float | None
    fake_install_ms_low: float | None
    fake_install_ms_high: float | None
    fake_encode_ms: float | None
    fake_encode_ms_low: float | None
    fake_encode_ms_high: float | None
    fake_new_tokens: int | None
    fake_ms_per_new_token: float | None
    fake_ms_per_new_token_low: float | None
    fake_ms_per_new_token_high: float | None
    control_steps: int
    control_prefill_ms: float | None
    control_prefill_ms_low: float | None
    control_prefill_ms_high: float | None
    restored_steps: int
    restored_prefill_ms: float | None
    restored_prefill_ms_low: float | None
    restored_prefill_ms_high: float | None
    restored_install_ms: float | None
    restored_install_ms_low: float | None
    restored_install_ms_high: float | None
    full_steps: int
    full_prefill_ms: float | None
    full_prefill_ms_low: float | None
    full_prefill_ms_high: float | None
    arithmetic_steps: int
    arithmetic_prefill_ms: float | None
    speedup_steps: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_median: float | None
    speedup_median_low: float | None
    speedup_median_high: float | None
    arithmetic_error_steps: int
    arithmetic_error_pct_median: float | None
    arithmetic_error_pct_median_low: float | None
    arithmetic_error_pct_median_high: float | None
    arithmetic_error_pct_min: float | None
    arithmetic_error_pct_max: float | None
    arithmetic_error_pct_sum: float | None
    arithmetic_error_pct_sum_low: float | None
    arithmetic_error_pct_sum_high: float | None
    pair_n: int
    ratio_median: float | None
    ratio_low: float | None
    ratio_high: float | None
    lm_ratio_median: float | None
    lm_ratio_low: float | None
    lm_ratio_high: float | None
    aa_n: int
    aa_median: float | None
    aa_low: float | None
    aa_high: float | None

    @property
    def ratio(self) -> Interval | None:
        """``fake / restored`` of all pairs with its interval."""
        return interval(self.ratio_median, self.ratio_low, self.ratio_high, self.pair_n)

    @property
    def aa(self) -> Interval | None:
        """``control / fake`` of all rounds with its interval."""
        return interval(self.aa_median, self.aa_low, self.aa_high, self.aa_n)


@dataclass(frozen=True, slots=True)
class DepthRow:
    """The steps with ``depth_from <= L < depth_to``: medians over steps in ms, paired ratios.

    A time's interval is that of its median over the steps; ``ratio_…`` and ``aa_…`` take the pairs
    of these steps as one sample; ``speedup`` is a ratio of sums.
    """

    depth_from: int
    depth_to: int
    steps: int
    fake_steps: int
    fake_prefill_ms: float | None
    fake_prefill_ms_low: float | None
    fake_prefill_ms_high: float | None
    fake_install_ms: float | None
    fake_install_ms_low: float | None
    fake_install_ms_high: float | None
    fake_ms_per_new_token: float | None
    fake_ms_per_new_token_low: float | None
    fake_ms_per_new_token_high: float | None
    restored_prefill_ms: float | None
    restored_prefill_ms_low: float | None
    restored_prefill_ms_high: float | None
    restored_install_ms: float | None
    restored_install_ms_low: float | None
    restored_install_ms_high: float | None
    full_prefill_ms: float | None
    full_prefill_ms_low: float | None
    full_prefill_ms_high: float | None
    arithmetic_prefill_ms: float | None
    speedup_steps: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    arithmetic_error_steps: int
    arithmetic_error_pct_median: float | None
    arithmetic_error_pct_median_low: float | None
    arithmetic_error_pct_median_high: float | None
    pair_n: int
    ratio_median: float | None
    ratio_low: float | None
    ratio_high: float | None
    ratio_min: float | None
    ratio_max: float | None
    aa_n: int
    aa_median: float | None
    aa_low: float | None
    aa_high: float | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task replayed with one variant's prefill, beside its baseline over the same steps; in s.

    ``steps`` are all of the task, ``steps_counted`` those that both sides sum.
    """

    task_id: str
    variant: str
    steps: int
    steps_counted: int
    opt_prefill_s: float
    baseline_prefill_s: float
    baseline_decode_s: float
    baseline_exec_s: float
    opt_wall_s: float
    baseline_wall_s: float


@dataclass(frozen=True, slots=True)
class StepStability:
    """How steady a step's measurements were; the columns of the view ``stability``."""

    task_id: str
    step: int
    n: int
    spread_pct: float | None
    outliers: int
    drift_pct: float | None
    other_cores_median: float | None
    other_cores_max: float | None
    stolen_cores_median: float | None
    stolen_cores_max: float | None
    throttled: int | None
    verdict: str | None


@dataclass(frozen=True, slots=True)
class RunStability:
    """How steady the whole run was; the columns of the view ``run_stability``."""

    judged_steps: int
    unsteady_steps: int
    n: int
    spread_pct: float | None
    outliers: int
    drift_pct: float | None
    other_cores_median: float | None
    other_cores_max: float | None
    stolen_cores_median: float | None
    stolen_cores_max: float | None
    throttled: int | None
    verdict: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that ``compare`` prints. ``rounds`` says what ended the rounds, if it is known.

    The rows of steps may be very many, and are then made anew by each look.

    ``tasks`` sum what was measured; ``extrapolation`` goes on from there to all steps, where a
    budget left some out.
    """

    folder: Path
    run: RunRow
    steps: Sequence[StepRow]
    overall: OverallRow
    depths: tuple[DepthRow, ...]
    tasks: tuple[TaskRow, ...]
    extrapolation: Extrapolation | None
    stability: RunStability | None
    step_stability: Sequence[StepStability]
    rounds: str | None
    notes: tuple[str, ...]


def interval(
    median: float | None, low: float | None, high: float | None, n: int
) -> Interval | None:
    """Put three columns of a row together; None where the interval is not there."""
    if median is None or low is None or high is None:
        return None
    return Interval(low=low, high=high, median=median, n=n)

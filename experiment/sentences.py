"""What a comparison's figures say, in sentences; and how a figure and its interval are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiment.intervals import MIN_PAIRS, Interval, difference, noise_floor
from experiment.layout import NOTHING
from experiment.rows import Comparison, RunStability

if TYPE_CHECKING:
    from experiment.extrapolated import Extrapolation, Row


def with_margin(
    value: float | None, low: float | None, high: float | None, digits: int, sign: str = ""
) -> str:
    """``value`` and, with as many digits, the longer side of its interval: "263 ±2"."""
    if value is None:
        return NOTHING
    text = f"{value:{sign},.{digits}f}"
    if low is None or high is None:
        return text
    return f"{text} ±{max(high - value, value - low):,.{digits}f}"


def ms(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Milliseconds, three digits or all before the point."""
    digits = 0 if value is None or value >= 99.95 else 1 if value >= 9.995 else 2
    return with_margin(value, low, high, digits)


def times(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """How many times as much."""
    return with_margin(value, low, high, 2 if value is None or value < 9.995 else 1)


def percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A signed share, without the unit."""
    return with_margin(value, low, high, 1, "+")


def count(value: int | None) -> str:
    """A whole number."""
    return NOTHING if value is None else f"{value:,}"


def _time(value_ms: float, low_ms: float | None = None, high_ms: float | None = None) -> str:
    """A time within a sentence."""
    if value_ms < 999.5:
        return f"{ms(value_ms, low_ms, high_ms)} ms"
    low, high = (None if end is None else end / 1000 for end in (low_ms, high_ms))
    return f"{with_margin(value_ms / 1000, low, high, 2)} s"


def answer(comparison: Comparison) -> tuple[str, ...]:
    """What the figures say: a sentence or two for each question that has data, never none."""
    told = (
        _cost(comparison),
        _cold(comparison),
        _fallback(comparison),
        _full(comparison),
        _arithmetic(comparison),
    )
    sentences = tuple(sentence for sentence in told if sentence)
    if not sentences:
        return ("No step has a valid measurement of fake: there is nothing to compare.",)
    if comparison.extrapolation is not None:
        sentences += tuple(extrapolated(comparison.extrapolation))
    ended = (_rounds(comparison), _stability(comparison.stability))
    return sentences + tuple(sentence for sentence in ended if sentence)


def _cost(comparison: Comparison) -> str:
    overall = comparison.overall
    shallowest = deepest = None
    for step in comparison.steps:
        if step.fake_prefill_ms is None:
            continue
        if shallowest is None or step.depth < shallowest.depth:
            shallowest = step
        if deepest is None or step.depth > deepest.depth:
            deepest = step
    if overall.fake_prefill_ms is None or shallowest is None or deepest is None:
        return ""
    ends = [shallowest, deepest]
    told = [
        f"{_time(s.fake_prefill_ms or 0, s.fake_prefill_ms_low, s.fake_prefill_ms_high)} for "
        f"{count(s.new_tokens)} new tokens at L = {s.depth:,} (n = {s.fake_n:,})"
        for s in ends
    ]
    total = _time(
        overall.fake_prefill_ms, overall.fake_prefill_ms_low, overall.fake_prefill_ms_high
    )
    text = (
        f"Prefill of only the new tokens at depth L costs {total} in sum over "
        f"{steps(overall.fake_steps)}: {told[0]}"
    )
    text += f", {told[1]}" if ends[0] is not ends[1] else ""
    if overall.fake_ms_per_new_token is not None:
        per_token = ms(
            overall.fake_ms_per_new_token,
            overall.fake_ms_per_new_token_low,
            overall.fake_ms_per_new_token_high,
        )
        text += f"; the median step {per_token} ms a new token"
    return text + "."


def _cold(comparison: Comparison) -> str:
    if not comparison.overall.cold_steps:
        return ""
    cold_ms = [
        step.full_prefill_ms
        for step in comparison.steps
        if step.depth == 0 and step.full_prefill_ms is not None
    ]
    if not cold_ms:
        return ""
    return (
        f"Where nothing was cached (L = 0), the whole prompt costs {_time(sum(cold_ms))} in sum "
        f"over {steps(len(cold_ms))}."
    )


def extrapolated(found: Extrapolation) -> Iterator[str]:
    """What the sample that a budget allowed says of all steps: prefill, and walls of all tasks."""
    rows = [row for row in found.rows if row.task_id is None]
    if not rows:
        return
    told = [
        f"{row.variant} {_of_all(row)}, {row.prefill.measured_steps:,} of them measured"
        for row in rows
    ]
    yield (
        f"Extrapolated to {found.covered:,} of {steps(found.steps)} of the trace, prefill in sum: "
        f"{'; '.join(told)}."
    )
    walls = [row for row in rows if row.opt_wall_s is not None]
    if walls:
        of_walls = [
            f"{row.variant} "
            f"{_range_s(row.opt_wall_s or 0.0, row.opt_wall_s_low, row.opt_wall_s_high)}"
            for row in walls
        ]
        yield (
            f"The same for the walls of all tasks (measured prefill, decode and exec of the "
            f"baseline), over {steps(walls[0].wall.steps)} with a complete baseline of "
            f"{walls[0].baseline_wall_s:,.1f} s: {'; '.join(of_walls)}."
        )
    flawed = [row for row in rows if row.prefill.flaw]
    for flaw in dict.fromkeys(row.prefill.flaw for row in flawed):
        of = [row for row in flawed if row.prefill.flaw == flaw]
        names = " and ".join(row.variant for row in of)
        lack = "no sum" if of[0].prefill.ms is None else "no interval"
        yield f"{names} {'have' if len(of) > 1 else 'has'} {lack} there: {flaw}."


def _of_all(row: Row) -> str:
    total = row.prefill
    if total.ms is None:
        return "not known"
    low, high = (None if end is None else end / 1000 for end in (total.low_ms, total.high_ms))
    return _range_s(total.ms / 1000, low, high)


def _range_s(value: float, low: float | None, high: float | None) -> str:
    """Seconds and their interval, whose sides differ."""
    told = "no interval" if low is None or high is None else f"{low:,.1f} to {high:,.1f}"
    return f"{value:,.1f} s ({told})"


def _fallback(comparison: Comparison) -> str:
    overall = comparison.overall
    if overall.ratio_median is None:
        return ""
    text = (
        f"Against the fallback (restored), fake takes {overall.ratio_median:.4f} times as long: "
        f"median of {pairs(overall.pair_n)}, {verdict(overall.ratio, overall.aa)}"
    )
    if overall.fake_install_ms is not None and overall.restored_install_ms is not None:
        fake = _time(
            overall.fake_install_ms, overall.fake_install_ms_low, overall.fake_install_ms_high
        )
        restored = _time(
            overall.restored_install_ms,
            overall.restored_install_ms_low,
            overall.restored_install_ms_high,
        )
        text += (
            f" Putting the prefix in place costs {fake} for fake in sum over "
            f"{steps(overall.fake_steps)}, {restored} for restored over "
            f"{steps(overall.restored_steps)}."
        )
    return text


def verdict(ratio: Interval | None, aa: Interval | None) -> str:
    """The interval of ``fake / restored``, the noise floor, and what follows from the two."""
    floor = noise_floor(aa)
    if aa is None or floor is None:
        noise = "the noise floor is not known (A/A, fake against itself, is not measured)"
    else:
        noise = (
            f"the noise floor is {floor:.4f} (A/A, fake against itself: {aa.median:.4f}, "
            f"{_range(aa)}, {pairs(aa.n)})"
        )
    if ratio is None:
        return f"too few for an interval; {noise}."
    if ratio.n < MIN_PAIRS:
        few = f"fewer than the {MIN_PAIRS} pairs that a conclusion needs"
        return f"95 % bootstrap interval {_range(ratio)}, {few}; {noise}."
    away = difference(ratio, floor)
    if away is None:
        follows = "no difference"
    else:
        follows = f"fake is {100 * abs(away):.2f} % {'slower' if away > 0 else 'faster'}"
    return f"95 % bootstrap interval {_range(ratio)}; {noise}: {follows}."


def _full(comparison: Comparison) -> str:
    overall = comparison.overall
    if overall.speedup is None or overall.speedup_median is None:
        return ""
    in_sum = times(overall.speedup, overall.speedup_low, overall.speedup_high)
    median = times(overall.speedup_median, overall.speedup_median_low, overall.speedup_median_high)
    text = (
        f"Decoding everything anew (full) takes {in_sum} times as long as fake in sum over "
        f"{steps(overall.speedup_steps)}; the median step {median} times"
    )
    if overall.speedup_low is None:
        text += " (full is measured once in some steps, so the sum has no interval)"
    return text + "."


def _arithmetic(comparison: Comparison) -> str:
    overall = comparison.overall
    if overall.arithmetic_error_pct_median is None or overall.arithmetic_error_pct_sum is None:
        return ""
    in_sum = percent(
        overall.arithmetic_error_pct_sum,
        overall.arithmetic_error_pct_sum_low,
        overall.arithmetic_error_pct_sum_high,
    )
    median = percent(
        overall.arithmetic_error_pct_median,
        overall.arithmetic_error_pct_median_low,
        overall.arithmetic_error_pct_median_high,
    )
    return (
        f"The arithmetic estimate new / prefill_tps(L) is off by {in_sum} % in sum over "
        f"{steps(overall.arithmetic_error_steps)}; the median step by {median} %, the steps from "
        f"{percent(overall.arithmetic_error_pct_min)} % to "
        f"{percent(overall.arithmetic_error_pct_max)} % (image encoding left out)."
    )


def _rounds(comparison: Comparison) -> str:
    if not comparison.rounds:
        return ""
    return f"How the rounds ended: {comparison.rounds.rstrip('.')}."


def _stability(stability: RunStability | None) -> str:
    if stability is None or stability.verdict is None:
        return ""
    figures = []
    if stability.spread_pct is not None:
        figures.append(
            f"spread {stability.spread_pct:.1f} % and {of(stability.outliers, 'outlier')} in "
            f"{pairs(stability.n)}"
        )
    if stability.drift_pct is not None:
        figures.append(f"drift {stability.drift_pct:+.1f} %")
    if stability.other_cores_median is not None and stability.other_cores_max is not None:
        figures.append(
            f"other processes on {stability.other_cores_median:.2f} cores, "
            f"{stability.other_cores_max:.2f} at most"
        )
    if stability.stolen_cores_median is not None and stability.stolen_cores_max is not None:
        figures.append(
            f"{stability.stolen_cores_median:.2f} cores stolen, "
            f"{stability.stolen_cores_max:.2f} at most"
        )
    if stability.throttled is not None:
        figures.append(f"throttled {of(stability.throttled, 'time')}")
    figures.append(f"{stability.unsteady_steps:,} of {steps(stability.judged_steps)} unsteady")
    return f"The run was {stability.verdict} ({'; '.join(figures)})."


def _range(interval: Interval) -> str:
    return f"{interval.low:.4f} to {interval.high:.4f}"


def steps(number: int) -> str:
    """A number of steps."""
    return of(number, "step")


def pairs(number: int) -> str:
    """A number of pairs."""
    return of(number, "pair")


def of(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

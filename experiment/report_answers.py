"""What a report says first: three figures, each with its sentence."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.intervals import MIN_PAIRS
from experiment.rows import Comparison
from experiment.sentences import pairs, percent, steps, times, verdict

UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Answer:
    """One question: the figure, its margin or range, and a sentence that says what it means."""

    question: str
    figure: str
    margin: str
    sentence: str

    @property
    def is_known(self) -> bool:
        """Whether the run answers it."""
        return self.figure != UNKNOWN


def answers(comparison: Comparison) -> tuple[Answer, Answer, Answer]:
    """Speed-up, fidelity and error of the arithmetic, also where one is not known."""
    return _speedup(comparison), _fidelity(comparison), _arithmetic(comparison)


def _speedup(comparison: Comparison) -> Answer:
    overall = comparison.overall
    question = "Speed-up"
    if overall.speedup is None:
        return Answer(
            question, UNKNOWN, "", "No step has both fake and full: the speed-up is not known."
        )
    ends = (overall.speedup_low, overall.speedup_high)
    median = times(overall.speedup_median, overall.speedup_median_low, overall.speedup_median_high)
    return Answer(
        question,
        f"{times(overall.speedup)} ×",
        "" if None in ends else f"{times(ends[0])} to {times(ends[1])}",
        f"Decoding only the new tokens behind a fabricated prefix (fake) is "
        f"{times(overall.speedup, *ends)} times as fast as decoding everything anew (full), in "
        f"sum over {steps(overall.speedup_steps)}; the median step is {median} times as fast.",
    )


def _fidelity(comparison: Comparison) -> Answer:
    overall = comparison.overall
    question = "Fidelity: fake / restored"
    if overall.ratio_median is None:
        return Answer(
            question,
            UNKNOWN,
            "",
            "No round has both fake and restored: whether the fake is faithful is not known.",
        )
    # A dot for a figure that nothing must be concluded from would look like one that may.
    told = verdict(overall.ratio, overall.aa).rstrip(".")
    if overall.pair_n < MIN_PAIRS:
        told = f"fewer than the {MIN_PAIRS} pairs that a conclusion needs"
    ratio = overall.ratio
    return Answer(
        question,
        f"{overall.ratio_median:.4f}",
        "" if ratio is None else f"{ratio.low:.4f} to {ratio.high:.4f}",
        f"Prefill behind a fabricated prefix takes {overall.ratio_median:.4f} times as long as "
        f"behind a real one (restored): median of {pairs(overall.pair_n)}, {told}.",
    )


def _arithmetic(comparison: Comparison) -> Answer:
    overall = comparison.overall
    question = "Error of the arithmetic"
    if overall.arithmetic_error_pct_sum is None:
        return Answer(
            question,
            UNKNOWN,
            "",
            "No step has both fake and the arithmetic estimate: its error is not known.",
        )
    ends = (overall.arithmetic_error_pct_sum_low, overall.arithmetic_error_pct_sum_high)
    return Answer(
        question,
        f"{percent(overall.arithmetic_error_pct_sum)} %",
        "" if None in ends else f"{percent(ends[0])} to {percent(ends[1])} %",
        f"The arithmetic estimate new / prefill_tps(L) is off by "
        f"{percent(overall.arithmetic_error_pct_sum, *ends)} % in sum over "
        f"{steps(overall.arithmetic_error_steps)} (image encoding left out); single steps from "
        f"{percent(overall.arithmetic_error_pct_min)} % to "
        f"{percent(overall.arithmetic_error_pct_max)} %.",
    )

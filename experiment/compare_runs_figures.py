"""The figures by which runs are compared: of a step, of a run, and of a run against the base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiment.compare_runs_rows import ComparedRun, Row, StepOfRun, Value
from experiment.intervals import median_interval
from experiment.recorded import StepKey
from experiment.rows import StepRow


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run with its steps and the ratios of their pairs."""

    compared: ComparedRun
    steps: Mapping[StepKey, StepRow]
    ratios: Mapping[StepKey, Sequence[float]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Figure:
    """How a figure is worked out: of a step, and of a run over some of its steps."""

    key: str
    name: str
    of_step: Callable[[StepRow], float | None]
    of_run: Callable[[Loaded, Sequence[StepKey]], Value | None]
    in_points: bool = False


def _sum(name: str) -> Callable[[Loaded, Sequence[StepKey]], Value | None]:
    def value(run: Loaded, keys: Sequence[StepKey]) -> Value | None:
        middle, low, high = (_total(run, keys, f"{name}{end}") for end in ("", "_low", "_high"))
        return _value(middle, low, high, len(keys))

    return value


def _value(middle: float | None, low: float | None, high: float | None, n: int) -> Value | None:
    return None if middle is None else Value(middle, low, high, n)


def _total(run: Loaded, keys: Sequence[StepKey], name: str) -> float | None:
    """The sum over these steps; None if one of them does not have it."""
    values = [getattr(run.steps[key], name) for key in keys]
    return None if None in values else sum(values)


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _percent_off(estimate: float | None, measured: float | None) -> float | None:
    share = _quotient(estimate, measured)
    return None if share is None else 100 * (share - 1)


def _ms_per_new_token(step: StepRow) -> float | None:
    return _quotient(step.fake_prefill_ms, step.new_tokens)


def _speedup(run: Loaded, keys: Sequence[StepKey]) -> Value | None:
    """A ratio of sums; the ends are quotients of the ends, as if both erred to opposite sides."""
    low, middle, high = (
        _quotient(
            _total(run, keys, f"full_prefill_ms{full}"), _total(run, keys, f"fake_prefill_ms{fake}")
        )
        for full, fake in (("_low", "_high"), ("", ""), ("_high", "_low"))
    )
    return _value(middle, low, high, len(keys))


def _arithmetic_error(run: Loaded, keys: Sequence[StepKey]) -> Value | None:
    """Of sums; its interval is that of fake alone."""
    estimate = _total(run, keys, "arithmetic_lm_prefill_ms")
    low, middle, high = (
        _percent_off(estimate, _total(run, keys, f"fake_lm_prefill_ms{end}"))
        for end in ("_high", "", "_low")
    )
    return _value(middle, low, high, len(keys))


def _median(values: Sequence[float]) -> Value | None:
    found = median_interval(values)
    if found is None:
        return Value(values[0], None, None, 1) if values else None
    return Value(found.median, found.low, found.high, found.n)


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


FIGURES = (
    _Figure(
        "fake_prefill_ms",
        "fake prefill, sum, ms",
        lambda step: step.fake_prefill_ms,
        _sum("fake_prefill_ms"),
    ),
    _Figure(
        "fake_ms_per_new_token",
        "fake, ms a new token",
        _ms_per_new_token,
        lambda run, keys: _median(_present(_ms_per_new_token(run.steps[key]) for key in keys)),
    ),
    _Figure("speedup", "full/fake", lambda step: step.speedup, _speedup),
    _Figure(
        "fidelity",
        "fake/restored",
        lambda step: step.ratio_median,
        lambda run, keys: _median([ratio for key in keys for ratio in run.ratios[key]]),
    ),
    _Figure(
        "arithmetic_error_pct",
        "arithmetic error, %",
        lambda step: step.arithmetic_error_pct,
        _arithmetic_error,
        in_points=True,
    ),
    _Figure(
        "fake_install_ms",
        "install of fake, sum, ms",
        lambda step: step.fake_install_ms,
        _sum("fake_install_ms"),
    ),
    _Figure(
        "restored_install_ms",
        "install of restored, sum, ms",
        lambda step: step.restored_install_ms,
        _sum("restored_install_ms"),
    ),
)


def row(figure: _Figure, runs: Sequence[Loaded], measured: Sequence[StepKey]) -> Row:
    """One figure of all runs, over those of the ``measured`` steps that have it in each of them."""
    keys = [
        key for key in measured if all(figure.of_step(run.steps[key]) is not None for run in runs)
    ]
    against = (
        _median(_present(_against(figure, run, runs[0], key) for key in keys)) for run in runs[1:]
    )
    return Row(
        key=figure.key,
        name=figure.name,
        steps=len(keys),
        in_points=figure.in_points,
        runs=tuple(figure.of_run(run, keys) if keys else None for run in runs),
        against_base=(None, *against),
    )


def _against(figure: _Figure, run: Loaded, base: Loaded, key: StepKey) -> float | None:
    here, there = figure.of_step(run.steps[key]), figure.of_step(base.steps[key])
    if here is None or there is None:
        return None
    return here - there if figure.in_points else _quotient(here, there)


def steps_of_runs(runs: Sequence[Loaded], measured: Sequence[StepKey]) -> Iterator[StepOfRun]:
    """Each of the ``measured`` steps, run by run."""
    for key in measured:
        for run in runs:
            step = run.steps[key]
            yield StepOfRun(
                *key,
                step.depth,
                run.compared.label,
                {figure.key: figure.of_step(step) for figure in FIGURES},
                {
                    figure.key: None if run is runs[0] else _against(figure, run, runs[0], key)
                    for figure in FIGURES
                },
            )

"""What a sweep's figures say, in sentences: fidelity, noise, second instrument, estimates."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from experiment.cost_model import CostModel
from experiment.intervals import CONFIDENCE, Interval
from experiment.sweep_results import Cell, Sweep

# The formula is fixed; that another one fits better is told where it halves what is unexplained.
CLEARLY_BETTER = 0.5


def answers(sweep: Sweep) -> tuple[str, ...]:
    """A sentence or more for each question that has data."""
    return tuple(_sentences(sweep))


def _sentences(sweep: Sweep) -> Iterator[str]:
    if sweep.run.status != "finished":
        yield f"The run is {sweep.run.status}: these are the cells it had measured until then."
    yield from _fidelity(sweep)
    yield from _noise(sweep)
    yield from _model(sweep)
    yield from _bench(sweep)
    yield from _arithmetic(sweep)
    yield from (f"Left out: {item.what}: {item.reason}." for item in sweep.left_out)


def _fidelity(sweep: Sweep) -> Iterator[str]:
    judged = [cell for cell in sweep.cells if cell.contains_one is not None]
    if not judged:
        yield "No cell has two pairs of fake and restored: nothing can be said about fidelity."
        return
    within = sum(cell.contains_one is True for cell in judged)
    text = (
        f"In {within} of {_count(len(judged), 'cell')} the 95 % interval of fake/restored "
        f"contains 1 (by chance alone {(1 - CONFIDENCE) * len(judged):.1f} would miss it)"
    )
    outside = [cell for cell in judged if sweep.sees_difference(cell)]
    inside_floor = len(judged) - within - len(outside)
    if inside_floor:
        text += f"; in {inside_floor} more the median lies within the noise"
    imprecise = sum(not cell.is_precise(sweep.target_pct) for cell in judged)
    if imprecise:
        text += (
            f"; in {imprecise} the half-width is above the {sweep.target_pct:g} % that was wished "
            f"for"
        )
    yield text + "."
    if not outside:
        yield "No cell shows a difference between fake and restored."
        return
    biased = [(cell, cell.ratio.interval) for cell in outside if cell.ratio and cell.ratio.interval]
    for cell, found in sorted(biased, key=lambda item: abs(item[1].median - 1), reverse=True):
        yield _biased(cell, found)


def _biased(cell: Cell, found: Interval) -> str:
    """A cell that shows a difference, with what was measured that may be its reason."""
    text = (
        f"At {_place(cell)} fake differs from restored by {100 * (found.median - 1):+.2f} % "
        f"({found.low:.4f} to {found.high:.4f}, {found.n} pairs)"
    )
    if cell.is_same_structure is not None:
        text += (
            "; both had the same ubatches, KV columns, graph nodes and K/V bytes"
            if cell.is_same_structure
            else "; their structure is not the same"
        )
    if cell.fake_experts and cell.restored_experts:
        more = 100 * (cell.fake_experts / cell.restored_experts - 1)
        text += f"; fake touched {cell.fake_experts:,} experts, restored "
        text += f"{cell.restored_experts:,} ({more:+.1f} %)"
    return text + "."


def _noise(sweep: Sweep) -> Iterator[str]:
    if sweep.noise is None or sweep.noise.interval is None or sweep.floor is None:
        return
    found = sweep.noise.interval
    yield (
        f"Noise floor: control/fake is {found.median:.4f} ({found.low:.4f} to {found.high:.4f}, "
        f"{found.n:,} pairs of all cells), so up to {100 * sweep.floor:.2f} % is no difference."
    )


def _model(sweep: Sweep) -> Iterator[str]:
    for name, model in sweep.models.items():
        if isinstance(model, str):
            yield f"No cost model of {name}: {model}."
    model = sweep.models["fake"]
    if isinstance(model, str):
        return
    worst = max(
        (cell for cell in sweep.cells if cell.model_error_pct is not None),
        key=lambda cell: abs(cell.model_error_pct or 0),
    )
    text = (
        f"A prefill costs {model.a_ms:.3f} ms + {model.b_ms:.4f} ms a token + "
        f"{1000 * model.c_ms:.5f} ms a token and 1,000 cells of depth: R2 = {model.r2:.5f}, "
        f"largest residual {worst.model_error_pct or 0:+.1f} % at {_place(worst)}"
    )
    other = model.r2_mean_depth
    if other is not None and 1 - other < CLEARLY_BETTER * (1 - model.r2):
        text += f"; with L + new / 2 in place of L, R2 = {other:.5f}"
    yield text + "."


def _bench(sweep: Sweep) -> Iterator[str]:
    ratios = [cell.bench_ratio for cell in sweep.cells if cell.bench_ratio is not None]
    if not ratios:
        return
    yield (
        f"fake takes {min(ratios):.3f} to {max(ratios):.3f} times as long as llama-bench at the "
        f"same cell, in the median of {_count(len(ratios), 'cell')} {median(ratios):.3f}."
    )
    told = [cell.is_batched_alike for cell in sweep.cells if cell.is_batched_alike is not None]
    if told:
        alike = sum(told)
        verdict = "so batching is no reason" if alike == len(told) else "elsewhere batching differs"
        yield (
            f"Batching: in {alike} of {_count(len(told), 'cell')} the server split the new tokens "
            f"as llama-bench does, {verdict}."
        )
    yield from _sampler(sweep)
    fake, bench = sweep.models["fake"], sweep.models["bench"]
    if isinstance(fake, CostModel) and isinstance(bench, CostModel):
        yield (
            f"By term, fake against llama-bench: a request {fake.a_ms:.3f} and {bench.a_ms:.3f} "
            f"ms, a token {fake.b_ms:.4f} and {bench.b_ms:.4f} ms, a token and 1,000 cells of "
            f"depth {1000 * fake.c_ms:.5f} and {1000 * bench.c_ms:.5f} ms."
        )
    for depth, ratio in sweep.bench_again:
        yield (
            f"Another process: llama-bench with {sweep.chunk:,} tokens at L = {depth:,} takes "
            f"{100 * (ratio - 1):+.1f} % in the sweep against another process in the probe."
        )
    if sweep.drift_pct is not None:
        yield (
            f"Another time: fake itself changed by {sweep.drift_pct:+.1f} % from the first third "
            f"of the rounds to the last, and llama-bench ran after them."
        )


def _sampler(sweep: Sweep) -> Iterator[str]:
    """What of the difference is work that llama-bench does not do."""
    parts = [
        (cell.sampler.median, (cell.fake.median - cell.sampler.median) / cell.bench.median)
        for cell in sweep.cells
        if cell.sampler and cell.fake and cell.bench
    ]
    if parts:
        times_ms, ratios = zip(*parts, strict=True)
        yield (
            f"Sampling, which llama-bench does without: {min(times_ms):.2f} to {max(times_ms):.2f} "
            f"ms of a request of fake; without it fake takes {min(ratios):.3f} to "
            f"{max(ratios):.3f} times as long, in the median {median(ratios):.3f}."
        )


def _arithmetic(sweep: Sweep) -> Iterator[str]:
    cells = [cell for cell in sweep.cells if cell.arithmetic_error_pct is not None]
    if not cells:
        return
    errors = [cell.arithmetic_error_pct or 0.0 for cell in cells]
    worst = max(cells, key=lambda cell: abs(cell.arithmetic_error_pct or 0))
    text = (
        f"The arithmetic estimate new / prefill_tps(L) departs from fake by {min(errors):+.1f} to "
        f"{max(errors):+.1f} %, in the median cell by {median(errors):+.1f} %; most at "
        f"{_place(worst)}"
    )
    if worst.arithmetic_ms and worst.bench and worst.bench_ratio:
        chunk = worst.bench.median / worst.arithmetic_ms
        text += (
            f", where llama-bench itself needs {chunk:.2f} times as long a token for {worst.new:,} "
            f"tokens as for {sweep.chunk:,}, and fake {worst.bench_ratio:.2f} times as long as "
            f"llama-bench"
        )
    yield text + "."


def _place(cell: Cell) -> str:
    return f"L = {cell.depth:,}, new = {cell.new:,}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

"""How a sweep is written: its plan before it starts, and tables and sentences of what it found."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, assert_never

from experiment.cost_model import CostModel
from experiment.layout import WIDTH
from experiment.sweep_answers import answers
from experiment.sweep_estimate import Plan
from experiment.sweep_results import Cell, Figure, Sweep

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")

NOTHING = "-"
UNEQUAL, IMPRECISE = "*", "~"


@dataclass(frozen=True, slots=True)
class Block:
    """A table with its title and what its marks mean."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str = ""


def render(sweep: Sweep, form: Format) -> str:
    """Write ``sweep``: ``csv`` holds the cells only, ``json`` everything."""
    match form:
        case "table" | "md":
            write = _terminal if form == "table" else _markdown
            return write(title(sweep), blocks(sweep), answers(sweep), str(sweep.folder))
        case "json":
            return json.dumps(_value(sweep), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case "csv":
            return _csv(sweep)
        case _:
            assert_never(form)


def title(sweep: Sweep) -> str:
    """Which run it is."""
    run = sweep.run
    return f"{run.id}: {run.model}, pin {run.pin}, engine {run.engine}, fill {sweep.fill}"


def blocks(sweep: Sweep) -> tuple[Block, ...]:
    """The tables of a sweep."""
    return (_fidelity(sweep), _instruments(sweep), _inside(sweep), _models(sweep))


def _fidelity(sweep: Sweep) -> Block:
    sizes = sorted({cell.new for cell in sweep.cells})
    by_place = {(cell.depth, cell.new): cell for cell in sweep.cells}
    depths = sorted({cell.depth for cell in sweep.cells})

    def entry(cell: Cell | None) -> str:
        if cell is None or cell.ratio is None:
            return NOTHING
        marks = UNEQUAL if cell.contains_one is False else ""
        marks += "" if cell.is_precise(sweep.target_pct) else IMPRECISE
        return f"{_with_margin(cell.ratio, f'{cell.ratio.median:.4f}')}{marks}"

    return Block(
        "fake / restored",
        ("L \\ new", *(f"{new:,}" for new in sizes)),
        tuple(
            (f"{depth:,}", *(entry(by_place.get((depth, new))) for new in sizes))
            for depth in depths
        ),
        f"Median of the ratios paired within rounds, and the half-width of its 95 % interval. "
        f"{UNEQUAL} the interval does not contain 1. {IMPRECISE} the half-width of "
        f"{sweep.target_pct:g} % that was wished for is not reached, or two pairs are not there.",
    )


def _instruments(sweep: Sweep) -> Block:
    return Block(
        "prefill, ms",
        ("L", "new", "fake", "restored", "bench", "fake/bench", "arithmetic", "error %"),
        tuple(
            (
                f"{cell.depth:,}",
                f"{cell.new:,}",
                _time(cell.fake),
                _time(cell.restored),
                _time(cell.bench),
                NOTHING if cell.bench_ratio is None else f"{cell.bench_ratio:.3f}",
                NOTHING if cell.arithmetic_ms is None else _ms(cell.arithmetic_ms),
                _percent(cell.arithmetic_error_pct),
            )
            for cell in sweep.cells
        ),
        f"Medians over rounds without the install, and the half-widths of their 95 % intervals. "
        f"bench: llama-bench -p new -d L, another process. fake/bench: ratio of medians. "
        f"arithmetic: new / prefill_tps(L), the throughput of {sweep.chunk:,} tokens at L; error: "
        f"against fake.",
    )


def _inside(sweep: Sweep) -> Block:
    structure = {True: "same", False: "DIFFERENT", None: NOTHING}
    return Block(
        "model, install, structure",
        (
            *("L", "new", "model ms", "residual %", "install fake ms", "install restored ms"),
            *("experts fake", "experts restored", "structure"),
        ),
        tuple(
            (
                f"{cell.depth:,}",
                f"{cell.new:,}",
                NOTHING if cell.model_ms is None else _ms(cell.model_ms),
                _percent(cell.model_error_pct),
                _time(cell.fake_install),
                _time(cell.restored_install),
                NOTHING if cell.fake_experts is None else f"{cell.fake_experts:,}",
                NOTHING if cell.restored_experts is None else f"{cell.restored_experts:,}",
                structure[cell.is_same_structure],
            )
            for cell in sweep.cells
        ),
        "model: the first row of the next table; residual: model against fake. experts: distinct "
        "ones, summed over layers and ubatches. structure: ubatches, KV columns read, graph nodes "
        "and K/V bytes of fake against restored.",
    )


def _models(sweep: Sweep) -> Block:
    def row(name: str, model: CostModel | str) -> tuple[str, ...]:
        if isinstance(model, str):
            return (name, *[NOTHING] * 6)
        return (
            name,
            f"{model.a_ms:,.3f}",
            f"{model.b_ms:,.4f}",
            f"{1000 * model.c_ms:,.5f}",
            f"{model.r2:.5f}",
            NOTHING if model.r2_mean_depth is None else f"{model.r2_mean_depth:.5f}",
            _percent(model.largest_residual_pct),
        )

    return Block(
        "T(new, L) = a + b * new + c * new * L",
        (
            *("of", "a, ms", "b, ms a token", "c, ms a token and 1,000 cells"),
            *("R2", "R2 with L + new / 2", "largest residual %"),
        ),
        tuple(row(name, model) for name, model in sweep.models.items()),
        "Least squares over relative residuals; R2: the share of the relative variation that the "
        "model explains, against the best constant.",
    )


def render_plan(plan: Plan) -> str:
    """Write what is going to be measured, what it takes, and what is left out and why."""
    rows = [
        (
            f"{cost.depth:,}",
            f"{len(plan.sizes)}",
            f"{cost.requests_s / 60:.1f}",
            f"{cost.bench_s / 60:.1f}",
            f"{cost.state_bytes / 2**30:.2f}",
        )
        for cost in plan.costs
    ]
    block = Block("", ("L", "cells", "requests min", "llama-bench min", "state GiB"), tuple(rows))
    lines = [
        f"sweep of {len(plan.depths)} depths by {len(plan.sizes)} sizes (new = "
        f"{', '.join(f'{new:,}' for new in plan.sizes)})",
        *_lines(block),
        f"estimate: {plan.fixed_s / 60:.1f} min, of them {plan.prime_s / 60:.1f} min decoding real "
        f"prefixes, and up to {plan.added_s / 60:.1f} min of further rounds; the probe took "
        f"{plan.probe_s / 60:.1f} min; the limit is {plan.limit_s / 60:.1f} min",
        f"memory: {plan.memory_bytes / 2**30:.1f} GiB of {plan.available_bytes / 2**30:.1f} GiB "
        f"available",
        *(f"left out: {item.what}: {item.reason}" for item in plan.left_out),
    ]
    return "\n".join(lines) + "\n"


def _lines(block: Block) -> Iterator[str]:
    rows = [block.head, *block.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _terminal(title: str, blocks: Iterable[Block], told: Sequence[str], folder: str) -> str:
    lines = [title]
    for block in blocks:
        lines += ["", block.title, *_lines(block), *_wrapped(block.legend)]
    sentences = (part for line in told for part in _wrapped(line))
    # Not wrapped: a path that is broken over two lines cannot be copied.
    return "\n".join([*lines, "", *sentences, "", f"Results: {folder}"]) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _markdown(title: str, blocks: Iterable[Block], told: Sequence[str], folder: str) -> str:
    lines = [f"### {title}"]
    for block in blocks:
        rows = [block.head, ["---:"] * len(block.head), *block.rows]
        table = (f"| {' | '.join(row)} |" for row in rows)
        lines += ["", f"**{block.title}**", "", *table, "", block.legend]
    return (
        "\n".join([*lines, "", *(f"- {line}" for line in told), "", f"Results: `{folder}`"]) + "\n"
    )


def _derived(sweep: Sweep, cell: Cell) -> dict[str, object]:
    return {
        "contains_one": cell.contains_one,
        "is_precise": cell.is_precise(sweep.target_pct),
        "sees_difference": sweep.sees_difference(cell),
        "bench_ratio": cell.bench_ratio,
        "arithmetic_error_pct": cell.arithmetic_error_pct,
        "model_error_pct": cell.model_error_pct,
    }


def _value(sweep: Sweep) -> dict[str, object]:
    cells = [asdict(cell) | _derived(sweep, cell) for cell in sweep.cells]
    # Row by row: asdict leaves the values of a mapping that are texts alone.
    more = {"folder": str(sweep.folder), "floor": sweep.floor, "cells": cells}
    return asdict(sweep) | more | {"answers": answers(sweep)}


def _csv(sweep: Sweep) -> str:
    sink = io.StringIO()
    rows = [_flat(cell) | _derived(sweep, cell) for cell in sweep.cells]
    writer = csv.DictWriter(sink, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


def _flat(cell: Cell) -> dict[str, object]:
    row: dict[str, object] = {}
    for name in cell.__slots__:
        value = getattr(cell, name)
        if name in _FIGURES:
            interval = None if value is None else value.interval
            row |= {
                name: None if value is None else value.median,
                f"{name}_n": 0 if value is None else value.n,
                f"{name}_low": None if interval is None else interval.low,
                f"{name}_high": None if interval is None else interval.high,
            }
        else:
            row[name] = value
    return row


_FIGURES = (
    *("fake", "restored", "ratio", "noise", "bench"),
    *("fake_install", "restored_install", "sampler"),
)


def _time(figure: Figure | None) -> str:
    return NOTHING if figure is None else _with_margin(figure, _ms(figure.median))


def _with_margin(figure: Figure, text: str) -> str:
    if figure.interval is None:
        return f"{text} (n = 1)"
    if not figure.median:
        return text
    return f"{text} ±{100 * figure.interval.half_width:.2f} %"


def _ms(value: float) -> str:
    digits = 0 if value >= 999.5 else 1 if value >= 99.95 else 2 if value >= 0.995 else 4
    return f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.2f}"

"""What the graph did for fake and for restored, side by side: is the fake faithful for a reason?

Equal structure with unequal time, or unequal structure, is flagged. Written like a comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from experiment.compare import add_ratios
from experiment.errors import StoreError
from experiment.intervals import MIN_PAIRS, Interval, difference, median_interval, noise_floor
from experiment.layout import NOTHING, Page, markdown, terminal
from experiment.notes import some
from experiment.reader import STEP_KEY, Reader, read
from experiment.rows import RunRow, interval
from experiment.sentences import count, pairs, percent, steps, verdict, with_margin
from experiment.tables import Format, as_csv, as_json

COMPARED = {
    "same_ubatches": "ubatches",
    "same_n_kv": "n_kv",
    "same_graph_nodes": "graph nodes",
    "same_kv_bytes": "K/V bytes",
}

TIME_DIFFERS = "same structure, time differs"


@dataclass(frozen=True, slots=True)
class StructureRow:
    """A step: fake against restored; None is what was not measured.

    ``…_n_kv`` is that of the last ubatch, ``…_graph_nodes`` and ``…_kv_bytes`` are summed over
    ubatches, ``…_experts`` (distinct experts chosen) over ubatches and layers. ``same_…`` compare
    ubatch by ubatch; ``…_agrees``: all valid rounds of the variant did the same. ``ratio_…`` is
    ``fake / restored`` and ``aa_…`` is ``control / fake``, as in a comparison.
    """

    task_id: str
    step: int
    depth: int
    new_tokens: int | None
    fake_fill: str | None
    fake_n: int
    fake_agrees: bool | None
    fake_ubatches: int | None
    fake_n_kv: int | None
    fake_graph_nodes: int | None
    fake_kv_bytes: int | None
    restored_n: int
    restored_agrees: bool | None
    restored_ubatches: int | None
    restored_n_kv: int | None
    restored_graph_nodes: int | None
    restored_kv_bytes: int | None
    same_ubatches: bool | None
    same_n_kv: bool | None
    same_graph_nodes: bool | None
    same_kv_bytes: bool | None
    fake_experts: int | None
    restored_experts: int | None
    expert_difference_pct: float | None
    pair_n: int
    ratio_median: float | None
    ratio_low: float | None
    ratio_high: float | None
    aa_n: int
    aa_median: float | None
    aa_low: float | None
    aa_high: float | None
    flag: str

    @property
    def compared(self) -> bool:
        """Whether both variants tell their structure."""
        return all(getattr(self, name) is not None for name in COMPARED)

    @property
    def differing(self) -> tuple[str, ...]:
        """What differs, between the variants or between the rounds of one."""
        between = [name for field, name in COMPARED.items() if getattr(self, field) is False]
        within = [
            f"rounds of {variant}"
            for variant in ("fake", "restored")
            if getattr(self, f"{variant}_agrees") is False
        ]
        return (*between, *within)


@dataclass(frozen=True, slots=True)
class StructureComparison:
    """Everything that ``compare --structure`` prints; ``ratio`` and ``aa`` are of the whole run."""

    folder: Path
    run: RunRow
    rows: tuple[StructureRow, ...]
    ratio: Interval | None
    aa: Interval | None


@dataclass(frozen=True, slots=True)
class _RunRatios:
    pair_n: int
    ratio_median: float | None
    ratio_low: float | None
    ratio_high: float | None
    aa_n: int
    aa_median: float | None
    aa_low: float | None
    aa_high: float | None


def load(folder_or_database: Path, run_id: str | None = None) -> StructureComparison:
    """Read a run's structure (that of the last one started if ``run_id`` is None).

    Raises:
        StoreError: there is no database, or it holds no such run.
    """
    with read(folder_or_database, run_id) as reader:
        return _load(reader)


def _load(reader: Reader) -> StructureComparison:
    (run,) = reader.rows(RunRow, "run", key="id")
    add_ratios(reader)
    rows = reader.rows(
        StructureRow,
        f"(SELECT s.*, r.* EXCLUDE ({STEP_KEY}), c.aa_n, c.aa_median, '' AS flag "
        f"FROM structure_comparison AS s JOIN step_comparison AS c USING ({STEP_KEY}) "
        f"LEFT JOIN step_ratios AS r USING ({STEP_KEY}) WHERE s.left_out IS NULL)",
        order="line, task_id, step",
    )
    if not rows:
        raise StoreError("the run holds no steps", where=str(reader.folder))
    (all_,) = reader.rows(_RunRatios, "run_comparison LEFT JOIN run_ratios USING (run_id)")
    aa = interval(all_.aa_median, all_.aa_low, all_.aa_high, all_.aa_n)
    return StructureComparison(
        folder=reader.folder,
        run=run,
        rows=tuple(replace(row, flag=_flag(row, noise_floor(aa))) for row in rows),
        ratio=interval(all_.ratio_median, all_.ratio_low, all_.ratio_high, all_.pair_n),
        aa=aa,
    )


def _flag(row: StructureRow, floor: float | None) -> str:
    if row.differing:
        return f"structure differs: {', '.join(row.differing)}"
    ratio = interval(row.ratio_median, row.ratio_low, row.ratio_high, row.pair_n)
    if not row.compared or ratio is None or row.pair_n < MIN_PAIRS:
        return ""
    # A step has few pairs: its own A/A, of as few, strays farther from 1 than that of the run.
    own = noise_floor(interval(row.aa_median, row.aa_low, row.aa_high, row.aa_n))
    known = [some_floor for some_floor in (own, floor) if some_floor is not None]
    return "" if difference(ratio, max(known, default=None)) is None else TIME_DIFFERS


def render(structure: StructureComparison, form: Format) -> str:
    """Write ``structure``: ``csv`` holds the steps only, ``json`` everything."""
    match form:
        case "table":
            return terminal(_page(structure))
        case "md":
            return markdown(_page(structure))
        case "json":
            return as_json(structure)
        case "csv":
            return as_csv(StructureRow, structure.rows)
        case _:
            assert_never(form)


HEADS = (
    "task",
    "step",
    "L",
    "new",
    "ubatches",
    "n_kv",
    "graph\nnodes",
    "K/V MB\nread",
    "experts\nfake",
    "experts\nrestored",
    "experts\n%",
    "n",
    "fake/restored",
    "flag",
)

LEGEND = (
    "n_kv: KV columns that the attention read in the last ubatch; graph nodes and K/V MB (10^6 "
    "bytes) are summed over ubatches, experts (distinct ones chosen, counted in an untimed pass) "
    "over ubatches and layers. 'x /y': fake has x, restored y. fake/restored: median of n ratios "
    "paired within rounds, ± the longer side of its 95 % bootstrap interval; without it there is "
    "one pair. The time differs where that interval, of six pairs at least, does not contain 1 and "
    "its median is farther from 1 than the A/A interval (fake against itself) of the step and of "
    "the run."
)


def _page(structure: StructureComparison) -> Page:
    run = structure.run
    return Page(
        title=f"{run.id}: {run.model}, pin {run.pin}, engine {run.engine}; structure",
        heads=HEADS,
        rows=[_cells(row) for row in structure.rows],
        total=None,
        legend=LEGEND,
        sentences=answer(structure),
        notes=(),
        folder=str(structure.folder),
        texts=(0, len(HEADS) - 1),
    )


def _cells(row: StructureRow) -> list[str]:
    return [
        row.task_id,
        str(row.step),
        count(row.depth),
        count(row.new_tokens),
        _both(count(row.fake_ubatches), count(row.restored_ubatches)),
        _both(count(row.fake_n_kv), count(row.restored_n_kv)),
        _both(count(row.fake_graph_nodes), count(row.restored_graph_nodes)),
        _both(_megabytes(row.fake_kv_bytes), _megabytes(row.restored_kv_bytes)),
        count(row.fake_experts),
        count(row.restored_experts),
        percent(row.expert_difference_pct),
        count(row.pair_n or None),
        with_margin(row.ratio_median, row.ratio_low, row.ratio_high, 4),
        row.flag,
    ]


def _both(fake: str, restored: str) -> str:
    return fake if fake == restored else f"{fake} /{restored}"


def _megabytes(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else f"{size_bytes / 1e6:,.1f}"


def answer(structure: StructureComparison) -> tuple[str, ...]:
    """What the table says: structure, time, experts."""
    told = (_same(structure.rows), _time(structure), _experts(structure.rows))
    return tuple(sentence for sentence in told if sentence)


def _same(rows: Iterable[StructureRow]) -> str:
    compared = [row for row in rows if row.compared]
    if not compared:
        return "In no step do both fake and restored tell what their graphs did."
    differing = [row for row in rows if row.differing]
    same = [row for row in compared if not row.differing]
    text = (
        f"In {len(same):,} of {steps(len(compared))} fake and restored do the same: ubatches, KV "
        "columns, graph nodes and K/V bytes read are equal"
    )
    if differing:
        which = [f"{row.task_id} step {row.step}: {', '.join(row.differing)}" for row in differing]
        text += f"; the structure differs in {steps(len(differing))} ({some(which, '; ')})"
    return text + "."


def _time(structure: StructureComparison) -> str:
    text = ""
    same = [row for row in structure.rows if row.compared and not row.differing and row.pair_n > 1]
    if same:
        slow = [f"{row.task_id} step {row.step}" for row in same if row.flag == TIME_DIFFERS]
        text = f"Among those with pairs, {steps(len(same))}, the time differs by more than noise "
        text += f"in {len(slow):,} ({some(slow)})." if slow else "in none."
    if structure.ratio is not None:
        text += (
            f" Over the run fake takes {structure.ratio.median:.4f} times as long as restored: "
            f"median of {pairs(structure.ratio.n)}, {verdict(structure.ratio, structure.aa)}"
        )
    return text.strip()


def _experts(rows: Iterable[StructureRow]) -> str:
    counted = [row for row in rows if row.expert_difference_pct is not None]
    if not counted:
        return "Experts are not counted: the model has none, or schedule.structure_steps is 0."
    fake = sum(row.fake_experts or 0 for row in counted)
    restored = sum(row.restored_experts or 0 for row in counted)
    shares = [row.expert_difference_pct or 0.0 for row in counted]
    fills = " and ".join(sorted({row.fake_fill for row in counted if row.fake_fill}))
    text = (
        f"Experts touched, in sum over {steps(len(counted))}: {fake:,} by fake (fill {fills}), "
        f"{restored:,} by restored, {100 * (fake / restored - 1):+.2f} %"
    )
    middle = median_interval(shares)
    if middle is not None:
        text += (
            f"; the median step {percent(middle.median, middle.low, middle.high)} %, the steps "
            f"from {min(shares):+.1f} % to {max(shares):+.1f} %"
        )
    return text + "."

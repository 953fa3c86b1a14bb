"""A report as Markdown for a pull request: the answer, notes, and tables of depths and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from experiment.extrapolated import Extrapolation, Row
from experiment.layout import NOTHING
from experiment.report_answers import answers
from experiment.report_data import Report
from experiment.rows import Comparison, DepthRow
from experiment.sentences import answer, count, ms, percent, times, with_margin
from experiment.tables import COLUMNS, LEGEND

MAX_ROWS = 100
"""Of a table: GitHub cuts a comment at 65,536 characters."""

VARIANTS = ("fake", "restored", "full", "arithmetic")

DEPTH_HEADS = (
    *("L from", "L below", "steps", "n", "fake ms", "restored ms", "fake / restored"),
    *("full / fake", "arithmetic error %", "install fake ms", "install restored ms"),
)


def render(report: Report) -> str:
    """Write ``report``; longer tables say how many rows they leave out."""
    comparison, facts = report.comparison, report.facts
    run = comparison.run
    unfinished = "" if run.status == "finished" else f" This run is **{run.status}**."
    lines = [
        f"### Prefix replay: {escaped(run.id)}",
        "",
        f"{escaped(facts.summary)}.{unfinished}",
        "",
        *_table(
            ("", "figure", "95 % interval", "in words"),
            [
                (item.question, item.figure, item.margin or NOTHING, item.sentence)
                for item in answers(comparison)
            ],
            words=(0, 3),
        ),
        "",
        *(f"- {escaped(note)}" for note in comparison.notes),
        *([""] if comparison.notes else []),
        "**By depth** (medians over the steps; L is in tokens, n counts pairs)",
        "",
        *_table(DEPTH_HEADS, [_depth(row) for row in comparison.depths]),
    ]
    if comparison.tasks:
        lines += [
            "",
            "**Wall time of each task, s** (measured prefill, decode and exec of the baseline)",
            "",
            *_table(("task", "steps", "baseline", *VARIANTS), _walls(comparison), words=(0,)),
        ]
    if comparison.extrapolation is not None:
        lines += [
            "",
            "**The same extrapolated to all steps, s** (with its 95 % interval where there is one)",
            "",
            *_table(
                ("task", "steps", "baseline", *VARIANTS),
                _extrapolated_walls(comparison.extrapolation),
                words=(0,),
            ),
        ]
    lines += _folded(
        "Steps",
        [
            *_table(
                [column.head.replace("\n", " ") for column in COLUMNS],
                [
                    [column.step(step) for column in COLUMNS]
                    for step in comparison.steps
                    if step.left_out is None
                ],
                words=(0,),
                last=[column.overall(comparison.overall) for column in COLUMNS],
            ),
            "",
            escaped(LEGEND),
        ],
    )
    lines += _folded("In detail", [f"- {escaped(text)}" for text in answer(comparison)])
    for title, pairs in facts.groups.items():
        lines += _folded(title, _table(("", ""), pairs, words=(0, 1)))
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """``text`` so that it stands in a cell as it is: no markup, no mention, no reference."""
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # GitHub looks for these after it has read the Markdown: no escape holds it back.
    text = re.sub(r"([@#])", r"\1<!-- -->", text)
    return re.sub(r"\s+", " ", text)


def _depth(row: DepthRow) -> tuple[str, ...]:
    return (
        count(row.depth_from),
        count(row.depth_to),
        count(row.steps),
        count(row.pair_n),
        ms(row.fake_prefill_ms, row.fake_prefill_ms_low, row.fake_prefill_ms_high),
        ms(row.restored_prefill_ms, row.restored_prefill_ms_low, row.restored_prefill_ms_high),
        with_margin(row.ratio_median, row.ratio_low, row.ratio_high, 4),
        times(row.speedup, row.speedup_low, row.speedup_high),
        percent(
            row.arithmetic_error_pct_median,
            row.arithmetic_error_pct_median_low,
            row.arithmetic_error_pct_median_high,
        ),
        ms(row.fake_install_ms, row.fake_install_ms_low, row.fake_install_ms_high),
        ms(row.restored_install_ms, row.restored_install_ms_low, row.restored_install_ms_high),
    )


def _walls(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row a task; variants that count other steps than the first have their own baseline."""
    place = {step.task_id: i for i, step in enumerate(comparison.steps)}
    found: dict[tuple[str, int, float], dict[str, float]] = {}
    for task in sorted(comparison.tasks, key=lambda task: place[task.task_id]):
        key = (task.task_id, task.steps_counted, task.baseline_wall_s)
        found.setdefault(key, {})[task.variant] = task.opt_wall_s
    return [
        (
            task_id,
            count(steps),
            f"{baseline_s:,.3f}",
            *(f"{walls[name]:,.3f}" if name in walls else NOTHING for name in VARIANTS),
        )
        for (task_id, steps, baseline_s), walls in found.items()
    ]


def _extrapolated_walls(found: Extrapolation) -> list[tuple[str, ...]]:
    """A row a task, and one of all together."""
    walls: dict[str | None, dict[str, Row]] = {}
    for row in found.rows:
        if row.wall.steps:
            walls.setdefault(row.task_id, {})[row.variant] = row
    return [
        (
            "all" if task_id is None else task_id,
            count(next(iter(of.values())).wall.steps),
            f"{next(iter(of.values())).baseline_wall_s:,.1f}",
            *(_extrapolated_wall(of.get(variant)) for variant in VARIANTS),
        )
        for task_id, of in walls.items()
    ]


def _extrapolated_wall(row: Row | None) -> str:
    if row is None or row.opt_wall_s is None:
        return NOTHING
    text = f"{row.opt_wall_s:,.1f}"
    if row.opt_wall_s_low is None or row.opt_wall_s_high is None:
        return text
    return f"{text} ({row.opt_wall_s_low:,.1f} to {row.opt_wall_s_high:,.1f})"


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[int] = (),
    last: Sequence[str] = (),
) -> list[str]:
    """Columns ``words`` hold texts, ``last`` is a line below all."""
    left_out = len(rows) - MAX_ROWS
    gap = [f"… {left_out:,} of {len(rows):,} rows are left out", *[""] * (len(heads) - 1)]
    shown = [*rows[: MAX_ROWS // 2], gap, *rows[-MAX_ROWS // 2 :]] if left_out > 0 else rows
    return [
        _row(heads),
        "| " + " | ".join("---" if i in words else "---:" for i in range(len(heads))) + " |",
        *map(_row, shown),
        *([_row(last)] if last else []),
    ]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{title}</summary>", "", *lines, "", "</details>"]

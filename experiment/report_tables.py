"""How the values of a figure's table are written."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.report_figure import Figure, Value

TEXTS = ("task_id", "variant")


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a table as texts; ``texts`` are the columns of words."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...] = TEXTS


def table(figure: Figure) -> Table:
    """All of the figure's rows, as closely as they are measured."""
    return Table(
        figure.columns,
        tuple(
            tuple(cell(name, value) for name, value in zip(figure.columns, row, strict=True))
            for row in figure.rows
        ),
    )


def cell(column: str, value: Value) -> str:
    """A value of the column: ms to the microsecond, s to the millisecond."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value) if column == "step" else f"{value:,}"
    if column.startswith("ratio"):
        return f"{value:.6g}"
    return f"{value:+.2f}" if column.endswith("_pct") else f"{value:,.3f}"

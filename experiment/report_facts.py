"""Where and how a run was made, and what went wrong on the way: the facts beside its figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiment.reader import Reader
from experiment.rows import Comparison
from experiment.trees import read_json

MAX_LINES = 100
"""Rows of a table of events, reasons or unsteady steps."""

MAX_CHARACTERS = 500
"""Of a cell in such a table: what a server answers has no bounds."""

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of texts; ``note`` says what is left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, and what happened. A group that nothing is known of is empty.

    ``summary`` says in a line what was measured, where, and when.
    """

    summary: str
    run: tuple[Fact, ...]
    machine: tuple[Fact, ...]
    build: tuple[Fact, ...]
    graph: tuple[Fact, ...]
    settings: tuple[Fact, ...]
    kept_out: Listing
    unsteady: Listing
    events: Listing

    @property
    def groups(self) -> dict[str, tuple[Fact, ...]]:
        """Those that are names and values, by title."""
        return {
            "Run": self.run,
            "Machine": self.machine,
            "Build": self.build,
            "Graph configuration": self.graph,
            "Settings": self.settings,
        }

    @property
    def listings(self) -> tuple[Listing, ...]:
        """What happened, as tables that have rows."""
        return tuple(
            listing for listing in (self.kept_out, self.unsteady, self.events) if listing.rows
        )


def read_facts(reader: Reader, comparison: Comparison) -> Facts:
    """Read them from the database, and from ``build.json`` and ``host.json`` where they are."""
    (run,) = _rows(reader, "SELECT * EXCLUDE (settings) FROM run WHERE id = $run")
    ((text,),) = _values(reader, "SELECT settings FROM run WHERE id = $run")
    repository = read_json(reader.folder / "repository.json")
    if not repository:
        found = read_json(reader.folder / "host.json").get("repository")
        repository = found if isinstance(found, dict) else {}
    machine = tuple(_machine(reader))
    return Facts(
        summary=_summary(run, dict(machine)),
        run=(
            *((name, _text(value)) for name, value in run.items() if value is not None),
            *_flat({"repository": repository}),
        ),
        machine=machine,
        build=tuple(_flat(read_json(reader.folder / "build.json"))),
        graph=tuple(
            _values(reader, "SELECT key, value FROM graph WHERE run_id = $run ORDER BY key")
        ),
        settings=tuple(_flat(json.loads(text))),
        kept_out=_listing(
            "Measurements kept out of the figures",
            ("variant", "status", "measurements", "reason"),
            _values(
                reader,
                "SELECT variant, status, count(*)::VARCHAR, error FROM measurement "
                "WHERE run_id = $run AND status IN ('invalid', 'refused', 'failed') "
                "GROUP BY variant, status, error ORDER BY count(*) DESC, variant, status, error",
            ),
        ),
        unsteady=_listing(
            "Unsteady steps",
            ("step", "why"),
            [
                (f"{step.task_id} step {step.step}", step.verdict.removeprefix("unsteady: "))
                for step in comparison.step_stability
                if step.verdict is not None and step.verdict.startswith("unsteady")
            ],
        ),
        events=_listing(
            "Events",
            ("UTC", "kind", "message", "where"),
            _values(
                reader,
                "SELECT strftime(happened_at, '%Y-%m-%d %H:%M:%S'), kind, message, "
                "concat_ws(', ', task_id, 'step ' || step, variant, 'round ' || round) "
                "FROM event WHERE run_id = $run "
                "ORDER BY happened_at, kind, message, task_id, step, variant, round",
            ),
        ),
    )


def _machine(reader: Reader) -> Iterator[Fact]:
    """A fact a column; what changed between openings of the run one after the other."""
    openings = _rows(
        reader, "SELECT * EXCLUDE (run_id) FROM host WHERE run_id = $run ORDER BY recorded_at"
    )
    for name in openings[0] if openings else ():
        told = [_measure(name, row[name]) for row in openings if row[name] is not None]
        different = [text for i, text in enumerate(told) if i == 0 or text != told[i - 1]]
        if different:
            yield name, ", then ".join(different)


def _summary(run: Mapping[str, Any], machine: Mapping[str, str]) -> str:
    told = [f"model {run['model']}", f"pin {run['pin']}", f"engine {run['engine']}"]
    if "cpu_model" in machine and "cores_usable" in machine:
        told.append(f"{machine['cpu_model']}, {machine['cores_usable']} usable cores")
    told.append(f"{run['started']:%Y-%m-%d %H:%M} UTC")
    return " · ".join(told)


def _measure(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB ({value:,} bytes)"
    return _text(value)


def _flat(value: Mapping[str, object], above: str = "") -> Iterator[Fact]:
    """Nested objects as dotted names."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{above}{name}.")
        elif item is not None:
            yield f"{above}{name}", _text(item)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        between = "\n" if any(isinstance(item, dict) for item in value) else " "
        return between.join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(map(_text, value.values()))
    return str(value)


def _listing(title: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Listing:
    found = [tuple("" if cell is None else _shortened(str(cell)) for cell in row) for row in rows]
    left_out = len(found) - MAX_LINES
    note = f"{left_out:,} more are in the database." if left_out > 0 else ""
    return Listing(title, columns, tuple(found[:MAX_LINES]), note)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"


def _values(reader: Reader, query: str) -> list[tuple[Any, ...]]:
    return reader.connection.execute(query, {"run": reader.run_id}).fetchall()


def _rows(reader: Reader, query: str) -> list[dict[str, Any]]:
    found = reader.connection.execute(query, {"run": reader.run_id})
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

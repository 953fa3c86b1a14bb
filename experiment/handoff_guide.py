"""``REPRODUCE.md``: what a reviewer asks about an archive, answered from the run itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError

from experiment import compare, tables
from experiment.claims import Claim
from experiment.errors import HandoffError
from experiment.reader import read
from experiment.rerun import QUICK_BUDGET_S, QUICK_STEPS
from experiment.sentences import of
from experiment.settings import Settings
from experiment.shapes import SHAPES

TEMPLATES = Path(__file__).with_name("templates")
TEMPLATE = "REPRODUCE.md.j2"


@dataclass(frozen=True)
class Packed:
    """What the guide says about the archive itself.

    Attributes:
        name: of the archive, without ``.tar.gz``.
        commit: of this project, with ``-dirty`` where files differed.
        source: path of the llama.cpp source in the archive.
        image: path of the image in the archive; None where there is none.
        size_bytes: of the files besides the guide, unpacked.
    """

    name: str
    commit: str
    source: str
    image: str | None
    size_bytes: int


def render(folder: Path, packed: Packed, claims: Sequence[Claim]) -> str:
    """Write the guide of an archive.

    Args:
        folder: the results as they are packed.
        packed: about the archive.
        claims: of the run.

    Raises:
        StoreError: the results cannot be read.
        HandoffError: a record beside them lacks what the guide tells.
    """
    # The folder's name on this machine says nothing to a reader.
    comparison = replace(compare.load(folder), folder=Path("results"))
    environment = Environment(  # of Markdown, in which nothing is escaped
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": _cell,
        "code": "`{}`".format,
        "number": _number,
        "times": lambda number: of(number, "time"),
        "tolerance": _tolerance,
    }
    try:
        return environment.get_template(TEMPLATE).render(
            packed=packed,
            claims=claims,
            judged=[claim for claim in claims if claim.judged_elsewhere],
            timed=[claim for claim in claims if not claim.judged_elsewhere],
            run=comparison.run,
            table=tables.render(comparison, "md"),
            quick_steps=QUICK_STEPS,
            quick_s=QUICK_BUDGET_S,
            **_facts(folder),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, UndefinedError) as error:
        raise HandoffError(
            f"a record of the run lacks what REPRODUCE.md tells: {error}",
            where=str(folder),
            hint="the run was made by another version: run again",
        ) from error


def _facts(folder: Path) -> dict[str, object]:
    host: Any = json.loads((folder / "host.json").read_text(encoding="utf-8"))["facts"]
    build: Any = json.loads((folder / "build.json").read_text(encoding="utf-8"))
    graph: Any = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    with read(folder) as reader:
        ((started, finished, text, image_digest, model_digest),) = reader.connection.execute(
            "SELECT started, finished, settings, image_digest, model_digest FROM run WHERE id = ?",
            [reader.run_id],
        ).fetchall()
        ((resumed,),) = reader.connection.execute(
            "SELECT count(*) FROM event WHERE run_id = ? AND kind = 'resumed'", [reader.run_id]
        ).fetchall()
    settings = Settings.model_validate(json.loads(text))
    # A model without one of the memories has no buffer for it.
    buffers = (graph.get(f"{kind}_buffer_mib") or 0 for kind in ("kv", "rs", "compute"))
    return {
        "host": host,
        "build": build,
        "buffers_mib": sum(buffers),
        "started": started,
        "wall_min": _minutes(started, finished),
        "resumed": resumed,
        "image_digest": image_digest,
        "model_digest": model_digest,
        "model_file": None if settings.model.name in SHAPES else Path(settings.model.name).name,
        "mmproj_file": None if settings.model.mmproj is None else settings.model.mmproj.name,
    }


def _minutes(started: datetime, finished: datetime) -> float:
    return (finished - started).total_seconds() / 60


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.2f}"


def _tolerance(claim: Claim) -> str:
    if not claim.tolerance:
        return "equal"
    if claim.is_relative:
        return f"± {100 * claim.tolerance:g} %"
    return f"± {claim.tolerance:.4g}"

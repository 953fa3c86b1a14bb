"""What a run is doing at this moment, on disk: what stopped it, even a kill, cannot hide it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from experiment.clock import CLOCK
from experiment.records import VARIANTS, Measurement
from experiment.schedule import Planned
from experiment.store import Store
from experiment.whole_file import write_json

NAME = "under-way.json"
"""In the results folder for as long as something is under way."""

INTERRUPTED = "interrupted"
"""Kind of the event that says what was under way when the run was stopped."""

_STOPPED = "the run was stopped while"
_REASON = f"{_STOPPED} this was measured"


@dataclass(frozen=True)
class UnderWay:
    """Writes down what is begun in a results folder, and takes it away when it has ended."""

    folder: Path

    def begin(self, item: Planned) -> None:
        """A measurement is going to be made."""
        self._write(
            {
                "task_id": item.step.task_id,
                "step": item.step.step,
                "variant": item.variant,
                "round": item.round,
                "position_in_round": item.position_in_round,
                "depth": item.step.depth,
            }
        )

    def begin_phase(self, doing: str) -> None:
        """Something else is going to be done, such as "calibrating"."""
        self._write({"doing": doing})

    def end(self) -> None:
        """It has ended, and what came of it is recorded."""
        (self.folder / NAME).unlink(missing_ok=True)

    def _write(self, what: dict[str, object]) -> None:
        write_json(self.folder / NAME, what | {"started_at": CLOCK.now().isoformat()})


def settle(store: Store) -> None:
    """Record what was under way when the run was stopped, if anything.

    A measurement becomes a ``failed`` row, which the run measures again, and an event; anything
    else an event.
    """
    path = store.folder / NAME
    try:
        what = json.loads(path.read_text(encoding="utf-8"))
        found = _measurement(what) if "variant" in what else None
        doing = str(what.get("doing", "working"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        # Not as it was written: what was under way is not known, and no reason to stop here.
        found, doing = None, "working"
    if found is None:
        store.add_event(INTERRUPTED, f"{_STOPPED} {doing}")
    elif (found.task_id, found.step, found.variant, found.round) not in store.done(
        [(found.task_id, found.step)], found.round
    ):
        # It is there already if the stop came between the last two strokes of the pen.
        store.record(found)
        store.add_event(
            INTERRUPTED,
            _REASON,
            task_id=found.task_id,
            step=found.step,
            variant=found.variant,
            round=found.round,
        )
    path.unlink(missing_ok=True)


def _measurement(what: dict[str, Any]) -> Measurement:
    if what["variant"] not in VARIANTS:
        raise ValueError("no such variant")
    return Measurement(
        task_id=what["task_id"],
        step=int(what["step"]),
        variant=what["variant"],
        round=int(what["round"]),
        depth=int(what["depth"]),
        status="failed",
        started_at=datetime.fromisoformat(what["started_at"]),
        position_in_round=int(what["position_in_round"]),
        error=_REASON,
    )

"""The untimed pass that counts, for some steps, the experts that fake and restored touch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from experiment.asking import Asker
from experiment.errors import PrefixError, RequestRefused, TraceError
from experiment.judge import Judge
from experiment.measure import Counted, counted_experts
from experiment.progress import Progress
from experiment.recorded import StepKey
from experiment.records import Fill
from experiment.schedule import can_restore, chunks, keys_of
from experiment.settings import ScheduleSettings
from experiment.store import Store
from experiment.trace import Step

PASSED = "experts"
"""Kind of the event that ends the pass; with it there is nothing left to count."""

_VARIANTS: tuple[Counted, ...] = ("fake", "restored")


def chosen_places(
    steps: Sequence[Step],
    schedule: ScheduleSettings,
    measured: Callable[[Sequence[StepKey]], Container[StepKey]] | None = None,
) -> list[int]:
    """Where to find ``schedule.structure_steps`` steps, spread evenly over all by depth.

    The shallowest and the deepest are among them; of one, it is the deepest. Steps without a valid
    measurement, and those too deep to be restored, have nothing to be compared.

    Args:
        steps: all steps of the run.
        schedule: how many are chosen, and which can be restored.
        measured: of some steps, those that have a valid measurement; None = all have.
    """
    fit, depths = array("q"), array("q")
    for places, chunk in chunks(steps):
        there = None if measured is None else measured(keys_of(chunk))
        for place, step in zip(places, chunk, strict=True):
            is_measured = there is None or (step.task_id, step.step) in there
            if is_measured and can_restore(step, schedule):
                fit.append(place)
                depths.append(step.depth)
    shallow_first = np.argsort(depths, kind="stable")
    count = min(schedule.structure_steps, len(fit))
    last = len(fit) - 1
    chosen = [last] if count == 1 else [index * last // (count - 1) for index in range(count)]
    return [fit[shallow_first[index]] for index in chosen]


@dataclass(frozen=True)
class ExpertPass:
    """Counts what is not counted yet, in ``store``.

    ``fill`` is the data of the fabricated prefixes.
    """

    asker: Asker
    judge: Judge
    store: Store
    fill: Fill

    def run(self, steps: Sequence[Step], progress: Progress) -> None:
        """Count the experts of these steps and leave the event `PASSED`.

        A step that is refused, or whose answer breaks a rule, is an event of that kind.

        Raises:
            ServerError: no answer; what was counted is kept.
        """
        todo: list[tuple[Step, Counted]] = [
            (step, variant) for step in steps for variant in _VARIANTS
        ]
        there = self.store.expert_steps()
        progress.start("count experts", len(todo))
        for done, (step, variant) in enumerate(todo):
            progress.advance(done, f"{step.task_id}/{step.step} {variant}")
            if (step.task_id, step.step, variant) not in there and not self._count(step, variant):
                summary = "the model has no experts"
                break
        else:
            noun = "step" if len(steps) == 1 else "steps"
            summary = f"counted the experts of {len(steps)} {noun}"
        self.store.add_event(PASSED, summary)
        progress.finish(summary)

    def _count(self, step: Step, variant: Counted) -> bool:
        """Count one step; False if there is nothing to count in any."""
        try:
            timings = self.asker.ask_experts(step, variant).reply.timings
        except (PrefixError, RequestRefused, TraceError) as error:
            self._tell("refused", error.what, step, variant)
            return True
        if timings.get("experts") == []:
            return False
        rows = counted_experts(step, variant, self.fill, timings, self.judge)
        if isinstance(rows, str):
            self._tell("invalid", rows, step, variant)
        else:
            self.store.add_experts(rows)
        return True

    def _tell(self, kind: str, message: str, step: Step, variant: str) -> None:
        self.store.add_event(
            kind,
            f"experts were not counted: {message}",
            task_id=step.task_id,
            step=step.step,
            variant=variant,
        )

"""The serving part of a run: one server after the other answers until nothing is left to ask.

What is left follows from the database alone, so that a run can be stopped at any point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from experiment.asking import Asker
from experiment.build import Build
from experiment.clock import CLOCK
from experiment.errors import ServerError, ServerStartError
from experiment.experts import PASSED, ExpertPass, chosen_places
from experiment.folder import RAW, SERVER_LOG, write_json
from experiment.judge import Expected, Judge
from experiment.load import LoadMeter
from experiment.measure import Measurer
from experiment.models import ModelFiles
from experiment.pauses import PauseMeter
from experiment.progress import Progress
from experiment.recorded import CONTROL, PAIR, Recorded
from experiment.records import BUDGET, Measurement, Variant
from experiment.rounds import Decision, Part, decide
from experiment.schedule import Plan, Planned, can_restore, chunks, keys_of
from experiment.session import Session, open_session
from experiment.settings import ScheduleSettings, Settings
from experiment.store import Store
from experiment.trace import Step, Trace
from experiment.under_way import UnderWay

MAX_RESTARTS = 3
"""How often a dead server is started again before the run gives up."""

PAUSED = "paused"
"""Kind of the event that tells of a request during which the machine stood still."""

ROUNDS = "rounds"
"""Kind of the event that says why no further round was added."""


def replay(
    settings: Settings,
    trace: Trace,
    build: Build,
    model: ModelFiles,
    store: Store,
    progress: Progress,
    until_s: float = math.inf,
) -> None:
    """Ask for everything that is left; a server that dies is started again, the rest planned anew.

    Nothing is begun after ``until_s`` of the monotonic clock; a resumed run may go on.

    Raises:
        ServerError: it does not start, or dies again and again.
    """
    work = Work(trace.steps, settings.schedule, store, until_s)
    for attempt in range(MAX_RESTARTS + 1):
        if work.is_over() or work.is_done():
            work.tell_why_it_ended()
            return
        try:
            progress.start("start the server", None)
            log = store.folder / SERVER_LOG
            with open_session(settings, build, model, trace.steps, log) as session:
                progress.finish()
                _serve(settings, session, work, store, progress)
            return
        except ServerStartError:
            raise
        except ServerError as error:
            store.add_event("server_lost", str(error))
            if attempt == MAX_RESTARTS:
                raise
            progress.say(f"the server was lost and is started again: {error.what}")


@dataclass(frozen=True)
class Work:
    """What a run still has to ask for."""

    steps: Sequence[Step]
    schedule: ScheduleSettings
    store: Store
    until_s: float

    def is_over(self) -> bool:
        """Whether nothing may be begun any more."""
        return time.monotonic() >= self.until_s

    def fixed(self) -> Plan:
        """What is left of the rounds that are made always."""
        return Plan(self.steps, self.schedule, done=self.store.done)

    def added(self, warmed: Sequence[int] | None = None) -> tuple[Plan | None, Decision]:
        """What is left of the added round under way, or else the next one; None = enough.

        A round under way was decided on by those before it, and is again: all of its steps that
        are missing belong to it, and no other.

        Args:
            warmed: by a step's place, whether it needs no warm-up; None = all need one.
        """
        number = max(self.schedule.rounds, self.store.rounds_begun() - 1)
        items, decision = self._round(number, warmed)
        if items is not None and not items:
            items, decision = self._round(number + 1, warmed)
        return items or None, decision

    def _round(self, number: int, warmed: Sequence[int] | None) -> tuple[Plan | None, Decision]:
        of = CONTROL if self._nothing_restored else PAIR
        decision = decide(
            self._parts(of, number),
            self.schedule,
            rounds=number,
            added_s=self.added_seconds(before=number),
            control=self._nothing_restored,
        )
        if decision.ended:
            return None, decision
        items = Plan(
            self.steps,
            self.schedule,
            added=number,
            only=decision.steps,
            done=self.store.done,
            warmed=warmed,
        )
        return items, decision

    def _parts(self, of: tuple[Variant, Variant], before: int) -> Iterator[Part]:
        for _, chunk in chunks(self.steps):
            keys = keys_of(chunk)
            yield (
                keys,
                self.store.pair_ratios(of, before=before, among=keys),
                self.store.paired_steps(of, before=before, among=keys),
            )

    @cached_property
    def _nothing_restored(self) -> bool:
        return not any(can_restore(step, self.schedule) for step in self.steps)

    def added_seconds(self, before: int | None = None) -> float:
        """Seconds that the requests of added rounds took."""
        return self.store.added_seconds(self.schedule.rounds, before=before)

    def experts(self) -> list[Step]:
        """The steps whose experts are to be counted, if that is not done."""
        if self.store.messages(PASSED):
            return []
        places = chosen_places(self.steps, self.schedule, self.store.new_content)
        return [self.steps[place] for place in places]

    def is_done(self) -> bool:
        """Whether no server is needed any more."""
        return not self.fixed() and not self.added()[0] and not self.experts()

    def tell_why_it_ended(self) -> str:
        """Leave the event of kind `ROUNDS`, once, and return its sentence."""
        _, decision = self.added()
        if self.store.messages(ROUNDS)[-1:] != [decision.reason]:
            self.store.add_event(ROUNDS, decision.reason)
        return decision.reason


def remind(judge: Judge, steps: Sequence[Step], recorded: Recorded) -> None:
    """Tell the judge what the run's earlier answers to these steps agree on."""
    for _, chunk in chunks(steps):
        structures = recorded.structure(keys_of(chunk))
        for step in chunk:
            if structure := structures.get((step.task_id, step.step)):
                judge.learn(step, Expected(*structure))


def _serve(
    settings: Settings, session: Session, work: Work, store: Store, progress: Progress
) -> None:
    store.set_graph(session.graph)
    write_json(store.folder / "graph.json", session.graph)
    fill = settings.server.fake_fill
    judge = Judge(fill)
    remind(judge, work.steps, store)
    under_way = UnderWay(store.folder)
    with LoadMeter(session.server.pid) as meter, PauseMeter() as pauses:
        asker = Asker(session.client, session.prompt_of, store.folder / RAW, fill, meter, pauses)

        def tell(item: Planned, reason: str) -> None:
            _add_event(store, item, PAUSED, f"{reason}; measured again")

        try:
            measurer = Measurer(asker, judge, tell)
            counted = bytearray(work.steps[-1].line + 1)
            loop = _Loop(measurer, session, store, progress, under_way, work.is_over, counted)
            _measure(loop, work, progress)
            if not work.is_over() and (steps := work.experts()):
                under_way.begin_phase("counting experts")
                ExpertPass(asker, judge, store, fill).run(steps, progress)
                under_way.end()
        except ServerError:
            # The end of the process, where that is it, tells more than the request that it broke.
            session.server.check()
            raise


@dataclass
class _Loop:
    """Makes planned requests with one server and records what comes of them.

    ``counted`` tells by a step's line whether this server's tokenizer has counted its text.
    """

    measurer: Measurer
    session: Session
    store: Store
    progress: Progress
    under_way: UnderWay
    is_over: Callable[[], bool]
    counted: bytearray

    def make(self, items: Plan, *, at: float | None = None, more: str = "") -> int:
        """Make these requests until time is over, and say how many were made.

        Args:
            items: in their order.
            at: where the bar stands meanwhile; None = it counts their tokens.
            more: what the note says besides.
        """
        done = 0
        for number, item in enumerate(items):
            if self.is_over():
                return number
            self.progress.advance(done if at is None else at, _note(item) + more)
            self.under_way.begin(item)
            try:
                measurement = self.measurer.measure(item)
            except ServerError as error:
                self.store.record(_lost(item, error))
                self.under_way.end()
                raise
            self.store.record(measurement)
            self.under_way.end()
            _leave_event(item, measurement, self.store)
            if measurement.status != "refused" and not self.counted[item.step.line]:
                self.counted[item.step.line] = True
                tokens = self.session.prompt_of(item.step).new_text_tokens
                self.store.set_new_text_tokens(item.step.task_id, item.step.step, tokens)
            done += item.tokens
        return len(items)


def _measure(loop: _Loop, work: Work, progress: Progress) -> None:
    """Make the fixed rounds, then add rounds until there are enough."""
    items = work.fixed()
    if items:
        progress.start("measure", items.tokens)
        made = loop.make(items)
        progress.advance(items.tokens)
        progress.finish(f"measured {made} requests")
        if made < len(items):
            missed = f"{len(items) - made:,} of {len(items):,} requests were not made"
            work.store.add_event(BUDGET, f"The budget's time was over: {missed}.")
            progress.say(f"the budget's time is over: {missed}")
    warmed = bytearray(items.pending)
    limit_s = work.schedule.time_limit_s
    more, decision = work.added(warmed)
    if more:
        progress.start("add rounds", limit_s)
        while more and not work.is_over():
            loop.make(more, at=min(limit_s, work.added_seconds()), more=f", {decision.width}")
            for place in np.flatnonzero(more.pending):
                warmed[place] = True
            more, decision = work.added(warmed)
        progress.finish()
    progress.say(work.tell_why_it_ended())


def _note(item: Planned) -> str:
    which = "warm-up" if item.round < 0 else f"round {item.round + 1}"
    return f"{item.step.task_id}/{item.step.step} {item.variant} {which}"


def _lost(item: Planned, error: ServerError) -> Measurement:
    return Measurement(
        task_id=item.step.task_id,
        step=item.step.step,
        variant=item.variant,
        round=item.round,
        depth=item.step.depth,
        status="failed",
        started_at=CLOCK.now(),
        position_in_round=item.position_in_round,
        error=error.what,
    )


def _leave_event(item: Planned, measurement: Measurement, store: Store) -> None:
    """Leave an event for whatever a reader of the results should not have to search for."""
    if measurement.status in ("invalid", "refused"):
        _add_event(store, item, measurement.status, measurement.error or "no reason given")
    elif item.round >= 0 and (measurement.prime_ms or 0.0) > 0.0:
        again = "the prefix's saved state was gone and was computed again"
        _add_event(store, item, "reprimed", again)


def _add_event(store: Store, item: Planned, kind: str, message: str) -> None:
    step = item.step
    store.add_event(
        kind,
        message,
        task_id=step.task_id,
        step=step.step,
        variant=item.variant,
        round=item.round,
    )

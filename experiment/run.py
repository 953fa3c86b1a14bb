"""The main job: one trace from an empty results folder to a finished run, and its resumption."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from experiment.arithmetic import estimates
from experiment.build import Build
from experiment.calibrate import calibrate, chunks_at
from experiment.clock import CLOCK
from experiment.errors import StoreError
from experiment.folder import BENCH_LOG, RAW, TRACE, keep_trace, new_folder, write_records
from experiment.host import host_facts
from experiment.models import ModelFiles
from experiment.patches import Series
from experiment.progress import Progress
from experiment.recorded import StepKey
from experiment.records import BUDGET, LEFT_OUT, RunRecord, StepRecord
from experiment.replay import replay
from experiment.schedule import chunks, keys_of
from experiment.scope import NO_DEADLINE, Deadline, Scope
from experiment.settings import Settings
from experiment.store import Store
from experiment.trace import Step, Trace, load_trace
from experiment.trace_file import FileRows
from experiment.trace_header import told
from experiment.under_way import UnderWay, settle
from experiment.whole_file import remove_drafts

CLOCK_LIMIT_S = 2.0
"""What the clock of a machine is set by in the ordinary course of keeping time, with room."""


@dataclass(frozen=True)
class Ingredients:
    """What a run measures with; a resumed run must have the same."""

    build: Build
    series: Series
    model: ModelFiles

    def identity(self) -> dict[str, str | None]:
        """The columns of ``run`` that must not change when a run goes on."""
        return {
            "patch_digest": self.series.digest,
            "model_digest": self.model.sha256,
            "mmproj_digest": self.model.mmproj_sha256,
        }


def start(
    settings: Settings,
    trace: Trace,
    name: str,
    engine: str,
    ingredients: Ingredients,
    progress: Progress,
    *,
    scope: Scope | None = None,
    image_digest: str | None = None,
) -> Path:
    """Measure a trace in a new results folder and return that folder.

    All of its steps are recorded, those that ``scope`` leaves out with the reason.

    Raises:
        ExperimentError: the run cannot begin or go on; what was measured is kept.
    """
    scope = scope or Scope()
    facts = host_facts()
    folder = new_folder(settings.results_dir, facts["hostname"], name)
    progress.say(f"results in {folder}")
    trace = keep_trace(trace, folder)
    write_records(folder, ingredients.build, ingredients.series)
    record = RunRecord(
        id=folder.name,
        name=name,
        started=CLOCK.now(),
        engine=engine,
        pin=settings.build.pin,
        model=ingredients.model.name,
        settings=json.loads(settings.model_dump_json()),
        trace_digest=trace.sha256,
        image_digest=image_digest,
        **ingredients.identity(),
    )

    def begin(store: Store) -> None:
        store.add_host(facts)
        store.add_steps(step_record(step, scope) for step in trace.steps)
        _tell_of_the_trace(trace, scope, store)
        if any(step.depth_unit == "positions" for step in trace.steps):
            store.add_event(
                "warning",
                "the trace counts depth in positions; a screenshot has far fewer positions than "
                "KV cells, so depths are understated",
            )

    with Store.create(folder, record, begin) as store:
        replayed = _replayed(trace, scope.left_out)
        _measure_all(settings, replayed, ingredients, store, progress, scope.deadline)
    return folder


def resume(
    folder: Path, engine: str, gather: Callable[[Settings], Ingredients], progress: Progress
) -> Path:
    """Go on with the first measurement that is missing, with the settings the run began with.

    Args:
        folder: the results folder.
        engine: where it goes on, which must be where it began.
        gather: makes the build and the model for these settings.
        progress: where to show it.

    Raises:
        StoreError: the folder holds no run, or build, model or trace are not those it began with.
    """
    with Store.open(folder) as store:
        began_on = store.identity()["engine"]
        if began_on != engine:
            raise StoreError(
                f"the run began on the engine {began_on}, this is {engine}",
                where=str(folder),
                hint=f"go on with --engine {began_on}",
            )
        settings = Settings.model_validate(store.settings())
        trace = load_trace(folder / TRACE)
        ingredients = gather(settings)
        began_with = store.identity()
        now = {**ingredients.identity(), "trace_digest": trace.sha256}
        for key, value in now.items():
            if began_with[key] != value:
                raise StoreError(
                    f"the run began with {key} {began_with[key]}, this is {value}",
                    where=str(folder),
                    hint="a run can only go on with the same patches, model and trace",
                )
        for place in (folder, folder / RAW):
            remove_drafts(place)
        store.set_status("running")
        settle(store)
        store.add_event("resumed", f"{store.done_number()} measurements were there")
        store.add_host(host_facts())
        replayed = _replayed(trace, store.left_out())
        _measure_all(settings, replayed, ingredients, store, progress)
    return folder


def _replayed(trace: Trace, left_out: Collection[StepKey]) -> Trace:
    """The trace with the steps alone that are replayed."""
    if not left_out:
        return trace

    def is_kept(step: Step) -> bool:
        return (step.task_id, step.step) not in left_out

    steps = trace.steps
    if isinstance(steps, FileRows):
        return replace(trace, steps=steps.where(is_kept))
    return replace(trace, steps=tuple(filter(is_kept, steps)))


def _tell_of_the_trace(trace: Trace, scope: Scope, store: Store) -> None:
    """Leave an event for what an import had to assume, and for what is left out."""
    if trace.header is not None:
        for kind, sentence in told(trace.header):
            store.add_event(kind, sentence)
    for sentence in scope.notes:
        store.add_event(BUDGET, sentence)
    for sentence in scope.sentences(len(trace.steps)):
        store.add_event(LEFT_OUT, sentence)


def _measure_all(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    progress: Progress,
    deadline: Deadline = NO_DEADLINE,
) -> None:
    try:
        # The server first: whether the model can take a prefix at all shows when it starts.
        build, model = ingredients.build, ingredients.model
        replay(settings, trace, build, model, store, progress, deadline.serving_s)
        _calibrate(settings, trace, ingredients, store, progress, deadline.calibrating_s)
        estimate(settings, trace, store)
    except BaseException as error:
        # Where not even that can be written (a full disk), a resume does it.
        with suppress(StoreError, OSError):
            settle(store)
            if isinstance(error, KeyboardInterrupt):
                store.set_status("interrupted")
            else:
                store.add_event("failed", str(error))
                store.set_status("failed")
        raise
    _tell_of_the_clock(store)
    store.set_status("finished")


def _tell_of_the_clock(store: Store) -> None:
    """Say by how much the machine's clock and the recorded times differ, if they do."""
    ahead_s = CLOCK.ahead_s()
    if abs(ahead_s) > CLOCK_LIMIT_S:
        store.add_event(
            "clock",
            f"the machine's clock was set {'back' if ahead_s > 0 else 'forward'} by "
            f"{abs(ahead_s):,.0f} s during the run; recorded times go on evenly",
        )


def step_record(step: Step, scope: Scope) -> StepRecord:
    """The row of a step, with the reason why ``scope`` leaves it out, if it does."""
    shot, key = step.screenshot, (step.task_id, step.step)
    reason = scope.left_out.get(key)
    return StepRecord(
        task_id=step.task_id,
        step=step.step,
        depth=step.depth,
        depth_unit=step.depth_unit,
        line=step.line,
        new_text=step.new_text,
        new_text_tokens=step.new_tokens,
        image_width=shot.width if shot else None,
        image_height=shot.height if shot else None,
        baseline_prefill_s=step.baseline.prefill_s,
        baseline_decode_s=step.baseline.decode_s,
        baseline_exec_s=step.baseline.exec_s,
        left_out=None if reason is None else str(reason),
        stratum=scope.strata.get(key),
    )


def _calibrate(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    progress: Progress,
    until_s: float,
) -> None:
    under_way = UnderWay(store.folder)
    under_way.begin_phase("calibrating")
    wanted = chunks_at(settings, _content(trace, store))
    rows = calibrate(
        settings,
        ingredients.build.bench,
        ingredients.model.model,
        wanted,
        store.calibration(),
        progress,
        store.folder / BENCH_LOG,
    )
    for row in rows:  # each is measured when it is asked for, and kept before the next
        store.add_calibration([row])
        if time.monotonic() >= until_s:
            break
    if missed := wanted.keys() - {row.depth for row in store.calibration()}:
        told = f"{len(missed)} of {len(wanted)} depths were not calibrated"
        store.add_event(BUDGET, f"The budget's time was over: {told}.")
    under_way.end()


def _content(trace: Trace, store: Store) -> Iterator[tuple[int, int]]:
    """Depth and new tokens of the steps that were measured."""
    for _, chunk in chunks(trace.steps):
        measured = store.new_content(keys_of(chunk))
        for step in chunk:
            if found := measured.get((step.task_id, step.step)):
                yield step.depth, found[0]


def estimate(settings: Settings, trace: Trace, store: Store) -> None:
    """The arithmetic variant: new tokens over the calibrated throughput, plus image encoding.

    Steps deeper than what is calibrated get no estimate.
    """
    chunk_tokens, rows = settings.calibration.chunk, store.calibration()
    for _, chunk in chunks(trace.steps):
        keys = keys_of(chunk)
        content, done = store.new_content(keys), store.done(keys, 0)
        for row in estimates(chunk, content, rows, chunk_tokens, CLOCK.now()):
            if (row.task_id, row.step, row.variant, row.round) not in done:
                store.record(row)

"""The main job: replay a trace against one server, measurement by measurement, and resume it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from experiment.arithmetic import Calibration
from experiment.build import Build
from experiment.calibrate import calibration_depths, run_llama_bench
from experiment.errors import ServerError, ServerStartError, StoreError
from experiment.folder import (
    BENCH_LOG,
    RAW,
    SERVER_LOG,
    TRACE,
    keep_trace,
    new_folder,
    write_json,
    write_records,
)
from experiment.host import host_facts, usable_cores
from experiment.measure import Expected, Judge, Measurer
from experiment.models import ModelFiles
from experiment.patches import Series
from experiment.progress import Progress
from experiment.records import Measurement, RunRecord, StepRecord
from experiment.schedule import Planned, plan
from experiment.session import open_session
from experiment.settings import Settings
from experiment.store import Store
from experiment.trace import Step, Trace, load_trace

MAX_RESTARTS = 3
"""How often a dead server is started again before the run gives up."""


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
    image_digest: str | None = None,
) -> Path:
    """Measure a whole trace in a new results folder and return that folder.

    Raises:
        ExperimentError: the run cannot begin or go on; what was measured is kept.
    """
    facts = host_facts()
    folder = new_folder(settings.results_dir, facts["hostname"], name)
    progress.say(f"results in {folder}")
    trace = keep_trace(trace, folder)
    write_records(folder, ingredients.build, ingredients.series)
    record = RunRecord(
        id=folder.name,
        name=name,
        started=datetime.now(UTC),
        engine=engine,
        pin=settings.build.pin,
        model=ingredients.model.name,
        settings=json.loads(settings.model_dump_json()),
        trace_digest=trace.sha256,
        image_digest=image_digest,
        **ingredients.identity(),
    )
    with Store.create(folder, record) as store:
        store.add_host(facts)
        store.add_steps(_step_record(step) for step in trace.steps)
        if any(step.depth_unit == "positions" for step in trace.steps):
            store.add_event(
                "warning",
                "the trace counts depth in positions; a screenshot has far fewer positions than "
                "KV cells, so depths are understated",
            )
        _measure_all(settings, trace, ingredients, store, progress)
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
        store.set_status("running")
        store.add_event("resumed", f"{len(store.done())} measurements were there")
        store.add_host(host_facts())
        _measure_all(settings, trace, ingredients, store, progress)
    return folder


def _measure_all(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    progress: Progress,
) -> None:
    try:
        # The server first: whether the model can take a prefix at all shows when it starts.
        _replay(settings, trace, ingredients, store, progress)
        _calibrate(settings, trace, ingredients, store, progress)
        _estimate(trace, store)
    except KeyboardInterrupt:
        store.set_status("interrupted")
        raise
    except BaseException as error:
        store.add_event("failed", str(error))
        store.set_status("failed")
        raise
    store.set_status("finished")


def _step_record(step: Step) -> StepRecord:
    shot = step.screenshot
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
    )


def _calibrate(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    progress: Progress,
) -> None:
    content = store.new_content()
    measured = [step.depth for step in trace.steps if (step.task_id, step.step) in content]
    if not measured:
        return
    known = {row.depth for row in store.calibration()}
    wanted = calibration_depths(max(measured), settings.calibration.points)
    missing = [depth for depth in wanted if depth not in known]
    if not missing:
        return
    rows = run_llama_bench(
        ingredients.build.bench,
        ingredients.model.model,
        missing,
        settings.calibration.chunk,
        settings.calibration.repetitions,
        settings.server.threads or usable_cores(),
        settings.server.batch,
        settings.server.ubatch,
        progress,
        store.folder / BENCH_LOG,
    )
    for row in rows:  # each is measured when it is asked for, and kept before the next
        store.add_calibration([row])


def _replay(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    progress: Progress,
) -> None:
    """Make the planned requests; a server that dies is started again and the rest planned anew."""
    for attempt in range(MAX_RESTARTS + 1):
        todo = _plan(settings, trace, store)
        if not todo:
            return
        try:
            _serve(settings, trace, ingredients, store, todo, progress)
            return
        except ServerStartError:
            raise
        except ServerError as error:
            store.add_event("server_lost", str(error))
            if attempt == MAX_RESTARTS:
                raise
            progress.say(f"the server was lost and is started again: {error.what}")


def _plan(settings: Settings, trace: Trace, store: Store) -> list[Planned]:
    schedule = settings.schedule
    return plan(
        trace.steps,
        rounds=schedule.rounds,
        full_rounds=schedule.full_rounds,
        warmup_rounds=schedule.warmup_rounds,
        done=store.done(),
    )


def _serve(
    settings: Settings,
    trace: Trace,
    ingredients: Ingredients,
    store: Store,
    todo: Sequence[Planned],
    progress: Progress,
) -> None:
    progress.start("start the server", None)
    log = store.folder / SERVER_LOG
    with open_session(settings, ingredients.build, ingredients.model, trace.steps, log) as session:
        store.set_graph(session.graph)
        write_json(store.folder / "graph.json", session.graph)
        progress.finish()
        judge = Judge()
        for (task_id, step), (new, n_kv) in store.structure().items():
            judge.learn(task_id, step, Expected(new, n_kv))
        measurer = Measurer(session.client, session.prompt_of, store.folder / RAW, judge)
        progress.start("measure", sum(item.tokens for item in todo))
        done = 0
        counted: set[Step] = set()
        for item in todo:
            progress.advance(done, _note(item))
            try:
                measurement = measurer.measure(item)
            except ServerError as error:
                store.record(_lost(item, error))
                session.server.check()
                raise
            store.record(measurement)
            _tell(item, measurement, store)
            if measurement.status != "refused" and item.step not in counted:
                counted.add(item.step)
                tokens = session.prompt_of(item.step).new_text_tokens
                store.set_new_text_tokens(item.step.task_id, item.step.step, tokens)
            done += item.tokens
        progress.advance(done)
        progress.finish(f"measured {len(todo)} requests")


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
        started_at=datetime.now(UTC),
        position_in_round=item.position_in_round,
        error=error.what,
    )


def _tell(item: Planned, measurement: Measurement, store: Store) -> None:
    """Leave an event for whatever a reader of the results should not have to search for."""

    def add(kind: str, message: str) -> None:
        step = item.step
        store.add_event(
            kind,
            message,
            task_id=step.task_id,
            step=step.step,
            variant=item.variant,
            round=item.round,
        )

    if measurement.status in ("invalid", "refused"):
        add(measurement.status, measurement.error or "no reason given")
    elif item.round >= 0 and (measurement.prime_ms or 0.0) > 0.0:
        add("reprimed", "the prefix's saved state was gone and was computed again")


def _estimate(trace: Trace, store: Store) -> None:
    """The arithmetic variant: new tokens over the calibrated throughput, plus image encoding."""
    content, done = store.new_content(), store.done()
    if not content:
        return
    calibration = Calibration.from_rows(store.calibration())
    for step in trace.steps:
        key = (step.task_id, step.step)
        if key not in content or (*key, "arithmetic", 0) in done:
            continue
        new, encode_ms = content[key]
        store.record(
            Measurement(
                task_id=step.task_id,
                step=step.step,
                variant="arithmetic",
                round=0,
                depth=step.depth,
                status="ok",
                started_at=datetime.now(UTC),
                prompt_n=new,
                prompt_ms=calibration.estimate_lm_ms(new, step.depth) + encode_ms,
                install_ms=0.0,
                encode_ms=encode_ms,
            )
        )

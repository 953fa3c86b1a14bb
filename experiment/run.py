"""The main job: one trace from an empty results folder to a finished run, and its resumption."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from experiment.arithmetic import Calibration
from experiment.build import Build
from experiment.calibrate import calibrate
from experiment.errors import StoreError
from experiment.folder import BENCH_LOG, TRACE, keep_trace, new_folder, write_records
from experiment.host import host_facts
from experiment.models import ModelFiles
from experiment.patches import Series
from experiment.progress import Progress
from experiment.records import Measurement, RunRecord, StepRecord
from experiment.replay import replay
from experiment.settings import Settings
from experiment.store import Store
from experiment.trace import Step, Trace, load_trace


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
        replay(settings, trace, ingredients.build, ingredients.model, store, progress)
        _calibrate(settings, trace, ingredients, store, progress)
        _estimate(settings, trace, store)
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
    measured = store.new_content()
    depths = {(step.task_id, step.step): step.depth for step in trace.steps}
    rows = calibrate(
        settings,
        ingredients.build.bench,
        ingredients.model.model,
        [(depths[key], new) for key, (new, _) in measured.items()],
        store.calibration(),
        progress,
        store.folder / BENCH_LOG,
    )
    for row in rows:  # each is measured when it is asked for, and kept before the next
        store.add_calibration([row])


def _estimate(settings: Settings, trace: Trace, store: Store) -> None:
    """The arithmetic variant: new tokens over the calibrated throughput, plus image encoding.

    Steps deeper than what is calibrated get no estimate.
    """
    content, done = store.new_content(), store.done()
    rows = store.calibration()
    if not rows:
        return
    calibration = Calibration.from_rows(rows, settings.calibration.chunk)
    for step in trace.steps:
        key = (step.task_id, step.step)
        if key not in content or not calibration.covers(step.depth):
            continue
        if (*key, "arithmetic", 0) in done:
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

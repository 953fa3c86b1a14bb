"""Several runs side by side: what differs between them, figures over the steps they share, claims.

The first run is the base. Steps are the same where task, step and depth are; nothing is compared
over steps that one of the runs did not measure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment import claims as claiming
from experiment.claims import Claim
from experiment.compare import load as load_run
from experiment.compare_runs_figures import FIGURES, Loaded, row, steps_of_runs
from experiment.compare_runs_rows import ComparedRun, LeftOut, RunsComparison, Verdict
from experiment.errors import StoreError
from experiment.notes import some
from experiment.reader import Reader, read
from experiment.recorded import StepKey
from experiment.rows import Comparison

MODEL_BOUND = frozenset({"speedup", "arithmetic_error_pct", "install_share_pct", "restore_ratio"})
"""Claims about a model's costs, which say nothing about another model."""

COUNTED = "steps_"
"""How the keys of claims begin that count the steps of the trace, measured or not."""

_IDENTITY = (
    *("engine", "pin", "patch_digest", "image_digest"),
    *("model", "model_digest", "mmproj_digest", "trace_digest"),
)
_MACHINE = (
    *("system", "kernel", "architecture", "cpu_model", "cores_total", "cores_usable"),
    *("memory_total_bytes", "governor", "container"),
)
_PLACES = ("cache_dir", "results_dir")
"""Settings that say where something lies, not how it is measured."""


def load(folders: Sequence[Path]) -> RunsComparison:
    """Compare the last run of each results folder with that of the first.

    Raises:
        StoreError: fewer than two folders or one twice, a folder holds no run, or the runs have no
            measured step in common.
    """
    if len(folders) < 2:
        raise StoreError("one run is not compared with others", hint="name two runs or more")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise StoreError("this run is named twice", where=str(folder))
        seen.add(folder.resolve())
    runs = [_load(folder, _label(i)) for i, folder in enumerate(folders)]
    shared, measured, left_out = _in_common(runs)
    if not measured:
        raise StoreError(
            "the runs have no measured step in common",
            where=", ".join(str(folder) for folder in folders),
            hint="runs are compared over the steps with the same task_id, step and depth; "
            + "; ".join(f"{out.task_id} step {out.step}: {out.reason}" for out in left_out[:1]),
        )
    compared = tuple(run.compared for run in runs)
    names = dict.fromkeys(name for run in compared for name in run.facts)
    told = {name: tuple(run.facts.get(name, "") for run in compared) for name in names}
    return RunsComparison(
        runs=compared,
        differences={name: values for name, values in told.items() if len(set(values)) > 1},
        left_out=left_out,
        figures=tuple(row(figure, runs, measured) for figure in FIGURES),
        verdicts=tuple(_verdicts(compared, shared, measured)),
        steps=tuple(steps_of_runs(runs, measured)),
        notes=tuple(_notes(runs, measured)),
    )


def _label(place: int) -> str:
    """A to Z, then A1 to Z1 and so on."""
    letter, again = chr(ord("A") + place % 26), place // 26
    return f"{letter}{again}" if again else letter


def _load(folder: Path, label: str) -> Loaded:
    comparison = load_run(folder)
    with read(folder, comparison.run.id) as reader:
        ratios = reader.connection.execute(
            "SELECT task_id, step, list(ratio ORDER BY round) FROM pair "
            "WHERE run_id = ? AND ratio IS NOT NULL GROUP BY task_id, step",
            [reader.run_id],
        ).fetchall()
        facts = dict(_facts(reader))
    return Loaded(
        compared=ComparedRun(label, folder, comparison.run, facts),
        steps={(step.task_id, step.step): step for step in comparison.steps},
        ratios={(task_id, step): values for task_id, step, values in ratios},
        notes=_run_notes(comparison),
    )


def _run_notes(comparison: Comparison) -> tuple[str, ...]:
    run = comparison.run
    return () if run.status == "finished" else (f"The run is {run.status}.",)


def _facts(reader: Reader) -> Iterator[tuple[str, str]]:
    def columns(names: Collection[str], source: str) -> Iterator[tuple[str, str]]:
        found = reader.connection.execute(
            f"SELECT {', '.join(names)} FROM {source}", [reader.run_id]
        ).fetchone()
        values = found or [None] * len(names)
        yield from ((name, _text(value)) for name, value in zip(names, values, strict=True))

    yield from columns(_IDENTITY, "run WHERE id = ?")
    # What it was in the end: a resumed run has a row for each time it went on.
    yield from columns(_MACHINE, "host WHERE run_id = ? ORDER BY recorded_at DESC LIMIT 1")
    for key, value in reader.connection.execute(
        "SELECT key, value FROM graph WHERE run_id = ? ORDER BY key", [reader.run_id]
    ).fetchall():
        yield f"graph.{key}", value
    ((settings,),) = reader.connection.execute(
        "SELECT settings FROM run WHERE id = ?", [reader.run_id]
    ).fetchall()
    for key, value in _flat(json.loads(settings)):
        if key not in _PLACES:
            yield f"settings.{key}", value


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, item in sorted(value.items()):
        if isinstance(item, dict):
            yield from _flat(item, f"{above}{name}.")
        else:
            yield f"{above}{name}", _text(item)


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _in_common(
    runs: Sequence[Loaded],
) -> tuple[list[StepKey], list[StepKey], tuple[LeftOut, ...]]:
    """The steps that all traces hold, those of them that all runs measured, and what is left out.

    In the order of the base's trace, then of the others'.
    """
    base = runs[0].compared.label
    shared, measured, left_out = [], [], []
    for key in dict.fromkeys(key for run in runs for key in run.steps):
        depths = {run.compared.label: run.steps[key].depth for run in runs if key in run.steps}
        absent = [run.compared.label for run in runs if key not in run.steps]
        if absent:
            reason = f"not in the trace of {_and(absent)}"
        elif len(set(depths.values())) > 1:
            other = next(label for label, depth in depths.items() if depth != depths[base])
            reason = f"the depth differs: {depths[base]:,} in {base}, {depths[other]:,} in {other}"
        else:
            shared.append(key)
            without = [r.compared.label for r in runs if r.steps[key].fake_prefill_ms is None]
            if not without:
                measured.append(key)
                continue
            reason = f"fake is not measured in {_and(without)}"
        left_out.append(LeftOut(*key, reason))
    return shared, measured, tuple(left_out)


def _and(labels: Sequence[str]) -> str:
    *others, last = labels
    return f"{', '.join(others)} and {last}" if others else last


def _verdicts(
    runs: Sequence[ComparedRun], shared: Sequence[StepKey], measured: Sequence[StepKey]
) -> Iterator[Verdict]:
    """Judge every claim of the base that is to hold on another machine, run by run."""
    base, *others = runs
    claims = [claim for claim in claiming.make(base.folder) if claim.judged_elsewhere]
    expected = _values(base.folder, claims, shared, measured)
    restated = {claim.key: claim for claim in claiming.restated(claims, expected)}
    for run in others:
        found = _values(run.folder, claims, shared, measured)
        for claim in claims:
            value = found[claim.key]
            claim = restated.get(claim.key, claim)
            if claim.key in MODEL_BOUND and not _same_model(base, run):
                within, reason = None, "another model"
            elif claim.key not in restated or value is None:
                label = base.label if claim.key not in restated else run.label
                within, reason = None, f"{label} has no such figure over the steps in common"
            else:
                within, reason = claim.holds(value), ""
            outside_by = None if within is None or value is None else claim.outside_by(value)
            yield Verdict(run.label, claim, value, within, outside_by, reason)


def _values(
    folder: Path,
    claims: Sequence[Claim],
    shared: Sequence[StepKey],
    measured: Sequence[StepKey],
) -> dict[str, float | int | None]:
    """What a run says to the claims: those that count steps see all, the others measured ones."""
    if shared == measured:
        return claiming.values(folder, claims, measured)
    counted = [claim for claim in claims if claim.key.startswith(COUNTED)]
    others = [claim for claim in claims if not claim.key.startswith(COUNTED)]
    return claiming.values(folder, counted, shared) | claiming.values(folder, others, measured)


def _same_model(one: ComparedRun, other: ComparedRun) -> bool:
    digests = [run.facts["model_digest"] for run in (one, other)]
    if all(digests):
        return all(
            one.facts[name] == other.facts[name] for name in ("model_digest", "mmproj_digest")
        )
    return one.run.model == other.run.model


def _notes(runs: Sequence[Loaded], measured: Sequence[StepKey]) -> Iterator[str]:
    for run in runs:
        yield from (f"{run.compared.label}: {note}" for note in run.notes)
    for run in runs[1:]:
        differing = [
            f"{key[0]} step {key[1]}"
            for key in measured
            if run.steps[key].new_tokens != runs[0].steps[key].new_tokens
        ]
        if differing:
            yield (
                f"{run.compared.label} decodes another number of new tokens than "
                f"{runs[0].compared.label} in {len(differing):,} of {len(measured):,} steps in "
                f"common ({some(differing)})."
            )

"""Replaying an archive here: which steps, with which settings, and how its claims are judged."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from fake_world import World

from experiment import claims, rerun, run
from experiment.compare import load
from experiment.errors import HandoffError
from experiment.progress import Progress, SilentProgress
from experiment.scope import ALL, Asked
from experiment.settings import Settings, load_settings
from experiment.trace import Baseline, Step, Trace, load_trace

DEPTHS = (300, 500, 700, 900, 1100, 1300, 1500, 1700)


class WorldEngine:
    """Runs as the world does, and keeps what it was asked for."""

    name = "native"
    reason = "a test"

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: list[tuple[Settings, Trace, str]] = []

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        # Its file may be gone afterwards.
        self.asked.append((settings, replace(trace, steps=tuple(trace.steps)), name))
        with self.world._in_place():
            return run.start(settings, trace, name, "native", self.world.ingredients, progress)


def world_of(folder: Path) -> World:
    folder.mkdir()
    rows = [
        {"task_id": "a", "step": number, "depth": depth, "new": {"tokens": 5}}
        for number, depth in enumerate(DEPTHS)
    ]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return World(folder)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """What an archive holds, as far as replaying it needs that."""
    folder = world_of(tmp_path / "there").start()
    top = tmp_path / "archive"
    shutil.copytree(folder, top / "results")
    (top / "claims.toml").write_text(claims.write(claims.make(folder)), encoding="utf-8")
    return top


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorldEngine:
    made = WorldEngine(world_of(tmp_path / "here"))
    monkeypatch.setattr(rerun, "_engine", lambda *_: made)
    return made


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings({"results_dir": str(tmp_path / "mine"), "engine": "native"}, environ={})


def test_the_whole_trace_is_replayed_as_it_was_measured(
    top: Path, engine: WorldEngine, here: Settings
) -> None:
    made = rerun.rerun(top, here, SilentProgress(), quick=False)
    ((settings, trace, name),) = engine.asked
    assert name == "rerun"
    assert settings.results_dir == here.results_dir
    assert settings.schedule == engine.world.settings.schedule
    assert settings.calibration == engine.world.settings.calibration
    assert [step.depth for step in trace.steps] == list(DEPTHS)
    assert (made.steps, made.steps_in_all) == (8, 8)
    # The world answers by a rule: everything but the waiting of a real machine is the same.
    assert made.holds
    by_key = {item.claim.key: item for item in made.judged}
    assert by_key["speedup"].here == by_key["speedup"].claim.expected
    assert by_key["speedup"].holds is True
    assert by_key["fake_prefill_s"].holds is None
    assert by_key["steps_measured"].here == 8


def test_a_quick_one_replays_some_steps_and_claims_what_the_archive_says_of_those(
    top: Path, engine: WorldEngine, here: Settings
) -> None:
    made = rerun.rerun(top, here, SilentProgress(), quick=True)
    ((settings, trace, name),) = engine.asked
    assert name == "rerun-quick"
    assert settings.schedule.rounds == 3
    assert settings.schedule.max_rounds == 6
    # Both ends, the middle (place 3.5 is rounded to 4), the quarters (1.75 and 5.25), an eighth.
    assert [step.depth for step in trace.steps] == [DEPTHS[i] for i in (0, 1, 2, 4, 5, 7)]
    whole = load_trace(top / "results" / "trace.jsonl")
    assert [step.line for step in trace.steps] == [
        step.line for step in whole.steps if step.depth in {s.depth for s in trace.steps}
    ]
    assert (made.steps, made.steps_in_all) == (6, 8)
    by_key = {item.claim.key: item for item in made.judged}
    assert by_key["steps_measured"].claim.expected == 6
    chosen = [step for step in load(top / "results").steps if step.step in (0, 1, 2, 4, 5, 7)]
    full = sum(step.full_prefill_ms or 0 for step in chosen)
    fake = sum(step.fake_prefill_ms or 0 for step in chosen)
    assert by_key["speedup"].claim.expected == pytest.approx(full / fake)
    assert made.holds


def test_what_the_run_left_out_is_not_replayed(
    top: Path, engine: WorldEngine, here: Settings
) -> None:
    database = top / "results" / "results.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE step SET left_out = 'budget: not drawn' WHERE step IN (2, 6)")
        connection.execute("DELETE FROM measurement WHERE step IN (2, 6)")
    made = rerun.rerun(top, here, SilentProgress(), quick=False)
    ((_, trace, name),) = engine.asked
    assert name == "rerun"
    assert [step.step for step in trace.steps] == [0, 1, 3, 4, 5, 7]
    assert (made.steps, made.steps_in_all) == (6, 8)
    by_key = {item.claim.key: item for item in made.judged}
    assert by_key["steps_measured"].claim.expected == by_key["steps_measured"].here == 6
    assert made.holds


def test_a_claim_outside_its_tolerance_is_told(
    top: Path, engine: WorldEngine, here: Settings
) -> None:
    def slow(number: int, ask: tuple[str, int, str]) -> dict[str, object] | None:
        return {"prompt_ms": 5000.0} if ask[2] == "fake" else None

    engine.world.trouble = slow
    made = rerun.rerun(top, here, SilentProgress(), quick=False)
    assert not made.holds
    outside = {item.claim.key for item in made.judged if item.holds is False}
    assert {"speedup", "fidelity"} <= outside


def step(number: int, depth: int) -> Step:
    return Step("a", number, depth, "tokens", None, 5, None, Baseline(), number + 1)


def test_steps_are_taken_while_their_cost_allows() -> None:
    steps = [step(number, 100 * number) for number in range(5)]
    keys = [("a", number) for number in range(5)]
    cheap = dict.fromkeys(keys, 10.0)
    assert rerun.quick_steps(steps, cheap) == set(keys)
    # The deepest does not fit beside the shallowest; the middle and a quarter still do.
    dear = {keys[0]: 100.0, keys[1]: 39.0, keys[2]: 100.0, keys[3]: 60.0, keys[4]: 200.0}
    assert rerun.quick_steps(steps, dear) == {keys[0], keys[2], keys[1]}
    # None fits: the cheapest is replayed all the same.
    assert rerun.quick_steps(steps, dict.fromkeys(keys, 999.0) | {keys[3]: 500.0}) == {keys[3]}
    # A step that was never measured is not replayed.
    assert rerun.quick_steps(steps, {keys[2]: 1.0}) == {keys[2]}
    with pytest.raises(HandoffError, match="no step"):
        rerun.quick_steps(steps, {})


def test_an_archive_of_other_patches_is_refused(top: Path, here: Settings) -> None:
    with pytest.raises(HandoffError, match="not those of the run") as caught:
        rerun.rerun(top, here, SilentProgress(), quick=False)
    assert "repository/" in str(caught.value)


def test_docker_needs_an_image_in_the_archive(top: Path, here: Settings) -> None:
    asked = here.model_copy(update={"engine": "docker"})
    with pytest.raises(HandoffError, match="holds no image"):
        rerun.rerun(top, asked, SilentProgress(), quick=False)


def test_a_model_of_ones_own_has_to_be_named(
    top: Path, engine: WorldEngine, here: Settings, tmp_path: Path
) -> None:
    own = engine.world.settings.model_copy(
        update={"model": engine.world.settings.model.model_copy(update={"name": "/x/my.gguf"})}
    )
    with duckdb.connect(str(top / "results" / "results.duckdb")) as connection:
        connection.execute("UPDATE run SET settings = ?", [own.model_dump_json()])
    with pytest.raises(HandoffError, match=r"my\.gguf, which is not in the archive"):
        rerun.rerun(top, here, SilentProgress(), quick=False)


def test_another_model_cannot_be_compared(top: Path, engine: WorldEngine, here: Settings) -> None:
    made = engine.world.ingredients
    engine.world.ingredients = replace(made, model=replace(made.model, sha256="0" * 64))
    with pytest.raises(HandoffError, match="model_digest"):
        rerun.rerun(top, here, SilentProgress(), quick=False)


def test_the_source_is_placed_where_it_is_looked_for(top: Path, tmp_path: Path) -> None:
    (top / "source").mkdir()
    (top / "source" / "llama.tar.gz").write_bytes(b"source")
    digest = hashlib.sha256(b"source").hexdigest()
    record = {"kind": "sdist", "file": "llama.tar.gz", "sha256": digest}
    (top / "source.json").write_text(json.dumps(record))
    cache = tmp_path / "cache"
    rerun._place_source(top, cache)
    placed = cache / "downloads" / "llama.tar.gz"
    assert placed.read_bytes() == b"source"
    placed.write_bytes(b"damaged")
    rerun._place_source(top, cache)
    assert placed.read_bytes() == b"source"
    assert [path.name for path in placed.parent.iterdir()] == ["llama.tar.gz"]

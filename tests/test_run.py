"""The main job without a server: a fake one answers by a small rule, everything else is real."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from fake_world import (
    ENCODE_MS,
    FULL_ROUNDS,
    INSTALL_MS,
    LOST,
    MS_PER_TOKEN,
    ROUNDS,
    SIMPLE_COUNTS,
    TPS,
    Ask,
    Recording,
    World,
    answer_ms,
    counts,
    events,
    ingredients,
    new_tokens,
    query,
    status,
    structure,
    the_run,
    ubatches_of,
)
from PIL import Image

from experiment import run
from experiment.calibrate import calibration_depths
from experiment.errors import RequestRefused, StoreError
from experiment.paths import ROOT
from experiment.schedule import Plan
from experiment.settings import Settings, load_settings
from experiment.trace import load_trace


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs have a width that counts here, so that the values can be worked out by hand."""
    monkeypatch.setattr("experiment.rounds.MIN_PAIRS", 2)


ANSWERED = (("a", 0), ("a", 1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """A run without any trouble, but for the step that is refused, and its folder: to be read."""
    world = World(tmp_path_factory.mktemp("whole"))
    world.progress = Recording()
    return world, world.start()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def simple(tmp_path: Path) -> World:
    """Without the step that is refused."""
    return World(tmp_path, with_refused=False)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("simple"), with_refused=False).start())


ALL_COUNTS = {
    **SIMPLE_COUNTS,
    # its warm-up is refused as well
    **dict.fromkeys([("fake", "refused"), ("restored", "refused")], ROUNDS + 1),
    ("control", "refused"): ROUNDS,
    ("full", "refused"): FULL_ROUNDS,
}


def test_a_whole_run(
    whole: tuple[World, Path],
) -> None:
    world, folder = whole
    assert folder == the_run(world)
    assert status(folder) == "finished"
    assert counts(folder) == ALL_COUNTS
    assert (world.sessions, world.open_sessions) == (1, 0)
    assert query(folder, "SELECT task_id, step, line, depth FROM step ORDER BY line") == [
        ("a", 0, 1, 300),
        ("b", 0, 2, 2),
        ("a", 1, 3, 900),
    ]
    assert events(folder, "warning") == events(folder, "reprimed") == []


def test_text_tokens_are_recorded_as_counted(whole: tuple[World, Path]) -> None:
    _, folder = whole
    rows = query(folder, "SELECT task_id, step, new_text_tokens FROM step ORDER BY line")
    assert rows == [
        ("a", 0, new_tokens("a", 0)),
        ("b", 0, 5),  # refused: as asked for
        ("a", 1, new_tokens("a", 1)),
    ]


def test_what_identifies_a_run(
    whole: tuple[World, Path],
) -> None:
    world, folder = whole
    (row,) = query(
        folder,
        "SELECT id, name, engine, pin, model, patch_digest, model_digest, mmproj_digest, "
        "trace_digest, settings->'schedule'->>'rounds' FROM run",
    )
    trace = load_trace(world.trace_file)
    series = world.ingredients.series
    assert row == (
        *(folder.name, "mine", "native", "sdist", "nano", series.digest, "m" * 64, None),
        *(trace.sha256, str(ROUNDS)),
    )
    assert load_trace(folder / "trace.jsonl").steps == trace.steps
    assert json.loads((folder / "build.json").read_text()) == {"commit": "abc"}
    assert (folder / "git_diff.patch").read_text() == "the diff\n"
    assert json.loads((folder / "graph.json").read_text()) == {"n_ctx": 1536, "fused": True}
    assert query(folder, "SELECT key, value FROM graph ORDER BY key") == [
        ("fused", "true"),
        ("n_ctx", "1536"),
    ]
    assert query(folder, "SELECT count(*) FROM host") == [(1,)]


def test_requests_are_made_in_the_planned_order(
    whole: tuple[World, Path],
) -> None:
    world, folder = whole
    trace = load_trace(folder / "trace.jsonl")
    planned = Plan(trace.steps, world.settings.schedule)
    wanted = [(item.step.task_id, item.step.step, item.variant) for item in planned]
    assert world.asked == [ask for ask in wanted if ask[0] != "b"]
    # Each step's variants stand together in each round, and their order rotates.
    first = world.asked[4:]
    assert [ask[2] for ask in first if ask[:2] == ("a", 0)] == [
        *("fake", "control", "restored", "full"),
        *("control", "restored", "fake"),
        *("restored", "fake", "control"),
    ]
    positions = query(
        folder,
        "SELECT round, task_id, step, variant, position_in_round FROM measurement "
        "WHERE variant <> 'arithmetic' ORDER BY round, position_in_round",
    )
    assert positions == [
        (item.round, item.step.task_id, item.step.step, item.variant, item.position_in_round)
        for item in sorted(planned, key=lambda item: (item.round, item.position_in_round))
    ]


def test_the_figures_are_the_servers_and_warm_up_stays_out_of_them(
    whole: tuple[World, Path],
) -> None:
    _, folder = whole
    rows = query(
        folder,
        "SELECT task_id, step, variant, n, prefill_ms, install_ms, encode_ms, prompt_n "
        "FROM step_variant WHERE variant <> 'arithmetic' ORDER BY ALL",
    )
    expected = []
    for (task_id, step), depth in zip(ANSWERED, (300, 900), strict=True):
        for variant in ("control", "fake", "full", "restored"):
            rounds = FULL_ROUNDS if variant == "full" else ROUNDS
            new = new_tokens(task_id, step) + (depth if variant == "full" else 0)
            times = [answer_ms(variant, new, k) for k in range(1, rounds + 1)]
            prefill = median(times) - INSTALL_MS[variant]
            expected.append(
                (task_id, step, variant, rounds, prefill, INSTALL_MS[variant], ENCODE_MS, new)
            )
    assert rows == expected


def test_the_arithmetic_estimate(
    whole: tuple[World, Path],
) -> None:
    world, folder = whole
    depths = calibration_depths(900, 4)
    assert world.benched == depths
    calibration = query(
        folder, "SELECT depth, chunk, tps_median, wall_s FROM calibration ORDER BY depth"
    )
    assert calibration == [(depth, 512, TPS, 2.5) for depth in depths]
    rows = query(
        folder,
        "SELECT task_id, step, round, prompt_n, prompt_ms, install_ms, encode_ms, cache_n "
        "FROM measurement WHERE variant = 'arithmetic' ORDER BY ALL",
    )
    # 17 and 27 new tokens at 100 tokens per second, and 20 ms for the image
    assert rows == [
        ("a", 0, 0, 17, 190.0, 0.0, ENCODE_MS, None),
        ("a", 1, 0, 27, 290.0, 0.0, ENCODE_MS, None),
    ]


def test_no_estimate_is_made_beyond_what_is_calibrated(tmp_path: Path) -> None:
    world = World(tmp_path, with_refused=False, restored_max_depth=500)
    folder = world.start()
    assert world.benched == calibration_depths(300, 4)
    rows = query(folder, "SELECT task_id, step FROM measurement WHERE variant = 'arithmetic'")
    assert rows == [("a", 0)]


def test_without_any_calibration_no_estimate_is_made(tmp_path: Path) -> None:
    world = World(tmp_path, with_refused=False, restored_max_depth=0)
    folder = world.start()
    assert (world.benched, status(folder)) == ([], "finished")
    assert ("arithmetic", "ok") not in counts(folder)


def test_the_estimate_hangs_on_one_chunk_where_the_steps_are_calibrated(simple: World) -> None:
    calibration = simple.settings.calibration.model_copy(update={"at": "steps"})
    simple.settings = simple.settings.model_copy(update={"calibration": calibration})
    folder = simple.start()
    # Every step's own depth and new tokens, besides the chunk.
    assert query(folder, "SELECT depth, chunk FROM calibration ORDER BY ALL") == [
        *((300, 17), (300, 512)),
        *((900, 27), (900, 512)),
    ]
    assert counts(folder)["arithmetic", "ok"] == 2


def test_every_answer_is_kept_raw(
    whole: tuple[World, Path],
) -> None:
    world, folder = whole
    rows = query(folder, "SELECT raw FROM measurement WHERE raw IS NOT NULL")
    files = {path.name for path in (folder / "raw").iterdir()}
    counted = {name for name in files if name.endswith("_experts.json")}
    assert {raw for (raw,) in rows} == files - counted
    assert (len(files - counted), len(counted)) == (len(world.asked), len(world.counted))


def test_an_answer_that_breaks_a_rule_is_recorded_and_kept_out(simple: World) -> None:
    fakes = iter(range(100))

    def trouble(number: int, ask: Ask) -> dict[str, Any] | None:
        if ask == ("a", 1, "fake") and next(fakes) == 2:  # the second round: 0 is the warm-up
            return {"cache_n": 899, "prompt_ms": 99_999.0}
        return None

    simple.trouble = trouble
    folder = simple.start()
    assert status(folder) == "finished"
    assert counts(folder) == SIMPLE_COUNTS | {("fake", "ok"): 5, ("fake", "invalid"): 1}
    (row,) = query(
        folder,
        "SELECT task_id, step, variant, round, cache_n, prompt_ms, error FROM measurement "
        "WHERE status = 'invalid'",
    )
    assert row == ("a", 1, "fake", 1, 899, 99_999.0, "cache_n is 899, not 900")
    assert query(
        folder,
        "SELECT task_id, step, variant, round, message FROM event WHERE kind = 'invalid'",
    ) == [("a", 1, "fake", 1, "cache_n is 899, not 900")]
    ((n, prefill_ms),) = query(
        folder,
        "SELECT n, prefill_ms FROM step_variant WHERE task_id = 'a' AND step = 1 "
        "AND variant = 'fake'",
    )
    assert (n, prefill_ms) == (2, ENCODE_MS + 27 * MS_PER_TOKEN + 2)  # of 1 and 3 ms more
    assert query(folder, "SELECT pair_n FROM step_comparison WHERE step = 1") == [(2,)]


def test_a_step_that_cannot_be_made_is_recorded_and_the_rest_goes_on(
    whole: tuple[World, Path],
) -> None:
    _, folder = whole
    rows = query(
        folder,
        "SELECT DISTINCT task_id, step, depth, error, prompt_ms, raw FROM measurement "
        "WHERE status = 'refused'",
    )
    assert rows == [("b", 0, 2, "depth 2 is too small", None, None)]
    refused = 2 * (ROUNDS + 1) + ROUNDS + FULL_ROUNDS
    assert events(folder, "refused") == ["depth 2 is too small"] * refused
    assert query(folder, "SELECT count(*) FROM measurement WHERE task_id = 'b'") == [(refused,)]


def test_a_refusal_of_the_server_is_recorded(simple: World) -> None:
    sentence = "HTTP 400 from /completion: n_state_cached ends inside an image"
    simple.trouble = lambda _, ask: (
        RequestRefused(sentence) if ask == ("a", 0, "restored") else None
    )
    folder = simple.start()
    assert status(folder) == "finished"
    assert counts(folder) == SIMPLE_COUNTS | {
        ("restored", "warmup"): 1,
        ("restored", "ok"): ROUNDS,
        ("restored", "refused"): ROUNDS + 1,
    }
    assert set(events(folder, "refused")) == {sentence}


def test_a_state_that_had_to_be_computed_again_is_told_except_while_warming_up(
    simple: World,
) -> None:
    simple.trouble = lambda number, _: (
        {"prefix": {"prime_ms": 700.0}} if number in (1, 3, 6) else None
    )
    folder = simple.start()
    assert query(
        folder, "SELECT task_id, step, variant, round FROM event WHERE kind = 'reprimed'"
    ) == [("a", 0, "restored", 0)]
    assert counts(folder) == SIMPLE_COUNTS


def test_depths_in_positions_are_warned_of(simple: World) -> None:
    row = {"task_id": "a", "step": 0, "depth": 300, "depth_unit": "positions", "new": {"tokens": 5}}
    simple.trace_file.write_text(json.dumps(row) + "\n")
    (warning,) = events(simple.start(), "warning")
    assert "depths are understated" in warning


def test_what_is_replayed_is_the_copy_that_a_resume_reads(simple: World) -> None:
    picture = simple.trace_file.with_name("s.png")
    Image.new("RGB", (64, 48)).save(picture)
    row = {"task_id": "a", "step": 0, "depth": 300, "new": {"screenshot": "s.png"}}
    simple.trace_file.write_text(json.dumps(row) + "\n")
    folder = simple.start()
    (step,) = simple.steps
    assert step.screenshot is not None
    assert step.screenshot.path == folder / "s.png"
    assert (folder / "s.png").read_bytes() == picture.read_bytes()


@pytest.mark.parametrize("at", [2, 22])
def test_an_interrupted_run_is_completed_by_a_resume_and_nothing_is_measured_twice(
    simple: World, uninterrupted: list[tuple[Any, ...]], at: int
) -> None:
    simple.trouble = lambda number, _: KeyboardInterrupt() if number == at else None
    with pytest.raises(KeyboardInterrupt):
        simple.start()
    folder = the_run(simple)
    assert status(folder) == "interrupted"
    assert simple.open_sessions == 0
    before = structure(folder)
    simple.trouble = lambda _number, _ask: None
    assert simple.resume(folder) == folder
    assert status(folder) == "finished"
    assert counts(folder) == SIMPLE_COUNTS
    assert structure(folder) == uninterrupted
    (interrupted,) = [row for row in before if row[6] == "failed"]
    assert interrupted[7] == "the run was stopped while this was measured"
    assert set(before) - {interrupted} <= set(uninterrupted)
    assert simple.benched == calibration_depths(900, 4)
    # 24 requests, the interrupted one, and two of the warm-up again.
    assert len(simple.asked) == 24 + 1 + 2
    assert len(events(folder, "resumed")) == 1
    assert query(folder, "SELECT count(*) FROM host") == [(2,)]


def test_an_interrupted_run_with_a_refused_step_is_completed_too(world: World) -> None:
    world.trouble = lambda number, _: KeyboardInterrupt() if number == LOST else None
    with pytest.raises(KeyboardInterrupt):
        world.start()
    folder = the_run(world)
    world.trouble = lambda _number, _ask: None
    world.resume(folder)
    assert status(folder) == "finished"
    assert counts(folder) == ALL_COUNTS


def test_an_interrupt_while_calibrating_keeps_what_is_calibrated(simple: World) -> None:
    depths = calibration_depths(900, 4)

    def benching(depth: int) -> None:
        if depth == depths[2] and len(simple.benched) == 2:
            simple.benching = lambda _: None
            raise KeyboardInterrupt

    simple.benching = benching
    with pytest.raises(KeyboardInterrupt):
        simple.start()
    folder = the_run(simple)
    assert status(folder) == "interrupted"
    assert query(folder, "SELECT depth FROM calibration ORDER BY depth") == [
        (d,) for d in depths[:2]
    ]
    simple.resume(folder)
    assert simple.benched == depths  # none twice
    assert counts(folder) == SIMPLE_COUNTS


def test_a_kill_at_any_moment_loses_only_the_measurement_under_way(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
        "from fake_world import killed_at; from pathlib import Path\n"
        f"killed_at(Path({str(tmp_path)!r}), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGKILL
    world = World(tmp_path, with_refused=False)
    folder = the_run(world)
    world.resume(folder)
    assert status(folder) == "finished"
    assert counts(folder) == SIMPLE_COUNTS
    assert world.benched == [0, 256, 768, 1024]
    # The warm-up anew, and of 20 all but the five that were answered.
    assert len(world.asked) == 4 + 20 - 5


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted at request LOST: to be copied."""
    world = World(tmp_path_factory.mktemp("original"), with_refused=False)
    world.trouble = lambda number, _: KeyboardInterrupt() if number == LOST else None
    with pytest.raises(KeyboardInterrupt):
        world.start()
    return the_run(world)


@pytest.fixture
def interrupted(original: Path, simple: World) -> Path:
    folder = simple.settings.results_dir / original.name
    shutil.copytree(original, folder)
    return folder


def test_a_resume_has_the_settings_it_began_with_and_a_finished_run_nothing_to_do(
    simple: World, interrupted: Path
) -> None:
    began_with = json.loads(query(interrupted, "SELECT settings FROM run")[0][0])
    gathered: list[Settings] = []

    def gather(settings: Settings) -> run.Ingredients:
        gathered.append(settings)
        return simple.ingredients

    simple.settings = load_settings({}, environ={})
    for _ in range(2):
        simple.resume(interrupted, gather)
        assert status(interrupted) == "finished"
        assert counts(interrupted) == SIMPLE_COUNTS
        assert simple.sessions == 1
    assert [json.loads(settings.model_dump_json()) for settings in gathered] == [began_with] * 2


def test_after_a_resume_answers_are_judged_by_the_earlier_ones(
    simple: World, interrupted: Path
) -> None:
    def trouble(number: int, ask: Ask) -> dict[str, Any] | None:
        if ask[:2] != ("a", 0) or ask[2] == "full":
            return None
        new = new_tokens(*ask[:2]) + 1  # the same from now on, but not as before
        return {"prompt_n": new, "prefix": {"ubatches": ubatches_of(300, new)}}

    simple.trouble = trouble
    simple.resume(interrupted)
    assert query(
        interrupted,
        "SELECT error, count(*) FROM measurement WHERE status = 'invalid' AND round >= 0 "
        "GROUP BY error",
    ) == [("18 new tokens, but 17 in the step's other measurements", 3 * (ROUNDS - 1))]


@pytest.mark.parametrize(
    ("changed", "column"),
    [({"patch": "two"}, "patch_digest"), ({"model_sha256": "n" * 64}, "model_digest")],
)
def test_a_run_does_not_go_on_with_another_model_or_other_patches(
    simple: World, interrupted: Path, changed: dict[str, str], column: str
) -> None:
    before = structure(interrupted)
    simple.ingredients = ingredients(simple.trace_file.parent, **changed)
    with pytest.raises(StoreError, match=f"the run began with {column} ") as caught:
        simple.resume(interrupted)
    assert caught.value.where == str(interrupted)
    assert status(interrupted) == "interrupted"
    assert (structure(interrupted), simple.asked) == (before, [])


def test_a_run_does_not_go_on_somewhere_else(simple: World, interrupted: Path) -> None:
    with pytest.raises(StoreError, match="began on the engine native, this is docker") as caught:
        simple.resume(interrupted, engine="docker")
    assert caught.value.hint == "go on with --engine native"
    assert (status(interrupted), simple.asked) == ("interrupted", [])


def test_a_run_does_not_go_on_with_an_edited_trace(simple: World, interrupted: Path) -> None:
    trace = interrupted / "trace.jsonl"
    trace.write_text(trace.read_text().replace('"depth": 900', '"depth": 800'))
    with pytest.raises(StoreError, match="the run began with trace_digest"):
        simple.resume(interrupted)
    assert (status(interrupted), simple.asked) == ("interrupted", [])


def test_a_folder_without_a_run_cannot_be_resumed(simple: World, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        simple.resume(tmp_path)


def test_the_bar_shows_step_and_variant_and_comes_to_its_end(whole: tuple[World, Path]) -> None:
    seen, folder = whole[0].progress, whole[1]
    assert isinstance(seen, Recording)
    assert seen.lines == [
        f"results in {folder}",
        f"{ROUNDS} rounds: half-width 0.00 % is within 0.50 %",
    ]
    done = seen.done["measure"]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, seen.totals["measure"])
    assert "a/1 restored warm-up" in seen.notes
    assert f"a/1 fake round {ROUNDS}" in seen.notes

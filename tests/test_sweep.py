from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_sweep import TAIL, FakeEngine, settings_in

from experiment import sweep
from experiment.errors import SettingsError, StoreError
from experiment.progress import SilentProgress
from experiment.sweep import Request, parse_request
from experiment.sweep_estimate import Plan


def prepared(
    engine: FakeEngine, folder: Path, request: Request | None = None, **overrides: object
) -> Plan:
    wanted = request or Request((256, 4096, 16384), (16, 64), 1800.0)
    return sweep.prepare(engine, settings_in(folder, **overrides), wanted, SilentProgress())


def test_the_defaults() -> None:
    request = parse_request()
    assert request.depths == (256, 1024, 4096, 16384, 65536, 131072)
    assert request.sizes == (16, 64, 256, 1024, 2048)
    assert request.limit_s == 1200.0


@pytest.mark.parametrize(
    ("depths", "rounded"),
    [
        ("1", (256,)),
        ("256", (256,)),
        ("383", (256,)),
        ("384", (512,)),
        ("1000, 1024,1100", (1024,)),
        ("4096,256", (256, 4096)),
    ],
)
def test_depths_become_multiples_of_256(depths: str, rounded: tuple[int, ...]) -> None:
    assert parse_request(depths, "7,7,6").depths == rounded
    assert parse_request(depths, "7,7,6").sizes == (6, 7)


def test_the_limit_is_in_minutes() -> None:
    assert parse_request(time_limit="0.5").limit_s == 30.0
    assert parse_request(time_limit=1440).limit_s == 86_400.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"depths": ""}, "--depths: needs at least one number"),
        ({"new": "  "}, "--new: needs at least one number"),
        ({"depths": "256,"}, "--depths: '' is not a whole number from 1 to 16,777,216"),
        ({"depths": "4k"}, "'4k' is not a whole number"),
        ({"depths": "-256"}, "'-256' is not"),
        ({"depths": "256.0"}, "'256.0' is not"),
        ({"depths": "0"}, "'0' is not"),
        ({"depths": "16777217"}, "'16777217' is not"),
        ({"depths": "²"}, "'²' is not"),
        ({"new": "16;64"}, "--new: '16;64' is not a whole number from 1 to 1,048,576"),
        ({"new": "9" * 5000}, "is not a whole number"),
        ({"new": ",".join(map(str, range(1, 202)))}, "6 depths by 201 sizes are more than 1,000"),
        ({"time_limit": "soon"}, "--time-limit: must be a number of minutes .* not 'soon'"),
        ({"time_limit": "0"}, "--time-limit"),
        ({"time_limit": "nan"}, "--time-limit"),
        ({"time_limit": "1441"}, "--time-limit"),
    ],
)
def test_flags_that_make_no_sense(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_request(**flags)
    assert re.search(message, str(caught.value))


def test_the_probe_is_small_and_restores_only_where_that_is_cheap(tmp_path: Path) -> None:
    engine = FakeEngine()
    prepared(engine, tmp_path)
    ((name, settings, steps),) = engine.runs
    assert name == "sweep-probe"
    assert [(step.depth, step.new_tokens) for step in steps] == [
        *((256, 16), (256, 256), (1024, 16), (1024, 256), (16384, 16)),
    ]
    schedule = settings.schedule
    assert (schedule.rounds, schedule.max_rounds, schedule.full_rounds) == (2, 2, 0)
    assert (schedule.restored_max_depth, schedule.structure_steps) == (1024, 0)
    assert (settings.calibration.at, settings.calibration.repetitions) == ("steps", 1)


@pytest.mark.parametrize(
    ("deepest", "probed"), [(256, 1024), (1024, 1024), (4096, 4096), (131072, 16384)]
)
def test_the_probe_goes_no_deeper_than_it_must(tmp_path: Path, deepest: int, probed: int) -> None:
    engine = FakeEngine()
    prepared(engine, tmp_path, Request((deepest,), (16,), 1800.0))
    assert max(step.depth for step in engine.runs[0][2]) == probed


def test_the_sweep_asks_for_what_is_left_beside_the_tail(tmp_path: Path) -> None:
    engine = FakeEngine()
    plan = prepared(engine, tmp_path)
    folder = sweep.measure(engine, settings_in(tmp_path), plan, SilentProgress())
    name, settings, steps = engine.runs[1]
    assert name == "sweep"
    assert folder.name.endswith("_sweep")
    assert [(s.task_id, s.step, s.depth, s.new_tokens) for s in steps] == [
        ("new-16", 0, 256, 16 - TAIL),
        ("new-64", 0, 256, 64 - TAIL),
        ("new-16", 1, 4096, 16 - TAIL),
        ("new-64", 1, 4096, 64 - TAIL),
        ("new-16", 2, 16384, 16 - TAIL),
        ("new-64", 2, 16384, 64 - TAIL),
    ]
    schedule = settings.schedule
    assert (schedule.precision, schedule.full_rounds, schedule.structure_steps) == ("step", 0, 6)
    assert schedule.time_limit_s == plan.added_s
    assert settings.calibration.at == "steps"
    # A run must be able to go on with these settings.
    assert type(settings).model_validate(json.loads(settings.model_dump_json())) == settings


def test_the_trace_is_named_after_the_run_and_taken_away(tmp_path: Path) -> None:
    engine = FakeEngine()
    sweep.measure(engine, settings_in(tmp_path), prepared(engine, tmp_path), SilentProgress())
    assert [path.name for path in engine.trace_files] == ["sweep-probe.jsonl", "sweep.jsonl"]
    assert not any(path.parent.exists() for path in engine.trace_files)


def test_the_plan_is_kept_beside_the_results(tmp_path: Path) -> None:
    engine = FakeEngine(available_gib=1.0)
    plan = prepared(engine, tmp_path, Request((256, 131072), (16,), 1800.0))
    folder = sweep.measure(engine, settings_in(tmp_path), plan, SilentProgress())
    kept: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    assert kept["depths"] == [256]
    assert kept["left_out"][0]["depth"] == 131072
    assert kept["probe"] == "2026-11-30_02-41-01_host_sweep-probe"


def test_settings_of_the_user_stay(tmp_path: Path) -> None:
    engine = FakeEngine()
    plan = prepared(engine, tmp_path, schedule__restored_max_depth=512, server__threads=3)
    assert engine.runs[0][1].schedule.restored_max_depth == 512
    settings = sweep.sweep_settings(settings_in(tmp_path, schedule__rounds=7), plan)
    assert settings.schedule.rounds == 7


def test_a_size_without_room_for_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"5 new tokens are too few: .* tail alone has 5"):
        prepared(FakeEngine(), tmp_path, Request((256,), (TAIL, 64), 1800.0))
    plan = prepared(FakeEngine(), tmp_path / "b", Request((256,), (TAIL + 1,), 1800.0))
    assert sweep.trace_rows(plan)[0]["new"] == {"tokens": 1}


def test_a_probe_that_is_refused_says_why(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no valid measurement: L = 256 is too small"):
        prepared(FakeEngine(refuses="L = 256 is too small"), tmp_path)

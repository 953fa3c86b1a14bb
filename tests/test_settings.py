"""Settings: precedence of the layers, mistyped keys in each of them, bounds, and paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiment import settings as settings_module
from experiment.errors import SettingsError
from experiment.paths import ROOT
from experiment.settings import Settings, describe, load_settings
from experiment.settings_sources import nearest

BAD = sorted((Path(__file__).parent / "bad/settings").glob("*.toml"))
KEYS = [key for key, _, _ in describe()]

Write = Callable[[str], Path]


@pytest.fixture
def toml(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings_module, "CONFIG", tmp_path / "none.toml")
    for name in list(os.environ):
        if name.upper().startswith("EXPERIMENT_"):
            monkeypatch.delenv(name)


def value(settings: Settings, key: str) -> object:
    found: object = settings
    for part in key.split("."):
        found = getattr(found, part)
    return found


def test_defaults_are_those_of_the_design() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert settings.engine == "auto"
    assert settings.cache_dir == ROOT / ".cache"
    assert settings.results_dir == ROOT / "results"
    assert (settings.build.pin, settings.build.source, settings.build.jobs) == ("sdist", None, 0)
    assert (settings.model.name, settings.model.mmproj) == ("nano", None)
    assert (settings.server.batch, settings.server.ubatch) == (2048, 512)
    assert (settings.server.fake_fill, settings.server.fake_tile) == ("tile", 256)
    assert settings.schedule.model_dump() == {
        "rounds": 3,
        "max_rounds": 100,
        "half_width_pct": 0.5,
        "precision": "run",
        "time_limit_s": 60.0,
        "full_rounds": 1,
        "restored_max_depth": 1 << 24,
        "full_max_depth": 1 << 24,
        "structure_steps": 6,
        "warmup_rounds": 1,
    }
    assert settings.calibration.at == "points"


def test_each_layer_beats_the_one_below(toml: Write) -> None:
    config = toml("[schedule]\nrounds = 11\nfull_rounds = 12\nwarmup_rounds = 13\n")
    environ = {"EXPERIMENT_SCHEDULE__FULL_ROUNDS": "22", "EXPERIMENT_SCHEDULE__WARMUP_ROUNDS": "23"}
    flags = {"schedule.warmup_rounds": 33, "schedule.rounds": None}
    settings = load_settings(flags, config=config, environ=environ)
    schedule = settings.schedule
    assert (schedule.rounds, schedule.full_rounds, schedule.warmup_rounds) == (11, 22, 33)
    assert schedule == Settings().schedule.model_copy(
        update={"rounds": 11, "full_rounds": 22, "warmup_rounds": 33}
    )
    assert settings.calibration.points == 6


def test_reads_its_file_and_the_environment_of_the_process(
    toml: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "CONFIG", toml('seed = 7\n[build]\npin = "guide"\n'))
    monkeypatch.setenv("EXPERIMENT_BUILD__JOBS", "3")
    settings = load_settings()
    assert (settings.seed, settings.build.pin, settings.build.jobs) == (7, "guide", 3)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_file_gives_its_sentence(path: Path) -> None:
    lines = path.read_text(encoding="latin-1").splitlines()
    expected = "\n".join(line.removeprefix("#= ") for line in lines if line.startswith("#= "))
    with pytest.raises(SettingsError) as refused:
        load_settings(config=path, environ={})
    assert str(refused.value) == expected.replace("{file}", str(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"other\.toml: the settings file cannot be read: No su"
    ):
        load_settings(config=tmp_path / "other.toml", environ={})


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("EXPERIMENT_BIULD__JOBS", "EXPERIMENT_BUILD__JOBS"),
        ("EXPERIMENT_BUILD_JOBS", "EXPERIMENT_BUILD__JOBS"),
        ("EXPERIMENT_BUILD__JOB", "EXPERIMENT_BUILD__JOBS"),
        ("EXPERIMENT_ROUNDS", "EXPERIMENT_SCHEDULE__ROUNDS"),
        ("EXPERIMENT_RESULT_DIR", "EXPERIMENT_RESULTS_DIR"),
        ("experiment_server__treads", "EXPERIMENT_SERVER__THREADS"),
        ("EXPERIMENT_MODEL__NAME__X", "EXPERIMENT_MODEL__NAME"),
        ("EXPERIMENT_MODEL__PIN", "EXPERIMENT_BUILD__PIN"),
        ("EXPERIMENT_SERVER__ROUNDS", "EXPERIMENT_SCHEDULE__ROUNDS"),
    ],
)
def test_mistyped_variable_names_the_right_one(name: str, right: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={name: "1"})
    assert refused.value.where == name
    assert refused.value.hint == f"the nearest right one is {right}"


def test_variable_of_a_group_is_refused() -> None:
    with pytest.raises(SettingsError, match=r'EXPERIMENT_MODEL: "model" is a group') as refused:
        load_settings(environ={"EXPERIMENT_MODEL": '{"name": "nano"}'})
    assert refused.value.hint == "its settings are EXPERIMENT_MODEL__NAME, EXPERIMENT_MODEL__MMPROJ"


def test_other_variables_and_empty_ones_are_left_alone() -> None:
    environ = {"MY_EXPERIMENT_X": "1", "EXPERIMENTAL": "1", "EXPERIMENT_SEED": ""}
    assert load_settings(environ=environ) == Settings()


def test_bad_value_of_a_variable_and_a_flag() -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"schedule.rounds": "0"}, environ={"EXPERIMENT_BUILD__JOBS": "1.5"})
    assert str(refused.value).splitlines() == [
        "2 settings are wrong:",
        "EXPERIMENT_BUILD__JOBS: build.jobs must be a whole number from 0 to 4096, not '1.5'",
        'task flag for "schedule.rounds": schedule.rounds must be a whole number from 1 to 1000, '
        "not '0'",
    ]


def test_mistyped_flag_names_the_right_one() -> None:
    with pytest.raises(SettingsError, match=r'^task flag for "build\.pni": there is no') as refused:
        load_settings({"build.pni": "guide"}, environ={})
    assert refused.value.hint == "the nearest right one is build.pin"


def test_bad_value_below_a_good_one_does_not_count(toml: Write) -> None:
    # As in every layered configuration: what is overridden has no effect, a typo in it neither.
    config = toml("[schedule]\nrounds = 0\n")
    assert load_settings({"schedule.rounds": 2}, config=config, environ={}).schedule.rounds == 2


def test_paths_of_a_file_start_at_the_file_and_others_at_the_current_directory(
    toml: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toml('cache_dir = "c"\nresults_dir = "~/r"\n[model]\nname = "own.gguf"\n')
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", "/home/someone")
    settings = load_settings({"model.mmproj": "../m.gguf"}, config=config, environ={})
    assert settings.cache_dir == tmp_path / "c"
    assert settings.results_dir == Path("/home/someone/r")
    assert settings.model.name == str(tmp_path / "own.gguf")
    assert settings.model.mmproj == tmp_path / "m.gguf"
    assert load_settings({"model.name": "own.gguf"}, environ={}).model.name == str(
        here / "own.gguf"
    )
    assert load_settings({"model.name": "holo3-mini"}, environ={}).model.name == "holo3-mini"


def test_settings_are_frozen() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.seed = 1
    with pytest.raises(ValidationError):
        settings.build.jobs = 1


def test_description_covers_every_setting_and_holds_no_absolute_path() -> None:
    assert {key for key, _, _ in describe()} == {
        f"{group}.{name}" if group else name
        for group, names in {
            "": ["engine", "cache_dir", "results_dir", "seed"],
            "build": ["pin", "source", "jobs", "prebuilt"],
            "container": [
                "image", "base_image", "ca_bundle", "apt_snapshot", "memory_mib", "cpus",
            ],
            "model": ["name", "mmproj"],
            "server": [
                "threads", "batch", "ubatch", "start_timeout_s", "request_timeout_s",
                "state_cache_mib", "context", "fake_fill", "fake_tile",
            ],
            "schedule": [
                "rounds", "max_rounds", "half_width_pct", "precision", "time_limit_s",
                "full_rounds", "restored_max_depth", "full_max_depth", "structure_steps",
                "warmup_rounds",
            ],
            "calibration": ["chunk", "repetitions", "points", "at"],
        }.items()
        for name in names
    }  # fmt: skip
    for key, default, meaning in describe():
        assert default, key
        assert "None" not in meaning, key
        assert str(ROOT) not in default, key


def test_described_defaults_can_be_given_back() -> None:
    for key, default, _ in describe():
        if default != "none" and not key.endswith("_dir"):
            settings = load_settings({key: default}, environ={})
            assert value(settings, key) == value(Settings(), key)


@pytest.mark.parametrize("key", KEYS)
def test_one_wrong_letter_leads_back_to_the_key(key: str) -> None:
    for place in range(len(key)):
        before, after = key[:place], key[place + 1 :]
        # `server.qbatch` is as near to `server.batch` as to `server.ubatch`.
        assert nearest(f"{before}q{after}", KEYS) in {key, f"{before}{after}"}

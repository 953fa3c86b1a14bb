from __future__ import annotations

import json
from pathlib import Path

import pytest
from canned import canned_run, run_record
from canned_report import HOST, whole_run

from experiment import report_facts
from experiment.database import SCHEMA_VERSION
from experiment.records import StepRecord
from experiment.report_data import load
from experiment.report_facts import Facts
from experiment.store import Store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return load(whole_run(tmp_path_factory.mktemp("results") / "run")).facts


def test_the_run_in_a_line(whole: Facts) -> None:
    assert whole.summary == (
        "model nano · pin sdist · engine native · Model 5 & <b>more</b>, 6 usable cores · "
        "2026-11-30 02:41 UTC"
    )


def test_every_group_has_its_facts(whole: Facts) -> None:
    assert {title: bool(pairs) for title, pairs in whole.groups.items()} == {
        "Run": True,
        "Machine": True,
        "Build": True,
        "Graph configuration": True,
        "Settings": True,
    }
    run, machine = dict(whole.run), dict(whole.machine)
    assert (run["id"], run["status"], run["schema_version"]) == (
        "r1",
        "finished",
        str(SCHEMA_VERSION),
    )
    assert (run["repository.commit"], run["repository.dirty"]) == ("feedbeef", "no")
    assert (machine["cpu_model"], machine["cpu_flags"]) == ("Model 5 & <b>more</b>", "avx2 fma")
    assert machine["memory_total_bytes"] == "3.0 GiB (3,221,225,472 bytes)"
    assert "container" not in machine  # not known
    assert dict(whole.build) == {
        "pin": "sdist",
        "commit": "c0ffee",
        "patches": "0001-first.patch aa\n0002.patch",
        "flags": "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON",
        "compilers.c": "cc 12",
        "compilers.cxx": "c++ 12",
        "assertions.on": "no",
    }
    assert dict(whole.graph) == {
        "can_fake_prefix": "true",
        "flash_attn": "enabled",
        "n_ctx": "9216",
    }
    assert dict(whole.settings) == {"seed": "1", "server.batch": "512"}


def test_what_happened(whole: Facts) -> None:
    (events,) = whole.listings
    assert events.columns == ("UTC", "kind", "message", "where")
    assert events.rows[0][1:] == ("retry", "again: mail", "mail, step 1, fake, round 2")


def test_what_was_kept_out_and_what_was_unsteady(tmp_path: Path) -> None:
    kept_out, unsteady, events = load(canned_run(tmp_path / "run")).facts.listings
    assert kept_out.rows == (
        ("fake", "refused", "2", "L = 500 is too small"),
        ("fake", "invalid", "1", "cache_n is 2999, not 3000"),
    )
    assert unsteady.rows[0] == ("a step 1", "spread 7.0 %, drift +20.0 %")
    assert events.title == "Events"


def test_a_folder_with_nothing_but_the_database(tmp_path: Path) -> None:
    facts = load(canned_run(tmp_path / "run")).facts
    assert facts.build == facts.machine == facts.graph == ()
    assert facts.summary == "model nano · pin sdist · engine native · 2026-11-30 02:41 UTC"


@pytest.mark.parametrize("text", ["", "[1]", "{", '"build"'])
def test_a_build_record_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    folder = canned_run(tmp_path / "run")
    (folder / "build.json").write_text(text, encoding="utf-8")
    (folder / "host.json").write_text(text, encoding="utf-8")
    facts = load(folder).facts
    assert facts.build == ()
    assert "repository.commit" not in dict(facts.run)


def test_the_recorded_repository_wins_over_that_of_the_host_file(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    record = {"commit": "abc", "dirty": True, "patch_sha256": None}
    (folder / "repository.json").write_text(json.dumps(record), encoding="utf-8")
    run = dict(load(folder).facts.run)
    assert (run["repository.commit"], run["repository.dirty"]) == ("abc", "yes")


def test_a_resumed_run_tells_what_changed(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.add_host(HOST)
        store.add_host({**HOST, "kernel": "6.2"})
    machine = dict(load(tmp_path / "run").facts.machine)
    assert machine["kernel"] == "6.1, then 6.2"
    assert machine["cores_usable"] == "6"


def test_a_long_list_of_events_is_cut_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_facts, "MAX_LINES", 2)
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        for number in range(5):
            store.add_event("retry", f"{number}" * 1000)
    (events,) = load(tmp_path / "run").facts.listings
    assert len(events.rows) == 2
    assert events.rows[0][2] == "0" * 500 + " …"
    assert events.note == "3 more are in the database."

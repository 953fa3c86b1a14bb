"""A results folder copied without what is private: what changes, what does not, what stays out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiment import scrub_folder
from experiment.errors import HandoffError
from experiment.scrub import Private, Scrubber
from tests.canned_handoff import (
    ANSWER,
    BUILD,
    FACTS,
    GRAPH,
    PICTURE,
    PRIVATE,
    RAW_HOST,
    SCRUBBER,
    SECRETS,
    STAMP,
    canned_folder,
)


@pytest.fixture(scope="module")
def canned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canned_folder(tmp_path_factory.mktemp("results"))


@pytest.fixture
def source(canned: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(canned, tmp_path / "source"))


def copied(source: Path, to: Path, scrubber: Scrubber = SCRUBBER) -> Path:
    scrub_folder.copy(source, to / "copy", scrubber)
    return to / "copy"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_files_of_a_run_are_copied_and_no_others(canned: Path, tmp_path: Path) -> None:
    assert names(canned) - names(copied(canned, tmp_path)) == {
        "notes.txt",
        "report.html",
        "raw/core.1234",
    }
    assert names(tmp_path / "copy") <= names(canned)
    assert len(names(tmp_path / "copy")) == 12


def test_nothing_private_is_left(canned: Path, tmp_path: Path) -> None:
    copy = copied(canned, tmp_path)
    for name in names(copy):
        content = (copy / name).read_bytes().lower()
        assert not any(secret in content for secret in SECRETS), name


def test_what_a_model_said_is_left(source: Path, tmp_path: Path) -> None:
    # A measurement's own; whether a name in it matters is for the last look to say.
    raw = source / "raw" / "000001_fake_0.json"
    raw.write_text(raw.read_text().replace(" UTC", " betelgeuse-7 of zaphod"))
    copy = copied(source, tmp_path)
    assert (copy / "raw" / "000001_fake_0.json").read_bytes() == raw.read_bytes()


def test_fixed_files_are_copied_byte_for_byte(canned: Path, tmp_path: Path) -> None:
    copy = copied(canned, tmp_path)
    for name in ("trace.jsonl", "git_diff.patch", "shots/1.png", "raw/000001_fake_0.json"):
        assert (copy / name).read_bytes() == (canned / name).read_bytes(), name
    assert (copy / "shots/1.png").read_bytes() == PICTURE


def test_raw_answer_changes_only_in_strings_with_a_private_path(
    canned: Path, tmp_path: Path
) -> None:
    path = copied(canned, tmp_path) / "raw" / "000001_fake_1.json"
    wanted = {**ANSWER, "response": {"error": "cannot open <cache>/état", "n": 1.5}}
    # Indented as the run writes it, each number as the server gave it.
    assert path.read_text() == json.dumps(wanted, indent=1) + "\n"
    assert '"wall_ms": 295.2826270011428' in path.read_text()


def test_logs_keep_what_is_not_text(canned: Path, tmp_path: Path) -> None:
    raw = copied(canned, tmp_path) / "raw"
    assert (raw / "server.log").read_bytes() == (
        b"loading model '<cache>/models/nano/model.gguf'\n"
        b"user@host: <home>, <home>/x.\n"
        b"not UTF-8: \xff\xfe\n"
    )
    assert (raw / "llama-bench.log").read_bytes() == b"$ <cache>/build/bin/llama-bench\n"


def test_host_record_names_neither_machine_nor_disks_nor_mounts(
    canned: Path, tmp_path: Path
) -> None:
    record = load(copied(canned, tmp_path) / "host.json")
    assert record["facts"] == {**FACTS, "hostname": "host"}
    assert record["raw"]["uname -a"] == "Linux host 6.1.0 #1 SMP x86_64 GNU/Linux\n"
    assert record["raw"]["lscpu"] == "CPU(s): 8\nSerial: <uuid> <mac>\n"
    assert record["raw"]["free -b"] == RAW_HOST["free -b"]
    lines = record["raw"]["df -k"].splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["tmpfs", "1000000", "0", "1000000", "0%", "/dev/shm"],
        ["/dev/nvme0n1p2", "488000000", "100000000", "388000000", "21%", "/"],
        ["<device>", "100", "50", "50", "50%", "<mount>"],
        ["<device>", "200", "50", "150", "25%", "<home>"],
    ]


def test_host_name_that_is_a_common_word_is_replaced_in_its_fields(
    source: Path, tmp_path: Path
) -> None:
    record = load(source / "host.json")
    record["facts"]["hostname"] = "vm"
    record["raw"]["uname -a"] = "Linux vm 6.1.0 for a vm\n"
    (source / "host.json").write_text(json.dumps(record))
    record = load(copied(source, tmp_path) / "host.json")
    assert record["facts"]["hostname"] == "host"
    assert record["raw"]["uname -a"] == "Linux host 6.1.0 for a vm\n"


def test_host_name_stays_if_it_may_be_known(source: Path, tmp_path: Path) -> None:
    scrubber = Scrubber(Private(PRIVATE.paths, PRIVATE.users, frozenset(), keeps_host=True))
    copy = copied(source, tmp_path, scrubber)
    record = load(copy / "host.json")
    assert record["facts"]["hostname"] == FACTS["hostname"]
    assert record["raw"]["uname -a"] == RAW_HOST["uname -a"]
    assert load(copy / "sweep.json")["probe"] == f"{STAMP}_betelgeuse-7_sweep-probe"


def test_commands_that_were_not_there_are_still_said_not_to_be(
    source: Path, tmp_path: Path
) -> None:
    record = load(source / "host.json")
    record["raw"] = dict.fromkeys(RAW_HOST, "[no such command here]")
    (source / "host.json").write_text(json.dumps(record))
    assert load(copied(source, tmp_path) / "host.json")["raw"] == record["raw"]


def test_other_records_change_in_their_texts_only(canned: Path, tmp_path: Path) -> None:
    copy = copied(canned, tmp_path)
    flags = {"CFLAGS": "-I<home>/include -I/opt/user/include"}
    compilers = {"c": "gcc 12 (built by user on host)"}
    assert load(copy / "build.json") == {
        **BUILD,
        "environment_flags": flags,
        "compilers": compilers,
    }
    assert (copy / "graph.json").read_bytes() == (canned / "graph.json").read_bytes()
    assert load(copy / "graph.json") == GRAPH
    assert load(copy / "sweep.json") == {"probe": f"{STAMP}_host_sweep-probe", "added_s": 0.1}


def test_run_that_was_no_sweep_has_no_plan(source: Path, tmp_path: Path) -> None:
    (source / "sweep.json").unlink()
    assert not (copied(source, tmp_path) / "sweep.json").exists()


@pytest.mark.parametrize(
    "name",
    ["host.json", "build.json", "graph.json", "git_diff.patch", "trace.jsonl", "shots/1.png"],
)
def test_missing_file_is_named(source: Path, tmp_path: Path, name: str) -> None:
    (source / name).unlink()
    with pytest.raises(HandoffError, match="missing") as caught:
        copied(source, tmp_path)
    assert caught.value.where == str(source / name)
    assert caught.value.hint


def test_missing_folder_of_raw_files_is_named(source: Path, tmp_path: Path) -> None:
    shutil.rmtree(source / "raw")
    with pytest.raises(HandoffError, match="missing") as caught:
        copied(source, tmp_path)
    assert caught.value.where == str(source / "raw")


@pytest.mark.parametrize("name", ["host.json", "build.json", "raw/000001_fake_0.json"])
def test_file_that_is_cut_short_is_named(source: Path, tmp_path: Path, name: str) -> None:
    path = source / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HandoffError, match="not JSON") as caught:
        copied(source, tmp_path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("value", [{"facts": {}}, {"facts": FACTS, "raw": {}}, [], {"facts": 1}])
def test_host_record_of_another_kind_is_refused(
    source: Path, tmp_path: Path, value: object
) -> None:
    (source / "host.json").write_text(json.dumps(value))
    with pytest.raises(HandoffError, match="lacks what a run records"):
        copied(source, tmp_path)

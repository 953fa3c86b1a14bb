"""A results folder: its name, the copy of the trace, and the records beside the database."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from experiment.build import Build
from experiment.clock import CLOCK
from experiment.compare import FOLDER_NAME
from experiment.errors import StoreError, TraceError
from experiment.folder import keep_trace, new_folder, write_json, write_records
from experiment.host import RAW_COMMANDS, HostFacts
from experiment.patches import Patch, Series
from experiment.trace import Trace, load_trace


def test_the_name_says_when_where_and_what(tmp_path: Path) -> None:
    before = CLOCK.now().replace(microsecond=0)
    folder = new_folder(tmp_path / "results", "box", "smoke")
    stamp, host, name = folder.name.rsplit("_", 2)
    when = datetime.strptime(stamp, "%Y-%m-%d_%H-%M-%S").replace(tzinfo=UTC)
    assert before <= when <= CLOCK.now()
    assert (host, name) == ("box", "smoke")
    assert folder.parent == tmp_path / "results"
    assert (folder / "raw").is_dir()


@pytest.mark.parametrize(
    ("hostname", "name", "ending"),
    [
        ("my_box.local", "a b/c", "_my-box.local_a-b-c"),
        ("..", "../../etc", "_x_etc"),
        ("", "", "_x_x"),
        ("büro", "日本", "_b-ro_x"),
        ("-x-", "--trace", "_x_trace"),
    ],
)
def test_odd_names_stay_one_folder_that_compare_finds(
    tmp_path: Path, hostname: str, name: str, ending: str
) -> None:
    folder = new_folder(tmp_path, hostname, name)
    assert folder.parent == tmp_path
    assert folder.name.endswith(ending)
    assert FOLDER_NAME.fullmatch(folder.name)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made: Not a directory") as caught:
        new_folder(tmp_path / "file", "box", "smoke")
    assert str(tmp_path / "file") in str(caught.value)
    assert "results_dir" in str(caught.value)


def test_a_second_run_in_the_same_second_waits_for_the_next(tmp_path: Path) -> None:
    folders = [new_folder(tmp_path, "box", "smoke") for _ in range(2)]
    assert folders[0].name < folders[1].name
    assert sorted(tmp_path.iterdir()) == folders


@pytest.mark.parametrize(
    "name",
    [
        *("raw/a.png", "host.json", "./HOST.json", "results.duckdb", "results.duckdb.wal"),
        *("trace.jsonl", "shots/../report.html", "export/a.png", ".12-3.draft", "git_diff.patch"),
        *("under-way.json", "sweep.json", "graph.json", "build.json", "repository.json"),
    ],
)
def test_a_picture_does_not_take_the_place_of_a_file_of_the_run(name: str, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "results"
    folder.mkdir()
    (source / "shots").mkdir(parents=True)
    (source / name).parent.mkdir(exist_ok=True)
    with (source / name).open("wb") as file:
        Image.new("RGB", (64, 48)).save(file, "PNG")
    trace = load_trace(trace_with_pictures(source, name))
    with pytest.raises(TraceError, match="has the name of a file that a run writes") as caught:
        keep_trace(trace, folder)
    assert repr(name) in str(caught.value)
    assert caught.value.hint is not None
    assert list(folder.iterdir()) == []


def trace_with_pictures(folder: Path, *names: str) -> Path:
    """A trace of one step for each of the files, and one that is rendered."""
    wanted: list[object] = [*names, {"width": 320, "height": 200}]
    rows = [
        {"task_id": "t", "step": number, "depth": 300, "new": {"text": "x", "screenshot": shot}}
        for number, shot in enumerate(wanted)
    ]
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def picture(path: Path, colour: str = "red") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48), colour).save(path)


def same_steps(kept: Trace, trace: Trace, folder: Path, source: Path) -> None:
    """The copy has the same steps, with files of its own that hold the same bytes."""
    assert kept.path == folder / "trace.jsonl"
    assert kept.sha256 == trace.sha256
    assert [(step.task_id, step.step, step.new_text, step.line) for step in kept.steps] == [
        (step.task_id, step.step, step.new_text, step.line) for step in trace.steps
    ]
    for mine, theirs in zip(kept.steps, trace.steps, strict=True):
        assert mine.screenshot is not None
        assert theirs.screenshot is not None
        if theirs.screenshot.path is None:
            assert mine.screenshot == theirs.screenshot
            continue
        assert mine.screenshot.path is not None
        assert mine.screenshot.path.is_relative_to(folder.resolve())
        assert mine.screenshot.path.read_bytes() == theirs.screenshot.path.read_bytes()


def test_the_trace_is_copied_with_its_pictures_and_can_be_read_from_there(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "results"
    folder.mkdir()
    picture(source / "a.png")
    picture(source / "deep" / "er" / "b.png", "blue")
    path = trace_with_pictures(source, "a.png", "deep/er/b.png", "deep/../a.png")
    trace = load_trace(path)
    kept = keep_trace(trace, folder)
    same_steps(kept, trace, folder, source)
    for file in (path, source / "a.png", source / "deep" / "er" / "b.png"):
        file.unlink()
    assert load_trace(folder / "trace.jsonl") == kept


def test_a_trace_without_pictures_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "results").mkdir()
    trace = load_trace(trace_with_pictures(tmp_path / "source"))
    kept = keep_trace(trace, tmp_path / "results")
    same_steps(kept, trace, tmp_path / "results", tmp_path / "source")
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["trace.jsonl"]


def test_a_picture_that_is_a_link_within_the_folder_is_copied(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "results"
    folder.mkdir()
    picture(source / "shots" / "first.png")
    (source / "link.png").symlink_to("shots/first.png")
    trace = load_trace(trace_with_pictures(source, "link.png"))
    same_steps(keep_trace(trace, folder), trace, folder, source)


def test_a_trace_that_is_reached_by_a_link_is_copied(tmp_path: Path) -> None:
    store, source, folder = tmp_path / "store", tmp_path / "source", tmp_path / "results"
    store.mkdir()
    folder.mkdir()
    picture(source / "a.png")
    trace_with_pictures(store, "a.png")
    (source / "mine.jsonl").symlink_to(store / "mine.jsonl")
    trace = load_trace(source / "mine.jsonl")
    same_steps(keep_trace(trace, folder), trace, folder, source)


@pytest.mark.parametrize(("allowed", "free"), [(1000, 1 << 40), (1 << 40, 1000)])
def test_links_to_one_picture_do_not_fill_the_disk(
    allowed: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "source", tmp_path / "results"
    folder.mkdir()
    picture(source / "a.png")
    for number in range(50):
        (source / f"{number}.png").symlink_to("a.png")
    trace = load_trace(trace_with_pictures(source, *(f"{number}.png" for number in range(50))))
    size = trace.path.stat().st_size + 50 * (source / "a.png").stat().st_size
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("experiment.folder.MAX_KEPT_BYTES", allowed)
    monkeypatch.setattr("experiment.folder.shutil.disk_usage", lambda _: usage(free))
    with pytest.raises(
        TraceError, match=f"takes {size:,} bytes; {allowed:,} are allowed, {free:,}"
    ):
        keep_trace(trace, folder)
    assert list(folder.iterdir()) == []


def build_of(folder: Path) -> Build:
    record: dict[str, object] = {"commit": "abc", "flags": ["-O3"]}
    return Build(
        "release", folder, folder / "s", folder / "b", folder / "src", record, folder / "l"
    )


def test_the_records_beside_the_database(tmp_path: Path) -> None:
    diffs = ("diff --git a/x b/x\n+one\n", "diff --git a/y b/y\n+two\n")
    series = Series(
        tuple(
            Patch(Path(f"000{number}.patch"), "Description: d\n" + diff, diff, ("x",))
            for number, diff in enumerate(diffs, 1)
        )
    )
    write_records(tmp_path, build_of(tmp_path), series)
    names = {path.name for path in tmp_path.iterdir()}
    # Whether there is a repository.patch depends on the checkout that the tests run in.
    assert names - {"repository.patch"} == {
        *("host.json", "build.json", "git_diff.patch", "repository.json")
    }
    host = json.loads((tmp_path / "host.json").read_text(encoding="utf-8"))
    assert host["facts"].keys() == HostFacts.__annotations__.keys()
    assert set(host["raw"]) == set(RAW_COMMANDS)
    assert all(isinstance(text, str) and text for text in host["raw"].values())
    assert set(host["repository"]) == {"commit", "dirty"}
    build = json.loads((tmp_path / "build.json").read_text(encoding="utf-8"))
    assert build == {"commit": "abc", "flags": ["-O3"]}
    assert (tmp_path / "git_diff.patch").read_text(encoding="utf-8") == "".join(diffs)


def test_json_is_written_for_people_too(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"path": Path("a/b"), "n": 1, "list": [1, 2]})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"path": "a/b", "n": 1, "list": [1, 2]}
    assert text.endswith("}\n")
    assert re.search(r"^  \"n\": 1,$", text, re.MULTILINE)

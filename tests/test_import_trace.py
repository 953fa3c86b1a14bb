"""Importing: what is written, when, and what is not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiment.errors import TraceImportError
from experiment.import_trace import Imported, import_trace
from experiment.importers import registry
from experiment.importers.base import Call, Context, Options, Source
from experiment.progress import SilentProgress
from experiment.trace import load_trace
from experiment.trace_header import TraceHeader

Calls = Callable[[Source, Context], Iterator[Call]]

CALL = Call(task_id="t", where="log:1", depth=30, total=100)


class Scripted:
    """An importer whose calls a test gives."""

    name = "scripted"
    what = "what a test says"

    def __init__(self, calls: Calls, counts: bool = False) -> None:
        self._calls = calls
        self.counts = counts

    def recognise(self, source: Source) -> str | None:
        return "a scripted log" if source.head.startswith(b"scripted") else None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        return self._calls(source, context)


class Counting:
    name = "model-x"

    def prompt_tokens(self, messages: Sequence[dict[str, object]]) -> int:
        return 7


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "in" / "log"
    path.write_bytes(b"scripted\n")
    return path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(calls: Calls, counts: bool = False) -> None:
        importer = Scripted(calls, counts)
        monkeypatch.setattr(registry, "importers", lambda: {"scripted": importer})

    return use


def run(source: Path, to: Path, **more: Any) -> Imported:
    return import_trace(source, to, Options(), SilentProgress(), **more)


def refusal(source: Path, to: Path, **more: Any) -> str:
    with pytest.raises(TraceImportError) as caught:
        run(source, to, **more)
    return str(caught.value)


def target(log: Path) -> Path:
    return log.parent.parent / "out" / "trace.jsonl"


def test_header_first_then_the_rows(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        assert (source.path, list(context.work.iterdir())) == (log, [])
        context.log.tokenizer = "model-y"
        yield CALL
        context.log.assume("as told at the end")
        context.log.warn("beware")
        context.log.drop("broken")
        yield Call("u", "log:2", 0, 1, exec_s=0.5)

    script(calls)
    to = target(log)
    made = run(log, to)
    assert (made.steps, made.tasks, made.seen, made.format) == (2, 2, "a scripted log", "scripted")
    trace = load_trace(to)
    assert trace.header == TraceHeader(
        "scripted", "model-y", ("as told at the end",), ("beware",), (("broken", 1),)
    )
    assert [(step.task_id, step.depth, step.new_tokens, step.line) for step in trace.steps] == [
        ("t", 30, 70, 2),
        ("u", 0, 1, 3),
    ]
    assert list(to.parent.iterdir()) == [to]


def test_the_tokenizer_is_the_model_that_counted(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        assert context.counter is not None
        yield Call("t", "log:1", context.counter.prompt_tokens([]), None, new_text="Go on.")

    script(calls, counts=True)
    run(log, target(log), counter=Counting())
    trace = load_trace(target(log))
    assert trace.header is not None
    assert trace.header.tokenizer == "model-x"
    assert (trace.steps[0].depth, trace.steps[0].new_text) == (7, "Go on.")


def test_a_failure_leaves_everything_as_it_was(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        (context.work / "spill").write_bytes(b"x")
        yield CALL
        raise TraceImportError("broken", where="log:2")

    script(calls)
    to = target(log)
    to.write_text("before", encoding="utf-8")
    assert refusal(log, to) == "log:2: broken"
    assert to.read_text(encoding="utf-8") == "before"
    assert list(to.parent.iterdir()) == [to]


def test_an_interruption_leaves_nothing_behind(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        yield CALL
        raise KeyboardInterrupt

    script(calls)
    with pytest.raises(KeyboardInterrupt):
        run(log, target(log))
    assert list(target(log).parent.iterdir()) == []


def test_a_trace_is_replaced(log: Path, script: Callable[..., None]) -> None:
    script(lambda source, context: iter([CALL]))
    target(log).write_text("before", encoding="utf-8")
    run(log, target(log))
    assert len(load_trace(target(log)).steps) == 1


def test_a_log_without_calls(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        context.log.drop("failed")
        context.log.drop("failed")
        yield from ()

    script(calls)
    assert refusal(log, target(log)) == f"{log}: holds no calls (2 left out: failed)"


def test_the_log_is_never_replaced(log: Path, script: Callable[..., None]) -> None:
    script(lambda source, context: iter([CALL]))
    link = log.parent / "link"
    link.symlink_to(log)
    for to in (log, link, log.parent / ".." / "in" / "log"):
        assert "would replace the log that it is made from" in refusal(log, to)
    assert log.read_bytes() == b"scripted\n"


def test_targets_that_cannot_be(log: Path, script: Callable[..., None]) -> None:
    script(lambda source, context: iter([CALL]))
    to = target(log)
    assert refusal(log, to.parent / "none" / "t.jsonl") == (
        f"{to.parent}/none: the folder of the trace does not exist"
    )
    assert refusal(log, to.parent) == f"{to.parent}: is no file that a trace could replace"
    os.mkfifo(to)
    assert refusal(log, to) == f"{to}: is no file that a trace could replace"
    assert "the name is not UTF-8" in refusal(log, to.parent / "a\udcff.jsonl")


def test_a_source_that_does_not_exist(log: Path, script: Callable[..., None]) -> None:
    script(lambda source, context: iter([CALL]))
    missing = log.parent / "none"
    assert refusal(missing, target(log)) == (
        f"{missing}: cannot be read: No such file or directory"
    )


def test_a_format_by_name_is_not_recognised_first(log: Path, script: Callable[..., None]) -> None:
    script(lambda source, context: iter([CALL]))
    log.write_bytes(b"a,b\n1,2\n")
    assert refusal(log, target(log)) == (
        f"{log}: is CSV with the columns a, b: no known format\n"
        "  hint: --format takes auto, scripted"
    )
    made = run(log, target(log), format="scripted")
    assert made.seen == "CSV with the columns a, b, read as --format says"
    assert "'scripte' is not a format; did you mean 'scripted'?" in refusal(
        log, target(log), format="scripte"
    )


def with_images(*names: str) -> Calls:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        for number, name in enumerate(names):
            yield Call("t", f"log:{number}", 9, None, screenshot=source.path.parent / name)

    return calls


def test_images_are_copied_once_and_as_they_are(log: Path, script: Callable[..., None]) -> None:
    (log.parent / "shots").mkdir()
    Image.new("RGB", (48, 40), "red").save(log.parent / "shots" / "a.png")
    Image.new("RGB", (40, 48), "blue").save(log.parent / "b.data", "JPEG")
    script(with_images("shots/a.png", "b.data", "shots/../shots/a.png"))
    to = target(log)
    run(log, to)
    steps = load_trace(to).steps
    sizes = [(step.screenshot.width, step.screenshot.height) for step in steps if step.screenshot]
    assert sizes == [(48, 40), (40, 48), (48, 40)]
    folder = to.parent / "trace-images"
    copies = sorted(folder.iterdir())
    assert sorted(copy.suffix for copy in copies) == [".jpg", ".png"]
    originals = (log.parent / "b.data", log.parent / "shots" / "a.png")
    assert sorted(copy.read_bytes() for copy in copies) == sorted(
        original.read_bytes() for original in originals
    )
    rows = [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()[1:]]
    assert rows[0]["new"] == rows[2]["new"]
    assert rows[0]["new"]["screenshot"].startswith("trace-images/")
    # Once more, and beside a file of somebody else's: nothing is lost.
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    run(log, to)
    assert sorted(folder.iterdir()) == sorted([*copies, folder / "mine.txt"])


def test_images_that_stand_inside_the_log(log: Path, script: Callable[..., None]) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        path = context.work / "shot.png"
        for colour in ("red", "blue"):
            Image.new("RGB", (64, 64), colour).save(path)
            yield Call("t", "log:1", 9, None, screenshot=path)

    script(calls)
    run(log, target(log))
    first, second = (step.screenshot for step in load_trace(target(log)).steps)
    assert first is not None
    assert second is not None
    assert first.path != second.path


def test_an_image_must_lie_in_the_logs_folder(log: Path, script: Callable[..., None]) -> None:
    outside = log.parent.parent / "outside.png"
    Image.new("RGB", (64, 64)).save(outside)
    (log.parent / "link.png").symlink_to(outside)
    for name in ("../outside.png", str(outside), "link.png"):
        script(with_images(name))
        assert refusal(log, target(log)) == (
            f"log:0: the image {Path(name).name!r} leads out of the log's folder"
        )
    assert list(target(log).parent.iterdir()) == []


def test_images_that_cannot_be_used(log: Path, script: Callable[..., None]) -> None:
    (log.parent / "text.png").write_text("no image", encoding="utf-8")
    Image.new("RGB", (8, 8)).save(log.parent / "small.png")
    (log.parent / "round.png").symlink_to("round.png")
    os.mkfifo(log.parent / "pipe.png")
    Image.new("RGB", (64, 64)).save(log.parent / "good.png")
    for name, what in {
        "none.png": "does not exist",
        "text.png": "is not a PNG or JPEG file",
        "small.png": "is 8x8 pixels; each side must be 32 to 8192",
        "pipe.png": "is not a file",
    }.items():
        script(with_images("good.png", name))
        assert refusal(log, target(log)) == f"log:1: the image {name!r} {what}"
    script(with_images("round.png"))
    assert refusal(log, target(log)).startswith("log:0: the image 'round.png' ")
    assert list(target(log).parent.iterdir()) == []


def folder_of(log: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = log.parent / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return log.parent


def test_a_folder_gives_each_file_of_the_format_in_the_order_of_names(
    log: Path, script: Callable[..., None]
) -> None:
    def calls(source: Source, context: Context) -> Iterator[Call]:
        assert list(context.work.iterdir()) == []
        (context.work / "used").write_bytes(b"")
        assert [path.name for path in context.files] == ["a", "log", "b"]
        yield Call("t", str(source.path), 1, 2)
        yield Call(source.path.name, str(source.path), 1, 2)

    script(calls)
    folder = folder_of(log, a=b"scripted", sub__b=b"scripted", zz=b"other", readme=b"")
    (folder / ".hidden").write_bytes(b"scripted")
    (folder / ".git").mkdir()
    (folder / ".git" / "c").write_bytes(b"scripted")
    outside = log.parent.parent / "outside"
    outside.write_bytes(b"scripted")
    (folder / "link").symlink_to(outside)
    made = run(folder, folder / "trace.jsonl")
    assert made.seen == "3 files, the first: a scripted log"
    trace = load_trace(folder / "trace.jsonl")
    assert [(step.task_id, step.step) for step in trace.steps] == [
        ("t", 0),
        ("a", 0),
        ("t (log)", 0),
        ("log", 0),
        ("t (sub/b)", 0),
        ("b", 0),
    ]
    assert trace.header is not None
    assert dict(trace.header.dropped) == {
        "files of the folder that are no logs of this format": 2,
        "links that lead out of the folder": 1,
    }
    # The trace in the folder is no log, and does not become one.
    assert run(folder, folder / "trace.jsonl").steps == 6


def test_a_folder_without_a_log_or_with_two_kinds(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Scripted):
        name = "other"

        def recognise(self, source: Source) -> str | None:
            return "another log" if source.head.startswith(b"other") else None

    both: dict[str, Scripted] = {
        "other": Other(lambda source, context: iter([CALL])),
        "scripted": Scripted(lambda source, context: iter([CALL, CALL])),
    }
    monkeypatch.setattr(registry, "importers", lambda: both)
    folder = folder_of(log, zz=b"other")
    to = target(log)
    assert refusal(folder, to) == (
        f"{folder}: holds logs of several formats: scripted (log); other (zz)\n"
        "  hint: name one: --format=NAME"
    )
    assert run(folder, to, format="other").steps == 1
    assert run(folder, to, format="scripted").steps == 2
    empty = log.parent.parent / "empty"
    empty.mkdir()
    assert refusal(empty, to) == f"{empty}: holds no file of a known format"
    assert refusal(empty, to, format="other") == f"{empty}: holds no file of the format other"


def test_a_folder_that_is_a_log_itself(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(Scripted):
        def recognise(self, source: Source) -> str | None:
            return "a trajectory" if (source.path / "log").is_file() else None

    shot = log.parent / "shot.png"
    Image.new("RGB", (64, 64)).save(shot)

    def calls(source: Source, context: Context) -> Iterator[Call]:
        assert source.path == log.parent
        yield Call("t", "log:1", 9, None, screenshot=source.path / "shot.png")

    importer = Whole(calls)
    monkeypatch.setattr(registry, "importers", lambda: {"scripted": importer})
    assert run(log.parent, target(log)).seen == "a trajectory"
    assert load_trace(target(log)).steps[0].screenshot is not None

"""ATIF: reported counts, token ids, continuations, subagents, and texts with images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers.atif import IDS, IMPORTER, NO_CALL, NO_METRICS
from experiment.importers.atif_texts import NOTES
from experiment.importers.base import Call, Source
from experiment.importers.registry import claims
from tests.importers.characters import Characters, check_bad, counted_trace, read, size_of
from tests.importers.importing import DATA, SHARED, bad_names, needs_shared, refusal_of, rows_of

MINE = DATA / "atif"
FILES = sorted(path for path in MINE.rglob("*.json"))
CONTINUED = MINE / "continued"


def brief(calls: list[Call]) -> list[tuple[str, int | None, int | None]]:
    return [(call.task_id, call.depth, call.total) for call in calls]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recognised_by_this_importer_only(path: Path) -> None:
    (claim,) = claims(Source.open(path))
    assert claim[0].name == "atif"
    assert "steps[]" in claim[1]


def test_reported_counts(tmp_path: Path) -> None:
    assert rows_of(MINE / "cached.json", tmp_path) == [
        ("reported", 0, 0, 1000),
        ("reported", 1, 1020, 80),
        ("reported", 2, 1099, 1),  # all of it cached
        ("reported", 3, 512, 388),  # evicted
    ]
    _, log = read(IMPORTER, MINE / "cached.json", tmp_path)
    assert log.tokenizer == "model-a, model-b"
    assert log.dropped == {NO_METRICS: 1, NO_CALL: 1}
    assert not log.warnings
    assert not log.assumptions


def test_token_ids_in_place_of_a_cached_count(tmp_path: Path) -> None:
    assert rows_of(MINE / "ids.json", tmp_path) == [
        ("ids", 0, 0, 5),
        ("ids", 1, 7, 2),  # 5 of the prompt, 2 of the answer: its last token was never computed
        ("ids", 2, 2, 2),
        ("ids", 3, 3, 1),  # the same prompt again
    ]
    calls, log = read(IMPORTER, MINE / "ids.json", tmp_path)
    assert {call.assumed for call in calls} == {IDS}
    assert log.warnings == [
        "final_metrics.total_prompt_tokens is 99, the steps' own sum 22: it may include "
        "subagents, and is not used"
    ]


def test_a_continuation_goes_on_with_the_task(tmp_path: Path) -> None:
    first, second = CONTINUED / "run.trajectory.json", CONTINUED / "run.trajectory.cont-1.json"
    calls, log = read(IMPORTER, first, tmp_path)
    assert brief(calls) == [("long", 0, 100), ("long", 30, 60)]
    assert calls[1].where == f"{second}:22"
    (warning,) = log.warnings
    assert warning.startswith("subagents' trajectories are files of their own")
    alone, _ = read(IMPORTER, second, tmp_path)
    assert brief(alone) == [("long-cont-1", 30, 60)]


def test_a_folder_has_each_call_once(tmp_path: Path) -> None:
    files = tuple(sorted(CONTINUED.iterdir()))
    calls = [call for path in files for call in read(IMPORTER, path, tmp_path, files=files)[0]]
    assert brief(calls) == [("long-summary", 110, 120), ("long", 0, 100), ("long", 30, 60)]


def test_a_continuation_that_is_not_there_is_told(tmp_path: Path) -> None:
    shutil.copy(CONTINUED / "run.trajectory.json", tmp_path / "run.trajectory.json")
    calls, log = read(IMPORTER, tmp_path / "run.trajectory.json", tmp_path)
    assert brief(calls) == [("long", 0, 100)]
    assert log.warnings[-1] == (
        "the continuation 'trajectory.cont-1.json' is not there: the trace ends where "
        "run.trajectory.json ends"
    )


def test_continuations_stay_in_their_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    shutil.copy(CONTINUED / "run.trajectory.cont-1.json", tmp_path / "secret.json")
    (inner / "trajectory.cont-1.json").symlink_to(tmp_path / "secret.json")
    shutil.copy(CONTINUED / "run.trajectory.json", inner / "trajectory.json")
    with pytest.raises(TraceImportError, match="leaves the folder of the trajectory"):
        read(IMPORTER, inner / "trajectory.json", tmp_path)


def test_subagents_inside_are_tasks_of_their_own(tmp_path: Path) -> None:
    assert rows_of(MINE / "inside.json", tmp_path) == [
        ("outer", 0, 0, 100),
        ("inner", 0, 0, 20),
        ("inner.0", 0, 4, 6),
    ]


def test_texts_and_images_without_counts(tmp_path: Path) -> None:
    header, rows = counted_trace(MINE / "texts" / "texts.json", tmp_path)
    # Be brief. 9, What is on it? 14, 128x64 8 | I look closer. 14, zoomed 6, 64x64 4 | A lamp. 7,
    # ok 2
    assert [(row["depth"], row["new"].get("text")) for row in rows] == [
        (0, "Be brief.What is on it?"),
        (45, "zoomed"),
        (62, "ok"),
    ]
    assert [size_of(row, tmp_path) for row in rows] == [(128, 64), (64, 64), None]
    assert header["tokenizer"] == "characters"
    assert header["dropped"] == {NOTES: 1}
    calls, _ = read(IMPORTER, MINE / "texts" / "texts.json", tmp_path, Characters())
    assert [(call.total, call.output) for call in calls] == [(31, 14), (55, 7), (64, 4)]


@pytest.mark.parametrize("name", bad_names("atif"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("atif", name, tmp_path, monkeypatch)


def test_an_image_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    shutil.copytree(MINE / "texts", tmp_path / "log")
    image = tmp_path / "log" / "images" / "wide.png"
    image.rename(tmp_path / "secret.png")
    image.symlink_to(tmp_path / "secret.png")
    with pytest.raises(TraceImportError, match=r"'images/wide\.png' leaves the folder of the log"):
        read(IMPORTER, tmp_path / "log" / "texts.json", tmp_path, Characters())


GOLDEN = "harbor_golden_hello-world-"


@needs_shared
def test_the_real_sample_gives_the_rows_of_its_mapping(tmp_path: Path) -> None:
    path = SHARED / "atif" / "gemini_cli_numbers_only.trajectory.json"
    rows = rows_of(path, tmp_path)
    steps = [s for s in json.loads(path.read_text())["steps"] if s["source"] == "agent"]
    by_id = {step["step_id"]: row for step, row in zip(steps, rows, strict=True)}
    assert by_id[3][2:] == (0, 12303)
    assert by_id[8][2:] == (16265, 1963)
    assert [row[1] for row in rows] == list(range(10))
    assert sum(row[2] + row[3] for row in rows) == 157081


@needs_shared
def test_the_golden_samples_with_ids(tmp_path: Path) -> None:
    summarization = SHARED / "atif" / f"{GOLDEN}context-summarization.trajectory.json"
    rows = rows_of(summarization, tmp_path)
    assert rows[0][2:] == (0, 682)
    assert rows[1][2:] == (682, 68)  # step_id 3
    assert [row[2:] for row in rows[2:]] == [(750, 70), (820, 880), *[(849, 1)] * 3]
    assert sum(row[2] + row[3] for row in rows) == 6502
    _, log = read(IMPORTER, summarization, tmp_path)
    assert "total_prompt_tokens is 7802, the steps' own sum 6502" in log.warnings[0]
    summary = SHARED / "atif" / f"{GOLDEN}context-summarization.trajectory.summarization-1-summary"
    (row,) = rows_of(summary.with_name(summary.name + ".json"), tmp_path)
    assert row == ("test-session-context-summarization-summarization-1-summary", 0, 0, 500)
    rows = rows_of(SHARED / "atif" / f"{GOLDEN}timeout.trajectory.json", tmp_path)
    assert [row[2:] for row in rows] == [(0, 682), (0, 100), (99, 1)]


@needs_shared
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("invalid-json.trajectory.json", 19),
        ("context-summarization-linear-history.trajectory.json", 19),
        ("context-summarization-linear-history.trajectory.cont-1.json", 40),
    ],
)
def test_the_golden_samples_without(name: str, line: int, tmp_path: Path) -> None:
    path = SHARED / "atif" / (GOLDEN + name)
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}:{line}: no cached-token field\n  hint: pass --assume-cold, or --assume-append-only"
    )


@needs_shared
def test_the_golden_sample_that_is_continued(tmp_path: Path) -> None:
    name = f"{GOLDEN}context-summarization-linear-history.trajectory.json"
    rows = rows_of(SHARED / "atif" / name, tmp_path, assume_cold=True)
    totals = [682, 750, 820, 1700, 850, 850, 850]
    assert rows == [("NORMALIZED_SESSION_ID", step, 0, total) for step, total in enumerate(totals)]

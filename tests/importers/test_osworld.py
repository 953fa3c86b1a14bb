"""OSWorld: screenshots taken after the action, rows of one response, and what is not saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from experiment.errors import TraceImportError
from experiment.importers.base import Source
from experiment.importers.osworld import DICT_ANSWER, DROPPED, IMPORTER, INITIAL
from experiment.importers.registry import claims
from tests.importers.characters import Characters, check_bad, counted_trace, read, size_of
from tests.importers.importing import DATA, SHARED, bad_names, needs_shared, refusal_of

MINE = DATA / "osworld"
TASK = MINE / "save-file"


@pytest.mark.parametrize(
    "path", [TASK, TASK / "traj.jsonl", MINE / "failed", MINE / "failed" / "traj.jsonl"]
)
def test_recognised_by_this_importer_only(path: Path) -> None:
    (claim,) = claims(Source.open(path))
    assert claim[0].name == "osworld"


@pytest.mark.parametrize("source", [TASK, TASK / "traj.jsonl"])
def test_by_hand_without_the_first_screenshot(source: Path, tmp_path: Path) -> None:
    header, rows = counted_trace(source, tmp_path)
    # step 2 saw step_1.png, 64x64: 4, and answered 13; step 3 saw step_2b.png, 192x64
    assert [(row["task_id"], row["step"], row["depth"]) for row in rows] == [
        ("save-file", 0, 0),
        ("save-file", 1, 17),
    ]
    assert [size_of(row, tmp_path) for row in rows] == [(64, 64), (192, 64)]
    assert not any("text" in row["new"] or "baseline" in row for row in rows)
    assert header["dropped"][DROPPED] == 1
    assert header["dropped"]["rows that hold an error instead of a step"] == 1
    assert DICT_ANSWER in header["assumptions"]
    assert "from start to start a step took 2.5 to 10 s, model and" in header["warnings"][0]


def test_by_hand_with_it(tmp_path: Path) -> None:
    header, rows = counted_trace(TASK, tmp_path, initial_screenshot=MINE / "initial.png")
    # 64x32 2, click one 9 | 64x64 4, type a, enter 13 | 192x64 12
    assert [(row["step"], row["depth"]) for row in rows] == [(0, 0), (1, 11), (2, 28)]
    assert [size_of(row, tmp_path) for row in rows] == [(64, 32), (64, 64), (192, 64)]
    assert INITIAL in header["assumptions"]
    calls, _ = read(IMPORTER, TASK, tmp_path, Characters(), initial_screenshot=MINE / "initial.png")
    assert [(call.total, call.output) for call in calls] == [(2, 9), (15, 13), (40, 4)]


def test_an_initial_screenshot_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceImportError) as caught:
        read(IMPORTER, TASK, tmp_path, Characters(), initial_screenshot=tmp_path / "no.png")
    assert str(caught.value) == (
        f"{tmp_path / 'no.png'}: the screenshot of --initial-screenshot does not exist"
    )


@pytest.mark.parametrize("name", bad_names("osworld"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("osworld", name, tmp_path, monkeypatch)


def with_images(sample: Path, folder: Path, sides: int) -> Path:
    """A sample's rows beside screenshots of growing width, which are not among the samples."""
    folder.mkdir()
    shutil.copy(sample, folder / "traj.jsonl")
    for number, line in enumerate(sample.read_text(encoding="utf-8").splitlines()):
        path = folder / json.loads(line)["screenshot_file"]
        Image.new("L", (sides + 32 * number, 64)).save(path)
    return folder


@needs_shared
def test_a_step_saw_the_screenshot_of_the_one_before(tmp_path: Path) -> None:
    sample = SHARED / "osworld" / "chrome_0d8b7de3" / "traj.jsonl"
    folder = with_images(sample, tmp_path / "chrome_0d8b7de3", 64)
    calls, log = read(IMPORTER, folder, tmp_path, Characters())
    assert len(calls) == 14  # of 15: what step 1 saw is not saved
    assert {call.task_id for call in calls} == {"chrome_0d8b7de3"}
    first = calls[0].screenshot
    assert first is not None
    assert first.name == "step_1_20250828@192557.png"
    assert calls[0].where == f"{folder / 'traj.jsonl'}:2"
    # 2x2 squares and scroll:down before the second
    assert [(call.depth, call.total) for call in calls[:2]] == [(0, 4), (15, 21)]
    assert all((c.prefill_s, c.decode_s, c.exec_s) == (None, None, None) for c in calls)
    assert "took 2 to 15 s, model and environment together" in log.warnings[0]
    initial = folder / "step_1_20250828@192557.png"
    calls, _ = read(IMPORTER, folder, tmp_path, Characters(), initial_screenshot=initial)
    assert len(calls) == 15


@needs_shared
def test_responses_that_are_objects(tmp_path: Path) -> None:
    sample = SHARED / "osworld" / "cadworld_rows_dict_response.jsonl"
    folder = with_images(sample, tmp_path / "cad", 64)
    calls, log = read(IMPORTER, folder, tmp_path, Characters())
    rows = [json.loads(line) for line in sample.read_text(encoding="utf-8").splitlines()]
    assert [call.output for call in calls] == [
        len(row["response"]["raw_response"]) for row in rows[1:]
    ]
    assert DICT_ANSWER in log.assumptions


@needs_shared
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "error_only/traj.jsonl",
            '{}:1: holds an error instead of steps: "chrome/7b6c7e24-c58a-49fc-a5bb-d57b80e5b4c3 '
            "- a bytes-like object is required, not 'NoneType'\"",
        ),
        (
            "chrome_0d8b7de3/traj.jsonl",
            "{}:1: an OSWorld trajectory has no token counts\n  hint: name the model whose "
            "tokenizer and chat template count them: --model=NAME or FILE",
        ),
    ],
)
def test_the_samples_are_refused(name: str, message: str, tmp_path: Path) -> None:
    path = SHARED / "osworld" / name
    assert str(refusal_of(path, tmp_path)) == message.format(path)


@needs_shared
def test_the_samples_have_no_images(tmp_path: Path) -> None:
    path = SHARED / "osworld" / "chrome_0d8b7de3" / "traj.jsonl"
    with pytest.raises(TraceImportError, match=r"'step_1_20250828@192557\.png' does not exist"):
        read(IMPORTER, path, tmp_path, Characters())

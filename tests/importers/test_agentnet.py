"""AgentNet and AgentNetBench: the conversation that is put together, and its images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers.agentnet import BENCH_ANSWER, IMPORTER, PROMPT, RAW_ANSWER
from experiment.importers.base import Context, Log, Options, Source
from experiment.importers.registry import claims
from experiment.progress import SilentProgress
from experiment.screenshot import open_screenshot
from tests.importers.characters import Characters, check_bad, counted_trace, read, size_of
from tests.importers.importing import DATA, SHARED, bad_names, needs_shared, refusal_of

MINE = DATA / "agentnet"


@pytest.mark.parametrize("name", ["raw.jsonl", "bench.json"])
def test_recognised_by_this_importer_only(name: str) -> None:
    (claim,) = claims(Source.open(MINE / name))
    assert claim[0].name == "agentnet"


def test_raw_by_hand(tmp_path: Path) -> None:
    header, rows = counted_trace(MINE / "raw.jsonl", tmp_path)
    # Open the mail. 14, 128x64 8, answer 11 | 64x64 4, answer 11+1+5+1+6 | 8
    assert [
        (row["task_id"], row["step"], row["depth"], row["new"].get("text")) for row in rows
    ] == [
        ("open-mail", 0, 0, "Open the mail."),
        ("open-mail", 1, 33, None),
        ("open-mail", 2, 61, None),
        ("other", 0, 0, "Wait."),
    ]
    assert [size_of(row, tmp_path) for row in rows] == [(128, 64), (64, 64), (128, 64), (64, 64)]
    assert not any("baseline" in row for row in rows)
    assert {PROMPT, RAW_ANSWER} <= set(header["assumptions"])
    calls, _ = read(IMPORTER, MINE / "raw.jsonl", tmp_path, Characters())
    assert [(call.total, call.output) for call in calls] == [(22, 11), (37, 24), (69, 1), (9, 6)]


def test_bench_by_hand(tmp_path: Path) -> None:
    header, rows = counted_trace(MINE / "bench.json", tmp_path)
    # Find it. 8, 96x32 3, answer 3+1+6+1+8 | 128x64 8
    assert [
        (row["task_id"], row["step"], row["depth"], row["new"].get("text")) for row in rows
    ] == [
        ("bench-task", 0, 0, "Find it."),
        ("bench-task", 1, 30, None),
    ]
    # The pixels of the file, whatever meta_info says.
    assert [size_of(row, tmp_path) for row in rows] == [(96, 32), (128, 64)]
    assert BENCH_ANSWER in header["assumptions"]


@pytest.mark.parametrize("name", bad_names("agentnet"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("agentnet", name, tmp_path, monkeypatch)


def test_a_folder_of_images_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    shutil.copy(MINE / "raw.jsonl", tmp_path / "log")
    (tmp_path / "log" / "images").symlink_to(MINE / "images")
    with pytest.raises(TraceImportError, match=r"'one\.png' leaves the folder of the log"):
        read(IMPORTER, tmp_path / "log" / "raw.jsonl", tmp_path, Characters())


@needs_shared
def test_the_raw_sample(tmp_path: Path) -> None:
    path = SHARED / "agentnet" / "raw_example_steps10_14.jsonl"
    _, rows = counted_trace(path, tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["task_id"] for row in rows} == {"task_example_0"}
    assert len(rows[0]["new"]["text"]) == 227
    assert [size_of(row, tmp_path) for row in rows] == [(1276, 718)] * 5
    assert rows[0]["depth"] == 0
    assert [row["new"].get("text") for row in rows[1:]] == [None] * 4
    # 39 x 22 squares and the answer of 34 characters before it
    assert rows[1]["depth"] == 227 + 39 * 22 + len("pyautogui.click(x=0.7606, y=0.724)")


@needs_shared
def test_the_samples_need_a_model(tmp_path: Path) -> None:
    for name in ("raw_example_steps10_14.jsonl", "bench_s_df0fd37049f470c2.json"):
        path = SHARED / "agentnet" / name
        assert str(refusal_of(path, tmp_path)) == (
            f"{path}:1: an AgentNet task has no token counts\n"
            "  hint: name the model whose tokenizer and chat template count them: "
            "--model=NAME or FILE"
        )


@needs_shared
def test_the_bench_sample_lacks_an_image(tmp_path: Path) -> None:
    path = SHARED / "agentnet" / "bench_s_df0fd37049f470c2.json"
    context = Context(Options(), Log(), SilentProgress(), tmp_path, Characters())
    calls = IMPORTER.calls(Source.open(path), context)
    first = next(calls)
    assert first.screenshot is not None
    picture = open_screenshot(first.screenshot)
    assert (picture.width, picture.height) == (1280, 720)
    next(calls)
    next(calls)
    with pytest.raises(TraceImportError) as caught:
        next(calls)
    assert str(caught.value) == (
        f"{path}:110: steps.3.image: 's_df0fd37049f470c2_6.png' does not exist in the folder of "
        "the log"
    )

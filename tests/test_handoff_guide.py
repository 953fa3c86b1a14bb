"""REPRODUCE.md: its answers in order, from the run's own records; its commands can be typed."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from invoke.parser import Parser

import tasks
from experiment import scrub_folder
from experiment.claims import Claim
from experiment.errors import HandoffError
from experiment.handoff_guide import Packed, render
from tests.canned_handoff import SCRUBBED_ID, SCRUBBER, canned_folder

PACKED = Packed(
    name="2026-11-30_02-41-05_smoke-handoff",
    commit="a" * 40 + "-dirty",
    source="source/llama.tar.gz",
    image=None,
    size_bytes=123_456_789,
)
WITH_IMAGE = replace(PACKED, image="image/image.tar")
SPEEDUP = Claim(
    key="speedup",
    sentence="Full takes 5.4 | times\nas long.",
    query="SELECT 1",
    expected=5.4321,
    tolerance=0.3,
    is_relative=True,
    judged_elsewhere=True,
    why="Memory | arithmetic.",
)
CLAIMS = (
    SPEEDUP,
    replace(SPEEDUP, key="fidelity", expected=1.0, tolerance=0.02, is_relative=False),
    replace(SPEEDUP, key="wrong", expected=0, tolerance=0.0, is_relative=False),
    replace(SPEEDUP, key="time_s", expected=1234.5, tolerance=0.25, judged_elsewhere=False),
)
HEADS = [
    "What is claimed",
    "Which command supports which claim",
    "Hardware and time needed",
    "How to install",
    "One quick run",
    "The full run",
    "What to expect",
    "How far results may differ",
]


@pytest.fixture(scope="module")
def canned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    scrub_folder.copy(canned_folder(folder), folder / SCRUBBED_ID, SCRUBBER)
    return folder / SCRUBBED_ID


def guide(folder: Path, packed: Packed = PACKED) -> str:
    return render(folder, packed, CLAIMS)


def section(text: str, number: int) -> str:
    return text.split("\n## ")[number]


def cells(text: str, first: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_answers_are_in_the_order_of_the_questions(canned: Path) -> None:
    heads = re.findall(r"^## (\d)\. (.*)$", guide(canned), re.MULTILINE)
    assert heads == [(str(number), head) for number, head in enumerate(HEADS, 1)]


def test_claims_are_told_with_value_command_and_tolerance(canned: Path) -> None:
    text = guide(canned)
    assert cells(section(text, 1), "`speedup`") == [
        "`speedup`",
        r"Full takes 5.4 \| times as long.",
        "5.4321",
    ]
    assert cells(section(text, 1), "`wrong`")[2] == "0"
    assert cells(section(text, 1), "`time_s`")[2] == "1,234.50"
    commands = section(text, 2)
    assert cells(commands, "`./inv verify FILE` ")[1] == "all"
    assert cells(commands, "`./inv verify FILE --rerun`")[1] == "`speedup`, `fidelity`, `wrong`"
    assert cells(commands, "the same")[1] == "`time_s`"
    differ = section(text, 8)
    told = {claim.key: cells(differ, f"`{claim.key}`")[2] for claim in CLAIMS}
    assert told == {
        "speedup": "± 30 %",
        "fidelity": "± 0.02",
        "wrong": "equal",
        "time_s": "anything elsewhere; on this machine ± 25 %",
    }
    assert cells(differ, "`speedup`")[3] == r"Memory \| arithmetic."


def test_numbers_come_from_the_records_and_name_them(canned: Path) -> None:
    needed = section(guide(canned), 3)
    assert cells(needed, "processor")[1:] == [
        "Infinite Improbability 42, x86_64, 4 of 8 cores usable",
        "`results/host.json`",
    ]
    # 18 MiB of K and V and 25.5 MiB for computing; no buffer of a recurrent memory.
    assert cells(needed, "memory")[1] == (
        "8.0 GiB; beside the model's weights the server's buffers took 44 MiB"
    )
    assert cells(needed, "disk")[1] == "123 MB for this archive unpacked"
    assert cells(needed, "time to compile")[1] == "6.0 min with 4 jobs at once"
    assert all(cells(needed, row)[2] for row in ("processor", "memory", "disk", "time of the run"))


def test_wall_time_is_that_of_the_run(canned: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(canned, tmp_path / "copy"))
    with duckdb.connect(str(folder / "results.duckdb")) as connection:
        connection.execute("UPDATE run SET finished = started + INTERVAL 90 SECONDS")
        connection.execute(
            "INSERT INTO event SELECT id, started, 'resumed', '3 measurements were there', "
            "NULL, NULL, NULL, NULL FROM run"
        )
    text = guide(folder)
    assert cells(section(text, 3), "time of the run")[1] == (
        "1.5 min from beginning to end, pauses included: it was resumed 1 time"
    )
    assert "It took 1.5 min in this run" in section(text, 6)


def test_limit_of_memory_is_told(canned: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(canned, tmp_path / "copy"))
    record = json.loads((folder / "host.json").read_text())
    record["facts"]["memory_limit_bytes"] = 1 << 30
    (folder / "host.json").write_text(json.dumps(record))
    assert "8.0 GiB, limited to 1.0 GiB;" in section(guide(folder), 3)


def test_model_of_ones_own_is_asked_for(canned: Path) -> None:
    needed = section(guide(canned), 3)
    assert "The model was the file `big.gguf`" in needed
    assert "stand-in" not in needed


def test_table_and_sentences_of_the_run_are_what_to_expect(canned: Path) -> None:
    expected = section(guide(canned), 7)
    assert f"### {SCRUBBED_ID}: nano, pin sdist, engine native" in expected
    assert "- Decoding everything anew (full) takes" in expected
    assert str(canned.parent) not in guide(canned)


def test_offline_ways_are_told_only_with_an_image(canned: Path) -> None:
    without, with_image = guide(canned), guide(canned, WITH_IMAGE)
    assert "docker" not in without.lower()
    assert "--network none" in section(with_image, 4)
    for number in (5, 6):
        assert f"replay verify /in/{PACKED.name}.tar.gz --rerun" in section(with_image, number)


def test_same_run_gives_the_same_text(canned: Path, tmp_path: Path) -> None:
    other = shutil.copytree(canned, tmp_path / "elsewhere" / canned.name)
    assert guide(canned, WITH_IMAGE) == guide(Path(other), WITH_IMAGE)


def commands(text: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_commands_are_ones_that_the_program_takes(canned: Path) -> None:
    typed = [
        part.strip()
        for line in commands(guide(canned, WITH_IMAGE))
        for part in line.split("&&")
        if part.strip().startswith(("./inv ", "replay "))
    ]
    assert len(typed) == 6
    for command in typed:
        _, *words = shlex.split(command)
        contexts = copy.deepcopy(tasks.namespace).to_contexts()
        found = Parser(contexts=contexts).parse_argv(words)
        assert [context.name for context in found] == [words[0]]
        assert not found.unparsed


def test_shell_understands_every_block(canned: Path) -> None:
    script = "\n".join(commands(guide(canned, WITH_IMAGE)))
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "said", ["Loaded image: prefix-replay:latest\n", "Loaded image ID: sha256:0123\n"]
)
def test_name_of_the_image_is_read_from_what_docker_says(canned: Path, said: str) -> None:
    (line,) = [line for line in commands(guide(canned, WITH_IMAGE)) if line.startswith("IMAGE=")]
    sed = line.partition("docker load | ")[2].removesuffix(")")
    done = subprocess.run(
        ["sh", "-c", sed], input=f"1/3 layers\n{said}", text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == said.split(": ", 1)[1].strip()


@pytest.mark.parametrize("name", ["host.json", "build.json", "graph.json"])
def test_record_without_the_facts_is_named(canned: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(canned, tmp_path / "copy"))
    (folder / name).write_text("[]")
    with pytest.raises(HandoffError, match=re.escape("REPRODUCE.md")):
        guide(folder)

"""Mooncake: depth from the blocks of earlier requests, tasks from shared ones."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiment.import_trace import import_trace
from experiment.importers import mooncake, scratch
from experiment.importers.base import Options
from experiment.importers.chains import prefixes
from experiment.progress import SilentProgress
from tests.importers.importing import (
    DATA,
    SHARED,
    bad_names,
    check_bad,
    needs_shared,
    rows_of,
    trace_of,
)

CHAT = DATA / "mooncake" / "chat.jsonl"

CHAT_ROWS = [
    ("mc-0", 0, 0, 1300),
    ("mc-1", 0, 512, 188),  # shares block 0 only: another task
    ("mc-0", 1, 1536, 100),
    ("mc-0", 2, 1299, 1),  # all three blocks seen, of which the last is not full
    ("mc-4", 0, 299, 1),
    ("mc-1", 1, 1024, 76),  # block 12 is known, but behind block 11
    ("mc-6", 0, 0, 1024),  # both are known, but behind block 0
    ("mc-1", 2, 1023, 1),
]


def brute_force(requests: list[tuple[int, list[int]]]) -> list[tuple[str, int, int, int]]:
    """The same by the definition: compare each request with each earlier one."""
    rows, tasks, steps = [], [], {}
    for number, (total, ids) in enumerate(requests):
        known, task = 0, f"mc-{number}"
        for earlier, (_, others) in enumerate(requests[:number]):
            common = 0
            while common < min(len(ids), len(others)) and ids[common] == others[common]:
                common += 1
            if common >= 2:
                task = tasks[earlier]
            known = max(known, common)
        depth = min(512 * known, total - 1)
        tasks.append(task)
        steps[task] = steps.get(task, -1) + 1
        rows.append((task, steps[task], depth, total - depth))
    return rows


def write(path: Path, requests: list[tuple[int, list[int]]]) -> Path:
    rows = [
        {"timestamp": 0, "input_length": total, "output_length": 1, "hash_ids": ids}
        for total, ids in requests
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_by_hand(tmp_path: Path) -> None:
    header, _ = trace_of(CHAT, tmp_path)
    assert rows_of(CHAT, tmp_path) == CHAT_ROWS
    assert header == {
        "format": 1,
        "from": "mooncake",
        "assumptions": [
            "the prefix cache is infinite and shared: each block of an earlier request, and only "
            "that, is in the cache",
            "the log has no task: requests that share their first two blocks of 512 tokens are "
            "one task, named mc-<row of its first request, from 0>",
            "the whole prompt of T tokens was cached in 3 calls: depth is T-1 there, and one "
            "token new (an engine computes at least one)",
        ],
        "warnings": [],
        "dropped": {},
    }


def test_a_byte_order_mark_line_ends_of_windows_and_no_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = CHAT.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + data)
    assert rows_of(path, tmp_path) == CHAT_ROWS


@pytest.mark.parametrize("batch_blocks", [1, 5, 1000])
def test_batches_do_not_show(
    batch_blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake, "BATCH_BLOCKS", batch_blocks)
    assert rows_of(CHAT, tmp_path) == CHAT_ROWS


lists = st.lists(st.integers(0, 3), min_size=1, max_size=6)
logs = st.lists(st.tuples(st.integers(1, 512), lists), min_size=1, max_size=25)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(log=logs)
def test_any_log_gives_what_the_definition_gives(
    log: list[tuple[int, list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake, "BATCH_BLOCKS", 7)
    requests = [(512 * (len(ids) - 1) + last, ids) for last, ids in log]
    assert rows_of(write(tmp_path / "log", requests), tmp_path) == brute_force(requests)


def test_prefixes_are_named_by_their_blocks_and_by_nothing_else() -> None:
    named = prefixes([[1, 2, 3], [1, 3], [2, 1], [1, 2], [-(2**63), 2**63 - 1]])
    names = list(zip(named.high.tolist(), named.low.tolist(), strict=True))
    assert names[0] == names[3] == names[7]  # 1
    assert names[1] == names[8]  # 1 2
    assert len(set(names)) == len(names) - 3
    assert not set(named.high.tolist()) & set(named.low.tolist())


@pytest.mark.parametrize("name", bad_names("mooncake"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("mooncake", name, tmp_path, monkeypatch)


@needs_shared
def test_the_samples_give_the_rows_of_their_mapping(tmp_path: Path) -> None:
    rows = rows_of(SHARED / "mooncake" / "conversation_multiturn.jsonl", tmp_path)
    assert len(rows) == 100
    assert rows[0] == ("mc-0", 0, 0, 2290)
    assert rows[13][:2] == ("mc-13", 0)
    assert rows[20] == ("mc-13", 1, 2560, 464)
    assert rows[26][2:] == (1901, 1)
    # Chains of the same second block, as the sample's own notes list them.
    notes = json.loads((SHARED / "mooncake" / "conversation_multiturn.rows.json").read_text())
    chains = notes["chains_keyed_by_hash_ids_1"].values()
    position = {row: at for at, row in enumerate(notes["source_row_numbers_zero_based"])}
    tasks: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        tasks.setdefault(row[0], []).append(number)
    assert sorted(tasks.values()) == sorted([position[row] for row in chain] for chain in chains)


@needs_shared
@pytest.mark.parametrize("name", ["conversation_first200", "synthetic_first130"])
def test_the_other_samples_give_what_the_definition_gives(name: str, tmp_path: Path) -> None:
    path = SHARED / "mooncake" / f"{name}.jsonl"
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    expected = brute_force([(row["input_length"], row["hash_ids"]) for row in requests])
    assert rows_of(path, tmp_path) == expected


def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python holds, the check of the written trace included; DuckDB has a limit of its own."""
    monkeypatch.setattr(mooncake, "BATCH_BLOCKS", 1 << 12)
    monkeypatch.setattr(scratch, "FETCH_ROWS", 500)

    def peak_bytes(rows: int) -> int:
        requests = [
            (512 * (2 + n % 20), [*range(n // 20 * 100, n // 20 * 100 + 1 + n % 20), 10**7 + n])
            for n in range(rows)
        ]
        source = write(tmp_path / f"{rows}.jsonl", requests)
        del requests
        tracemalloc.start()
        try:
            made = import_trace(source, tmp_path / "trace.jsonl", Options(), SilentProgress())
            assert made.steps == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(100)  # what is imported and compiled once
    short, long = peak_bytes(10_000), peak_bytes(30_000)
    assert long - short < 20_000 * 50

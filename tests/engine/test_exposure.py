"""Who can reach the server, what a run reaches, and that its key is written nowhere."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb
import pytest
import requests

from experiment.paths import ROOT
from experiment.server import Server
from tests.engine.test_kill_and_resume import invoke, servers_of, wait_for

ENDPOINTS = [
    *(("GET", path) for path in ("/props", "/slots", "/metrics", "/lora-adapters")),
    *(
        ("POST", path)
        for path in (
            *("/completion", "/completions", "/v1/completions", "/chat/completions"),
            *("/v1/chat/completions", "/v1/messages", "/v1/responses", "/infill", "/props"),
            *("/tokenize", "/detokenize", "/apply-template", "/embedding", "/embeddings"),
            *("/v1/embeddings", "/rerank", "/reranking", "/v1/rerank", "/lora-adapters"),
            *("/slots/0?action=save", "/slots/0?action=erase", "/models/load", "/models/unload"),
        )
    ),
]

KEYS = [None, "", "wrong", "Bearer wrong", "Bearer", "Bearer ", "Basic Og=="]


def listening(pid: int) -> set[str]:
    """Local addresses, in the kernel's hexadecimal, at which a process takes connections."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        name = str(entry.readlink())
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                found.add(f"{table} {fields[1].split(':')[0]}")
    return found


def test_the_server_listens_on_loopback_alone(server: Server) -> None:
    assert listening(server.pid) == {"tcp 0100007F"}  # 127.0.0.1


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_nothing_is_done_without_the_key(method: str, path: str, server: Server) -> None:
    for key in KEYS:
        headers = {} if key is None else {"Authorization": key}
        reply = requests.request(
            method, server.client.url + path, json={"prompt": "x"}, headers=headers, timeout=30
        )
        assert reply.status_code == 401, (key, reply.text)
        assert "timings" not in reply.text
    server.check()


def test_what_is_open_to_all_tells_no_prompt_and_no_key(server: Server) -> None:
    key = str(server.client._session.headers["Authorization"]).removeprefix("Bearer ")
    for path in ("/health", "/v1/health", "/models", "/v1/models", "/"):
        reply = requests.get(server.client.url + path, timeout=30)
        assert reply.status_code in (200, 404)
        assert key not in reply.text
        assert "slots" not in reply.text


# --- one run, without any network, whose key is then looked for everywhere ---

OWN_NETWORK = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
PROGRAM = ROOT / "tests" / "faults" / "own_network.py"


def isolated() -> list[str]:
    """What starts a program in a network of its own; nothing where that is not allowed."""
    if shutil.which("unshare") is None:
        return []
    allowed = subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0
    return OWN_NETWORK if allowed else []


def key_of(pid: int) -> bytes:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return b"".join(item[14:] for item in environment if item.startswith(b"LLAMA_API_KEY="))


class Whole:
    """A run that was made without network, and what was seen of it."""

    def __init__(self, results: Path, key: bytes, output: bytes, asked: str) -> None:
        self.results = results
        self.key = key
        self.output = output
        self.asked = asked
        (self.folder,) = results.iterdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    scratch = tmp_path_factory.mktemp("exposed")
    build = invoke(tmp_path_factory.mktemp("none"), "build")
    _, errors = build.communicate(timeout=3000)
    assert build.returncode == 0, errors
    results, log = scratch / "results", scratch / "asked.txt"
    run = subprocess.Popen(
        [
            *isolated(),
            *(sys.executable, PROGRAM, log, "invoke", "--search-root", ROOT),
            *("run", "--engine=native", "--rounds=1"),
        ],
        env=os.environ
        | {
            "EXPERIMENT_RESULTS_DIR": str(results),
            "EXPERIMENT_SCHEDULE__MAX_ROUNDS": "1",
            "TMPDIR": str(scratch),  # where the lock lies that keeps other runs away
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert wait_for(lambda: servers_of(results) or run.poll() is not None, 120)
    servers = servers_of(results)
    assert len(servers) == 1, run.communicate()
    (server,) = servers
    assert wait_for(lambda: key_of(server), 10)  # before its exec it has the driver's environment
    key = key_of(server)
    assert key not in Path(f"/proc/{server}/cmdline").read_bytes()
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output.decode()
    return Whole(results, key, output, log.read_text() if log.exists() else "")


def test_a_run_asks_nothing_of_the_network(whole: Whole) -> None:
    assert whole.asked == ""
    assert b"Results: " in whole.output


@pytest.mark.skipif(not isolated(), reason="needs the right to make a network namespace")
def test_a_run_needs_no_network(whole: Whole) -> None:
    with duckdb.connect(str(whole.folder / "results.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT status FROM run").fetchall() == [("finished",)]


def test_the_key_is_in_no_file_of_the_results(whole: Whole) -> None:
    assert len(whole.key) == 32
    assert whole.key not in whole.output
    files = [path for path in whole.results.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".duckdb", ".json", ".jsonl", ".log", ".html"}
    assert [path for path in files if whole.key in path.read_bytes()] == []
    # A database may pack its texts, so they are looked at as texts too.
    with duckdb.connect(str(whole.folder / "results.duckdb"), read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        assert len(tables) >= 8
        for (table,) in tables:
            rows = connection.execute(f"FROM {table}").fetchall()
            assert whole.key.decode() not in str(rows)


def test_the_key_is_in_no_archive(whole: Whole, tmp_path: Path) -> None:
    archive = tmp_path / "run.tar.gz"
    packing = invoke(whole.results, "handoff", f"--run={whole.folder.name}", f"--to={archive}")
    _, errors = packing.communicate(timeout=300)
    assert packing.returncode == 0, errors
    with gzip.open(archive) as packed:
        assert whole.key not in packed.read()
    with tarfile.open(archive) as opened:
        assert sum(member.isfile() for member in opened) > 50

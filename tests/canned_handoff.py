"""A finished run of a user zaphod on the machine betelgeuse-7, whose traces are everywhere."""

from __future__ import annotations

import json
import os
import platform
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.folder import write_json
from experiment.host import HostFacts
from experiment.records import CalibrationRow
from experiment.scrub import Private, Scrubber
from experiment.settings import Settings
from experiment.store import Store
from tests.canned import EXPERTS, ROUNDS, STEPS, canned_measurements, measurement, run_record

USER = "zaphod"
HOST = "betelgeuse-7"
HOME = "/home/zaphod"
CHECKOUT = f"{HOME}/replay"
STAMP = "2026-11-30_02-41-05"
RUN_ID = f"{STAMP}_{HOST}_smoke"
SCRUBBED_ID = f"{STAMP}_host_smoke"
SECRETS = (b"zaphod", b"betelgeuse")

SETTINGS = {
    "cache_dir": f"{CHECKOUT}/.cache",
    "results_dir": f"{CHECKOUT}/results",
    "build": {"pin": "sdist", "source": f"{HOME}/llama.cpp"},
    "model": {"name": "/srv/weights/zaphod/big.gguf", "mmproj": None},
    "container": {"ca_bundle": "/srv/ca/zaphod/ca.pem"},
}
FACTS = HostFacts(
    hostname=HOST,
    system="Linux",
    kernel="6.1.0",
    architecture="x86_64",
    cpu_model="Infinite Improbability 42",
    cpu_flags=["avx2", "fma"],
    cores_total=8,
    cores_affinity=8,
    cores_quota=None,
    cores_usable=4,
    governor=None,
    load_1min=0.5,
    load_5min=0.25,
    load_15min=0.125,
    memory_total_bytes=8 << 30,
    memory_available_bytes=4 << 30,
    memory_limit_bytes=None,
    container=None,
    python_version="3.11.7",
)
DF = f"""\
Filesystem           1K-blocks      Used Available Use% Mounted on
tmpfs                  1000000         0   1000000   0% /dev/shm
/dev/nvme0n1p2       488000000 100000000 388000000  21% /
//nas/{USER}'s share       100        50        50  50% /mnt/share
/dev/mapper/{HOST}-home    200        50       150  25% {HOME}
"""
RAW_HOST = {
    "uname -a": f"Linux {HOST} 6.1.0 #1 SMP x86_64 GNU/Linux\n",
    "lscpu": "CPU(s): 8\nSerial: 123e4567-e89b-12d3-a456-426614174000 52:54:00:12:34:56\n",
    "free -b": "Mem: 8589934592\n",
    "df -k": DF,
}
BUILD: dict[str, Any] = {
    "schema_version": 1,
    "kind": "release",
    "pin": "sdist",
    "commit": "c" * 40,
    "source_digest": "d" * 64,
    "flags": ["-DGGML_NATIVE=ON"],
    "environment_flags": {"CFLAGS": f"-I{HOME}/include -I/opt/{USER}/include"},
    "compilers": {"c": f"gcc 12 (built by {USER} on {HOST})"},
    "jobs": 4,
    "seconds": 360.3,
}
GRAPH = {"n_ctx": 9216, "kv_buffer_mib": 18.0, "compute_buffer_mib": 25.5, "arch": "qwen35moe"}
TRACE = [
    {"trace": {"format": 1, "from": "plain"}},
    {"task_id": "a", "step": 1, "depth": 1000, "new": {"tokens": 5, "screenshot": "shots/1.png"}},
    {"task_id": "a", "step": 2, "depth": 3000, "new": {"screenshot": {"width": 64, "height": 64}}},
    {"task_id": "b", "step": 1, "depth": 500, "new": {"text": "x"}},
]
PICTURE = b"\x89PNG\r\n\x1a\n\0\xff"
ANSWER = {
    "task_id": "a",
    "step": 1,
    "variant": "fake",
    "round": 0,
    "prompt": {"characters": 2291},
    "parameters": {"n_predict": 1, "n_fake_cached": 1000},
    "response": {
        "timings": {"prompt_ms": 276.30899999999997, "prompt_n": 100},
        "content": " UTC",
    },
    "wall_ms": 295.2826270011428,
}
LOG = (
    f"loading model '{CHECKOUT}/.cache/models/nano/model.gguf'\n".encode()
    + f"{USER}@{HOST.upper()}: {HOME}, {HOME}/x.\n".encode()
    + b"not UTF-8: \xff\xfe\n"
)


def canned_folder(
    results: Path, *, run_id: str = RUN_ID, status: str = "finished", **changes: object
) -> Path:
    """A results folder below ``results``; changes are those of the run's record."""
    folder = results / run_id
    values: dict[str, object] = {"run_id": run_id, "settings": SETTINGS, "name": "smoke"}
    with Store.create(folder, run_record(**(values | changes))) as store:  # type: ignore[arg-type]
        store.add_host(FACTS)
        store.set_graph({**GRAPH, "model_path": f"{CHECKOUT}/.cache/model.gguf"})
        store.add_steps(STEPS)
        for row in canned_measurements():
            store.record(row)
        failed = f"no answer within 9 s, see {HOME}/server.log on {HOST}"
        store.record(measurement("b", 1, "fake", 7, None, status="failed", error=failed, depth=500))
        store.add_experts(EXPERTS)
        store.add_calibration([CalibrationRow(0, 512, 2000.0, (1900.0, 2000.0, 2100.0), 1.5)])
        store.add_event("rounds", ROUNDS)
        store.add_event("warning", f"{USER} runs another job on {HOST} in {HOME}")
        store.set_status(status)  # type: ignore[arg-type]
    write_json(folder / "host.json", {"facts": FACTS, "raw": RAW_HOST, "repository": {}})
    write_json(folder / "build.json", BUILD)
    write_json(folder / "graph.json", GRAPH)
    write_json(folder / "sweep.json", {"probe": f"{STAMP}_{HOST}_sweep-probe", "added_s": 0.1})
    (folder / "git_diff.patch").write_text("--- a/x\n+++ b/x\n")
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    (folder / "shots").mkdir()
    (folder / "shots" / "1.png").write_bytes(PICTURE)
    raw = folder / "raw"
    raw.mkdir()
    (raw / "000001_fake_0.json").write_text(json.dumps(ANSWER, indent=1) + "\n")
    leaky = ANSWER | {"response": {"error": f"cannot open {CHECKOUT}/.cache/état", "n": 1.5}}
    (raw / "000001_fake_1.json").write_text(json.dumps(leaky, indent=1) + "\n")
    (raw / "server.log").write_bytes(LOG)
    (raw / "llama-bench.log").write_bytes(f"$ {CHECKOUT}/.cache/build/bin/llama-bench\n".encode())
    # What a user, another task or a kill leaves in the folder has no business in an archive.
    (folder / "notes.txt").write_text(f"by {USER}")
    (folder / "report.html").write_text(f"by {USER}")
    (raw / "core.1234").write_text(f"by {USER}")
    return folder


def be_zaphod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process run as zaphod on betelgeuse-7."""
    for variable in ("LOGNAME", "SUDO_USER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("USER", USER)
    entry = SimpleNamespace(pw_name=USER, pw_dir=HOME)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: entry)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: entry)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HOST}.example.org")
    assert Path.home() == Path(HOME)
    assert os.environ["HOME"] == HOME


PRIVATE = Private(
    paths={
        HOME: "<home>",
        CHECKOUT: "<repository>",
        f"{CHECKOUT}/.cache": "<cache>",
        f"{CHECKOUT}/results": "<results>",
    },
    users=frozenset({USER}),
    hosts=frozenset({HOST}),
    keeps_host=False,
)
SCRUBBER = Scrubber(PRIVATE)


def settings_of(checkout: Path) -> Settings:
    """Settings of a checkout with the default folders."""
    return Settings(cache_dir=checkout / ".cache", results_dir=checkout / "results")


@contextmanager
def in_use(database: Path) -> Iterator[None]:
    """Have another process write the database."""
    code = "import sys, duckdb; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        try:
            yield
        finally:
            writer.communicate(b"\n")

"""Runs for the tests of the report: one that has everything, and one whose names are an attack."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from canned import measurement, run_record

from experiment.host import HostFacts
from experiment.records import Measurement, StepRecord
from experiment.store import Store

# 2 ms a request, 0.5 ms a token, 1/8192 ms a token and cell: every time below is exact in binary.
A_MS, B_MS, C_MS = 2.0, 0.5, 2.0**-13

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"

HOST: HostFacts = {
    "hostname": "bench-1",
    "system": "Linux",
    "kernel": "6.1",
    "architecture": "x86_64",
    "cpu_model": "Model 5 & <b>more</b>",
    "cpu_flags": ["avx2", "fma"],
    "cores_total": 8,
    "cores_affinity": 8,
    "cores_quota": None,
    "cores_usable": 6,
    "governor": "performance",
    "load_1min": 0.25,
    "load_5min": 0.5,
    "load_15min": 1.0,
    "memory_total_bytes": 3 * 2**30,
    "memory_available_bytes": 2 * 2**30,
    "memory_limit_bytes": None,
    "container": None,
    "python_version": "3.11.7",
}

BUILD = {
    "pin": "sdist",
    "commit": "c0ffee",
    "patches": [{"name": "0001-first.patch", "sha256": "aa"}, {"name": "0002.patch"}],
    "flags": ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"],
    "environment_flags": {},
    "compilers": {"c": "cc 12", "cxx": "c++ 12"},
    "assertions": {"on": False},
}


def whole_run(folder: Path, task: str = "mail", status: str = "finished") -> Path:
    """Two tasks of two steps with every variant, six rounds, baselines, and all records.

    ``fake`` and ``control`` take T(new, L) and 3 ms of encoding, ``restored`` the same, ``full``
    eight times as long, and ``arithmetic`` says T(new, L) + 25 %.
    """
    places = {(task, 0): (1024, 64), (task, 1): (4096, 64), ("files", 0): (1024, 256)}
    places["files", 1] = (8192, 256)
    with Store.create(folder, run_record(settings={"seed": 1, "server": {"batch": 512}})) as store:
        store.add_steps(
            StepRecord(
                task_id,
                step,
                depth,
                line=line,
                baseline_prefill_s=1.0,
                baseline_decode_s=2.0,
                baseline_exec_s=0.5,
            )
            for line, ((task_id, step), (depth, _)) in enumerate(places.items(), start=1)
        )
        for (task_id, step), (depth, new) in places.items():
            for row in _measured(task_id, step, depth, new):
                store.record(row)
        store.add_host(HOST)
        store.set_graph({"n_ctx": 9216, "flash_attn": "enabled", "can_fake_prefix": True})
        store.add_event("retry", f"again: {task}", task_id=task, step=1, variant="fake", round=2)
        store.set_status(status)  # type: ignore[arg-type]
    (folder / "build.json").write_text(json.dumps(BUILD), encoding="utf-8")
    repository = {"repository": {"commit": "feedbeef", "dirty": False}}
    (folder / "host.json").write_text(json.dumps(repository), encoding="utf-8")
    return folder


def _measured(task_id: str, step: int, depth: int, new: int) -> Iterable[Measurement]:
    ms = A_MS + B_MS * new + C_MS * new * depth
    for number in range(6):
        for variant, install_ms in (("fake", 0.25), ("control", 0.25), ("restored", 2.5)):
            yield measurement(
                task_id,
                step,
                variant,  # type: ignore[arg-type]
                number,
                ms + 3 + install_ms,
                install_ms,
                3.0,
                depth=depth,
                prompt_n=new,
                n_kv=depth + new,
            )
    more = {"depth": depth, "prompt_n": depth + new}
    yield measurement(task_id, step, "full", 0, 8 * (ms + 3), 0.0, 3.0, **more)
    yield measurement(task_id, step, "arithmetic", 0, 1.25 * ms + 3, 0.0, 3.0, depth=depth)

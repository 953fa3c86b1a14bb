"""A whole handoff archive of a small run, whose rows and raw files are made from the same figures.

The rows are written out here, column by column, and not by the code that a run makes them with.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from archives import NAME
from canned_handoff import BUILD, FACTS, GRAPH, RAW_HOST

from experiment import archive, archive_manifest, claims, crate, export, handoff_guide, report
from experiment.database import SCHEMA_VERSION, connect
from experiment.folder import write_json
from experiment.patches import load_series
from experiment.progress import SilentProgress
from experiment.records import (
    CalibrationRow,
    ExpertRow,
    Measurement,
    RunRecord,
    Status,
    StepRecord,
    Variant,
)
from experiment.settings import Settings
from experiment.store import Store

RUN_ID = "2026-11-30_02-41-05_host_smoke"
BEGAN = datetime(2026, 11, 30, 2, 41, 5, tzinfo=UTC)
ENDED = datetime(2026, 11, 30, 2, 51, 5, 250_000, tzinfo=UTC)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = b"what stands for the source\n"
SOURCE_NAME = "llama_cpp_python-0.3.26.tar.gz"
PATCH = """\
Description: says b
Origin: own
Forwarded: no
---
diff --git a/file b/file
--- a/file
+++ b/file
@@ -1 +1 @@
-a
+b
"""
PINS = f"""\
[sdist]
kind = "sdist"
package = "llama-cpp-python"
version = "0.3.26"
sha256 = "{hashlib.sha256(SOURCE).hexdigest()}"
subdirectory = "vendor/llama.cpp"
commit = "{BUILD["commit"]}"
"""


@dataclass(frozen=True)
class Shape:
    """A step of the trace and what decoding it looks like."""

    task_id: str
    step: int
    line: int
    depth: int
    ubatches: tuple[tuple[int, int], ...]  # new tokens, KV columns read

    @property
    def new(self) -> int:
        return sum(tokens for tokens, _ in self.ubatches)


SHALLOW = Shape("a", 1, 1, 1024, ((100, 1280),))
DEEP = Shape("a", 2, 2, 3072, ((128, 3328), (72, 3328)))
REFUSED = Shape("b", 1, 3, 500, ((50, 768),))

NODES = 700
KIND = {"fake": "fake", "control": "fake", "restored": "state", "full": "none"}

# prompt_ms, install_ms, encode_ms of each round; the warm-up's is -1
TIMES: dict[tuple[Shape, Variant], dict[int, tuple[float, float, float]]] = {
    (SHALLOW, "fake"): {
        -1: (500.0, 1.0, 20.0),
        0: (110.0, 10.0, 20.0),
        1: (120.0, 10.0, 20.0),
        2: (130.0, 10.0, 20.0),
    },
    (SHALLOW, "control"): {
        0: (112.0, 10.0, 20.0),
        1: (120.5, 10.0, 20.0),
        2: (124.0, 10.0, 20.0),
    },
    (SHALLOW, "restored"): {
        0: (105.0, 5.0, 20.0),
        1: (105.0, 5.0, 20.0),
        2: (130.0, 5.0, 20.0),
    },
    (SHALLOW, "full"): {0: (1100.0, 0.0, 20.0)},
    (DEEP, "fake"): {0: (202.0, 2.0, 0.0), 1: (242.0, 2.0, 0.0)},
    (DEEP, "control"): {0: (192.0, 2.0, 0.0), 1: (254.0, 2.0, 0.0)},
    (DEEP, "restored"): {0: (256.0, 6.0, 0.0), 1: (246.0, 6.0, 0.0)},
    (DEEP, "full"): {0: (880.0, 0.0, 0.0)},
}

# 2,048 and 1,024 tokens/s, as nanoseconds of 512 tokens: 1 / 2048 s a token at L = 0, twice that at
# L = 4096. Between them 0.75 / 2048 + 0.25 / 1024 at 1024, 0.25 / 2048 + 0.75 / 1024 at 3072.
BENCH_NS = {0: (250_000_000, 240_000_000, 260_000_000), 4096: (500_000_000,) * 3}
ARITHMETIC_MS = {SHALLOW: 61.03515625 + 20.0, DEEP: 170.8984375}

EXPERTS: dict[tuple[Shape, Variant], list[list[int]]] = {
    (SHALLOW, "fake"): [[5, 7]],
    (SHALLOW, "restored"): [[6, 9]],
}


def timings(shape: Shape, variant: Variant, times: tuple[float, float, float]) -> dict[str, Any]:
    """What the server answers."""
    prompt_ms, install_ms, encode_ms = times
    full = variant == "full"
    tiled = KIND[variant] == "fake"
    ubatches = ((shape.depth, shape.depth), *shape.ubatches) if full else shape.ubatches
    return {
        "cache_n": 0 if full else shape.depth,
        "prompt_n": shape.depth + shape.new if full else shape.new,
        "prompt_ms": prompt_ms,
        "encode_ms": encode_ms,
        "prefix": {
            "kind": KIND[variant],
            "n": 0 if full else shape.depth,
            "fill": "tile" if tiled else "none",
            "fill_ms": 0.25 if tiled else 0.0,
            "install_ms": install_ms,
            "size_bytes": 4096 if variant == "restored" else 0,
            "prime_ms": 0.0,
            "sampler_ms": 0.75,
            "pos_min": 0,
            "pos_max": shape.depth - 1,
            "n_kv": ubatches[-1][1],
            "kv_bytes": 1 << 20,
            "ubatches": [
                {"n_tokens": tokens, "n_kv": n_kv, "n_nodes": NODES} for tokens, n_kv in ubatches
            ],
        },
    }


def row(
    shape: Shape, variant: Variant, number: int, times: tuple[float, float, float], at: datetime
) -> Measurement:
    """The row of that answer."""
    prompt_ms, install_ms, encode_ms = times
    full = variant == "full"
    tiled = variant in ("fake", "control")
    ubatches = ((shape.depth, shape.depth), *shape.ubatches) if full else shape.ubatches
    status: Status = "warmup" if number < 0 else "ok"
    return Measurement(
        task_id=shape.task_id,
        step=shape.step,
        variant=variant,
        round=number,
        depth=shape.depth,
        status=status,
        started_at=at,
        position_in_round=0,
        cache_n=0 if full else shape.depth,
        prompt_n=shape.depth + shape.new if full else shape.new,
        prompt_ms=prompt_ms,
        install_ms=install_ms,
        encode_ms=encode_ms,
        wall_ms=prompt_ms + 5.5,
        prime_ms=0.0,
        size_bytes=4096 if variant == "restored" else 0,
        pos_min=0,
        pos_max=shape.depth - 1,
        n_kv=ubatches[-1][1],
        fake_fill="tile" if tiled else None,
        fill_ms=0.25 if tiled else None,
        ubatch_tokens=tuple(tokens for tokens, _ in ubatches),
        ubatch_n_kv=tuple(n_kv for _, n_kv in ubatches),
        graph_nodes=(NODES,) * len(ubatches),
        kv_bytes=1 << 20,
        sampler_ms=0.75,
        other_cores=0.1,
        stolen_cores=0.0,
        throttled=0,
        raw=raw_name(shape, variant, number),
    )


def raw_name(shape: Shape, variant: Variant, suffix: int | str) -> str:
    return f"{shape.line:06d}_{variant}_{suffix}.json"


def raw(shape: Shape, variant: Variant, number: int | None, body: Mapping[str, Any]) -> bytes:
    """The raw file of an answer."""
    record: dict[str, Any] = {"task_id": shape.task_id, "step": shape.step, "variant": variant}
    if number is not None:
        record["round"] = number
    record["prompt"] = {"sha256": hashlib.sha256(shape.task_id.encode()).hexdigest()}
    record["parameters"] = {"n_predict": 1}
    record["response"] = {"timings": dict(body)}
    record["wall_ms"] = body["prompt_ms"] + 5.5
    return (json.dumps(record, indent=1) + "\n").encode()


def raw_files() -> dict[str, bytes]:
    """All files of ``raw/``."""
    files = {
        raw_name(shape, variant, number): raw(
            shape, variant, number, timings(shape, variant, times)
        )
        for (shape, variant), rounds in TIMES.items()
        for number, times in rounds.items()
    }
    for (shape, variant), counts in EXPERTS.items():
        body = timings(shape, variant, (90.0, 1.0, 20.0)) | {"experts": counts}
        files[raw_name(shape, variant, "experts")] = raw(shape, variant, None, body)
    log = b""
    for depth, samples in BENCH_NS.items():
        tests = [{"n_prompt": 512, "n_gen": 0, "n_depth": depth, "samples_ns": list(samples)}]
        log += f"$ llama-bench -d {depth}\nload: ok\n{json.dumps(tests, indent=2)}\n".encode()
    return files | {"llama-bench.log": log, "server.log": b"listening\n"}


def trace_text() -> str:
    rows = [
        {
            "task_id": shape.task_id,
            "step": shape.step,
            "depth": shape.depth,
            "new": {"tokens": 40},
            "baseline": {"prefill_s": 2.0, "decode_s": 3.0, "exec_s": 4.0},
        }
        for shape in (SHALLOW, DEEP, REFUSED)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def results(folder: Path, patch_digest: str, diff: str, patches: list[dict[str, str]]) -> Path:
    """A results folder of that run."""
    folder.mkdir(parents=True)
    (folder / "trace.jsonl").write_text(trace_text())
    record = RunRecord(
        id=RUN_ID,
        name="smoke",
        started=BEGAN,
        engine="native",
        pin="sdist",
        model="nano",
        settings=json.loads(Settings().model_dump_json()),
        patch_digest=patch_digest,
        model_digest="e" * 64,
        trace_digest=hashlib.sha256(trace_text().encode()).hexdigest(),
    )
    with Store.create(folder, record) as store:
        store.add_host(FACTS)
        store.set_graph({**GRAPH, "can_fake_prefix": True})
        store.add_steps(
            StepRecord(
                shape.task_id,
                shape.step,
                shape.depth,
                line=shape.line,
                new_text_tokens=40,
                baseline_prefill_s=2.0,
                baseline_decode_s=3.0,
                baseline_exec_s=4.0,
            )
            for shape in (SHALLOW, DEEP, REFUSED)
        )
        at = BEGAN
        for (shape, variant), rounds in TIMES.items():
            for number, times in rounds.items():
                at += timedelta(seconds=1)
                store.record(row(shape, variant, number, times, at))
        for number in range(2):
            store.record(
                Measurement(
                    "b", 1, "fake", number, 500, "refused", at, 0, error="L = 500 is too small"
                )
            )
        for (shape, variant), counts in EXPERTS.items():
            store.add_experts(
                ExpertRow(
                    shape.task_id,
                    shape.step,
                    variant,  # type: ignore[arg-type]
                    "tile" if variant == "fake" else "none",
                    ubatch,
                    layer,
                    distinct,
                )
                for ubatch, layers in enumerate(counts)
                for layer, distinct in enumerate(layers)
            )
        store.add_calibration(
            CalibrationRow(
                depth,
                512,
                1e9 * 512 / sorted(samples)[1],
                tuple(1e9 * 512 / ns for ns in samples),
                30.0,
            )
            for depth, samples in BENCH_NS.items()
        )
        for shape, prompt_ms in ARITHMETIC_MS.items():
            encode_ms = TIMES[(shape, "fake")][0][2]
            store.record(
                Measurement(
                    shape.task_id,
                    shape.step,
                    "arithmetic",
                    0,
                    shape.depth,
                    "ok",
                    at,
                    prompt_n=shape.new,
                    prompt_ms=prompt_ms,
                    install_ms=0.0,
                    encode_ms=encode_ms,
                )
            )
        store.add_event("rounds", "3 rounds")
        store.set_status("finished")
    change_database(folder, f"UPDATE run SET finished = '{ENDED:%Y-%m-%d %H:%M:%S.%f}'")
    (folder / "raw").mkdir()
    for name, content in raw_files().items():
        (folder / "raw" / name).write_bytes(content)
    state = {"commit": COMMIT, "dirty": False}
    write_json(folder / "host.json", {"facts": FACTS, "raw": RAW_HOST, "repository": state})
    write_json(folder / "build.json", BUILD | {"patches": patches})
    write_json(folder / "graph.json", {**GRAPH, "can_fake_prefix": True})
    (folder / "git_diff.patch").write_text(diff)
    return folder


def change_database(folder: Path, *statements: str) -> None:
    """Run statements on the database in ``folder``."""
    with connect(folder / "results.duckdb", read_only=False) as connection:
        for statement in statements:
            connection.execute(statement)


@dataclass
class Handoff:
    """The files of an archive in a folder, to be changed and packed again and again."""

    top: Path
    executables: tuple[str, ...] = ("repository/inv",)
    facts: archive.Facts = field(
        default_factory=lambda: archive.Facts(NAME, RUN_ID, ENDED, schema_version=SCHEMA_VERSION)
    )

    def path(self, name: str) -> Path:
        return self.top / name

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        before = self.path(name).read_bytes()
        after = change(before)
        assert after != before, f"{name} is as it was"
        self.path(name).write_bytes(after)

    def files(self) -> dict[str, Path | bytes]:
        paths = sorted(path for path in self.top.rglob("*") if path.is_file())
        return {path.relative_to(self.top).as_posix(): path for path in paths}

    def remake(self) -> None:
        """Make everything anew that is made from the results, as a forger would."""
        made = self.top / "results"
        export.export(made, self.top / "export", ("parquet", "jsonl"))
        report.write(made, self.top / "report.html")
        claimed = claims.make(made)
        self.path("claims.toml").write_text(claims.write(claimed))
        self.remake_guide()

    def remake_guide(self) -> None:
        """Make only the guide anew; its size follows from the files."""
        text = self.path("claims.toml").read_text()
        packed = handoff_guide.Packed(
            name=NAME,
            commit=COMMIT,
            source=f"source/{SOURCE_NAME}",
            image="image/image.tar" if "image/image.tar" in self.files() else None,
            size_bytes=sum(
                path.stat().st_size  # type: ignore[union-attr]
                for name, path in self.files().items()
                if name not in ("REPRODUCE.md", crate.METADATA)
            ),
        )
        guide = handoff_guide.render(self.top / "results", packed, claims.read(text, "claims.toml"))
        self.path("REPRODUCE.md").write_text(guide)

    def remake_crate(self) -> None:
        parts = {
            name: crate.Part(hashlib.sha256(data).hexdigest(), len(data))
            for name, path in self.files().items()
            if name != crate.METADATA
            for data in [Path(path).read_bytes()]  # type: ignore[arg-type]
        }
        about = crate.Run(
            name=NAME,
            run_id=RUN_ID,
            description="a run",
            command="a command",
            started=BEGAN,
            finished=ENDED,
            commit=COMMIT,
            llama_cpp=BUILD["commit"],
            source=f"source/{SOURCE_NAME}",
            image=None,
        )
        self.path(crate.METADATA).write_bytes(crate.make(about, parts))

    def manifest(self) -> archive.Manifest:
        """What an archive of the files as they are now lists."""
        entries = [
            archive.Entry(
                path=name,
                sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data),
                executable=name in self.executables,
            )
            for name, path in self.files().items()
            for data in [Path(path).read_bytes()]  # type: ignore[arg-type]
        ]
        return archive_manifest.make(self.facts, entries)

    def pack(self, file: Path, *, honest_crate: bool = True) -> Path:
        """Write the archive; the manifest, and unless told otherwise the crate, are made to fit."""
        if honest_crate:
            self.remake_crate()
        archive.write(
            file, self.facts, self.files(), executables=self.executables, progress=SilentProgress()
        )
        return file


def handoff(top: Path) -> Handoff:
    """The files of a right archive, which are made once and copied."""
    shutil.copytree(_made(), top)
    return Handoff(top)


def begun(top: Path) -> Handoff:
    """The files of it that are not made from the results."""
    shutil.copytree(_begun(), top)
    return Handoff(top)


def run_folder(folder: Path) -> Path:
    """Only the results of it."""
    shutil.copytree(_begun() / "results", folder)
    return folder


@lru_cache
def _made() -> Path:
    top = _new_folder() / "top"
    shutil.copytree(_begun(), top)
    Handoff(top).remake()
    return top


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="canned-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@lru_cache
def _begun() -> Path:
    """Everything that is not made from the results."""
    top = _new_folder() / "top"
    repository = top / "repository"
    (repository / "patches").mkdir(parents=True)
    (repository / "patches" / "series").write_text("0001-b.patch\n")
    (repository / "patches" / "0001-b.patch").write_text(PATCH)
    (repository / "docker").mkdir()
    (repository / "docker" / "pins.toml").write_text(PINS)
    (repository / "inv").write_text("#!/bin/sh\n")
    series = load_series(repository / "patches")
    patches = [{"name": patch.name, "sha256": patch.sha256} for patch in series.patches]
    results(top / "results", series.digest, series.as_diff(), patches)
    state = {"commit": COMMIT, "dirty": False, "patch_sha256": None}
    write_json(top / "repository.json", state)
    (top / "source").mkdir()
    (top / "source" / SOURCE_NAME).write_bytes(SOURCE)
    record = {
        "pin": "sdist",
        "kind": "sdist",
        "commit": BUILD["commit"],
        "file": SOURCE_NAME,
        "sha256": hashlib.sha256(SOURCE).hexdigest(),
    }
    write_json(top / "source.json", record)
    return top

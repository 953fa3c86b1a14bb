"""What stands for an engine in the tests of the sweep: runs that follow a law, in a database."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from canned import measurement

from experiment.calibrate import chunks_at
from experiment.host import HostFacts, host_facts
from experiment.progress import Progress
from experiment.records import CalibrationRow, ExpertRow, RunRecord, StepRecord, Variant
from experiment.scope import ALL, Asked
from experiment.settings import Settings, load_settings
from experiment.store import Store
from experiment.trace import Step, Trace

TAIL = 5
IMAGE_TOKENS, ENCODE_MS = 500, 50.0
"""Of any screenshot."""
A_MS, B_MS, C_MS = 3.0, 0.5, 4e-5
PRIME_MS = 0.4  # a token of a prefix, at depth 0
OVERHEAD_MS, OVERHEAD_MS_PER_CELL = 5.0, 1e-3
RESTORE_MS_PER_CELL = 2e-3
STATE_BYTES, STATE_BYTES_PER_CELL = 1 << 20, 4096
BENCH_START_S = 1.5
BENCH_SLOWER = 1.25
LOG = "0.1 I print_info: file size   = 300.00 MiB (4.5 BPW)\nprint_info: file size   = 1.00 GiB\n"


def law_ms(new: int, depth: int) -> float:
    return A_MS + B_MS * new + C_MS * new * depth


def prefix_ms(depth: int) -> float:
    return PRIME_MS * depth + C_MS / 2 * depth**2


@dataclass
class FakeEngine:
    """Answers every cell by the law. ``ratio`` is what fake takes against it, by round and cell."""

    name: str = "native"
    reason: str = "a test"
    available_gib: float = 16.0
    limit_gib: float | None = None
    refuses: str = ""
    experts: bool = True
    ratios: tuple[float, ...] = (1.0, 1.0, 1.0)
    runs: list[tuple[str, Settings, list[Step]]] = field(default_factory=list)
    trace_files: list[Path] = field(default_factory=list)

    def build(self, settings: Settings, progress: Progress) -> str:
        raise AssertionError

    def resume(self, settings: Settings, folder: Path, progress: Progress) -> Path:
        raise AssertionError

    def run(
        self,
        settings: Settings,
        trace: Trace,
        name: str,
        progress: Progress,
        asked: Asked = ALL,
    ) -> Path:
        assert asked == ALL
        assert trace.path.is_file()
        self.trace_files.append(trace.path)
        self.runs.append((name, settings, list(trace.steps)))
        folder = settings.results_dir / f"2026-11-30_02-41-0{len(self.runs)}_host_{name}"
        record = RunRecord(
            folder.name,
            name,
            datetime.now(UTC),
            "native",
            "sdist",
            "nano",
            json.loads(settings.model_dump_json()),
        )
        with Store.create(folder, record) as store:
            store.add_host(self._facts())
            store.set_graph({"n_ctx": 4096, "kv_buffer_mib": 16.0, "compute_buffer_mib": 24.0})
            (folder / "raw").mkdir()
            (folder / "raw" / "server.log").write_text(LOG)
            store.add_steps(
                StepRecord(
                    s.task_id,
                    s.step,
                    s.depth,
                    line=s.line,
                    new_text_tokens=s.new_tokens or 0,
                    image_width=s.screenshot.width if s.screenshot else None,
                    image_height=s.screenshot.height if s.screenshot else None,
                )
                for s in trace.steps
            )
            with store._transaction():  # a commit for each measurement takes most of the time
                for item in trace.steps:
                    self._measure(store, item, settings)
            if self.experts and settings.schedule.structure_steps:
                for item in trace.steps:
                    key = (item.task_id, item.step)
                    store.add_experts(
                        [
                            ExpertRow(*key, "fake", "tile", 0, 0, 90),
                            ExpertRow(*key, "restored", "none", 0, 0, 100),
                        ]
                    )
            self._calibrate(store, settings, trace.steps)
            store.set_status("finished")
        return folder

    def _facts(self) -> HostFacts:
        facts = host_facts()
        facts["memory_available_bytes"] = int(self.available_gib * 2**30)
        facts["memory_limit_bytes"] = (
            None if self.limit_gib is None else int(self.limit_gib * 2**30)
        )
        return facts

    def _measure(self, store: Store, step: Step, settings: Settings) -> None:
        if self.refuses:
            store.record(
                measurement(
                    step.task_id,
                    step.step,
                    "fake",
                    0,
                    None,
                    None,
                    None,
                    "refused",
                    error=self.refuses,
                    depth=step.depth,
                )
            )
            return
        seen = step.screenshot is not None
        new = (step.new_tokens or 0) + TAIL + IMAGE_TOKENS * seen
        encode_ms = ENCODE_MS * seen
        can_restore = step.depth <= settings.schedule.restored_max_depth
        variants: tuple[Variant, ...] = ("fake", "control", "restored")
        for variant in variants if can_restore else variants[:2]:
            restored = variant == "restored"
            install_ms = RESTORE_MS_PER_CELL * step.depth if restored else 0.5
            for number in range(-1, settings.schedule.rounds):
                if number < 0 and variant == "control":
                    continue
                ratio = self.ratios[number % len(self.ratios)] if variant == "fake" else 1.0
                lm_ms = law_ms(new, step.depth) * ratio
                wall_ms = lm_ms + encode_ms + install_ms
                wall_ms += OVERHEAD_MS + OVERHEAD_MS_PER_CELL * step.depth
                prime_ms = self._prime_ms(store, step) if restored and number < 0 else 0.0
                store.record(
                    measurement(
                        step.task_id,
                        step.step,
                        variant,
                        number,
                        # The first request of all is slow, as it is in truth.
                        lm_ms + encode_ms + install_ms + (1000 if number < 0 else 0),
                        install_ms,
                        encode_ms,
                        status="warmup" if number < 0 else "ok",
                        depth=step.depth,
                        prompt_n=new,
                        wall_ms=wall_ms + prime_ms,
                        prime_ms=prime_ms,
                        size_bytes=STATE_BYTES + STATE_BYTES_PER_CELL * step.depth
                        if restored
                        else 0,
                        n_kv=step.depth + 256,
                        fake_fill=None if restored else "tile",
                        ubatch_tokens=(new,),
                        ubatch_n_kv=(step.depth + 256,),
                        graph_nodes=(700,),
                        sampler_ms=0.25,
                        kv_bytes=1000 * (step.depth + 256),
                    )
                )

    def _prime_ms(self, store: Store, step: Step) -> float:
        """From the deepest prefix so far, as the server does it."""
        _, _, steps = self.runs[-1]
        before = max((s.depth for s in steps[: steps.index(step)]), default=0)
        return prefix_ms(step.depth) - prefix_ms(before) if step.depth > before else 0.0

    def _calibrate(self, store: Store, settings: Settings, steps: Iterable[Step]) -> None:
        if self.refuses:
            return
        repetitions = settings.calibration.repetitions
        content = [(step.depth, (step.new_tokens or 0) + TAIL) for step in steps]
        for depth, chunks in chunks_at(settings, content).items():
            samples_ms = {chunk: BENCH_SLOWER * law_ms(chunk, depth) for chunk in chunks}
            spent_ms = sum(law_ms(c, 0) + repetitions * ms for c, ms in samples_ms.items())
            wall_s = BENCH_START_S + (prefix_ms(depth) + spent_ms) / 1000
            for chunk, ms in samples_ms.items():
                tps = 1000 * chunk / ms
                store.add_calibration(
                    [CalibrationRow(depth, chunk, tps, (tps,) * repetitions, wall_s)]
                )
        # The arithmetic estimate is run's own business: half of fake here, so that it is seen.
        for step in steps:
            new = (step.new_tokens or 0) + TAIL
            store.record(
                measurement(
                    step.task_id,
                    step.step,
                    "arithmetic",
                    0,
                    law_ms(new, step.depth) / 2,
                    0.0,
                    depth=step.depth,
                    prompt_n=new,
                )
            )


def settings_in(folder: Path, **overrides: object) -> Settings:
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings({"results_dir": str(folder), **values}, environ={})

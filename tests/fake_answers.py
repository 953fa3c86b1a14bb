"""What stands for a server's answers to single requests, and for the machine meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment.asking import Asker
from experiment.client import Prompt, Reply
from experiment.load import Load, Sample
from experiment.pauses import PauseMeter
from experiment.prefix import StepPrompt
from experiment.records import Fill, Variant
from experiment.trace import Baseline, Step

DEPTH, NEW, N_KV = 1000, 600, 1792
KINDS: dict[Variant, str] = {
    "fake": "fake",
    "control": "fake",
    "restored": "state",
    "full": "none",
}
VARIANTS: list[Variant] = ["fake", "control", "restored", "full"]


def step(number: int = 3, task_id: str = "t", line: int = 7) -> Step:
    return Step(task_id, number, DEPTH, "tokens", None, 20, None, Baseline(), line)


STEP = step()


def ubatches(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    return [{"n_tokens": tokens, "n_kv": n_kv, "n_nodes": 700} for tokens, n_kv in pairs]


UBATCHES = ubatches((512, 1536), (88, 1792))
FULL_UBATCHES = ubatches((512, 512), (512, 1024), (512, 1536), (64, 1792))


def timings(variant: Variant, **changes: object) -> dict[str, Any]:
    """What the patched server answers when all is well; ``prefix__x`` changes the prefix's x."""
    cached = 0 if variant == "full" else DEPTH
    fabricated = KINDS[variant] == "fake"
    made: dict[str, Any] = {
        "cache_n": cached,
        "prompt_n": DEPTH + NEW - cached,
        "prompt_ms": 70.5,
        "encode_ms": 20.25,
        "prefix": {
            "kind": KINDS[variant],
            "n": cached,
            "fill": "tile" if fabricated else "none",
            "fill_ms": 2.5 if fabricated else 0.0,
            "install_ms": 1.5,
            "size_bytes": 4096,
            "prime_ms": 0.0,
            "sampler_ms": 0.75,
            "pos_min": 0,
            "pos_max": DEPTH - 1,
            "n_kv": N_KV,
            "kv_bytes": 1 << 20,
            "ubatches": FULL_UBATCHES if variant == "full" else UBATCHES,
        },
    }
    for name, value in changes.items():
        inside, _, field = name.partition("__")
        if field:
            made[inside][field] = value
        else:
            made[name] = value
    return made


WALL_MS = 81.75
QUIET = Load(0.25, 0.0, 3)


class FakeClient:
    """Answers with ``answer``, or raises it."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer
        self.sent: list[tuple[Prompt, dict[str, Any]]] = []

    def complete(self, prompt: Prompt, **parameters: Any) -> Reply:
        self.sent.append((prompt, parameters))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Reply(parameters, self.answer, WALL_MS)


class FakeMeter:
    """Two samples, between which lies `QUIET`; only while nothing has been sent, and after."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.sampled: list[int] = []

    def sample(self) -> Sample:
        self.sampled.append(len(self.client.sent))
        second = len(self.sampled) > 1
        return Sample(10.0 + 2 * second, 5.0 + second, 0.0, 1.0 + 0.5 * second, 1.0, 3 * second)


def asker(
    folder: Path,
    answer: dict[str, Any] | Exception,
    *,
    prompt: Prompt | Exception = Prompt("the prompt"),  # noqa: B008 (frozen)
    fill: Fill = "tile",
) -> tuple[Asker, FakeClient, FakeMeter]:
    def prompt_of(step: Step) -> StepPrompt:
        assert step is STEP
        if isinstance(prompt, Exception):
            raise prompt
        return StepPrompt(prompt, DEPTH, 20)

    client = FakeClient(answer)
    meter = FakeMeter(client)
    made = Asker(client, prompt_of, folder, fill, meter, PauseMeter())  # type: ignore[arg-type]
    return made, client, meter

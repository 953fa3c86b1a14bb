"""What model and machine can take: context and memory, by a model's head and by a small server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from canned_costs import TEXT
from canned_steps import step
from gguf import GGUFValueType
from tiny_model import write_vocab

from experiment import limits
from experiment.build import Build
from experiment.errors import ModelError
from experiment.gguf_files import Head, KeyValue
from experiment.host import host_facts
from experiment.limits import COMPUTE_BYTES, context_of, kv_bytes_per_cell, memory_by, memory_of
from experiment.models import ModelFiles
from experiment.progress import SilentProgress
from experiment.settings import Settings, load_settings

GIB = 2**30
LOG = (
    "llama_context: n_ctx         = 512\n"
    "llama_kv_cache:        CPU KV buffer size =    10.00 MiB\n"
    "llama_memory_recurrent:        CPU RS buffer size =     3.00 MiB\n"
    "sched_reserve:        CPU compute buffer size =    24.00 MiB\n"
)


def head(**facts: object) -> Head:
    entries = {
        f"x.{name.replace('__', '.')}": KeyValue(value, GGUFValueType.UINT32)
        for name, value in facts.items()
    }
    return Head(entries, "x", 0)


PLAIN: dict[str, object] = {
    "block_count": 8,
    "attention__head_count_kv": 2,
    "attention__key_length": 128,
    "attention__value_length": 64,
}


def test_bytes_of_a_cell() -> None:
    # Two bytes of 8 layers by 2 heads by 128 + 64 values.
    assert kv_bytes_per_cell(head(**PLAIN)) == 2 * 8 * 2 * 192
    assert kv_bytes_per_cell(head(**PLAIN, full_attention_interval=4)) == 2 * 2 * 2 * 192
    in_each = PLAIN | {"attention__head_count_kv": [0, 0, 4, 0, 0, 0, 4, 0]}
    assert kv_bytes_per_cell(head(**in_each)) == 2 * 8 * 192
    # Without lengths of their own, keys and values are as wide as a head.
    wide = {"block_count": 8, "attention__head_count_kv": 2}
    wide |= {"embedding_length": 1024, "attention__head_count": 8}
    assert kv_bytes_per_cell(head(**wide)) == 2 * 8 * 2 * 256


@pytest.mark.parametrize("lacking", [*PLAIN, "all"])
def test_a_head_that_does_not_tell(lacking: str) -> None:
    told = {} if lacking == "all" else {k: v for k, v in PLAIN.items() if k != lacking}
    assert kv_bytes_per_cell(head(**told)) is None
    assert kv_bytes_per_cell(head(**PLAIN | {"block_count": "eight"})) is None
    assert kv_bytes_per_cell(head(**PLAIN | {"block_count": True})) is None
    assert kv_bytes_per_cell(head(**PLAIN | {"attention__head_count_kv": [-1]})) is None
    # What a file claims costs nothing to be read.
    assert kv_bytes_per_cell(head(**PLAIN | {"block_count": 2**32 - 1})) is not None


def settings(**overrides: object) -> Settings:
    return load_settings({key.replace("__", "."): v for key, v in overrides.items()}, environ={})


def test_context_of_a_file(tmp_path: Path) -> None:
    model = write_vocab(tmp_path / "m.gguf")
    assert context_of(settings(), model) == 77
    assert context_of(settings(server__context=50), model) == 50
    assert context_of(settings(server__context=100), model) == 77
    (tmp_path / "no.gguf").write_bytes(b"no model")
    with pytest.raises(ModelError, match="not a GGUF file"):
        context_of(settings(), tmp_path / "no.gguf")


class SmallServer:
    """Stands for the server that is asked for its memory."""

    started: list[list[str]]

    def __init__(self, program: Path, arguments: list[str], log: Path, **timeouts: float) -> None:
        assert log.parent.is_dir()
        SmallServer.started.append(arguments)

    def __enter__(self) -> SmallServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log_text(self) -> str:
        return LOG


class Machine:
    """A model file of 1,000,000 bytes, and so much memory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = ModelFiles(folder / "m.gguf", folder / "p.gguf", "m", "0" * 64, None)
        for path in (folder / "m.gguf", folder / "p.gguf"):
            path.write_bytes(bytes(500_000))
        self.build = Build("release", folder, *[folder / "x"] * 3, {}, folder / "log")
        self.available, self.limit = 64 * GIB, None
        self.head = head(**PLAIN)
        SmallServer.started = []
        monkeypatch.setattr(limits, "Server", SmallServer)
        monkeypatch.setattr(limits, "read_head", lambda _: self.head)
        monkeypatch.setattr(limits, "host_facts", self.facts)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(host_facts())
        return found | {
            "memory_available_bytes": self.available,
            "memory_limit_bytes": self.limit,
        }

    def memory(self, *depths: int, **overrides: object) -> Any:
        steps = [step(number=i, depth=depth) for i, depth in enumerate(depths)]
        made = settings(**overrides)
        return memory_of(made, self.build, self.model, steps, SilentProgress())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_surely_fits_is_not_looked_at(machine: Machine) -> None:
    assert machine.memory(100, 50_000) is None
    assert SmallServer.started == []


def test_a_small_server_tells_what_is_not_sure(machine: Machine) -> None:
    machine.available = 2 * GIB
    made = machine.memory(100, 500_000)
    (arguments,) = SmallServer.started
    assert arguments[arguments.index("--ctx-size") + 1] == "512"
    assert made.usable == pytest.approx(0.9 * 2 * GIB)
    # Files, recurrent state, buffers; K and V of 512 cells and a mask of 2 * 512 bytes for each.
    assert made.fixed == 1_000_000 + 27 * 2**20
    assert made.per_cell == 10 * 2**20 / 512 + 1024
    assert (made.state, made.state_per_cell) == (3 * 2**20, 10 * 2**20 / 512)


def test_the_bound_by_hand(machine: Machine) -> None:
    # 500,100 + 256, rounded up to 500,480 cells of 6,144 + 1,024 bytes, and a state of as many
    # tokens of 6,144 bytes each.
    needed = 1_000_000 + COMPUTE_BYTES + 500_480 * 7168 + 500_000 * 6144
    machine.available = round(needed / 0.9) + 2
    assert machine.memory(500_000) is None
    machine.available -= 4
    assert machine.memory(500_000) is not None
    # A step that is not restored has no state.
    assert machine.memory(500_000, schedule__restored_max_depth=1000) is None


def test_the_limit_of_a_container_counts(machine: Machine) -> None:
    machine.limit = GIB
    made = machine.memory(100)
    assert made.usable == pytest.approx(0.9 * GIB)


def test_a_head_that_tells_nothing_is_asked_of_the_server(machine: Machine) -> None:
    machine.head = head()
    assert machine.memory(100) is not None


def test_what_a_probe_has_measured() -> None:
    made = memory_by(TEXT, settings(server__ubatch=256, schedule__restored_max_depth=7))
    assert made.usable == pytest.approx(0.9 * 4 * GIB)
    assert (made.fixed, made.per_cell) == (GIB, 2048 + 512)
    assert (made.state, made.state_per_cell, made.restored_max_depth) == (2**20, 1024, 7)

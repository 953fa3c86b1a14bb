"""What model and machine can take: cells of a context, and bytes of memory for one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiment.build import Build
from experiment.gguf_files import Head, read_head
from experiment.graph import parse_graph
from experiment.host import host_facts
from experiment.models import ModelFiles
from experiment.narrow import Memory
from experiment.progress import Progress
from experiment.server import Server, server_arguments
from experiment.settings import Settings
from experiment.step_size import context_size
from experiment.sweep_costs import Costs
from experiment.trace import Step

USABLE_SHARE = 0.9
"""Of the memory that is available: the driver and the system need some too."""

COMPUTE_BYTES = 1 << 30
"""More than what does not grow with the context is going to take; holo3-35b-a3b has 73 MiB of
buffers for its graph, and 63 MiB of recurrent state."""

MASK_BYTES = 2
"""The attention's mask, for each cell and token of an ubatch: f16. Measured with nano: compute
buffers grow by 1,024 bytes a cell with ubatches of 512."""

_KV_BYTES = 2  # f16, of which the server makes its cache unless told otherwise
_SMALL_CONTEXT = 512


def context_of(settings: Settings, model: Path) -> int | None:
    """KV cells that a request can have: as many as the model was trained for, or fewer if set so.

    Returns:
        None where the file does not tell and nothing is set.

    Raises:
        ModelError: the file cannot be read.
    """
    trained = _Facts(_head(model)).number("context_length")
    known = [limit for limit in (trained, settings.server.context) if limit]
    return min(known, default=None)


def memory_of(
    settings: Settings, build: Build, model: ModelFiles, steps: Sequence[Step], progress: Progress
) -> Memory | None:
    """What a server for each of ``steps`` needs; None where all of them fit without any doubt.

    The model's head bounds it. Where that is not enough to be sure, a server with a small context
    tells what it takes.

    Raises:
        ModelError: the file cannot be read.
        ServerStartError: not even that server starts.
    """
    facts = host_facts()
    available = facts["memory_available_bytes"]
    usable = USABLE_SHARE * min(available, facts["memory_limit_bytes"] or available)
    files = [model.model, *([model.mmproj] if model.mmproj else [])]
    fixed = float(sum(path.stat().st_size for path in files))
    deepest = settings.schedule.restored_max_depth
    mask = MASK_BYTES * settings.server.ubatch
    at_most = kv_bytes_per_cell(_head(model.model))
    if at_most is not None:
        bound = Memory(usable, fixed + COMPUTE_BYTES, at_most + mask, 0.0, at_most, deepest)
        if bound.needed(max(steps, key=lambda step: context_size((step,)))) <= usable:
            return None
    progress.start("ask a small server for its memory", None)
    with TemporaryDirectory(prefix="memory-") as folder:
        server = Server(
            build.server,
            server_arguments(settings, model, _SMALL_CONTEXT),
            Path(folder) / "server.log",
            start_timeout_s=settings.server.start_timeout_s,
            request_timeout_s=settings.server.request_timeout_s,
        )
        with server:
            graph: dict[str, Any] = dict(parse_graph(server.log_text()))
    progress.finish()
    per_cell = graph.get("kv_buffer_mib", 0.0) * 2**20 / graph.get("n_ctx", _SMALL_CONTEXT)
    state = graph.get("rs_buffer_mib", 0.0) * 2**20
    compute = graph.get("compute_buffer_mib", 0.0) * 2**20
    return Memory(usable, fixed + state + compute, per_cell + mask, state, per_cell, deepest)


def memory_by(costs: Costs, settings: Settings) -> Memory:
    """The same as a probe has measured it."""
    return Memory(
        USABLE_SHARE * costs.available_bytes,
        costs.fixed_bytes,
        costs.kv_bytes_per_cell + MASK_BYTES * settings.server.ubatch,
        costs.state_bytes,
        costs.state_bytes_per_cell,
        settings.schedule.restored_max_depth,
    )


def kv_bytes_per_cell(head: Head) -> float | None:
    """Bytes of K and V of a cell in all layers, at most; None where the head does not tell."""
    facts = _Facts(head)
    layers, heads = facts.number("block_count"), facts.numbers("attention.head_count_kv")
    width = facts.number("embedding_length")
    of_head = facts.number("attention.head_count")
    default = width / of_head if width and of_head else None
    key = facts.number("attention.key_length") or default
    value = facts.number("attention.value_length") or default
    if not (layers and heads and key and value):
        return None
    # A list has a number for each layer, 0 where it has no attention.
    interval = facts.number("full_attention_interval") or 1
    of_all = heads[0] * (layers // interval) if len(heads) == 1 else sum(heads)
    return float(_KV_BYTES * of_all * (key + value))


@lru_cache(maxsize=1)
def _head(model: Path) -> Head:
    """Read once: with a large vocabulary it takes 0.4 s."""
    return read_head(model)


class _Facts:
    """Numbers in a GGUF file's head, by their name behind the architecture's."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def number(self, name: str) -> int | None:
        found = self.numbers(name)
        return found[0] if len(found) == 1 else None

    def numbers(self, name: str) -> list[int]:
        entry = self._head.entries.get(f"{self._head.architecture}.{name}")
        value = None if entry is None else entry.value
        found = value if isinstance(value, list) else [value]
        return [item for item in found if type(item) is int and item >= 0]

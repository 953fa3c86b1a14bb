"""What the server says about the graph it really runs, parsed from its log at ``-lv 4``."""

from __future__ import annotations

import re
from collections.abc import Mapping

GraphValue = str | int | float | bool

# key -> pattern with one group; the last match counts, since the server prints some lines again
# when it reserves the graph for another batch size.
_NUMBERS = {
    "n_ctx": r"llama_context: n_ctx +=\s*(\d+)",
    "n_batch": r"llama_context: n_batch +=\s*(\d+)",
    "n_ubatch": r"llama_context: n_ubatch +=\s*(\d+)",
    "n_seq_max": r"llama_context: n_seq_max +=\s*(\d+)",
    "n_rs_seq": r"llama_context: n_rs_seq +=\s*(\d+)",
    "graph_nodes": r"graph nodes +=\s*(\d+)",
    "graph_splits": r"graph splits +=\s*(\d+)",
    "kv_buffer_mib": r"KV buffer size =\s*([\d.]+) MiB",
    "rs_buffer_mib": r"RS buffer size =\s*([\d.]+) MiB",
    "compute_buffer_mib": r"sched_reserve: .*compute buffer size =\s*([\d.]+) MiB",
    "n_threads": r"n_threads = (\d+)",
}
_TEXTS = {
    "type_k": r"llama_kv_cache: size = .*?, K \((\w+)\):",
    "type_v": r"llama_kv_cache: size = .*?, V \((\w+)\):",
    "arch": r"print_info: arch +=\s*(\S+)",
    "model_type": r"print_info: model type +=\s*(.+)",
    "file_type": r"print_info: file type +=\s*(.+)",
    "cpu_features": r"system_info: .*?\| (.+?)\s*\|?\s*$",
}
_FLASH = re.compile(r"Flash Attention was auto, set to (\w+)|llama_context: flash_attn +=\s*(\w+)")
_DELTA_NET = re.compile(
    r"fused Gated Delta Net \((\w+)\) (?:not supported, set to )?(enabled|disabled)"
)


def parse_graph(log: str) -> dict[str, GraphValue]:
    """The resolved graph configuration, by key; what the log does not say is left out."""
    graph: dict[str, GraphValue] = {}
    for key, pattern in _NUMBERS.items():
        if found := re.findall(pattern, log):
            graph[key] = float(found[-1]) if "." in found[-1] else int(found[-1])
    for key, pattern in _TEXTS.items():
        if texts := re.findall(pattern, log, re.MULTILINE):
            graph[key] = texts[-1].strip()
    # `auto` is printed first, what it was resolved to afterwards.
    if flash := [a or b for a, b in _FLASH.findall(log)]:
        graph["flash_attn"] = flash[-1]
    for kind, state in _DELTA_NET.findall(log):
        graph[f"fused_gated_delta_net_{kind}"] = state
    return graph


def memory_graph(props: Mapping[str, object]) -> dict[str, GraphValue]:
    """What ``GET /props`` says about prefixes: the memory class and which kinds it can take."""
    prefix = props.get("prefix")
    if not isinstance(prefix, Mapping):
        return {}
    return {
        "memory_class": str(prefix.get("memory")),
        "can_fake_prefix": bool(prefix.get("n_fake_cached")),
        "can_save_prefix": bool(prefix.get("n_state_cached")),
    }

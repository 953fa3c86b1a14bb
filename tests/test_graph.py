"""The graph configuration, from the beginning of a real server's log (`data/server-log.txt`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.graph import memory_graph, parse_graph

# nano with its vision tower at -lv 4; shortened, model paths cut.
LOG = (Path(__file__).parent / "data" / "server-log.txt").read_text(encoding="utf-8")


def test_a_real_log() -> None:
    graph = parse_graph(LOG)
    features = graph.pop("cpu_features")
    assert graph == {
        "n_ctx": 16384,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_rs_seq": 0,
        "n_threads": 2,
        "graph_nodes": 693,
        "graph_splits": 1,
        "kv_buffer_mib": 32.0,
        "rs_buffer_mib": 1.57,
        "compute_buffer_mib": 24.08,  # of the language model, not 41.46 of its vision tower
        "type_k": "f16",
        "type_v": "f16",
        "arch": "qwen35moe",
        "model_type": "?B",
        "file_type": "Q4_K - Small",
        "flash_attn": "enabled",
        "fused_gated_delta_net_autoregressive": "enabled",
        "fused_gated_delta_net_chunked": "enabled",
    }
    assert isinstance(features, str)
    assert features.startswith("CPU : SSE3 = 1 | ")
    assert features.endswith("REPACK = 1")


def test_whole_numbers_and_sizes_keep_their_kinds() -> None:
    graph = parse_graph(LOG)
    assert type(graph["n_ctx"]) is int
    assert type(graph["kv_buffer_mib"]) is float


def test_flash_attention_that_was_decided_by_hand_is_read_too() -> None:
    by_hand = "0.01 I llama_context: flash_attn    = disabled\n"
    assert parse_graph(by_hand) == {"flash_attn": "disabled"}
    refused = (
        "0.01 I llama_context: flash_attn    = auto\n"
        "0.02 W sched_reserve: Flash Attention was auto, set to disabled\n"
    )
    assert parse_graph(refused) == {"flash_attn": "disabled"}


def test_a_delta_net_that_is_not_fused_is_told_in_a_clean_word() -> None:
    # the words of llama-context.cpp
    log = (
        "0.02 W sched_reserve: fused Gated Delta Net (autoregressive) not supported, "
        "set to disabled\n"
        "0.02 I sched_reserve: fused Gated Delta Net (chunked) enabled\n"
    )
    assert parse_graph(log) == {
        "fused_gated_delta_net_autoregressive": "disabled",
        "fused_gated_delta_net_chunked": "enabled",
    }


def test_of_a_value_printed_again_the_last_counts() -> None:
    log = "".join(
        f"0.0 I sched_reserve: graph nodes  = {n}\n"
        f"0.0 I llama_kv_cache:        CPU KV buffer size =    {n}.50 MiB\n"
        for n in (693, 701)
    )
    assert parse_graph(log) == {"graph_nodes": 701, "kv_buffer_mib": 701.5}


@pytest.mark.parametrize("log", ["", "error: no such file\n", LOG[:40]])
def test_what_the_log_does_not_say_is_left_out(log: str) -> None:
    assert parse_graph(log) == {}


def test_a_server_says_which_memory_takes_which_prefix() -> None:
    prefix = {"memory": "hybrid", "n_fake_cached": True, "n_state_cached": False}
    assert memory_graph({"prefix": prefix}) == {
        "memory_class": "hybrid",
        "can_fake_prefix": True,
        "can_save_prefix": False,
    }


@pytest.mark.parametrize("props", [{}, {"prefix": None}, {"prefix": "hybrid"}])
def test_a_server_that_says_nothing_of_prefixes(props: dict[str, object]) -> None:
    assert memory_graph(props) == {}

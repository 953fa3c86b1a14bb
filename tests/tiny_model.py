"""A stand-in small enough for unit tests: every kind of layer and tensor type, 300 tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gguf import GGUFWriter

from experiment.shapes import SHAPES, Shape, VisionShape

TINY: Shape = replace(
    SHAPES["nano"],
    name="tiny",
    layers=4,
    width=256,
    head_dim=64,
    delta_key_heads=1,
    delta_value_heads=2,
    delta_head_dim=32,
    experts=4,
    experts_used=2,
    expert_ffn=32,
    shared_ffn=64,
    vision=VisionShape(layers=1, width=32, heads=1, ffn=48, grid=4),
)
TOKENS = [f"token {i}" for i in range(300)]


def write_vocab(path: Path) -> Path:
    """A GGUF file with a tokenizer and no tensors, as llama.cpp's own vocabularies are."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * len(TOKENS))
    writer.add_token_merges(["t o", "to k"])
    writer.add_eos_token_id(299)
    writer.add_chat_template("{{ messages }} ü")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path

"""Writes a stand-in model: a GGUF of a shape with seeded random weights and a real tokenizer.

Keys and tensor names are those that llama.cpp reads for the architecture ``qwen35moe``
(``src/models/qwen35moe.cpp``) and for ``clip`` with the projector ``qwen3vl_merger``
(``tools/mtmd/clip.cpp``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from experiment import gguf_files
from experiment.errors import ModelError
from experiment.gguf_files import KeyValue
from experiment.shapes import Shape
from experiment.weights import F16, F32, Tensor, matrix_type

if TYPE_CHECKING:
    from experiment.progress import Progress

__all__ = ["RECIPE", "make", "recipe_digest", "text_tensors", "vision_tensors"]

# Raise it whenever the bytes of any stand-in change: names, keys, distributions, generator.
RECIPE = 1

_ARCHITECTURE = "qwen35moe"
_TOKENS = "tokenizer.ggml.tokens"
# Room for the tokenizer, keys and tensor headers (6.1 MB with the vocabulary of Qwen3.5).
_METADATA_BYTES = 16 * 2**20

# Each layer adds about 0.5 to a residual stream that begins at 2: the logits of nano then differ
# nine times more between two prefixes (0.65) than between two ways of batching the same prompt
# (0.07, rounding in int8 activations). Beginning at 1 doubles both and makes outliers of the noise.
_EMBEDDING_STD = 2.0
# Neither flat nor certain: the likeliest of 151,936 tokens gets between 10 % and 40 %.
_LOGIT_STD = 4.0
# Queries and keys leave their norms with this length per element. Attention scores then have a
# standard deviation of 2.5: a few tokens out of thousands get most of the weight, as in a trained
# model. At 1.0 attention would average over the whole prefix and lose all sight of it.
_ATTENTION_GAIN = math.sqrt(2.5)
_NORM_JITTER = 0.1
# The delta net forgets by exp(ssm_a * softplus(alpha + dt)) per token. These ranges give heads
# that remember from one to some thousand tokens; ssm_a has to be negative or the state explodes.
_SSM_A = (-16.0, -1.0)
_SSM_DT = (-8.0, -2.0)


def recipe_digest(shape: Shape, vocab: Path) -> str:
    """Twelve hex digits that change whenever the files of ``shape`` would, seed apart.

    Raises:
        ModelError: ``vocab`` cannot be read.
    """
    try:
        vocab_sha256 = hashlib.sha256(vocab.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(
            f"cannot read the tokenizer: {error.strerror}",
            where=str(vocab),
            hint="it is part of the llama.cpp source; is that a whole checkout?",
        ) from error
    text = repr((RECIPE, sorted(asdict(shape).items()), vocab_sha256))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def text_tensors(shape: Shape, vocab_size: int) -> Iterator[Tensor]:
    """The plan of the text model, in file order."""
    width = shape.width
    yield _weights("token_embd.weight", (width, vocab_size), std=_EMBEDDING_STD)
    yield _norm("output_norm.weight", width, gain=_LOGIT_STD)
    yield _weights("output.weight", (width, vocab_size))
    for layer in range(shape.layers):
        yield from _layer_tensors(shape, layer)


def _layer_tensors(shape: Shape, layer: int) -> Iterator[Tensor]:
    width, experts = shape.width, shape.experts
    block = f"blk.{layer}"
    yield _norm(f"{block}.attn_norm.weight", width)
    yield _norm(f"{block}.post_attention_norm.weight", width)
    if shape.is_attention(layer):
        heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        yield _weights(f"{block}.attn_q.weight", (width, 2 * heads))  # queries and output gate
        yield _weights(f"{block}.attn_k.weight", (width, kv))
        yield _weights(f"{block}.attn_v.weight", (width, kv))
        yield _weights(f"{block}.attn_output.weight", (heads, width))
        yield _norm(f"{block}.attn_q_norm.weight", shape.head_dim, gain=_ATTENTION_GAIN)
        yield _norm(f"{block}.attn_k_norm.weight", shape.head_dim, gain=_ATTENTION_GAIN)
    else:
        values, value_heads = shape.delta_value_dim, shape.delta_value_heads
        conv = (shape.conv_kernel, shape.delta_conv_dim)
        yield _weights(f"{block}.attn_qkv.weight", (width, shape.delta_conv_dim))
        yield _weights(f"{block}.attn_gate.weight", (width, values))
        yield _uniform(f"{block}.ssm_conv1d.weight", conv, std=1 / math.sqrt(shape.conv_kernel))
        yield Tensor(f"{block}.ssm_dt.bias", (value_heads,), F32, *_SSM_DT)
        yield Tensor(f"{block}.ssm_a", (value_heads,), F32, *_SSM_A)
        yield _weights(f"{block}.ssm_beta.weight", (width, value_heads))
        yield _weights(f"{block}.ssm_alpha.weight", (width, value_heads))
        yield _norm(f"{block}.ssm_norm.weight", shape.delta_head_dim)
        yield _weights(f"{block}.ssm_out.weight", (values, width))
    yield _uniform(f"{block}.ffn_gate_inp.weight", (width, experts), std=1 / math.sqrt(width))
    yield _weights(f"{block}.ffn_down_exps.weight", (shape.expert_ffn, width, experts))
    yield _weights(f"{block}.ffn_gate_exps.weight", (width, shape.expert_ffn, experts))
    yield _weights(f"{block}.ffn_up_exps.weight", (width, shape.expert_ffn, experts))
    yield _uniform(f"{block}.ffn_gate_inp_shexp.weight", (width,), std=1 / math.sqrt(width))
    yield _weights(f"{block}.ffn_gate_shexp.weight", (width, shape.shared_ffn))
    yield _weights(f"{block}.ffn_up_shexp.weight", (width, shape.shared_ffn))
    yield _weights(f"{block}.ffn_down_shexp.weight", (shape.shared_ffn, width))


def vision_tensors(shape: Shape) -> Iterator[Tensor]:
    """The plan of the vision tower and of the projector into the text model's width."""
    vision = shape.vision
    width, patch = vision.width, vision.patch_px
    merged = width * vision.merge**2
    # Two kernels because the encoder was made for video: both see the same still image.
    kernel, kernel_std = (patch, patch, 3, width), 1 / math.sqrt(2 * 3 * patch * patch)
    yield _uniform("v.patch_embd.weight", kernel, std=kernel_std, kind=F16)
    yield _uniform("v.patch_embd.weight.1", kernel, std=kernel_std, kind=F16)
    yield _bias("v.patch_embd.bias", width)
    yield _uniform("v.position_embd.weight", (width, vision.grid**2), std=1.0)
    for layer in range(vision.layers):
        block = f"v.blk.{layer}"
        for norm in ("ln1", "ln2"):
            yield _norm(f"{block}.{norm}.weight", width)
            yield _bias(f"{block}.{norm}.bias", width)
        yield from _linear(f"{block}.attn_qkv", width, 3 * width)
        yield from _linear(f"{block}.attn_out", width, width)
        yield from _linear(f"{block}.ffn_up", width, vision.ffn)
        yield from _linear(f"{block}.ffn_down", vision.ffn, width)
    yield _norm("v.post_ln.weight", width)
    yield _bias("v.post_ln.bias", width)
    yield from _linear("mm.0", merged, merged)
    yield from _linear("mm.2", merged, shape.width)


def make(
    shape: Shape, seed: int, vocab: Path, folder: Path, progress: Progress
) -> tuple[Path, Path]:
    """Write ``model.gguf`` and ``mmproj.gguf`` of ``shape`` into ``folder`` and return both paths.

    Tokenizer and chat template come out of the GGUF file ``vocab``. One tensor is in memory at a
    time. Either file appears only when it is complete; one that is there already is kept.

    An image of w x h pixels becomes w/32 times h/32 tokens, both rounded, between 8 and 4,096:
    llama.cpp's own limits for this projector, no key of the file sets them.

    Raises:
        ModelError: ``vocab`` has no tokenizer, the disk is too small, or writing failed.
    """
    model, mmproj = folder / "model.gguf", folder / "mmproj.gguf"
    if model.exists() and mmproj.exists():
        return model, mmproj
    tokenizer = _read_tokenizer(vocab)
    vocab_size = len(tokenizer[_TOKENS].value)
    plans = {model: list(text_tensors(shape, vocab_size)), mmproj: list(vision_tensors(shape))}
    missing = {path: plan for path, plan in plans.items() if not path.exists()}
    needed_bytes = sum(_METADATA_BYTES + sum(t.size_bytes for t in p) for p in missing.values())
    gguf_files.require_disk(folder, needed_bytes, f"the model {shape.name}")

    def add_text(writer: GGUFWriter) -> None:
        _add_identity(writer, shape, seed)
        _add_text_keys(writer, shape, tokenizer)

    def add_vision(writer: GGUFWriter) -> None:
        _add_identity(writer, shape, seed)
        _add_vision_keys(writer, shape)

    key = f"{RECIPE}/{shape.name}/{seed}"
    if mmproj in missing:
        gguf_files.write(mmproj, "clip", add_vision, plans[mmproj], key, progress)
    if model in missing:
        gguf_files.write(model, _ARCHITECTURE, add_text, plans[model], key, progress)
    return model, mmproj


def _read_tokenizer(vocab: Path) -> dict[str, KeyValue]:
    entries = gguf_files.read_head(vocab).entries
    if _TOKENS not in entries:
        raise ModelError("the file has no tokenizer", where=str(vocab))
    return {key: entry for key, entry in entries.items() if key.startswith("tokenizer.")}


def _add_identity(writer: GGUFWriter, shape: Shape, seed: int) -> None:
    writer.add_name(f"{shape.name} stand-in")
    writer.add_description(f"random weights for timing, seed {seed}, recipe {RECIPE}; not trained")


def _add_text_keys(writer: GGUFWriter, shape: Shape, tokenizer: Mapping[str, KeyValue]) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_rope_dimension_count(shape.rope_dims)
    writer.add_rope_dimension_sections(shape.rope_sections)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_full_attention_interval(shape.full_attention_interval)
    writer.add_ssm_conv_kernel(shape.conv_kernel)
    writer.add_ssm_inner_size(shape.delta_value_dim)
    writer.add_ssm_state_size(shape.delta_head_dim)
    writer.add_ssm_time_step_rank(shape.delta_value_heads)
    writer.add_ssm_group_count(shape.delta_key_heads)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_used)
    writer.add_expert_feed_forward_length(shape.expert_ffn)
    writer.add_expert_shared_feed_forward_length(shape.shared_ffn)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_S)
    for key, entry in tokenizer.items():
        writer.add_key_value(key, entry.value, entry.type, sub_type=entry.item_type)


def _add_vision_keys(writer: GGUFWriter, shape: Shape) -> None:
    vision = shape.vision
    writer.add_type("mmproj")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("qwen3vl_merger")
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(vision.grid * vision.patch_px)
    writer.add_vision_patch_size(vision.patch_px)
    writer.add_vision_spatial_merge_size(vision.merge)
    writer.add_vision_embedding_length(vision.width)
    writer.add_vision_feed_forward_length(vision.ffn)
    writer.add_vision_block_count(vision.layers)
    writer.add_vision_head_count(vision.heads)
    writer.add_vision_projection_dim(shape.width)
    writer.add_vision_attention_layernorm_eps(shape.rms_eps)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_is_deepstack_layers([False] * vision.layers)


def _weights(name: str, ne: tuple[int, ...], std: float | None = None) -> Tensor:
    """A quantised matrix (or one per expert); by default it keeps the scale of its input."""
    scale = 1 / math.sqrt(ne[0]) if std is None else std
    return _uniform(name, ne, std=scale, kind=matrix_type(ne[0]))


def _uniform(
    name: str, ne: tuple[int, ...], *, std: float, kind: GGMLQuantizationType = F32
) -> Tensor:
    bound = std * math.sqrt(3)
    return Tensor(name, ne, kind, -bound, bound)


def _norm(name: str, width: int, gain: float = 1.0) -> Tensor:
    return Tensor(name, (width,), F32, gain * (1 - _NORM_JITTER), gain * (1 + _NORM_JITTER))


def _bias(name: str, width: int) -> Tensor:
    return _uniform(name, (width,), std=0.02)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[Tensor]:
    yield _uniform(f"{name}.weight", (inputs, outputs), std=1 / math.sqrt(inputs), kind=F16)
    yield _bias(f"{name}.bias", outputs)

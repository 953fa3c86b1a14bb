"""The shapes of the stand-in models: every size that a speed measurement can depend on.

All of them are the architecture of Holo3 (``qwen35moe``): every fourth layer is full attention, the
others are gated delta nets, and each layer has a mixture of experts with one shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_SHAPE", "SHAPES", "Shape", "VisionShape"]


@dataclass(frozen=True)
class VisionShape:
    """The vision tower of a stand-in: a Qwen3-VL encoder without deepstack layers."""

    layers: int
    width: int
    heads: int
    ffn: int
    patch_px: int = 16
    merge: int = 2  # merge x merge patches become one token of the text model
    grid: int = 48  # learned positions per side, 768 px at 16 px a patch


@dataclass(frozen=True)
class Shape:
    """The text model of a stand-in. Widths count elements, ``*_heads`` count heads."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    delta_key_heads: int
    delta_value_heads: int
    delta_head_dim: int
    experts: int
    experts_used: int
    expert_ffn: int
    shared_ffn: int
    vision: VisionShape
    full_attention_interval: int = 4
    conv_kernel: int = 4
    rope_dims: int = 64
    rope_sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    rope_theta: float = 1e7
    rms_eps: float = 1e-6
    context: int = 262_144  # the stand-ins that are no real model have room for L = 262,144

    def is_attention(self, layer: int) -> bool:
        """Whether a layer (counted from 0) is full attention; the others are delta nets."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def delta_key_dim(self) -> int:
        """Width of the queries, and of the keys, of one delta net layer."""
        return self.delta_key_heads * self.delta_head_dim

    @property
    def delta_value_dim(self) -> int:
        """Width of the values of one delta net layer."""
        return self.delta_value_heads * self.delta_head_dim

    @property
    def delta_conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values side by side."""
        return 2 * self.delta_key_dim + self.delta_value_dim


_NANO = Shape(
    name="nano",
    layers=8,
    width=256,
    heads=2,
    kv_heads=1,
    head_dim=256,
    delta_key_heads=4,
    delta_value_heads=8,
    delta_head_dim=128,
    experts=32,
    experts_used=8,
    expert_ffn=256,
    shared_ffn=256,
    context=524_288,
    vision=VisionShape(layers=2, width=128, heads=2, ffn=256),
)

_HOLO3_MINI = Shape(
    name="holo3-mini",
    layers=40,
    width=512,
    heads=8,
    kv_heads=2,
    head_dim=128,
    delta_key_heads=4,
    delta_value_heads=8,
    delta_head_dim=64,
    experts=256,
    experts_used=8,
    expert_ffn=64,
    shared_ffn=64,
    context=524_288,
    vision=VisionShape(layers=4, width=256, heads=4, ffn=512),
)

# Holo3-35B-A3B, and the vision tower of Qwen3-VL that it was trained with.
_HOLO3_35B_A3B = Shape(
    name="holo3-35b-a3b",
    layers=40,
    width=2048,
    heads=16,
    kv_heads=2,
    head_dim=256,
    delta_key_heads=16,
    delta_value_heads=32,
    delta_head_dim=128,
    experts=256,
    experts_used=8,
    expert_ffn=512,
    shared_ffn=512,
    vision=VisionShape(layers=27, width=1152, heads=16, ffn=4304),
)

SHAPES: dict[str, Shape] = {shape.name: shape for shape in (_NANO, _HOLO3_MINI, _HOLO3_35B_A3B)}
DEFAULT_SHAPE = _NANO.name

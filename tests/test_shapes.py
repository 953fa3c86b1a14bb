from __future__ import annotations

import pytest

from experiment.shapes import DEFAULT_SHAPE, SHAPES, Shape


def attention_layers(shape: Shape) -> list[int]:
    return [layer for layer in range(shape.layers) if shape.is_attention(layer)]


def test_names() -> None:
    assert list(SHAPES) == ["nano", "holo3-mini", "holo3-35b-a3b"]
    assert all(shape.name == name for name, shape in SHAPES.items())
    assert DEFAULT_SHAPE == "nano"


def test_every_fourth_layer_is_attention() -> None:
    assert attention_layers(SHAPES["nano"]) == [3, 7]
    for name in ("holo3-mini", "holo3-35b-a3b"):
        assert SHAPES[name].layers == 40
        assert attention_layers(SHAPES[name]) == list(range(3, 40, 4))
        assert (SHAPES[name].experts, SHAPES[name].experts_used) == (256, 8)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_widths_fit_each_other(shape: Shape) -> None:
    # What llama.cpp asserts, or silently gets wrong, for this architecture.
    assert shape.heads % shape.kv_heads == 0
    assert shape.delta_value_heads % shape.delta_key_heads == 0
    assert shape.rope_dims <= shape.head_dim
    assert sum(shape.rope_sections) == shape.rope_dims // 2
    assert shape.experts_used <= shape.experts
    # Rows of quantised matrices are whole blocks.
    rows = (shape.width, shape.heads * shape.head_dim, shape.delta_value_dim)
    assert all(row % 32 == 0 for row in (*rows, shape.expert_ffn, shape.shared_ffn))
    # The vision rotary embedding turns four equal parts of a head.
    assert shape.vision.width % (4 * shape.vision.heads) == 0


def test_convolution_runs_over_queries_keys_and_values() -> None:
    full = SHAPES["holo3-35b-a3b"]
    assert full.delta_key_dim == 16 * 128
    assert full.delta_value_dim == 32 * 128
    assert full.delta_conv_dim == 2 * 2048 + 4096

from __future__ import annotations

import hashlib
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import MODEL_ARCH, MODEL_TENSOR, MODEL_TENSORS, TENSOR_NAMES, GGUFReader, quants
from tiny_model import TINY, TOKENS, write_vocab

from experiment import gguf_files, standin
from experiment.errors import ModelError
from experiment.progress import SilentProgress
from experiment.shapes import SHAPES
from experiment.weights import F16, F32, Tensor

SEED = 7
FULL_VOCAB = 151_936


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.gguf")


@pytest.fixture(scope="module")
def made(vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[GGUFReader, GGUFReader]:
    folder = tmp_path_factory.mktemp("made")
    model, mmproj = standin.make(TINY, SEED, vocab, folder, SilentProgress())
    return GGUFReader(model), GGUFReader(mmproj)


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def value(reader: GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


def plan_bytes(plan: list[Tensor]) -> int:
    return sum(tensor.size_bytes for tensor in plan)


def test_same_shape_and_seed_give_the_same_files(vocab: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "other-seed")]
    for folder, seed in zip(folders, (SEED, SEED, SEED + 1), strict=True):
        folder.mkdir()
        standin.make(TINY, seed, vocab, folder, SilentProgress())
    first, second, other = map(digests, folders)
    assert list(first) == ["mmproj.gguf", "model.gguf"]
    assert first == second
    assert first["model.gguf"] != other["model.gguf"]
    assert first["mmproj.gguf"] != other["mmproj.gguf"]


def test_the_text_model_has_the_tensors_that_the_architecture_names(
    made: tuple[GGUFReader, GGUFReader],
) -> None:
    # Names out of the gguf package's table of the architecture, not out of our plan.
    unused = {MODEL_TENSOR.FFN_GATE_UP_EXP}  # the fused form of gate and up
    of_architecture = [
        TENSOR_NAMES[kind]
        for kind in MODEL_TENSORS[MODEL_ARCH.QWEN35MOE]
        if kind not in unused and not kind.name.startswith("NEXTN")
    ]
    attention = {"attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"}
    delta = {"attn_qkv", "attn_gate"}  # and all that begin with ssm_
    wanted = set()
    for name in of_architecture:
        if "{bid}" not in name:
            wanted.add(name)
            continue
        kind = name.removeprefix("blk.{bid}.")
        for layer in range(TINY.layers):
            is_delta = kind in delta or kind.startswith("ssm_")
            if not (is_delta if layer == 3 else kind in attention):
                wanted.add(name.format(bid=layer))
    got = {tensor.name for tensor in made[0].tensors}
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in got} == wanted
    assert {name for name in got if not name.endswith(".weight")} == {
        f"blk.{layer}.{kind}" for layer in range(3) for kind in ("ssm_a", "ssm_dt.bias")
    }


def test_shapes_and_types_of_the_text_model(made: tuple[GGUFReader, GGUFReader]) -> None:
    got = {t.name: (t.shape.tolist(), t.tensor_type.name) for t in made[0].tensors}
    # [row length, rows, ...] as llama.cpp's create_tensor states them for this architecture.
    assert got["token_embd.weight"] == ([256, 300], "Q4_K")
    assert got["output.weight"] == ([256, 300], "Q4_K")
    assert got["output_norm.weight"] == ([256], "F32")
    assert got["blk.3.attn_q.weight"] == ([256, 2 * 2 * 64], "Q4_K")
    assert got["blk.3.attn_k.weight"] == ([256, 64], "Q4_K")
    assert got["blk.3.attn_output.weight"] == ([128, 256], "Q4_0")
    assert got["blk.3.attn_k_norm.weight"] == ([64], "F32")
    assert got["blk.0.attn_qkv.weight"] == ([256, 128], "Q4_K")
    assert got["blk.0.attn_gate.weight"] == ([256, 64], "Q4_K")
    assert got["blk.0.ssm_conv1d.weight"] == ([4, 128], "F32")
    assert got["blk.0.ssm_beta.weight"] == ([256, 2], "Q4_K")
    assert got["blk.0.ssm_norm.weight"] == ([32], "F32")
    assert got["blk.0.ssm_out.weight"] == ([64, 256], "Q4_0")
    assert got["blk.0.ffn_gate_inp.weight"] == ([256, 4], "F32")
    assert got["blk.0.ffn_gate_exps.weight"] == ([256, 32, 4], "Q4_K")
    assert got["blk.0.ffn_down_exps.weight"] == ([32, 256, 4], "Q4_0")
    assert got["blk.0.ffn_gate_inp_shexp.weight"] == ([256], "F32")
    assert got["blk.0.ffn_down_shexp.weight"] == ([64, 256], "Q4_0")
    # The loader aborts if one of these is anything else.
    must_be_f32 = ("norm.weight", "ffn_gate_inp.weight", "ssm_a", "ssm_dt.bias", "conv1d.weight")
    assert {kind for name, (_, kind) in got.items() if name.endswith(must_be_f32)} == {"F32"}


def test_weights_keep_activations_near_one(made: tuple[GGUFReader, GGUFReader]) -> None:
    for tensor in made[0].tensors:
        got = quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(got).all(), tensor.name
        if tensor.name.endswith("ssm_a"):
            assert (got < 0).all()  # positive, and the state grows without bound
        elif tensor.tensor_type != F32:
            wanted = 2.0 if tensor.name == "token_embd.weight" else tensor.shape[0] ** -0.5
            few = got.size < 4096  # a handful of block scales: the draw itself scatters
            assert got.std() == pytest.approx(wanted, rel=0.2 if few else 0.04), tensor.name
            assert abs(got.mean()) < 0.1 * wanted, tensor.name


def test_keys_of_the_text_model(made: tuple[GGUFReader, GGUFReader]) -> None:
    reader = made[0]
    assert value(reader, "general.architecture") == "qwen35moe"
    wanted = {
        "block_count": 4,
        "context_length": 524_288,
        "embedding_length": 256,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.freq_base": 1e7,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 64,
        "ssm.state_size": 32,
        "ssm.time_step_rank": 2,
        "ssm.group_count": 1,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 64,
    }
    assert {key: value(reader, f"qwen35moe.{key}") for key in wanted} == wanted


def test_the_tokenizer_is_carried_over_whole(
    made: tuple[GGUFReader, GGUFReader], vocab: Path
) -> None:
    source = GGUFReader(vocab)
    keys = [key for key in source.fields if key.startswith("tokenizer.")]
    assert keys == [key for key in made[0].fields if key.startswith("tokenizer.")]
    assert len(keys) == 6
    for key in keys:
        assert value(made[0], key) == value(source, key)
        assert made[0].fields[key].types == source.fields[key].types
    assert value(made[0], "tokenizer.ggml.tokens") == TOKENS
    assert value(made[0], "tokenizer.chat_template") == "{{ messages }} ü"


def test_the_projector(made: tuple[GGUFReader, GGUFReader]) -> None:
    reader = made[1]
    assert value(reader, "general.architecture") == "clip"
    assert value(reader, "clip.projector_type") == "qwen3vl_merger"
    assert value(reader, "clip.has_vision_encoder") is True
    assert value(reader, "clip.vision.patch_size") == 16
    assert value(reader, "clip.vision.spatial_merge_size") == 2
    assert value(reader, "clip.vision.image_size") == 4 * 16
    assert value(reader, "clip.vision.projection_dim") == TINY.width
    got = {t.name: (t.shape.tolist(), t.tensor_type) for t in reader.tensors}
    assert got["v.patch_embd.weight"] == got["v.patch_embd.weight.1"] == ([16, 16, 3, 32], F16)
    assert got["v.position_embd.weight"] == ([32, 16], F32)
    assert got["v.blk.0.attn_qkv.weight"] == ([32, 96], F16)
    assert got["v.blk.0.ffn_up.weight"] == ([32, 48], F16)
    assert got["mm.0.weight"] == ([128, 128], F16)
    assert got["mm.2.weight"] == ([128, TINY.width], F16)
    assert {kind for name, (_, kind) in got.items() if name.endswith(".bias")} == {F32}


def test_the_full_shape_is_19_gigabytes_in_small_pieces() -> None:
    shape = SHAPES["holo3-35b-a3b"]
    plan = list(standin.text_tensors(shape, FULL_VOCAB))
    assert plan_bytes(plan) == pytest.approx(19.4e9, abs=0.05e9)
    # One tensor is in memory at a time: its bytes, and the random words they are made of.
    assert max(tensor.size_bytes for tensor in plan) < 200e6
    assert {tensor.type.name for tensor in plan} == {"F32", "Q4_K"}
    # 0.41 billion in 27 layers of Qwen3-VL's tower, 31 million in the merger, two bytes each.
    assert plan_bytes(list(standin.vision_tensors(shape))) == pytest.approx(0.89e9, abs=0.01e9)


@pytest.mark.parametrize(("name", "limit"), [("nano", 100e6), ("holo3-mini", 1e9)])
def test_the_small_shapes_stay_small(name: str, limit: float) -> None:
    assert plan_bytes(list(standin.text_tensors(SHAPES[name], FULL_VOCAB))) < limit


def test_one_tensor_is_in_memory_at_a_time(vocab: Path, tmp_path: Path) -> None:
    shape = replace(TINY, layers=12, experts=64)
    plan = list(standin.text_tensors(shape, len(TOKENS)))
    largest = max(tensor.size_bytes for tensor in plan)
    assert plan_bytes(plan) > 30 * largest
    tracemalloc.start()
    try:
        standin.make(shape, SEED, vocab, tmp_path, SilentProgress())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * largest + 2e6


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.totals: list[float | None] = []
        self.done: list[float] = []

    def start(self, what: str, total: float | None) -> None:
        self.totals.append(total)

    def advance(self, done: float, note: str = "") -> None:
        self.done.append(done)


def test_progress_counts_bytes(vocab: Path, tmp_path: Path) -> None:
    progress = Recorder()
    standin.make(TINY, SEED, vocab, tmp_path, progress)
    text = list(standin.text_tensors(TINY, len(TOKENS)))
    vision = list(standin.vision_tensors(TINY))
    assert sorted(map(float, filter(None, progress.totals))) == sorted(
        map(float, (plan_bytes(text), plan_bytes(vision)))
    )
    assert len(progress.done) == len(text) + len(vision)
    assert progress.done[-1] == progress.totals[-1]


def test_a_full_disk_is_refused_before_anything_is_written(
    vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=12_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError) as caught:
        standin.make(SHAPES["holo3-35b-a3b"], SEED, vocab, tmp_path, SilentProgress())
    # The tiny vocabulary leaves out 0.35 GB of embeddings, the projector adds 0.89 GB.
    assert caught.value.what == (
        "the model holo3-35b-a3b needs 19.9 GB of disk space, 12.0 GB are free"
    )
    assert caught.value.where == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_nothing(
    vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    draw = gguf_files.draw
    seen = []

    def fail_later(tensor: Tensor, key: str) -> np.ndarray:
        if tensor.name == "blk.2.attn_qkv.weight":
            seen.extend(path.name for path in tmp_path.iterdir())
            raise failure
        return draw(tensor, key)

    monkeypatch.setattr(gguf_files, "draw", fail_later)
    with pytest.raises((ModelError, KeyboardInterrupt)) as caught:
        standin.make(TINY, SEED, vocab, tmp_path, SilentProgress())
    assert "model.gguf.partial" in seen
    assert [path.name for path in tmp_path.iterdir()] == ["mmproj.gguf"]  # that one was complete
    if isinstance(failure, OSError):
        assert isinstance(caught.value, ModelError)
        assert caught.value.what == "cannot write the file: No space left on device"


def test_what_is_there_is_kept_and_what_is_missing_is_made(vocab: Path, tmp_path: Path) -> None:
    model, mmproj = standin.make(TINY, SEED, vocab, tmp_path, SilentProgress())
    before = digests(tmp_path)
    kept = mmproj.stat().st_mtime_ns
    model.unlink()
    (tmp_path / "model.gguf.partial").write_bytes(b"left by a kill")
    standin.make(TINY, SEED, vocab, tmp_path, SilentProgress())
    assert digests(tmp_path) == before
    assert mmproj.stat().st_mtime_ns == kept


def test_recipe_digest_follows_shape_recipe_and_vocabulary(
    vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = standin.recipe_digest(TINY, vocab)
    assert len(first) == 12
    assert standin.recipe_digest(TINY, vocab) == first
    assert standin.recipe_digest(replace(TINY, rope_theta=1e6), vocab) != first
    vision = replace(TINY.vision, layers=2)
    assert standin.recipe_digest(replace(TINY, vision=vision), vocab) != first
    other = tmp_path / "other.gguf"
    other.write_bytes(vocab.read_bytes() + b"\0")
    assert standin.recipe_digest(TINY, other) != first
    monkeypatch.setattr(standin, "RECIPE", standin.RECIPE + 1)
    assert standin.recipe_digest(TINY, vocab) != first


def test_a_source_without_tokenizer_is_refused(vocab: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the tokenizer: No such file"):
        standin.recipe_digest(TINY, tmp_path / "missing.gguf")
    standin.make(TINY, SEED, vocab, tmp_path, SilentProgress())
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelError, match="no tokenizer"):
        standin.make(TINY, SEED, tmp_path / "mmproj.gguf", other, SilentProgress())

from __future__ import annotations

import hashlib
import json
import os
import resource
import struct
from pathlib import Path

import pytest
from tiny_model import TINY, write_vocab

from experiment import models, standin
from experiment.errors import ModelError
from experiment.progress import SilentProgress
from experiment.settings import Settings, load_settings
from experiment.shapes import SHAPES

BAD = Path(__file__).parent / "bad" / "models"
BAD_NAMES = sorted(path.stem for path in BAD.glob("*.gguf"))


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, what: str, total: float | None) -> None:
        self.started.append(what)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama.cpp tree with a tokenizer, and the shape "tiny" beside the real ones."""
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    folder = tmp_path / "source" / "models"
    folder.mkdir(parents=True)
    write_vocab(folder / "ggml-vocab-qwen35.gguf")
    return folder.parent


def settings(tmp_path: Path, name: str = "tiny", mmproj: Path | None = None) -> Settings:
    config = tmp_path / "experiment.toml"
    config.touch()
    return load_settings(
        {"cache_dir": tmp_path / "cache", "seed": 7, "model.name": name, "model.mmproj": mmproj},
        config=config,
        environ={},
    )


def refusal(chosen: Settings, source: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        models.resolve(chosen, source, SilentProgress())
    return caught.value


def test_every_bad_file_has_an_expected_error() -> None:
    assert len(BAD_NAMES) > 12
    assert sorted(path.stem for path in BAD.glob("*.expected")) == BAD_NAMES


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_file_gives_its_error(name: str, source: Path, tmp_path: Path) -> None:
    path = BAD / f"{name}.gguf"
    error = refusal(settings(tmp_path, str(path)), source)
    assert error.what == path.with_suffix(".expected").read_text(encoding="utf-8").rstrip("\n")
    assert error.where == str(path)
    assert not (tmp_path / "cache" / "models" / "digests.json").exists() or name == "projector"


@pytest.mark.parametrize("kind", [0, 8, None])  # an array of bytes, a text, tensors
def test_a_small_file_that_promises_much_does_not_fill_the_memory(
    kind: int | None, source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "promises.gguf"
    many = 1 << 28
    entry = struct.pack("<Q1s", 1, b"x") + (
        struct.pack("<IQ", 8, many) if kind == 8 else struct.pack("<IIQ", 9, kind or 0, many)
    )
    head = struct.pack("<IQQ", 3, many, 0) if kind is None else struct.pack("<IQQ", 3, 0, 1) + entry
    path.write_bytes(b"GGUF" + head)
    with path.open("r+b") as file:
        file.truncate(32 * many)  # a hole: it takes no room on the disk
    error = refusal(settings(tmp_path, str(path)), source)
    assert error.what == "damaged or unknown GGUF file: its metadata take more than 64 MiB"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # kB


def test_a_pipe_is_no_model_and_not_waited_for(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    error = refusal(settings(tmp_path, str(tmp_path / "pipe.gguf")), source)
    assert (error.where, error.what) == (str(tmp_path / "pipe.gguf"), "not a file")


def test_a_shape_is_made_once(source: Path, tmp_path: Path) -> None:
    first_progress, second_progress = Recorder(), Recorder()
    files = models.resolve(settings(tmp_path), source, first_progress)
    digest = standin.recipe_digest(TINY, source / "models" / "ggml-vocab-qwen35.gguf")
    folder = tmp_path / "cache" / "models" / f"tiny-7-{digest}"
    assert files == models.ModelFiles(
        model=folder / "model.gguf",
        mmproj=folder / "mmproj.gguf",
        name="tiny",
        sha256=hashlib.sha256((folder / "model.gguf").read_bytes()).hexdigest(),
        mmproj_sha256=hashlib.sha256((folder / "mmproj.gguf").read_bytes()).hexdigest(),
    )
    assert len(first_progress.started) == 4  # two written, two hashed
    assert models.resolve(settings(tmp_path), source, second_progress) == files
    assert second_progress.started == []


def test_another_recipe_does_not_take_the_old_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = models.resolve(settings(tmp_path), source, SilentProgress())
    monkeypatch.setattr(standin, "RECIPE", standin.RECIPE + 1)
    new = models.resolve(settings(tmp_path), source, SilentProgress())
    assert new.model != old.model
    assert new.sha256 != old.sha256


def test_a_file_of_ones_own(source: Path, tmp_path: Path) -> None:
    made = models.resolve(settings(tmp_path), source, SilentProgress())
    own = tmp_path / "My Model.Q4_K.gguf"
    own.write_bytes(made.model.read_bytes())
    text_only = models.resolve(settings(tmp_path, str(own)), source, SilentProgress())
    assert text_only == models.ModelFiles(own, None, "My Model.Q4_K", made.sha256, None)
    both = models.resolve(settings(tmp_path, str(own), made.mmproj), source, SilentProgress())
    assert both == models.ModelFiles(
        own, made.mmproj, "My Model.Q4_K", made.sha256, made.mmproj_sha256
    )


def test_a_given_projector_takes_the_place_of_the_stand_ins(source: Path, tmp_path: Path) -> None:
    made = models.resolve(settings(tmp_path), source, SilentProgress())
    assert made.mmproj is not None
    own = tmp_path / "own-mmproj.gguf"
    own.write_bytes(made.mmproj.read_bytes())
    assert models.resolve(settings(tmp_path, mmproj=own), source, SilentProgress()).mmproj == own


def test_a_language_model_is_no_projector(source: Path, tmp_path: Path) -> None:
    model = models.resolve(settings(tmp_path), source, SilentProgress()).model
    error = refusal(settings(tmp_path, mmproj=model), source)
    assert error.what == (
        "this file is a model of the architecture qwen35moe, not a vision projector"
    )
    assert error.where == str(model)


def test_a_missing_projector_is_named(source: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    error = refusal(settings(tmp_path, mmproj=missing), source)
    assert (error.where, error.what) == (
        str(missing),
        "cannot be used: No such file or directory",
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nanno", "did you mean nano?"),
        ("holo3-35b", "did you mean holo3-35b-a3b?"),
        ("gpt", "the shapes are nano, holo3-mini, holo3-35b-a3b, tiny"),
    ],
)
def test_a_mistyped_shape(source: Path, tmp_path: Path, name: str, hint: str) -> None:
    error = refusal(settings(tmp_path, name), source)
    assert error.what == f"no such file and no shape of that name: {name}"
    assert error.hint == hint


def test_a_folder_is_no_model(source: Path, tmp_path: Path) -> None:
    error = refusal(settings(tmp_path, str(tmp_path)), source)
    assert (error.where, error.what) == (str(tmp_path), "not a file")


def test_a_cache_that_cannot_be_made(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    error = refusal(settings(tmp_path), source)
    assert error.what == "cannot be used: Not a directory"


def test_a_changed_file_is_read_again(source: Path, tmp_path: Path) -> None:
    made = models.resolve(settings(tmp_path), source, SilentProgress())
    data = bytearray(made.model.read_bytes())
    data[-1] ^= 1
    stat = made.model.stat()
    made.model.write_bytes(data)
    os.utime(made.model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    again = models.resolve(settings(tmp_path), source, SilentProgress())
    assert again.sha256 == hashlib.sha256(data).hexdigest() != made.sha256


def test_a_cached_file_cut_short_is_noticed(source: Path, tmp_path: Path) -> None:
    made = models.resolve(settings(tmp_path), source, SilentProgress())
    with made.model.open("r+b") as file:
        file.truncate(made.model.stat().st_size - 4096)
    error = refusal(settings(tmp_path), source)
    assert error.what.startswith("the GGUF file is cut short: ")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"sha256": "0"}}', "\x00"])
def test_a_damaged_digest_cache_is_only_a_cache(source: Path, tmp_path: Path, text: str) -> None:
    made = models.resolve(settings(tmp_path), source, SilentProgress())
    cache = tmp_path / "cache" / "models" / "digests.json"
    cache.write_text(text)
    assert models.resolve(settings(tmp_path), source, SilentProgress()) == made
    assert len(json.loads(cache.read_text())) == 2

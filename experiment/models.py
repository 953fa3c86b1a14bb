"""Which model files a run uses, a stand-in made on demand or the user's own; and their digests."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiment import gguf_files, standin
from experiment.errors import ModelError
from experiment.shapes import SHAPES, Shape
from experiment.whole_file import write_text

if TYPE_CHECKING:
    from experiment.progress import Progress
    from experiment.settings import Settings

__all__ = ["Identity", "ModelFiles", "identify", "resolve"]

_VOCAB = Path("models") / "ggml-vocab-qwen35.gguf"
_PROJECTOR = "clip"
_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ModelFiles:
    """What the server loads. ``name`` is the shape's, or the file's without its ending."""

    model: Path
    mmproj: Path | None
    name: str
    sha256: str
    mmproj_sha256: str | None


@dataclass(frozen=True)
class Identity:
    """What a file is, and the size and time (ns) of the state in which it was read."""

    architecture: str
    sha256: str
    size_bytes: int
    mtime_ns: int


def resolve(settings: Settings, source: Path, progress: Progress) -> ModelFiles:
    """The files of ``settings.model``: a shape's name, or the path of a GGUF file.

    A stand-in is made below ``cache_dir`` if it is not there; its tokenizer comes out of the
    llama.cpp tree ``source``. ``settings.model.mmproj`` takes the place of a stand-in's own.

    Raises:
        ModelError: neither a shape nor a usable file, or the stand-in cannot be written.
    """
    name, mmproj = settings.model.name, settings.model.mmproj
    cache = settings.cache_dir / "models"
    shape = SHAPES.get(name)
    if shape is not None:
        model, own_mmproj = _stand_in(shape, settings.seed, source / _VOCAB, cache, progress)
        mmproj = mmproj or own_mmproj
    else:
        model = Path(name).expanduser()
        if not model.exists():
            raise _unknown(name)
    identity = identify(model, cache, progress)
    if identity.architecture == _PROJECTOR:
        raise ModelError(
            "this file is a vision projector, not a language model",
            where=str(model),
            hint="give it with --mmproj, and the language model with --model",
        )
    label = shape.name if shape else model.stem
    if mmproj is None:
        return ModelFiles(model, None, label, identity.sha256, None)
    projector = identify(mmproj, cache, progress)
    if projector.architecture != _PROJECTOR:
        raise ModelError(
            f"this file is a model of the architecture {projector.architecture},"
            " not a vision projector",
            where=str(mmproj),
            hint="--mmproj takes a GGUF file of the architecture clip",
        )
    return ModelFiles(model, mmproj, label, identity.sha256, projector.sha256)


def identify(path: Path, cache: Path, progress: Progress) -> Identity:
    """Architecture and sha256 of a GGUF file that is whole.

    Remembered in ``cache/digests.json`` for as long as the file keeps its size and time, so that
    19 GB are not read at every run.

    Raises:
        ModelError: not readable, not a GGUF file, or cut short.
    """
    key = str(path.resolve())
    known = _load_identities(cache / "digests.json")
    with _as_model_error(path):
        state = path.stat()
    found = known.get(key)
    if found and (found.size_bytes, found.mtime_ns) == (state.st_size, state.st_mtime_ns):
        return found
    architecture = gguf_files.read_head(path).architecture
    with _as_model_error(path):
        sha256 = _sha256(path, state.st_size, progress)
    identity = Identity(architecture, sha256, state.st_size, state.st_mtime_ns)
    with _as_model_error(cache):
        cache.mkdir(parents=True, exist_ok=True)
        _save_identities(cache / "digests.json", known | {key: identity})
    return identity


def _stand_in(
    shape: Shape, seed: int, vocab: Path, cache: Path, progress: Progress
) -> tuple[Path, Path]:
    folder = cache / f"{shape.name}-{seed}-{standin.recipe_digest(shape, vocab)}"
    made = folder / "model.gguf", folder / "mmproj.gguf"
    if all(path.exists() for path in made):  # renamed into place, so whole; no lock on it is needed
        return made
    with _as_model_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    # Two runs at once: the second waits here and then finds the files.
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return standin.make(shape, seed, vocab, folder, progress)


def _unknown(name: str) -> ModelError:
    near = difflib.get_close_matches(name, SHAPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the shapes are {', '.join(SHAPES)}"
    return ModelError(f"no such file and no shape of that name: {name}", hint=hint)


def _sha256(path: Path, size_bytes: int, progress: Progress) -> str:
    digest = hashlib.sha256()
    done_bytes = 0
    progress.start(f"sha256 of {path.name}", size_bytes)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            progress.advance(done_bytes)
    progress.finish()
    return digest.hexdigest()


def _load_identities(path: Path) -> dict[str, Identity]:
    # Only a cache: whatever cannot be read is worked out again.
    try:
        return {key: Identity(**entry) for key, entry in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save_identities(path: Path, identities: dict[str, Identity]) -> None:
    text = json.dumps({key: asdict(identity) for key, identity in identities.items()}, indent=1)
    write_text(path, text)


@contextlib.contextmanager
def _as_model_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"cannot be used: {error.strerror}", where=str(path)) from error

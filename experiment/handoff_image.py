"""The image of a run as one file: saved by the engine, put into order, checked by its layers.

An engine writes one of two layouts: ``manifest.json`` with a folder a layer (before Docker 25, and
podman), or an OCI layout, ``index.json`` with blobs. The file is the same each time it is made: the
members are in order and carry neither times nor owners; their contents are as the engine gave them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import docker
import requests

from experiment.docker_client import Connection
from experiment.errors import ArchiveError, EngineError, HandoffError
from experiment.progress import Progress

_GZIP = b"\x1f\x8b"
_TAR_MAGIC = slice(257, 262)
_MAX_JSON_BYTES = 16 << 20
_MAX_LINKS = 8
_MAX_INDEXES = 4

_SORTED = "members sorted, without times and owners, contents as the engine saved them"
_COMPRESSED = (
    "; layers are compressed as the engine's store keeps them, which another store does in another "
    "way: only the layers' digests, of what is in them, are the same everywhere"
)


def save(
    connection: Connection, image_id: str, name: str, to: Path, progress: Progress
) -> dict[str, object]:
    """Have the engine save an image, without any name of it, and return its record.

    Args:
        connection: the engine.
        image_id: as the run has recorded it.
        name: what the image was called; loading the file calls nothing by it.
        to: the tar file to make.
        progress: where to show it.

    Raises:
        HandoffError: the engine has no such image, or saved another one.
        EngineError: it refused.
    """
    raw = to.with_name(f"{to.name}.saved")
    try:
        image = connection.client.images.get(image_id)
        size_bytes, done = int(image.attrs["Size"]), 0
        progress.start("save the image", size_bytes)
        with raw.open("wb") as file:
            for chunk in image.save():
                file.write(chunk)
                done += len(chunk)
                progress.advance(min(done, size_bytes))
        progress.finish()
        _put_in_order(raw, to)
    except docker.errors.ImageNotFound as error:
        raise HandoffError(
            "the engine does not have the image of the run any more",
            where=image_id,
            hint="pack without --with-image, or run again",
        ) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EngineError(f"the engine could not save the image: {error}") from error
    finally:
        raw.unlink(missing_ok=True)
    try:
        layers = layer_digests(to)
        with _opened(to) as saved:
            architecture, compressed = saved.architecture(), saved.is_compressed()
    except ArchiveError as error:
        raise HandoffError(
            f"the engine saved no whole image: {error.what}", where=image_id
        ) from error
    if list(layers) != list(image.attrs["RootFS"]["Layers"]):
        raise HandoffError("the engine saved another image than it names", where=image_id)
    return {
        "reference": name,
        "id": image_id,
        "layers": list(layers),
        "architecture": architecture,
        "byte_stable": not compressed,
        "note": _SORTED + (_COMPRESSED if compressed else ""),
    }


def layer_digests(image_tar: Path) -> tuple[str, ...]:
    """The layers of a saved image, lowest first: ``sha256:…`` of each one's uncompressed tar.

    Worked out from the layers themselves, in pieces, and compared with what the image says.

    Raises:
        ArchiveError: this is no saved image, or it is not what its own configuration says.
    """
    with _opened(image_tar) as image:
        wanted = image.diff_ids()
        found: list[str] = []
        for name, stream in image.layers():
            digest = f"sha256:{hashlib.file_digest(cast('Any', stream), 'sha256').hexdigest()}"
            if digest != wanted[len(found)]:
                raise image.error(
                    f"layer {len(found) + 1} is {digest}, the image says {wanted[len(found)]}", name
                )
            found.append(digest)
        return tuple(found)


@contextlib.contextmanager
def layers(image_tar: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The members of a saved image that are layers, and what is in them, uncompressed.

    Raises:
        ArchiveError: this is no saved image.
    """
    with _opened(image_tar) as image:
        yield image.layers()


def _put_in_order(saved: Path, to: Path) -> None:
    try:
        with (
            tarfile.open(saved, "r:") as source,
            tarfile.open(to, "w", format=tarfile.USTAR_FORMAT) as target,
        ):
            # A hard link only after what it links to.
            for member in sorted(source.getmembers(), key=lambda m: (m.islnk(), m.name)):
                entry = tarfile.TarInfo(member.name)
                entry.type, entry.linkname, entry.size = member.type, member.linkname, member.size
                entry.mode = 0o755 if member.isdir() else 0o644
                target.addfile(entry, source.extractfile(member) if member.isfile() else None)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise HandoffError(f"the engine saved no whole image: {error}") from error


@contextlib.contextmanager
def _opened(image_tar: Path) -> Iterator[_SavedImage]:
    try:
        with tarfile.open(image_tar, "r:") as tar:
            yield _SavedImage(tar, image_tar)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f"the image is damaged: {error}", where=str(image_tar)) from error


class _SavedImage:
    """A saved image that may be anything: every name in it is looked up, nothing is extracted."""

    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._path = path
        self._members = {posixpath.normpath(member.name): member for member in tar.getmembers()}
        places = [place for place in (self._by_manifest(), self._by_index()) if place is not None]
        if not places:
            raise self.error("it has neither manifest.json nor index.json")
        if len(places) == 2 and places[0] != places[1]:
            raise self.error("manifest.json and index.json name different images")
        config, self._layers = places[0]
        text = self._read(config)
        if hashlib.sha256(text).hexdigest() != posixpath.basename(config).removesuffix(".json"):
            raise self.error("the configuration is not the one that its name says", config)
        self._config = self._json(text, config)
        ids = self._field(
            self._field(self._config, "rootfs", dict, config), "diff_ids", list, config
        )
        if len(ids) != len(self._layers):
            raise self.error(
                f"it has {len(self._layers)} layers, the configuration says {len(ids)}", config
            )

    def error(self, what: str, member: str | None = None) -> ArchiveError:
        """The error of something that is wrong in the file."""
        where = f"{self._path}, {member}" if member else str(self._path)
        return ArchiveError(f"not a whole image: {what}", where=where)

    def diff_ids(self) -> list[str]:
        """What the configuration says of the layers."""
        return [str(digest) for digest in self._config["rootfs"]["diff_ids"]]

    def architecture(self) -> str:
        """What the image runs on, as Docker calls it."""
        return str(self._config.get("architecture"))

    def is_compressed(self) -> bool:
        """Whether any layer is."""
        return any(self._head(name)[:2] == _GZIP for name in self._layers)

    def layers(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Name and uncompressed content of each layer, lowest first."""
        for name in self._layers:
            head = self._head(name)
            with self._open(name) as stored:
                if head[:2] == _GZIP:
                    with gzip.GzipFile(fileobj=stored) as unpacked:
                        yield name, cast("IO[bytes]", unpacked)
                elif not head or head[_TAR_MAGIC] == b"ustar" or not any(head):
                    yield name, stored
                else:
                    raise self.error("a layer is neither a tar nor a gzip", name)

    def _head(self, name: str) -> bytes:
        with self._open(name) as stored:
            return stored.read(tarfile.BLOCKSIZE)

    def _by_manifest(self) -> tuple[str, list[str]] | None:
        name = "manifest.json"
        if name not in self._members:
            return None
        images = self._json(self._read(name), name)
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            raise self.error("it is to hold one image", name)
        config = self._field(images[0], "Config", str, name)
        places = self._field(images[0], "Layers", list, name)
        return posixpath.normpath(config), [posixpath.normpath(str(place)) for place in places]

    def _by_index(self) -> tuple[str, list[str]] | None:
        name = "index.json"
        if name not in self._members:
            return None
        for _ in range(_MAX_INDEXES):
            found = self._json(self._read(name), name)
            if not isinstance(found, dict) or "manifests" not in found:
                break
            images = [
                item for item in self._field(found, "manifests", list, name) if _is_image(item)
            ]
            if len(images) != 1:
                raise self.error(f"it is to hold one image, not {len(images)}", name)
            name = self._blob(images[0], name)
        config = self._field(found, "config", dict, name)
        places = self._field(found, "layers", list, name)
        return self._blob(config, name), [self._blob(place, name) for place in places]

    def _blob(self, descriptor: object, where: str) -> str:
        digest: str = self._field(descriptor, "digest", str, where)
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise self.error(f"{digest!r:.80} is no digest", where)
        return f"blobs/sha256/{digest.removeprefix('sha256:')}"

    def _field(self, value: object, key: str, kind: type, where: str) -> Any:
        found = value.get(key) if isinstance(value, dict) else None
        if not isinstance(found, kind):
            raise self.error(f"there is no {key}", where)
        return found

    def _json(self, text: bytes, where: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"it is not JSON: {error}", where) from error

    def _read(self, name: str) -> bytes:
        if self._member(name).size > _MAX_JSON_BYTES:
            raise self.error("it is too large for what it is to hold", name)
        with self._open(name) as stored:
            return stored.read()

    def _open(self, name: str) -> IO[bytes]:
        return cast("IO[bytes]", self._tar.extractfile(self._member(name)))

    def _member(self, name: str) -> tarfile.TarInfo:
        """The file of that name; layers that are the same are saved once, and linked to."""
        at = name
        for _ in range(_MAX_LINKS):
            member = self._members.get(at)
            if member is None:
                break
            # Of a sparse file a few bytes stand for as many as it likes.
            if member.isreg() and not member.issparse():
                return member
            if not member.issym():
                break
            at = posixpath.normpath(posixpath.join(posixpath.dirname(at), member.linkname))
        raise self.error(f"it lacks {name}")


def _is_image(item: object) -> bool:
    """Not how the image was built, which is listed beside it."""
    annotations = item.get("annotations") if isinstance(item, dict) else None
    return not (isinstance(annotations, dict) and "vnd.docker.reference.type" in annotations)

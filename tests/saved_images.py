"""Images as engines save them, made by hand: as Docker does up to version 24, and since."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker

from experiment.docker_client import Connection


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def layer(**files: bytes) -> bytes:
    """A layer's tar."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return sink.getvalue()


BASE = layer(os_release=b"Debian", bin_sh=b"\x7fELF" * 1000)
EMPTY = layer()
APP = layer(app=b"print('experiment')\n")
LAYERS = (BASE, EMPTY, APP, EMPTY)
DIGESTS = tuple(f"sha256:{sha256(content)}" for content in LAYERS)


def config(layers: Sequence[bytes] = LAYERS, **changes: object) -> bytes:
    value: dict[str, object] = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(data)}" for data in layers]},
    }
    return json.dumps(value | changes).encode()


Member = tuple[str, bytes | str | None]
"""Name and content; a text is where a link leads, None stands for a folder."""


def write(to: Path, members: Sequence[Member], *, mtime: int = 0, owner: str = "") -> Path:
    """A tar file of these members, with a time and an owner such as an engine may give them."""
    with tarfile.open(to, "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.uname, entry.uid = mtime, owner, 1000 if owner else 0
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o775
                tar.addfile(entry)
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return to


def legacy(*, about: bytes | None = None, layers: Sequence[bytes] = LAYERS) -> list[Member]:
    """Docker 20.10: a folder a layer; one that was there before is a link to it."""
    about = config() if about is None else about
    members: list[Member] = [(f"{sha256(about)}.json", about)]
    seen: dict[bytes, str] = {}
    names = []
    for number, content in enumerate(layers):
        folder = sha256(f"v1 id {number}".encode())
        names.append(f"{folder}/layer.tar")
        link = f"../{seen[content]}/layer.tar" if content in seen else None
        seen.setdefault(content, folder)
        members += [
            (f"{folder}/", None),
            (f"{folder}/VERSION", b"1.0"),
            (f"{folder}/json", json.dumps({"id": folder}).encode()),
            (f"{folder}/layer.tar", content if link is None else link),
        ]
    manifest = [{"Config": f"{sha256(about)}.json", "RepoTags": None, "Layers": names}]
    return [*members, ("manifest.json", json.dumps(manifest).encode())]


def oci(
    *,
    about: bytes | None = None,
    layers: Sequence[bytes] = LAYERS,
    compressed: bool = False,
    with_attestation: bool = False,
    with_manifest: bool = True,
) -> list[Member]:
    """Docker 25 and later: blobs by digest, an index that leads to them, and the old manifest."""
    about = config() if about is None else about
    stored = [gzip.compress(data, mtime=0) if compressed else data for data in layers]
    blobs = {sha256(about): about, **{sha256(data): data for data in stored}}

    def descriptor(data: bytes, **more: object) -> dict[str, Any]:
        blobs[sha256(data)] = data
        return {"digest": f"sha256:{sha256(data)}", "size": len(data), **more}

    manifest = json.dumps(
        {"config": descriptor(about), "layers": [descriptor(data) for data in stored]}
    ).encode()
    top = {"manifests": [descriptor(manifest)]}
    if with_attestation:
        seal = descriptor(
            b'{"config": {}, "layers": []}',
            annotations={"vnd.docker.reference.type": "attestation-manifest"},
        )
        inner = json.dumps({"manifests": [descriptor(manifest), seal]}).encode()
        top = {"manifests": [descriptor(inner)]}
    members: list[Member] = [
        ("blobs/", None),
        ("blobs/sha256/", None),
        *((f"blobs/sha256/{digest}", data) for digest, data in blobs.items()),
        ("index.json", json.dumps(top).encode()),
        ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
    ]
    if with_manifest:
        old = {
            "Config": f"blobs/sha256/{sha256(about)}",
            "RepoTags": None,
            "Layers": [f"blobs/sha256/{sha256(data)}" for data in stored],
        }
        members.append(("manifest.json", json.dumps([old]).encode()))
    return members


IMAGE_ID = f"sha256:{sha256(config())}"


class Engine:
    """An engine that has one image and saves it as it is told to."""

    def __init__(self, saved: Path, digests: tuple[str, ...] = DIGESTS) -> None:
        self.saved = saved
        self.attrs = {"Size": 1000, "RootFS": {"Layers": list(digests)}}
        self.asked: list[str] = []

    def get(self, name: str) -> Engine:
        self.asked.append(name)
        if name != IMAGE_ID:
            raise docker.errors.ImageNotFound("no such image")
        return self

    def save(self) -> Iterator[bytes]:
        content = self.saved.read_bytes()
        for start in range(0, len(content), 1000):
            yield content[start : start + 1000]

    @property
    def connection(self) -> Connection:
        return cast("Connection", SimpleNamespace(client=SimpleNamespace(images=self)))

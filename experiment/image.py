"""Builds the image through the Docker SDK, from a context of what the Dockerfile copies."""

from __future__ import annotations

import io
import json
import os
import re
import string
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests

from experiment.docker_client import Connection
from experiment.errors import EngineError
from experiment.host import git_state
from experiment.patches import Series
from experiment.paths import ROOT
from experiment.pins import load_base_image
from experiment.progress import Progress
from experiment.settings import Settings

# What .dockerignore lets through, for `docker build .` and for the SDK alike.
CONTEXT = (
    "Dockerfile",
    "LICENSE",
    "tasks.py",
    "data",
    "docker",
    "experiment",
    "patches",
    "schemas",
)
REQUIREMENTS = "requirements/*.txt"
CA_BUNDLE = "ca-bundle.crt"
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
# The engine paints what a step writes to standard error.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_LINES = 25
_NOTE_LENGTH = 60


@dataclass(frozen=True)
class Image:
    """A built image. ``id`` is the engine's own, ``sha256:…``."""

    tag: str
    id: str
    size_bytes: int


def build_image(
    connection: Connection,
    settings: Settings,
    series: Series,
    progress: Progress,
    *,
    tag: str | None = None,
    target: str | None = None,
    cached: bool = True,
) -> Image:
    """Build the image; the engine's own cache makes this quick where nothing has changed.

    Args:
        connection: the engine.
        settings: ``container`` and ``build.pin`` are read.
        series: the patches, for the image's label.
        progress: shows the Dockerfile's steps.
        tag: another name than ``container.image``.
        target: an earlier stage of the Dockerfile to stop at.
        cached: False compiles everything anew.

    Raises:
        EngineError: a step failed; the message ends in its last lines.
    """
    container = settings.container
    bundle = container.ca_bundle or default_ca_bundle(os.environ)
    arguments = {
        "BASE_IMAGE": container.base_image or load_base_image().reference,
        "APT_SNAPSHOT": "1" if container.apt_snapshot else "0",
        "PIN": settings.build.pin,
        "REVISION": _revision(),
        "PATCH_DIGEST": series.digest,
    }
    progress.start("build the image", None)
    name = tag or container.image
    with _engine_errors("build the image"):
        stream = connection.client.api.build(
            fileobj=io.BytesIO(context_archive(ROOT, bundle)),
            custom_context=True,
            tag=name,
            target=target or "",
            nocache=not cached,
            buildargs=arguments,
            rm=True,
            forcerm=True,
            decode=True,
        )
        _follow(stream, arguments, progress)
        found = connection.client.images.get(name)
    progress.finish()
    return Image(name, str(found.id), int(found.attrs["Size"]))


def reproduce(
    connection: Connection, settings: Settings, series: Series, progress: Progress
) -> dict[str, tuple[str, str]]:
    """Compile twice from nothing, each time in a new container, and compare what comes out.

    Returns:
        File name -> the two sha256 of each program and library; equal where it is reproducible.

    Raises:
        EngineError: a build failed.
    """
    records: list[dict[str, Any]] = []
    for attempt in ("first", "second"):
        progress.say(f"the {attempt} of two builds from nothing")
        tag = f"{settings.container.image}-reproduce"
        image = build_image(
            connection, settings, series, progress, tag=tag, target="compile", cached=False
        )
        records.append(_record_in(connection, image))
        with _engine_errors("remove the image"):
            connection.client.images.remove(tag, force=True)
    first, second = (record["binaries"] for record in records)
    names = sorted({*first, *second})
    missing = {"sha256": "missing"}
    return {
        name: (first.get(name, missing)["sha256"], second.get(name, missing)["sha256"])
        for name in names
    }


def _record_in(connection: Connection, image: Image) -> dict[str, Any]:
    with _engine_errors("read the image"):
        container = connection.client.containers.create(image.id)
        try:
            chunks, _ = container.get_archive("/opt/llama/build.json")
            packed = io.BytesIO(b"".join(chunks))
        finally:
            container.remove()
    with tarfile.open(fileobj=packed) as archive:
        member = archive.extractfile("build.json")
        assert member is not None
        record: dict[str, Any] = json.load(member)
    return record


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EngineError(f"the engine could not {what}: {error}") from error


def default_ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """The certificates that this machine's own pip goes by, so that the build goes by them too."""
    for name in CA_VARIABLES:
        path = Path(environment.get(name, ""))
        if environment.get(name) and path.is_file():
            return path
    return None


def context_archive(root: Path, ca_bundle: Path | None) -> bytes:
    """The build context as a tar archive; the same files give the same bytes.

    Raises:
        EngineError: the certificates cannot be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        # Folders too, as the command line sends them: both then find the same layers in the cache.
        for path in _context_folders(root):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path in _context_files(root):
            # The mode that a checkout of git has, whatever the umask was.
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            _add(archive, path.relative_to(root).as_posix(), path.read_bytes(), mode)
        if ca_bundle is not None:
            try:
                _add(archive, CA_BUNDLE, ca_bundle.read_bytes(), 0o644)
            except OSError as error:
                raise EngineError(
                    f"the certificates cannot be read: {error.strerror}",
                    where=str(ca_bundle),
                    hint="name the file with --ca-bundle",
                ) from error
    return buffer.getvalue()


def _context_folders(root: Path) -> Iterator[Path]:
    for top in (root / name for name in (*CONTEXT, Path(REQUIREMENTS).parent)):
        if top.is_dir():
            found = [top, *sorted(path for path in top.rglob("*") if path.is_dir())]
            yield from (folder for folder in found if "__pycache__" not in folder.parts)


def _context_files(root: Path) -> Iterator[Path]:
    for name in CONTEXT:
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)
    yield from sorted(root.glob(REQUIREMENTS))


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _revision() -> str:
    state = git_state(ROOT)
    if state["commit"] is None:
        return "unknown"
    return f"{state['commit']}-dirty" if state["dirty"] else state["commit"]


def _follow(stream: Iterator[Any], arguments: Mapping[str, str], progress: Progress) -> None:
    """Show the steps as they come; raise with the end of the output of one that fails."""
    step = "the first step"
    tail: list[str] = []
    number = total = 0
    for message in stream:
        text = _COLOUR.sub("", str(message.get("stream") or message.get("status") or ""))
        for line in text.splitlines():
            if found := _STEP.match(line):
                number, total = int(found[1]), int(found[2])
                command = string.Template(found[3]).safe_substitute(arguments)
                step, tail = f"step {number} of {total} ({command[:100]})", []
                if number == 1:
                    progress.start("build the image", total)
                progress.advance(number - 1, command[:_NOTE_LENGTH])
            elif line.strip():
                tail = [*tail[-_TAIL_LINES:], line.rstrip()]
                if number:
                    progress.advance(number - 1, line.strip()[:_NOTE_LENGTH])
        if "error" in message:
            lines = "".join(f"\n    {line}" for line in tail)
            raise EngineError(
                f"the image could not be built: {str(message['error']).strip()}",
                where=step,
                hint=_hint(str(message["error"]) + "\n".join(tail)) + f"\n  its last lines:{lines}",
            )


def _hint(output: str) -> str:
    causes = (
        (("CERTIFICATE_VERIFY", "certificate"), "name the proxy's certificates with --ca-bundle"),
        (("names no snapshot",), "set container.apt_snapshot to false for this base image"),
        (("manifest", "pull access", "registry", "not found"), "name another --base-image"),
        (
            ("resolv", "connect", "Connection", "network"),
            "the build needs to reach package registries; behind a proxy see --ca-bundle",
        ),
        (("No space left",), "free some disk space for the engine"),
        (("Killed", "signal 9"), "give the engine more memory, or lower build.jobs"),
    )
    for words, advice in causes:
        if any(word in output for word in words):
            return advice
    return "the lines below say what failed"

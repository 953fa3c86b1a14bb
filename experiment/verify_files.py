"""Whether the files beside a run's rows belong to it: code, patches, source, image, crate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from experiment.archive_manifest import MANIFEST, Manifest
from experiment.crate import METADATA
from experiment.errors import ArchiveError, SourceError
from experiment.handoff_image import layer_digests
from experiment.patches import load_series
from experiment.paths import ROOT
from experiment.pins import GitPin, SdistPin, load_pins, pin_named
from experiment.trees import same_content

IMAGE = "image/image.tar"

_MAX_JSON_BYTES = 64 << 20
_MAKERS = ("experiment", "schemas")
_RECORD = {"pin", "kind", "commit", "file", "sha256"}


def patches(top: Path, patch_digest: object, pin: object) -> str:
    """Check that the code in an archive has the patches that the run was made with.

    Args:
        top: the archive's top folder.
        patch_digest: of the run.
        pin: likewise.

    Returns:
        what was checked, as a sentence.

    Raises:
        ArchiveError: it has others.
        PatchError: they cannot be read.
    """
    series = load_series(top / "repository" / "patches")
    if series.digest != patch_digest:
        raise ArchiveError(
            f"repository/patches has the digest {series.digest}, "
            f"the run was made with {patch_digest}"
        )
    diff = (top / "results" / "git_diff.patch").read_bytes()
    if diff != series.as_diff().encode():
        raise ArchiveError("results/git_diff.patch is not repository/patches as one diff")
    build = read_json(top / "results" / "build.json")
    named = [{"name": patch.name, "sha256": patch.sha256} for patch in series.patches]
    if build.get("patches") != named:
        raise ArchiveError("results/build.json names other patches than repository/patches")
    if build.get("pin") != pin:
        raise ArchiveError(f"results/build.json has the pin {build.get('pin')}, the run {pin}")
    state = read_json(top / "repository.json")
    recorded = read_json(top / "results" / "host.json").get("repository")
    told = {"commit": state.get("commit"), "dirty": state.get("dirty")}
    if not isinstance(told["commit"], str) or recorded != told:
        raise ArchiveError(f"repository.json says {told}, the run recorded {recorded}")
    changes = ", with changes that were not committed" if state["dirty"] else ""
    count = len(series.patches)
    return f"{count} patches, those of the run; repository/ is commit {told['commit']}{changes}"


def source(top: Path, manifest: Manifest) -> str:
    """Check that the llama.cpp source in an archive is the pinned one that the run was built from.

    Args:
        top: the archive's top folder.
        manifest: of the archive.

    Raises:
        ArchiveError: it is not.
        SourceError: the pins cannot be read.
    """
    record = read_json(top / "source.json")
    if set(record) != _RECORD or not all(isinstance(value, str) for value in record.values()):
        raise ArchiveError(f"source.json does not say {', '.join(sorted(_RECORD))}")
    there = [entry.path for entry in manifest.files if entry.path.startswith("source/")]
    if there != [f"source/{record['file']}"]:
        raise ArchiveError(f"source.json names {record['file']!r:.80}, source/ has {there}")
    with (top / "source" / record["file"]).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    pins = load_pins(top / "repository" / "docker" / "pins.toml")
    pin = pins.get(record["pin"])
    if pin is None or pin.kind != record["kind"]:
        raise ArchiveError(f"repository/docker/pins.toml has no such {record['kind']} pin")
    wanted = {"file": record["file"], "commit": record["commit"], "sha256": digest}
    if isinstance(pin, SdistPin | GitPin):
        wanted |= {"file": pin.filename, "commit": pin.commit}
    if isinstance(pin, SdistPin):
        wanted["sha256"] = pin.sha256
    found = {**record, "sha256": digest}
    for key, value in wanted.items():
        if found[key] != value:
            raise ArchiveError(
                f"{key} of source/{record['file']} is {found[key]}, the pin {pin.name} says {value}"
            )
    if record["sha256"] != digest:
        raise ArchiveError(f"source.json has the sha256 {record['sha256']}, the file {digest}")
    build = read_json(top / "results" / "build.json")
    built = (build.get("pin"), build.get("commit"))
    if built != (record["pin"], record["commit"]):
        raise ArchiveError(
            f"source.json says pin {record['pin']}, commit {record['commit']}; the run was built "
            f"from {built[0]}, {built[1]}"
        )
    if isinstance(pin, SdistPin):
        known = "; this program pins the same" if _is_pinned_here(pin.name, pin) else ""
        return f"{record['file']} has the sha256 of the pin {pin.name}{known}"
    named = "git finds out at a rerun" if isinstance(pin, GitPin) else "no pin says"
    return f"{record['file']} has the sha256 that source.json says; {named} whether it is right"


def _is_pinned_here(name: str, pin: object) -> bool:
    try:
        return pin_named(name) == pin
    except SourceError:
        return False


def image(top: Path, image_digest: object) -> str | None:
    """Check that the layers of a packed image are those that are recorded; None if there is none.

    Args:
        top: the archive's top folder.
        image_digest: of the run.

    Raises:
        ArchiveError: they are not.
    """
    packed = top / IMAGE
    if not packed.is_file():
        return None
    record = read_json(packed.with_name("image.json"))
    layers = list(layer_digests(packed))
    if record.get("layers") != layers:
        raise ArchiveError(f"image.json names other layers than {IMAGE} has")
    if record.get("id") != image_digest:
        raise ArchiveError(
            f"image.json is of {record.get('id')!r:.80}, the run was made with {image_digest}"
        )
    return f"{len(layers)} layers have the digests that image.json names"


def metadata(top: Path, manifest: Manifest) -> str:
    """Check that ``ro-crate-metadata.json`` lists every file with its hash and size.

    Raises:
        ArchiveError: it does not.
    """
    graph = read_json(top / METADATA).get("@graph")
    if not isinstance(graph, list) or not all(isinstance(entity, dict) for entity in graph):
        raise ArchiveError("it has no @graph of entities")
    described: dict[str, Mapping[str, Any]] = {}
    parts: object = None
    for entity in graph:
        path = unquote(str(entity.get("@id")))
        if entity.get("@type") == "File":
            if path in described:
                raise ArchiveError(f"it describes {path!r:.200} twice")
            described[path] = entity
        elif path == "./":
            parts = entity.get("hasPart")
    wanted = {
        entry.path: (entry.sha256, str(entry.size_bytes))
        for entry in manifest.files
        if entry.path != METADATA
    }
    for path in sorted({*wanted, MANIFEST} ^ described.keys()):
        problem = "describes, but the archive lacks" if path in described else "does not describe"
        raise ArchiveError(f"it {problem} {path!r:.200}")
    for path, (digest, size) in wanted.items():
        if (described[path].get("sha256"), described[path].get("contentSize")) != (digest, size):
            raise ArchiveError(f"it gives another sha256 or contentSize of {path}")
    listed = [unquote(str(part.get("@id"))) for part in parts] if isinstance(parts, list) else []
    if sorted(listed) != sorted(described):
        raise ArchiveError("its root does not have every file as a part")
    return f"it lists {len(wanted):,} files with their sha256"


def is_this_program(repository: Path, root: Path = ROOT) -> bool:
    """Whether the code in an archive that makes tables and texts is the one that runs here."""
    return all(
        same_content(path, repository / path.relative_to(root))
        for folder in _MAKERS
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of an archive.

    Raises:
        ArchiveError: it is missing, too large, or none.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ArchiveError("it is too large for what it is to hold", where=path.name)
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ArchiveError(f"it cannot be read: {error.strerror}", where=path.name) from error
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"it is not JSON: {error}", where=path.name) from error
    if not isinstance(value, dict):
        raise ArchiveError("it is no JSON object", where=path.name)
    return value

"""``ro-crate-metadata.json``: what made what, for programs that read RO-Crates.

A Process Run Crate 0.6 (https://w3id.org/ro/wfrun/process/0.6), which extends RO-Crate 1.3. Who ran
it is not said, because a run does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from rocrate.model.contextentity import ContextEntity
from rocrate.model.file import File
from rocrate.rocrate import ROCrate

from experiment.archive_manifest import MANIFEST

METADATA = "ro-crate-metadata.json"
VERSION = "1.3"
PROFILE = "https://w3id.org/ro/wfrun/process/0.6"
TERMS = "https://w3id.org/ro/terms/workflow-run/context"
LICENSE = "https://spdx.org/licenses/MIT"
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp"

_MEDIA_TYPES = {
    ".csv": "text/csv",
    ".gz": "application/gzip",
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".patch": "text/x-diff",
    ".png": "image/png",
    ".py": "text/x-python",
    ".tar": "application/x-tar",
    ".toml": "application/toml",
    ".txt": "text/plain",
}


@dataclass(frozen=True)
class Part:
    """A file of the archive."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Run:
    """What the crate says about the run.

    Attributes:
        name: of the archive.
        run_id: of the run.
        description: what the archive holds, a sentence or two.
        command: what was done, as far as the run knows.
        started: with its time zone.
        finished: likewise.
        commit: of this project, with ``-dirty`` where files differed.
        llama_cpp: commit of llama.cpp.
        source: path in the archive of its source.
        image: id of the image that the run was made with, if any.
    """

    name: str
    run_id: str
    description: str
    command: str
    started: datetime
    finished: datetime
    commit: str
    llama_cpp: str
    source: str
    image: str | None


def make(run: Run, parts: Mapping[str, Part]) -> bytes:
    """The metadata of an archive with these files (by path, itself not among them)."""
    crate = ROCrate(version=VERSION)
    files = {
        path: crate.add(File(crate, dest_path=path, properties=_properties(path, part)))
        for path, part in sorted(parts.items())
    }
    about = {"description": "sha256 and size of every other file", **_kind(MANIFEST)}
    crate.add(File(crate, dest_path=MANIFEST, properties=about))
    root = crate.root_dataset
    root["name"] = run.name
    root["description"] = run.description
    root["datePublished"] = run.finished.isoformat()  # rocrate's own is the time of packing
    root["license"] = _entity(crate, LICENSE, "CreativeWork", name="MIT License")
    profile = {"name": "Process Run Crate", "version": PROFILE.rpartition("/")[2]}
    root["conformsTo"] = _entity(crate, PROFILE, "CreativeWork", **profile)
    llama_cpp = _entity(
        crate,
        LLAMA_CPP,
        "SoftwareApplication",
        name="llama.cpp",
        url=LLAMA_CPP,
        softwareVersion=run.llama_cpp,
        description="llama-server and llama-bench, patched with results/git_diff.patch",
    )
    project = _entity(
        crate,
        "#prefix-replay",
        "SoftwareApplication",
        name="prefix-replay",
        description="its files are below repository/",
        softwareVersion=run.commit,
        softwareRequirements=llama_cpp,
    )
    given = ("results/trace.jsonl", run.source)
    made = [
        path
        for path in files
        if path in ("results/results.duckdb", "report.html") or path.startswith("export/")
    ]
    action = _entity(
        crate,
        f"#{run.run_id}",
        "CreateAction",
        name=f"the run {run.run_id}",
        description=run.command,
        startTime=run.started.isoformat(),
        endTime=run.finished.isoformat(),
        actionStatus={"@id": "http://schema.org/CompletedActionStatus"},
        instrument=[project, llama_cpp],
        object=[files[path] for path in given],
        result=[files[path] for path in made],
    )
    if run.image is not None:
        crate.metadata.extra_contexts.append(TERMS)
        action["containerImage"] = _entity(
            crate,
            "#image",
            "ContainerImage",
            additionalType={"@id": "https://w3id.org/ro/terms/workflow-run#DockerImage"},
            name="prefix-replay",
            identifier=run.image,
        )
    root["mentions"] = [action]
    text = json.dumps(crate.metadata.generate(), indent=1, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode()


def _entity(crate: ROCrate, at: str, kind: str, /, **properties: object) -> ContextEntity:
    return crate.add(ContextEntity(crate, at, {"@type": kind, **properties}))


def _properties(path: str, part: Part) -> dict[str, str]:
    return {"sha256": part.sha256, "contentSize": str(part.size_bytes), **_kind(path)}


def _kind(path: str) -> dict[str, str]:
    media_type = _MEDIA_TYPES.get(PurePosixPath(path).suffix)
    return {} if media_type is None else {"encodingFormat": media_type}

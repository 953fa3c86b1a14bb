"""Packs a finished run into one archive: data, report, code, source and image, nothing private."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiment import (
    archive,
    claims,
    crate,
    export,
    handoff_guide,
    handoff_image,
    report,
    repository,
    scrub_folder,
    scrub_scan,
    source,
)
from experiment.archive_manifest import Facts
from experiment.database import DATABASE, SCHEMA_VERSION, connect, find_run_id
from experiment.docker_client import Connection
from experiment.errors import HandoffError, SourceError, StoreError
from experiment.paths import ROOT
from experiment.pins import pin_named
from experiment.progress import Progress
from experiment.repository import Repository
from experiment.scrub import Scrubber, gather
from experiment.settings import Settings

IMAGE_ID_START = "sha256:"

_ID = re.compile(r"(\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2})_[^_]+_([^_]+)")
_NAME_LENGTH = 50
"""Of a run's name; the archive's may have 80 characters."""


@dataclass(frozen=True)
class _Run:
    """The row of the run that is packed; times are UTC."""

    id: str
    started: datetime
    finished: datetime
    engine: str
    pin: str
    model: str
    image_digest: str | None
    settings: dict[str, Any]
    began_with: Settings
    hosts: tuple[str, ...]


def pack(
    folder: Path,
    settings: Settings,
    progress: Progress,
    *,
    with_image: bool,
    with_host_name: bool,
    to: Path | None,
    connection: Connection | None,
) -> Path:
    """Make the archive of a run and return its path. The same run gives the same bytes.

    Args:
        folder: the run's; it is only read.
        settings: where the llama.cpp source is kept, and where the archive goes by default.
        progress: where to show it.
        with_image: pack the image that the run was made with.
        with_host_name: leave the machine's name in.
        to: the archive; default ``<date_time>_<run name>-handoff.tar.gz`` in the results folder.
        connection: the engine that has the image.

    Raises:
        HandoffError: the run cannot be packed, or something private would be in the archive.
        ExperimentError: a part of the archive cannot be made. No archive is left half-made.
    """
    run = _finished(folder)
    name = _name(run.id)
    target = (to or settings.results_dir / f"{name}.tar.gz").absolute()
    if target.is_dir():
        raise HandoffError(
            "the archive cannot take the place of a folder", where=str(target), hint="name a file"
        )
    if with_image:
        _check_image(run, connection)
    code = repository.restore(folder)
    record, llama_cpp = _source(run, folder, settings, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".handoff-", dir=target.parent) as made:
        work = Path(made)
        private = gather(
            settings,
            run.settings,
            run.hosts,
            owned=(folder, ROOT),
            work=work,
            keeps_host=with_host_name,
        )
        scrubber = Scrubber(private)
        files: dict[str, Path | bytes] = {f"source/{llama_cpp.name}": llama_cpp}
        files["source.json"] = _json(record)
        files |= _code(code)
        if with_image and connection is not None and run.image_digest is not None:
            image = work / "image.tar"
            called = run.began_with.container.image
            about = handoff_image.save(connection, run.image_digest, called, image, progress)
            files |= {"image/image.tar": image, "image/image.json": _json(about)}
        run_id = scrubber.run_id(run.id)
        _add_results(files, folder, work / run_id, scrubber, progress)
        _add_texts(files, work / run_id, run, run_id, name, code, record)
        progress.start("look for anything private", None)
        scrub_scan.check(files, scrubber)
        progress.finish()
        digest = archive.write(
            target,
            Facts(name, run_id, run.finished, SCHEMA_VERSION),
            files,
            executables={f"repository/{path}" for path in code.executables},
            progress=progress,
        )
    progress.say(f"sha256 {digest}")
    return target


def _finished(folder: Path) -> _Run:
    """The run in a folder, if it has ended and nobody writes it."""
    database = folder / DATABASE
    if not database.is_file():
        raise HandoffError(
            f"there is no {DATABASE} here",
            where=str(folder),
            hint="name a results folder that a run has written",
        )
    try:
        with connect(database, read_only=True) as connection:
            run_id = find_run_id(connection, database)
            (row,) = connection.execute(
                "SELECT status, started, finished, engine, pin, model, image_digest, settings "
                "FROM run WHERE id = ?",
                [run_id],
            ).fetchall()
            hosts = connection.execute(
                "SELECT DISTINCT hostname FROM host WHERE run_id = ? AND hostname IS NOT NULL "
                "ORDER BY hostname",
                [run_id],
            ).fetchall()
    except StoreError as error:
        raise HandoffError(error.what, where=error.where, hint=error.hint) from error
    status, started, finished, engine, pin, model, image_digest, settings = row
    go_on = f"`invoke run --resume={folder.name}` goes on with it"
    if status != "finished":
        raise HandoffError(f"the run is {status}, not finished", where=str(folder), hint=go_on)
    log = database.with_name(f"{DATABASE}.wal")
    if log.exists():
        raise HandoffError(
            "a write-ahead log lies beside the database: it was not closed in order",
            where=str(log),
            hint=f"{go_on}, and closes it",
        )
    values = json.loads(settings)
    try:
        began_with = Settings.model_validate(values)
    except ValidationError as error:
        raise HandoffError(
            "the run has settings that this version does not know",
            where=str(folder),
            hint="pack in the checkout that made the run, as it was then",
        ) from error
    return _Run(
        id=run_id,
        started=started.replace(tzinfo=UTC),
        finished=finished.replace(tzinfo=UTC),
        engine=engine,
        pin=pin,
        model=model,
        image_digest=image_digest,
        settings=values,
        began_with=began_with,
        hosts=tuple(host for (host,) in hosts),
    )


def _name(run_id: str) -> str:
    """``<date_time>_<run name>-handoff``, without the host that the run's id names."""
    found = _ID.fullmatch(run_id)
    name = f"{found[1]}_{found[2][:_NAME_LENGTH]}" if found else run_id[:_NAME_LENGTH]
    return f"{name}-handoff"


def _check_image(run: _Run, connection: Connection | None) -> None:
    if run.engine != "docker":
        raise HandoffError(
            f"the run was made with the engine {run.engine}: there is no image to pack",
            where=run.id,
            hint="pack without --with-image",
        )
    if run.image_digest is None or not run.image_digest.startswith(IMAGE_ID_START):
        raise HandoffError(
            "the run does not know which image it was made with",
            where=run.id,
            hint="pack without --with-image; `invoke run --engine docker` tells a run its image",
        )
    if connection is None:
        raise HandoffError(
            "no container engine answers, so there is no image to pack",
            where=run.id,
            hint="start the engine that the run was made with, or pack without --with-image",
        )


def _source(
    run: _Run, folder: Path, settings: Settings, progress: Progress
) -> tuple[dict[str, object], Path]:
    """The record and the file of the llama.cpp source that the run was built from."""
    build = json.loads(_read(folder / "build.json"))
    try:
        pin = pin_named(run.pin)
        tree = source.obtain(pin, settings.cache_dir, progress, run.began_with.build.source)
        stamp = source.read_stamp(tree)
        packed = source.packed(pin, tree, settings.cache_dir, progress)
    except SourceError as error:
        raise HandoffError(
            f"the llama.cpp source cannot be packed: {error.what}",
            where=error.where or f"pin {run.pin}",
            hint=error.hint,
        ) from error
    if (build.get("commit"), build.get("source_digest")) != (stamp.commit, stamp.digest):
        raise HandoffError(
            f'the source of the pin "{run.pin}" is not the one that the run was built from',
            where=str(folder / "build.json"),
            hint="pack in the checkout that made the run, as it was then",
        )
    record: dict[str, object] = {
        "pin": run.pin,
        "kind": pin.kind,
        "commit": stamp.commit,
        "file": packed.name,
        "sha256": _sha256(packed),
    }
    return record, packed


def _code(code: Repository) -> dict[str, Path | bytes]:
    state = {"commit": code.commit, "dirty": code.dirty, "patch_sha256": code.patch_sha256}
    return {
        "repository.json": _json(state),
        **{f"repository/{path}": content for path, content in code.files.items()},
    }


def _add_results(
    files: dict[str, Path | bytes],
    folder: Path,
    scrubbed: Path,
    scrubber: Scrubber,
    progress: Progress,
) -> None:
    """Add the results without what is private, and what is made from those alone."""
    progress.start("copy the results without what is private", None)
    scrub_folder.copy(folder, scrubbed, scrubber)
    progress.start("make report and exports", None)
    work = scrubbed.parent
    files["report.html"] = report.write(scrubbed, work / "report.html")
    for path in export.export(scrubbed, work / "export", ("parquet", "jsonl")):
        files[f"export/{path.name}"] = path
    progress.finish()
    for path in sorted(scrubbed.rglob("*")):
        if path.is_file():
            files[f"results/{path.relative_to(scrubbed).as_posix()}"] = path


def _add_texts(
    files: dict[str, Path | bytes],
    scrubbed: Path,
    run: _Run,
    run_id: str,
    name: str,
    code: Repository,
    record: Mapping[str, object],
) -> None:
    """Add what tells people and programs about all the other files."""
    claimed = claims.make(scrubbed)
    files["claims.toml"] = claims.write(claimed).encode()
    commit = f"{code.commit}-dirty" if code.dirty else code.commit
    packed = handoff_guide.Packed(
        name=name,
        commit=commit,
        source=f"source/{record['file']}",
        image="image/image.tar" if "image/image.tar" in files else None,
        size_bytes=sum(map(_size_bytes, files.values())),
    )
    files["REPRODUCE.md"] = handoff_guide.render(scrubbed, packed, claimed).encode()
    about = crate.Run(
        name=name,
        run_id=run_id,
        description="Prefill of an agent's steps behind fabricated and real prefixes, measured "
        "with a patched llama.cpp: data, report, code, source, and how to check it and run it "
        "again (REPRODUCE.md).",
        command=f"the trace replayed with the model {run.model} and the engine {run.engine}; the "
        "settings stand in the table run of results/results.duckdb",
        started=run.started,
        finished=run.finished,
        commit=commit,
        llama_cpp=str(record["commit"]),
        source=packed.source,
        image=run.image_digest if packed.image else None,
    )
    parts = {path: _part(content) for path, content in files.items()}
    files[crate.METADATA] = crate.make(about, parts)


def _part(content: Path | bytes) -> crate.Part:
    if isinstance(content, bytes):
        return crate.Part(hashlib.sha256(content).hexdigest(), len(content))
    return crate.Part(_sha256(content), _size_bytes(content))


def _size_bytes(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HandoffError(
            f"a file of the run is missing or cannot be read: {error.strerror}",
            where=str(path),
            hint="restore the file, or run again",
        ) from error

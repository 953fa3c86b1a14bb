"""A run packed: what is in the archive, that nothing private is, and what is refused."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from experiment import handoff, scrub
from experiment.claims import read as read_claims
from experiment.database import connect
from experiment.docker_client import Connection
from experiment.errors import HandoffError, SourceError
from experiment.progress import SilentProgress
from experiment.repository import Repository
from experiment.settings import Settings
from experiment.source import Stamp
from tests.canned_handoff import (
    BUILD,
    CHECKOUT,
    FACTS,
    HOME,
    HOST,
    RUN_ID,
    SCRUBBED_ID,
    SECRETS,
    STAMP,
    USER,
    be_zaphod,
    canned_folder,
    in_use,
)
from tests.saved_images import DIGESTS, IMAGE_ID, Engine, legacy, write

NAME = f"{STAMP}_smoke-handoff"
COMMIT = "a" * 40
CODE = Repository(
    commit=COMMIT,
    dirty=True,
    patch_sha256="b" * 64,
    # A host name in the code means something else than this machine.
    files={"inv": b"#!/bin/sh\n", "docs/notes.md": f"on {HOST}\n".encode()},
    executables=frozenset({"inv"}),
)
SOURCE = b"llama.cpp"


class World:
    """A checkout of zaphod's with one run in it, and what stands for git and the source."""

    def __init__(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        be_zaphod(monkeypatch)
        monkeypatch.setattr(scrub, "ROOT", Path(CHECKOUT))
        self.settings = Settings(cache_dir=checkout / ".cache", results_dir=checkout / "results")
        self.code = CODE
        self.stamp = Stamp("sdist", BUILD["commit"], BUILD["source_digest"])
        self.packed = checkout / "llama_cpp.tar.gz"
        checkout.mkdir(exist_ok=True)
        self.packed.write_bytes(SOURCE)
        monkeypatch.setattr(handoff.repository, "restore", lambda _folder: self.code)
        monkeypatch.setattr(handoff.source, "obtain", lambda *_arguments: checkout)
        monkeypatch.setattr(handoff.source, "read_stamp", lambda _tree: self.stamp)
        monkeypatch.setattr(handoff.source, "packed", lambda *_arguments: self.packed)

    def pack(
        self,
        folder: Path,
        *,
        with_image: bool = False,
        with_host_name: bool = False,
        to: Path | None = None,
        connection: Connection | None = None,
    ) -> Path:
        return handoff.pack(
            folder,
            self.settings,
            SilentProgress(),
            with_image=with_image,
            with_host_name=with_host_name,
            to=to,
            connection=connection,
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """With a report, exports and claims that are made at once."""

    def write_report(folder: Path, to: Path) -> Path:
        to.write_text(f"<html>{folder.name}</html>")
        return to

    def export(folder: Path, to: Path, formats: tuple[str, ...]) -> tuple[Path, ...]:
        assert formats == ("parquet", "jsonl")
        to.mkdir()
        (to / "steps.jsonl").write_text(f"{folder.name}\n")
        return (to / "steps.jsonl",)

    monkeypatch.setattr(handoff.report, "write", write_report)
    monkeypatch.setattr(handoff.export, "export", export)
    monkeypatch.setattr(handoff.claims, "make", lambda _folder: ())
    return World(tmp_path / "checkout", monkeypatch)


def unpacked(archive: Path) -> dict[str, bytes]:
    """The members of an archive by name, below its top folder."""
    found = {}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            top, _, name = member.name.partition("/")
            assert top == NAME
            content = tar.extractfile(member)
            assert content is not None
            found[name] = content.read()
    return found


def values(content: bytes, work: Path) -> bytes:
    """Every value of a Parquet file, as text."""
    (work / "x.parquet").write_bytes(content)
    with duckdb.connect() as connection:
        rows = connection.execute(f"FROM read_parquet('{work / 'x.parquet'}')").fetchall()
    return repr(rows).encode()


def refused(pack: Callable[[], Path]) -> HandoffError:
    with pytest.raises(HandoffError) as caught:
        pack()
    assert caught.value.where
    assert caught.value.hint
    return caught.value


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One run packed twice, each part made by what makes it for a user."""
    checkout = tmp_path_factory.mktemp("checkout")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "made" / "mine.tgz"
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(checkout, monkeypatch)
        folder = canned_folder(world.settings.results_dir)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        made = (world.pack(folder), world.pack(folder, to=elsewhere))
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return made


@pytest.fixture(scope="module")
def real(archives: tuple[Path, Path]) -> dict[str, bytes]:
    return unpacked(archives[0])


def test_the_same_run_gives_the_same_bytes(archives: tuple[Path, Path]) -> None:
    one, other = archives
    assert one.read_bytes() == other.read_bytes()


def test_archive_lies_beside_the_runs_or_where_it_is_asked_for(
    archives: tuple[Path, Path],
) -> None:
    one, other = archives
    assert {path.name for path in one.parent.iterdir()} == {f"{NAME}.tar.gz", RUN_ID}
    assert {path.name for path in other.parent.iterdir()} == {"mine.tgz"}


def test_archive_has_the_layout_that_verify_expects(real: dict[str, bytes]) -> None:
    fixed = {name for name in real if not name.startswith("export/")}
    assert fixed == {
        "manifest.json",
        "REPRODUCE.md",
        "claims.toml",
        "ro-crate-metadata.json",
        "report.html",
        "repository.json",
        "repository/inv",
        "repository/docs/notes.md",
        "source.json",
        "source/llama_cpp.tar.gz",
        "results/results.duckdb",
        "results/host.json",
        "results/build.json",
        "results/graph.json",
        "results/sweep.json",
        "results/git_diff.patch",
        "results/trace.jsonl",
        "results/shots/1.png",
        "results/raw/000001_fake_0.json",
        "results/raw/000001_fake_1.json",
        "results/raw/server.log",
        "results/raw/llama-bench.log",
    }
    exported = {name.removeprefix("export/") for name in real} & {
        *("run.parquet", "step_comparison.parquet", "task_wall.parquet", "steps.jsonl")
    }
    assert len(exported) == 4


def test_nothing_in_the_archive_tells_user_home_or_machine(
    real: dict[str, bytes], tmp_path: Path
) -> None:
    for name, content in real.items():
        seen = values(content, tmp_path) if name.endswith(".parquet") else b""
        for secret in SECRETS:
            if name == "repository/docs/notes.md":
                continue
            assert secret not in content.lower(), name
            assert secret not in seen.lower(), name
            assert secret not in name.encode()
    assert SCRUBBED_ID.encode() in values(real["export/run.parquet"], tmp_path)
    assert SCRUBBED_ID.encode() in real["report.html"]


def test_manifest_says_what_was_packed(real: dict[str, bytes]) -> None:
    manifest = json.loads(real["manifest.json"])
    assert next(iter(real)) == "manifest.json"
    assert (manifest["name"], manifest["run_id"]) == (NAME, SCRUBBED_ID)
    assert manifest["schema_version"] == 3
    assert {entry["path"] for entry in manifest["files"] if entry["executable"]} == {
        "repository/inv"
    }


def test_records_of_code_and_source(real: dict[str, bytes]) -> None:
    assert json.loads(real["repository.json"]) == {
        "commit": COMMIT,
        "dirty": True,
        "patch_sha256": "b" * 64,
    }
    assert json.loads(real["source.json"]) == {
        "pin": "sdist",
        "kind": "sdist",
        "commit": "c" * 40,
        "file": "llama_cpp.tar.gz",
        "sha256": hashlib.sha256(SOURCE).hexdigest(),
    }
    assert real["source/llama_cpp.tar.gz"] == SOURCE


def test_crate_lists_every_file_with_its_digest(real: dict[str, bytes]) -> None:
    graph = json.loads(real["ro-crate-metadata.json"])["@graph"]
    listed = {item["@id"]: item["sha256"] for item in graph if "sha256" in item}
    assert listed == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in real.items()
        if name not in ("manifest.json", "ro-crate-metadata.json")
    }


def test_claims_are_those_of_the_packed_data(real: dict[str, bytes]) -> None:
    claims = read_claims(real["claims.toml"].decode(), "claims.toml")
    (speedup,) = [claim for claim in claims if claim.key == "speedup"]
    # Medians of fake: 110 and 220 ms less their install; of full 1100 and 880.
    assert speedup.expected == pytest.approx((1100 + 880) / (110 + 220))
    assert speedup.sentence in real["REPRODUCE.md"].decode()


def test_an_archive_that_is_there_is_replaced(world: World, tmp_path: Path) -> None:
    target = tmp_path / "mine.tgz"
    target.write_bytes(b"old")
    world.pack(canned_folder(world.settings.results_dir), to=target)
    assert tarfile.is_tarfile(target)


def test_host_name_stays_on_request(world: World) -> None:
    archive = world.pack(canned_folder(world.settings.results_dir), with_host_name=True)
    found = unpacked(archive)
    assert json.loads(found["manifest.json"])["run_id"] == RUN_ID
    assert json.loads(found["results/host.json"])["facts"] == FACTS
    assert found["report.html"] == f"<html>{RUN_ID}</html>".encode()
    for name, content in found.items():
        assert USER.encode() not in content.lower(), name


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        (f"{STAMP}_vm_bench-default", f"{STAMP}_bench-default-handoff"),
        (f"{STAMP}_a.b-c_{'x' * 80}", f"{STAMP}_{'x' * 50}-handoff"),
        ("r1", "r1-handoff"),
        ("2026-11-30_mine", "2026-11-30_mine-handoff"),
    ],
)
def test_name_of_the_archive(run_id: str, name: str) -> None:
    assert handoff._name(run_id) == name
    assert len(name) <= 80


def test_image_is_packed_on_request(world: World, tmp_path: Path) -> None:
    engine = Engine(write(tmp_path / "saved", legacy()))
    folder = canned_folder(world.settings.results_dir, engine="docker", image_digest=IMAGE_ID)
    archive = world.pack(folder, with_image=True, connection=engine.connection)
    found = unpacked(archive)
    record = json.loads(found["image/image.json"])
    assert record["id"] == IMAGE_ID
    assert record["layers"] == list(DIGESTS)
    assert record["reference"] == "prefix-replay"
    assert len(found["image/image.tar"]) >= engine.saved.stat().st_size - 10240
    assert "docker load" in found["REPRODUCE.md"].decode()
    assert IMAGE_ID in found["ro-crate-metadata.json"].decode()
    # Without being asked for, it stays out.
    assert "image/image.tar" not in unpacked(world.pack(folder))


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_run_that_has_not_finished_is_refused(world: World, status: str) -> None:
    folder = canned_folder(world.settings.results_dir, status=status)
    error = refused(lambda: world.pack(folder))
    assert error.what == f"the run is {status}, not finished"
    assert f"run --resume={folder.name}" in str(error.hint)


def test_run_with_a_log_beside_its_database_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir)
    (folder / "results.duckdb.wal").touch()
    error = refused(lambda: world.pack(folder))
    assert "write-ahead log" in error.what
    assert f"run --resume={folder.name}" in str(error.hint)
    assert str(error.where).endswith("results.duckdb.wal")


def test_run_that_is_being_written_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir)
    with in_use(folder / "results.duckdb"):
        assert "in use" in refused(lambda: world.pack(folder)).what


def test_folder_without_a_database_is_refused(world: World, tmp_path: Path) -> None:
    assert "no results.duckdb" in refused(lambda: world.pack(tmp_path)).what


def test_run_of_another_schema_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir)
    with connect(folder / "results.duckdb", read_only=False) as connection:
        connection.execute("UPDATE run SET schema_version = 1")
    assert "schema version 1" in refused(lambda: world.pack(folder)).what


def test_run_with_unknown_settings_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir, settings={"answer": 42})
    assert "does not know" in refused(lambda: world.pack(folder)).what


def test_run_of_an_older_program_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real look at repository.json, which that program did not write
    folder = canned_folder(world.settings.results_dir)
    assert "which state of this project" in refused(lambda: world.pack(folder)).what


def test_target_that_is_a_folder_is_refused(world: World, tmp_path: Path) -> None:
    folder = canned_folder(world.settings.results_dir)
    error = refused(lambda: world.pack(folder, to=tmp_path))
    assert error.where == str(tmp_path)


def test_source_that_cannot_be_had_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> Path:
        raise SourceError("there is no network", hint="plug it in")

    monkeypatch.setattr(handoff.source, "obtain", fail)
    folder = canned_folder(world.settings.results_dir)
    error = refused(lambda: world.pack(folder))
    assert "there is no network" in error.what
    assert (error.where, error.hint) == ("pin sdist", "plug it in")


@pytest.mark.parametrize(
    "stamp",
    [Stamp("sdist", "e" * 40, BUILD["source_digest"]), Stamp("sdist", BUILD["commit"], "e" * 64)],
)
def test_source_of_another_state_is_refused(world: World, stamp: Stamp) -> None:
    world.stamp = stamp
    folder = canned_folder(world.settings.results_dir)
    assert "not the one that the run was built from" in refused(lambda: world.pack(folder)).what


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ({"engine": "native"}, "there is no image to pack"),
        ({"engine": "docker"}, "does not know which image"),
        ({"engine": "docker", "image_digest": "unknown"}, "does not know which image"),
        ({"engine": "docker", "image_digest": "sha256:0"}, "does not have the image"),
    ],
)
def test_image_that_is_not_there_is_refused(
    world: World, tmp_path: Path, record: dict[str, Any], what: str
) -> None:
    folder = canned_folder(world.settings.results_dir, **record)
    engine = Engine(write(tmp_path / "saved", legacy()))
    error = refused(lambda: world.pack(folder, with_image=True, connection=engine.connection))
    assert what in error.what
    assert "--with-image" in str(error.hint)


def test_image_without_an_engine_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir, engine="docker", image_digest=IMAGE_ID)
    assert "no container engine" in refused(lambda: world.pack(folder, with_image=True)).what


def test_what_is_private_and_cannot_be_changed_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir)
    trace = folder / "trace.jsonl"
    row = {"task_id": HOME, "step": 9, "depth": 1, "new": {"tokens": 1}}
    trace.write_text(trace.read_text() + json.dumps(row) + "\n")
    error = refused(lambda: world.pack(folder))
    assert error.where == "results/trace.jsonl, line 5"
    assert "run again" in str(error.hint)
    # Neither an archive nor anything that was made for it is left.
    assert [path.name for path in folder.parent.iterdir()] == [RUN_ID]


def test_private_path_in_the_code_is_refused(world: World) -> None:
    files = {**CODE.files, "notes.md": f"see\n{HOME}/todo\n".encode()}
    world.code = Repository(COMMIT, False, None, files, frozenset())
    folder = canned_folder(world.settings.results_dir)
    error = refused(lambda: world.pack(folder))
    assert error.where == "repository/notes.md, line 2"


def test_host_name_that_a_part_lets_through_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(_folder: Path, to: Path) -> Path:
        to.write_text(f"<p>\non {HOST}")
        return to

    monkeypatch.setattr(handoff.report, "write", leaky)
    folder = canned_folder(world.settings.results_dir)
    error = refused(lambda: world.pack(folder))
    assert error.where == "report.html, line 2"
    assert "--with-host-name" in str(error.hint)


def test_folder_of_the_work_is_private_too(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(folder: Path, to: Path) -> Path:
        to.write_text(str(folder))
        return to

    monkeypatch.setattr(handoff.report, "write", leaky)
    folder = canned_folder(world.settings.results_dir)
    error = refused(lambda: world.pack(folder, to=tmp_path / "elsewhere" / "mine.tgz"))
    assert str(tmp_path / "elsewhere" / ".handoff-") in error.what


def test_missing_record_of_the_build_is_refused(world: World) -> None:
    folder = canned_folder(world.settings.results_dir)
    (folder / "build.json").unlink()
    assert "missing" in refused(lambda: world.pack(folder)).what


def test_local_source_is_that_of_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SimpleNamespace(local=None)

    def obtain(_pin: object, _cache: Path, _progress: object, local: Path) -> Path:
        asked.local = local
        return local

    monkeypatch.setattr(handoff.source, "obtain", obtain)
    folder = canned_folder(world.settings.results_dir, pin="local")
    found = unpacked(world.pack(folder))
    assert asked.local == Path(HOME) / "llama.cpp"
    assert json.loads(found["source.json"])["kind"] == "local"

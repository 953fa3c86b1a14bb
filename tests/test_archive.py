"""Archives that are written the same every time, and hostile ones that must not get anywhere."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from archives import FACTS, FILES, NAME, Members, changed, gzipped, members, named, packed, tree
from archives import written as write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from experiment import archive
from experiment.archive_manifest import Entry, Manifest, spell
from experiment.errors import ArchiveError
from experiment.progress import SilentProgress

SILENT = SilentProgress()
DIGEST, DATA = 16, 48
"""Where the gzip header's digest begins, and what it is of."""


def refused(file: Path, where: Path, **more: Any) -> str:
    """What extracting says; nothing may be left of it, neither inside nor outside."""
    outside = where / "outside"
    inside = outside / "inside"
    inside.mkdir(parents=True)
    before = tree(where)
    with pytest.raises(ArchiveError) as caught:
        archive.extract(file, inside, progress=SILENT, **more)
    assert tree(where) == before
    return str(caught.value)


# --- what is written ---


def test_the_manifest_comes_first_and_lists_every_other_file_by_path(tmp_path: Path) -> None:
    found = members(write(tmp_path))
    assert [info.name for info, _ in found] == [
        f"{NAME}/manifest.json",
        f"{NAME}/REPRODUCE.md",
        f"{NAME}/repository/inv",
        f"{NAME}/results/raw/a.json",
    ]
    assert json.loads(found[0][1]) == {
        "format": 1,
        "name": NAME,
        "run_id": "r1",
        "created": "2026-11-30T02:41:05Z",
        "schema_version": 2,
        "files": [
            {
                "path": path,
                "sha256": hashlib.sha256(data).hexdigest(),  # type: ignore[arg-type]
                "size_bytes": len(data),  # type: ignore[arg-type]
                "executable": path == "repository/inv",
            }
            for path, data in FILES.items()
        ],
    }


def test_members_carry_nothing_of_the_machine_that_packed_them(tmp_path: Path) -> None:
    for info, _ in members(write(tmp_path)):
        assert (info.uid, info.gid, info.uname, info.gname) == (0, 0, "", "")
        assert info.mtime == 1796006465  # date -d 2026-11-30T02:41:05Z +%s
        assert info.mode == (0o755 if info.name.endswith("/inv") else 0o644)
        assert info.isreg()


def test_the_gzip_header_has_no_time_no_name_and_a_digest_of_what_follows(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    assert data[:10] == bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 0, 255])
    assert data[10:DIGEST] == bytes([36, 0]) + b"PR" + bytes([32, 0])
    assert data[DIGEST:DATA] == hashlib.sha256(data[DATA:]).digest()


def test_the_same_files_give_the_same_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    source = tmp_path / "source"
    source.write_bytes(b"# How\n")
    source.chmod(0o777)
    os.utime(source, (1, 1))
    from_disk: dict[str, Path | bytes] = dict(reversed(FILES.items())) | {"REPRODUCE.md": source}
    elsewhere = FACTS.created.astimezone(timezone(timedelta(hours=5), "X"))
    again = write(tmp_path / "other", from_disk, replace(FACTS, created=elsewhere))
    assert again.read_bytes() == write(tmp_path / "one").read_bytes()


def test_the_returned_digest_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.tar.gz"
    digest = archive.write(file, FACTS, FILES, progress=SILENT)
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert tree(file.parent) == {"x.tar.gz"}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_plain_tar_gives_what_extract_gives(tmp_path: Path) -> None:
    long = "long/" + "é" * 100 + "/x"
    file = write(tmp_path, {**FILES, long: b"x" * 513})
    (tmp_path / "plain").mkdir()
    done = subprocess.run(
        ["tar", "xzf", file, "-C", tmp_path / "plain"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    archive.extract(file, tmp_path / "ours", progress=SILENT)
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    assert tree(plain) == tree(ours)
    assert f"{NAME}/{long}" in tree(ours)
    for path in tree(plain):
        if (plain / path).is_file():
            assert (plain / path).read_bytes() == (ours / path).read_bytes()
            assert (plain / path).stat().st_mode == (ours / path).stat().st_mode


def test_headers_are_those_that_tarfile_makes(tmp_path: Path) -> None:
    lengths = range(80, 120)
    paths: dict[str, Path | bytes] = {"x" * n: b"x" * n for n in lengths}
    paths |= {"é" * n: b"" for n in (1, 40, 50)}
    file = write(tmp_path, paths)
    again = packed(tmp_path / "again.tar.gz", members(file))
    assert gzip.decompress(again.read_bytes()) == gzip.decompress(file.read_bytes())


def test_what_was_there_before_stays_if_packing_fails(tmp_path: Path) -> None:
    file = write(tmp_path)
    before = file.read_bytes()
    with pytest.raises(ArchiveError, match="no plain file"):
        write(tmp_path, {"a": tmp_path / "absent"})
    assert file.read_bytes() == before
    assert tree(tmp_path) == {"x.tar.gz"}


class _Meddling(SilentProgress):
    """Does something when the first file is about to be packed, which has been hashed by then."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self.meddle = meddle

    def advance(self, done: float, note: str = "") -> None:
        self.meddle()


@pytest.mark.parametrize("content", [b"other", b"shorter"[:4], b"longer", b""])
def test_a_file_that_changes_while_it_is_packed(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"first")
    meddling = _Meddling(lambda: source.write_bytes(content))
    with pytest.raises(ArchiveError, match=r"^a changed while it was packed"):
        archive.write(tmp_path / "x.tar.gz", FACTS, {"a": source}, progress=meddling)
    assert tree(tmp_path) == {"source"}


def test_a_link_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(ArchiveError, match="a cannot be packed: no plain file"):
        write(tmp_path, {"a": tmp_path / "link"})


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="the archive cannot be written"):
        archive.write(tmp_path / "file" / "x.tar.gz", FACTS, FILES, progress=SILENT)


HOSTILE_NAMES = {
    "/etc/passwd": "is an absolute path",
    "../x": "leads outside",
    "a/../../x": "leads outside",
    "a\\b": "holds a backslash",
    "a\nb": "holds a control character",
    "a\0b": "holds a control character",
    "a\x7fb": "holds a control character",
    "a\u202eb": "holds a control character",
    "./a": "has an empty part or a part",
    "a//b": "has an empty part or a part",
    "a/": "has an empty part or a part",
    "": "has an empty part or a part",
    "x" * 256: "is too long",
    "é" * 128: "is too long",
    "x/" * 512 + "x": "is too long",
}


@pytest.mark.parametrize(("name", "sentence"), HOSTILE_NAMES.items())
def test_hostile_names_are_not_written_either(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ArchiveError, match=sentence):
        write(tmp_path, {name: b""})


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, name="../x"),
        replace(FACTS, name=""),
        replace(FACTS, name="x" * 81),
        replace(FACTS, run_id="a\nb"),
        replace(FACTS, run_id="\ud800"),
        replace(FACTS, created=datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_facts_that_no_manifest_can_have(tmp_path: Path, facts: archive.Facts) -> None:
    with pytest.raises(ArchiveError):
        write(tmp_path, FILES, facts)


# --- what is extracted ---


def test_extract_gives_back_what_was_packed(tmp_path: Path) -> None:
    to = tmp_path / "new" / "folder"
    manifest = archive.extract(write(tmp_path), to, progress=SILENT)
    assert (manifest.name, manifest.run_id, manifest.schema_version) == (NAME, "r1", 2)
    assert [entry.path for entry in manifest.files] == list(FILES)
    assert {path: (to / NAME / path).read_bytes() for path in FILES} == FILES
    assert tree(to) == {
        NAME,
        *(f"{NAME}/{path}" for path in (*FILES, "manifest.json")),
        *(f"{NAME}/{path}" for path in ("repository", "results", "results/raw")),
    }


def test_modes_are_ours_whatever_the_umask(tmp_path: Path) -> None:
    file = write(tmp_path)
    before = os.umask(0o077)
    try:
        archive.extract(file, tmp_path / "to", progress=SILENT)
    finally:
        os.umask(before)
    made = tmp_path / "to" / NAME
    assert (made / "repository/inv").stat().st_mode & 0o7777 == 0o755
    assert (made / "REPRODUCE.md").stat().st_mode & 0o7777 == 0o644


def test_it_does_not_extract_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="is there already"):
        archive.extract(write(tmp_path), tmp_path / "to", progress=SILENT)
    assert not (tmp_path / "elsewhere").exists()


def test_links_that_lie_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    for name in (".extracting-x", "results", "REPRODUCE.md"):
        (tmp_path / "to").mkdir(exist_ok=True)
        (tmp_path / "to" / name).symlink_to(tmp_path / "elsewhere")
    archive.extract(write(tmp_path), tmp_path / "to", progress=SILENT)
    assert not (tmp_path / "elsewhere").exists()


def _kind(kind: bytes, link: str = "") -> Callable[[Members], None]:
    def change(content: Members) -> None:
        info, _ = named(f"{NAME}/results/raw/a.json")
        info.type, info.linkname = kind, link
        content[3] = (info, b"")

    return change


def _field(field: str, value: object, at: int = 2) -> Callable[[Members], None]:
    def change(content: Members) -> None:
        setattr(content[at][0], field, value)

    return change


def _insert(name: str, data: bytes = b"evil", at: int = 1) -> Callable[[Members], None]:
    return lambda content: content.insert(at, named(name, data))


def _content(at: int, data: bytes) -> Callable[[Members], None]:
    def change(content: Members) -> None:
        content[at][0].size = len(data)
        content[at] = (content[at][0], data)

    return change


CHANGES: dict[str, tuple[Callable[[Members], None], str]] = {
    "absolute": (_insert("/etc/evil"), "'/etc/evil' is an absolute path"),
    "outside": (_insert("../evil"), "'../evil' leads outside: it has a part '..'"),
    "outside, long": (_insert("../" * 60 + "evil"), "leads outside: it has a part '..'"),
    "outside, within": (_insert(f"{NAME}/a/../../../evil"), "leads outside: it has a part '..'"),
    "backslash": (_insert(f"{NAME}/..\\evil"), "holds a backslash"),
    "control": (_insert(f"{NAME}/a\x1b[31m"), "a\\x1b[31m' holds a control character"),
    "NUL": (_insert(f"{NAME}/é\0b"), "holds a control character"),
    "half": (_insert(f"{NAME}/a\udcff"), "holds a control character"),
    "dot": (_insert(f"./{NAME}/a"), "has an empty part or a part '.'"),
    "second top folder": (
        _insert("other/a"),
        f"other/a is not in the archive's only folder, {NAME}/",
    ),
    "no top folder": (_insert("a"), f"a is not in the archive's only folder, {NAME}/"),
    "longer top folder": (_insert(f"{NAME}x/a"), f"{NAME}x/a is not in the archive's only folder"),
    "symbolic link": (_kind(tarfile.SYMTYPE, "/etc/passwd"), "a.json' is a symbolic link"),
    "hard link": (_kind(tarfile.LNKTYPE, f"{NAME}/REPRODUCE.md"), "a.json' is a hard link"),
    "pipe": (_kind(tarfile.FIFOTYPE), "a.json' is a named pipe"),
    "device": (_kind(tarfile.CHRTYPE), "a.json' is a character device"),
    "block device": (_kind(tarfile.BLKTYPE), "a.json' is a block device"),
    "folder": (_kind(tarfile.DIRTYPE), "a.json' is a folder of its own"),
    "contiguous": (_kind(tarfile.CONTTYPE), "a.json' is of the type b'7'"),
    "sparse": (_kind(tarfile.GNUTYPE_SPARSE), "a.json' is a sparse file"),
    "global header": (_kind(tarfile.XGLTYPE), "a.json' is of the type b'g'"),
    "twice": (lambda c: c.insert(2, c[1]), "REPRODUCE.md stands in the archive twice"),
    "manifest twice": (lambda c: c.insert(1, c[0]), "manifest.json stands in the archive twice"),
    "twice at the end": (lambda c: c.append(c[1]), "REPRODUCE.md stands in the archive twice"),
    "added": (_insert(f"{NAME}/evil"), "evil is not listed in the manifest"),
    "added at the end": (_insert(f"{NAME}/z", at=4), "z is not listed in the manifest"),
    "other case": (_insert(f"{NAME}/reproduce.MD"), "reproduce.MD is not listed in the manifest"),
    "removed": (lambda c: c.pop(1), "REPRODUCE.md is missing: repository/inv stands in its place"),
    "removed at the end": (
        lambda c: c.pop(),
        "results/raw/a.json is missing: the manifest lists it, the archive ends",
    ),
    "nothing left": (lambda c: c.__delitem__(slice(1, 4)), "REPRODUCE.md is missing, and 2 more:"),
    "order": (lambda c: c.append(c.pop(2)), "repository/inv is missing: results/raw/a.json stands"),
    "longer": (_content(1, b"# How\n."), "REPRODUCE.md: it has 7 bytes, the manifest lists 6"),
    "shorter": (_content(1, b"# How"), "REPRODUCE.md: it has 5 bytes, the manifest lists 6"),
    "content": (_content(3, b"[]\n"), "results/raw/a.json has the sha256 "),
    "mode": (_field("mode", 0o777), "repository/inv: its mode is 0777, not 0755"),
    "set user id": (_field("mode", 0o4755), "repository/inv: its mode is 4755, not 0755"),
    "time": (_field("mtime", 0), "repository/inv: its mtime is 0, not 1796006465"),
    "user": (_field("uid", 1000), "repository/inv: its uid is 1000, not 0"),
    "group": (_field("gid", 1000), "repository/inv: its gid is 1000, not 0"),
    "user's name": (_field("uname", "ann"), "repository/inv: its uname is 'ann', not ''"),
    "group's name": (_field("gname", "ann"), "repository/inv: its gname is 'ann', not ''"),
    "link's name": (_field("linkname", "/etc"), "repository/inv: its linkname is '/etc', not ''"),
    "needless long name": (
        _field("pax_headers", {"path": f"{NAME}/repository/inv"}),
        "repository/inv: its header is not written as handoff writes it",
    ),
    "long name of another": (
        _field("pax_headers", {"path": "/etc/passwd"}),
        "'/etc/passwd' is an absolute path",
    ),
    "manifest's mode": (_field("mode", 0o600, 0), "manifest.json: its mode is 0600, not 0644"),
    "no manifest": (lambda c: c.pop(0), "does not begin with its manifest, but with "),
    "manifest later": (lambda c: c.append(c.pop(0)), "does not begin with its manifest, but with"),
    "manifest in another folder": (
        _field("name", "other/manifest.json", 0),
        f"the folder of 'other/manifest.json' is not {NAME}",
    ),
    "manifest elsewhere": (
        _field("name", "../manifest.json", 0),
        f"the folder of '../manifest.json' is not {NAME}",
    ),
    "manifest is a link": (_field("type", tarfile.SYMTYPE, 0), "does not begin with its manifest"),
    "hostile first": (_insert("../evil", at=0), "does not begin with its manifest, but with '../e"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_archive_is_refused_by_its_own_sentence(tmp_path: Path, kind: str) -> None:
    change, sentence = CHANGES[kind]
    file = changed(tmp_path, change)
    assert sentence in refused(file, tmp_path)


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed_manifest(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()

    return changed_manifest


def _first(**fields: object) -> Callable[[bytes], bytes]:
    return _manifest(lambda value: value["files"][0].update(fields))


def _files(change: Callable[[list[dict[str, object]]], object]) -> Callable[[bytes], bytes]:
    return _manifest(lambda value: change(value["files"]))


def _also(path: str) -> Callable[[bytes], bytes]:
    def change(files: list[dict[str, object]]) -> None:
        files.append({**files[0], "path": path})
        files.sort(key=lambda file: str(file["path"]))

    return _files(change)


MANIFESTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not JSON": (lambda data: data[:-3], "manifest.json: the manifest is not JSON"),
    "not UTF-8": (lambda data: b"\xff" + data, "manifest.json: the manifest is not JSON"),
    "deep": (lambda data: b"[" * 100_000, "manifest.json: the manifest is not JSON"),
    "a list": (lambda data: b"[]\n", "manifest.json: the manifest is not a JSON object"),
    "format": (_manifest(lambda v: v.update(format=2)), "the archive has format 2, this program"),
    "no format": (_manifest(lambda v: v.pop("format")), "the archive has format None"),
    "truth as format": (
        _manifest(lambda v: v.update(format=True)),
        "is not written as handoff writes it",
    ),
    "field": (_manifest(lambda v: v.pop("run_id")), "manifest.json: run_id: Field required"),
    "one more": (_manifest(lambda v: v.update(x=1)), "manifest.json: x: Extra inputs"),
    "name": (_manifest(lambda v: v.update(name="..")), "manifest.json: name: "),
    "time": (_manifest(lambda v: v.update(created="2026-13-30T02:41:05Z")), "created: "),
    "no time": (_manifest(lambda v: v.update(created=5)), "created: Input should be"),
    "version": (_manifest(lambda v: v.update(schema_version="2")), "schema_version: Input"),
    "files": (_manifest(lambda v: v.update(files={})), "manifest.json: files: Input should be"),
    "digest": (_first(sha256="0" * 63), "manifest.json: files.0.sha256: "),
    "negative": (_first(size_bytes=-1), "manifest.json: files.0.size_bytes: "),
    "truth as size": (_first(size_bytes=True), "manifest.json: files.0.size_bytes: "),
    "fraction": (_first(size_bytes=6.0), "manifest.json: files.0.size_bytes: "),
    "too large for tar": (_first(size_bytes=8 << 30), "manifest.json: files.0.size_bytes: "),
    "number as truth": (_first(executable=0), "manifest.json: files.0.executable: "),
    "half a character": (
        lambda data: data.replace(b"REPRODUCE", b"\\ud800"),
        "\\ud800.md' holds a control character",
    ),
    "twice": (_files(lambda files: files.insert(0, files[0])), "REPRODUCE.md is listed twice"),
    "itself": (_also("manifest.json"), "manifest.json is listed twice"),
    "other case": (_also("reproduce.md"), "reproduce.md and REPRODUCE.md are the same name"),
    "other case of a folder": (_also("Results/b"), "Results are the same name"),
    "other form of é": (
        lambda data: _also("e\u0301")(_also("\u00e9")(data)),
        "\u00e9 and e\u0301 are the same name",
    ),
    "file and folder": (_also("repository/inv/x"), "repository/inv are the same name"),
    "order": (_files(lambda files: files.reverse()), "manifest.json: the files are not in order"),
    "spaces": (lambda data: data + b"\n", "is not written as handoff writes it"),
    "repeated key": (
        lambda data: data.replace(b'"format": 1', b'"format": 1,\n "format": 1'),
        "is not written as handoff writes it",
    ),
    "escapes": (lambda data: data.replace(b"run_id", b"run\\u005fid"), "is not written as handoff"),
    "unsorted": (
        lambda data: (
            (json.dumps(json.loads(data), indent=1) + "\n")
            .encode()
            .replace(b' "name"', b'  "name"')
        ),
        "is not written as handoff",
    ),
    "a file that is not there": (_also("x"), "x is missing: the manifest lists it"),
} | {
    f"name {index}": (_first(path=name), f"manifest.json: {name!r:.200} {sentence}")
    for index, (name, sentence) in enumerate(HOSTILE_NAMES.items())
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_changed_manifest_is_refused_by_its_own_sentence(tmp_path: Path, kind: str) -> None:
    change, sentence = MANIFESTS[kind]

    def replaced(content: Members) -> None:
        _content(0, change(content[0][1]))(content)

    assert sentence in refused(changed(tmp_path, replaced), tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    huge = (16 << 20) + 1
    info, _ = named(f"{NAME}/manifest.json")
    info.size = huge
    file = gzipped(tmp_path / "x.tar.gz", info.tobuf(tarfile.PAX_FORMAT) + bytes(huge))
    assert f"the manifest is too large: {huge:,} bytes" in refused(file, tmp_path)


def _alone(*files: Entry) -> bytes:
    """The beginning of an archive that holds only its manifest."""
    manifest = Manifest(
        format=1,
        name=NAME,
        run_id="r1",
        created="2026-11-30T02:41:05Z",
        schema_version=2,
        files=files,
    )
    spelled = spell(manifest)
    info, _ = named(f"{NAME}/manifest.json", spelled)
    return info.tobuf(tarfile.PAX_FORMAT) + spelled + bytes(-len(spelled) % 512)


def _entry(path: str, size_bytes: int) -> Entry:
    return Entry(path=path, sha256="0" * 64, size_bytes=size_bytes, executable=False)


def test_more_than_allowed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    start = _alone(_entry("a", 600), _entry("b", 500))
    file = gzipped(tmp_path / "x.tar.gz", start)
    said = refused(file, tmp_path, max_bytes=1000)
    assert "bytes, more than the 1,000 allowed" in said
    # The manifest counts too.
    said = refused(file, tmp_path / "again", max_bytes=1100)
    assert "bytes, more than the 1,100 allowed" in said


def test_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gzipped(tmp_path / "x.tar.gz", _alone(_entry("a", 5000)))
    room = SimpleNamespace(total=10_000, used=5001, free=4999)
    monkeypatch.setattr("experiment.archive.shutil.disk_usage", lambda folder: room)
    said = refused(file, tmp_path)
    assert f"bytes, but only 4,999 are free in {tmp_path}/outside/inside" in said


@pytest.mark.parametrize("listed", [0, 10, 1 << 20])
def test_a_bomb_is_inflated_no_further_than_the_manifest_lists(tmp_path: Path, listed: int) -> None:
    info, _ = named(f"{NAME}/a")
    info.size = 300 << 20
    bomb = gzipped(
        tmp_path / "x.tar.gz",
        _alone(_entry("a", listed)) + info.tobuf(tarfile.PAX_FORMAT) + bytes(info.size),
    )
    assert bomb.stat().st_size < 1 << 19
    tracemalloc.start()
    try:
        said = refused(bomb, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"a: it has 314,572,800 bytes, the manifest lists {listed:,}" in said
    assert peak_bytes < 8 << 20


def test_a_bomb_behind_the_end(tmp_path: Path) -> None:
    tar = gzip.decompress(write(tmp_path).read_bytes())
    file = gzipped(tmp_path / "x.tar.gz", tar + bytes(300 << 20))
    assert "more data come behind the end of the tar" in refused(file, tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: b"", "the file is empty"),
        (lambda data: b"PK\3\4" + data, "this is not a gzip file"),
        (lambda data: gzip.decompress(data), "this is not a gzip file"),
        (lambda data: data[:15], "the archive is cut short in its beginning"),
        (lambda data: data[: len(data) // 2], "the archive is cut short in "),
        (lambda data: data[:-1], "the archive is cut short in its end"),
        (lambda data: data + b"\0", "more data come behind the end of the archive"),
        (lambda data: data + data, "more data come behind the end of the archive"),
        (lambda data: data[:-8] + b"\0" * 8, "the compressed data are damaged"),
        (lambda data: gzip.compress(b"hello"), "the archive is cut short"),
        (lambda data: gzip.compress(b"x" * 2000), "a gzip file, but not of a tar"),
        (lambda data: gzip.compress(gzip.decompress(data)), "was not written by handoff"),
        (
            lambda data: data[:DIGEST] + bytes(32) + data[DATA:],
            "bytes of the gzip were changed that do not change its content",
        ),
    ],
)
def test_a_damaged_gzip_is_refused_by_its_own_sentence(
    tmp_path: Path, change: Callable[[bytes], bytes], sentence: str
) -> None:
    file = write(tmp_path)
    file.write_bytes(change(file.read_bytes()))
    assert sentence in refused(file, tmp_path)


def test_shorter_downloads_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    file = tmp_path / "part.tar.gz"
    for length in {*range(60), *range(60, len(data), 7), *range(len(data) - 20, len(data))}:
        file.write_bytes(data[:length])
        with pytest.raises(ArchiveError, match=r"cut short|is empty|not a gzip"):
            archive.extract(file, tmp_path / "to", progress=SILENT)
    assert not any((tmp_path / "to").iterdir())


def test_a_tar_that_ends_without_its_zeros(tmp_path: Path) -> None:
    tar = gzip.decompress(write(tmp_path).read_bytes())
    for tail in (tar[:-512], tar.rstrip(b"\0")):
        said = refused(gzipped(tmp_path / "x.tar.gz", tail), tmp_path / str(len(tail)))
        assert "the tar ends too early" in said


LONG = "results/" + "x" * 120


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        # In the record of the long name, in the short form of it, and in the mode behind both.
        (f"path={NAME}/results/", f"path={NAME}/resu/../", "leads outside: it has a part '..'"),
        (f"path={NAME}/results/", "path=/" + "y" * len(f"{NAME}/results"), "is an absolute path"),
        (f"path={NAME}/results/", f"path={NAME}/Results/", " is not listed in the manifest"),
        (f"path={NAME}", f"math={NAME}", "xxx is not listed in the manifest"),
        ("0000644", "0000777", ": there is no header of a tar (bad checksum)"),
    ],
)
def test_a_long_name_is_compared_as_well(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    tar = gzip.decompress(write(tmp_path, {LONG: b"x"}).read_bytes())
    start = tar.index(b"././@PaxHeader")
    head, behind = tar[:start], tar[start:]
    assert len(old) == len(new)
    assert old.encode() in behind
    changed = head + behind.replace(old.encode(), new.encode(), 1)
    said = refused(gzipped(tmp_path / "x.tar.gz", changed), tmp_path)
    assert sentence in said


def test_the_mode_behind_a_long_name(tmp_path: Path) -> None:
    content = members(write(tmp_path, {LONG: b"x"}))
    content[1][0].mode = 0o777
    said = refused(packed(tmp_path / "x.tar.gz", content), tmp_path)
    assert f"{LONG}: its mode is 0777, not 0644" in said


def test_what_fills_a_block_must_be_zero(tmp_path: Path) -> None:
    tar = gzip.decompress(write(tmp_path).read_bytes())
    filled = tar.replace(b"# How\n\0", b"# How\nx")
    assert filled != tar
    said = refused(gzipped(tmp_path / "x.tar.gz", filled), tmp_path)
    assert "REPRODUCE.md: what fills its last block is not zero" in said


def test_the_digest_of_the_gzip_sees_what_its_content_does_not(tmp_path: Path) -> None:
    # Compressed by another level: the same tar, and a digest of what stood there before.
    file = write(tmp_path)
    data = file.read_bytes()
    stored = gzip.compress(gzip.decompress(data), 0)
    file.write_bytes(data[:DATA] + stored[10:])
    assert "bytes of the gzip were changed" in refused(file, tmp_path)


def test_unpack_keeps_altered_files_and_says_so(tmp_path: Path) -> None:
    file = changed(tmp_path, _content(3, b"[]\n"))
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())))
    found = archive.unpack(file, tmp_path / "to", progress=SILENT)
    (sentence,) = found.altered
    assert sentence.startswith("results/raw/a.json has the sha256 ")
    assert found.repacked is not None
    assert "was not written by handoff" in found.repacked
    assert (tmp_path / "to" / NAME / "results/raw/a.json").read_bytes() == b"[]\n"


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"absent\.tar\.gz: .*No such file"):
        archive.extract(tmp_path / "absent.tar.gz", tmp_path / "to", progress=SILENT)
    with pytest.raises(ArchiveError, match="directory"):
        archive.extract(tmp_path, tmp_path / "to", progress=SILENT)


# --- any change at all ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("whole")).read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def _is_refused(data: bytes, place: Path) -> None:
    file = place / "x.tar.gz"
    file.write_bytes(data)
    with pytest.raises(ArchiveError):
        archive.extract(file, place / "to", progress=SILENT)
    (place / "to").mkdir(exist_ok=True)
    assert tree(place) == {"x.tar.gz", "to"}


def test_every_byte_is_looked_at(whole: bytes, place: Path) -> None:
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        _is_refused(bytes(flipped), place)


def test_every_bit_of_the_last_bytes_is_looked_at(whole: bytes, place: Path) -> None:
    # Behind the last code of deflate come bits that fill up its byte, and that nothing reads.
    for at in range(len(whole) - 12, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            _is_refused(bytes(flipped), place)


_any_bytes = st.binary(max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), cut=st.integers(0, 40), new=_any_bytes)
@example(at=0, cut=0, new=b"")
def test_any_piece_of_the_file_replaced_is_refused(
    whole: bytes, place: Path, at: int, cut: int, new: bytes
) -> None:
    at %= len(whole) + 1
    data = whole[:at] + new + whole[at + cut :]
    if data != whole:
        _is_refused(data, place)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), new=st.binary(min_size=1, max_size=600))
def test_any_piece_of_the_tar_replaced_is_refused(
    whole: bytes, place: Path, at: int, new: bytes
) -> None:
    # In a gzip that is right for it: nothing but the tar itself can tell.
    tar = gzip.decompress(whole)
    at %= len(tar)
    data = (tar[:at] + new + tar[at + len(new) :])[: len(tar)]
    if data != tar:
        _is_refused(gzipped(place / "x.tar.gz", data).read_bytes(), place)

"""The image of a run as one file, in each layout that an engine writes, whole and otherwise."""

from __future__ import annotations

import gzip
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import docker
import pytest

from experiment.errors import ArchiveError, EngineError, HandoffError
from experiment.handoff_image import layer_digests, layers, save
from experiment.progress import SilentProgress
from tests.saved_images import (
    APP,
    BASE,
    DIGESTS,
    EMPTY,
    IMAGE_ID,
    LAYERS,
    Engine,
    Member,
    config,
    legacy,
    oci,
    sha256,
    write,
)

LAYOUTS: dict[str, list[Member]] = {
    "docker 20.10": legacy(),
    "docker 25": oci(),
    "containerd": oci(compressed=True, with_attestation=True),
    "oci alone": oci(compressed=True, with_manifest=False),
}


def saved(engine: Engine, to: Path, image_id: str = IMAGE_ID) -> dict[str, object]:
    return save(engine.connection, image_id, "prefix-replay", to, SilentProgress())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_are_those_of_the_image_in_each_layout(tmp_path: Path, layout: str) -> None:
    file = write(tmp_path / "image.tar", LAYOUTS[layout])
    assert layer_digests(file) == DIGESTS
    with layers(file) as found:
        assert [stream.read() for _, stream in found] == list(LAYERS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_twice_by_an_untidy_engine_gives_the_same_bytes(tmp_path: Path, layout: str) -> None:
    members = LAYOUTS[layout]
    one = write(tmp_path / "one", members, mtime=1_700_000_000, owner="zaphod")
    other = write(tmp_path / "other", members[::-1], mtime=5)
    first = saved(Engine(one), tmp_path / "first.tar")
    assert first == saved(Engine(other), tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    assert b"zaphod" not in (tmp_path / "first.tar").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("first.tar", "one", "other", "second.tar")
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_members_are_in_order_and_hold_what_the_engine_saved(tmp_path: Path, layout: str) -> None:
    file = write(tmp_path / "saved", LAYOUTS[layout], mtime=7, owner="me")
    saved(Engine(file), tmp_path / "image.tar")
    with tarfile.open(file) as before, tarfile.open(tmp_path / "image.tar") as after:
        members = after.getmembers()
        assert [member.name for member in members] == sorted(before.getnames())
        for member in members:
            found = (member.mtime, member.uid, member.gid, member.uname, member.gname)
            assert found == (0, 0, 0, "", "")
            assert member.mode == (0o755 if member.isdir() else 0o644)
            old = before.getmember(member.name)
            assert (member.type, member.linkname) == (old.type, old.linkname)
            if member.isfile():
                content, wanted = after.extractfile(member), before.extractfile(old)
                assert content is not None
                assert wanted is not None
                assert content.read() == wanted.read()
    assert layer_digests(tmp_path / "image.tar") == DIGESTS


def test_record_of_an_image(tmp_path: Path) -> None:
    engine = Engine(write(tmp_path / "saved", legacy()))
    record = saved(engine, tmp_path / "image.tar")
    note = record.pop("note")
    assert record == {
        "reference": "prefix-replay",
        "id": IMAGE_ID,
        "layers": list(DIGESTS),
        "architecture": "amd64",
        "byte_stable": True,
    }
    assert "compressed" not in str(note)
    assert engine.asked == [IMAGE_ID]


def test_record_says_what_another_store_would_change(tmp_path: Path) -> None:
    engine = Engine(write(tmp_path / "saved", oci(compressed=True)))
    record = saved(engine, tmp_path / "image.tar")
    assert record["byte_stable"] is False
    assert "layers are compressed" in str(record["note"])


def test_an_image_that_is_gone_is_named(tmp_path: Path) -> None:
    engine = Engine(write(tmp_path / "saved", legacy()))
    with pytest.raises(HandoffError, match="does not have the image") as caught:
        saved(engine, tmp_path / "image.tar", "sha256:0123")
    assert caught.value.where == "sha256:0123"
    assert "--with-image" in str(caught.value.hint)


def test_another_image_than_asked_for_is_refused(tmp_path: Path) -> None:
    engine = Engine(write(tmp_path / "saved", legacy()), DIGESTS[::-1])
    with pytest.raises(HandoffError, match="another image"):
        saved(engine, tmp_path / "image.tar")


def test_engine_that_ends_in_the_middle_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "saved", legacy())
    whole.write_bytes(whole.read_bytes()[:6000])
    with pytest.raises(HandoffError, match="no whole image"):
        saved(Engine(whole), tmp_path / "image.tar")


def test_engine_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Engine) -> Iterator[bytes]:
        raise docker.errors.APIError("disk full")

    monkeypatch.setattr(Engine, "save", fail)
    with pytest.raises(EngineError, match="disk full"):
        saved(Engine(tmp_path), tmp_path / "image.tar")
    assert list(tmp_path.iterdir()) == []


def replaced(members: list[Member], name: str, content: bytes | str) -> list[Member]:
    assert any(member == name for member, _ in members)
    return [(member, content if member == name else old) for member, old in members]


def without(members: list[Member], name: str) -> list[Member]:
    assert any(member == name for member, _ in members)
    return [member for member in members if member[0] != name]


def first_layer(members: list[Member], content: bytes = BASE) -> str:
    return next(name for name, found in members if found == content)


def manifest(**changes: object) -> bytes:
    (about,) = [c for n, c in legacy() if n == "manifest.json"]
    (entry,) = json.loads(cast("bytes", about))
    return json.dumps([{**entry, **changes}]).encode()


CONFIG_NAME = f"{sha256(config())}.json"
OTHER_CONFIG = config((BASE, APP))
ROUND = json.dumps({"manifests": [{"digest": f"sha256:{'0' * 64}"}]}).encode()
GZIPPED = gzip.compress(BASE, mtime=0)
DAMAGED: dict[str, tuple[list[Member], str]] = {
    "layer swapped": (
        replaced(legacy(), first_layer(legacy()), BASE.replace(b"Debian", b"Fedora")),
        "layer 1 is sha256:",
    ),
    "layers in another order": (legacy(layers=(APP, EMPTY, BASE, EMPTY)), "layer 1 is sha256:"),
    "layer too few": (legacy(layers=LAYERS[:2]), "2 layers, the configuration says 4"),
    "layer missing": (without(legacy(), first_layer(legacy())), "it lacks "),
    "layer is something else": (
        replaced(legacy(), first_layer(legacy()), b"BZh9" + bytes(600)),
        "neither a tar nor a gzip",
    ),
    "compressed layer cut short": (
        replaced(oci(compressed=True), first_layer(oci(compressed=True), GZIPPED), GZIPPED[:-10]),
        "damaged",
    ),
    "configuration changed": (
        replaced(legacy(), CONFIG_NAME, config(architecture="arm64")),
        "not the one that its name says",
    ),
    "configuration missing": (without(legacy(), CONFIG_NAME), "it lacks"),
    "configuration without layers": (legacy(about=b"{}"), "no rootfs"),
    "configuration is no JSON": (legacy(about=b"{"), "not JSON"),
    "neither manifest nor index": (without(legacy(), "manifest.json"), "neither manifest.json"),
    "two images": (
        replaced(legacy(), "manifest.json", b"[{}, {}]"),
        "to hold one image",
    ),
    "manifest is no list": (replaced(legacy(), "manifest.json", b"{}"), "to hold one image"),
    "manifest without layers": (
        replaced(legacy(), "manifest.json", manifest(Layers=None)),
        "no Layers",
    ),
    "manifest nested too deeply": (replaced(legacy(), "manifest.json", b"[" * 100_000), "not JSON"),
    "manifest leads outside": (
        replaced(legacy(), "manifest.json", manifest(Layers=["../../etc/passwd"] * 4)),
        "it lacks ../../etc/passwd",
    ),
    "index and manifest differ": (
        [
            *without(oci(about=OTHER_CONFIG, layers=(BASE, APP)), "manifest.json"),
            *(m for m in oci() if m[0] == "manifest.json" or m[0].startswith("blobs/sha256/")),
        ],
        "name different images",
    ),
    "index of two images": (
        replaced(oci(with_manifest=False), "index.json", b'{"manifests": [{"digest": 1}, {}]}'),
        "not 2",
    ),
    "index without a digest": (
        replaced(
            oci(with_manifest=False), "index.json", b'{"manifests": [{"digest": "sha256:../x"}]}'
        ),
        "is no digest",
    ),
    "index that leads to itself": (
        [
            *without(oci(with_manifest=False), "index.json"),
            ("index.json", ROUND),
            (f"blobs/sha256/{'0' * 64}", ROUND),
        ],
        "no config",
    ),
    "links in a circle": (
        [*without(legacy(), CONFIG_NAME), (CONFIG_NAME, "./a"), ("a", CONFIG_NAME)],
        "it lacks",
    ),
    "link that leads outside": (
        [*without(legacy(), CONFIG_NAME), (CONFIG_NAME, "/etc/passwd")],
        "it lacks",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_image_that_is_not_what_it_says_is_refused(tmp_path: Path, kind: str) -> None:
    members, message = DAMAGED[kind]
    file = write(tmp_path / "image.tar", members)
    with pytest.raises(ArchiveError) as caught:
        layer_digests(file)
    assert message in caught.value.what
    assert str(file) in str(caught.value.where)


@pytest.mark.parametrize("content", [b"", b"not a tar", bytes(10240), b"\x1f\x8b" + bytes(600)])
def test_file_that_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "image.tar"
    file.write_bytes(content)
    with pytest.raises(ArchiveError):
        layer_digests(file)


@pytest.mark.parametrize("cut", [600, 5000, 20_000])
def test_file_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path / "image.tar", oci())
    assert file.stat().st_size > cut
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ArchiveError):
        layer_digests(file)


def test_large_text_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.handoff_image._MAX_JSON_BYTES", 100)
    file = write(tmp_path / "image.tar", legacy())
    with pytest.raises(ArchiveError, match="too large"):
        layer_digests(file)


def test_layers_are_read_in_pieces(tmp_path: Path) -> None:
    large = (BASE[:-1024] + bytes(64 << 20),)
    for compressed in (False, True):
        members = oci(about=config(large), layers=large, compressed=compressed)
        file = write(tmp_path / "image.tar", members)
        tracemalloc.start()
        layer_digests(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 4 << 20

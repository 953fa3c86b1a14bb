"""Code, source, image and crate that do not belong to the run, each found by its own sentence."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from canned_archive import COMMIT, PATCH, PINS, SOURCE_NAME, Handoff, begun

from experiment import verify_files
from experiment.archive_manifest import Manifest
from experiment.crate import METADATA
from experiment.errors import ArchiveError, ExperimentError
from experiment.patches import load_series


@pytest.fixture
def top(tmp_path: Path) -> Path:
    handoff = begun(tmp_path / "top")
    handoff.remake_crate()
    return handoff.top


def manifest(top: Path) -> Manifest:
    return Handoff(top).manifest()


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON file in place."""
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def sentence(check: Callable[[], object]) -> str:
    with pytest.raises(ExperimentError) as caught:
        check()
    return str(caught.value)


# --- patches ---


def patches(top: Path, digest: str | None = None, pin: str = "sdist") -> str:
    series = load_series(top / "repository" / "patches")
    return verify_files.patches(top, digest or series.digest, pin)


def test_the_patches_of_the_run(top: Path) -> None:
    assert patches(top) == f"1 patches, those of the run; repository/ is commit {COMMIT}"
    for path in (top / "repository.json", top / "results/host.json"):
        edit(path, lambda value: (value.get("repository") or value).update(dirty=True))
    assert patches(top).endswith(f"{COMMIT}, with changes that were not committed")


def test_another_patch_is_found(top: Path) -> None:
    digest = load_series(top / "repository/patches").digest
    (top / "repository/patches/0001-b.patch").write_text(PATCH.replace("+b", "+c"))
    said = sentence(lambda: patches(top, digest))
    assert said.startswith("repository/patches has the digest ")
    assert said.endswith(f"the run was made with {digest}")


PATCH_CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "diff": (
        lambda top: rewrite(top / "results/git_diff.patch", "+b", "+c"),
        "results/git_diff.patch is not repository/patches as one diff",
    ),
    "record of the build": (
        lambda top: edit(top / "results/build.json", lambda v: v["patches"].pop()),
        "results/build.json names other patches than repository/patches",
    ),
    "pin of the build": (
        lambda top: edit(top / "results/build.json", lambda v: v.update(pin="guide")),
        "results/build.json has the pin guide, the run sdist",
    ),
    "commit": (
        lambda top: edit(top / "repository.json", lambda v: v.update(commit="1" * 40)),
        "the run recorded {'commit': '0123456789abcdef0123456789abcdef01234567', 'dirty': False}",
    ),
    "dirty": (
        lambda top: edit(top / "repository.json", lambda v: v.update(dirty=True)),
        "'dirty': True}, the run recorded",
    ),
    "no commit": (
        lambda top: edit(top / "repository.json", lambda v: v.pop("commit")),
        "repository.json says {'commit': None",
    ),
    "not listed": (
        lambda top: (top / "repository/patches/0002-c.patch").write_text(PATCH),
        "0002-c.patch is not listed",
    ),
    "no series": (
        lambda top: (top / "repository/patches/series").unlink(),
        "cannot be read",
    ),
    "no record": (
        lambda top: (top / "repository.json").unlink(),
        "repository.json: it cannot be read: No such file",
    ),
    "no JSON": (
        lambda top: (top / "repository.json").write_text("{"),
        "repository.json: it is not JSON",
    ),
    "a list": (
        lambda top: (top / "repository.json").write_text("[]"),
        "repository.json: it is no JSON object",
    ),
}


@pytest.mark.parametrize("kind", PATCH_CHANGES)
def test_code_of_another_run_is_found(top: Path, kind: str) -> None:
    change, said = PATCH_CHANGES[kind]
    change(top)
    assert said in sentence(lambda: patches(top))


# --- source ---


def test_the_pinned_source(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"{SOURCE_NAME} has the sha256 of the pin sdist"
    assert verify_files.source(top, manifest(top)) == said
    own = top / "repository/docker/pins.toml"
    named = verify_files.load_pins(own)["sdist"]
    monkeypatch.setattr(verify_files, "pin_named", lambda name: named)
    assert verify_files.source(top, manifest(top)) == f"{said}; this program pins the same"


def _other_bytes(top: Path) -> None:
    """Another source, and every record of its sha256 beside it made to fit."""
    other = b"other bytes"
    (top / "source" / SOURCE_NAME).write_bytes(other)
    digest = hashlib.sha256(other).hexdigest()
    edit(top / "source.json", lambda value: value.update(sha256=digest))


SOURCE_CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bytes": (_other_bytes, f"sha256 of source/{SOURCE_NAME} is "),
    "record": (
        lambda top: edit(top / "source.json", lambda v: v.update(sha256="0" * 64)),
        f"source.json has the sha256 {'0' * 64}, the file ",
    ),
    "pin's hash": (
        lambda top: rewrite(top / "repository/docker/pins.toml", 'sha256 = "', 'sha256 = "0'),
        "pins.toml: sdist.sdist.sha256",
    ),
    "commit": (
        lambda top: edit(top / "source.json", lambda v: v.update(commit="1" * 40)),
        f"commit of source/{SOURCE_NAME} is {'1' * 40}, the pin sdist says {'c' * 40}",
    ),
    "no such pin": (
        lambda top: edit(top / "source.json", lambda v: v.update(pin="guide")),
        "repository/docker/pins.toml has no such sdist pin",
    ),
    "another kind": (
        lambda top: edit(top / "source.json", lambda v: v.update(kind="local")),
        "repository/docker/pins.toml has no such local pin",
    ),
    "a name that leads outside": (
        lambda top: edit(top / "source.json", lambda v: v.update(file=f"../source/{SOURCE_NAME}")),
        f"source.json names '../source/{SOURCE_NAME}', source/ has ['source/{SOURCE_NAME}']",
    ),
    "another name": (
        lambda top: (
            (top / "source" / SOURCE_NAME).rename(top / "source/x"),
            edit(top / "source.json", lambda v: v.update(file="x")),
        ),
        f"file of source/x is x, the pin sdist says {SOURCE_NAME}",
    ),
    "one more": (
        lambda top: (top / "source/y").touch(),
        f"source/ has ['source/{SOURCE_NAME}', 'source/y']",
    ),
    "a number": (
        lambda top: edit(top / "source.json", lambda v: v.update(sha256=5)),
        "source.json does not say commit, file, kind, pin, sha256",
    ),
    "a field more": (
        lambda top: edit(top / "source.json", lambda v: v.update(x="")),
        "source.json does not say commit, file, kind, pin, sha256",
    ),
    "built from another commit": (
        lambda top: edit(top / "results/build.json", lambda v: v.update(commit="1" * 40)),
        f"source.json says pin sdist, commit {'c' * 40}; the run was built from sdist, {'1' * 40}",
    ),
}


@pytest.mark.parametrize("kind", SOURCE_CHANGES)
def test_another_source_is_found(top: Path, kind: str) -> None:
    change, said = SOURCE_CHANGES[kind]
    change(top)
    assert said in sentence(lambda: verify_files.source(top, manifest(top)))


@pytest.mark.parametrize(
    ("kind", "pin", "name", "who"),
    [
        (
            "git",
            f'url = "https://example.org/x"\ncommit = "{"c" * 40}"',
            f"llama.cpp-{'c' * 40}.pack",
            "git finds out at a rerun",
        ),
        ("local", "", "local-0123.tar", "no pin says"),
    ],
)
def test_sources_of_other_kinds(top: Path, kind: str, pin: str, name: str, who: str) -> None:
    (top / "repository/docker/pins.toml").write_text(f'{PINS}[other]\nkind = "{kind}"\n{pin}\n')
    (top / "source" / SOURCE_NAME).rename(top / "source" / name)
    edit(top / "source.json", lambda v: v.update(pin="other", kind=kind, file=name))
    edit(top / "results/build.json", lambda v: v.update(pin="other"))
    said = verify_files.source(top, manifest(top))
    assert said == f"{name} has the sha256 that source.json says; {who} whether it is right"


# --- image ---


def saved_image(*layers: bytes) -> tuple[bytes, list[str]]:
    """What `docker save` gives for an image of these layers, and their digests."""
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = json.dumps({"architecture": "amd64", "rootfs": {"diff_ids": digests}}).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listing = json.dumps([{"Config": name, "Layers": names}]).encode()
    return _tar(
        {"manifest.json": listing, name: config, **dict(zip(names, layers, strict=True))}
    ), digests


def _tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


LAYERS = (_tar({"a": b"one"}), _tar({"b": b"two"}))


def add_image(top: Path) -> None:
    content, digests = saved_image(*LAYERS)
    (top / "image").mkdir()
    (top / "image/image.tar").write_bytes(content)
    (top / "image/image.json").write_text(json.dumps({"id": "sha256:1", "layers": digests}))


def test_an_image_has_the_layers_that_are_recorded(top: Path) -> None:
    assert verify_files.image(top, None) is None
    add_image(top)
    said = verify_files.image(top, "sha256:1")
    assert said == "2 layers have the digests that image.json names"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda top: (top / "image/image.tar").write_bytes(saved_image(LAYERS[0])[0]),
            "image.json names other layers than image/image.tar has",
        ),
        (
            lambda top: (top / "image/image.tar").write_bytes(
                (top / "image/image.tar").read_bytes().replace(b"two", b"twx")
            ),
            "layer 2 is sha256:",
        ),
        (lambda top: (top / "image/image.tar").write_bytes(b"x" * 2000), "the image is damaged"),
        (
            lambda top: edit(top / "image/image.json", lambda v: v["layers"].reverse()),
            "image.json names other layers than image/image.tar has",
        ),
        (
            lambda top: edit(top / "image/image.json", lambda v: v.update(id="sha256:2")),
            "image.json is of 'sha256:2', the run was made with sha256:1",
        ),
        (
            lambda top: (top / "image/image.json").unlink(),
            "image.json: it cannot be read",
        ),
    ],
)
def test_another_image_is_found(top: Path, change: Callable[[Path], object], said: str) -> None:
    add_image(top)
    change(top)
    assert said in sentence(lambda: verify_files.image(top, "sha256:1"))


# --- crate ---


def test_the_crate_lists_every_file(top: Path) -> None:
    (top / "results/raw/with space é.json").write_text("{}")
    Handoff(top).remake_crate()
    found = manifest(top)
    said = verify_files.metadata(top, found)
    assert said == f"it lists {len(found.files) - 1} files with their sha256"


def _entity(change: Callable[[dict[str, Any]], object], at: str) -> Callable[[Any], object]:
    def changed(value: Any) -> None:
        (found,) = [entity for entity in value["@graph"] if entity["@id"] == at]
        change(found)

    return changed


CRATE_CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another hash": (
        _entity(lambda e: e.update(sha256="0" * 64), "source.json"),
        "it gives another sha256 or contentSize of source.json",
    ),
    "another size": (
        _entity(lambda e: e.update(contentSize="7"), "source.json"),
        "it gives another sha256 or contentSize of source.json",
    ),
    "no hash": (
        _entity(lambda e: e.pop("sha256"), "source.json"),
        "it gives another sha256 or contentSize of source.json",
    ),
    "a file less": (
        lambda v: v.update({"@graph": [e for e in v["@graph"] if e["@id"] != "source.json"]}),
        "it does not describe 'source.json'",
    ),
    "a file more": (
        lambda v: v["@graph"].append({"@id": "x", "@type": "File"}),
        "it describes, but the archive lacks 'x'",
    ),
    "a file twice": (
        lambda v: v["@graph"].append({"@id": "source%2Ejson", "@type": "File"}),
        "it describes 'source.json' twice",
    ),
    "no part": (
        _entity(lambda e: e["hasPart"].pop(), "./"),
        "its root does not have every file as a part",
    ),
    "no parts": (_entity(lambda e: e.pop("hasPart"), "./"), "its root does not have every file"),
    "no graph": (lambda v: v.pop("@graph"), "it has no @graph of entities"),
    "a number": (lambda v: v["@graph"].append(5), "it has no @graph of entities"),
}


@pytest.mark.parametrize("kind", CRATE_CHANGES)
def test_a_changed_crate_is_found(top: Path, kind: str) -> None:
    change, said = CRATE_CHANGES[kind]
    edit(top / METADATA, change)
    assert said in sentence(lambda: verify_files.metadata(top, manifest(top)))


def test_a_huge_record_is_not_read(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_files, "_MAX_JSON_BYTES", 10)
    with pytest.raises(ArchiveError, match="it is too large for what it is to hold"):
        verify_files.metadata(top, manifest(top))

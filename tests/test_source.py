"""Getting a pristine tree: out of a distribution, out of a git repository, out of a checkout."""

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiment import source
from experiment.errors import SourceError
from experiment.pins import GitPin, LocalPin, SdistPin
from experiment.progress import SilentProgress
from experiment.source import MARKERS, STAMP, Stamp, obtain, packed, read_stamp
from experiment.trees import files_of, same_content

QUIET = SilentProgress()
COMMIT = "7" * 40
ROOT = "fake_llama-1.0/vendor/llama.cpp"
LOCAL = LocalPin(name="local", kind="local")


class Said(SilentProgress):
    """Keeps the permanent lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def make_sdist(path: Path, extra: Mapping[str, bytes | tarfile.TarInfo] | None = None) -> SdistPin:
    """Write a distribution with a small llama.cpp inside and return a pin of it."""
    files: dict[str, bytes | tarfile.TarInfo] = {
        "fake_llama-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: fake-llama\nVersion: 1.0\n",
        f"{ROOT}/.git": b"gitdir: ../../.git/modules/vendor/llama.cpp\n",
        **{f"{ROOT}/{name}": name.encode() for name in MARKERS},
        **(extra or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                tar.addfile(content)
    return SdistPin(
        name="fake",
        kind="sdist",
        package="fake-llama",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        subdirectory="vendor/llama.cpp",
        commit=COMMIT,
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where a distribution lies that needs no download."""
    return tmp_path / "downloads" / "fake_llama-1.0.tar.gz"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let pip find packages nowhere."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=no"]
    return subprocess.run(
        ["git", "-C", str(folder), *settings, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name in MARKERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    git(tmp_path, "init", "--quiet", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def test_the_llama_part_of_a_distribution_is_unpacked(tmp_path: Path, kept: Path) -> None:
    pin = make_sdist(kept)
    tree = obtain(pin, tmp_path, QUIET)
    assert tree == tmp_path / "source" / f"fake-{COMMIT[:12]}"
    assert files_of(tree) == sorted([STAMP, *MARKERS])
    assert (tree / MARKERS[0]).read_text() == MARKERS[0]
    assert read_stamp(tree) == Stamp("fake", COMMIT, pin.sha256)


def test_a_whole_tree_is_used_as_it_is(tmp_path: Path, kept: Path) -> None:
    pin = make_sdist(kept)
    tree = obtain(pin, tmp_path, QUIET)
    made_ns = tree.stat().st_ctime_ns
    kept.unlink()
    assert obtain(pin, tmp_path, QUIET) == tree
    assert tree.stat().st_ctime_ns == made_ns


@pytest.mark.parametrize("harm", ["cut", "missing", "added", "no stamp"])
def test_a_tree_that_changed_is_made_anew(tmp_path: Path, kept: Path, harm: str) -> None:
    pin, said = make_sdist(kept), Said()
    tree = obtain(pin, tmp_path, QUIET)
    file = tree / MARKERS[1]
    match harm:
        case "cut":
            file.write_text("x")
        case "missing":
            file.unlink()
        case "added":
            (tree / "new").write_text("x")
        case _:
            (tree / STAMP).unlink()
    obtain(pin, tmp_path, said)
    assert files_of(tree) == sorted([STAMP, *MARKERS])
    assert file.read_text() == MARKERS[1]
    assert len(said.lines) == 1
    assert "making it anew" in said.lines[0]


def test_a_file_with_another_hash_is_not_used(tmp_path: Path, kept: Path, no_network: None) -> None:
    pin = make_sdist(kept).model_copy(update={"sha256": "0" * 64})
    said = Said()
    with pytest.raises(SourceError, match=r"fake-llama 1.0 cannot be downloaded") as caught:
        obtain(pin, tmp_path, said)
    assert "another sha256" in said.lines[0]
    assert "HTTPS_PROXY" in str(caught.value)
    assert str(kept.parent) in str(caught.value)
    assert left_in(tmp_path / "source") == [".lock"]
    assert left_in(kept.parent) == [kept.name]


def test_pip_refuses_what_a_mirror_serves_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror" / "fake_llama-1.0.tar.gz"
    pin = make_sdist(mirror).model_copy(update={"sha256": "0" * 64})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror.parent))
    with pytest.raises(SourceError) as caught:
        obtain(pin, tmp_path / "cache", QUIET)
    assert "0" * 64 in str(caught.value)
    assert left_in(tmp_path / "cache" / "downloads") == []
    assert left_in(tmp_path / "cache" / "source") == [".lock"]


def test_a_download_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A build backend inside the distribution, so that pip's metadata step needs no other package.
    backend = b"""
import pathlib
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "fake_llama-1.0.dist-info"); info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: fake-llama\\nVersion: 1.0\\n")
    return info.name
def build_wheel(*args, **kwargs): raise SystemExit
def get_requires_for_build_wheel(config_settings=None): return []
"""
    project = b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    mirror = tmp_path / "mirror" / "fake_llama-1.0.tar.gz"
    pin = make_sdist(
        mirror,
        {"fake_llama-1.0/pyproject.toml": project, "fake_llama-1.0/backend.py": backend},
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror.parent))
    cache = tmp_path / "cache"
    assert files_of(obtain(pin, cache, QUIET)) == sorted([STAMP, *MARKERS])
    assert left_in(cache / "downloads") == [mirror.name]


def test_a_download_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    pin = make_sdist(tmp_path / "elsewhere.tar.gz")
    pip = tmp_path / "python"
    # Stands for pip: writes half a file where it was told to, then fails as pip does.
    pip.write_text(
        '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\n'
        f'echo half > "$2/{pin.filename}"\necho "ERROR: Connection broken" >&2\nexit 1\n'
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(SourceError, match="Connection broken"):
        obtain(pin, tmp_path, QUIET)
    assert left_in(kept.parent) == []
    assert left_in(tmp_path / "source") == [".lock"]


def test_a_cut_archive_leaves_nothing(tmp_path: Path, kept: Path) -> None:
    make_sdist(kept, {f"{ROOT}/big": hashlib.shake_256(b"x").digest(200_000)})
    kept.write_bytes(kept.read_bytes()[:-50_000])
    pin = make_sdist(tmp_path / "x.tar.gz").model_copy(
        update={"sha256": hashlib.sha256(kept.read_bytes()).hexdigest()}
    )
    with pytest.raises(SourceError, match="cannot be unpacked"):
        obtain(pin, tmp_path, QUIET)
    assert left_in(tmp_path / "source") == [".lock"]


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (f"{ROOT}/../../../out", b"x", "leads outside"),
        ("/out", b"x", "leads outside"),
        (f"{ROOT}/out", link(f"{ROOT}/out", tarfile.SYMTYPE, "/etc/passwd"), "not a file"),
        (f"{ROOT}/out", link(f"{ROOT}/out", tarfile.LNKTYPE, "/etc/passwd"), "not a file"),
        (f"{ROOT}/out", link(f"{ROOT}/out", tarfile.FIFOTYPE, ""), "not a file"),
    ],
)
def test_an_archive_that_leads_outside_is_refused(
    tmp_path: Path, kept: Path, name: str, content: bytes | tarfile.TarInfo, message: str
) -> None:
    pin = make_sdist(kept, {name: content})
    with pytest.raises(SourceError, match=message):
        obtain(pin, tmp_path, QUIET)
    assert left_in(tmp_path / "source") == [".lock"]
    assert sorted(left_in(tmp_path)) == ["downloads", "source"]


def test_a_source_without_the_servers_files_is_refused(tmp_path: Path, kept: Path) -> None:
    pin = make_sdist(kept).model_copy(update={"subdirectory": "vendor"})
    with pytest.raises(SourceError, match=r"does not look like llama.cpp: no CMakeLists.txt"):
        obtain(pin, tmp_path, QUIET)
    assert left_in(tmp_path / "source") == [".lock"]


def test_a_commit_is_fetched_without_its_repository(tmp_path: Path, checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    pin = GitPin(name="guide", kind="git", url=checkout.as_uri(), commit=commit)
    tree = obtain(pin, tmp_path, QUIET)
    assert tree.name == f"guide-{commit[:12]}"
    assert files_of(tree) == sorted([STAMP, *MARKERS])
    assert read_stamp(tree) == Stamp("guide", commit, commit)


def test_a_commit_is_made_again_from_its_pack_without_network(
    tmp_path: Path, checkout: Path
) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "one that has a parent")
    commit = git(checkout, "rev-parse", "HEAD")
    pin = GitPin(name="guide", kind="git", url=checkout.as_uri(), commit=commit)
    here, there = tmp_path / "here", tmp_path / "there"
    tree = obtain(pin, here, QUIET)
    pack = packed(pin, tree, here, QUIET)
    assert pack.name == f"llama.cpp-{commit}.pack"
    (there / "downloads").mkdir(parents=True)
    shutil.copy(pack, there / "downloads")
    gone = pin.model_copy(update={"url": (tmp_path / "nowhere").as_uri()})
    again = obtain(gone, there, QUIET)
    assert files_of(again) == files_of(tree)
    assert all(same_content(tree / name, again / name) for name in MARKERS)
    content = pack.read_bytes()
    pack.unlink()
    assert packed(pin, tree, here, QUIET).read_bytes() == content


def test_a_pack_that_was_altered_or_is_of_another_commit_is_refused(
    tmp_path: Path, checkout: Path
) -> None:
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "two")
    second = git(checkout, "rev-parse", "HEAD")
    pin = GitPin(name="guide", kind="git", url=checkout.as_uri(), commit=second)
    kept = packed(pin, tmp_path, tmp_path, QUIET)
    content = kept.read_bytes()
    kept.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(SourceError, match="git index-pack failed") as caught:
        obtain(pin, tmp_path, QUIET)
    assert f"remove {kept}" in str(caught.value)
    kept.write_bytes(content)
    other = pin.model_copy(update={"commit": first})
    kept.replace(kept.with_name(other.filename))
    with pytest.raises(SourceError, match="git checkout failed"):
        obtain(other, tmp_path, QUIET)
    assert left_in(tmp_path / "source") == [".lock"]


def test_a_local_checkout_is_packed_as_its_files(tmp_path: Path, checkout: Path) -> None:
    (checkout / "tool.sh").write_text("#!/bin/sh\n")
    (checkout / "tool.sh").chmod(0o755)
    git(checkout, "add", "tool.sh")
    tree = obtain(LOCAL, tmp_path, QUIET, checkout)
    one = packed(LOCAL, tree, tmp_path, QUIET).read_bytes()
    assert packed(LOCAL, tree, tmp_path, QUIET).read_bytes() == one
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        found = {member.name: member.mode for member in tar}
    assert found == dict.fromkeys(MARKERS, 0o644) | {"tool.sh": 0o755}


def test_a_commit_that_is_not_there_is_refused(tmp_path: Path, checkout: Path) -> None:
    pin = GitPin(name="guide", kind="git", url=checkout.as_uri(), commit="0" * 40)
    with pytest.raises(SourceError, match="git fetch failed") as caught:
        obtain(pin, tmp_path, QUIET)
    assert "sslCAInfo" in str(caught.value)
    assert left_in(tmp_path / "source") == [".lock"]


def test_another_commit_than_the_pins_is_refused(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "two")
    pin = GitPin(name="guide", kind="git", url=checkout.as_uri(), commit=first)
    real = source._git

    def fetches_the_newest(folder: Path, *arguments: str, **more: Any) -> bytes:
        swapped = ["HEAD" if word == first else word for word in arguments]
        return real(folder, *swapped, **more)

    monkeypatch.setattr(source, "_git", fetches_the_newest)
    newest = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(SourceError, match=f"fetched commit {newest}, expected {first}"):
        obtain(pin, tmp_path, QUIET)
    assert left_in(tmp_path / "source") == [".lock"]


def test_a_checkout_is_copied_with_its_changes(tmp_path: Path, checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    clean = obtain(LOCAL, tmp_path, QUIET, checkout)
    assert read_stamp(clean) == Stamp("local", commit, commit, dirty=False)
    (checkout / MARKERS[0]).write_text("changed\n")
    (checkout / "untracked").write_text("x")
    dirty = obtain(LOCAL, tmp_path, QUIET, checkout)
    assert dirty != clean
    assert read_stamp(dirty).dirty
    assert read_stamp(dirty).commit == commit
    assert (clean / MARKERS[0]).read_text() == f"{MARKERS[0]}\n"
    assert (dirty / MARKERS[0]).read_text() == "changed\n"
    assert files_of(dirty) == sorted([STAMP, *MARKERS])
    assert git(checkout, "status", "--short").splitlines() == [f"M {MARKERS[0]}", "?? untracked"]


def test_the_local_pin_needs_a_checkout_of_llama(tmp_path: Path, checkout: Path) -> None:
    with pytest.raises(SourceError, match="needs a checkout"):
        obtain(LOCAL, tmp_path, QUIET)
    with pytest.raises(SourceError, match="no such folder"):
        obtain(LOCAL, tmp_path, QUIET, tmp_path / "missing")
    with pytest.raises(SourceError, match="does not look like"):
        obtain(LOCAL, tmp_path, QUIET, checkout / "src")
    plain = tmp_path / "plain"
    for name in MARKERS:
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text("x")
    with pytest.raises(SourceError, match="git"):
        obtain(LOCAL, tmp_path, QUIET, plain)


def test_a_folder_inside_a_checkout_is_not_the_checkout(tmp_path: Path, checkout: Path) -> None:
    inner = checkout / "vendor" / "llama.cpp"
    for name in MARKERS:
        (inner / name).parent.mkdir(parents=True, exist_ok=True)
        (inner / name).write_text("x")
    with pytest.raises(SourceError, match="not the top folder"):
        obtain(LOCAL, tmp_path, QUIET, inner)


def test_a_tree_without_stamp_is_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no stamp"):
        read_stamp(tmp_path)

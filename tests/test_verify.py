"""Whole archives that were tampered with in every way: each is caught, by its own line."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import NAME, Members, members, named, packed
from canned_archive import SHALLOW, Handoff, change_database, handoff, raw_name
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_verify_files import add_image

from experiment import verify as verifying
from experiment.errors import ArchiveError
from experiment.paths import ROOT
from experiment.progress import SilentProgress
from experiment.verify import Check, top, unpacked, verify

SILENT = SilentProgress()
NAMES = [
    "archive",
    "hashes",
    "tables",
    "views",
    "patches",
    "source",
    "trace",
    "graph",
    "measurements",
    "experts",
    "calibration",
    "arithmetic",
    "exports",
    "report",
    "claims",
    "guide",
    "crate",
]


@pytest.fixture
def made(tmp_path: Path) -> Handoff:
    return handoff(tmp_path / "top")


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave the other checks out, which take seconds."""
    kept = tuple(part for part in verifying._PARTS if part.name in names)
    assert len(kept) == len(names)
    monkeypatch.setattr(verifying, "_PARTS", kept)


def failed(file: Path, work: Path) -> dict[str, str]:
    """What the failed checks say."""
    return {check.name: check.detail for check in verify(file, work, SILENT) if not check.ok}


def test_a_right_archive(made: Handoff, tmp_path: Path) -> None:
    file = made.pack(tmp_path / "x.tar.gz")
    work = tmp_path / "work"
    checks = verify(file, work, SILENT)
    assert [check.name for check in checks] == NAMES
    assert all(check.ok for check in checks), checks
    assert all("\n" not in check.detail for check in checks)
    assert top(work) == work / NAME
    # Of what was made to be compared, nothing stays.
    assert [path.name for path in work.iterdir()] == [NAME]


def test_an_image_gets_a_line_of_its_own(
    made: Handoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "image")
    add_image(made.top)
    change_database(made.top / "results", "UPDATE run SET image_digest = 'sha256:1'")
    file = made.pack(tmp_path / "x.tar.gz")
    image = verify(file, tmp_path / "work", SILENT)[-1]
    assert image == Check("image", True, "2 layers have the digests that image.json names")
    made.change("image/image.tar", lambda data: data.replace(b"two", b"twx"))
    said = failed(made.pack(file), tmp_path / "again")
    assert list(said) == ["image"]
    assert "layer 2 is sha256:" in said["image"]


# --- changed on the way, so that the manifest does not fit ---

KINDS = [
    "REPRODUCE.md",
    "claims.toml",
    "export/measurement.parquet",
    "export/steps.jsonl",
    "image/image.tar",
    "report.html",
    "repository.json",
    "repository/inv",
    "repository/patches/0001-b.patch",
    "results/host.json",
    "results/raw/000001_fake_1.json",
    "results/raw/server.log",
    "results/results.duckdb",
    "results/trace.jsonl",
    "ro-crate-metadata.json",
    "source/llama_cpp_python-0.3.26.tar.gz",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right archive with an image, not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    made = handoff(folder / "top")
    add_image(made.top)
    return made.pack(folder / "x.tar.gz")


def tampered(whole: Path, to: Path, change: Callable[[Members], object]) -> Path:
    content = members(whole)
    change(content)
    return packed(to, content)


def flip(content: Members, path: str) -> None:
    (at,) = [at for at, (info, _) in enumerate(content) if info.name == f"{NAME}/{path}"]
    info, data = content[at]
    middle = len(data) // 2
    content[at] = (info, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


@pytest.mark.parametrize("path", KINDS)
def test_one_byte_in_any_file(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    only(monkeypatch)
    file = tampered(whole, tmp_path / "x.tar.gz", lambda content: flip(content, path))
    said = failed(file, tmp_path / "work")
    assert said["hashes"].startswith(f"{path} has the sha256 ")
    assert said["hashes"].endswith(", the manifest lists another")
    assert "archive" not in said


def test_the_checks_of_content_are_made_all_the_same(made: Handoff, tmp_path: Path) -> None:
    path = f"results/raw/{raw_name(SHALLOW, 'fake', 1)}"
    file = tampered(
        made.pack(tmp_path / "right.tar.gz"),
        tmp_path / "x.tar.gz",
        lambda content: [
            content.__setitem__(at, (info, data.replace(b"120.0", b"119.0")))
            for at, (info, data) in enumerate(content)
            if info.name.endswith(path)
        ],
    )
    said = failed(file, tmp_path / "work")
    assert list(said) == ["hashes", "measurements"]
    assert said["hashes"].startswith(f"{path} has the sha256 ")
    assert "prompt_ms is 120.0 in the table, 119.0 in the raw file" in said["measurements"]


def everything_unmade(file: Path, work: Path) -> str:
    """What `archive` says, when nothing else can be checked and nothing may be left."""
    checks = verify(file, work, SILENT)
    first, *others = checks
    assert (first.name, first.ok) == ("archive", False)
    assert [check.name for check in checks] == NAMES
    for check in others:
        assert check == Check(check.name, False, "not checked: archive failed")
    assert not work.exists() or not any(work.iterdir())
    return first.detail


HOSTILE: dict[str, tuple[Callable[[Members], object], str]] = {
    "manifest": (lambda content: flip(content, "manifest.json"), "manifest.json: "),
    "absolute path": (
        lambda content: content.insert(1, named("/etc/cron.d/x", b"x")),
        "member of the archive: '/etc/cron.d/x' is an absolute path",
    ),
    "path that leads outside": (
        lambda content: content.insert(1, named(f"{NAME}/../../x", b"x")),
        f"member of the archive: '{NAME}/../../x' leads outside: it has a part '..'",
    ),
    "added member": (
        lambda content: content.append(named(f"{NAME}/zzz", b"x")),
        "x.tar.gz: zzz is not listed in the manifest",
    ),
    "removed member": (
        lambda content: content.pop(5),
        "x.tar.gz: export/event.parquet is missing: export/expert.parquet stands in its place",
    ),
    "member twice": (
        lambda content: content.insert(2, content[1]),
        "x.tar.gz: REPRODUCE.md stands in the archive twice",
    ),
    "other order": (
        lambda content: content.insert(2, content.pop(1)),
        "x.tar.gz: REPRODUCE.md is missing: claims.toml stands in its place",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive(whole: Path, tmp_path: Path, kind: str) -> None:
    change, sentence = HOSTILE[kind]
    file = tampered(whole, tmp_path / "x.tar.gz", change)
    assert everything_unmade(file, tmp_path / "work").startswith(sentence)


def test_a_truncated_download(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    data = whole.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    said = everything_unmade(file, tmp_path / "work")
    assert said.startswith("x.tar.gz: the archive is cut short in ")


def test_a_missing_file_and_another_kind_of_file(tmp_path: Path) -> None:
    said = everything_unmade(tmp_path / "x.tar.gz", tmp_path / "work")
    assert said == "x.tar.gz: the archive cannot be extracted: No such file or directory"
    (tmp_path / "x.tar.gz").write_text("hello")
    said = everything_unmade(tmp_path / "x.tar.gz", tmp_path / "work")
    assert said == ("x.tar.gz: this is not a gzip file; name the .tar.gz that invoke handoff wrote")


def test_an_archive_that_was_packed_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch)
    file = tmp_path / "x.tar.gz"
    file.write_bytes(gzip.compress(gzip.decompress(whole.read_bytes()), 1))
    said = failed(file, tmp_path / "work")
    assert list(said) == ["archive"]
    assert said["archive"].startswith("the gzip was not written by handoff")


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0), bit=st.integers(0, 7))
def test_any_bit_of_the_file(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    data = bytearray(whole.read_bytes())
    data[at % len(data)] ^= 1 << bit
    folder = tmp_path_factory.mktemp("bit")
    (folder / "x.tar.gz").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        only(patch)
        assert failed(folder / "x.tar.gz", folder / "work")


# --- changed and packed anew, so that manifest and crate fit ---

FORGED: dict[str, tuple[str, Callable[[Handoff], object], str]] = {
    "raw file": (
        "measurements",
        lambda made: made.change(
            "results/raw/000001_fake_1.json", lambda data: data.replace(b"120.0", b"119.0")
        ),
        "a/1 fake round 1, raw/000001_fake_1.json: prompt_ms is 120.0 in the table, 119.0 in the "
        "raw file",
    ),
    "raw file added": (
        "measurements",
        lambda made: made.path("results/raw/000009_fake_1.json").write_text("{}"),
        "raw/000009_fake_1.json belongs to no row",
    ),
    "raw file removed": (
        "measurements",
        lambda made: made.path("results/raw/000001_fake_1.json").unlink(),
        "raw/000001_fake_1.json: cannot be read: No such file or directory",
    ),
    "view": (
        "views",
        lambda made: change_database(
            made.top / "results", "CREATE OR REPLACE VIEW task_wall AS SELECT 1 AS x"
        ),
        "the view task_wall is not the one that this program makes",
    ),
    "claim": (
        "claims",
        lambda made: made.change(
            "claims.toml", lambda data: data.replace(b"\nexpected = 6.0", b"\nexpected = 9.0")
        ),
        "speedup: its query gives 6.0, the claim says 9.0",
    ),
    "export": (
        "exports",
        lambda made: made.path("export/run.parquet").unlink(),
        "run.parquet is missing",
    ),
    "all exports": (
        "exports",
        lambda made: shutil.rmtree(made.path("export")),
        "calibration.parquet is missing",
    ),
    "guide": (
        "guide",
        lambda made: made.change(
            "REPRODUCE.md", lambda data: data.replace(b"./inv doctor", b"./inv clean!")
        ),
        "says './inv clean!' where the results give './inv doctor'",
    ),
    "trace": (
        "trace",
        lambda made: made.change(
            "results/trace.jsonl", lambda data: data.replace(b'"depth": 3072', b'"depth": 3073')
        ),
        "the run was made with ",
    ),
    "graph": (
        "graph",
        lambda made: made.change("results/graph.json", lambda data: data.replace(b"9216", b"1024")),
        "n_ctx is '9216' in the table, '1024' in graph.json",
    ),
    "patch": (
        "patches",
        lambda made: made.change(
            "repository/patches/0001-b.patch", lambda data: data.replace(b"+b", b"+c")
        ),
        "repository/patches has the digest ",
    ),
    "source": (
        "source",
        lambda made: made.change(
            "source/llama_cpp_python-0.3.26.tar.gz", lambda data: data + b"more"
        ),
        "sha256 of source/llama_cpp_python-0.3.26.tar.gz is ",
    ),
    "calibration log": (
        "calibration",
        lambda made: made.change(
            "results/raw/llama-bench.log", lambda data: data.replace(b"240000000", b"200000000")
        ),
        "depth 0, chunk 512: the table has ",
    ),
    "experts": (
        "experts",
        lambda made: change_database(
            made.top / "results", "UPDATE expert SET distinct_experts = 1 WHERE layer = 0"
        ),
        "distinct_experts is 1, its raw file gives 5",
    ),
    "estimate": (
        "arithmetic",
        lambda made: change_database(
            made.top / "results",
            "UPDATE measurement SET prompt_ms = 90 WHERE variant = 'arithmetic' AND step = 1",
        ),
        "a/1 arithmetic: prompt_ms is 90.0, calibration and new tokens give 81.03515625",
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forgery_with_a_manifest_that_fits(
    made: Handoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name, change, sentence = FORGED[kind]
    only(monkeypatch, name, "crate")
    change(made)
    said = failed(made.pack(tmp_path / "x.tar.gz"), tmp_path / "work")
    assert list(said) == [name]
    assert sentence in said[name]


def test_a_crate_that_was_forgotten(
    made: Handoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "crate")
    made.remake_crate()
    made.path("note.txt").write_text("one more")
    said = failed(made.pack(tmp_path / "x.tar.gz", honest_crate=False), tmp_path / "work")
    assert said == {"crate": "it does not describe 'note.txt'"}


def test_a_swapped_row_when_all_else_was_made_to_fit_it(made: Handoff, tmp_path: Path) -> None:
    # fake and restored change places in one round: views, report, exports and claims follow.
    change_database(
        made.top / "results",
        "UPDATE measurement SET prompt_ms = CASE variant WHEN 'fake' THEN 105.0 ELSE 110.0 END "
        "WHERE task_id = 'a' AND step = 1 AND round = 0 AND variant IN ('fake', 'restored')",
    )
    made.remake()
    said = failed(made.pack(tmp_path / "x.tar.gz"), tmp_path / "work")
    assert list(said) == ["measurements"]
    assert said["measurements"] == (
        "a/1 fake round 0, raw/000001_fake_0.json: prompt_ms is 105.0 in the table, 110.0 in the "
        "raw file (and 1 more)"
    )


def test_a_swapped_row_alone(made: Handoff, tmp_path: Path) -> None:
    change_database(
        made.top / "results",
        "UPDATE measurement SET prompt_ms = 999 WHERE raw = '000001_fake_0.json'",
    )
    said = failed(made.pack(tmp_path / "x.tar.gz"), tmp_path / "work")
    assert list(said) == ["measurements", "exports", "report", "claims", "guide"]


UNREADABLE: dict[str, tuple[Callable[[Handoff], object], str]] = {
    "garbage": (
        lambda made: made.path("results/results.duckdb").write_bytes(b"\0" * 50_000),
        "results/results.duckdb: ",
    ),
    "missing": (lambda made: made.path("results/results.duckdb").unlink(), "results.duckdb"),
    "another table": (
        lambda made: change_database(made.top / "results", "CREATE TABLE x (a INTEGER)"),
        "the table x is none of this program's",
    ),
    "log": (
        lambda made: made.path("results/results.duckdb.wal").write_bytes(b"x"),
        "results.duckdb.wal: a write-ahead log lies beside the database",
    ),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_database_that_cannot_be_trusted_is_not_read(
    made: Handoff, tmp_path: Path, kind: str
) -> None:
    change, sentence = UNREADABLE[kind]
    change(made)
    checks = {
        check.name: check
        for check in verify(made.pack(tmp_path / "x.tar.gz"), tmp_path / "work", SILENT)
    }
    assert list(checks) == NAMES
    assert sentence in checks["tables"].detail
    fine = [name for name, check in checks.items() if check.ok]
    assert fine == ["archive", "hashes", "source", "crate"]
    assert checks["claims"].detail == "not checked: tables failed"


@pytest.mark.parametrize("same", [True, False])
def test_a_text_of_another_version_of_this_program_says_so(
    made: Handoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    only(monkeypatch, "guide", "graph")
    for folder in ("experiment", "schemas"):
        to = made.top / "repository" / folder
        shutil.copytree(ROOT / folder, to, ignore=shutil.ignore_patterns("__pycache__"))
    if not same:
        made.change("repository/experiment/templates/REPRODUCE.md.j2", lambda data: data + b"x")
    made.change("REPRODUCE.md", lambda data: data + b"x")
    made.change("results/graph.json", lambda data: data.replace(b"9216", b"1024"))
    said = failed(made.pack(tmp_path / "x.tar.gz"), tmp_path / "work")
    assert said["guide"].endswith(" (this program is not the one in repository/)") is not same
    assert said["graph"].endswith("in graph.json")


def test_trouble_of_any_kind_is_a_failed_check(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "graph", "trace")

    def trouble(*arguments: object) -> str:
        raise KeyError("a\nb\x1b[31m" + "x" * 1000)

    monkeypatch.setattr(verifying.verify_tables, "graph", trouble)
    said = failed(whole, tmp_path / "work")
    assert list(said) == ["graph"]
    assert said["graph"].startswith("it cannot be read: KeyError: 'a\\nb\\x1b[31mxxx")
    assert len(said["graph"]) < 700


def test_no_line_moves_a_terminal(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "graph")

    def trouble(*arguments: object) -> str:
        raise ArchiveError("a\nb\x1b[31mc\u202ed", where=f"{tmp_path}/work/{NAME}/results/x")

    monkeypatch.setattr(verifying.verify_tables, "graph", trouble)
    assert failed(whole, tmp_path / "work")["graph"] == "results/x: a b?[31mc?d"


def test_the_folder_to_unpack_into_is_removed(tmp_path: Path) -> None:
    with unpacked(tmp_path / "x.tar.gz", tmp_path / "cache") as work:
        assert work.is_dir()
        (work / "x").touch()
    assert not any((tmp_path / "cache").iterdir())
    (tmp_path / "file").touch()
    with (
        pytest.raises(ArchiveError, match="there is no folder to unpack it into"),
        unpacked(tmp_path / "x.tar.gz", tmp_path / "file"),
    ):
        pass


def test_a_manifest_of_another_run(
    made: Handoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch)
    content = members(made.pack(tmp_path / "x.tar.gz"))
    manifest = json.loads(content[0][1])
    manifest["run_id"] = "other"
    text = (json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()
    content[0][0].size = len(text)
    content[0] = (content[0][0], text)
    said = failed(packed(tmp_path / "x.tar.gz", content), tmp_path / "work")
    assert list(said) == ["tables"]
    assert "the manifest says 'other'" in said["tables"]

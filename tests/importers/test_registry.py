"""Finding the importers, and the one whose format a file is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from experiment.errors import TraceImportError
from experiment.importers import registry
from experiment.importers.base import Context, Source
from experiment.importers.registry import claims, detect, importers, named
from tests.importers.importing import DATA, SHARED, needs_shared

OURS = ("azure_llm", "burstgpt", "copilot", "mooncake", "tracelab", "vllm")
FIXTURES = [path for name in OURS for path in sorted((DATA / name).iterdir())]


class Claiming:
    """An importer that recognises everything."""

    what = "anything"
    counts = False

    def __init__(self, name: str) -> None:
        self.name = name

    def recognise(self, source: Source) -> str:
        return f"seen by {self.name}"

    def calls(self, source: Source, context: Context) -> None:
        raise NotImplementedError


def refusal(path: Path) -> TraceImportError:
    with pytest.raises(TraceImportError) as caught:
        detect(Source.open(path))
    return caught.value


def test_each_importer_has_a_name_of_its_own_and_says_what_it_reads() -> None:
    assert set(OURS) <= set(importers())
    for name, importer in importers().items():
        assert importer.name == name
        assert importer.what
        assert isinstance(importer.counts, bool)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_fixture_is_recognised_by_its_importer_alone(path: Path, tmp_path: Path) -> None:
    assert [importer.name for importer, _ in claims(Source.open(path))] == [path.parent.name]
    # By content: under another name too, and packed.
    renamed = tmp_path / "log"
    renamed.write_bytes(path.read_bytes())
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for copy in (renamed, packed):
        importer, seen = detect(Source.open(copy))
        assert importer.name == path.parent.name
        assert seen


@needs_shared
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("mooncake/*.jsonl", "mooncake"),
        ("tracelab/*.jsonl", "tracelab"),
        ("tracelab/*.csv", "tracelab"),
        ("azure_llm/*.csv", "azure_llm"),
        ("burstgpt/*.csv", "burstgpt"),
        ("burstgpt/*.jsonl", "burstgpt"),
        ("vllm_requests/*.jsonl", "vllm"),
        ("github_copilot_2026/*.json", "copilot"),
    ],
)
def test_each_sample_is_recognised_by_its_importer_alone(folder: str, name: str) -> None:
    found = list(SHARED.glob(folder))
    assert found
    for path in found:
        assert [importer.name for importer, _ in claims(Source.open(path))] == [name]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "an empty file"),
        (b"  \n", "an empty file"),
        (b"hello\nworld\n", "neither JSON nor CSV"),
        (b"\xff\xfe\0", "neither JSON nor CSV"),
        (b'{"a": 1, "b": 2}\n{"a": 3}\n', "JSON Lines with the fields a, b"),
        (b'{\n "a": 1,\n "b\\n": 2}', "a JSON object with the fields a, b\\n"),
        (b"[1, 2]", "an array in JSON"),
        (b"x,y\n1,2\n", "CSV with the columns x, y"),
        (b"PK\x03\x04...", "a zip archive"),
        (b"PAR1...", "a Parquet file"),
        (b"\x28\xb5\x2f\xfd...", "a file compressed with zstd"),
        (b"\x89PNG\r\n", "a PNG image"),
        (gzip.compress(b"x,y\n1,2\n"), "CSV, gzipped with the columns x, y"),
        (b"\x1f\x8b\x08damaged", "neither JSON nor CSV, gzipped"),
        (b"[" * 100_000, "neither JSON nor CSV"),
    ],
)
def test_what_nobody_recognises_is_described(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    error = refusal(path)
    assert f"{error.where}: {error.what}" == f"{path}: is {kind}: no known format"
    assert error.hint == f"--format takes auto, {', '.join(sorted(importers()))}"


def test_two_that_recognise_a_file_are_both_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: Claiming(name) for name in ("one", "two")}
    monkeypatch.setattr(registry, "importers", lambda: two)
    path = tmp_path / "log"
    path.write_bytes(b"x")
    assert str(refusal(path)) == (
        f"{path}: could be of several formats: one (seen by one); two (seen by two)\n"
        "  hint: name one: --format=NAME"
    )


def test_a_format_by_name() -> None:
    assert named("mooncake").name == "mooncake"
    with pytest.raises(
        TraceImportError, match="'moonkake' is not a format; did you mean 'mooncake'"
    ):
        named("moonkake")


def test_what_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TraceImportError) as caught:
        Source.open(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path}/none: cannot be read: No such file or directory"

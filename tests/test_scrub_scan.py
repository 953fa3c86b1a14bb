"""The last look at what is to be packed: each kind of file, and the line it is found in."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from experiment import scrub_database, scrub_scan
from experiment.errors import HandoffError
from experiment.scrub import Private, Scrubber
from tests.canned_handoff import (
    HOME,
    HOST,
    PRIVATE,
    RUN_ID,
    SCRUBBED_ID,
    SCRUBBER,
    USER,
    canned_folder,
)
from tests.saved_images import config, layer, legacy, oci, write

OPEN = Scrubber(Private(PRIVATE.paths, PRIVATE.users, frozenset(), keeps_host=True))


def refusal(name: str, content: Path | bytes, scrubber: Scrubber = SCRUBBER) -> HandoffError:
    files: dict[str, Path | bytes] = {"results/host.json": b"{}", name: content}
    with pytest.raises(HandoffError) as caught:
        scrub_scan.check(files, scrubber)
    return caught.value


def test_what_is_not_private_passes(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff <home>/x, user@host, /tmp, https://example.org/zaphod\n" * 1000)
    scrub_scan.check(
        {
            "results/raw/server.log": log,
            "REPRODUCE.md": f"{SCRUBBED_ID} -v $PWD/results:/results".encode(),
            "repository/README.md": f"An example: {HOST}, {RUN_ID}".encode(),
            "empty": b"",
        },
        SCRUBBER,
    )


@pytest.mark.parametrize(
    ("name", "text", "what", "advice"),
    [
        ("results/raw/server.log", HOME, "the path /home/zaphod", "run again from another folder"),
        ("results/host.json", HOST, "the host name betelgeuse-7", "--with-host-name"),
        ("report.html", f"run {RUN_ID}", "betelgeuse-7", "--with-host-name"),
        ("report.html", f"{HOME}/x", "the path /home/zaphod", "report it"),
        ("export/steps.jsonl", f"/media/{USER}/x", "/media/zaphod/x", "report it"),
        ("REPRODUCE.md", HOST, "betelgeuse-7", "--with-host-name"),
        ("results/trace.jsonl", HOME, "the path /home/zaphod", "digests stand in the run"),
        ("results/trace.jsonl", HOST, "betelgeuse-7", "take it out of the trace and run again"),
        ("results/shots/1.png", HOME, "the path /home/zaphod", "the trace and its pictures"),
        ("results/git_diff.patch", HOME, "the path /home/zaphod", "patches/, commit and run again"),
        ("repository/notes.md", HOME, "the path /home/zaphod", "take it out of the file, commit"),
        ("source/local-1.tar", HOME, "the path /home/zaphod", "the llama.cpp checkout"),
    ],
)
def test_file_and_line_are_named_and_what_to_do(
    name: str, text: str, what: str, advice: str
) -> None:
    error = refusal(name, b"one\ntwo\n" + text.encode() + b"\n")
    assert what in error.what
    assert error.where == f"{name}, line 3"
    assert advice in str(error.hint)


def test_names_of_files_are_looked_at_too() -> None:
    error = refusal(f"repository/x{HOME}/notes.md", b"")
    assert error.where == f"the name of repository/x{HOME}/notes.md"
    assert "commit and run again" in str(error.hint)


def test_host_names_that_may_be_known_pass() -> None:
    scrub_scan.check({"report.html": f"{HOST} {RUN_ID}".encode()}, OPEN)


@pytest.mark.parametrize("piece", [64, 100, 4096])
@pytest.mark.parametrize("before", [b"x" * 63, b"x\n" * 31, b"", b"y" * 500 + b"\n", b"z" * 5000])
def test_what_lies_across_two_pieces_is_found(
    monkeypatch: pytest.MonkeyPatch, before: bytes, piece: int
) -> None:
    monkeypatch.setattr(scrub_scan, "_PIECE_BYTES", piece)
    monkeypatch.setattr(scrub_scan, "_OVERLAP_BYTES", 32)
    lines = before.count(b"\n") + 1
    for shift in range(20):
        text = before + b"." * shift + HOME.encode() + b"/x" + b" and more" * 20
        assert refusal("report.html", text).where == f"report.html, line {lines}"


def test_line_of_a_file_that_is_no_text_is_not_told() -> None:
    assert refusal("results/shots/1.png", b"\0\n\xff" + HOME.encode()).where == (
        "results/shots/1.png"
    )


def test_values_of_parquet_are_looked_at_although_they_are_compressed(tmp_path: Path) -> None:
    file = tmp_path / "event.parquet"
    filling = "".join(f"the quick brown fox {number} " for number in range(200))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE event (told VARCHAR[])")
        for told in ("a", f"b {filling} {HOME}/x", "c"):
            connection.execute("INSERT INTO event VALUES (?)", [[told]])
        connection.execute(f"COPY event TO '{file}' (FORMAT parquet, COMPRESSION zstd)")
    assert HOME.encode() not in file.read_bytes()
    error = refusal("export/event.parquet", file)
    assert error.where == "export/event.parquet, parquet.told"


def test_values_of_the_database_are_looked_at(tmp_path: Path) -> None:
    database = canned_folder(tmp_path) / "results.duckdb"
    assert "results/results.duckdb" in str(refusal("results/results.duckdb", database).where)
    told = {column for column, text in scrub_scan._values(database) if HOME in text}
    assert told == {"event.message", "graph.value", "measurement.error", "run.settings"}
    scrub_database.write(database, tmp_path / "results.duckdb", SCRUBBER)
    scrub_scan.check({"results/results.duckdb": tmp_path / "results.duckdb"}, SCRUBBER)


def test_a_parquet_file_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "event.parquet"
    file.write_bytes(b"PAR1")
    assert str(file) in str(refusal("export/event.parquet", file).where)


@pytest.mark.parametrize("compressed", [False, True])
def test_layers_of_the_image_are_looked_at(tmp_path: Path, compressed: bool) -> None:
    layers = (layer(passwd=b"root", notes=f"see {HOME}/x".encode()),)
    members = oci(about=config(layers), layers=layers, compressed=compressed)
    error = refusal("image/image.tar", write(tmp_path / "image.tar", members))
    assert str(error.where).startswith("image/image.tar")
    assert "pack without --with-image" in str(error.hint)
    clean = write(tmp_path / "image.tar", legacy())
    scrub_scan.check({"image/image.tar": clean}, SCRUBBER)

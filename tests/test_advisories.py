"""Known vulnerabilities of locked packages: told where the index tells, else said to be unknown."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.advisories import (
    NOT_ASKED,
    Advisory,
    Examined,
    Pinned,
    examine,
    exit_code,
    locked,
    render,
)
from experiment.progress import SilentProgress

GOOD, BAD, OTHER = Pinned("good", "1.0"), Pinned("bad", "2.0"), Pinned("other", "3.0")

REPORT = {
    "id": "PYSEC-2026-1",
    "summary": "",
    "details": "\x1b[31mReads past the end.\nMore of it.",
    "fixed_in": ["2.1", "1.9.5"],
    "withdrawn": None,
}


class Index:
    """A registry on the loopback interface: a body by name and version, or an HTTP status."""

    def __init__(self) -> None:
        self.bodies: dict[Pinned, object] = {}
        self.asked: list[str] = []
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                _, _, name, version, _ = self.path.split("/")
                body = index.bodies.get(Pinned(name, version), 404)
                self.send_response(body if isinstance(body, int) else 200)
                data = b"<html>" if isinstance(body, int) else json.dumps(body).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    made = Index()
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def asked_for(*packages: Pinned) -> Examined:
    return examine(SilentProgress(), packages)


def test_every_locked_package_is_read_with_its_version(tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    file.write_text(
        "# a==1\none==1.0 \\\n    --hash=sha256:0\n    # via two==9\nTwo_x[extra]==2.0.post1 ; "
        "python_version < '3.12' \\\n    --hash=sha256:1\n"
    )
    assert locked([file, file]) == (Pinned("one", "1.0"), Pinned("two-x", "2.0.post1"))
    names = {package.name for package in locked()}
    assert {"duckdb", "requests", "pytest"} <= names
    assert len(names) > 40


def test_a_vulnerability_is_told(index: Index) -> None:
    index.bodies = {GOOD: {"vulnerabilities": []}, BAD: {"vulnerabilities": [REPORT]}}
    found = asked_for(BAD, GOOD)
    assert found.advisories == (
        Advisory(BAD, "PYSEC-2026-1", "[31mReads past the end.", ("2.1", "1.9.5")),
    )
    assert (found.known, found.silent, found.trouble) == ((BAD, GOOD), (), None)
    assert index.asked == ["/pypi/bad/2.0/json", "/pypi/good/1.0/json"]
    assert exit_code(found) == 1
    assert render(found).splitlines() == [
        "bad 2.0: PYSEC-2026-1 (fixed in 2.1, 1.9.5): [31mReads past the end.",
        "1 of 2 packages that were asked for have a known vulnerability",
        NOT_ASKED,
    ]


def test_a_withdrawn_one_is_none(index: Index) -> None:
    index.bodies = {BAD: {"vulnerabilities": [REPORT | {"withdrawn": "2026-01-01T00:00:00Z"}]}}
    found = asked_for(BAD)
    assert (found.advisories, exit_code(found)) == ((), 0)
    assert render(found).startswith("0 of 1 packages that were asked for have")


def test_a_package_of_which_the_index_says_nothing_is_named(index: Index) -> None:
    index.bodies = {GOOD: {"vulnerabilities": []}, OTHER: {"info": {}}}
    found = asked_for(GOOD, BAD, OTHER)
    assert (found.known, found.silent) == ((GOOD,), (BAD, OTHER))
    assert f"not known of bad, other: {index.url} does not tell" in render(found)
    assert exit_code(found) == 0


@pytest.mark.parametrize("body", [404, 500, 405, [], "text", {"vulnerabilities": None}])
def test_an_index_that_does_not_tell_is_not_asked_for_all(index: Index, body: object) -> None:
    packages = [Pinned(f"p{number}", "1") for number in range(20)]
    index.bodies = dict.fromkeys(packages, body)
    found = asked_for(*packages)
    assert len(index.asked) == 3
    assert render(found).splitlines() == [
        f"not known: {index.url} cannot tell (it does not tell vulnerabilities); "
        "what was not asked for may have vulnerabilities",
        "nothing was found out about any package",
        NOT_ASKED,
    ]
    assert exit_code(found) == 0


def test_an_index_that_refuses(index: Index) -> None:
    index.bodies = {GOOD: {"vulnerabilities": []}, BAD: 403}
    found = asked_for(GOOD, BAD, OTHER)
    assert found.trouble == "it refuses, HTTP 403"
    assert render(found).startswith(f"not known of the rest: {index.url} cannot tell (it refuses")
    assert exit_code(found) == 0


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("url", "trouble"),
    [
        ("http://user:secret@127.0.0.1:9/simple/", "it cannot be reached: ConnectionError"),
        ("file:///nowhere/simple", "it is no address that could be asked"),
    ],
)
def test_being_offline_is_said_and_is_no_failure(
    url: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    found = asked_for(GOOD, BAD)
    assert (found.trouble, found.known, exit_code(found)) == (trouble, (), 0)
    assert "secret" not in render(found)
    assert "nothing was found out about any package" in render(found)

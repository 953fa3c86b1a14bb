"""Asking pip's index: which one it is, and what is said where it does not answer."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from experiment import doctor_registry
from experiment.doctor_registry import (
    default_index,
    pip_settings,
    registry,
    setting,
    trouble_with,
    without_credentials,
)
from experiment.errors import ExperimentError


class Index:
    """A package index on this machine that answers HEAD with ``status``."""

    def __init__(self) -> None:
        self.status = 200
        self.hangs = threading.Event()
        self.asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                index.asked.append(self.path)
                if index.status == 0:
                    index.hangs.wait(10)
                    return
                if index.status == 302 and self.path.startswith("/moved/"):
                    self.send_response(404)
                    self.end_headers()
                    return
                self.send_response(index.status)
                if index.status == 302:
                    self.send_header("Location", "/moved/")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    for name in [n for n in os.environ if n.startswith("PIP_") or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor_registry, "TIMEOUT_S", 5.0)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    made = Index()
    thread = threading.Thread(
        target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield made
    made.hangs.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_pips_own_settings_are_used(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with_credentials = index.url.replace("//", "//me:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", with_credentials)
    found = registry("sdist")
    assert found.trouble is None
    assert found.index == index.url
    assert index.asked == ["/simple/llama-cpp-python/"]
    assert registry("guide").trouble is None  # no package: git
    assert index.asked[1:] == ["/simple/pip/"]


def test_an_unknown_pin_is_anothers_to_report(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    assert registry("no such pin").trouble is None


def test_settings_are_read_from_files_and_variables(tmp_path: Path, index: Index) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\ncert = it's/here.pem\n")
    environment = {"PIP_CONFIG_FILE": str(config), "PATH": os.environ["PATH"], "HOME": "/none"}
    found = pip_settings(environment)
    assert setting(found, "index-url") == "https://mirror.example/simple"
    assert setting(found, "cert") == "it's/here.pem"
    assert setting(found, "no-such-setting") is None
    found = pip_settings({**environment, "PIP_INDEX_URL": "https://other.example"})
    assert setting(found, "index-url") == "https://other.example"


def test_a_commands_own_setting_goes_before_that_of_all() -> None:
    settings = {"global.index-url": "a", "download.index-url": "b"}
    assert setting(settings, "index-url") == "b"


def test_pip_itself_knows_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_index().startswith("https://")
    assert default_index().rstrip("/").endswith("/simple")
    monkeypatch.setitem(sys.modules, "pip._internal.models.index", None)
    with pytest.raises(ExperimentError, match="not known"):
        default_index()


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ExperimentError, match="pip does not run"):
        registry("sdist")


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (200, None),
        (405, None),
        (501, None),
        (401, "refuses (HTTP 401)"),
        (403, "refuses (HTTP 403)"),
        (404, "does not have some-package"),
        (302, "does not have some-package"),
        (500, "answers with HTTP 500"),
        (503, "answers with HTTP 503"),
    ],
)
def test_answers(index: Index, status: int, what: str | None) -> None:
    index.status = status
    trouble = trouble_with(index.url, "some-package", {})
    assert (trouble and trouble.what) == what
    assert trouble is None or trouble.hint


def test_an_index_that_hangs(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_registry, "TIMEOUT_S", 0.3)
    index.status = 0
    trouble = trouble_with(index.url, "p", {})
    assert trouble is not None
    assert "no answer within" in trouble.what
    assert "HTTPS_PROXY" in trouble.hint
    assert "PIP_CERT" in trouble.hint


def test_an_index_that_is_not_there(index: Index) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        trouble = trouble_with(f"http://127.0.0.1:{taken.getsockname()[1]}/simple", "p", {})
        assert trouble is not None
        assert trouble.what == "cannot be reached"
        proxy = {"global.proxy": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        trouble = trouble_with("http://index.example/simple", "p", proxy)
    assert trouble is not None
    assert "proxy" in trouble.what


def test_a_certificate_that_is_not_trusted(index: Index, tmp_path: Path) -> None:
    # TLS with a server that speaks none fails as one with a wrong certificate does.
    trouble = trouble_with(index.url.replace("http:", "https:"), "p", {})
    assert trouble is not None
    assert trouble.what == "its certificate is not trusted"
    assert "PIP_CERT" in trouble.hint


def test_certificates_that_are_none(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = index.url.replace("http://", "https://me:secret@")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    trouble = trouble_with(secure, "p", {":env:.cert": str(empty)})
    assert trouble is not None
    assert "secret" not in trouble.what
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    trouble = trouble_with(secure, "p", {})
    assert trouble is not None
    assert trouble.what == f"SSL_CERT_FILE names {tmp_path / 'none.pem'}, which is no file"


def test_an_index_in_a_folder(index: Index, tmp_path: Path) -> None:
    (tmp_path / "my index").mkdir()
    assert trouble_with((tmp_path / "my index").as_uri(), "p", {}) is None
    trouble = trouble_with((tmp_path / "none").as_uri(), "p", {})
    assert trouble is not None
    assert trouble.what == "no such folder"


@pytest.mark.parametrize("address", ["not an address", "http://", "http://[::1", "ftp://x/simple"])
def test_an_address_that_is_none(index: Index, address: str) -> None:
    trouble = trouble_with(address, "p", {})
    assert trouble is not None
    assert "cannot be" in trouble.what


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://a:b@host:8/simple", "https://host:8/simple"),
        ("https://token@host/simple", "https://host/simple"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_credentials_are_not_shown(address: str, shown: str) -> None:
    assert without_credentials(address) == shown

"""Finding an engine, and what is said where there is none that can be used."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from docker.constants import DEFAULT_DOCKER_API_VERSION

from experiment import docker_client
from experiment.docker_client import connect
from experiment.errors import EngineError
from tests.fake_engine import (
    DOCKER_VERSION,
    INFO,
    OLD_DOCKER_VERSION,
    PODMAN_VERSION,
    fake_engine,
)


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Docker CLI settings but those of the test, and no socket at the usual places."""
    for name in [name for name in os.environ if name.startswith(("DOCKER_", "XDG_RUNTIME"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(docker_client, "DEFAULT_ENDPOINT", f"unix://{tmp_path}/default.sock")
    monkeypatch.setattr(docker_client, "PROBE_TIMEOUT_S", 0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.sock"


def at(path: Path) -> dict[str, str]:
    return {"DOCKER_HOST": f"unix://{path}"}


def refusal(environ: dict[str, str] | None) -> EngineError:
    """The error, with the promises that hold for each of them."""
    with pytest.raises(EngineError) as caught:
        connect(environ)
    assert caught.value.hint
    assert "\n" not in caught.value.what
    assert "object at 0x" not in caught.value.what
    return caught.value


def write_context(folder: Path, name: str, host: str, *, current: bool = False) -> None:
    meta = folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))
    config = {"currentContext": name} if current else {}
    (folder / "config.json").write_text(json.dumps(config))


def test_speaks_the_newest_api_that_both_know(path: Path) -> None:
    with fake_engine(path, version=DOCKER_VERSION, info=INFO) as engine:
        found = connect(at(path))
        found.client.close()
    assert found.endpoint == f"unix://{path}"
    assert (found.context, found.kind, found.rootless) == ("DOCKER_HOST", "docker", False)
    assert (found.version, found.api_version) == ("29.4.1", DEFAULT_DOCKER_API_VERSION)
    assert found.client.api.api_version == DEFAULT_DOCKER_API_VERSION
    assert engine.asked == ["GET /version", f"GET /v{DEFAULT_DOCKER_API_VERSION}/info"]
    assert found.info["MemTotal"] == INFO["MemTotal"]


def test_an_older_engine_is_spoken_to_in_its_own_api(path: Path) -> None:
    with fake_engine(path, version=OLD_DOCKER_VERSION, info=INFO):
        found = connect(at(path))
        found.client.close()
    assert (found.version, found.api_version) == ("20.10.24", "1.41")


def test_api_versions_are_compared_as_numbers(path: Path) -> None:
    # As texts, "1.9" would be newer than "1.45", and "1.100" older.
    ancient = {"Version": "1.8", "ApiVersion": "1.9"}
    with fake_engine(path, version=ancient, info=INFO):
        assert "too old" in refusal(at(path)).what
    future = {"Version": "99.0", "ApiVersion": "1.100", "MinAPIVersion": "1.44"}
    with fake_engine(path.with_name("f.sock"), version=future, info=INFO):
        found = connect(at(path.with_name("f.sock")))
        found.client.close()
    assert found.api_version == DEFAULT_DOCKER_API_VERSION


def test_waits_long_once_the_engine_is_found(path: Path) -> None:
    with fake_engine(path, version=DOCKER_VERSION, info=INFO, df={"Images": []}) as engine:
        found = connect(at(path))
        engine.delay_s = 2 * docker_client.PROBE_TIMEOUT_S
        assert found.client.df() == {"Images": []}
        found.client.close()


@pytest.mark.parametrize(
    ("info", "rootless"),
    [
        (INFO, False),
        ({**INFO, "SecurityOptions": ["name=seccomp,profile=x", "name=rootless"]}, True),
        ({**INFO, "SecurityOptions": ["name=seccomp,profile=name=rootless-not"]}, False),
        ({**INFO, "SecurityOptions": None, "Rootless": True}, True),
        ({}, False),
    ],
)
def test_podman_and_rootless_are_recognised(
    path: Path, info: dict[str, Any], rootless: bool
) -> None:
    with fake_engine(path, version=PODMAN_VERSION, info=info):
        found = connect(at(path))
        found.client.close()
    assert (found.kind, found.version, found.rootless) == ("podman", "5.4.2", rootless)


def test_the_default_socket_is_used_where_nothing_is_said(tmp_path: Path) -> None:
    with fake_engine(tmp_path / "default.sock", version=DOCKER_VERSION, info=INFO):
        found = connect({})
        found.client.close()
    assert (found.context, found.endpoint) == ("default", f"unix://{tmp_path}/default.sock")


@pytest.mark.parametrize("chosen_by", ["settings", "variable"])
def test_a_context_of_the_cli_is_used(tmp_path: Path, path: Path, chosen_by: str) -> None:
    write_context(tmp_path / "docker", "lab", f"unix://{path}", current=chosen_by == "settings")
    environ = {"DOCKER_CONTEXT": "lab"} if chosen_by == "variable" else {}
    with fake_engine(path, version=DOCKER_VERSION, info=INFO):
        found = connect(environ)
        found.client.close()
    assert (found.context, found.endpoint) == ("lab", f"unix://{path}")


def test_docker_host_goes_before_a_context(tmp_path: Path, path: Path) -> None:
    write_context(tmp_path / "docker", "lab", "unix:///nowhere", current=True)
    with fake_engine(path, version=DOCKER_VERSION, info=INFO):
        found = connect({**at(path), "DOCKER_CONTEXT": "lab"})
        found.client.close()
    assert found.context == "DOCKER_HOST"


def test_the_process_environment_is_the_default(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with fake_engine(path, version=DOCKER_VERSION, info=INFO):
        connect().client.close()
        assert "default.sock" in refusal({}).what


def test_no_socket(path: Path) -> None:
    error = refusal(at(path))
    assert error.what == f"no container engine is here: there is no socket at {path}"
    assert "systemctl start docker" in str(error.hint)
    assert "--engine native" in str(error.hint)


def test_a_socket_that_nobody_listens_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert "nobody listens at" in refusal(at(path)).what


def test_a_port_that_nobody_listens_at() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        error = refusal({"DOCKER_HOST": f"tcp://127.0.0.1:{port}"})
    assert error.what.endswith(f"nobody listens at tcp://127.0.0.1:{port}")


def test_a_socket_elsewhere_is_pointed_out(tmp_path: Path, path: Path) -> None:
    (tmp_path / "podman").mkdir()
    other = tmp_path / "podman" / "podman.sock"
    with fake_engine(other, version=PODMAN_VERSION, info=INFO):
        error = refusal({"XDG_RUNTIME_DIR": str(tmp_path)})
        assert f"DOCKER_HOST=unix://{other}" in str(error.hint)
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
        error = refusal({**at(path), "XDG_RUNTIME_DIR": str(tmp_path)})
        assert f"DOCKER_HOST=unix://{other}" in str(error.hint)
        connect(at(other)).client.close()


def test_no_permission_on_the_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # root may use every socket
        real = socket.socket.connect

        class Forbidden(socket.socket):
            def connect(self, address: Any) -> None:
                if address == str(path):
                    raise PermissionError(13, "Permission denied")
                real(self, address)

        monkeypatch.setattr(socket, "socket", Forbidden)
    with fake_engine(path, version=DOCKER_VERSION, info=INFO):
        path.chmod(0)
        assert stat.S_IMODE(path.stat().st_mode) == 0
        monkeypatch.setattr(Path, "group", lambda self: "dockers")
        error = refusal(at(path))
        monkeypatch.setattr(Path, "group", lambda self: "root")
        private = refusal(at(path))
    assert error.what == f"no permission to use unix://{path}"
    assert "usermod -aG dockers" in str(error.hint)
    assert "usermod" not in str(private.hint)


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("/var/run/docker.sock", "unix:///var/run/docker.sock"),
        ("127.0.0.1:2375", "tcp://127.0.0.1:2375"),
        ("localhost:2375", "tcp://localhost:2375"),
        ("box", "tcp://box"),
    ],
)
def test_docker_host_without_a_scheme(host: str, right: str) -> None:
    error = refusal({"DOCKER_HOST": host})
    assert error.what == f"DOCKER_HOST is {host}, which has no scheme"
    assert f"DOCKER_HOST={right}," in str(error.hint)


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("fd://3", "fd:// is not a scheme"),
        ("npipe:////./pipe/docker_engine", "npipe:// is not a scheme"),
        ("tcp://localhost", "port is required"),
        ("tcp://localhost:99999", "names no engine"),
        ("tcp://", "names no engine"),
        ("ssh://somebody@box", "speaks no SSH"),
        ("tcp://no-such-host.invalid:2375", "no host of that name"),
    ],
)
def test_docker_host_that_names_nothing(
    host: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = refusal({"DOCKER_HOST": host})
    assert what in error.what
    assert error.what.startswith(f"DOCKER_HOST is {host}")


@pytest.mark.parametrize("chosen_by", ["settings", "variable"])
def test_a_context_that_does_not_exist(tmp_path: Path, chosen_by: str) -> None:
    write_context(tmp_path / "docker", "other", "unix:///nowhere")
    if chosen_by == "settings":
        (tmp_path / "docker" / "config.json").write_text('{"currentContext": "gone"}')
    error = refusal({"DOCKER_CONTEXT": "gone"} if chosen_by == "variable" else {})
    assert error.what == "the Docker context is gone, and there is no context of that name"
    assert "docker context ls" in str(error.hint)


def test_a_broken_context(tmp_path: Path) -> None:
    write_context(tmp_path / "docker", "lab", "unix:///nowhere", current=True)
    (meta,) = (tmp_path / "docker" / "contexts" / "meta").glob("*/meta.json")
    meta.write_text('{"Name": ')
    assert refusal({}).what.startswith("the Docker context is lab, which cannot be read")


def test_a_context_whose_address_has_no_scheme(tmp_path: Path) -> None:
    write_context(tmp_path / "docker", "lab", "/run/docker.sock", current=True)
    error = refusal({})
    assert error.what == (
        "the Docker context is lab, whose address is /run/docker.sock, which has no scheme"
    )


@pytest.mark.parametrize("content", ['{"currentContext": ', "[1]", "\udcff"])
def test_broken_settings_of_the_cli(tmp_path: Path, content: str) -> None:
    (tmp_path / "docker").mkdir()
    config = tmp_path / "docker" / "config.json"
    config.write_bytes(content.encode(errors="surrogateescape"))
    error = refusal({})
    assert str(config) in error.what
    assert "repair or remove" in str(error.hint)


@pytest.mark.parametrize("content", ['{"auths": 5}', '{"proxies": 5}', "[1]"])
def test_settings_of_the_cli_that_upset_the_sdk(tmp_path: Path, path: Path, content: str) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(content)
    with fake_engine(path, version=DOCKER_VERSION, info=INFO):
        refusal(at(path))


def test_an_engine_too_old_for_the_client(path: Path) -> None:
    with fake_engine(path, version={"Version": "1.11", "ApiVersion": "1.23"}, info=INFO):
        error = refusal(at(path))
    assert "engine 1.11" in error.what
    assert "too old: it speaks API 1.23" in error.what
    assert "update the engine" in str(error.hint)


def test_an_engine_too_new_for_the_client(path: Path) -> None:
    version = {"Version": "40.0", "ApiVersion": "1.80", "MinAPIVersion": "1.70"}
    with fake_engine(path, version=version, info=INFO):
        error = refusal(at(path))
    assert "engine 40.0" in error.what
    assert "too new: the oldest API it speaks is 1.70" in error.what
    assert DEFAULT_DOCKER_API_VERSION in error.what


@pytest.mark.parametrize(
    "version",
    [
        pytest.param({}, id="empty"),
        pytest.param([], id="no object"),
        pytest.param({"ApiVersion": 1.41}, id="no text"),
        pytest.param({"ApiVersion": "new"}, id="no version"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", id="a web page"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", id="cut short"),
        pytest.param(b"", id="silence"),
    ],
)
def test_something_that_is_no_engine(path: Path, version: object) -> None:
    with fake_engine(path, version=version, info=INFO):
        error = refusal(at(path))
    assert error.what == f"what answers at unix://{path} is not a container engine"


@pytest.mark.parametrize("info", [[], b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n<"])
def test_nonsense_about_itself(path: Path, info: object) -> None:
    with fake_engine(path, version=DOCKER_VERSION, info=info):
        assert "not a container engine" in refusal(at(path)).what


@pytest.mark.parametrize("refused", ["version", "info"])
def test_an_engine_behind_a_proxy_that_refuses(path: Path, refused: str) -> None:
    answers = {"version": DOCKER_VERSION, "info": INFO, refused: (403, {"message": "not allowed"})}
    with fake_engine(path, **answers):
        error = refusal(at(path))
    assert f"what answers at unix://{path} refuses" in error.what
    assert "not allowed" in error.what


@pytest.mark.parametrize("answers", [{}, {"version": DOCKER_VERSION}], ids=["at once", "later"])
def test_an_engine_that_hangs(path: Path, answers: dict[str, object]) -> None:
    with fake_engine(path, **answers):
        started = time.monotonic()
        error = refusal(at(path))
        took_s = time.monotonic() - started
    assert "did not answer within" in error.what
    assert 0.4 < took_s < 4


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """A server with a certificate that nobody trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            plain, _ = listener.accept()
            with plain:
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        with socket.socket() as last:  # so that accept() returns if the test did not connect
            last.connect(listener.getsockname())
        thread.join()


def test_a_certificate_that_is_not_trusted(
    tls_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    error = refusal({"DOCKER_HOST": f"https://127.0.0.1:{tls_port}"})
    assert error.what.startswith(f"TLS with the engine at https://127.0.0.1:{tls_port} fails")
    assert "DOCKER_CERT_PATH" in str(error.hint)


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    error = refusal(
        {
            "DOCKER_HOST": "tcp://127.0.0.1:2376",
            "DOCKER_TLS_VERIFY": "1",
            "DOCKER_CERT_PATH": str(tmp_path / "none"),
        }
    )
    assert "TLS cannot be set up" in error.what
    assert "DOCKER_CERT_PATH" in str(error.hint)


def test_an_engine_that_wants_tls(path: Path) -> None:
    # What Go's HTTP server says to a client without TLS.
    said = b"Client sent an HTTP request to an HTTPS server.\n"
    answer = b"HTTP/1.0 400 Bad Request\r\n\r\n" + said
    with fake_engine(path, version=answer):
        assert refusal(at(path)).what == f"the engine at unix://{path} wants TLS"

"""What stands for a container engine: an HTTP server on a unix socket with canned answers."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

DOCKER_VERSION = {
    "Version": "29.4.1",
    "ApiVersion": "1.54",
    "MinAPIVersion": "1.44",
    "Components": [{"Name": "Engine", "Version": "29.4.1"}, {"Name": "containerd"}],
}
OLD_DOCKER_VERSION = {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}
PODMAN_VERSION = {
    "Version": "5.4.2",
    "ApiVersion": "1.41",
    "MinAPIVersion": "1.24",
    "Components": [{"Name": "Podman Engine", "Version": "5.4.2"}, {"Name": "Conmon"}],
}
INFO = {
    "ServerVersion": "29.4.1",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "MemTotal": 64 << 30,
    "NCPU": 8,
    "MemoryLimit": True,
    "DockerRootDir": "/nowhere/docker",
}
NO_DOCKERFILE = (400, {"message": "Cannot locate specified Dockerfile: none"})


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """Answers the paths of ``answers``: JSON, (status, JSON), or bytes as they go over the wire.

    A path without an answer hangs until the engine is closed, all others wait for ``delay_s``.
    ``asked`` collects the requests.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.delay_s = 0.0
        self.closing = threading.Event()
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def do_GET(self) -> None:
        plain = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {plain}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = "/" + plain.rsplit("/", 1)[-1]
        self.close_connection = True
        if name not in self.server.answers:
            self.server.closing.wait(20)
            return
        answer = self.server.answers[name]
        self.server.closing.wait(self.server.delay_s)
        if isinstance(answer, bytes):
            self.wfile.write(answer)
            return
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fake_engine(path: Path, **answers: Any) -> Iterator[FakeEngine]:
    """Serve on the socket ``path``; ``version=…`` is the answer to ``/version``, and so on."""
    engine = FakeEngine(path, {f"/{name}": answer for name, answer in answers.items()})
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield engine
    finally:
        engine.closing.set()
        engine.shutdown()
        thread.join()
        engine.server_close()

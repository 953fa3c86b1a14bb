"""A server that hangs or dies is told and ended for good, and the run goes on with another."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, counts, events, query, status, structure, the_run

from experiment.client import Client, Prompt
from experiment.errors import ServerError
from experiment.server import Server

# Answers /props at once, and /completion not at all; a request makes the file "asked".
HANGS = """
import http.server, sys, time, pathlib
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(600)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


def hanging(folder: Path, request_timeout_s: float) -> Server:
    program = folder / "server.py"
    program.write_text(HANGS, encoding="utf-8")
    return Server(
        Path(sys.executable),
        ["-I", "-S", str(program), str(folder / "asked")],
        folder / "server.log",
        start_timeout_s=20,
        request_timeout_s=request_timeout_s,
    )


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_answer_that_does_not_come_is_an_error_in_time(tmp_path: Path) -> None:
    with hanging(tmp_path, 0.5) as server:
        began_s = time.monotonic()
        with pytest.raises(ServerError, match="no answer to /completion within 0 s") as caught:
            server.client.complete(Prompt("x"))
        assert 0.4 < time.monotonic() - began_s < 10
        assert "request_timeout_s" in str(caught.value)
        pid = server.pid
    assert ended(pid)


def test_a_stopped_server_is_not_waited_for_and_can_be_ended(tmp_path: Path) -> None:
    with hanging(tmp_path, 0.5) as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ServerError, match="no answer to /props"):
            server.client.props()
        server.check()  # it is still there, and says nothing
    assert ended(pid)  # a stopped process does not listen to SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_server_that_dies_in_the_midst_of_a_request(
    number: signal.Signals, tmp_path: Path
) -> None:
    with hanging(tmp_path, 30) as server:

        def kill() -> None:
            while not (tmp_path / "asked").exists():
                time.sleep(0.01)
            os.kill(server.pid, number)

        killer = threading.Thread(target=kill)
        killer.start()
        began_s = time.monotonic()
        with pytest.raises(ServerError, match="the server went away during /completion"):
            server.client.complete(Prompt("x"))
        assert time.monotonic() - began_s < 20
        killer.join()
        while server._child.poll() is None:
            time.sleep(0.01)
        with pytest.raises(ServerError, match=f"the server ended with signal {int(number)}"):
            server.check()


def test_a_client_that_asks_nobody(tmp_path: Path) -> None:
    with hanging(tmp_path, 5) as server:
        url = server.client.url
    client = Client(url, timeout_s=5)
    with pytest.raises(ServerError, match="the server went away during /props"):
        client.props()
    client.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("whole"), with_refused=False).start())


@pytest.mark.parametrize("at", [0, 5, 13, 23])
def test_a_run_goes_on_with_another_server(
    at: int, tmp_path: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    world = World(tmp_path, with_refused=False)
    lost = ServerError("no answer to /completion within 3 s")
    world.trouble = lambda number, _: lost if number == at else None
    folder = world.start()
    assert status(folder) == "finished"
    assert world.sessions == 2
    assert structure(folder) == uninterrupted
    assert events(folder, "server_lost") == [lost.what]
    assert not [path.name for path in folder.glob("*.json") if path.name == "under-way.json"]


def test_a_run_gives_up_on_servers_that_always_hang_and_can_be_resumed(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    world = World(tmp_path, with_refused=False)
    world.trouble = lambda number, _: ServerError("no answer") if number >= 9 else None
    with pytest.raises(ServerError, match="no answer"):
        world.start()
    folder = the_run(world)
    assert status(folder) == "failed"
    assert world.open_sessions == 0
    kept = query(folder, "SELECT * FROM measurement WHERE status = 'ok' ORDER BY ALL")
    assert len(kept) == 5
    ((failed,),) = query(folder, "SELECT count(*) FROM measurement WHERE status = 'failed'")
    assert failed >= 1
    world.trouble = lambda _number, _ask: None
    world.resume(folder)
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
    now = query(folder, "SELECT * FROM measurement WHERE status = 'ok' ORDER BY ALL")
    assert [row for row in kept if row not in now] == []
    assert ("fake", "failed") not in counts(folder)

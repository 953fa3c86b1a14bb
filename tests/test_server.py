"""Starting and ending a server; small programs stand for llama-server, good and bad ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiment.client import Client
from experiment.errors import RequestRefused, ServerError
from experiment.models import ModelFiles
from experiment.paths import ROOT
from experiment.process import spawn
from experiment.server import Server, server_arguments
from experiment.settings import Settings, load_settings

LISTENS = "print('srv llama_server: server is listening on http://127.0.0.1:4711', flush=True)\n"
SLEEPS = "import time; time.sleep(60)\n"

# As the real one: takes its key from the environment and refuses whoever does not send it.
ANSWERS = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers.get("Authorization") == "Bearer " + os.environ["LLAMA_API_KEY"]
        body = b'{"media_marker": "<m>"}' if known else b'{"error": {"message": "Invalid API Key"}}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http_server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("loading", flush=True)
print(f"listening on http://127.0.0.1:{http_server.server_port}", flush=True)
http_server.serve_forever()
"""


def fake(
    folder: Path, code: str, *, start_timeout_s: float = 20.0, request_timeout_s: float = 20.0
) -> Server:
    program = folder / "fake_llama_server.py"
    program.write_text(code, encoding="utf-8")
    return Server(
        Path(sys.executable),
        ["-I", "-S", str(program)],
        folder / "server.log",
        start_timeout_s=start_timeout_s,
        request_timeout_s=request_timeout_s,
    )


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; one that nobody has collected yet counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The process ids of all servers that a test starts."""
    pids: list[int] = []

    def spawning(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        child = spawn(*arguments, **options)  # type: ignore[arg-type]
        pids.append(child.pid)
        return child

    monkeypatch.setattr("experiment.server.spawn", spawning)
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def test_a_server_answers_its_driver_and_nobody_else(tmp_path: Path) -> None:
    with fake(tmp_path, ANSWERS) as server:
        assert server.client.props() == {"media_marker": "<m>"}
        assert server.client.timeout_s == 20.0
        stranger = Client(server.client.url)
        with pytest.raises(RequestRefused, match="Invalid API Key"):
            stranger.props()
        stranger.close()
        server.check()
        pid = server.pid
    assert gone(pid, 0.1)  # it has ended before the block is left


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
def test_the_key_is_in_the_environment_and_not_on_the_command_line(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        with fake(tmp_path, LISTENS + SLEEPS) as server:
            process = Path("/proc") / str(server.pid)
            environment = process.joinpath("environ").read_bytes().split(b"\0")
            (key,) = [item[14:] for item in environment if item.startswith(b"LLAMA_API_KEY=")]
            assert len(key) >= 32
            assert key not in process.joinpath("cmdline").read_bytes()
            assert key not in (tmp_path / "server.log").read_bytes()
            assert f"PATH={os.environ['PATH']}".encode() in environment  # the rest is inherited
            keys.append(key)
    assert keys[0] != keys[1]
    assert "LLAMA_API_KEY" not in os.environ


def test_the_address_is_what_the_server_says(tmp_path: Path) -> None:
    with fake(tmp_path, LISTENS + SLEEPS) as server:
        assert server.client.url == "http://127.0.0.1:4711"


def test_a_slow_start_is_waited_for(tmp_path: Path) -> None:
    with fake(tmp_path, "import time; time.sleep(0.3)\n" + LISTENS + SLEEPS) as server:
        assert server.client.url == "http://127.0.0.1:4711"


def test_a_server_that_dies_at_once_is_told_with_its_last_words(
    tmp_path: Path, started: list[int]
) -> None:
    code = "for n in range(40): print('line', n)\nraise SystemExit('cannot load model')"
    began = time.monotonic()
    with pytest.raises(ServerError) as caught, fake(tmp_path, code):
        pass
    assert time.monotonic() - began < 15  # it does not wait for the time-out
    assert "ended with exit code 1" in caught.value.what
    assert "cannot load model" in caught.value.what
    assert "line 39" in caught.value.what
    assert "line 20" not in caught.value.what
    assert caught.value.where == str(tmp_path / "server.log")
    assert gone(started[0], 0.1)


def test_a_server_that_is_killed_while_it_loads(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with (
        pytest.raises(ServerError, match=r"ended with signal 9 \(out of memory\?\)"),
        fake(tmp_path, code),
    ):
        pass


def test_a_server_that_never_gets_ready_is_ended(tmp_path: Path, started: list[int]) -> None:
    code = "print('loading model', flush=True)\n" + SLEEPS
    with (
        pytest.raises(ServerError, match="did not get ready within") as caught,
        fake(tmp_path, code, start_timeout_s=1.0),
    ):
        pass
    assert "loading model" in caught.value.what
    assert "start_timeout_s" in (caught.value.hint or "")
    (pid,) = started
    assert gone(pid, 0.1)


def test_an_interrupt_while_it_loads_ends_it(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Server) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "log_text", interrupt)
    with pytest.raises(KeyboardInterrupt), fake(tmp_path, SLEEPS):
        pass
    assert gone(started[0], 0.1)


def test_an_error_in_the_block_ends_it(tmp_path: Path, started: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), fake(tmp_path, LISTENS + SLEEPS):
        _ = 1 / 0
    assert gone(started[0], 0.1)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    server = Server(
        tmp_path / "llama-server", [], tmp_path / "log", start_timeout_s=1, request_timeout_s=1
    )
    with pytest.raises(ServerError, match=r"cannot start llama-server: .*No such file"), server:
        pass


def test_a_death_later_on_is_told(tmp_path: Path) -> None:
    with fake(tmp_path, LISTENS + SLEEPS) as server:
        server.check()
        os.kill(server.pid, signal.SIGABRT)
        assert gone(server.pid)
        with pytest.raises(ServerError, match="ended with signal 6; its last lines") as caught:
            server.check()
    assert "listening on" in caught.value.what


def test_a_second_server_adds_to_the_log_and_reads_only_its_own_part(tmp_path: Path) -> None:
    with fake(tmp_path, "print('first')\n" + LISTENS + SLEEPS) as server:
        assert server.log_text().startswith("first")
    other = LISTENS.replace("4711", "4712")
    with fake(
        tmp_path, "import time; time.sleep(0.1); print('second')\n" + other + SLEEPS
    ) as server:
        assert server.log_text().startswith("second")
        assert server.client.url == "http://127.0.0.1:4712"  # not the first one's
    whole = (tmp_path / "server.log").read_text()
    assert whole.index("first") < whole.index("second")


def test_a_log_that_is_not_utf8_is_read_all_the_same(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.buffer.write(b'token \\xff\\n')\n" + LISTENS + SLEEPS
    with fake(tmp_path, code) as server:
        assert "token \ufffd" in server.log_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")
def test_it_dies_when_the_driver_is_killed(tmp_path: Path) -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from test_server import LISTENS, SLEEPS, fake\n"
        f"with fake(Path({str(tmp_path)!r}), LISTENS + SLEEPS) as server:\n"
        "    print(server.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert not gone(pid, 0.1)
        driver.kill()
        driver.wait(10)
    assert gone(pid)


def options(arguments: list[str]) -> dict[str, str]:
    """The command line as a mapping; the flag without a value maps to nothing."""
    found: dict[str, str] = {}
    for position, word in enumerate(arguments):
        if word.startswith("-") and not word.lstrip("-").isdigit():
            after = arguments[position + 1 : position + 2]
            assert word not in found
            found[word] = (
                "" if not after or after[0].startswith("--") or after[0] == "-lv" else after[0]
            )
    return found


def settings(**overrides: object) -> Settings:
    return load_settings({name.replace("__", "."): v for name, v in overrides.items()}, environ={})


def test_the_command_line() -> None:
    model = ModelFiles(Path("m.gguf"), Path("p.gguf"), "m", "0", "1")
    made = settings(
        server__threads=3,
        server__ubatch=256,
        server__state_cache_mib=99,
        server__fake_tile=77,
    )
    assert options(server_arguments(made, model, 8192)) == {
        "--model": "m.gguf",
        "--mmproj": "p.gguf",
        "--host": "127.0.0.1",
        "--port": "0",
        "--ctx-size": "8192",
        "--parallel": "1",
        "--batch-size": "2048",
        "--ubatch-size": "256",
        "--threads": "3",
        "--threads-batch": "3",
        "--ctx-checkpoints": "0",
        "--cache-ram": "0",
        "--prefix-ram": "99",
        "--fake-tile": "77",
        "--no-context-shift": "",
        "-lv": "4",
    }


def test_threads_are_those_that_may_really_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiment.server.usable_cores", lambda: 7)
    model = ModelFiles(Path("m.gguf"), None, "m", "0", None)
    found = options(server_arguments(settings(), model, 8192))
    assert (found["--threads"], found["--threads-batch"]) == ("7", "7")
    assert "--mmproj" not in found


def test_no_key_stands_on_the_command_line() -> None:
    model = ModelFiles(Path("m.gguf"), None, "m", "0", None)
    assert not [word for word in server_arguments(settings(), model, 256) if "key" in word]

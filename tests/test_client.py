"""The HTTP client, against a small server in this process that answers what a test tells it to."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from experiment.client import Client, Prompt, Reply
from experiment.errors import RequestRefused, ServerError


class Answering:
    """Answers every request with ``status`` and ``body``; remembers what was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = b"{}"
        self.delay_s = 0.0
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.connections = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one segment: no delayed acknowledgement between

            def setup(self) -> None:
                owner.connections += 1
                super().setup()

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                request = json.loads(self.rfile.read(size)) if size else None
                owner.asked.append((self.command, self.path, dict(self.headers), request))
                time.sleep(owner.delay_s)
                self.send_response(owner.status)
                self.send_header("Content-Length", str(len(owner.body)))
                self.end_headers()
                self.wfile.write(owner.body)

            do_GET = do_POST = answer  # noqa: N815 (http.server looks them up by these names)

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the hasty client is gone
                    super().handle()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def says(self, value: object, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(value).encode()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Answering]:
    answering = Answering()
    try:
        yield answering
    finally:
        answering.stop()


@pytest.fixture
def client(server: Answering) -> Iterator[Client]:
    made = Client(server.url, api_key="secret", timeout_s=20)
    yield made
    made.close()


def test_a_prompt_of_text_alone_is_a_string() -> None:
    assert Prompt("hello").as_json() == "hello"


def test_images_go_along_as_base64_in_their_order() -> None:
    sent = Prompt("a <m> b <m>", (b"\x89PNG", b"\xff\xd8")).as_json()
    assert isinstance(sent, dict)
    assert sent["prompt_string"] == "a <m> b <m>"
    data = sent["multimodal_data"]
    assert isinstance(data, list)
    assert [base64.b64decode(item) for item in data] == [b"\x89PNG", b"\xff\xd8"]


def test_a_completion_sends_prompt_and_parameters_and_keeps_the_answer(
    server: Answering, client: Client
) -> None:
    server.says({"timings": {"prompt_n": 3}, "content": "x"})
    server.delay_s = 0.05
    reply = client.complete(Prompt("hello", (b"img",)), n_predict=1, n_fake_cached=7)
    ((method, path, headers, request),) = server.asked
    assert (method, path) == ("POST", "/completion")
    assert headers["Authorization"] == "Bearer secret"
    assert request == {
        "prompt": {"prompt_string": "hello", "multimodal_data": ["aW1n"]},
        "n_predict": 1,
        "n_fake_cached": 7,
    }
    assert reply.parameters == {"n_predict": 1, "n_fake_cached": 7}
    assert reply.body == {"timings": {"prompt_n": 3}, "content": "x"}
    assert reply.timings == {"prompt_n": 3}
    assert 50 <= reply.wall_ms < 5000  # milliseconds, and the server's own time is in it


@pytest.mark.parametrize("body", [{}, {"timings": None}, {"timings": [1]}])
def test_an_answer_without_timings_is_the_servers_fault(body: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match="no `timings`"):
        _ = Reply({}, body, 1.0).timings


def test_tokenize_asks_for_markers_to_be_parsed(server: Answering, client: Client) -> None:
    server.says({"tokens": [5, 6, 7]})
    assert client.tokenize("<|im_start|>user\n", add_special=False) == [5, 6, 7]
    assert client.tokenize("x", add_special=True) == [5, 6, 7]
    assert [asked[1] for asked in server.asked] == ["/tokenize", "/tokenize"]
    assert [asked[3] for asked in server.asked] == [
        {"content": "<|im_start|>user\n", "add_special": False, "parse_special": True},
        {"content": "x", "add_special": True, "parse_special": True},
    ]


def test_apply_template_and_props(server: Answering, client: Client) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    server.says({"prompt": "<u>hi</u>"})
    assert client.apply_template(messages) == "<u>hi</u>"
    server.says({"media_marker": "<m>"})
    assert client.props() == {"media_marker": "<m>"}
    assert [(asked[0], asked[1], asked[3]) for asked in server.asked] == [
        ("POST", "/apply-template", {"messages": messages}),
        ("GET", "/props", None),
    ]


def test_all_requests_share_one_connection(server: Answering, client: Client) -> None:
    for _ in range(3):
        client.props()
    server.says({"error": {"message": "no"}}, 400)
    with pytest.raises(RequestRefused):
        client.complete(Prompt("x"))
    assert len(server.asked) == 4
    assert server.connections == 1


def test_without_a_key_none_is_sent(server: Answering) -> None:
    open_client = Client(server.url)
    open_client.props()
    open_client.close()
    assert "Authorization" not in server.asked[0][2]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"error": {"code": 400, "message": "n_fake_cached ends in an image"}}', "ends in an"),
        (b'{"error": "just a text"}', "just a text"),
        (b'{"error": {"code": 400}}', '{"error": {"code": 400}}'),
        (b"<html>not json</html>", "<html>not json</html>"),
        (b"[1, 2]", r"\[1, 2\]"),
        (b"", "no explanation"),
    ],
)
def test_a_refusal_carries_the_servers_sentence(
    server: Answering, client: Client, body: bytes, sentence: str
) -> None:
    server.status, server.body = 400, body
    with pytest.raises(RequestRefused, match=f"HTTP 400 from /completion: .*{sentence}"):
        client.complete(Prompt("x"))
    server.status = 503
    with pytest.raises(ServerError, match=f"HTTP 503 from /completion: .*{sentence}"):
        client.complete(Prompt("x"))


def test_a_long_page_is_cut(server: Answering, client: Client) -> None:
    server.status, server.body = 404, b"y" * 10_000
    with pytest.raises(RequestRefused) as caught:
        client.props()
    assert len(caught.value.what) < 600


@pytest.mark.parametrize("body", [b"[]", b"not json", b"\xff\xfe\x00"])
def test_success_without_a_json_object_is_the_servers_fault(
    server: Answering, client: Client, body: bytes
) -> None:
    server.body = body
    with pytest.raises(ServerError, match="HTTP 200 from /props"):
        client.props()


def test_no_answer_in_time_names_the_setting(server: Answering) -> None:
    server.delay_s = 0.5
    hasty = Client(server.url, timeout_s=0.05)
    with pytest.raises(ServerError, match="no answer to /props") as caught:
        hasty.props()
    hasty.close()
    assert caught.value.hint == "raise server.request_timeout_s"


def test_a_server_that_is_gone_is_a_server_error() -> None:
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        gone = Client(f"http://127.0.0.1:{bound.getsockname()[1]}", timeout_s=5)
        with pytest.raises(ServerError, match="went away during /props"):
            gone.props()
        gone.close()


def test_a_server_that_hangs_up_is_a_server_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hang_up: Callable[[], None] = lambda: listening.accept()[0].close()  # noqa: E731
        thread = threading.Thread(target=hang_up)
        thread.start()
        dying = Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=5)
        with pytest.raises(ServerError, match="went away during /completion"):
            dying.complete(Prompt("x"))
        dying.close()
        thread.join()


def test_a_proxy_of_the_environment_is_not_asked(
    server: Answering, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.says({"media_marker": "<m>"})
    assert client.props() == {"media_marker": "<m>"}

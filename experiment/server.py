"""Starts one patched llama.cpp server on a free loopback port and takes it down again."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from experiment.client import Client
from experiment.errors import ServerError, ServerStartError
from experiment.host import usable_cores
from experiment.models import ModelFiles
from experiment.process import spawn, stop
from experiment.settings import Settings

_LISTENING = re.compile(rb"listening on (http://127\.0\.0\.1:\d+)")
_CPU_VARIANT = re.compile(r"/libggml-cpu-(\w+)\.so")
_POLL_S = 0.05
_LOG_TAIL_LINES = 15


def server_arguments(settings: Settings, model: ModelFiles, context: int) -> list[str]:
    """Command line of the server, without the program.

    One slot, no context checkpoints and no RAM prompt cache: on a hybrid model both copy the
    recurrent state inside the timed window. Port 0 lets the kernel choose a free one. ``-lv 4``
    prints the resolved graph configuration, which the default verbosity hides.
    """
    threads = settings.server.threads or usable_cores()
    arguments = ["--model", str(model.model)]
    if model.mmproj is not None:
        arguments += ["--mmproj", str(model.mmproj)]
    return [
        *arguments,
        *("--host", "127.0.0.1", "--port", "0"),
        *("--ctx-size", str(context), "--parallel", "1"),
        *("--batch-size", str(settings.server.batch), "--ubatch-size", str(settings.server.ubatch)),
        *("--threads", str(threads), "--threads-batch", str(threads)),
        *("--ctx-checkpoints", "0", "--cache-ram", "0"),
        *("--prefix-ram", str(settings.server.state_cache_mib)),
        *("--fake-tile", str(settings.server.fake_tile)),
        *("--no-context-shift", "-lv", "4"),
    ]


class Server:
    """A running server; use it as a context manager.

    Args:
        program: the ``llama-server`` binary.
        arguments: its command line, see `server_arguments`.
        log: where its output goes; appended to, so that a resumed run keeps the earlier part.

    Raises:
        ServerStartError: the server ends or is not ready within ``start_timeout_s``.
    """

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        log: Path,
        *,
        start_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self.log = log
        self._program = program
        self._arguments = list(arguments)
        self._start_timeout_s = start_timeout_s
        self._request_timeout_s = request_timeout_s
        self.log_start = log.stat().st_size if log.exists() else 0

    def __enter__(self) -> Self:
        # The key keeps other users of the machine out; the environment, unlike the command line,
        # is not readable by them.
        key = secrets.token_urlsafe(24)
        environment = os.environ | {"LLAMA_API_KEY": key}
        try:
            with self.log.open("ab") as sink:
                self._child = spawn(
                    [self._program, *self._arguments], stdout=sink, stderr=sink, env=environment
                )
        except OSError as error:
            raise ServerStartError(f"cannot start {self._program.name}: {error}") from error
        try:
            self.client = Client(
                self._wait_until_listening(), api_key=key, timeout_s=self._request_timeout_s
            )
        except BaseException:
            stop(self._child)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        stop(self._child)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._child.pid

    def cpu_variant(self) -> str | None:
        """Which CPU backend a portable build has loaded; None for one compiled for this host.

        The server loads it before its log begins. Only Linux tells what a process has mapped.
        """
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        found = _CPU_VARIANT.search(maps)
        return found.group(1) if found else None

    def log_text(self) -> str:
        """What this server has printed so far."""
        with self.log.open("rb") as source:
            source.seek(self.log_start)
            return source.read().decode("utf-8", "replace")

    def check(self) -> None:
        """Raise `ServerError` with the end of the log if the process has ended."""
        self._check(ServerError)

    def _check(self, kind: type[ServerError]) -> None:
        code = self._child.poll()
        if code is not None:
            raise kind(
                f"the server ended with {_exit_reason(code)}; its last lines:\n{self._log_tail()}",
                where=str(self.log),
            )

    def _wait_until_listening(self) -> str:
        # The line is printed once the model is loaded and the first request can be served.
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            self._check(ServerStartError)
            if match := _LISTENING.search(self.log_text().encode()):
                return match.group(1).decode()
            time.sleep(_POLL_S)
        raise ServerStartError(
            f"the server did not get ready within {self._start_timeout_s:.0f} s; "
            f"its last lines:\n{self._log_tail()}",
            where=str(self.log),
            hint="raise server.start_timeout_s for a model that loads slowly",
        )

    def _log_tail(self) -> str:
        lines = self.log_text().rstrip().splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    suffix = " (out of memory?)" if -code == 9 else ""
    return f"signal {-code}{suffix}"

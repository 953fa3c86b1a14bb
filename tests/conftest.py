"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell that starts something in the background lets it ignore Ctrl-C, and so all that it
    # starts: programs that are to be interrupted here would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)

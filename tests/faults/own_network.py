"""Runs a module as a program that cannot reach anything, and tells whether it tried.

This file is a program: `own_network.py LOG MODULE ARGUMENTS...`. Called within a network namespace
of its own it brings up the loopback interface, which is all that there is. What Python asks of the
network besides is refused and written to LOG, a line each.
"""

from __future__ import annotations

import fcntl
import ipaddress
import runpy
import socket
import struct
import sys
from typing import Any

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP

# What names and addresses are handed to, with the place of it among the event's arguments.
_EVENTS = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.bind": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
}


def is_here(address: Any) -> bool:
    """Whether an address, or the name of a host, is this machine's own."""
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    if isinstance(host, str) and host.startswith(("/", "\0")):
        return True  # a socket in the file system
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def watch(log: str) -> None:
    """From now on whatever is asked of the network outside is written down and refused."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        place = _EVENTS.get(event)
        if place is not None and not is_here(arguments[place]):
            with open(log, "a") as file:  # noqa: PTH123 - pathlib may not be imported yet
                file.write(f"{event} {arguments[place]!r}\n")
            raise OSError("this test allows no network")

    sys.addaudithook(hook)


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))
        if not flags & _UP:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


if __name__ == "__main__":
    _, log, module, *arguments = sys.argv
    bring_up_loopback()
    watch(log)
    sys.argv = [module, *arguments]
    sys.path.pop(0)  # the folder of this file
    runpy.run_module(module, run_name="__main__", alter_sys=True)

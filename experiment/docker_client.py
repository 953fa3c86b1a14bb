"""Finds the container engine that the Docker CLI would use, and says why there is none to talk to.

``DOCKER_HOST`` decides, else ``DOCKER_CONTEXT``, else the CLI's current context, else the default
socket; podman is used through its Docker-compatible socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION, MINIMUM_DOCKER_API_VERSION
from docker.context import Context
from docker.context.config import get_current_context_name
from docker.errors import APIError, TLSParameterError
from docker.utils import kwargs_from_env, version_lt
from docker.utils.config import find_config_file

from experiment.errors import EngineError

PROBE_TIMEOUT_S = 5.0
"""Longest wait for each of the first answers; an engine gives them in milliseconds."""

CALL_TIMEOUT_S = 3600.0
"""Longest silence afterwards: a step of an image build prints nothing while it compiles."""

DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
SCHEMES = ("unix", "http+unix", "tcp", "http", "https", "ssh")

_NATIVE = "or use --engine native"
_START = (
    "start one (Linux: sudo systemctl start docker; macOS, Windows: Docker Desktop; podman: "
    "systemctl --user start podman.socket and DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/"
    f"podman.sock), {_NATIVE}"
)
_TLS = (
    "check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH (a folder with ca.pem, cert.pem and key.pem), or "
    "the certificates of the context"
)
_VERSION = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Connection:
    """An engine that answers. ``info`` is what it said to ``/info`` when it was found.

    Attributes:
        client: waits `CALL_TIMEOUT_S`; speaks ``api_version``, the newest that both sides know.
        endpoint: its address, e.g. ``unix:///var/run/docker.sock``.
        context: name of the CLI context, or ``DOCKER_HOST`` where that variable decides.
        version: the engine's own.
        rootless: it runs as an ordinary user.
    """

    client: docker.DockerClient
    endpoint: str
    context: str
    version: str
    api_version: str
    kind: Literal["docker", "podman"]
    rootless: bool
    info: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class _Place:
    """Where an engine should be; ``said`` by what, to go on from "…, which"."""

    endpoint: str
    context: str
    said: str
    tls: Any = False

    def client(self, api_version: str) -> docker.DockerClient:
        return docker.DockerClient(
            base_url=self.endpoint, version=api_version, timeout=PROBE_TIMEOUT_S, tls=self.tls
        )

    @property
    def socket(self) -> Path | None:
        scheme, _, path = self.endpoint.partition("://")
        return Path("/", path) if scheme.endswith("unix") else None


def connect(environ: Mapping[str, str] | None = None) -> Connection:
    """Find the engine and agree on an API version with it.

    Args:
        environ: where DOCKER_HOST, DOCKER_CONTEXT, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH are
            looked up; None takes the process's own. The CLI's folder (DOCKER_CONFIG or
            ``~/.docker``) is always the process's.

    Raises:
        EngineError: there is none, it cannot be reached or used, or it does not speak an API that
            the SDK knows; ``what`` says which, ``hint`` what to do.
    """
    variables = os.environ if environ is None else environ
    place = _place(variables)
    with _explained(place, variables):
        _knock(place)
        with contextlib.closing(place.client(DEFAULT_DOCKER_API_VERSION)) as probe:
            answer = probe.api.version(api_version=False)
        api_version = _negotiate(answer, place)
        client = place.client(api_version)
        try:
            info = client.info()
            if not isinstance(info, dict):
                raise _not_an_engine(place)
        except BaseException:
            client.close()
            raise
    client.api.timeout = CALL_TIMEOUT_S
    return Connection(
        client=client,
        endpoint=place.endpoint,
        context=place.context,
        version=str(answer.get("Version", "unknown")),
        api_version=api_version,
        kind="podman" if _is_podman(answer) else "docker",
        rootless=_is_rootless(info),
        info=info,
    )


def _knock(place: _Place) -> None:
    """Connect once ourselves: the SDK leaves the socket open where that fails."""
    if place.socket:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(PROBE_TIMEOUT_S)
            knock.connect(str(place.socket))


def _place(variables: Mapping[str, str]) -> _Place:
    if host := variables.get("DOCKER_HOST", "").strip():
        said = f"DOCKER_HOST is {host}"
        _check_address(host, said)
        tls = _from_user_files(lambda: kwargs_from_env(variables), said)
        return _Place(host, "DOCKER_HOST", said, tls.get("tls", False))
    name = variables.get("DOCKER_CONTEXT", "").strip() or _current_context()
    if name in ("", "default"):
        return _Place(DEFAULT_ENDPOINT, "default", "the default context is used")
    said = f"the Docker context is {name}"
    context = _from_user_files(lambda: Context.load_context(name), said)
    if context is None or not context.Host:
        raise EngineError(
            f"{said}, and there is no context of that name",
            hint="docker context ls lists those there are; docker context use NAME, or "
            "DOCKER_CONTEXT, selects one",
        )
    _check_address(context.Host, f"{said}, whose address is {context.Host}")
    return _Place(context.Host, name, f"{said} ({context.Host})", context.TLSConfig or False)


def _current_context() -> str:
    """The context that ``docker context use`` has selected; the SDK ignores a broken file."""
    path = find_config_file()
    if path is None or Path(path).name != "config.json":
        return ""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(
            f"Docker's settings in {path} cannot be read: {error}", hint="repair or remove the file"
        ) from error
    if not isinstance(value, dict):
        raise EngineError(
            f"Docker's settings in {path} are not a JSON object", hint="repair or remove the file"
        )
    return str(get_current_context_name() or "")


def _check_address(address: str, said: str) -> None:
    scheme, separator, _ = address.partition("://")
    if not separator:
        path = address.startswith(("/", "."))
        right = f"unix://{Path(address).absolute()}" if path else f"tcp://{address}"
        raise EngineError(
            f"{said}, which has no scheme", hint=f"write it as DOCKER_HOST={right}, {_NATIVE}"
        )
    if scheme not in SCHEMES:
        raise EngineError(
            f"{said}, and {scheme}:// is not a scheme that works here",
            hint=f"use unix:///path/of/the/socket or tcp://host:port, {_NATIVE}",
        )


def _from_user_files(read: Any, said: str) -> Any:
    try:
        return read()
    except TLSParameterError as error:
        raise EngineError(f"{said}, and TLS cannot be set up: {error}", hint=_TLS) from error
    except Exception as error:  # the SDK raises plain Exception for a broken file
        raise EngineError(
            f"{said}, which cannot be read: {error}",
            hint="docker context inspect shows it; make it anew, or set DOCKER_HOST",
        ) from error


def _negotiate(answer: object, place: _Place) -> str:
    """The newest API version that both know.

    ``version="auto"`` would take the engine's newest, of which the SDK may know nothing.
    """
    newest = answer.get("ApiVersion") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not _is_version(newest):
        raise _not_an_engine(place)
    oldest, name = answer.get("MinAPIVersion"), f"engine {answer.get('Version')}"
    if version_lt(newest, MINIMUM_DOCKER_API_VERSION):
        raise EngineError(
            f"the {name} at {place.endpoint} is too old: it speaks API {newest}, and the Docker "
            f"SDK needs {MINIMUM_DOCKER_API_VERSION} or later",
            hint=f"update the engine (20.10 or later is tested), {_NATIVE}",
        )
    if _is_version(oldest) and version_lt(DEFAULT_DOCKER_API_VERSION, oldest):
        raise EngineError(
            f"the {name} at {place.endpoint} is too new: the oldest API it speaks is {oldest}, and "
            f"the newest that the Docker SDK knows is {DEFAULT_DOCKER_API_VERSION}",
            hint="start the engine with DOCKER_MIN_API_VERSION="
            f"{DEFAULT_DOCKER_API_VERSION}, take a newer docker package, {_NATIVE}",
        )
    return str(min(newest, DEFAULT_DOCKER_API_VERSION, key=_numbers))


def _is_version(value: object) -> bool:
    return isinstance(value, str) and _VERSION.fullmatch(value) is not None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _is_podman(answer: Mapping[str, Any]) -> bool:
    components = answer.get("Components") or []
    names = [part.get("Name") for part in components if isinstance(part, dict)]
    return "Podman Engine" in names


def _is_rootless(info: Mapping[str, Any]) -> bool:
    options = [str(option).split(",") for option in info.get("SecurityOptions") or []]
    return info.get("Rootless") is True or any("name=rootless" in option for option in options)


@contextlib.contextmanager
def _explained(place: _Place, variables: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # the SDK lets errors of six libraries through
        raise _explain(error, place, variables) from error


def _explain(error: Exception, place: _Place, variables: Mapping[str, str]) -> EngineError:
    """Find out by the errors below ``error`` which of the known cases this is."""
    below = list(_causes(error))

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in below)

    at = place.endpoint
    if has(TLSParameterError, ssl.SSLError, requests.exceptions.SSLError):
        return EngineError(f"TLS with the engine at {at} fails: {_last(below)}", hint=_TLS)
    if "https server" in str(error).lower():
        return EngineError(f"the engine at {at} wants TLS", hint=_TLS)
    if has(PermissionError):
        return EngineError(f"no permission to use {at}", hint=_permission(place, variables))
    if place.socket and has(FileNotFoundError):
        return EngineError(
            f"no container engine is here: there is no socket at {place.socket}",
            hint=_elsewhere(place, variables) or _START,
        )
    if has(ConnectionRefusedError):
        hint = _elsewhere(place, variables) or _START
        return EngineError(f"no container engine is here: nobody listens at {at}", hint=hint)
    if has(requests.Timeout, TimeoutError):
        return EngineError(
            f"the engine at {at} did not answer within {PROBE_TIMEOUT_S:.0f} s",
            hint=f"see whether docker version hangs too, and restart the engine, {_NATIVE}",
        )
    if has(socket.gaierror):
        return EngineError(
            f"{place.said}, and there is no host of that name",
            hint=f"correct DOCKER_HOST or the context, {_NATIVE}",
        )
    if isinstance(error, APIError):
        return EngineError(
            f"what answers at {at} refuses: {error}",
            hint=f"is a proxy in between that lets /version and /info not through? Else {_NATIVE}",
        )
    if at.startswith("ssh://"):
        return EngineError(
            f"{place.said}, and this client speaks no SSH: {error}",
            hint="forward the engine's socket with ssh -L and name it in DOCKER_HOST=unix://…",
        )
    if not isinstance(error, OSError):  # which requests' own are
        return EngineError(
            f"{place.said}, which names no engine: {error}",
            hint="use unix:///path/of/the/socket or tcp://host:port",
        )
    if has(HTTPException, ValueError, requests.exceptions.ChunkedEncodingError):
        return _not_an_engine(place)
    return EngineError(f"{at} cannot be reached: {_last(below)}", hint=_START)


def _not_an_engine(place: _Place) -> EngineError:
    return EngineError(
        f"what answers at {place.endpoint} is not a container engine",
        hint=f"{place.said}: correct it, {_NATIVE}",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and everything it was made from, the outermost first."""
    queue, seen = [error], set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        # requests and urllib3 keep the cause in the arguments, or as `reason`.
        below = (current.__cause__, current.__context__, *current.args)
        below += (getattr(current, "reason", None),)
        queue += [cause for cause in below if isinstance(cause, BaseException)]


def _last(below: list[BaseException]) -> str:
    """The innermost words of the operating system or of TLS, without addresses of objects."""
    plain = [cause for cause in below if isinstance(cause, OSError) and cause.strerror]
    return str(plain[-1].strerror if plain else below[-1])


def _permission(place: _Place, variables: Mapping[str, str]) -> str:
    group = "docker"
    with contextlib.suppress(OSError, KeyError, ValueError, AttributeError):
        group = place.socket.group()  # type: ignore[union-attr]  # None is among the suppressed
    if other := _elsewhere(place, variables):
        return other
    if group == "root":
        return f"the socket is root's alone; start an engine of your own: {_START}"
    return (
        f"join the socket's group (sudo usermod -aG {group} $USER, then log in again), use a "
        f"rootless engine, {_NATIVE}"
    )


def _elsewhere(place: _Place, variables: Mapping[str, str]) -> str | None:
    """Name a usable socket at another of the usual places; None if there is none."""
    home = Path(variables.get("HOME") or Path.home())
    usual = [home / ".docker/run/docker.sock", home / ".docker/desktop/docker.sock"]
    if runtime := variables.get("XDG_RUNTIME_DIR"):
        usual += [Path(runtime, "docker.sock"), Path(runtime, "podman/podman.sock")]
    usual += [Path("/var/run/docker.sock"), Path("/run/podman/podman.sock")]
    for path in usual:
        if path != place.socket and os.access(path, os.R_OK | os.W_OK) and path.is_socket():
            return f"there is a socket at another place: try DOCKER_HOST=unix://{path}, {_NATIVE}"
    return None

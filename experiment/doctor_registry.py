"""Whether pip's index answers, asked as pip would ask: its settings, proxy and certificates."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests

from experiment.doctor_checks import RegistryFacts, Trouble
from experiment.errors import ExperimentError
from experiment.image import CA_VARIABLES, default_ca_bundle
from experiment.pins import SdistPin, pin_named

TIMEOUT_S = 5.0

ANY_PACKAGE = "pip"
"""What is asked for where the pinned source is no package."""

_SECTIONS = ("download", "install", "global")

_BEHIND_A_PROXY = (
    "behind a proxy set HTTPS_PROXY; for a mirror PIP_INDEX_URL; for a proxy that inspects TLS "
    "PIP_CERT (its CA bundle). What is in the cache needs no registry"
)


def registry(pin_name: str) -> RegistryFacts:
    """Ask pip's index for the package that carries the source, for a few seconds at most.

    Raises:
        ExperimentError: there is no pip whose settings could be read.
    """
    settings = pip_settings()
    index = setting(settings, "index-url") or default_index()
    try:
        pin = pin_named(pin_name)
        package = pin.package if isinstance(pin, SdistPin) else ANY_PACKAGE
    except ExperimentError:
        package = ANY_PACKAGE
    return RegistryFacts(without_credentials(index), trouble_with(index, package, settings))


def pip_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read pip's settings from its files and variables, as ``pip config list`` names them.

    Raises:
        ExperimentError: pip does not run.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            env=None if environment is None else dict(environment),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ExperimentError(
            "pip does not run, so its index is not known",
            hint=f"see what {sys.executable} -m pip config list says",
        ) from error
    settings: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            try:
                settings[name] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return settings


def setting(settings: Mapping[str, str], name: str) -> str | None:
    """Return one of pip's settings; variables go before files, a command's own before all's."""
    places = (":env:.", *(f"{section}." for section in _SECTIONS))
    return next((value for place in places if (value := settings.get(f"{place}{name}"))), None)


def default_index() -> str:
    """Return the index that pip has when nothing is set, from pip itself.

    Raises:
        ExperimentError: this pip keeps it elsewhere.
    """
    try:
        index = importlib.import_module("pip._internal.models.index").PyPI
        return str(index.simple_url)
    except (ImportError, AttributeError) as error:
        raise ExperimentError(
            "pip's own index is not known", hint="name one with PIP_INDEX_URL"
        ) from error


def trouble_with(index: str, package: str, settings: Mapping[str, str]) -> Trouble | None:
    """Ask the index for a package and say what stands in the way; None = nothing."""
    if index.startswith("file:"):
        there = Path(unquote(urlsplit(index).path)).is_dir()
        return None if there else Trouble("no such folder", "correct pip's index-url")
    for name in CA_VARIABLES:
        if (path := os.environ.get(name)) and not Path(path).is_file():
            return Trouble(f"{name} names {path}, which is no file", f"correct or unset {name}")
    bundle = setting(settings, "cert") or default_ca_bundle(os.environ)
    proxy = setting(settings, "proxy")
    url = f"{index.rstrip('/')}/{package}/"
    try:
        response = requests.head(
            url,
            timeout=TIMEOUT_S,
            allow_redirects=True,
            verify=str(bundle) if bundle else True,
            proxies={"http": proxy, "https": proxy} if proxy else None,
        )
    except requests.exceptions.SSLError:
        return Trouble("its certificate is not trusted", _BEHIND_A_PROXY)
    except requests.exceptions.ProxyError:
        return Trouble("the proxy does not let through", _BEHIND_A_PROXY)
    except requests.exceptions.Timeout:
        return Trouble(f"no answer within {TIMEOUT_S:.0f} s", _BEHIND_A_PROXY)
    except requests.exceptions.ConnectionError:
        return Trouble("cannot be reached", _BEHIND_A_PROXY)
    except (requests.RequestException, OSError, ValueError) as error:
        # A malformed address, or a CA bundle that is none.
        return Trouble(f"cannot be asked: {without_credentials(str(error))}", _BEHIND_A_PROXY)
    return _judge(response.status_code, package)


def _judge(status: int, package: str) -> Trouble | None:
    if status in (401, 403, 407):
        return Trouble(f"refuses (HTTP {status})", f"give it credentials, or {_BEHIND_A_PROXY}")
    if status == 404:
        return Trouble(f"does not have {package}", "use a mirror that does (PIP_INDEX_URL)")
    # Some mirrors do not answer HEAD, but answer they do.
    if status >= 400 and status not in (405, 501):
        return Trouble(f"answers with HTTP {status}", _BEHIND_A_PROXY)
    return None


def without_credentials(text: str) -> str:
    """Return an address, or a text that holds some, as it may be shown."""
    return re.sub(r"//[^/\s]*@", "//", text)

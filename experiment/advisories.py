"""Whether a locked Python package has a known vulnerability, as pip's index tells, if it does.

The index is asked for each package by name and version (its JSON interface, whose field
``vulnerabilities`` lists advisories). Many mirrors do not offer that, and then nothing is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import requests

from experiment.doctor_registry import (
    default_index,
    pip_settings,
    setting,
    without_credentials,
)
from experiment.errors import ExperimentError
from experiment.image import default_ca_bundle
from experiment.paths import ROOT
from experiment.progress import Progress

LOCKS = tuple(ROOT / "requirements" / name for name in ("run.txt", "build.txt", "dev.txt"))

TIMEOUT_S = 10.0

MAX_SILENT = 3
"""Packages of which the index says nothing, before it is taken to say nothing of any."""

NOT_ASKED = "llama.cpp, whose advisories no index of Python packages has, was not asked for"

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Pinned:
    """One locked package."""

    name: str
    version: str


@dataclass(frozen=True)
class Advisory:
    """A known vulnerability of a locked package."""

    package: Pinned
    name: str
    summary: str
    fixed_in: tuple[str, ...]


@dataclass(frozen=True)
class Examined:
    """What is known of the locked packages.

    Attributes:
        index: who was asked, without credentials.
        known: packages of which the index told whether they have a vulnerability.
        silent: those of which it did not.
        advisories: what it told.
        trouble: why it was not asked for the rest; None = it was asked for all.
    """

    index: str
    known: tuple[Pinned, ...]
    silent: tuple[Pinned, ...]
    advisories: tuple[Advisory, ...]
    trouble: str | None = None


def locked(files: Iterable[Path] = LOCKS) -> tuple[Pinned, ...]:
    """The packages that the lock files pin, each once, by name."""
    found = {
        Pinned(re.sub(r"[-_.]+", "-", name).lower(), version)
        for file in files
        for name, version in _PINNED.findall(file.read_text(encoding="utf-8"))
    }
    return tuple(sorted(found))


def examine(
    progress: Progress,
    packages: Sequence[Pinned] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Examined:
    """Ask pip's index for the known vulnerabilities of the locked packages.

    An index that cannot be reached is no error: `Examined.trouble` says so.

    Args:
        progress: where to show it.
        packages: to ask for; None = those of the lock files.
        environment: the variables that pip goes by; None = this process's.
    """
    wanted = locked() if packages is None else packages
    try:
        settings = pip_settings(environment)
        index = setting(settings, "index-url") or default_index()
    except ExperimentError as error:
        return Examined("pip's index", (), (), (), error.what)
    shown = without_credentials(index)
    if not index.startswith(("http://", "https://")):
        return Examined(shown, (), (), (), "it is no address that could be asked")
    base = re.sub(r"/simple/?$", "", index.rstrip("/"))
    known: list[Pinned] = []
    silent: list[Pinned] = []
    advisories: list[Advisory] = []
    trouble = None
    progress.start("ask for advisories", len(wanted))
    with requests.Session() as session:
        _prepare(session, settings, environment)
        for number, package in enumerate(wanted):
            progress.advance(number, package.name)
            told = _ask(session, base, package)
            if isinstance(told, str):
                trouble = told
                break
            if told is None:
                silent.append(package)
                if not known and len(silent) == MAX_SILENT:
                    trouble = "it does not tell vulnerabilities"
                    break
            else:
                known.append(package)
                advisories += told
    progress.finish()
    return Examined(shown, tuple(known), tuple(silent), tuple(advisories), trouble)


def render(examined: Examined) -> str:
    """What is known as lines, a package's advisory each, and what is not known."""
    lines = [
        f"{advisory.package.name} {advisory.package.version}: {advisory.name}"
        + (f" (fixed in {', '.join(advisory.fixed_in)})" if advisory.fixed_in else "")
        + (f": {advisory.summary}" if advisory.summary else "")
        for advisory in examined.advisories
    ]
    told = len(examined.known)
    if examined.trouble:
        lines.append(
            f"not known{' of the rest' if told else ''}: {examined.index} cannot tell "
            f"({examined.trouble}); what was not asked for may have vulnerabilities"
        )
    elif examined.silent:
        names = ", ".join(package.name for package in examined.silent)
        lines.append(f"not known of {names}: {examined.index} does not tell")
    found = len({advisory.package for advisory in examined.advisories})
    lines.append(
        f"{found} of {told} packages that were asked for have a known vulnerability"
        if told
        else "nothing was found out about any package"
    )
    return "\n".join([*lines, NOT_ASKED]) + "\n"


def exit_code(examined: Examined) -> Literal[0, 1]:
    """1 only if a vulnerability is known: being offline is no failure."""
    return 1 if examined.advisories else 0


def _prepare(
    session: requests.Session, settings: Mapping[str, str], environment: Mapping[str, str] | None
) -> None:
    """Certificates and proxy as pip has them."""
    variables = os.environ if environment is None else environment
    if bundle := setting(settings, "cert") or default_ca_bundle(variables):
        session.verify = str(bundle)
    if proxy := setting(settings, "proxy"):
        session.proxies = {"http": proxy, "https": proxy}


def _ask(session: requests.Session, base: str, package: Pinned) -> list[Advisory] | str | None:
    """A package's advisories; None if the index does not tell them, or why it cannot be asked."""
    try:
        response = session.get(
            f"{base}/pypi/{package.name}/{package.version}/json", timeout=TIMEOUT_S
        )
        if response.status_code in (401, 403, 407):
            return f"it refuses, HTTP {response.status_code}"
        body = response.json() if response.ok else None
    except requests.exceptions.Timeout:
        return f"no answer within {TIMEOUT_S:.0f} s"
    except requests.exceptions.JSONDecodeError:
        return None
    except (requests.RequestException, OSError) as error:
        return f"it cannot be reached: {type(error).__name__}"
    found = body.get("vulnerabilities") if isinstance(body, dict) else None
    if not isinstance(found, list):
        return None
    # A withdrawn advisory was a mistake.
    return [
        _advisory(package, item)
        for item in found
        if isinstance(item, dict) and not item.get("withdrawn")
    ]


def _advisory(package: Pinned, item: Mapping[str, Any]) -> Advisory:
    text = item.get("summary") or item.get("details") or ""
    return Advisory(
        package,
        str(item.get("id") or "an advisory without a name"),
        _line(str(text)),
        tuple(str(version) for version in item.get("fixed_in") or ()),
    )


def _line(text: str, longest: int = 160) -> str:
    """The text's first line, printable: it comes from outside."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    clean = "".join(character for character in first if character.isprintable()).strip()
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"

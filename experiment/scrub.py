"""What of a run is nobody else's business, how it is taken out of a text, and how it is found.

Private are the paths of the user's own folders, the user's name and the machine's. Names that say
nothing are left: folders at the top of the file system and those of every system, users like root,
hosts like localhost. A name with fewer than four letters, a common one, and a host's name that this
program has as a word in its own texts mean something else where they stand in a text: such a host
name is replaced in run ids, host records and the output of ``uname``, such a user name in the path
of its home, and both are looked for nowhere else.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import platform
import pwd
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from experiment.paths import ROOT
from experiment.settings import Settings

HOST = "host"
USER = "user"

_SETTINGS_PATHS = {
    ("cache_dir",): "<cache>",
    ("results_dir",): "<results>",
    ("build", "source"): "<source>",
    ("build", "prebuilt"): "<build>",
}
_SETTINGS_FILES = {
    ("model", "name"): "<model>",
    ("model", "mmproj"): "<model>",
    ("container", "ca_bundle"): "<certificates>",
}
"""Of these the folder is private; the file's name is that of the model."""

_OF_EVERY_SYSTEM = frozenset(("/opt/app", "/opt/llama", "/opt/venv", "/tmp/cache", "/var/tmp"))
_COMMON = """
    admin arch builder client computer debian desktop docker experiment fedora guest host hostname
    laptop linux localdomain localhost machine nobody notebook podman root runner server test tests
    ubuntu user vagrant worker workstation
"""
_OWN_TEXTS = (".py", ".j2")
_HOME = re.compile(r"/(?:export/)?(?:home|Users)/([^/]+)")
_RUN_ID = re.compile(
    r"(\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2})_(?!host_)[A-Za-z0-9.-]+_(?=[A-Za-z0-9.-])"
)
_SERIALS = (
    (re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])"), "<mac>"),
    (
        re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
        "<uuid>",
    ),
)
_ABSOLUTE = re.compile(
    r"(?:(?<![A-Za-z0-9/])|(?<=-[IL])|(?<=file://))/(?!/)[^\s\"'<>|:]*"  # not the end of a URL
)
# "/home/me" is not part of "/home/men", but of "/home/me." at the end of a sentence.
_PATH_END = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"


@dataclass(frozen=True)
class Private:
    """What must not leave the machine.

    Attributes:
        paths: absolute path of a folder -> what stands in its place.
        users: names of users that tell them apart from others.
        hosts: names of machines that do; empty if they may be known.
        keeps_host: whether host names stay, in run ids too.
    """

    paths: Mapping[str, str]
    users: frozenset[str]
    hosts: frozenset[str]
    keeps_host: bool


def gather(
    settings: Settings,
    began_with: Mapping[str, object],
    hosts: Iterable[str],
    *,
    owned: Iterable[Path],
    work: Path,
    keeps_host: bool,
) -> Private:
    """Find out what is private about a run and about the machine that packs it.

    Args:
        settings: today's.
        began_with: the run's, as its database has them.
        hosts: names of the machines it was made on.
        owned: folders whose owner is a user of this machine.
        work: folder in which the archive is made.
        keeps_host: whether host names may be known.
    """
    users = set(_user_names(owned))
    paths: dict[str, str] = {}

    def add(path: Path | str, place: str) -> None:
        for spelling in {str(path), str(Path(path).resolve())}:
            if PurePosixPath(spelling).is_absolute() and not _says_nothing(spelling):
                paths.setdefault(spelling, place)

    add(Path.home(), "<home>")
    for user in users:
        with contextlib.suppress(KeyError):
            add(pwd.getpwnam(user).pw_dir, "<home>")
    add(ROOT, "<repository>")
    for values in (began_with, json.loads(settings.model_dump_json())):
        for path, place in _settings_paths(values):
            add(path, place)
    add(tempfile.gettempdir(), "<tmp>")
    add(work, "<work>")
    for known in list(paths):
        if found := _HOME.match(known):
            users.add(found[1])
            paths.setdefault(found[0], "<home>")
    names = {*hosts, platform.node(), socket.gethostname()}
    labels = {label for name in names for label in (name, name.partition(".")[0])}
    return Private(
        paths=paths,
        users=frozenset(filter(_is_distinct, users)),
        hosts=frozenset() if keeps_host else frozenset(_not_our_words(labels)),
        keeps_host=keeps_host,
    )


@dataclass(frozen=True)
class Leak:
    """Something private in a text: what, at which character it begins, whether it is a host."""

    what: str
    start: int
    is_host: bool = False


class Scrubber:
    """Takes what is private out of texts, and finds what is left of it."""

    def __init__(self, private: Private) -> None:
        self._keeps_host = private.keeps_host
        # The longest first: the cache may lie in the repository, and that in the home.
        paths = sorted(private.paths, key=lambda path: (-len(path), path))
        self._places = private.paths
        self._paths = _path(*paths) if paths else None
        self._users = {user: _part(user) for user in sorted(private.users)}
        # Likewise, since a host's short name begins its long one.
        hosts = sorted(private.hosts, key=lambda name: (-len(name), name))
        self._hosts = {name: _word(name) for name in hosts}
        self._words = [(pattern, HOST) for pattern in self._hosts.values()]
        self._words += [(_word(name), USER) for name in self._users]
        self._spellings = {
            spelling: (path, _path(spelling))
            for path in paths
            for spelling in (path, json.dumps(path)[1:-1], html.escape(path))
        }

    def run_id(self, text: str) -> str:
        """``<date_time>_<host>_<name>`` with ``host`` for the host, wherever it stands."""
        return text if self._keeps_host else _RUN_ID.sub(rf"\1_{HOST}_", text)

    def host(self, name: str) -> str:
        """What stands for a machine in a field that holds its name and nothing else."""
        return name if self._keeps_host else HOST

    def paths(self, text: str) -> str:
        """Replace private paths, the user's name in other paths, and the host in run ids."""
        if self._paths is not None:
            text = self._paths.sub(lambda found: self._places[found[0]], text)
        if any(f"/{user}" in text for user in self._users):
            text = _ABSOLUTE.sub(lambda found: self._without_users(found[0]), text)
        return self.run_id(text)

    def words(self, text: str) -> str:
        """Replace the same, and as whole words the names of user and host; and serial numbers."""
        text = self.paths(text)
        for pattern, place in (*self._words, *_SERIALS):
            text = pattern.sub(place, text)
        return text

    def leak(self, text: str, *, hosts: bool) -> Leak | None:
        """The first thing that is private in a text, None if nothing is.

        Args:
            text: whatever; the spellings of paths in JSON and HTML are known.
            hosts: whether to look for host names, too.
        """
        for spelling, (path, pattern) in self._spellings.items():
            if spelling in text and (found := pattern.search(text)):
                return Leak(f"the path {path}", found.start())
        if any(f"/{user}" in text for user in self._users):
            for found in _ABSOLUTE.finditer(text):
                if self._without_users(found[0]) != found[0]:
                    return Leak(f"a user's name in the path {found[0]}", found.start())
        if not hosts or self._keeps_host:
            return None
        for name, pattern in self._hosts.items():
            if found := pattern.search(text):
                return Leak(f"the host name {name}", found.start(), is_host=True)
        if found := _RUN_ID.search(text):
            return Leak(f"a host name in the run id {found[0]}…", found.start(), is_host=True)
        return None

    def _without_users(self, path: str) -> str:
        for part in self._users.values():
            path = part.sub(f"/{USER}", path)
        return path


def strings(value: object, change: Callable[[str], str]) -> object:
    """A JSON value with every string in it changed; keys, numbers and order stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: strings(item, change) for key, item in value.items()}
    return value


def _user_names(owned: Iterable[Path]) -> Iterator[str]:
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        if name := os.environ.get(variable):
            yield name
    with contextlib.suppress(KeyError):  # a number that has no name, as in a container
        yield pwd.getpwuid(os.getuid()).pw_name
    for path in owned:
        with contextlib.suppress(KeyError, OSError):
            yield path.owner()


def _settings_paths(values: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    def at(keys: tuple[str, ...]) -> Path | None:
        found: object = values
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return Path(found) if isinstance(found, str) and found.startswith("/") else None

    cache, results = at(("cache_dir",)), at(("results_dir",))
    # The defaults: both lie in the checkout that the run was made in.
    if cache and results and cache == results.parent / ".cache" and results.name == "results":
        yield cache.parent, "<repository>"
    for keys, place in _SETTINGS_PATHS.items():
        if path := at(keys):
            yield path, place
    for keys, place in _SETTINGS_FILES.items():
        if path := at(keys):
            yield path.parent, place


def _says_nothing(path: str) -> bool:
    return len(PurePosixPath(path).parts) <= 2 or path in _OF_EVERY_SYSTEM


def _is_distinct(name: str) -> bool:
    return len(name) >= 4 and name.lower() not in _COMMON.split()


def _not_our_words(names: Iterable[str]) -> Iterator[str]:
    """The names that are distinct and not, like "deep", words that report or logs may hold."""
    files = (path for path in Path(__file__).parent.rglob("*") if path.suffix in _OWN_TEXTS)
    texts = [path.read_text(encoding="utf-8") for path in files]
    for name in filter(_is_distinct, names):
        if not any(map(_word(name).search, texts)):
            yield name


def _path(*paths: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(map(re.escape, paths))}){_PATH_END}")


def _part(user: str) -> re.Pattern[str]:
    return re.compile(rf"/{re.escape(user)}(?![A-Za-z0-9_-])")


def _word(name: str) -> re.Pattern[str]:
    # Not \b: "_" and "-" part words in the names of files and folders.
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE)

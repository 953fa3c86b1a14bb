"""Where the value of a setting can come from, and the sentence that says where a bad one stands."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiment.errors import SettingsError


@dataclass(frozen=True)
class Value:
    """A value as it was given, and the place it was given at."""

    raw: object
    where: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a sentence, the place, and what to do next."""

    what: str
    where: str | None = None
    hint: str | None = None


def refuse(problems: list[Problem]) -> None:
    """Raise one `SettingsError` that holds all ``problems``; do nothing if there are none."""
    if not problems:
        return
    if len(problems) == 1:
        (only,) = problems
        raise SettingsError(only.what, where=only.where, hint=only.hint)
    lines = [str(SettingsError(p.what, where=p.where, hint=p.hint)) for p in problems]
    raise SettingsError("\n".join([f"{len(problems)} settings are wrong:", *lines]))


def from_toml(path: Path, groups: Collection[str]) -> dict[str, Value]:
    """Read a TOML file into dotted keys; ``groups`` are the tables that hold settings.

    Raises:
        SettingsError: the file cannot be read or is not TOML (with the line).
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(
            f"the settings file cannot be read: {error.strerror}", where=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError("the settings file is not UTF-8 text", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        # Only Python 3.14 has the line as an attribute; the message has it everywhere.
        found = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", str(error))
        what, place = (found[1], f"{path}:{found[2]}") if found else (str(error), str(path))
        raise SettingsError(f"this is not TOML: {what}", where=place) from error
    lines = text.splitlines()
    return {
        key: Value(raw, f"{path}:{line}" if (line := _line_of(lines, key)) else str(path))
        for key, raw in _flatten(table, groups)
    }


def from_environment(environ: Mapping[str, str], prefix: str) -> dict[str, Value]:
    """Pick the variables that begin with ``prefix``; ``__`` separates a group from its setting.

    Upper and lower case are alike, as they are to pydantic-settings. An empty variable counts as
    not set: that is how shells, CI files and container tools blank one out.
    """
    return {
        name[len(prefix) :].lower().replace("__", "."): Value(value, name)
        for name, value in environ.items()
        if name.upper().startswith(prefix) and value
    }


def from_flags(overrides: Mapping[str, object]) -> dict[str, Value]:
    """Take dotted keys from the command line; None means that the flag was not given."""
    return {
        key: Value(value, f'task flag for "{key}"')
        for key, value in overrides.items()
        if value is not None
    }


def variable(key: str, prefix: str) -> str:
    """Name the environment variable that sets ``key``: ``EXPERIMENT_BUILD__JOBS``."""
    return prefix + key.upper().replace(".", "__")


def unknown_keys(
    values: Mapping[str, Value],
    known: Collection[str],
    groups: Collection[str],
    spelled: Callable[[str], str] = str,
) -> list[Problem]:
    """Say for each key that is not in ``known`` where it stands and which key comes nearest.

    ``spelled`` turns a right key into what has to be written at that place.
    """
    problems = []
    for key, value in values.items():
        if key in groups:
            members = ", ".join(spelled(name) for name in known if name.startswith(f"{key}."))
            what = f'"{key}" is a group of settings and takes no value itself'
            problems.append(Problem(what, value.where, f"its settings are {members}"))
        elif key not in known:
            hint = f"the nearest right one is {spelled(nearest(key, known))}"
            problems.append(Problem(f'there is no setting "{key}"', value.where, hint))
    return problems


def nearest(key: str, known: Collection[str]) -> str:
    """Return the key of ``known`` that a user most likely meant by ``key``."""

    def likeness(name: str) -> float:
        whole = difflib.SequenceMatcher(None, key, name).ratio()
        # `server.jobs` is far from `build.jobs`, but its last part tells what is meant. That counts
        # a little less than the whole, so that among equal last parts the right group wins.
        last = difflib.SequenceMatcher(None, _last(key), _last(name)).ratio()
        return max(whole, 0.95 * last)

    return max(known, key=likeness)


def nest(values: Mapping[str, Value]) -> dict[str, object]:
    """Turn dotted keys back into nested tables of raw values."""
    tree: dict[str, object] = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)  # a group never has a value of its own: unknown_keys
        table[name] = value.raw
    return tree


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _flatten(
    table: Mapping[str, object], groups: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        # An empty table is fine for a group, and otherwise a mistyped key that must not vanish.
        if isinstance(value, dict) and (value or key in groups):
            yield from _flatten(value, groups, f"{key}.")
        else:
            yield key, value


def _line_of(lines: Iterable[str], key: str) -> int | None:
    """Find the line that sets ``key``: its own, or that of the table or inline table around it."""
    table, found, found_key = "", None, ""
    for number, line in enumerate(lines, start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            here = table = _bare(header[1])
        elif assignment := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            here = ".".join(filter(None, [table, _bare(assignment[1])]))
        else:
            continue
        if (key == here or key.startswith(f"{here}.")) and len(here) > len(found_key):
            found, found_key = number, here
    return found


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)

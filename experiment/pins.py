"""The llama.cpp revisions that can be built: reads and checks ``docker/pins.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from experiment.errors import SourceError
from experiment.paths import ROOT

PINS_FILE = ROOT / "docker" / "pins.toml"
COMMIT_DIGITS = 12
"""Digits of a commit that names of folders and builds carry."""

_BASE_IMAGE = "base-image"

_Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str


class SdistPin(_Pin):
    """llama.cpp carried inside the source distribution of a Python package."""

    kind: Literal["sdist"]
    package: str
    version: str
    sha256: _Sha256
    subdirectory: str
    commit: _Commit

    @property
    def stem(self) -> str:
        """Name of the distribution's top folder (PEP 625 spelling)."""
        return f"{self.package.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        """Name of the distribution's file."""
        return f"{self.stem}.tar.gz"


class GitPin(_Pin):
    """A commit of a git repository; its id is its hash."""

    kind: Literal["git"]
    url: str
    commit: _Commit

    @property
    def filename(self) -> str:
        """Name of the file that keeps the commit's objects."""
        return f"llama.cpp-{self.commit}.pack"


class LocalPin(_Pin):
    """A checkout that the user names; its commit is recorded, not prescribed."""

    kind: Literal["local"]


Pin = SdistPin | GitPin | LocalPin

_PINS: TypeAdapter[dict[str, Pin]] = TypeAdapter(
    dict[str, Annotated[Pin, Field(discriminator="kind")]]
)


class BaseImage(BaseModel):
    """The image that ours is built on, pinned by the digest of its index."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    tag: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

    @property
    def reference(self) -> str:
        """What ``FROM`` takes; the tag is for people, the digest decides."""
        return f"{self.name}:{self.tag}@{self.digest}"


def load_pins(path: Path = PINS_FILE) -> dict[str, Pin]:
    """Read the pins by name.

    Raises:
        SourceError: the file is missing, is not TOML, or a pin lacks a field, has one too many or a
            malformed hash.
    """
    named = {
        name: {"name": name, **table} if isinstance(table, dict) else table
        for name, table in _tables(path).items()
        if name != _BASE_IMAGE
    }
    try:
        return _PINS.validate_python(named)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SourceError(f"{field}: {first['msg']}", where=str(path)) from error


def load_base_image(path: Path = PINS_FILE) -> BaseImage:
    """Read which image ours is built on.

    Raises:
        SourceError: the file is missing, is not TOML, or does not say it properly.
    """
    try:
        return BaseImage.model_validate(_tables(path).get(_BASE_IMAGE))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in (_BASE_IMAGE, *first["loc"]))
        raise SourceError(f"{field}: {first['msg']}", where=str(path)) from error


def _tables(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SourceError(f"the pins cannot be read: {error}", where=str(path)) from error


def pin_named(name: str, path: Path = PINS_FILE) -> Pin:
    """Return one pin.

    Raises:
        SourceError: there is none of that name; the message lists those there are.
    """
    pins = load_pins(path)
    if name not in pins:
        raise SourceError(f'there is no pin "{name}"', hint=f"pins: {', '.join(pins)}")
    return pins[name]

"""``manifest.json`` of a handoff archive: what it lists, the names it admits, its one spelling."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiment.errors import ArchiveError

FORMAT = 1
MANIFEST = "manifest.json"

MAX_MANIFEST_BYTES = 16 << 20
"""Some 80,000 files; a run has a raw file a request, a long sweep thousands."""

MAX_FILE_BYTES = (8 << 30) - 1
"""What the size field of a tar header holds."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"  # with "/manifest.json" it fits a tar header's field
_MAX_PART_BYTES = 255  # of common file systems
_MAX_PATH_BYTES = 1024
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Entry(_Model):
    """A file of the archive; ``path`` is below the top folder, with ``/`` between its parts."""

    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    executable: bool


class Manifest(_Model):
    """What an archive holds besides its manifest; ``files`` are sorted by path."""

    format: Literal[1]
    name: Annotated[str, Field(pattern=_NAME)]
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,255}$")]
    created: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
    schema_version: Annotated[int, Field(ge=1)]
    files: tuple[Entry, ...]

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(entry.size_bytes for entry in self.files)

    @property
    def created_s(self) -> int:
        """Seconds since 1970: the time of change that every member carries."""
        moment = datetime.strptime(self.created, _TIME).replace(tzinfo=UTC)
        return int(moment.timestamp())


@dataclass(frozen=True, slots=True)
class Facts:
    """What a manifest says about the run, besides its files.

    Attributes:
        name: of the top folder: letters, digits, ``.``, ``_`` and ``-``, at most 80 of them.
        run_id: of the run, as the database in the archive has it; the same characters.
        created: when the run ended; with its time zone, kept to the second.
        schema_version: of the database.
    """

    name: str
    run_id: str
    created: datetime
    schema_version: int


def make(facts: Facts, files: Iterable[Entry]) -> Manifest:
    """The manifest of these files.

    Raises:
        ArchiveError: a name or size that no archive admits.
    """
    if facts.created.tzinfo is None:
        raise ValueError(f"{facts.created} has no time zone")
    return _checked(
        {
            "format": FORMAT,
            "name": facts.name,
            "run_id": facts.run_id,
            "created": facts.created.astimezone(UTC).strftime(_TIME),
            "schema_version": facts.schema_version,
            "files": tuple(sorted(files, key=lambda entry: entry.path)),
        }
    )


def spell(manifest: Manifest) -> bytes:
    """The manifest as it stands in the archive: sorted keys, an indent of one, UTF-8."""
    text = json.dumps(manifest.model_dump(), sort_keys=True, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


def read(data: bytes) -> Manifest:
    """Read a manifest that may be anything.

    Raises:
        ArchiveError: it is not JSON, of another format, lists something that no archive admits, or
            is spelled in another way than `spell` does.
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"the manifest is not JSON: {error}", where=MANIFEST) from error
    if not isinstance(value, dict):
        raise ArchiveError("the manifest is not a JSON object", where=MANIFEST)
    if value.get("format") != FORMAT:
        raise ArchiveError(
            f"the archive has format {value.get('format')!r:.40}, this program reads {FORMAT}",
            where=MANIFEST,
            hint="verify it with the program in its folder repository/",
        )
    if isinstance(value.get("files"), list):
        value["files"] = tuple(value["files"])
    manifest = _checked(value)
    if spell(manifest) != data:
        raise ArchiveError(
            "the manifest is not written as handoff writes it "
            "(order, white space, or a key that stands there twice)",
            where=MANIFEST,
        )
    return manifest


def name_problem(path: str) -> str | None:
    """Why no archive admits this name, as the end of a sentence that begins with it; or None."""
    parts = path.split("/")
    if path.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "leads outside: it has a part '..'"
    if "\\" in path:
        return "holds a backslash, which parts folders on some systems"
    # Also the marks that turn the direction of writing, and half surrogates.
    if not path.isprintable():
        return "holds a control character"
    if "" in parts or "." in parts:
        return "has an empty part or a part '.'"
    if len(path.encode()) > _MAX_PATH_BYTES or any(
        len(part.encode()) > _MAX_PART_BYTES for part in parts
    ):
        return "is too long"
    return None


def _checked(value: object) -> Manifest:
    try:
        manifest = Manifest.model_validate(value)
        moment_s = manifest.created_s
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ArchiveError(f"{field}: {first['msg']}", where=MANIFEST) from error
    except ValueError as error:
        raise ArchiveError(f"created: {error}", where=MANIFEST) from error
    if moment_s < 0:
        raise ArchiveError(f"created: {manifest.created} is before 1970", where=MANIFEST)
    _check_names([MANIFEST, *(entry.path for entry in manifest.files)])
    return manifest


def _check_names(paths: list[str]) -> None:
    taken: dict[str, tuple[str, bool]] = {}
    for number, path in enumerate(paths):
        if problem := name_problem(path):
            raise ArchiveError(f"{path!r:.200} {problem}", where=MANIFEST)
        if number and path in (MANIFEST, paths[number - 1]):
            raise ArchiveError(f"{path} is listed twice", where=MANIFEST)
        for part in (PurePosixPath(path), *PurePosixPath(path).parents[:-1]):
            itself = (str(part), str(part) == path)
            key = unicodedata.normalize("NFC", str(part)).casefold()
            other = taken.setdefault(key, itself)
            if other != itself:
                raise ArchiveError(
                    f"{path} and {other[0]} are the same name on a file system that does not tell "
                    "upper from lower case, or one is a folder and the other a file",
                    where=MANIFEST,
                )
    if paths[1:] != sorted(paths[1:]):
        raise ArchiveError("the files are not in order", where=MANIFEST)

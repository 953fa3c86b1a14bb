"""Image files that a log names: found beside it, never outside its folder, decoded to the end."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from experiment.image_files import UnusableImageError
from experiment.importers.json_fields import Fields
from experiment.screenshot import Screenshot, open_screenshot
from experiment.strict_json import shown


class Images:
    """The images of one log. Each is read once.

    They lie in the log's folder, or in a folder in there whose name ends in ``images``.
    """

    def __init__(self, log: Path) -> None:
        self._folder = log.parent
        self._found: dict[str, Screenshot | str] = {}

    def named(self, record: Fields, name: str) -> Path:
        """The file that a field names.

        Raises:
            TraceImportError: the field is missing, or names no file that can be used.
        """
        wanted = record.needed_text(name)
        if wanted not in self._found:
            self._found[wanted] = self._find(wanted)
        found = self._found[wanted]
        if isinstance(found, str) or found.path is None:
            raise record.bad(name, f"{shown(wanted)} {found}")
        return found.path

    def _find(self, wanted: str) -> Screenshot | str:
        """The image, or what is wrong with it in words that follow its name."""
        if "\0" in wanted:
            return "holds a NUL character"
        if "://" in wanted:
            return "is an address; only files beside the log are read"
        if PurePosixPath(wanted).is_absolute():
            return "is absolute; an image lies in the folder of the log"
        try:
            root = self._folder.resolve()
            for folder in (self._folder, *sorted(self._folder.glob("*images"))):
                path = folder / wanted
                if not path.resolve().is_relative_to(root):
                    return "leaves the folder of the log"
                if path.exists():
                    return open_screenshot(path)
            return "does not exist in the folder of the log"
        except UnusableImageError as error:
            return str(error)
        except RuntimeError:  # what Python before 3.13 says of links that go round in a circle
            return "cannot be read: its links go round in a circle"
        except OSError as error:
            return f"cannot be read: {error.strerror}"

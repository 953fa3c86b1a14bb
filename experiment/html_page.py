"""What a page that stands alone needs: libraries and data in it, a policy that reaches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import altair
import jinja2

TEMPLATES = Path(__file__).parent / "templates"

SNIPPET = "window.vegaEmbed = vegaEmbed;"
"""What the library's script does beside defining the library."""

BAKED = TEMPLATES / "library.js"
"""The library where it was made ahead, as in the image, without the large package that makes it."""


def environment() -> jinja2.Environment:
    """Where the templates are; whatever is put into one is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def script_json(value: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element: nothing in it can end that or begin another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@lru_cache(maxsize=1)
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed, of the version that the charts are written for."""
    return BAKED.read_text(encoding="utf-8") if BAKED.exists() else make_library()


def make_library() -> str:
    """The same, put together anew."""
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return vl_convert.javascript_bundle(SNIPPET, vl_version=version)


def policy(scripts: Sequence[str]) -> str:
    """What a page may do: run these scripts, and reach nothing at all."""
    allowed = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    return (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "script-src " + " ".join(f"'sha256-{digest.decode()}'" for digest in allowed)
    )

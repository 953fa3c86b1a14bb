from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path

import jinja2
import pytest

from experiment import html_page
from experiment.html_page import environment, library, make_library, policy, script_json


def test_json_cannot_end_its_element() -> None:
    value = {"a": "</script><!-- & \N{LINE SEPARATOR} é", "b": [1, None]}
    text = script_json(value)
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == value
    with pytest.raises(ValueError, match="JSON"):
        script_json({"a": float("nan")})


def test_the_policy_names_the_scripts_by_hash() -> None:
    digest = base64.b64encode(hashlib.sha256(b"let a;").digest()).decode()
    assert policy(["let a;"]) == (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )


def test_templates_escape_and_miss_nothing() -> None:
    template = environment().from_string("<p>{{ text }}</p>")
    assert template.render(text="<b>") == "<p>&lt;b&gt;</p>"
    with pytest.raises(jinja2.UndefinedError):
        template.render()


def test_the_library_holds_no_end_of_a_script() -> None:
    assert "</script" not in library().lower()
    assert "vegaEmbed" in library()


def test_a_library_made_ahead_needs_nothing_to_make_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    baked = tmp_path / "library.js"
    baked.write_text(make_library(), encoding="utf-8")
    made = library()
    monkeypatch.setattr(html_page, "BAKED", baked)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    library.cache_clear()
    assert library() == made
    with pytest.raises(ImportError):
        make_library()
    library.cache_clear()


def test_a_checkout_has_no_library_made_ahead() -> None:
    assert not html_page.BAKED.exists()

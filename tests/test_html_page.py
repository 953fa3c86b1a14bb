from __future__ import annotations

import base64
import hashlib
import json

import jinja2
import pytest

from experiment.html_page import environment, library, policy, script_json


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

"""The pins file, and what is refused in one."""

from pathlib import Path

import pytest

from experiment.errors import SourceError
from experiment.pins import GitPin, LocalPin, SdistPin, load_pins, pin_named


def test_the_pins_are_those_the_project_was_verified_with() -> None:
    pins = load_pins()
    assert list(pins) == ["sdist", "guide", "local"]
    assert pins["sdist"] == SdistPin(
        name="sdist",
        kind="sdist",
        package="llama-cpp-python",
        version="0.3.26",
        sha256="71b004d52a274273ae03ec954d62771d26c86f32193fd30be57601508bec0064",
        subdirectory="vendor/llama.cpp",
        commit="7c158fbb4aec1bdc9c81d6ca0e785139f4826fae",
    )
    guide = pins["guide"]
    assert isinstance(guide, GitPin)
    assert guide.commit == "da87e9b612592ccd2a2e783eff631346459b9de0"
    assert isinstance(pins["local"], LocalPin)


def test_file_name_of_the_distribution() -> None:
    pin = pin_named("sdist")
    assert isinstance(pin, SdistPin)
    assert pin.filename == "llama_cpp_python-0.3.26.tar.gz"


def test_an_unknown_pin_lists_those_there_are() -> None:
    with pytest.raises(SourceError, match=r'no pin "sdits"') as caught:
        pin_named("sdits")
    assert caught.value.hint == "pins: sdist, guide, local"


GIT = 'kind = "git"\nurl = "u"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a\n", "cannot be read"),
        ('[a]\nkind = "zip"\n', "'kind'"),
        ("[a]\n", "Unable to extract tag"),
        (f'[a]\n{GIT}commit = "da87e9b"\n', "commit: String should match"),
        (f"[a]\n{GIT}", "commit: Field required"),
        (f'[a]\n{GIT}commit = "{"0" * 40}"\nsha265 = "1"\n', "sha265: Extra inputs"),
        ("a = 1\n", "a: "),
    ],
)
def test_a_malformed_pin_is_refused_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    with pytest.raises(SourceError) as caught:
        load_pins(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)

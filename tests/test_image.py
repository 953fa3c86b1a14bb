from __future__ import annotations

import ast
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import EngineError
from experiment.image import (
    CONTEXT,
    _follow,
    context_archive,
    default_ca_bundle,
)
from experiment.paths import ROOT
from experiment.pins import load_base_image
from experiment.progress import SilentProgress

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# A command that goes on over several lines is one line here.
INSTRUCTIONS = [
    line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line and line[0] not in "# "
]


def names(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {entry.name: entry for entry in opened.getmembers()}


def test_dockerfile_is_built_on_the_pinned_image() -> None:
    assert f"ARG BASE_IMAGE={load_base_image().reference}" in INSTRUCTIONS


def test_dockerfile_stays_within_the_classic_builder() -> None:
    assert not [line for line in INSTRUCTIONS if re.search(r"RUN --|COPY --(?!from=)|<<", line)]
    assert not re.search(r"^# *syntax|amd64|x86|arm64|aarch64", DOCKERFILE, re.MULTILINE)


def test_last_stage_ends_as_another_user_than_root() -> None:
    last = INSTRUCTIONS[max(i for i, line in enumerate(INSTRUCTIONS) if line.startswith("FROM")) :]
    assert [line for line in last if line.startswith("USER")] == ["USER 10001:10001"]
    assert not [line for line in last if "apt-get" in line or "/ca/" in line]


def test_modules_copied_by_themselves_are_those_that_are_imported() -> None:
    """For the charts' library, and for compiling."""
    copied = [line for line in INSTRUCTIONS if "COPY experiment/__init__.py" in line]
    for line, module in zip(copied, ("html_page", "build"), strict=True):
        given = {word for word in line.split() if word.endswith(".py")}
        assert given == {f"experiment/{name}.py" for name in closure({module, "__init__"})}


def closure(modules: set[str]) -> set[str]:
    """The modules of the package that these import, and so on."""
    found: set[str] = set()
    while modules - found:
        name = (modules - found).pop()
        found.add(name)
        tree = ast.parse((ROOT / "experiment" / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "experiment":
                modules |= {alias.name for alias in node.names if is_module(alias.name)}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiment."):
                modules.add(str(node.module).split(".")[1])
    return found


def is_module(name: str) -> bool:
    return (ROOT / "experiment" / f"{name}.py").exists()


def test_dockerfile_copies_nothing_that_the_context_lacks() -> None:
    archive = names(context_archive(ROOT, None))
    for line in INSTRUCTIONS:
        if not line.startswith("COPY") or "--from" in line:
            continue
        for source in line.split()[1:-1]:
            if "[" in source:  # the optional certificates
                continue
            assert source in archive or any(name.startswith(f"{source}/") for name in archive), line


def test_dockerignore_lets_through_what_the_context_holds() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert allowed == {*CONTEXT, "requirements/*.txt", "ca-bundle.crt"} - {"Dockerfile"}


def test_context_is_the_same_bytes_each_time() -> None:
    first = context_archive(ROOT, None)
    assert first == context_archive(ROOT, None)
    entries = names(first).values()
    assert {(entry.mtime, entry.uid, entry.uname) for entry in entries} == {(0, 0, "")}
    assert not [entry.name for entry in entries if "__pycache__" in entry.name]


def test_certificates_are_in_the_context_only_if_there_are_any(tmp_path: Path) -> None:
    bundle = tmp_path / "mine.pem"
    bundle.write_text("certificates")
    assert "ca-bundle.crt" not in names(context_archive(ROOT, None))
    assert names(context_archive(ROOT, bundle))["ca-bundle.crt"].size == len("certificates")
    with pytest.raises(EngineError, match=r"gone\.pem: the certificates cannot be read"):
        context_archive(ROOT, tmp_path / "gone.pem")


def test_certificates_are_those_that_pip_goes_by(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()
    variables = {"SSL_CERT_FILE": str(second), "REQUESTS_CA_BUNDLE": str(first)}
    assert default_ca_bundle(variables) == second
    assert default_ca_bundle({"PIP_CERT": str(first), **variables}) == first
    assert default_ca_bundle({"PIP_CERT": str(tmp_path / "gone"), **variables}) == second
    assert default_ca_bundle({"PIP_CERT": str(tmp_path)}) is None
    assert default_ca_bundle({}) is None


class Bar(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []

    def advance(self, done: float, note: str = "") -> None:
        self.seen.append((done, note))


def messages(*texts: str, error: str | None = None) -> Iterator[Any]:
    yield from ({"stream": text} for text in texts)
    if error:
        yield {"error": error, "errorDetail": {"message": error}}


def test_steps_are_shown_as_they_come() -> None:
    bar = Bar()
    _follow(
        messages("Step 1/3 : FROM x\n", "\x1b[91m ---> abc\n\x1b[0m", "Step 2/3 : RUN true\n"),
        {},
        bar,
    )
    assert bar.seen == [(0, "FROM x"), (0, "---> abc"), (1, "RUN true")]


def test_failure_names_the_step_and_shows_its_last_lines_only() -> None:
    noise = [f"line {number}\n" for number in range(100)]
    with pytest.raises(EngineError) as caught:
        _follow(
            messages(
                "Step 1/2 : RUN one\n",
                "of step one\n",
                "Step 2/2 : RUN pip install\n",
                *noise,
                "SSL: CERTIFICATE_VERIFY_FAILED\n",
                error="The command returned a non-zero code: 1",
            ),
            {},
            SilentProgress(),
        )
    text = str(caught.value)
    assert text.startswith("step 2 of 2 (RUN pip install): the image could not be built: The comm")
    assert "--ca-bundle" in text
    assert text.rstrip().endswith("SSL: CERTIFICATE_VERIFY_FAILED")
    assert "line 99" in text
    assert "line 50" not in text
    assert "of step one" not in text


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("the base image names no snapshot in /etc", "container.apt_snapshot"),
        ("manifest for x:y not found", "--base-image"),
        ("Temporary failure resolving 'host'", "reach package registries"),
        ("write x: No space left on device", "disk space"),
        ("c++: fatal error: Killed signal terminated program", "memory"),
    ],
)
def test_failure_comes_with_advice(output: str, advice: str) -> None:
    with pytest.raises(EngineError) as caught:
        _follow(messages("Step 1/1 : RUN x\n", output, error="code 1"), {}, SilentProgress())
    assert advice in str(caught.value.hint)


def test_failure_names_the_base_image_that_was_asked_for() -> None:
    with pytest.raises(EngineError, match=r"FROM nowhere/base:1 AS base") as caught:
        _follow(
            messages("Step 1/9 : FROM ${BASE_IMAGE} AS base\n", error="pull access denied"),
            {"BASE_IMAGE": "nowhere/base:1"},
            SilentProgress(),
        )
    assert "--base-image" in str(caught.value.hint)

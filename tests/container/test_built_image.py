"""What is in the image, what is not, and what a build that cannot succeed says."""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import certifi
import docker
import pytest

from experiment import __version__
from experiment.image import default_ca_bundle
from experiment.patches import load_series
from experiment.paths import ROOT
from tests.container.calling import Caller, Ended, ended, invoke_command

MAX_SIZE_BYTES = 350_000_000
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

# Prints build.json and whether each program is the one that it describes.
READ_RECORD = """
import hashlib, json
from pathlib import Path
record = json.loads(Path("/opt/llama/build.json").read_text())
for name in record["binaries"]:
    path = Path("/opt/llama/bin", name)
    record.setdefault("found", {})[name] = hashlib.sha256(path.read_bytes()).hexdigest()
print(json.dumps(record))
"""


def test_size(image: str, client: docker.DockerClient, capsys: pytest.CaptureFixture[str]) -> None:
    size = client.images.get(image).attrs["Size"]
    layers = sorted(client.images.get(image).history(), key=lambda layer: -layer["Size"])
    lines = [f"  {layer['Size'] / 1e6:5.0f} MB  {layer['CreatedBy'][:90]}" for layer in layers[:5]]
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\nthe image has {size / 1e6:.0f} MB", *lines, ""]))
    assert size < MAX_SIZE_BYTES


def test_labels_and_user(image: str, client: docker.DockerClient) -> None:
    found = client.images.get(image)
    labels = found.labels
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "MIT"
    assert labels["org.opencontainers.image.title"] == "prefix-replay"
    assert labels["prefix-replay.patch-digest"] == load_series(ROOT / "patches").digest
    user = found.attrs["Config"]["User"].split(":")[0]
    assert user.isdigit()
    assert int(user) > 0


def test_record_describes_what_is_there(image: str, client: docker.DockerClient) -> None:
    printed = client.containers.run(
        image,
        entrypoint=["/opt/venv/bin/python", "-c", READ_RECORD],
        network_mode="none",
        remove=True,
    )
    record = json.loads(printed)
    assert record["kind"] == "portable"
    assert record["patch_digest"] == load_series(ROOT / "patches").digest
    assert {"llama-server", "llama-bench"} <= set(record["binaries"])
    for name, sha256 in record["found"].items():
        assert sha256 in json.dumps(record["binaries"][name])
    for flag in ("-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON", "-DGGML_NATIVE=OFF"):
        assert flag in record["flags"]


def files_of(saved: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of every layer, one that a later layer removes too."""
    with tarfile.open(saved) as image:
        (manifest,) = json.load(_member(image, "manifest.json"))
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=_member(image, name)) as layer:
                for entry in layer:
                    if entry.isfile() and (content := layer.extractfile(entry)) is not None:
                        yield entry.name, content.read()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


def test_certificates_of_the_build_are_in_no_layer(
    image: str, client: docker.DockerClient, tmp_path: Path
) -> None:
    saved = tmp_path / "image.tar"
    with saved.open("wb") as file:
        for chunk in client.images.get(image).save(chunk_size=1 << 20):
            file.write(chunk)
    bundle = default_ca_bundle(os.environ)
    given = set(CERTIFICATE.findall(bundle.read_bytes())) if bundle else set()
    # The public ones are also in a package that the image does have.
    private = given - set(CERTIFICATE.findall(Path(certifi.where()).read_bytes()))
    seen = 0
    for name, content in files_of(saved):
        seen += 1
        assert not name.endswith("ca-bundle.crt"), name
        assert not name.startswith("ca/"), name
        if b"BEGIN CERTIFICATE" in content:
            assert not private & set(CERTIFICATE.findall(content)), name
    assert seen > 1000
    saved.unlink()


def failed(caller: Caller, *flags: str, **environment: str) -> Ended:
    command = invoke_command("build", "--engine=docker", *flags)
    done = ended(caller.start(command, environment=environment), 300)
    assert done.code in (1, 2)
    assert "error: " in done.errors
    assert "hint: " in done.errors
    return done


def test_base_image_that_cannot_be_had(image: str, caller: Caller) -> None:
    done = failed(caller, "--base-image=registry.invalid/base:none")
    assert "registry.invalid/base:none" in done.errors
    assert "--base-image" in done.errors


def test_pin_that_there_is_not(image: str, caller: Caller) -> None:
    done = failed(caller, "--pin=sdits")
    assert '"sdits"' in done.errors
    assert "sdist" in done.errors.replace("sdits", "")


def test_failing_step_shows_its_last_lines(image: str, caller: Caller, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("not a certificate\n")
    bundle.chmod(0o644)
    done = failed(caller, f"--ca-bundle={bundle}")
    assert "RUN python3 -m venv" in done.errors
    assert "--ca-bundle" in done.errors
    assert "certificate" in done.errors.split("its last lines:")[1].lower()


def test_certificates_that_are_not_there(image: str, caller: Caller, tmp_path: Path) -> None:
    done = failed(caller, f"--ca-bundle={tmp_path / 'none.crt'}")
    assert "none.crt" in done.errors


def test_engine_that_does_not_answer(image: str, caller: Caller, tmp_path: Path) -> None:
    done = failed(caller, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert f"{tmp_path}/none.sock" in done.errors
    assert "--engine native" in done.errors

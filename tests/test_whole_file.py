"""Files that appear whole or not at all, whatever stops the writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from experiment import whole_file
from experiment.paths import ROOT


def test_content_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole_file.write_bytes(path, b"\xff\r\n")
    assert path.read_bytes() == b"\xff\r\n"
    whole_file.write_text(path, "ö\r\n\n")
    assert path.read_bytes() == b"\xc3\xb6\r\n\n"
    whole_file.write_json(path, {"a": [1, "ö"]})
    assert json.loads(path.read_text()) == {"a": [1, "ö"]}
    assert path.read_text() == '{\n  "a": [\n    1,\n    "\\u00f6"\n  ]\n}\n'
    whole_file.write_json(path, {"a": Path("b")}, indent=1, default=str)
    assert path.read_text() == '{\n "a": "b"\n}\n'
    whole_file.copy(path, tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == path.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file.draft(path) as made:  # noqa: PT012
        made.write_text("half")
        _ = 1 / 0
    with pytest.raises(TypeError):
        whole_file.write_json(path, {"a": object()})
    with pytest.raises(FileNotFoundError):
        whole_file.copy(tmp_path / "missing", path)
    with pytest.raises(NotADirectoryError):
        whole_file.write_bytes(path / "below", b"x")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_name_of_any_length_has_a_draft(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)  # 254 bytes of 255
    whole_file.write_text(path, "x")
    assert path.read_text() == "x"


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "x"
    texts = {letter * 200_000 for letter in "ab"}
    whole_file.write_text(path, min(texts))
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            for text in texts:
                whole_file.write_text(path, text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {path.read_text() for _ in range(200)} <= texts
    finally:
        ended.set()
        writer.join()


def test_what_a_kill_leaves_is_no_result_and_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from experiment import whole_file\n"
        f"with whole_file.draft(Path({str(path)!r})) as made:\n"
        f"    made.write_text('half'); os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    (left,) = [file for file in tmp_path.iterdir() if file != path]
    assert left.name.startswith(".")
    others = [tmp_path / name for name in (".hidden", ".x.draft", "1-2.draft")]
    for other in others:
        other.touch()
    whole_file.remove_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_full_disk_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    monkeypatch.setattr(Path, "with_name", lambda self, name: self.parent / "full")
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        whole_file.write_bytes(path, b"new")
    assert path.read_text() == "old"

"""What is private, and that it is taken out of texts and found in them, and nothing else is."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment import scrub
from experiment.scrub import Private, Scrubber, gather, strings
from experiment.settings import Settings
from tests.canned_handoff import (
    CHECKOUT,
    HOME,
    HOST,
    PRIVATE,
    RUN_ID,
    SCRUBBED_ID,
    SCRUBBER,
    SETTINGS,
    USER,
    be_zaphod,
    settings_of,
)

OPEN = Scrubber(Private(PRIVATE.paths, PRIVATE.users, frozenset(), keeps_host=True))


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (f"{CHECKOUT}/.cache/models/m.gguf", "<cache>/models/m.gguf"),
        (f"'{CHECKOUT}/results', {CHECKOUT}/README.md", "'<results>', <repository>/README.md"),
        (f"in {HOME}.", "in <home>."),
        (f"-I{HOME}/include", "-I<home>/include"),
        # Not the home, but still the user's name in a path.
        (f"{HOME}.old {HOME}2 {HOME}-2", f"/home/user.old {HOME}2 {HOME}-2"),
        (f"/media/{USER}/{USER}/disk", "/media/user/user/disk"),
        (f"-L/media/{USER}/lib file:///media/{USER}", "-L/media/user/lib file:///media/user"),
        (f"https://example.org/{USER}/replay", f"https://example.org/{USER}/replay"),
        (f"/media/{USER}s/disk", f"/media/{USER}s/disk"),
        (f"{USER} on {HOST}", f"{USER} on {HOST}"),
        (f"/results/{RUN_ID}/raw", f"/results/{SCRUBBED_ID}/raw"),
        ("2026-11-30_02-41-05_vm.example_x", "2026-11-30_02-41-05_host_x"),
        ("2026-11-30_02-41-05_smoke-handoff", "2026-11-30_02-41-05_smoke-handoff"),
    ],
)
def test_paths_are_replaced_and_words_are_not(text: str, scrubbed: str) -> None:
    assert SCRUBBER.paths(text) == scrubbed


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (f"{USER}@{HOST}:~$", "user@host:~$"),
        (f"{USER.upper()} {HOST.title()}.local", "user host.local"),
        (f"{USER}_{HOST}-old", "user_host-old"),
        (f"{USER}s {HOST}0 x{HOST}", f"{USER}s {HOST}0 x{HOST}"),
        ("52:54:00:12:34:56 at 12:34:56", "<mac> at 12:34:56"),
        ("GPU-123e4567-e89b-12d3-a456-426614174000", "GPU-<uuid>"),
        ("sha256 0123456789abcdef0123456789abcdef", "sha256 0123456789abcdef0123456789abcdef"),
    ],
)
def test_whole_words_and_serial_numbers_are_replaced(text: str, scrubbed: str) -> None:
    assert SCRUBBER.words(text) == scrubbed


def test_host_names_stay_where_they_may_be_known() -> None:
    assert OPEN.words(f"{USER} on {HOST}, {RUN_ID}") == f"user on {HOST}, {RUN_ID}"
    assert OPEN.host(HOST) == HOST
    assert SCRUBBER.host("vm") == "host"
    assert OPEN.leak(RUN_ID, hosts=True) is None
    assert OPEN.leak(f"on {HOST}", hosts=True) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"x\n{HOME}/notes", HOME),
        (json.dumps({"path": f"{HOME}/notes"}), HOME),
        (f"/media/{USER}", USER),
        (f"on {HOST.upper()}!", HOST),
        (f"run {RUN_ID}", HOST),
        ("2026-11-30_02-41-05_vm_smoke", "2026-11-30_02-41-05_vm_"),
    ],
)
def test_what_is_private_is_found(text: str, what: str) -> None:
    found = SCRUBBER.leak(text, hosts=True)
    assert found is not None
    assert what in found.what
    assert what.lower() in text[found.start :].lower()


@pytest.mark.parametrize(
    "text",
    [f"{HOME}2", f"https://x.org/{USER}", SCRUBBED_ID, "/tmp /opt/app/x /results <home>", ""],
)
def test_nothing_is_found_where_nothing_is(text: str) -> None:
    assert SCRUBBER.leak(text, hosts=True) is None


def test_host_names_are_not_looked_for_unless_asked() -> None:
    assert SCRUBBER.leak(f"on {HOST}, {RUN_ID}", hosts=False) is None
    assert SCRUBBER.leak(f"in {HOME}", hosts=False) is not None


def test_paths_are_found_as_json_and_html_spell_them() -> None:
    scrubber = Scrubber(Private({"/srv/æ & co": "<x>"}, frozenset(), frozenset(), keeps_host=True))
    assert scrubber.leak(json.dumps("/srv/æ & co/1"), hosts=False) is not None
    assert scrubber.leak("<p>/srv/æ &amp; co</p>", hosts=False) is not None
    assert scrubber.paths("/srv/æ & co/1") == "<x>/1"


@given(
    st.lists(
        st.sampled_from(
            [HOME, CHECKOUT, USER, HOST, RUN_ID, "/", ".", "_", " ", "a", f"/{USER}", "\n", "0"]
        )
    ).map("".join)
)
def test_nothing_is_found_in_what_was_scrubbed_and_scrubbing_again_changes_nothing(
    text: str,
) -> None:
    scrubbed = SCRUBBER.words(text)
    assert SCRUBBER.leak(scrubbed, hosts=True) is None
    assert SCRUBBER.words(scrubbed) == scrubbed


def test_strings_of_json_change_and_nothing_else() -> None:
    value = {"a": ["x", 1, 1.50, None, True], "x": {"b": "x"}}
    changed = strings(value, str.upper)
    assert changed == {"a": ["X", 1, 1.5, None, True], "x": {"b": "X"}}
    assert json.dumps(changed) == json.dumps(value).replace('"x",', '"X",').replace(
        ': "x"', ': "X"'
    )


def found_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *hosts: str, **settings: object
) -> Private:
    be_zaphod(monkeypatch)
    monkeypatch.setattr(scrub, "ROOT", Path(CHECKOUT))
    return gather(
        settings_of(Path(CHECKOUT)),
        {**SETTINGS, **settings},
        hosts,
        owned=(tmp_path,),
        work=Path("/srv/results/.handoff-x1"),
        keeps_host=False,
    )


def test_everything_private_of_a_run_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scrub.tempfile, "gettempdir", lambda: "/var/folders/ab/T")
    found = found_private(monkeypatch, tmp_path, "slartibart")
    assert found.paths == {
        HOME: "<home>",
        CHECKOUT: "<repository>",
        f"{CHECKOUT}/.cache": "<cache>",
        f"{CHECKOUT}/results": "<results>",
        f"{HOME}/llama.cpp": "<source>",
        "/srv/weights/zaphod": "<model>",
        "/srv/ca/zaphod": "<certificates>",
        "/var/folders/ab/T": "<tmp>",
        "/srv/results/.handoff-x1": "<work>",
    }
    # The owner of the temporary folder is a user, too; it may be one like root.
    assert USER in found.users
    assert found.hosts == {HOST, f"{HOST}.example.org", "slartibart"}


def test_run_of_another_user_and_checkout_is_known_by_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = {"cache_dir": "/home/arthur/r/.cache", "results_dir": "/home/arthur/r/results"}
    found = found_private(monkeypatch, tmp_path, **theirs)
    assert found.paths["/home/arthur/r"] == "<repository>"
    assert found.paths["/home/arthur"] == "<home>"
    assert {USER, "arthur"} <= found.users


def test_paths_of_every_system_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = {
        "cache_dir": "/cache",
        "results_dir": "/results",
        "build": {"source": None, "prebuilt": "/opt/llama"},
        "model": {"name": "/model/model.gguf", "mmproj": None},
    }
    monkeypatch.setattr(scrub.tempfile, "gettempdir", lambda: "/tmp")
    found = found_private(monkeypatch, tmp_path, **inside)
    assert not {"/cache", "/results", "/opt/llama", "/model", "/tmp"} & set(found.paths)


def test_link_to_a_folder_and_the_folder_are_both_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    found = found_private(monkeypatch, tmp_path, cache_dir=str(tmp_path / "link"))
    assert found.paths[str(tmp_path / "link")] == "<cache>"
    assert found.paths[str(tmp_path.resolve() / "disk")] == "<cache>"


@pytest.mark.parametrize("name", ["vm", "box", "localhost", "Ubuntu", "nano", "Prefill"])
def test_common_and_short_host_names_are_not_words_to_replace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    found = found_private(monkeypatch, tmp_path, name)
    assert name not in found.hosts
    # Its name in a run id is replaced all the same.
    text = f"{name}: 2026-11-30_02-41-05_{name}_x"
    assert Scrubber(found).words(text) == f"{name}: 2026-11-30_02-41-05_host_x"


def test_common_user_names_are_no_secret_but_a_short_one_is_in_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(_who: object) -> None:
        raise KeyError("no such user")

    be_zaphod(monkeypatch)
    monkeypatch.setenv("USER", "root")
    monkeypatch.setenv("HOME", "/home/bob")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(pwd, "getpwnam", nobody)
    found = gather(Settings(), {}, (), owned=(), work=tmp_path, keeps_host=True)
    assert found.users == frozenset()
    assert found.hosts == frozenset()
    assert Scrubber(found).words("/home/bob/x, bob, root") == "<home>/x, bob, root"

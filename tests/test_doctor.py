"""The doctor's screen: all checks, what is possible, and how it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment import doctor
from experiment.doctor import exit_code, judge, possible, render
from experiment.doctor_checks import (
    BusyFacts,
    Check,
    DiskFacts,
    RegistryFacts,
    Trouble,
)
from experiment.doctor_facts import Facts
from experiment.settings import Settings, load_settings
from tests.test_doctor_checks import ENGINE, HOST, NANO, SOURCE, host

GB = 1_000_000_000
DISK = DiskFacts(Path("/data"), 50 * GB, {"native": GB, "docker": GB}, is_writable=True)
FACTS = Facts(
    engine=ENGINE,
    disks={
        "cache disk": DISK,
        "results disk": DISK,
        "engine disk": replace(DISK, needed_bytes={"docker": GB}),
    },
    model=NANO,
    host=HOST,
    busy=BusyFacts(0.0, ""),
    compiler="g++ 12",
    python="3.11.7, /usr/bin/python3",
    source=SOURCE,
    caches={"source": GB},
    registry=RegistryFacts("https://index/simple", None),
)
GONE = Trouble("there is none", "get one")


def judged(**changes: Any) -> list[Check]:
    return judge(Settings(), replace(FACTS, **changes))


def verdicts(found: list[Check]) -> dict[str, str]:
    return {check.name: check.verdict for check in found}


def test_a_machine_in_order() -> None:
    found = judged()
    assert set(verdicts(found).values()) == {"ok"}
    names = "engine builder container compiler source model memory cache results engine CPU cores "
    assert [check.name.split()[0] for check in found] == [
        *names.split(),
        *["governor", "load", "Python", "caches", "registry"],
    ]
    assert (possible(found), exit_code(found)) == (["native", "docker"], 0)


@pytest.mark.parametrize(
    ("changes", "failing", "left", "code"),
    [
        ({"engine": GONE}, ["engine"], ["native"], 0),
        ({"compiler": GONE}, ["compiler"], ["docker"], 0),
        ({"engine": GONE, "compiler": GONE}, ["engine", "compiler"], [], 1),
        (
            {"engine": replace(ENGINE, builder_refusal="no"), "compiler": GONE},
            ["builder", "compiler"],
            [],
            1,
        ),
        ({"model": GONE}, ["model"], [], 1),
        ({"host": host(memory_total_bytes=GB, memory_limit_bytes=None)}, ["memory"], ["docker"], 0),
        (
            {"disks": {"engine disk": replace(DISK, needed_bytes={"docker": 51 * GB})}},
            ["engine disk"],
            ["native"],
            0,
        ),
        ({"disks": {"cache disk": replace(DISK, free_bytes=1)}}, ["cache disk"], [], 1),
    ],
)
def test_what_is_possible(
    changes: dict[str, Any], failing: list[str], left: list[str], code: int
) -> None:
    found = judged(**changes)
    assert [check.name for check in found if check.verdict == "fail"] == failing
    assert possible(found) == left
    assert exit_code(found) == code


def test_warnings_rule_nothing_out() -> None:
    found = judged(
        host=host(governor="powersave", cores_quota=2.0, cores_usable=2, load_1min=7.0),
        registry=RegistryFacts("https://index/simple", GONE),
        caches=GONE,
    )
    warned = [name for name, verdict in verdicts(found).items() if verdict == "warn"]
    assert warned == ["cores", "governor", "load", "caches", "registry"]
    assert exit_code(found) == 0


def test_settings_are_heeded() -> None:
    asked = {"server.threads": 9, "container.cpus": 9.0, "container.image": "mine"}
    found = {c.name: c for c in judge(load_settings(asked, environ={}), FACTS)}
    assert found["cores"].verdict == "warn"
    assert found["container"].verdict == "fail"
    assert "mine" in found["builder"].seen


def worst() -> list[Check]:
    """As much as there can be on the screen."""
    long = Trouble("what happened takes a sentence that fills a line and more " * 2, "do " * 40)
    broken = dict.fromkeys(("engine", "compiler", "model", "source", "registry"), long)
    return judged(**broken, caches=long, disks={"cache disk": long, "results disk": long})


def test_fits_100_columns_and_one_screen() -> None:
    for found, rows in ((judged(), 22), (worst(), 50)):
        lines = render(found, colour=False).splitlines()
        assert max(map(len, lines)) <= 100
        assert len(lines) <= rows


def test_every_line_that_is_not_ok_says_what_to_do() -> None:
    text = render(judged(engine=GONE, compiler=GONE), colour=False)
    assert text.count("-> get one") == 2
    assert "fail engine" in text
    assert "ok   source" in text
    last = text.splitlines()[-1]
    assert last == (
        "Here --engine native does not work (compiler) and --engine docker does not work (engine)."
    )
    assert render(judged(), colour=False).endswith(
        "Here --engine native works and --engine docker works.\n"
    )


def test_no_colour_codes_but_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in render(judged())
    assert "\x1b[32mok" in render(judged(), colour=True)


def test_what_is_seen_is_not_taken_for_markup() -> None:
    text = render(judged(engine=Trouble("[bold]x[/bold] :smile:", "[red]y")), colour=False)
    assert "[bold]x[/bold] :smile:" in text
    assert "-> [red]y" in text


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(
        "experiment.doctor_facts.registry", lambda pin: RegistryFacts("https://index", None)
    )
    places = {"cache_dir": tmp_path / "cache", "results_dir": tmp_path / "results"}
    found = doctor.examine(load_settings(places, environ={}))
    assert {check.name for check in found} >= {"engine", "memory", "CPU", "cores", "load"}
    (engine,) = (check for check in found if check.name == "engine")
    assert engine.verdict == "fail"
    assert str(tmp_path / "none.sock") in engine.seen
    for check in found:
        assert (check.verdict == "ok") == (check.hint is None)
        assert check.seen

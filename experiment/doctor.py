"""Says on one screen whether a run is possible here, natively or in a container, and what to do."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiment import doctor_checks as checks
from experiment.doctor_checks import Check, Verdict, Way
from experiment.doctor_facts import Facts, gather
from experiment.settings import Settings

WIDTH = 100
WAYS: tuple[Way, ...] = ("native", "docker")

_STYLES: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def examine(settings: Settings) -> list[Check]:
    """Look at the machine, for 15 s at most (about 2 s if nothing hangs), and judge what is seen.

    The exit code that goes with it is `exit_code`'s: 0 if a native run or one in a container is
    possible, 1 if neither is.
    """
    return judge(settings, gather(settings))


def judge(settings: Settings, facts: Facts) -> list[Check]:
    """Apply every check to the facts, in the order in which they are shown."""
    container, model = settings.container, facts.model
    found = [
        checks.engine(facts.engine),
        checks.builder(facts.engine, image=container.image),
        checks.limits(
            facts.engine, memory_mib=container.memory_mib, cpus=container.cpus, model=model
        ),
        checks.compiler(facts.compiler),
        checks.source(facts.source),
        checks.model(model),
        checks.memory(facts.host, model),
        *(checks.disk(name, disk) for name, disk in facts.disks.items()),
        checks.cpu(facts.host),
        checks.cores(facts.host, threads=settings.server.threads),
        checks.governor(facts.host),
        checks.load(facts.host, facts.busy),
        checks.python(facts.python),
        checks.caches(settings.cache_dir, facts.caches),
        checks.registry(facts.registry),
    ]
    return [check for check in found if check is not None]


def possible(found: Iterable[Check]) -> list[Way]:
    """The ways of doing a run that no check rules out."""
    blocked = {way for check in found for way in check.blocks}
    return [way for way in WAYS if way not in blocked]


def exit_code(found: Iterable[Check]) -> int:
    """0 if a native run or one in a container is possible, 1 if neither is."""
    return 0 if possible(found) else 1


def render(found: list[Check], *, colour: bool | None = None) -> str:
    """Write the checks as a table with a line at its end that says what is possible.

    Args:
        found: what `examine` returned.
        colour: with colour codes; None = where standard output is a terminal.
    """
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), width=WIDTH)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for check in found:
        text = Text(check.seen)
        if check.hint:
            text.append(f"\n-> {check.hint}", style="italic")
        table.add_row(Text(check.verdict, style=_STYLES[check.verdict]), check.name, text)
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=WIDTH,
        force_terminal=sys.stdout.isatty() if colour is None else colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(table)
    console.print(Text(f"\n{_summary(found)}", style="bold"))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _summary(found: list[Check]) -> str:
    told = []
    for way in WAYS:
        blocking = ", ".join(check.name for check in found if way in check.blocks)
        told.append(f"--engine {way} {f'does not work ({blocking})' if blocking else 'works'}")
    return f"Here {' and '.join(told)}."

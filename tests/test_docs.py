"""The commands of docs/ are ones that the command line takes. What they do, other tests try."""

from __future__ import annotations

import copy
import re
import shlex

import pytest
from invoke.parser import Parser

import tasks
from experiment.paths import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for block in re.findall(
        r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in block.splitlines()
]


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) > 3


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_is_understood(page: str, command: str) -> None:
    words = shlex.split(command)
    while re.fullmatch(r"EXPERIMENT_\w+=\S+", words[0]):
        words.pop(0)
    assert words[0] == "./inv", page
    # Raises ParseError for a task or a flag that there is not.
    # From a copy: invoke takes each help text out of a task when it first lists the flags.
    contexts = copy.deepcopy(tasks.namespace).to_contexts()
    found = Parser(contexts=contexts).parse_argv(words[1:])
    assert [context.name for context in found] == [words[1]]
    assert not found.unparsed

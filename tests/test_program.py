"""Words of a command line that name runs, and those that do not."""

from __future__ import annotations

import copy

import pytest

import tasks
from experiment.program import with_flags

CONTEXTS = {context.name: context for context in copy.deepcopy(tasks.namespace).to_contexts()}


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("compare a b", "compare --run=a --run=b"),
        ("compare a --format=md b", "compare --run=a --format=md --run=b"),
        ("compare --format json a", "compare --format json --run=a"),
        ("compare --run a b", "compare --run a --run=b"),
        ("compare --structure a", "compare --structure --run=a"),
        ("compare a lint", "compare --run=a lint"),
        ("compare", "compare"),
        ("run --trace compare", "run --trace compare"),
        ("lint compare a", "lint compare --run=a"),
        ("run a", "run a"),
        ("compare --format run x", "compare --format run --run=x"),
        ("compare ./run", "compare --run=./run"),
    ],
)
def test_words_without_a_flag_are_runs(words: str, made: str) -> None:
    assert with_flags(words.split(), CONTEXTS) == made.split()

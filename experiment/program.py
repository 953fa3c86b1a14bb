"""The command `./inv`: invoke's own program, which also takes runs to compare without a flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invoke import program
from invoke.collection import Collection
from invoke.parser.context import ParserContext

TAKES_RUNS = {"compare": "run"}
"""Tasks whose words without a flag are values of this one, which may be given several times.

invoke hands a word to a task only as a required argument, and as many as there are of those.
"""


class Program(program.Program):
    """``compare A B`` means ``compare --run=A --run=B``; everything else is as with invoke."""

    def __init__(self, namespace: Collection) -> None:
        super().__init__(namespace=namespace, name="inv", binary="./inv")

    def parse_tasks(self) -> None:
        """See invoke's own."""
        contexts = {str(context.name): context for context in self.collection.to_contexts()}
        self.core.unparsed[:] = with_flags(self.core.unparsed, contexts)
        super().parse_tasks()


def with_flags(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> list[str]:
    """The words of a command line, those that name runs turned into values of their flag.

    Args:
        words: tasks with their flags.
        contexts: the tasks by name, as invoke's parser knows them.
    """
    made: list[str] = []
    task: ParserContext | None = None
    is_value = False
    for word in words:
        if not is_value and word in contexts:
            task = contexts[word]
        elif not is_value and task and task.name in TAKES_RUNS and not word.startswith("-"):
            word = f"--{TAKES_RUNS[task.name]}={word}"
        flag = task.flags.get(word) if task else None
        is_value = flag is not None and flag.takes_value and not flag.optional
        made.append(word)
    return made

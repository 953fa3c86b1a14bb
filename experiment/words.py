"""The list of ordinary English words that made-up text is drawn from."""

from __future__ import annotations

from functools import cache

from experiment.paths import ROOT

WORDS_FILE = ROOT / "data" / "words.txt"


@cache
def load_words() -> tuple[str, ...]:
    """800 different words, 3 to 10 lower-case ASCII letters each, in alphabetical order.

    With a leading space each is one token in common vocabularies (``data/README.md`` says which);
    whether it is in the model at hand is for the caller to check.
    """
    return tuple(WORDS_FILE.read_text(encoding="ascii").split())

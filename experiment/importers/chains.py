"""Names every prefix of lists of block ids by a 128-bit hash, many lists at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# The finaliser and the increment of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
_SHIFTS_AND_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_INCREMENT = 0x9E3779B97F4A7C15

_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""Digits of pi: two hashes that have nothing to do with each other."""


@dataclass(frozen=True)
class Prefixes:
    """Of lists that stand one behind the other: element i names the prefix that ends at block i.

    ``high`` and ``low`` together are the name. Two prefixes have the same name if they have the
    same blocks; others meet by chance in one of 2^64 sets of 2^32 prefixes.
    """

    high: Words
    low: Words


def prefixes(lists: Sequence[Sequence[int]]) -> Prefixes:
    """The names of all prefixes of the lists, none of which is empty; ids are 64-bit integers.

    Raises:
        OverflowError: an id is larger.
    """
    lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
    ids = np.array([block for ids in lists for block in ids], dtype=np.int64).astype(np.uint64)
    starts = np.cumsum(lengths) - lengths
    position = (np.arange(len(ids), dtype=np.int64) - np.repeat(starts, lengths)).astype(np.uint64)
    high, low = (_sums(ids, position, starts, lengths, seed) for seed in _SEEDS)
    return Prefixes(high, low)


def _sums(
    ids: Words, position: Words, starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> Words:
    """A prefix as the sum, modulo 2^64, of a hash of each of its blocks with its position.

    A sum does not see order, but with the position in each term, it need not.
    """
    terms = _mixed(_mixed(ids + np.uint64(seed)) + (position + np.uint64(1)) * _word(_INCREMENT))
    sums = np.cumsum(terms, dtype=np.uint64)
    before = sums[starts] - terms[starts]
    return sums - np.repeat(before, lengths)


def _mixed(words: Words) -> Words:
    for shift, factor in _SHIFTS_AND_FACTORS:
        words = (words ^ (words >> np.uint64(shift))) * _word(factor)
    return words ^ (words >> np.uint64(_LAST_SHIFT))


def _word(value: int) -> np.uint64:
    return np.uint64(value)

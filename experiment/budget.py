"""Which steps of a trace fit into a time: a stratified sample by depth and new, drawn by seed."""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiment.errors import SettingsError
from experiment.narrow import Reason
from experiment.recorded import StepKey
from experiment.step_size import Sizes
from experiment.strict_json import shown
from experiment.trace import Step

MAX_BUDGET_S = 30 * 24 * 3600

OUTRIGHT = 0
"""Number of the stratum of the steps that are taken without a lot: each stands for itself."""

EXTREME_SHARE = 1 / 3
"""Of the budget: what one extreme step may take, so that the others are not left without any."""

GRIDS = ((6, 4), (5, 3), (4, 3), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))
"""Bins of depth, and of new within each: the first grid whose strata all get `PER_STRATUM`."""

PER_STRATUM = 2
"""Fewest steps of a stratum from which its spread can be told."""

_DURATION = re.compile(r"(?:(?P<h>[0-9.]+)h)?(?:(?P<m>[0-9.]+)m)?(?:(?P<s>[0-9.]+)s)?")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


def parse_budget(text: str) -> float:
    """Seconds of a duration such as ``30m``, ``90s``, ``2h`` or ``1h30m``.

    Raises:
        SettingsError: it is none, or is out of range.
    """
    hint = "give hours, minutes or seconds, as --budget=30m, --budget=90s or --budget=1h30m"
    squeezed = text.strip().replace(" ", "").lower()
    if _NUMBER.fullmatch(squeezed):
        raise SettingsError(f"{text!r} has no unit", where="--budget", hint=hint)
    found = _DURATION.fullmatch(squeezed)
    parts = found.groupdict() if found else {}
    told = {unit: value for unit, value in parts.items() if value is not None}
    if not told or not all(_NUMBER.fullmatch(value) for value in told.values()):
        raise SettingsError(f"{text!r} is no duration", where="--budget", hint=hint)
    unit_s = {"h": 3600.0, "m": 60.0, "s": 1.0}
    seconds = sum(float(value) * unit_s[unit] for unit, value in told.items())
    if not 0 < seconds <= MAX_BUDGET_S:
        raise SettingsError(
            f"{text!r} is not between 0 and {MAX_BUDGET_S // 86400} days",
            where="--budget",
            hint=hint,
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Stratum:
    """Steps that are alike: the ranges of their depth and new tokens, how many, how many chosen.

    ``number`` is `OUTRIGHT` for those that are taken without a lot.
    """

    number: int
    depth_from: int
    depth_to: int
    new_from: int
    new_to: int
    steps: int
    chosen: int


@dataclass(frozen=True)
class Selection:
    """What is measured.

    Attributes:
        chosen: in the order of the steps.
        left_out: each of the others, with the reason.
        weights: of each chosen step how many steps of its stratum it stands for.
        stratum_of: the number of each step's stratum; steps that do not fit at all have none.
        strata: by number.
        estimated_s: what the chosen steps take.
    """

    chosen: tuple[StepKey, ...]
    left_out: Mapping[StepKey, Reason]
    weights: Mapping[StepKey, float]
    stratum_of: Mapping[StepKey, int]
    strata: tuple[Stratum, ...]
    estimated_s: float


@dataclass(frozen=True)
class Room:
    """Something besides time that the chosen steps share: of each step how much, and how much all.

    ``reason`` says why a step is left out that does not fit.
    """

    needed_by: Callable[[Step], float]
    limit: float
    reason: Reason


def choose(
    steps: Sequence[Step],
    cost_s_of: Callable[[Step], float],
    budget_s: float,
    seed: int,
    *,
    new_of: Callable[[Step], int] | None = None,
    room: Room | None = None,
) -> Selection:
    """Draw a sample of ``steps`` that takes no longer than ``budget_s``.

    The deepest, the shallowest, the smallest and the largest new content are taken first, each the
    most extreme one that costs at most `EXTREME_SHARE` of the budget. The others are divided by
    quantiles of depth, and within each bin by quantiles of new. Every stratum gets two steps, then
    whichever is due by Neyman's allocation for unequal costs, ``n ~ N * S / sqrt(cost)`` (Cochran,
    Sampling Techniques, 3rd ed. 1977, section 5.5), with times that scatter in proportion to
    themselves: ``S ~ cost``. Within a stratum the order is that of a hash of seed, task and step:
    it depends neither on the order of the steps nor on which others there are. A stratum whose
    next step does not fit any more gets no further one by lot, since going on with cheaper ones
    would be none; what still fits in the end is taken outright, as the extremes are.

    Args:
        steps: what may be measured.
        cost_s_of: what a step adds to the run, seconds.
        budget_s: time for all of them.
        seed: another one draws another sample.
        new_of: tokens a step appends; None = what is likely.
        room: what else has to suffice.

    Raises:
        SettingsError: not even the cheapest step fits.
    """
    return _Draw(steps, cost_s_of, budget_s, seed, new_of or _likely, room).selection()


def _likely(step: Step) -> int:
    return Sizes().of(step).likely


class _Draw:
    """One selection under way. A step goes by its place in an order that the input has no part in.

    ``keys``, ``depth``, ``new``, ``cost_s`` and ``needed`` (of the room) are columns in that order.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        cost_s_of: Callable[[Step], float],
        budget_s: float,
        seed: int,
        new_of: Callable[[Step], int],
        room: Room | None,
    ) -> None:
        ordered = sorted(steps, key=lambda step: (step.task_id, step.step))
        self._given = [(step.task_id, step.step) for step in steps]
        self.keys = [(step.task_id, step.step) for step in ordered]
        self.depth: Integers = np.array([step.depth for step in ordered], dtype=np.int64)
        self.new: Integers = np.array([new_of(step) for step in ordered], dtype=np.int64)
        self.cost_s: Floats = np.array([cost_s_of(step) for step in ordered], dtype=np.float64)
        self.needed: Floats = np.zeros(len(ordered))
        if room is not None:
            self.needed[:] = [room.needed_by(step) for step in ordered]
        self._room, self._budget_s, self._seed = room, budget_s, seed
        self._left_s = budget_s
        # Rounding must not keep the last step out where all of them fit exactly.
        self._slack_s = 1e-9 * budget_s
        self._left_room = math.inf if room is None else room.limit
        self._fits_alone = self._affordable()
        self._chosen: set[int] = set()

    def selection(self) -> Selection:
        """Take the extremes, divide the others into strata, and draw."""
        if not self._fits_alone.any():
            raise self._nothing_fits()
        outright = self._take_extremes()
        rest = self._fits_alone.copy()
        rest[list(outright)] = False
        members = self._divide(np.flatnonzero(rest))
        short_of_room = self._draw(members)
        outright |= self._fill_up()
        members = {
            number: [place for place in places if place not in outright]
            for number, places in members.items()
        }
        return self._made({OUTRIGHT: sorted(outright), **members}, short_of_room)

    def _affordable(self) -> Booleans:
        in_time = self.cost_s <= self._left_s + self._slack_s
        fits: Booleans = in_time & (self.needed <= self._left_room)
        return fits

    def _take(self, place: int) -> None:
        self._chosen.add(place)
        self._left_s -= float(self.cost_s[place])
        self._left_room -= float(self.needed[place])

    def _take_extremes(self) -> set[int]:
        cheap = self.cost_s <= EXTREME_SHARE * self._budget_s
        for values in (-self.depth, self.depth, self.new, -self.new):
            free = self._affordable()
            places = np.flatnonzero(free & cheap if (free & cheap).any() else free)
            if len(places):
                # Of equals the cheapest.
                place = int(places[np.lexsort((self.cost_s[places], values[places]))[0]])
                if place not in self._chosen:
                    self._take(place)
        return set(self._chosen)

    def _fill_up(self) -> set[int]:
        """Take, in the order of lot, whatever is not chosen and still fits."""
        taken = set()
        for place in sorted(np.flatnonzero(self._affordable()).tolist(), key=self._lot):
            if place not in self._chosen and self._fits(place):
                self._take(place)
                taken.add(place)
        return taken

    def _fits(self, place: int) -> bool:
        return bool(
            self.cost_s[place] <= self._left_s + self._slack_s
            and self.needed[place] <= self._left_room
        )

    def _divide(self, places: Integers) -> dict[int, list[int]]:
        """The strata of the finest grid whose first steps can be paid, each in the order of lot."""
        strata: list[Integers] = []
        for depth_bins, new_bins in GRIDS:
            strata = [
                stratum
                for shelf in _quantile_bins(places, self.depth, depth_bins)
                for stratum in _quantile_bins(shelf, self.new, new_bins)
            ]
            first_s = sum(
                min(PER_STRATUM, len(stratum)) * float(self.cost_s[stratum].mean())
                for stratum in strata
            )
            if first_s <= self._left_s:
                break
        return {
            number: sorted(stratum.tolist(), key=self._lot)
            for number, stratum in enumerate(strata, OUTRIGHT + 1)
        }

    def _lot(self, place: int) -> bytes:
        task_id, step = self.keys[place]
        return hashlib.sha256(f"{self._seed}/{step}/{task_id}".encode()).digest()

    def _draw(self, members: Mapping[int, Sequence[int]]) -> set[int]:
        """Take what is due until nothing fits; give the strata that ended for want of room."""
        due = {
            number: len(places) * math.sqrt(float(self.cost_s[list(places)].mean()))
            for number, places in members.items()
        }
        # Those with fewer than two steps come first.
        queue = [(-PER_STRATUM, -due[number], number, 0) for number in members]
        heapq.heapify(queue)
        short_of_room: set[int] = set()
        while queue:
            _, _, number, taken = heapq.heappop(queue)
            place = members[number][taken]
            if self.needed[place] > self._left_room:
                short_of_room.add(number)
            elif self._fits(place):
                self._take(place)
                taken += 1
                if taken < len(members[number]):
                    lacking = min(0, taken - PER_STRATUM)
                    heapq.heappush(queue, (lacking, -due[number] / (taken + 1), number, taken))
        return short_of_room

    def _made(self, members: Mapping[int, Sequence[int]], short_of_room: set[int]) -> Selection:
        strata, weights, left_out = [], {}, {}
        stratum_of: dict[StepKey, int] = {}
        for number, places in members.items():
            if not places:
                continue
            stratum = self._stratum(number, places)
            strata.append(stratum)
            missed = self._missed(stratum, number in short_of_room)
            for place in places:
                key = self.keys[place]
                stratum_of[key] = number
                if place not in self._chosen:
                    left_out[key] = missed
                else:
                    weights[key] = 1.0 if number == OUTRIGHT else stratum.steps / stratum.chosen
        for place in np.flatnonzero(~self._fits_alone).tolist():
            left_out[self.keys[place]] = self._too_dear(place)
        return Selection(
            tuple(key for key in self._given if key in weights),
            {key: left_out[key] for key in self._given if key in left_out},
            {key: weights[key] for key in self._given if key in weights},
            stratum_of,
            tuple(strata),
            math.fsum(self.cost_s[sorted(self._chosen)]),
        )

    def _stratum(self, number: int, places: Sequence[int]) -> Stratum:
        depth, new = self.depth[list(places)], self.new[list(places)]
        return Stratum(
            number,
            int(depth.min()),
            int(depth.max()),
            int(new.min()),
            int(new.max()),
            len(places),
            sum(place in self._chosen for place in places),
        )

    def _missed(self, stratum: Stratum, for_want_of_room: bool) -> Reason:
        if for_want_of_room and self._room is not None:
            return self._room.reason
        return Reason(
            "budget",
            f"not drawn, {stratum.chosen:,} of {stratum.steps:,} steps like it fit into the "
            f"{duration(self._budget_s)} that there are for steps",
        )

    def _too_dear(self, place: int) -> Reason:
        if self._room is not None and self.needed[place] > self._room.limit:
            return self._room.reason
        took, there = duration(float(self.cost_s[place])), duration(self._budget_s)
        return Reason("budget", f"takes {took} by itself, for all steps there are {there}")

    def _nothing_fits(self) -> SettingsError:
        if not len(self.keys):
            return SettingsError("there are no steps to choose from", where="--budget")
        place = int(np.argmin(np.where(self.needed <= self._left_room, self.cost_s, math.inf)))
        task_id, step = self.keys[place]
        return SettingsError(
            f"not even the cheapest step fits ({shown(task_id)} step {step}): "
            f"{self._too_dear(place)}",
            where="--budget",
            hint="give more time, or fewer rounds with --rounds and --full-rounds=0",
        )


def duration(seconds: float) -> str:
    """A time as one says it: ``12.3 s``, ``5.0 min``, ``1.5 h``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 0.05 or not seconds else f"{1000 * seconds:.1f} ms"


def _quantile_bins(places: Integers, values: Integers, bins: int) -> list[Integers]:
    """``places`` by quantiles of their ``values``; equal values are never parted."""
    if not len(places):
        return []
    here = values[places]
    edges = np.quantile(here, np.arange(1, bins) / bins, method="inverted_cdf")
    of = np.searchsorted(np.unique(edges), here, side="left")
    return [places[of == number] for number in np.unique(of)]

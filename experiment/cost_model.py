"""The cost of a prefill as a function of its size and depth, fitted to measured times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiment.errors import StoreError

# Relative to the largest singular value of columns scaled to length 1: below it the cells do not
# tell the terms apart, and what the fit would give is rounding.
_RANK = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """``ms`` that a prefill of ``new`` tokens behind ``depth`` cells took, image encoding apart."""

    depth: int
    new: int
    ms: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """``T(new, L) = a + b * new + c * new * L`` in ms; see `fit`.

    Attributes:
        a_ms: a request, whatever its size.
        b_ms: a new token, at depth 0.
        c_ms: a new token, for each cell of depth.
        r2: share of the times' relative variation that the model explains: ``1 - S / S0``, with S
            the sum of squares of ``T / measured - 1``, and S0 that of the best constant.
        r2_mean_depth: the same of the fit with ``L + new / 2`` in place of L, the mean number of
            cells that causal attention has to read; None where the cells do not determine it.
        residuals_pct: ``100 * (T / measured - 1)`` of the points, in their order.
    """

    a_ms: float
    b_ms: float
    c_ms: float
    r2: float
    r2_mean_depth: float | None
    residuals_pct: tuple[float, ...]

    def ms(self, new: int, depth: int) -> float:
        """``T(new, L)``."""
        return self.a_ms + self.b_ms * new + self.c_ms * new * depth

    @property
    def largest_residual_pct(self) -> float:
        """The residual that is farthest from 0, with its sign."""
        return max(self.residuals_pct, key=abs)


def fit(points: Iterable[Point]) -> CostModel:
    """Least squares over the relative residuals: a cell of 10 ms counts as much as one of 10 s.

    Every row of the linear system is divided by its measured time, whose noise is roughly
    proportional to it.

    Raises:
        StoreError: the points do not determine the three terms, or a time is not positive.
    """
    rows = tuple(points)
    if any(not 0 < row.ms < np.inf for row in rows):
        raise StoreError("a cost model needs times above 0")
    depths, sizes = {row.depth for row in rows}, {row.new for row in rows}
    for what, values in (("depth", depths), ("number of new tokens", sizes)):
        if len(values) < 2:
            raise StoreError(
                f"{len(rows)} cells with {_only(what, values)} do not determine a cost model",
                hint="measure at least two depths and two sizes, and three cells",
            )
    columns = [
        np.ones(len(rows)),
        np.array([row.new for row in rows], dtype=np.float64),
        np.array([row.new * row.depth for row in rows], dtype=np.float64),
    ]
    ms = np.array([row.ms for row in rows], dtype=np.float64)
    solved = _solve(columns, ms)
    if solved is None:
        raise StoreError(
            f"these {len(rows)} cells do not determine the three terms of a cost model",
            hint="measure at least two depths and two sizes, and three cells",
        )
    terms, residuals = solved
    mean_depth = _solve([*columns[:2], columns[2] + columns[1] ** 2 / 2], ms)
    return CostModel(
        a_ms=float(terms[0]),
        b_ms=float(terms[1]),
        c_ms=float(terms[2]),
        r2=_r2(residuals, ms),
        r2_mean_depth=None if mean_depth is None else _r2(mean_depth[1], ms),
        residuals_pct=tuple(float(100 * value) for value in residuals),
    )


def _only(what: str, values: set[int]) -> str:
    return f"one {what} ({next(iter(values)):,})" if values else f"no {what}"


def _solve(
    columns: Sequence[NDArray[np.float64]], ms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Coefficients and relative residuals; None where the columns are dependent."""
    system = np.column_stack(columns) / ms[:, None]
    # The columns differ by many powers of ten; scaled, their rank can be told from rounding.
    lengths = np.linalg.norm(system, axis=0)
    scaled, _, rank, _ = np.linalg.lstsq(system / lengths, np.ones(len(ms)), rcond=_RANK)
    if rank < len(columns):
        return None
    terms: NDArray[np.float64] = scaled / lengths
    return terms, system @ terms - 1


def _r2(residuals: NDArray[np.float64], ms: NDArray[np.float64]) -> float:
    # The constant k that minimises the sum of (k / T - 1)^2.
    constant = (1 / ms).sum() / (1 / ms**2).sum()
    total = float(((constant / ms - 1) ** 2).sum())
    # Equal times everywhere: nothing to explain, and any fit that is exact explains it.
    return 1 - float((residuals**2).sum()) / total if total > 1e-18 else 1.0

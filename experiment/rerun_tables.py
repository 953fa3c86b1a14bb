"""How the claims of an archive and their values here are written."""

from __future__ import annotations

from experiment.rerun import Judged, Rerun

HEADS = ("claim", "claimed", "here", "tolerance", "")
NOTHING = "-"


def render(rerun: Rerun) -> str:
    """One line a claim: its value over the replayed steps, here, tolerance and verdict."""
    rows = [HEADS, *map(_cells, rerun.judged)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, claimed, here, tolerance, verdict in rows:
        cells = (
            name.ljust(widths[0]),
            claimed.rjust(widths[1]),
            here.rjust(widths[2]),
            tolerance.ljust(widths[3]),
            verdict,
        )
        lines.append("  ".join(cells).rstrip())
    outside = sum(item.holds is False for item in rerun.judged)
    judged = sum(item.holds is not None for item in rerun.judged)
    lines += [
        "",
        f"{rerun.steps} of {rerun.steps_in_all} steps replayed; claimed: the archive's values over "
        "these steps.",
        f"{judged - outside} of {judged} claims that are judged on another machine are within "
        "their tolerance.",
        *(
            [f"The run here was unsteady ({rerun.unsteady}): try again on a machine that is idle."]
            if rerun.unsteady
            else []
        ),
        f"Results: {rerun.folder}",
    ]
    return "\n".join(lines) + "\n"


def _cells(item: Judged) -> tuple[str, str, str, str, str]:
    claim = item.claim
    if item.holds is None:
        tolerance, verdict = NOTHING, "not judged: a time"
    else:
        tolerance = (
            f"±{100 * claim.tolerance:g} %" if claim.is_relative else f"±{claim.tolerance:.4g}"
        )
        tolerance = tolerance if claim.tolerance else "equal"
        verdict = "within" if item.holds else "OUTSIDE"
        if item.here is None:
            verdict = "OUTSIDE: not measured here"
    return claim.key, _number(claim.expected), _number(item.here), tolerance, verdict


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.2f}"

"""The table of claims, their values here, and the verdicts."""

from __future__ import annotations

from pathlib import Path

from experiment.claims import Claim
from experiment.rerun import Judged, Rerun
from experiment.rerun_tables import render


def claim(key: str, expected: float, tolerance: float, *, relative: bool = False) -> Claim:
    return Claim(key, "s", "SELECT 1", expected, tolerance, relative, True, "because")


def test_one_line_a_claim_and_what_holds() -> None:
    judged = (
        Judged(claim("speedup", 5.4512, 0.3, relative=True), 6.0, True),
        Judged(claim("fidelity", 1.0005, 0.02), 1.05, False),
        Judged(claim("steps_measured", 1200, 0), 1200, True),
        Judged(claim("noise", 1.0, 0.02), None, False),
        Judged(claim("fake_prefill_s", 15.125, 0.25, relative=True), 99.5, None),
    )
    made = Rerun(Path("results/x"), 6, 23, judged, "spread 9.9 %")
    assert render(made).splitlines() == [
        "claim           claimed    here  tolerance",
        "speedup          5.4512  6.0000  ±30 %      within",
        "fidelity         1.0005  1.0500  ±0.02      OUTSIDE",
        "steps_measured    1,200   1,200  equal      within",
        "noise            1.0000       -  ±0.02      OUTSIDE: not measured here",
        "fake_prefill_s    15.12   99.50  -          not judged: a time",
        "",
        "6 of 23 steps replayed; claimed: the archive's values over these steps.",
        "2 of 4 claims that are judged on another machine are within their tolerance.",
        "The run here was unsteady (spread 9.9 %): try again on a machine that is idle.",
        "Results: results/x",
    ]

"""The short runs before others: what they measure, and what is reckoned from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from canned_steps import step, trace
from fake_sweep import TAIL, FakeEngine, law_ms, settings_in

from experiment.errors import SettingsError
from experiment.probe import probe_settings, reckoned, trace_costs
from experiment.progress import SilentProgress
from experiment.trace import Step


def rows(engine: FakeEngine) -> list[tuple[int, int | None, tuple[int, int] | None]]:
    ((_, _, steps),) = engine.runs
    return [
        (s.depth, s.new_tokens, s.screenshot and (s.screenshot.width, s.screenshot.height))
        for s in steps
    ]


def probed(engine: FakeEngine, folder: Path, *steps: Step) -> None:
    trace_costs(engine, settings_in(folder), steps, SilentProgress())


@pytest.mark.parametrize(
    ("deepest", "fake"),
    [(0, []), (1024, []), (1025, [1025]), (65_536, [65_536]), (200_000, [65_536])],
)
def test_a_trace_is_probed_as_deep_as_it_goes(
    tmp_path: Path, deepest: int, fake: list[int]
) -> None:
    engine = FakeEngine()
    probed(engine, tmp_path, step(depth=0), step(number=1, depth=deepest))
    assert rows(engine) == [
        *((256, 16, None), (256, 256, None), (1024, 16, None), (1024, 256, None)),
        *((depth, 16, None) for depth in fake),
    ]
    ((name, settings, _),) = engine.runs
    assert name == "trace-probe"
    assert settings == probe_settings(settings_in(tmp_path))


def test_screenshots_are_probed_by_size(tmp_path: Path) -> None:
    engine = FakeEngine()
    probed(engine, tmp_path, step(shot=(960, 540)), step(number=1, new=None, shot=(64, 32)))
    assert rows(engine)[-2:] == [(256, None, (64, 32)), (256, None, (960, 540))]


def test_a_run_of_a_trace_is_reckoned(tmp_path: Path) -> None:
    steps = [step(depth=2000, new=100), step(number=1, depth=3_000_000)]
    costs, made = reckoned(FakeEngine(), settings_in(tmp_path), trace(*steps), SilentProgress())
    assert costs.sizes.tail == TAIL
    # The deep one needs more memory than the 16 GiB there are: it takes no part, and is told.
    assert list(made.steps) == [("a", 0)]
    at_least = law_ms(100 + TAIL, 2000) / 1000
    assert 3 * at_least < made["control"].seconds < 3 * (at_least + 0.02)
    assert made.notes[-1].startswith("1 of 2 steps are left out, memory: depth 3,000,000 needs ")
    with pytest.raises(SettingsError, match="no step of the trace can be replayed here"):
        reckoned(FakeEngine(), settings_in(tmp_path / "b"), trace(steps[1]), SilentProgress())

"""The data of the project: named by hash, made by its generator, true to its README."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from experiment.paths import ROOT
from experiment.trace import Step, Trace, load_trace
from experiment.words import load_words

DATA = ROOT / "data"
IMAGE_TOKENS = {(320, 180): 10 * 6, (640, 360): 20 * 11, (960, 540): 30 * 17}
NOT_DATA = {"README.md", "generate.py", "registry.txt"}


def default_trace() -> Trace:
    return load_trace(DATA / "traces" / "computer-use.jsonl")


def image_tokens(step: Step) -> int:
    shot = step.screenshot
    return IMAGE_TOKENS[shot.width, shot.height] if shot else 0


def new_tokens(step: Step) -> int:
    """A word of text counts as four thirds of a token."""
    text = step.new_tokens or round(len((step.new_text or "").split()) * 4 / 3)
    return text + image_tokens(step)


def tasks(trace: Trace) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in trace.steps:
        found.setdefault(step.task_id, []).append(step)
    return found


def test_registry_names_each_file_with_its_hash() -> None:
    lines = (DATA / "registry.txt").read_text(encoding="ascii").splitlines()
    registered = dict(line.split(" ") for line in lines)
    files = {
        path.relative_to(DATA).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*")
        if path.is_file() and path.name not in NOT_DATA and "__pycache__" not in path.parts
    }
    assert registered == files
    assert list(registered) == sorted(registered)


def test_generator_reproduces_the_committed_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DATA / "generate.py", tmp_path], check=True)
    lines = (DATA / "registry.txt").read_text(encoding="ascii").splitlines()
    traces = [line.split(" ")[0] for line in lines if line.startswith("traces/")]
    for name in [*traces, "registry.txt"]:
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), name


def test_readme_names_each_file() -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    for line in (DATA / "registry.txt").read_text(encoding="ascii").splitlines():
        assert f"`{line.split(' ')[0]}`" in readme


def test_default_trace_is_what_a_run_is_planned_for() -> None:
    trace = default_trace()
    assert len(tasks(trace)) >= 3
    assert len(trace.steps) >= 18
    depths = [step.depth for step in trace.steps]
    assert 300 <= min(depths) <= 350
    assert 7_500 <= max(depths) <= 8_000
    assert {step.depth_unit for step in trace.steps} == {"tokens"}
    # `full` prefills this many tokens a round, fake and restored new_tokens() a round.
    assert sum(step.depth + new_tokens(step) for step in trace.steps) <= 75_000
    sizes = {(s.screenshot.width, s.screenshot.height) for s in trace.steps if s.screenshot}
    assert sizes == {(640, 360), (960, 540)}


def test_default_trace_holds_every_form_of_new_content() -> None:
    forms = {
        ("text" if step.new_text else "tokens", step.screenshot is not None)
        for step in default_trace().steps
    }
    assert forms == {("text", True), ("tokens", True), ("text", False), ("tokens", False)}
    for task in tasks(default_trace()).values():
        assert task[0].new_text
        assert [step.step for step in task] == list(range(len(task)))


@pytest.mark.parametrize("name", ["computer-use", "six-steps", "smoke"])
def test_depths_follow_from_appending_and_evicting(name: str) -> None:
    """What a step leaves behind, plus its answer, less whole screenshots, is the next depth."""
    for task in tasks(load_trace(DATA / "traces" / f"{name}.jsonl")).values():
        held = 0
        for step, following in pairwise(task):
            held += step.screenshot is not None
            assert step.baseline.decode_s is not None
            answer = round(step.baseline.decode_s * 25)
            evicted = step.depth + new_tokens(step) + answer - following.depth
            if evicted:
                size = next(image_tokens(s) for s in task if s.screenshot)
                assert evicted == (held - 3) * size
                held = 3


def test_depth_falls_by_eviction_and_grows_again() -> None:
    falls = 0
    for task in tasks(default_trace()).values():
        depths = [step.depth for step in task]
        for place, (before, after) in enumerate(pairwise(depths)):
            if after < before:
                falls += 1
                assert depths[place + 2] > after
    assert falls == 2


def test_baseline_times_follow_the_readme_rule() -> None:
    for step in default_trace().steps:
        prefill_s = (step.depth + new_tokens(step)) / 1500 + image_tokens(step) / 900
        assert step.baseline.prefill_s == pytest.approx(prefill_s, abs=0.0006)
        assert step.baseline.exec_s is not None
        assert 0.1 <= step.baseline.exec_s <= 2.5


def test_smoke_trace_is_four_short_steps() -> None:
    steps = load_trace(DATA / "traces" / "smoke.jsonl").steps
    assert len(steps) == 4
    assert 1_400 <= max(step.depth for step in steps) <= 1_500
    assert sum(step.screenshot is None for step in steps) == 1
    assert {image_tokens(step) for step in steps} == {0, 220, 510}


def test_six_steps_are_few_tokens_to_the_depth_of_8192() -> None:
    """The full model decodes some 31 tokens a second: `bench` counts on these sizes."""
    steps = load_trace(DATA / "traces" / "six-steps.jsonl").steps
    assert len(steps) == 6
    depths = [step.depth for step in steps]
    assert depths == sorted(depths)
    assert 300 <= depths[0] <= 400
    assert depths[1] < 2048 < depths[2]
    assert depths[-1] == 8192
    # The markers around a screenshot and the template's tail come to some 20 tokens a step.
    assert sum(new_tokens(step) for step in steps) + 6 * 20 <= 620
    assert sum(step.screenshot is not None for step in steps) == 4


def test_traces_of_single_depths_hold_text_alone() -> None:
    depths = load_trace(DATA / "traces" / "depths.jsonl").steps
    assert [step.depth for step in depths] == [4096, 8192, 65_536, 262_144]
    (speedup,) = load_trace(DATA / "traces" / "speedup.jsonl").steps
    assert speedup.depth == 32_768
    assert {step.new_tokens for step in depths} == {64}
    assert speedup.new_tokens == 256 - 5
    fills = load_trace(DATA / "traces" / "fills.jsonl").steps
    assert [(step.depth, step.new_tokens) for step in fills] == [(512, 16 - 5), (768, 64)]
    for step in (*depths, speedup, *fills):
        assert step.screenshot is None
        assert step.task_id == f"depth-{step.depth}"


def test_coding_agent_has_long_prefixes_and_small_appends() -> None:
    trace = load_trace(DATA / "traces" / "coding-agent.jsonl")
    assert len(trace.steps) == 56
    assert len(tasks(trace)) == 4
    # Nothing is cached before the first call, and then nothing but text.
    assert [step.depth for step in trace.steps].count(0) == 1
    assert trace.steps[0].depth == 0
    assert not any(step.screenshot for step in trace.steps)
    assert 55_000 <= trace.max_depth <= 60_000
    appended = sorted(new_tokens(step) for step in trace.steps[1:])
    assert appended[len(appended) // 2] < 1000
    assert appended[-1] < 8000
    assert all(
        None not in (step.baseline.prefill_s, step.baseline.decode_s, step.baseline.exec_s)
        for step in trace.steps
    )


def test_coding_agent_appends_until_it_compacts() -> None:
    compacted = 0
    for task in tasks(load_trace(DATA / "traces" / "coding-agent.jsonl")).values():
        assert task[0].depth in (0, 18_000)
        assert task[-1].baseline.exec_s == 0
        for step, following in pairwise(task):
            answer = round((step.baseline.decode_s or 0) * 25)
            left = step.depth + new_tokens(step) + answer
            assert step.baseline.prefill_s == pytest.approx(
                (step.depth + new_tokens(step)) / 1500, abs=0.0006
            )
            if following.depth == left:
                assert left + new_tokens(following) <= 60_000
                continue
            # A summary, and what would not have fitted.
            compacted += 1
            assert following.depth == 18_000
            assert left + new_tokens(following) - 2400 > 60_000
            assert new_tokens(following) > 2400
    assert compacted == 1


def test_words_are_different_short_lower_case_ascii() -> None:
    words = load_words()
    assert len(words) == 800
    assert list(words) == sorted(set(words))
    for word in words:
        assert word.isascii()
        assert word.isalpha()
        assert word.islower()
        assert 3 <= len(word) <= 10

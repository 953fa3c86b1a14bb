"""What a request sends for each variant, what is kept of it, and the load meanwhile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from fake_answers import DEPTH, QUIET, STEP, VARIANTS, WALL_MS, asker

from experiment.asking import Answer
from experiment.client import Prompt
from experiment.errors import PrefixError, RequestRefused, ServerError, TraceError
from experiment.records import Fill, Variant


@pytest.mark.parametrize(
    ("variant", "fields"),
    [
        ("fake", {"n_fake_cached": DEPTH, "fake_fill": "zero"}),
        ("control", {"n_fake_cached": DEPTH, "fake_fill": "zero"}),
        ("restored", {"n_state_cached": DEPTH}),
        ("full", {"n_fake_cached": 0}),
    ],
)
def test_the_request_names_its_variant_and_nothing_that_would_disturb_it(
    tmp_path: Path, variant: Variant, fields: dict[str, object]
) -> None:
    made, client, _ = asker(tmp_path, {}, fill="zero")
    made.ask(STEP, variant, 0)
    ((prompt, parameters),) = client.sent
    assert prompt == Prompt("the prompt")
    for name in ("n_fake_cached", "n_state_cached", "fake_fill"):
        assert parameters.get(name) == fields.get(name)
    assert parameters["n_predict"] == 1
    assert parameters["cache_prompt"] is False
    assert "timings" in parameters["response_fields"]
    assert "count_experts" not in parameters


@pytest.mark.parametrize("fill", ["zero", "tile"])
def test_control_is_asked_exactly_like_fake(tmp_path: Path, fill: Fill) -> None:
    made, client, _ = asker(tmp_path, {}, fill=fill)
    made.ask(STEP, "fake", 0)
    made.ask(STEP, "control", 0)
    assert client.sent[0] == client.sent[1]
    assert client.sent[0][1]["fake_fill"] == fill


@pytest.mark.parametrize("variant", ["fake", "restored"])
def test_experts_are_asked_for_with_the_same_fields_and_one_more(
    tmp_path: Path, variant: Variant
) -> None:
    made, client, _ = asker(tmp_path, {})
    made.ask(STEP, variant, 0)
    answer = made.ask_experts(STEP, variant)
    (_, plain), (_, counting) = client.sent
    assert counting == {**plain, "count_experts": True}
    assert answer.raw == f"000007_{variant}_experts.json"
    kept = json.loads((tmp_path / answer.raw).read_text())
    assert "round" not in kept
    assert kept["parameters"]["count_experts"] is True


def test_request_and_answer_are_kept_but_not_the_prompt(tmp_path: Path) -> None:
    prompt = Prompt("pröm<m>", (b"png",), (5, 6, 7))
    body = {"timings": {"prompt_n": 1}, "content": "x"}
    made, client, _ = asker(tmp_path, body, prompt=prompt)
    answer = made.ask(STEP, "fake", 2)
    assert answer.raw == "000007_fake_2.json"
    kept = json.loads((tmp_path / answer.raw).read_text(encoding="utf-8"))
    assert kept == {
        "task_id": "t",
        "step": 3,
        "variant": "fake",
        "round": 2,
        "prompt": {
            "tokens": {"sha256": hashlib.sha256(b"[5, 6, 7]").hexdigest(), "count": 3},
            "sha256": hashlib.sha256("pröm<m>".encode()).hexdigest(),
            "characters": 7,
            "images": [{"sha256": hashlib.sha256(b"png").hexdigest(), "bytes": 3}],
        },
        "parameters": client.sent[0][1],
        "response": body,
        "wall_ms": WALL_MS,
        "load": asdict(QUIET),
    }


def test_each_request_has_a_file_of_its_own(tmp_path: Path) -> None:
    made, _, _ = asker(tmp_path, {})
    answers: list[Answer] = [
        made.ask(STEP, variant, number) for variant in VARIANTS for number in (-1, 0, 1)
    ]
    answers += [made.ask_experts(STEP, variant) for variant in ("fake", "restored")]
    names = {answer.raw for answer in answers}
    assert len(names) == 4 * 3 + 2
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_load_is_sampled_right_before_and_after(tmp_path: Path) -> None:
    made, _, meter = asker(tmp_path, {})
    assert made.ask(STEP, "fake", 0).load == QUIET
    assert meter.sampled == [0, 1]


FAILURES: list[tuple[Exception | None, Exception | None]] = [
    (PrefixError("too small"), None),
    (TraceError("no picture"), None),
    (None, RequestRefused("no")),
    (None, ServerError("gone")),
]


@pytest.mark.parametrize(("of_prompt", "of_client"), FAILURES)
def test_what_goes_wrong_is_raised_and_leaves_no_file(
    tmp_path: Path, of_prompt: Exception | None, of_client: Exception | None
) -> None:
    made, client, _ = asker(tmp_path, of_client or {}, prompt=of_prompt or Prompt("x"))
    error = of_prompt or of_client
    assert error is not None
    for ask in (lambda: made.ask(STEP, "fake", 0), lambda: made.ask_experts(STEP, "fake")):
        with pytest.raises(type(error)) as caught:
            ask()
        assert caught.value is error
    assert len(client.sent) == (0 if of_prompt else 2)
    assert list(tmp_path.iterdir()) == []

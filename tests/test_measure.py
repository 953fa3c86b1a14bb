"""What one request becomes: the fields it sends, the row it gives, and when it must not count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from experiment.client import Prompt, Reply
from experiment.errors import PrefixError, RequestRefused, ServerError, TraceError
from experiment.measure import Expected, Judge, Measurer
from experiment.prefix import StepPrompt
from experiment.records import Measurement, Variant
from experiment.schedule import Planned
from experiment.trace import Baseline, Step

DEPTH, NEW, N_KV = 1000, 40, 1280
KINDS: dict[Variant, str] = {"fake": "fake", "restored": "state", "full": "none"}
STEP = Step("t", 3, DEPTH, "tokens", None, 20, None, Baseline(), line=7)
VARIANTS: list[Variant] = ["fake", "restored", "full"]


def timings(variant: Variant, **changes: object) -> dict[str, Any]:
    """What the patched server answers when all is well; ``prefix__x`` changes the prefix's x."""
    cached = 0 if variant == "full" else DEPTH
    made: dict[str, Any] = {
        "cache_n": cached,
        "prompt_n": DEPTH + NEW - cached,
        "prompt_ms": 70.5,
        "encode_ms": 20.25,
        "prefix": {
            "kind": KINDS[variant],
            "n": cached,
            "install_ms": 1.5,
            "size_bytes": 4096,
            "prime_ms": 0.0,
            "pos_min": 0,
            "pos_max": DEPTH - 1,
            "n_kv": N_KV,
        },
    }
    for name, value in changes.items():
        inside, _, field = name.partition("__")
        if field:
            made[inside][field] = value
        else:
            made[name] = value
    return made


class FakeClient:
    """Answers with what ``answer`` returns for the parameters, or raises it."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any] | Exception]) -> None:
        self.answer = answer
        self.sent: list[tuple[Prompt, dict[str, Any]]] = []

    def complete(self, prompt: Prompt, **parameters: Any) -> Reply:
        self.sent.append((prompt, parameters))
        answer = self.answer(parameters)
        if isinstance(answer, Exception):
            raise answer
        return Reply(parameters, answer, 81.75)


def measured(
    folder: Path,
    variant: Variant,
    answer: dict[str, Any] | Exception,
    *,
    number: int = 0,
    judge: Judge | None = None,
    prompt: Prompt | Exception = Prompt("the prompt"),  # noqa: B008 (frozen)
) -> tuple[Measurement, FakeClient]:
    def prompt_of(step: Step) -> StepPrompt:
        assert step is STEP
        if isinstance(prompt, Exception):
            raise prompt
        return StepPrompt(prompt, DEPTH, 20)

    client = FakeClient(lambda _: answer)
    measurer = Measurer(client, prompt_of, folder, judge or Judge())  # type: ignore[arg-type]
    return measurer.measure(Planned(STEP, variant, number, 4)), client


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_good_answer_becomes_a_row(tmp_path: Path, variant: Variant) -> None:
    before = datetime.now(UTC)
    row, _ = measured(tmp_path, variant, {"timings": timings(variant)}, number=2)
    assert before <= row.started_at <= datetime.now(UTC)
    cached = 0 if variant == "full" else DEPTH
    assert row == Measurement(
        task_id="t",
        step=3,
        variant=variant,
        round=2,
        depth=DEPTH,
        status="ok",
        started_at=row.started_at,
        position_in_round=4,
        cache_n=cached,
        prompt_n=DEPTH + NEW - cached,
        prompt_ms=70.5,
        install_ms=1.5,
        encode_ms=20.25,
        wall_ms=81.75,
        prime_ms=0.0,
        size_bytes=4096,
        pos_min=0,
        pos_max=DEPTH - 1,
        n_kv=N_KV,
        error=None,
        raw=f"000007_{variant}_2.json",
    )


@pytest.mark.parametrize(
    ("variant", "field", "value"),
    [
        ("fake", "n_fake_cached", DEPTH),
        ("restored", "n_state_cached", DEPTH),
        ("full", "n_fake_cached", 0),
    ],
)
def test_the_request_names_its_variant_and_nothing_that_would_disturb_it(
    tmp_path: Path, variant: Variant, field: str, value: int
) -> None:
    _, client = measured(tmp_path, variant, {"timings": timings(variant)})
    ((prompt, parameters),) = client.sent
    assert prompt == Prompt("the prompt")
    assert {name: parameters[name] for name in parameters if name.endswith("_cached")} == {
        field: value
    }
    assert parameters["n_predict"] == 1
    assert parameters["cache_prompt"] is False
    assert "timings" in parameters["response_fields"]


def test_request_and_answer_are_kept_but_not_the_prompt(tmp_path: Path) -> None:
    prompt = Prompt("pröm<m>", (b"png",))
    answer = {"timings": timings("fake"), "content": "x"}
    row, client = measured(tmp_path, "fake", answer, prompt=prompt)
    assert row.raw is not None
    kept = json.loads((tmp_path / row.raw).read_text(encoding="utf-8"))
    assert kept == {
        "task_id": "t",
        "step": 3,
        "variant": "fake",
        "round": 0,
        "prompt": {
            "sha256": hashlib.sha256("pröm<m>".encode()).hexdigest(),
            "characters": 7,
            "images": [{"sha256": hashlib.sha256(b"png").hexdigest(), "bytes": 3}],
        },
        "parameters": client.sent[0][1],
        "response": answer,
        "wall_ms": 81.75,
    }


def test_each_request_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = {
        measured(tmp_path, variant, {"timings": timings(variant)}, number=number)[0].raw
        for variant in VARIANTS
        for number in (-1, 0, 1)
    }
    assert len(names) == 9
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_warm_up_is_marked_as_one(tmp_path: Path) -> None:
    row, _ = measured(tmp_path, "fake", {"timings": timings("fake")}, number=-1)
    assert (row.status, row.round, row.error) == ("warmup", -1, None)


@pytest.mark.parametrize("error", [PrefixError, TraceError])
def test_a_step_that_cannot_be_asked_for_is_refused(
    tmp_path: Path, error: type[PrefixError | TraceError]
) -> None:
    row, client = measured(tmp_path, "fake", {}, prompt=error("too small", where="x", hint="y"))
    assert (row.status, row.error, row.raw) == ("refused", "too small", None)
    assert (row.prompt_ms, row.cache_n) == (None, None)
    assert client.sent == []
    assert list(tmp_path.iterdir()) == []


def test_what_the_server_refuses_is_refused_with_its_sentence(tmp_path: Path) -> None:
    sentence = "HTTP 400 from /completion: n_fake_cached ends inside an image"
    row, _ = measured(tmp_path, "fake", RequestRefused(sentence))
    assert (row.status, row.error, row.depth, row.position_in_round) == (
        *("refused", sentence),
        *(DEPTH, 4),
    )


@pytest.mark.parametrize("answer", [ServerError("gone"), {}, {"timings": None}])
def test_no_answer_is_no_measurement(tmp_path: Path, answer: dict[str, Any] | Exception) -> None:
    with pytest.raises(ServerError):
        measured(tmp_path, "fake", answer)


BROKEN: list[tuple[Variant, dict[str, object], str]] = [
    ("fake", {"cache_n": DEPTH - 1}, f"cache_n is {DEPTH - 1}, not {DEPTH}"),
    ("fake", {"cache_n": DEPTH + 1}, f"cache_n is {DEPTH + 1}, not {DEPTH}"),
    ("restored", {"cache_n": 0}, f"cache_n is 0, not {DEPTH}"),
    ("restored", {"cache_n": None}, f"cache_n is None, not {DEPTH}"),
    ("full", {"cache_n": 5}, "cache_n is 5, not 0"),
    ("fake", {"prefix__kind": "state"}, "prefix kind is 'state', not 'fake'"),
    ("restored", {"prefix__kind": "fake"}, "prefix kind is 'fake', not 'state'"),
    ("full", {"prefix__kind": "fake"}, "prefix kind is 'fake', not 'none'"),
    ("fake", {"prompt_n": 0}, "prompt_n is 0"),
    ("full", {"prompt_n": DEPTH}, f"prompt_n is {DEPTH}"),
    ("fake", {"prefix__n_kv": DEPTH + NEW - 1}, f"read {DEPTH + NEW - 1} KV columns"),
    ("full", {"prefix__n_kv": 256}, "read 256 KV columns"),
    ("fake", {"prefix": None}, "did not report how the prefix was put in place"),
]


@pytest.mark.parametrize(("variant", "changes", "reason"), BROKEN)
def test_an_answer_that_breaks_a_rule_is_invalid_and_kept_whole(
    tmp_path: Path, variant: Variant, changes: dict[str, object], reason: str
) -> None:
    answer = timings(variant, **changes)
    for number in (0, -1):
        row, _ = measured(tmp_path, variant, {"timings": answer}, number=number)
        assert row.status == "invalid"
        assert row.error is not None
        assert reason in row.error
        assert row.cache_n == answer["cache_n"]
        assert row.prompt_n == answer["prompt_n"]
        assert row.prompt_ms == 70.5
        assert row.raw is not None
        assert (tmp_path / row.raw).exists()


def test_an_answer_without_a_prefix_says_that_the_server_may_not_be_patched(tmp_path: Path) -> None:
    bare = {name: value for name, value in timings("fake").items() if name != "prefix"}
    row, _ = measured(tmp_path, "fake", {"timings": bare})
    assert row.status == "invalid"
    assert row.error is not None
    assert "is it patched?" in row.error


@pytest.mark.parametrize(
    "lacking",
    [
        ("prompt_n",),
        ("prompt_ms",),
        ("encode_ms",),
        ("prefix", "n_kv"),
        ("prefix", "install_ms"),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("value", ["missing", None])
def test_an_answer_that_lacks_a_figure_is_invalid_and_does_not_stop_the_run(
    tmp_path: Path, lacking: tuple[str, ...], value: str | None
) -> None:
    answer = timings("fake")
    place = answer
    for name in lacking[:-1]:
        place = place[name]
    if value is None:
        place[lacking[-1]] = None
    else:
        del place[lacking[-1]]
    row, _ = measured(tmp_path, "fake", {"timings": answer})
    assert row.status == "invalid"
    assert row.error is not None
    assert lacking[-1] in row.error


def test_the_variants_of_a_step_must_agree() -> None:
    judge = Judge()
    for _ in range(2):
        for variant in VARIANTS:
            assert judge.problem(STEP, variant, timings(variant)) is None


@pytest.mark.parametrize("first", VARIANTS)
@pytest.mark.parametrize("second", VARIANTS)
def test_another_number_of_new_tokens_does_not_count(first: Variant, second: Variant) -> None:
    judge = Judge()
    assert judge.problem(STEP, first, timings(first)) is None
    other = timings(second)
    other["prompt_n"] += 1
    assert judge.problem(STEP, second, other) == (
        f"{NEW + 1} new tokens, but {NEW} in the step's other measurements"
    )
    assert judge.problem(STEP, second, timings(second)) is None  # it has unlearnt nothing


@pytest.mark.parametrize("second", VARIANTS)
def test_another_number_of_kv_columns_does_not_count(second: Variant) -> None:
    judge = Judge()
    assert judge.problem(STEP, "restored", timings("restored")) is None
    other = timings(second, prefix__n_kv=N_KV + 256)
    assert judge.problem(STEP, second, other) == (
        f"n_kv is {N_KV + 256}, but {N_KV} in the step's other measurements"
    )


def test_an_answer_that_must_not_count_teaches_nothing() -> None:
    for variant, changes, _ in BROKEN:
        judge = Judge()
        assert judge.problem(STEP, variant, timings(variant, **changes)) is not None
        good = timings("fake", prompt_n=NEW + 3)
        assert judge.problem(STEP, "fake", good) is None, changes


def test_steps_are_judged_apart() -> None:
    judge = Judge()
    assert judge.problem(STEP, "fake", timings("fake")) is None
    for other in (Step("t", 4, DEPTH, *(STEP_REST)), Step("u", 3, DEPTH, *(STEP_REST))):
        assert judge.problem(other, "fake", timings("fake", prompt_n=NEW + 9)) is None


STEP_REST: tuple[Any, ...] = ("tokens", None, 20, None, Baseline(), 8)


def test_what_was_measured_before_a_resume_binds_what_comes_after() -> None:
    judge = Judge()
    judge.learn("t", 3, Expected(NEW, N_KV))
    assert judge.problem(STEP, "full", timings("full")) is None
    assert judge.problem(STEP, "fake", timings("fake", prompt_n=NEW + 1)) is not None

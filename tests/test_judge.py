"""When an answer must not count: its own fields, and those of the step's other variants."""

from __future__ import annotations

import tracemalloc

import pytest
from fake_answers import (
    DEPTH,
    FULL_UBATCHES,
    N_KV,
    NEW,
    STEP,
    UBATCHES,
    VARIANTS,
    step,
    timings,
    ubatches,
)

from experiment.judge import Expected, Judge, Ubatches, read_ubatches
from experiment.records import Fill, Variant

CACHED: list[Variant] = ["fake", "control", "restored"]


def judge(fill: Fill = "tile") -> Judge:
    return Judge(fill)


BROKEN: list[tuple[Variant, dict[str, object], str]] = [
    ("fake", {"cache_n": DEPTH - 1}, f"cache_n is {DEPTH - 1}, not {DEPTH}"),
    ("fake", {"cache_n": DEPTH + 1}, f"cache_n is {DEPTH + 1}, not {DEPTH}"),
    ("control", {"cache_n": 0}, f"cache_n is 0, not {DEPTH}"),
    ("restored", {"cache_n": 0}, f"cache_n is 0, not {DEPTH}"),
    ("restored", {"cache_n": None}, f"cache_n is None, not {DEPTH}"),
    ("full", {"cache_n": 5}, "cache_n is 5, not 0"),
    ("fake", {"prefix__kind": "state"}, "prefix kind is 'state', not 'fake'"),
    ("control", {"prefix__kind": "state"}, "prefix kind is 'state', not 'fake'"),
    ("restored", {"prefix__kind": "fake"}, "prefix kind is 'fake', not 'state'"),
    ("full", {"prefix__kind": "fake"}, "prefix kind is 'fake', not 'none'"),
    ("fake", {"prefix__fill": "zero"}, "the prefix's fill is 'zero', not 'tile'"),
    ("control", {"prefix__fill": "none"}, "the prefix's fill is 'none', not 'tile'"),
    ("fake", {"prefix__fill": None}, "the prefix's fill is None, not 'tile'"),
    ("fake", {"prompt_n": 0}, "prompt_n is 0"),
    ("full", {"prompt_n": DEPTH}, f"prompt_n is {DEPTH}"),
    ("fake", {"prefix__n_kv": DEPTH + NEW - 1}, f"read {DEPTH + NEW - 1} KV columns"),
    ("full", {"prefix__n_kv": 256}, "read 256 KV columns"),
    ("fake", {"prefix": None}, "did not report how the prefix was put in place; is it patched?"),
    ("fake", {"prefix__ubatches": None}, "the server did not report the ubatches"),
    ("full", {"prefix__ubatches": []}, "the server did not report the ubatches"),
    (
        "fake",
        {"prefix__ubatches": [{"n_tokens": NEW, "n_kv": N_KV}]},
        "the server did not report the ubatches",
    ),
    (
        "restored",
        {"prefix__ubatches": ubatches((512, 1536), (87, N_KV))},
        f"ubatches of {NEW - 1} tokens, but prompt_n {NEW}",
    ),
    (
        "full",
        {"prefix__ubatches": UBATCHES},
        f"ubatches of {NEW} tokens, but prompt_n {DEPTH + NEW}",
    ),
    (
        "control",
        {"prefix__ubatches": ubatches((512, 1792), (88, 1536))},
        "the last ubatch read 1536 KV columns, n_kv is 1792",
    ),
    (
        "full",
        {"prefix__ubatches": [*FULL_UBATCHES[:-1], *ubatches((64, 2048))]},
        "the last ubatch read 2048 KV columns, n_kv is 1792",
    ),
]


@pytest.mark.parametrize(("variant", "changes", "reason"), BROKEN)
def test_an_answer_that_breaks_a_rule_does_not_count(
    variant: Variant, changes: dict[str, object], reason: str
) -> None:
    problem = judge().problem(STEP, variant, timings(variant, **changes))
    assert problem is not None
    assert reason in problem


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
@pytest.mark.parametrize("value", ["missing", None, -1, float("nan"), "7"])
def test_an_answer_that_lacks_a_figure_does_not_count(
    lacking: tuple[str, ...], value: object
) -> None:
    answer = timings("fake")
    place = answer
    for name in lacking[:-1]:
        place = place[name]
    if value == "missing":
        del place[lacking[-1]]
    else:
        place[lacking[-1]] = value
    problem = judge().problem(STEP, "fake", answer)
    shown = None if value == "missing" else value
    assert problem == f"{lacking[-1]} is {shown}, which is no figure"


@pytest.mark.parametrize("fill", ["zero", "tile"])
def test_the_fill_must_be_the_one_that_was_asked_for(fill: Fill) -> None:
    other = "zero" if fill == "tile" else "tile"
    for variant in ("fake", "control"):
        assert judge(fill).problem(STEP, variant, timings(variant, prefix__fill=fill)) is None
        problem = judge(fill).problem(STEP, variant, timings(variant, prefix__fill=other))
        assert problem == f"the prefix's fill is {other!r}, not {fill!r}"
    for variant in ("restored", "full"):
        assert judge(fill).problem(STEP, variant, timings(variant)) is None


def test_the_variants_of_a_step_must_agree() -> None:
    made = judge()
    for _ in range(2):
        for variant in VARIANTS:
            assert made.problem(STEP, variant, timings(variant)) is None


@pytest.mark.parametrize("first", VARIANTS)
@pytest.mark.parametrize("second", VARIANTS)
def test_another_number_of_new_tokens_does_not_count(first: Variant, second: Variant) -> None:
    made = judge()
    assert made.problem(STEP, first, timings(first)) is None
    more = FULL_UBATCHES if second == "full" else UBATCHES
    more = [*more[:-1], {**more[-1], "n_tokens": more[-1]["n_tokens"] + 1}]
    other = timings(second, prefix__ubatches=more)
    other["prompt_n"] += 1
    assert made.problem(STEP, second, other) == (
        f"{NEW + 1} new tokens, but {NEW} in the step's other measurements"
    )
    assert made.problem(STEP, second, timings(second)) is None  # it has unlearnt nothing


@pytest.mark.parametrize("second", VARIANTS)
def test_another_number_of_kv_columns_does_not_count(second: Variant) -> None:
    made = judge()
    assert made.problem(STEP, "restored", timings("restored")) is None
    more = FULL_UBATCHES if second == "full" else UBATCHES
    more = [*more[:-1], {**more[-1], "n_kv": N_KV + 256}]
    other = timings(second, prefix__n_kv=N_KV + 256, prefix__ubatches=more)
    assert made.problem(STEP, second, other) == (
        f"n_kv is {N_KV + 256}, but {N_KV} in the step's other measurements"
    )


@pytest.mark.parametrize("first", CACHED)
@pytest.mark.parametrize("second", CACHED)
def test_another_split_into_ubatches_does_not_count(first: Variant, second: Variant) -> None:
    made = judge()
    assert made.problem(STEP, first, timings(first)) is None
    other = timings(second, prefix__ubatches=ubatches((300, 1536), (300, 1792)))
    assert made.problem(STEP, second, other) == (
        "ubatches have tokens [300, 300], but [512, 88] in the step's other measurements"
    )
    other = timings(second, prefix__ubatches=ubatches((512, 1792), (88, 1792)))
    assert made.problem(STEP, second, other) == (
        "ubatches read KV columns [1792, 1792], but [1536, 1792] in the step's other measurements"
    )
    assert made.problem(STEP, second, timings(second)) is None


def test_another_graph_counts() -> None:
    made = judge()
    assert made.problem(STEP, "fake", timings("fake")) is None
    other = [{**ubatch, "n_nodes": 701} for ubatch in UBATCHES]
    assert made.problem(STEP, "restored", timings("restored", prefix__ubatches=other)) is None


def test_the_ubatches_of_full_are_its_own() -> None:
    made = judge()
    # First, and it leaves what the others' ubatches are to them.
    assert made.problem(STEP, "full", timings("full")) is None
    assert made.problem(STEP, "fake", timings("fake")) is None
    assert made.problem(STEP, "full", timings("full")) is None
    other = timings("restored", prefix__ubatches=ubatches((300, 1536), (300, 1792)))
    assert made.problem(STEP, "restored", other) is not None


def test_an_answer_that_must_not_count_teaches_nothing() -> None:
    for variant, changes, _ in BROKEN:
        made = judge()
        assert made.problem(STEP, variant, timings(variant, **changes)) is not None
        good = timings("fake", prompt_n=9, prefix__ubatches=ubatches((9, N_KV)))
        assert made.problem(STEP, "fake", good) is None, changes


def test_steps_are_judged_apart() -> None:
    made = judge()
    assert made.problem(STEP, "fake", timings("fake")) is None
    good = timings("fake", prompt_n=9, prefix__ubatches=ubatches((9, N_KV)))
    for other in (step(4, line=8), step(task_id="u", line=2), step(5, line=5_000)):
        assert made.problem(other, "fake", good) is None


def test_what_was_measured_before_a_resume_binds_what_comes_after() -> None:
    known = Expected(NEW, N_KV, (512, 88), (1536, 1792))
    made = judge()
    made.learn(STEP, known)
    assert made.problem(STEP, "full", timings("full")) is None
    assert made.problem(STEP, "fake", timings("fake")) is None
    other = timings("fake", prefix__ubatches=ubatches((300, 1536), (300, 1792)))
    assert made.problem(STEP, "fake", other) is not None
    fewer = timings("fake", prompt_n=9, prefix__ubatches=ubatches((9, N_KV)))
    assert made.problem(STEP, "fake", fewer) is not None


def test_what_a_judge_remembers_of_a_step_takes_few_bytes() -> None:
    made, number = judge(), 20_000
    answers = [
        timings("fake"),
        timings("fake", prefix__ubatches=ubatches((300, 1536), (300, N_KV))),
    ]
    tracemalloc.start()
    for line in range(1, number + 1):
        assert made.problem(step(line, line=line), "fake", answers[line % 2]) is None
    remembered, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert remembered < 20 * number + 50_000
    for line in (1, 2, number - 1, number):
        assert made.problem(step(line, line=line), "control", timings("control")) == (
            "ubatches have tokens [512, 88], but [300, 300] in the step's other measurements"
            if line % 2
            else None
        )


def test_ubatches_are_read_in_order() -> None:
    assert read_ubatches(timings("fake")) == Ubatches((512, 88), (1536, 1792), (700, 700))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "2",
        [None],
        [{"n_tokens": 1, "n_kv": 256}],
        [{"n_tokens": 1, "n_kv": 256, "n_nodes": 1.5}],
        [{"n_tokens": True, "n_kv": 256, "n_nodes": 1}],
        [{"n_tokens": -1, "n_kv": 256, "n_nodes": 1}],
        [*UBATCHES, {"n_tokens": None, "n_kv": 256, "n_nodes": 1}],
    ],
)
def test_what_is_no_list_of_ubatches_is_not_read(value: object) -> None:
    assert read_ubatches(timings("fake", prefix__ubatches=value)) is None


@pytest.mark.parametrize("found", [{}, {"prefix": None}, {"prefix": {}}])
def test_an_answer_without_ubatches_has_none(found: dict[str, object]) -> None:
    assert read_ubatches(found) is None

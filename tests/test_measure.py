"""What one request becomes: the row it gives, also when it is refused or must not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_answers import (
    DEPTH,
    N_KV,
    NEW,
    QUIET,
    STEP,
    VARIANTS,
    WALL_MS,
    FakeClient,
    asker,
    timings,
)

from experiment.client import Prompt
from experiment.clock import CLOCK
from experiment.errors import PrefixError, RequestRefused, ServerError, TraceError
from experiment.judge import Judge
from experiment.measure import Measurer
from experiment.records import Measurement, Variant
from experiment.schedule import Planned


def measured(
    folder: Path,
    variant: Variant,
    answer: dict[str, Any] | Exception,
    *,
    number: int = 0,
    prompt: Prompt | Exception = Prompt("the prompt"),  # noqa: B008 (frozen)
) -> tuple[Measurement, FakeClient]:
    made, client, _ = asker(folder, answer, prompt=prompt)
    return Measurer(made, Judge("tile")).measure(Planned(STEP, variant, number, 4)), client


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_good_answer_becomes_a_row(tmp_path: Path, variant: Variant) -> None:
    before = CLOCK.now()
    row, _ = measured(tmp_path, variant, {"timings": timings(variant)}, number=2)
    assert before <= row.started_at <= CLOCK.now()
    full, fabricated = variant == "full", variant in ("fake", "control")
    assert row == Measurement(
        task_id="t",
        step=3,
        variant=variant,
        round=2,
        depth=DEPTH,
        status="ok",
        started_at=row.started_at,
        position_in_round=4,
        cache_n=0 if full else DEPTH,
        prompt_n=DEPTH + NEW if full else NEW,
        prompt_ms=70.5,
        install_ms=1.5,
        encode_ms=20.25,
        wall_ms=WALL_MS,
        prime_ms=0.0,
        size_bytes=4096,
        pos_min=0,
        pos_max=DEPTH - 1,
        n_kv=N_KV,
        fake_fill="tile" if fabricated else None,
        fill_ms=2.5 if fabricated else None,
        ubatch_tokens=(512, 512, 512, 64) if full else (512, 88),
        ubatch_n_kv=(512, 1024, 1536, 1792) if full else (1536, 1792),
        graph_nodes=(700,) * (4 if full else 2),
        kv_bytes=1 << 20,
        sampler_ms=0.75,
        other_cores=QUIET.other_cores,
        stolen_cores=QUIET.stolen_cores,
        throttled=QUIET.throttled,
        error=None,
        raw=f"000007_{variant}_2.json",
    )


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_server_refuses_is_refused_with_its_sentence(
    tmp_path: Path, variant: Variant
) -> None:
    sentence = "HTTP 400 from /completion: n_fake_cached ends inside an image"
    row, _ = measured(tmp_path, variant, RequestRefused(sentence))
    assert (row.status, row.error, row.depth, row.position_in_round) == (
        *("refused", sentence),
        *(DEPTH, 4),
    )


@pytest.mark.parametrize("answer", [ServerError("gone"), {}, {"timings": None}])
def test_no_answer_is_no_measurement(tmp_path: Path, answer: dict[str, Any] | Exception) -> None:
    with pytest.raises(ServerError):
        measured(tmp_path, "fake", answer)


@pytest.mark.parametrize("number", [0, -1])
def test_an_answer_that_breaks_a_rule_is_invalid_and_kept_whole(
    tmp_path: Path, number: int
) -> None:
    answer = timings("fake", cache_n=DEPTH - 1)
    row, _ = measured(tmp_path, "fake", {"timings": answer}, number=number)
    assert row.status == "invalid"
    assert row.error == f"cache_n is {DEPTH - 1}, not {DEPTH}"
    assert (row.cache_n, row.prompt_n, row.prompt_ms) == (DEPTH - 1, NEW, 70.5)
    assert (row.ubatch_tokens, row.ubatch_n_kv) == ((512, 88), (1536, 1792))
    assert row.raw is not None
    assert (tmp_path / row.raw).exists()


def test_an_answer_of_a_server_without_patches_is_invalid_and_does_not_stop_the_run(
    tmp_path: Path,
) -> None:
    bare = {name: value for name, value in timings("fake").items() if name != "prefix"}
    row, _ = measured(tmp_path, "fake", {"timings": bare})
    assert row.status == "invalid"
    assert row.error is not None
    assert "is it patched?" in row.error
    assert (row.n_kv, row.fake_fill, row.ubatch_tokens) == (None, None, None)


@pytest.mark.parametrize("fill", ["none", "zeros", None, ["tile"]])
def test_a_fill_that_there_is_not_is_told_but_not_recorded(tmp_path: Path, fill: object) -> None:
    row, _ = measured(tmp_path, "control", {"timings": timings("control", prefix__fill=fill)})
    assert row.error == f"the prefix's fill is {fill!r}, not 'tile'"
    assert row.fake_fill is None


def test_the_wrong_fill_is_recorded_as_what_it_was(tmp_path: Path) -> None:
    row, _ = measured(tmp_path, "fake", {"timings": timings("fake", prefix__fill="zero")})
    assert (row.status, row.fake_fill) == ("invalid", "zero")


def test_all_variants_of_a_step_are_judged_together(tmp_path: Path) -> None:
    made, client, _ = asker(tmp_path, {})
    measurer = Measurer(made, Judge("tile"))
    for variant in VARIANTS:
        client.answer = {"timings": timings(variant)}
        assert measurer.measure(Planned(STEP, variant, 0, 0)).status == "ok"
    split = [{"n_tokens": 300, "n_kv": n_kv, "n_nodes": 700} for n_kv in (1536, 1792)]
    client.answer = {"timings": timings("restored", prefix__ubatches=split)}
    row = measurer.measure(Planned(STEP, "restored", 1, 0))
    assert row.error == (
        "ubatches have tokens [300, 300], but [512, 88] in the step's other measurements"
    )
    assert (row.status, row.ubatch_tokens) == ("invalid", (300, 300))

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from canned import canned_run, measurement, run_record
from rich.cells import cell_len

from experiment.compare import load
from experiment.intervals import Interval
from experiment.layout import WIDTH
from experiment.records import StepRecord
from experiment.rows import Comparison, StepRow
from experiment.sentences import answer, verdict
from experiment.store import Store
from experiment.tables import FORMATS, LEGEND, render


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    canned = load(canned_run(tmp_path_factory.mktemp("results") / "run"))
    return replace(canned, folder=Path("results/run"))


# Every figure is worked out in test_compare.py; ± is the longer side of its interval.
TABLE = """\
                         fake restored                 full           arith.       error     encode    install    install
task step     L new n      ms       ms  fake/restored    ms full/fake     ms           %         ms    fake ms   rest. ms
─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
a       1 1,000 100 3 110 ±10  100 ±25 1.0000 ±0.1000 1,100  10.0 n=1    119 +10.0 ±13.7 20.0 ±0.0  10.0 ±0.0  5.00 ±0.00
a       2 3,000 200 2 220 ±20  240 ±10 0.9000 ±0.1000   880  4.00 n=1    198 -10.0 ±9.0  0.00 ±0.00 2.00 ±0.00 6.00 ±0.00
b       1   500   - -   -        -          -             -     -          -     -          -          -          -

all     3       300 5 330 ±30  340 ±35 1.0000 ±0.2000 1,980  6.00        317  -4.2 ±10.3 20.0 ±0.0  12.0 ±0.0  11.0 ±0.0
"""  # noqa: E501


def test_the_table_on_a_terminal(comparison: Comparison) -> None:
    lines = render(comparison, "table").splitlines()
    assert lines[0] == "r1: nano, pin sdist, engine native"
    assert lines[1:9] == TABLE.splitlines()
    assert lines[-1] == "Results: results/run"
    assert max(map(len, lines)) <= WIDTH


def test_the_sentences_answer_by_hand(comparison: Comparison) -> None:
    assert answer(comparison) == (
        "Prefill of only the new tokens at depth L costs 330 ±30 ms in sum over 2 steps: 110 ±10 "
        "ms for 100 new tokens at L = 1,000 (n = 3), 220 ±20 ms for 200 new tokens at L = 3,000 "
        "(n = 2); the median step 1.10 ±0.00 ms a new token.",
        "Against the fallback (restored), fake takes 1.0000 times as long: median of 5 pairs, 95 % "
        "bootstrap interval 0.8000 to 1.1000, fewer than the 6 pairs that a conclusion needs; the "
        "noise floor is 0.0500 (A/A, fake against itself: 1.0000, 0.9500 to 1.0500, 5 pairs). "
        "Putting the prefix in place costs 12.0 ±0.0 ms for fake in sum over 2 steps, 11.0 ±0.0 ms "
        "for restored over 2 steps.",
        "Decoding everything anew (full) takes 6.00 times as long as fake in sum over 2 steps; the "
        "median step 7.00 ±3.00 times (full is measured once in some steps, so the sum has no "
        "interval).",
        "The arithmetic estimate new / prefill_tps(L) is off by -4.2 ±10.3 % in sum over 2 steps; "
        "the median step by +0.0 ±10.0 %, the steps from -10.0 % to +10.0 % (image encoding left "
        "out).",
        "How the rounds ended: 3 rounds: half-width 20.00 % is not within 0.50 %.",
        "The run was unsteady: drift +20.0 %, throttled 7 times, 2 of 2 steps unsteady (spread "
        "4.0 % and 1 outlier in 5 pairs; drift +20.0 %; other processes on 0.25 cores, 0.30 at "
        "most; 0.02 cores stolen, 0.03 at most; throttled 7 times; 2 of 2 steps unsteady).",
    )
    told = " ".join(render(comparison, "table").split())
    for sentence in (*answer(comparison), *comparison.notes, LEGEND):
        assert sentence in told


@pytest.mark.parametrize(
    ("low", "median", "high", "aa", "follows"),
    [
        (0.99, 1.0, 1.01, (0.999, 1.001), "no difference."),
        (1.0, 1.005, 1.01, (0.999, 1.001), "no difference."),  # contains 1, its end
        (1.002, 1.005, 1.01, (0.999, 1.001), "fake is 0.50 % slower."),
        (1.002, 1.005, 1.01, (0.995, 1.001), "no difference."),  # within the noise floor
        (0.98, 0.985, 0.99, (0.99, 1.014), "fake is 1.50 % faster."),
        (0.98, 0.985, 0.99, (0.99, 1.016), "no difference."),
        (0.98, 0.985, 0.99, None, "fake is 1.50 % faster."),
    ],
)
def test_interval_and_noise_floor_give_the_verdict(
    low: float, median: float, high: float, aa: tuple[float, float] | None, follows: str
) -> None:
    noise = None if aa is None else Interval(aa[0], aa[1], 1.0, 90)
    told = verdict(Interval(low, high, median, 100), noise)
    assert told.startswith(f"95 % bootstrap interval {low:.4f} to {high:.4f}; ")
    assert told.endswith(f": {follows}")
    if noise is None:
        assert "the noise floor is not known (A/A, fake against itself, is not measured)" in told
    else:
        floor = max(1 - noise.low, noise.high - 1)
        assert f"the noise floor is {floor:.4f} (A/A, fake against itself: 1.0000, " in told


def test_one_pair_has_no_verdict(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 3)])
        store.record(measurement(prompt_ms=11.0))
        store.record(measurement(variant="restored", prompt_ms=11.0))
    one = load(tmp_path)
    assert (
        "median of 1 pair, too few for an interval; the noise floor is not known"
        in (answer(one)[1])
    )
    text = render(one, "table")
    assert "±" not in text.split("Times are")[0]
    assert "The run was" not in text
    assert "How the rounds ended" not in text


def test_a_run_without_any_figure(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 3)])
        store.record(measurement(status="refused", error="too small"))
    empty = load(tmp_path)
    assert answer(empty) == (
        "No step has a valid measurement of fake: there is nothing to compare.",
    )
    text = render(empty, "table")
    assert "fake: 1 measurement refused, kept out: too small (1)." in text
    assert not re.search(r"\b(None|nan|inf)\b", text)


def test_one_measured_step_is_told_once(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("a", 1, 3)])
        store.record(measurement(prompt_ms=2501.0, prompt_n=4))
    (sentence,) = answer(load(tmp_path))
    assert sentence == (
        "Prefill of only the new tokens at depth L costs 2.50 s in sum over 1 step: 2.50 s for 4 "
        "new tokens at L = 3 (n = 1); the median step 625 ms a new token."
    )


def test_a_long_name_is_cut_and_no_figure_is(comparison: Comparison) -> None:
    wide = replace(
        comparison.steps[0],
        task_id="fill in the very long form of the tax office [draft]" * 2,
        depth=262_144,
        full_prefill_ms=123_456_789.4,
        fake_prefill_ms=1_234_567.4,
        fake_prefill_ms_low=1_234_000.4,
        fake_prefill_ms_high=1_234_600.4,
        restored_prefill_ms=1_234_568.4,
    )
    lines = render(replace(comparison, steps=(wide,)), "table").splitlines()
    row = next(line for line in lines if line.startswith("fill"))
    assert "…" in row
    wanted = ("262,144", "123,456,789", "1,234,567 ±567", "1,234,568", "1.0000 ±0.1000")
    for figure in (*wanted, "+10.0 ±13.7"):
        assert figure in row
    assert row.endswith("5.00 ±0.00")


def test_markdown_has_a_cell_for_every_column(comparison: Comparison) -> None:
    odd = replace(comparison.steps[0], task_id="a|b")
    lines = render(replace(comparison, steps=(odd,)), "md").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.replace("\\|", "").count("|") for line in table} == {16}
    assert table[2].startswith(
        "| a\\|b | 1 | 1,000 | 100 | 3 | 110 ±10 | 100 ±25 | 1.0000 ±0.1000 | 1,100 |"
    )
    assert "- Decoding everything anew" in "\n".join(lines)
    assert lines[-1] == "Results: `results/run`"


def test_csv_has_a_line_a_step_with_full_precision(comparison: Comparison) -> None:
    read = list(csv.DictReader(io.StringIO(render(comparison, "csv"))))
    assert list(read[0]) == [field.name for field in fields(StepRow)]
    assert [row["task_id"] for row in read] == ["a", "a", "b"]
    assert float(read[0]["lm_ratio_median"]) == 1.0
    assert read[2]["fake_prefill_ms"] == ""
    assert (read[0]["ratio_low"], read[0]["ratio_high"]) == ("0.96", "1.1")
    assert read[0]["stability"] == "unsteady: spread 7.0 %, drift +20.0 %"


def test_json_has_everything(comparison: Comparison) -> None:
    read = json.loads(render(comparison, "json"))
    assert set(read) == {field.name for field in fields(Comparison)}
    assert read["folder"] == "results/run"
    assert read["overall"]["speedup"] == 6.0
    assert read["steps"][1]["ratio_min"] == 0.8
    assert read["steps"][2]["speedup"] is None
    assert (read["overall"]["ratio_low"], read["overall"]["aa_high"]) == (0.8, 1.05)
    assert read["stability"]["unsteady_steps"] == 2
    assert [row["step"] for row in read["step_stability"]] == [1, 2]
    assert read["rounds"].startswith("3 rounds")
    assert [row["variant"] for row in read["tasks"]] == ["arithmetic", "fake", "full", "restored"]
    assert read["notes"] == list(comparison.notes)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_ends_its_last_line_once(comparison: Comparison, form: str) -> None:
    text = render(comparison, form)  # type: ignore[arg-type]
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("form", ["table", "md"])
def test_many_steps_are_shown_by_their_first_and_last(comparison: Comparison, form: str) -> None:
    def shown(count: int) -> str:
        steps = tuple(
            replace(comparison.steps[0], task_id="t", step=number) for number in range(count)
        )
        return render(replace(comparison, steps=steps), form)  # type: ignore[arg-type]

    def numbers(text: str) -> list[int]:
        return [int(n) for n in re.findall(r"^(?:\| )?t(?: \|)? +(\d+) ", text, re.MULTILINE)]

    assert numbers(shown(200)) == list(range(200))
    assert "left out" not in shown(200).replace(LEGEND, "").replace("encoding left out", "")
    many = shown(1234)
    assert numbers(many) == [*range(100), *range(1134, 1234)]
    lines = many.splitlines()
    gap = next(i for i, line in enumerate(lines) if "1,034 of 1,234 steps are left out" in line)
    assert "--format=csv has all" in lines[gap]
    assert numbers(lines[gap - 1]) == [99]
    assert numbers(lines[gap + 1]) == [1134]
    assert len(render(replace(comparison, steps=comparison.steps * 100), "csv").splitlines()) == 301


def test_a_wide_name_is_cut_by_its_width_on_the_screen(comparison: Comparison) -> None:
    wide = replace(comparison.steps[0], task_id="文書を開く" * 9)
    lines = render(replace(comparison, steps=(wide,)), "table").splitlines()
    row = next(line for line in lines if line.startswith("文"))
    rule = next(line for line in lines if line.startswith("─"))
    assert cell_len(row) == cell_len(rule) == WIDTH
    assert "…" in row

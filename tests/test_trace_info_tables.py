from __future__ import annotations

import json

import pytest
from canned_costs import COSTS, settings
from canned_steps import FULL_BASELINE, step, trace
from rich.cells import cell_len

from experiment.layout import WIDTH
from experiment.trace import Trace
from experiment.trace_estimate import Estimate, estimate
from experiment.trace_header import TraceHeader
from experiment.trace_info import look_at
from experiment.trace_info_tables import notes, render, sentences

HEADER = TraceHeader(
    "tracelab",
    "claude",
    ("nothing was cached in calls without a count",),
    ("server-side tools put several passes in one.",),
    (("a call that failed", 1200),),
)
STEPS = (
    step("mail", 0, 0, 100, baseline=FULL_BASELINE),
    step("mail", 1, 900, 100, shot=(960, 540), line=2),
    step("shop", 0, 700, 300, line=3),
    step("mail", 2, 500, "x" * 80, line=4),
)


def page(made: Trace, reckoned: Estimate | None = None) -> str:
    return render(look_at(made), "table", reckoned)


def test_the_page() -> None:
    lines = page(trace(*STEPS)).splitlines()
    assert lines[0] == "log.jsonl: 4 steps of 2 tasks"
    assert lines[1].split() == [
        *("steps", "least", "quartile", "median", "quartile", "90", "%", "most", "sum")
    ]
    assert set(lines[2]) == {"─"}
    rows = {line[:37].strip(): line[37:].split() for line in lines[3:7]}
    assert rows["depth L, tokens"] == ["4", "0", "0", "500", "700", "900", "900", "2,100"]
    assert rows["text, bytes (at most so many tokens)"] == ["1", *["80"] * 7]
    assert "mail 3 ▁█▅" in lines
    assert "shop 1 ▆" in lines
    assert lines[-1] == "Trace: folder/log.jsonl"
    assert "a run here" not in "\n".join(lines)


def test_histograms_count_every_step() -> None:
    lines = page(trace(*[step(number=i, depth=1 << i, new=10) for i in range(1, 6)])).splitlines()
    first = lines.index("depth L, tokens steps")
    assert [line.split() for line in lines[first + 1 : first + 6]] == [
        ["2", "to", "3", "1", "█" * 48],
        ["4", "to", "7", "1", "█" * 48],
        ["8", "to", "15", "1", "█" * 48],
        ["16", "to", "31", "1", "█" * 48],
        ["32", "to", "63", "1", "█" * 48],
    ]


def test_sentences() -> None:
    told = sentences(look_at(trace(*STEPS, header=HEADER)))
    # 2,100 of L; new 100 + 606 + 300 + 20, at least 100 + 353 + 300 + 10, at most 1,280.
    assert told[0] == (
        "The cache gives 67.2 % of all prompt tokens (sum of L over L + new; 62.1 % to 73.3 %, "
        "since texts and screenshots are not counted yet)."
    )
    assert told[1] == (
        "Depth falls in 1 of the 2 steps that follow another (50.0 %), as it does where old "
        "content is evicted or compacted; most by 400, from 900 to 500 ('mail' step 2, line 4)."
    )
    assert told[2] == (
        "Screenshots: 1 of 4 steps (25.0 %); 1 of 960x540; 0 files, 1 to be rendered."
    )
    assert told[3] == (
        "Baseline, in sum: prefill 1.0 s in 1 step, decode 2.0 s in 1 step, exec 4.0 s in 1 step; "
        "all of it in 1 of 4 steps."
    )
    assert told[4] == "Imported from tracelab, tokens counted by claude."


def test_sentences_of_a_bare_step() -> None:
    told = sentences(look_at(trace(step(depth=900))))
    assert told == (
        "The cache gives 90.0 % of all prompt tokens (sum of L over L + new).",
        "No step follows another of its task: whether depth falls cannot be told.",
        "No step has a screenshot.",
        "No step tells what it took where it was recorded: there is no baseline.",
    )
    steady = sentences(look_at(trace(step(), step(number=1, depth=1100))))
    assert steady[1] == "Depth never falls within a task (1 pair of steps)."


def test_notes_repeat_the_header() -> None:
    told = notes(look_at(trace(step(), header=HEADER)))
    assert told == (
        "Assumed by the import: nothing was cached in calls without a count.",
        "Warning of the import: server-side tools put several passes in one.",
        "Left out by the import: 1,200 (a call that failed).",
    )


def test_every_anomaly_is_told() -> None:
    steps = [
        step(number=0, depth=0, new=5),
        step(number=1, depth=10, new="again"),
        step(number=2, depth=10, new="again"),
        step(number=3, depth=9000, new=5, unit="positions"),
        step(number=4, depth=9500, new="x" * 80),
        step("b", 0, 9500, new=600, line=9),
        step("b", 1, 9500, new=700, line=10),
    ]
    told = notes(look_at(trace(*steps), context=9570))
    assert [text.split(" (")[0] for text in told] == [
        "1 step has no depth: nothing was cached, so a run measures the whole prompt, as full "
        "alone",
        "2 steps have a depth below 64: a run refuses those below the chat template's head",
        "2 steps have the depth of the step before although that appended something: it was not "
        "kept",
        "1 step has a depth that is more than 4,096 beyond the step before and its content: steps "
        "are missing, or something else filled the cache",
        "1 step has the very content of an earlier step",
        "2 steps have more tokens than the 9,570 cells of the context: a run leaves them out",
        "1 step has perhaps more tokens than the 9,570 cells of the context",
        "1 step has a depth in positions: after screenshots that is less than the KV cells, and a "
        "lower bound",
    ]
    assert told[0].endswith("('a' step 0, line 1).")
    assert told[1].endswith("('a' step 1, line 2; 'a' step 2, line 3).")


def test_more_places_than_are_named() -> None:
    told = notes(look_at(trace(*[step(str(i), 0, 0, line=i + 1) for i in range(1204)])))
    assert told[0].endswith(
        "('0' step 0, line 1; '1' step 0, line 2; '2' step 0, line 3 and 1,201 more)."
    )


def test_the_estimate_is_a_table() -> None:
    made = estimate(STEPS, COSTS, settings())
    lines = page(trace(*STEPS), made).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("a run here"))
    rows = {line.split("  ")[0]: line.split() for line in lines[head + 2 : head + 11]}
    assert list(rows) == [
        *("start", "fake", "control", f"restored (of it {made.prime_s:.1f} s real prefixes)"),
        *("full", "experts", "calibration", "added rounds, until precise", "all"),
    ]
    assert rows["start"] == ["start", "3.0", "s", "2.2", "s", "3.8", "s"]
    assert rows["added rounds, until precise"][-4:] == ["-", "-", "60.0", "s"]
    for note in made.notes:
        assert note[:40] in "\n".join(lines)


def test_json_holds_everything_but_the_steps() -> None:
    made = estimate(STEPS, COSTS, settings())
    value = json.loads(render(look_at(trace(*STEPS, header=HEADER)), "json", made))
    assert value["path"] == "folder/log.jsonl"
    assert value["steps"] == 4
    assert value["depth"]["total"] == 2100
    assert value["tasks"][0] == {"task_id": "mail", "steps": 3, "max_depth": 900, "falls": 1}
    assert value["header"]["assumptions"] == ["nothing was cached in calls without a count"]
    assert value["cache_hit"]["likely"] == pytest.approx(2100 / 3126)
    assert value["estimate"]["seconds"] == pytest.approx(made.seconds)
    assert len(value["estimate"]["parts"]) == 7
    assert "news" not in value
    assert json.loads(render(look_at(trace(step())), "json"))["estimate"] is None


def test_names_from_outside_are_shown_on_one_line() -> None:
    name = "a\N{RIGHT-TO-LEFT OVERRIDE}b" + "x" * 80
    lines = page(
        trace(step(name), step(name, 1, 500), step("日本語のタスク", 0, line=3))
    ).splitlines()
    drawn = [line for line in lines if "█" in line and "x" in line]
    assert len(drawn) == 1
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in drawn[0]
    assert "…" in drawn[0]
    wide = next(line for line in lines if line.startswith("日本語のタスク"))
    assert cell_len(drawn[0].split(" 2 ")[0]) == cell_len(wide.split(" 1 ")[0])


def test_a_long_trace_stays_a_page() -> None:
    steps = [step(f"task {i // 300}", i, 100 + i, line=i + 1) for i in range(30_000)]
    lines = page(trace(*steps)).splitlines()
    assert len(lines) < 80
    assert "… and 80 tasks with fewer steps" in lines
    assert "(of more than 100 steps a column shows the deepest of several)" in lines
    assert all(cell_len(line) <= WIDTH for line in lines)

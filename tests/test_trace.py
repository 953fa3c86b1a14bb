"""Traces: what is read from good rows, and the exact error of each row that is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image

from experiment.errors import TraceError
from experiment.paths import ROOT
from experiment.screenshot import Screenshot, open_screenshot
from experiment.trace import Baseline, _is_plain, _validator, load_trace
from experiment.trace_file import MAX_LINE_BYTES

BAD = Path(__file__).parent / "bad" / "traces"
BAD_NAMES = sorted(path.stem for path in BAD.glob("*.jsonl"))


def write(folder: Path, *rows: object) -> Path:
    """A trace of these rows; a string is a line as it stands."""
    path = folder / "t.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def row(step: float = 0, **fields: object) -> dict[str, object]:
    return {"task_id": "t", "step": step, "depth": 300, "new": {"tokens": 20}, **fields}


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    return caught.value


def test_every_bad_trace_has_an_expected_error() -> None:
    assert len(BAD_NAMES) > 60
    assert sorted(path.stem for path in BAD.glob("*.expected")) == BAD_NAMES


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_trace_gives_its_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD)
    error = refusal(Path(f"{name}.jsonl"))
    expected = Path(f"{name}.expected").read_text(encoding="utf-8").rstrip("\n")
    assert f"{error.where}: {error.what}" == expected
    assert error.hint == "schemas/trace.schema.json says what each field holds"
    assert error.exit_code == 2


def test_a_row_becomes_a_step(tmp_path: Path) -> None:
    Image.new("RGB", (48, 40)).save(tmp_path / "s.png")
    path = write(
        tmp_path,
        row(
            depth_unit="positions",
            new={"text": "Öffne die Tür 🚪", "screenshot": "s.png"},
            baseline={"prefill_s": 1, "exec_s": 0.25},
        ),
        "",
        row(2.0, depth=0, new={"tokens": 7}),
        row(9, new={"screenshot": {"width": 640, "height": 360}}),
    )
    first, second, third = load_trace(path).steps
    assert (first.task_id, first.step, first.depth, first.line) == ("t", 0, 300, 1)
    assert first.depth_unit == "positions"
    assert (first.new_text, first.new_tokens) == ("Öffne die Tür 🚪", None)
    assert first.screenshot == Screenshot(tmp_path.resolve() / "s.png", 48, 40)
    assert first.baseline == Baseline(1.0, None, 0.25)
    assert (second.step, second.depth, second.depth_unit, second.line) == (2, 0, "tokens", 3)
    assert type(second.step) is int
    assert (second.new_text, second.new_tokens, second.screenshot) == (None, 7, None)
    assert second.baseline == Baseline()
    assert third.screenshot == Screenshot(None, 640, 360)


def test_trace_knows_its_digest_and_largest_depth(tmp_path: Path) -> None:
    path = write(tmp_path, row(0, depth=9), row(1, depth=5000), row(2, depth=10))
    trace = load_trace(path)
    assert trace.path == path
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert trace.max_depth == 5000


def test_line_ends_of_windows_and_a_missing_last_one_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(f"{json.dumps(row(0))}\r\n{json.dumps(row(1))}".encode())
    assert [step.line for step in load_trace(path).steps] == [1, 2]


def test_tasks_may_take_turns(tmp_path: Path) -> None:
    rows = [row(3), row(0, task_id="u"), row(4), row(1, task_id="u")]
    assert [step.step for step in load_trace(write(tmp_path, *rows)).steps] == [3, 0, 4, 1]


def test_an_earlier_line_with_the_same_step_is_found_again(tmp_path: Path) -> None:
    picture = {"screenshot": "none.png"}
    rows = [row(3), row(1, task_id="u"), row(2, new=picture), row(5, extra=1), row(5), row(9)]
    path = write(tmp_path, *rows, "", row(3.0), row(2), row(5), row(4), row(1, task_id="u"))
    told = [line.split(": ", 1)[1] for line in refusal(path).what.splitlines()[1:]]
    assert told[0].startswith("new.screenshot: 'none.png'")
    assert told[1:] == [
        "step: step 2 of task 't' comes after step 3 (line 1)",
        "extra: is not a field",
        "step: step 3 of task 't' stands on line 1 already",
        # Refused or not, a line has its step.
        "step: step 2 of task 't' stands on line 3 already",
        # But not one that is no row of a trace.
        "step: step 5 of task 't' stands on line 5 already",
        "step: step 4 of task 't' comes after step 9 (line 6)",
        "step: step 1 of task 'u' stands on line 2 already",
    ]


def test_a_file_may_be_named_twice_and_is_read_once(tmp_path: Path) -> None:
    Image.new("L", (32, 32)).save(tmp_path / "s.jpg")
    shot = {"screenshot": "s.jpg"}
    first, second = load_trace(write(tmp_path, row(0, new=shot), row(1, new=shot))).steps
    assert first.screenshot is second.screenshot


def test_paths_are_relative_to_the_trace_not_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "shots").mkdir(parents=True)
    Image.new("L", (32, 32)).save(tmp_path / "a" / "shots" / "s.png")
    write(tmp_path / "a", row(new={"screenshot": "shots/../shots/s.png"}))
    monkeypatch.chdir(tmp_path)
    (step,) = load_trace(Path("a/t.jsonl")).steps
    assert step.screenshot is not None
    assert step.screenshot.path == tmp_path.resolve() / "a" / "shots" / "s.png"


def test_a_link_may_not_leave_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "traces"
    inside.mkdir()
    Image.new("L", (32, 32)).save(tmp_path / "s.png")
    (inside / "link.png").symlink_to(tmp_path / "s.png")
    (inside / "up").symlink_to(tmp_path)
    path = write(
        inside, row(0, new={"screenshot": "link.png"}), row(1, new={"screenshot": "up/s.png"})
    )
    what = refusal(path).what
    assert f"{path}:1: new.screenshot: 'link.png' leaves the folder of the trace" in what
    assert f"{path}:2: new.screenshot: 'up/s.png' leaves the folder of the trace" in what


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    Image.new("L", (32, 32)).save(tmp_path / "s.png")
    (tmp_path / "link.png").symlink_to("s.png")
    (step,) = load_trace(write(tmp_path, row(new={"screenshot": "link.png"}))).steps
    assert step.screenshot == Screenshot(tmp_path.resolve() / "s.png", 32, 32)


def test_a_file_that_many_links_lead_to_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (32, 32)).save(tmp_path / "s.png")
    opened: list[Path] = []

    def opening(path: Path) -> Screenshot:
        opened.append(path)
        return open_screenshot(path)

    monkeypatch.setattr("experiment.trace.open_screenshot", opening)
    for number in range(9):
        (tmp_path / f"{number}.png").symlink_to("s.png")
    rows = [row(number, new={"screenshot": f"{number}.png"}) for number in range(9)]
    assert len({step.screenshot for step in load_trace(write(tmp_path, *rows)).steps}) == 1
    assert opened == [tmp_path.resolve() / "s.png"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to("b.png")
    (tmp_path / "b.png").symlink_to("a.png")
    error = refusal(write(tmp_path, row(new={"screenshot": "a.png"})))
    assert error.what.startswith("new.screenshot: 'a.png' cannot be read: ")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    error = refusal(write(tmp_path, row(new={"screenshot": "pipe.png"})))
    assert error.what == "new.screenshot: 'pipe.png' is not a file"
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert str(refusal(tmp_path / "pipe.jsonl")) == f"{tmp_path}/pipe.jsonl: is not a file"


def test_a_trace_that_does_not_exist_or_is_a_folder(tmp_path: Path) -> None:
    assert str(refusal(tmp_path / "x")) == f"{tmp_path}/x: the trace does not exist"
    assert str(refusal(tmp_path)) == f"{tmp_path}: is not a file"
    long = tmp_path / ("x" * 300)
    assert str(refusal(long)) == f"{long}: the trace cannot be read: File name too long"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_trace_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, row())
    path.chmod(0)
    assert refusal(path).what == "the trace cannot be read: Permission denied"


def test_a_line_of_the_largest_size_is_read_and_one_more_byte_is_refused(tmp_path: Path) -> None:
    empty = len(json.dumps(row(new={"text": ""}))) + 1
    fits = row(new={"text": "x" * (MAX_LINE_BYTES - empty)})
    (step,) = load_trace(write(tmp_path, fits)).steps
    assert step.new_text is not None
    long = row(new={"text": "x" * (MAX_LINE_BYTES - empty + 1)})
    path = write(tmp_path, row(0), long, row(2, depth=-1))
    error = refusal(path)
    assert (error.where, error.what) == (f"{path}:2", "the row is longer than 8 MiB")


def test_a_trace_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, *(row(step) for step in range(5)))
    size = path.stat().st_size
    monkeypatch.setattr("experiment.trace.MAX_STEPS", 5)
    assert len(load_trace(path).steps) == 5
    monkeypatch.setattr("experiment.trace.MAX_STEPS", 4)
    assert refusal(path).what == "holds more than 4 steps"
    monkeypatch.setattr("experiment.trace.MAX_BYTES", size)
    assert refusal(path).what == "holds more than 4 steps"
    monkeypatch.setattr("experiment.trace.MAX_BYTES", size - 1)
    error = refusal(path)
    assert (error.what, error.hint) == (
        "is larger than 0 GiB",
        "split it by tasks, and run the parts",
    )


LOADS = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from experiment.folder import keep_trace
from experiment.trace import load_trace
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, began_s = peak_bytes(), time.monotonic()
trace = load_trace(Path(sys.argv[2]))
loaded, took_s = peak_bytes(), time.monotonic() - began_s
keep_trace(trace, Path(sys.argv[3]))
print(json.dumps([len(trace.steps), took_s, loaded - before, peak_bytes() - before]))
"""


@pytest.mark.parametrize(
    ("rows", "new"),
    [
        (100_000, '{"tokens": 5}'),
        (20_000, '{"text": "ab"}'),
        pytest.param(1_000_000, '{"tokens": 5}', marks=pytest.mark.soak),
        pytest.param(300_000, '{"text": "ab"}', marks=pytest.mark.soak),
    ],
)
def test_many_rows_take_bounded_time_and_memory(rows: int, new: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("w") as file:
        for number in range(rows):
            task, step = divmod(number, 20)
            file.write(f'{{"task_id": "{task}", "step": {step}, "depth": 9, "new": {new}}}\n')
    (tmp_path / "kept").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOADS, ROOT, path, tmp_path / "kept"],
        capture_output=True,
        check=True,
    )
    steps, took_s, loaded, kept = json.loads(done.stdout)
    assert steps == rows
    # 12 µs and 70 µs a row on a busy two-core machine.
    assert took_s < rows * 400e-6 + 2
    # 12 bytes a row, and 200 a task of 20; a run has the trace twice while it copies it.
    assert loaded < rows * 50 + (10 << 20)
    assert kept < rows * 100 + (12 << 20)


@pytest.mark.parametrize("levels", [10, 300, 900, 5_000, 100_000])
@pytest.mark.parametrize("form", ["[%s]", '{"a": %s}'])
def test_depth_of_nesting_gives_a_sentence_at_every_level(
    levels: int, form: str, tmp_path: Path
) -> None:
    start, end = form.split("%s")
    nested = start * levels + "1" + end * levels
    line = f'{{"task_id": "t", "step": 0, "depth": 1, "new": {nested}}}'
    what = refusal(write(tmp_path, line)).what
    assert len(what) < 1_000
    assert what == "the row is nested too deeply" or ("new" in what and levels < 100_000)


def test_the_digest_is_of_the_whole_file_also_past_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, row(), "", "  ", "")
    assert load_trace(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


odd = st.sampled_from([None, True, -1, 0, 1, 2**31 - 1, 2**31, 1.5, float("nan"), "", "x", [], {}])
odd_rows = st.fixed_dictionaries(
    {
        "task_id": st.sampled_from(["t", "t" * 200, "t" * 201, "a\nb", "\ud800"]) | odd,
        "step": odd,
        "depth": odd,
        "new": st.dictionaries(
            st.sampled_from(["tokens", "text", "screenshot"]),
            st.sampled_from([1 << 20, (1 << 20) + 1, "a\0", {"width": 32, "height": 8192}])
            | st.fixed_dictionaries({"width": odd, "height": st.sampled_from([31, 32, 8193])})
            | odd,
        )
        | odd,
    },
    optional={
        "baseline": st.dictionaries(
            st.sampled_from(["prefill_s", "exec_s", "other"]),
            st.sampled_from([0.25, 1_000_000, 1_000_001]) | odd,
        )
        | odd,
        "depth_unit": st.sampled_from(["tokens", "positions", "metres"]) | odd,
        "other": odd,
    },
)


@given(row=odd_rows | st.builds(row, step=odd, depth=odd))
def test_a_row_that_is_not_shown_to_the_schema_fits_it(row: dict[str, object]) -> None:
    if _is_plain(row):
        assert list(_validator().iter_errors(row)) == []
        assert row["task_id"].encode()  # type: ignore[attr-defined]
    usual = {"task_id": "t", "step": 1, "depth": 0, "new": {"tokens": 7}, "baseline": {}}
    assert _is_plain(usual)
    assert _is_plain(usual | {"new": {"text": "a", "screenshot": {"width": 32, "height": 8192}}})
    assert not _is_plain(usual | {"new": {"screenshot": "file.png"}})


def test_schema_is_a_valid_one_and_describes_every_field() -> None:
    schema = json.loads((ROOT / "schemas" / "trace.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    assert all(field["description"] for field in schema["properties"].values())
    assert "M-RoPE" in schema["properties"]["depth_unit"]["description"]

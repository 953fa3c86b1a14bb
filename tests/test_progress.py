"""Progress: lines in a log, a bar on a terminal, nothing left behind after an exception."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from experiment.progress import Progress, RichProgress, SilentProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Log:
    """A `RichProgress` without a terminal, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.file, self.clock = io.StringIO(), Clock()
        self.progress = RichProgress(Console(file=self.file, width=40), clock=self.clock)

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


def test_log_has_a_line_at_the_start_on_the_way_and_at_the_end(log: Log) -> None:
    log.progress.start("compiling", 200)
    log.clock.now_s += 14
    log.progress.advance(20, "too soon")
    log.clock.now_s += 6
    log.progress.advance(50, "ggml.c")
    log.progress.advance(51, "too soon again")
    log.clock.now_s += 70
    log.progress.finish()
    assert log.lines == [
        "compiling …",
        "compiling: 25%, ggml.c, 1 min 00 s left",
        "compiling: done in 1 min 30 s",
    ]


def test_log_without_a_total_has_no_share(log: Log) -> None:
    log.progress.start("loading", None)
    log.clock.now_s += 20
    log.progress.advance(3, "layer 3")
    log.progress.finish("loaded")
    assert log.lines == ["loading …", "loading: layer 3", "loaded"]


def test_starting_again_replaces_the_first(log: Log) -> None:
    log.progress.start("first", 10)
    log.progress.start("second", 10)
    log.clock.now_s += 3.25
    log.progress.finish()
    log.progress.finish("nothing is running any more")
    assert log.lines == ["first …", "second …", "second: done in 3.2 s"]


@pytest.mark.parametrize(("total", "done"), [(0, 5), (10, 0), (10, 25)])
def test_odd_amounts_do_not_divide_by_zero_or_pass_the_end(
    log: Log, total: float, done: float
) -> None:
    log.progress.start("odd", total)
    log.clock.now_s += 20
    log.progress.advance(done, "note")
    assert log.lines[1] in ("odd: note", "odd: 0%, note", "odd: 100%, note")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3600, "1 h 00 min"),
        (7830, "2 h 10 min"),
    ],
)
def test_durations(log: Log, seconds: float, text: str) -> None:
    log.progress.start("x", 1)
    log.clock.now_s += seconds
    log.progress.finish()
    assert log.lines[-1] == f"x: done in {text}"


def test_brackets_and_long_lines_stay_as_they_are(log: Log) -> None:
    line = "/a/[red]folder[/red]/" + "long " * 20 + "end [12/300]"
    log.progress.say(line)
    assert log.lines == [line]


def terminal() -> tuple[io.StringIO, RichProgress]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    return file, RichProgress(console)


def test_terminal_shows_bar_note_and_permanent_lines() -> None:
    file, progress = terminal()
    with progress:
        progress.start("measuring [step]", 4)
        progress.advance(3, "full [2/5]")
        progress.say("a warning")
        progress.finish("18 steps measured")
    text = file.getvalue()
    assert "measuring [step]" in text
    assert "full [2/5]" in text
    assert "75%" in text
    assert text.index("a warning") < text.index("18 steps measured")
    assert text.endswith("18 steps measured\n")


def test_exception_takes_the_bar_away() -> None:
    file, progress = terminal()

    def work() -> None:
        with progress:
            progress.start("measuring", None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert file.getvalue().rindex(show) > file.getvalue().rindex(hide)
    # A new bar can be started: rich refuses a second live display while one is running.
    progress.start("again", 1)
    progress.finish("done")
    assert file.getvalue().endswith("done\n")


def test_standard_output_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RichProgress()
    progress.start("x", 1)
    progress.finish("y")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "x …\ny\n")


def test_silent_progress_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress: Progress = SilentProgress()
    progress.start("x", 1)
    progress.advance(1, "n")
    progress.say("line")
    progress.finish("y")
    assert capfd.readouterr() == ("", "")

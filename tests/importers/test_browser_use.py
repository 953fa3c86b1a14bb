"""browser-use: refused with its figures; with --assume-cold its estimates are a step's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.importers.base import Source
from experiment.importers.browser_use import ESTIMATE, Seen, step_seen
from experiment.importers.documents import read_records
from experiment.importers.registry import claims
from experiment.progress import SilentProgress
from tests.importers.characters import check_bad
from tests.importers.importing import (
    DATA,
    SHARED,
    bad_names,
    needs_shared,
    refusal_of,
    rows_of,
    trace_of,
)

MINE = DATA / "browser_use"
HINT = (
    "\n  hint: --assume-cold states that nothing was cached, and takes the estimates as they are; "
    "--assume-append-only cannot hold"
)


@pytest.mark.parametrize("name", ["estimated", "paths"])
def test_recognised_by_this_importer_only(name: str) -> None:
    (claim,) = claims(Source.open(MINE / f"{name}.json"))
    assert claim[0].name == "browser_use"


def test_refused_with_its_figures(tmp_path: Path) -> None:
    path = MINE / "estimated.json"
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}:3: the depth cannot be derived: old states are removed from the prompt, and "
        "input_tokens is an estimate (step 0 of 2: a screenshot of 320x200, about 2500 tokens, "
        f"10.250 s for model and browser together){HINT}"
    )
    path = MINE / "paths.json"
    assert str(refusal_of(path, tmp_path, assume_cold=True)) == (
        f"{path}:3: no field history.0.metadata.input_tokens"
    )


def test_cold(tmp_path: Path) -> None:
    rows = rows_of(MINE / "estimated.json", tmp_path, assume_cold=True)
    assert rows == [("estimated", 0, 0, 2500), ("estimated", 1, 0, 2700)]
    header, _ = trace_of(MINE / "estimated.json", tmp_path, assume_cold=True)
    assert ESTIMATE in header["assumptions"]


@pytest.mark.parametrize("name", bad_names("browser_use"))
def test_bad_log_gives_its_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bad("browser_use", name, tmp_path, monkeypatch)


@needs_shared
def test_the_samples(tmp_path: Path) -> None:
    path = SHARED / "browser_use" / "history_input_tokens.json"
    _, records = read_records(path, "history", SilentProgress())
    seen = step_seen(records[0])
    assert (seen.size, seen.tokens) == ((2400, 1778), 3168)
    assert seen.seconds == pytest.approx(21.171, abs=5e-4)
    assert str(refusal_of(path, tmp_path)) == (
        f"{path}:3: the depth cannot be derived: old states are removed from the prompt, and "
        "input_tokens is an estimate (step 0 of 6: a screenshot of 2400x1778, about 3168 tokens, "
        f"21.171 s for model and browser together){HINT}"
    )
    rows = rows_of(path, tmp_path, assume_cold=True)
    assert rows[0] == ("history_input_tokens", 0, 0, 3168)
    path = SHARED / "browser_use" / "history_screenshot_path.json"
    assert "there is no field metadata.input_tokens" in str(refusal_of(path, tmp_path))


def test_figures_that_are_not_there() -> None:
    assert str(Seen(None, None, None)) == "no figures"

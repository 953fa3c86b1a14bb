"""OSWorld trajectories (``traj.jsonl``): an action a line, the screenshot taken after each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from experiment.errors import TraceImportError
from experiment.image_files import UnusableImageError
from experiment.importers.base import Call, Context, Source
from experiment.importers.conversation import Conversation, counted
from experiment.importers.counting import Message
from experiment.importers.documents import shape
from experiment.importers.images import Images
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import objects
from experiment.screenshot import open_screenshot
from experiment.strict_json import shown

LOG_FILE = "traj.jsonl"
"""Its name in the folder of a task."""

PROMPT = (
    "the log holds no prompts: each step adds its screenshot in a turn of the user's; no system "
    "prompt and no instruction; all earlier screenshots and answers stay in the prompt"
)
AFTER = (
    "a step's screenshot is taken after its action: what a step saw is the screenshot of the step "
    "before it"
)
DICT_ANSWER = "of a response that is an object, raw_response is what the model wrote"
INITIAL = "--initial-screenshot: the first step saw the file that the option names"
DROPPED = "first steps whose input screenshot is not saved (pass --initial-screenshot)"

_TIME = re.compile(r"\d{8}@\d{6}(\d{1,6})?")


@dataclass
class _Step:
    """The rows of one response: the model answered once, and several actions followed."""

    number: int
    rows: list[Fields]

    @property
    def first(self) -> Fields:
        return self.rows[0]


class OSWorldImporter:
    """Reads one task's ``traj.jsonl``, or the folder that holds it; the task is named by that."""

    name = "osworld"
    what = "OSWorld trajectories with screenshots (traj.jsonl)"
    counts = True

    def recognise(self, source: Source) -> str | None:
        """``step_num``, ``action_timestamp`` and ``screenshot_file``, or nothing but an error."""
        if source.path.is_dir():
            log = source.path / LOG_FILE
            # A link would lead to another folder's images.
            if log.is_symlink() or not log.is_file():
                return None
            seen = self.recognise(Source.open(log))
            return seen and f"{LOG_FILE} with {seen}"
        fields = shape(source.head)
        if {"step_num", "action_timestamp", "screenshot_file"} <= fields.keys():
            return "rows with step_num, action_timestamp and screenshot_file, as OSWorld writes"
        if fields.keys() == {"", "Error"}:
            return 'nothing but {"Error": …}, as OSWorld writes where a run failed'
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call a step; the rows of one ``step_num`` are one.

        Raises:
            TraceImportError: no model was named, an image is missing, or the file holds an error
                instead of steps.
        """
        path = source.path / LOG_FILE if source.path.is_dir() else source.path
        steps = _steps(path, context)
        where = steps[0].first.where
        counting = counted(context, where, "an OSWorld trajectory", len(steps))
        for sentence in (PROMPT, AFTER):
            counting.log.assume(sentence)
        _warn_of_times(steps, context)
        conversation = Conversation(counting, path.resolve().parent.name or path.stem)
        images = Images(path)
        messages: list[Message] = []
        for index, step in enumerate(steps):
            seen = (
                images.named(steps[index - 1].rows[-1], "screenshot_file")
                if index
                else _initial(context)
            )
            if seen is None:
                context.log.drop(DROPPED)
                continue
            messages.append({"role": "user", "content": [{"type": "image", "path": seen}]})
            answer: Message = {"role": "assistant", "content": _answer(step, context)}
            yield conversation.call(messages, answer, step.first.where)
            messages.append(answer)
        if not messages:
            raise TraceImportError(
                "holds one step only, and the screenshot that it saw is not saved",
                where=where,
                hint="pass --initial-screenshot=FILE",
            )
        counting.close()


def _steps(path: Path, context: Context) -> list[_Step]:
    steps: list[_Step] = []
    errors: list[Fields] = []
    for row in objects(path, context.progress):
        if row.members.keys() == {"Error"}:
            errors.append(row)
            continue
        number = row.needed_count("step_num")
        if steps and number == steps[-1].number:
            steps[-1].rows.append(row)
        elif steps and number < steps[-1].number:
            raise row.bad("step_num", f"{number} comes after {steps[-1].number}")
        else:
            steps.append(_Step(number, [row]))
    if steps:
        for _ in errors:
            context.log.drop("rows that hold an error instead of a step")
        return steps
    if errors:
        told = shown(errors[0].members["Error"], 100)
        raise TraceImportError(f"holds an error instead of steps: {told}", where=errors[0].where)
    raise TraceImportError("holds no steps", where=str(path))


def _initial(context: Context) -> Path | None:
    path = context.options.initial_screenshot
    if path is None:
        return None
    try:
        open_screenshot(path)
    except UnusableImageError as error:
        what = f"the screenshot of --initial-screenshot {error}"
        raise TraceImportError(what, where=str(path)) from None
    context.log.assume(INITIAL)
    # It may lie anywhere; what a trace takes lies beside the log or in the folder for this work.
    copy = context.work / f"initial{path.suffix}"
    shutil.copyfile(path, copy)
    return copy


def _answer(step: _Step, context: Context) -> str:
    """What the model wrote: a text, or an object with the text or its pieces in it."""
    row = next((row for row in step.rows if row.members.get("response") is not None), None)
    if row is None:
        raise step.first.missing("response")
    if not isinstance(row.members["response"], dict):
        return row.text("response") or ""
    context.log.assume(DICT_ANSWER)
    response = row.needed_fields("response")
    raw = response.members.get("raw_response")
    return raw if isinstance(raw, str) else json.dumps(response.members, ensure_ascii=False)


def _warn_of_times(steps: list[_Step], context: Context) -> None:
    """Say how long steps took from start to start; which part was the model's, no log says."""
    times = [_time(step.first) for step in steps]
    spans = [
        (later - earlier).total_seconds()
        for earlier, later in pairwise(times)
        if earlier is not None and later is not None
    ]
    if spans:
        context.log.warn(
            f"from start to start a step took {min(spans):g} to {max(spans):g} s, model and "
            "environment together: the log does not split it, so the rows have no baseline"
        )


def _time(row: Fields) -> datetime | None:
    text = row.text("action_timestamp")
    if text is None:
        return None
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        form = "%Y%m%d@%H%M%S" if len(text) == len("20250828@192557") else "%Y%m%d@%H%M%S%f"
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        raise row.bad(
            "action_timestamp", f"{shown(text)} is not a time such as 20250828@192557"
        ) from None


IMPORTER = OSWorldImporter()

"""SWE-agent trajectories (``.traj``): each step's messages, counted with the model's tokenizer.

In one version of the format a step's messages end with its own answer and observation, in a newer
one ``query`` holds what was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.chat import TOOL_DEFINITIONS, message_of
from experiment.importers.conversation import Conversation, counted
from experiment.importers.counting import Message
from experiment.importers.documents import read_records, shape
from experiment.importers.json_fields import Fields

HISTORY = (
    "--assume-append-only: the log's history is what was sent, message by message; its steps hold "
    "no messages of their own"
)


@dataclass(frozen=True)
class _Step:
    """What was sent and what came back."""

    sent: list[Message]
    answer: Message


class SweAgentImporter:
    """Reads ``.traj`` files; the task is named by the file."""

    name = "swe_agent"
    what = "SWE-agent trajectories (.traj)"
    counts = True

    def recognise(self, source: Source) -> str | None:
        """``trajectory[]`` with ``response`` and ``observation``."""
        seen = shape(source.head)
        if {"trajectory[].response", "trajectory[].observation"} <= seen.keys():
            return "trajectory[] with response and observation, as SWE-agent writes it"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call a step of the trajectory.

        Raises:
            TraceImportError: no model was named, or the file does not hold what was sent.
        """
        whole, records = read_records(source.path, "trajectory", context.progress)
        if not records:
            raise whole.bad("trajectory", "holds no steps")
        if context.counter is None:
            _refuse_without_model(whole, records)
        counting = counted(context, records[0].where, "a SWE-agent trajectory", len(records))
        counting.log.assume(TOOL_DEFINITIONS)
        _warn_of_calls(whole, records, context)
        conversation = Conversation(counting, source.path.stem)
        for record, step in zip(records, _steps(whole, records, context), strict=True):
            exec_s = record.seconds("execution_time")
            yield conversation.call(step.sent, step.answer, record.where, exec_s=exec_s)
        counting.close()


def _steps(whole: Fields, records: list[Fields], context: Context) -> Iterator[_Step]:
    if all(record.items("query") is not None for record in records):
        yield from _from_queries(records)
    elif records[0].items("messages") is not None:
        yield from _from_messages(records)
    elif context.options.assume_append_only:
        context.log.assume(HISTORY)
        yield from _from_history(whole, records)
    else:
        what = "no field messages or query: it does not hold what each step sent"
        sent, calls = _totals(whole)
        if sent:
            what += f"; info.model_stats.tokens_sent, {sent} over {calls} calls, is not split"
        raise TraceImportError(
            what,
            where=records[0].where,
            hint="pass --assume-append-only to take the log's history as what was sent",
        )


def _from_messages(records: list[Fields]) -> Iterator[_Step]:
    first = _messages(records[0], "messages")
    # The first step tells the version: later ones may repeat an answer of before.
    own = _own_at_end(records[0], first)
    for record in records:
        messages = _messages(record, "messages")
        if own:
            if len(messages) < own or messages[-own]["role"] != "assistant":
                raise record.bad("messages", "does not end with the step's own answer, as before")
            yield _Step(messages[:-own], messages[-own])
        else:
            yield _Step(messages, {"role": "assistant", "content": _response(record)})


def _own_at_end(record: Fields, messages: Sequence[Message]) -> int:
    """How many messages at the end are the step's own answer and observation."""
    response = _response(record)
    for own in (2, 1):
        last = messages[-own] if len(messages) >= own else None
        if last and last["role"] == "assistant" and last["content"] == response:
            return own
    if messages and messages[-1]["role"] == "assistant":
        raise record.bad("messages", "ends with an answer that is not the step's response")
    return 0


def _from_queries(records: list[Fields]) -> Iterator[_Step]:
    queries = [_messages(record, "query") for record in records]
    for index, (record, sent) in enumerate(zip(records, queries, strict=True)):
        following = queries[index + 1] if index + 1 < len(queries) else []
        answer: Message = {"role": "assistant", "content": _response(record)}
        if len(following) > len(sent) and following[: len(sent)] == sent:
            # It may hold tool calls, which `response` leaves out.
            later = following[len(sent)]
            answer = later if later["role"] == "assistant" else answer
        yield _Step(sent, answer)


def _from_history(whole: Fields, records: list[Fields]) -> Iterator[_Step]:
    history = _messages(whole, "history")
    shown = [
        isinstance(item, dict) and item.get("is_demo") for item in whole.items("history") or []
    ]
    answers = [
        index
        for index, message in enumerate(history)
        if message["role"] == "assistant" and not shown[index]
    ]
    if len(records) - len(answers) not in (0, 1):
        what = f"holds {len(answers)} answers for {len(records)} steps"
        raise whole.bad("history", what)
    for index, record in enumerate(records):
        if index < len(answers):
            yield _Step(history[: answers[index]], history[answers[index]])
        else:
            yield _Step(history, {"role": "assistant", "content": _response(record)})


def _messages(record: Fields, name: str) -> list[Message]:
    items = record.items(name)
    if items is None:
        raise record.missing(name)
    return [
        message_of(item, record.where, f"{record.path}{name}.{index}.")
        for index, item in enumerate(items)
    ]


def _response(record: Fields) -> str:
    response = record.text("response")
    if response is None:
        raise record.missing("response")
    return response


def _totals(whole: Fields) -> tuple[int | None, int | None]:
    """Tokens sent and calls of the whole run. Replays hold 0, which means unknown."""
    info = whole.fields("info")
    stats = info.fields("model_stats") if info else None
    if stats is None:
        return None, None
    return stats.count("tokens_sent") or None, stats.count("api_calls") or None


def _refuse_without_model(whole: Fields, records: list[Fields]) -> None:
    sent, calls = _totals(whole)
    if sent:
        raise TraceImportError(
            "a SWE-agent trajectory has no token counts by step: info.model_stats.tokens_sent, "
            f"{sent} over {calls} calls, is the whole run's and is not split",
            where=records[0].where,
            hint="name the model whose tokenizer and chat template count them: "
            "--model=NAME or FILE",
        )


def _warn_of_calls(whole: Fields, records: list[Fields], context: Context) -> None:
    calls = _totals(whole)[1]
    if calls and calls != len(records):
        context.log.warn(
            f"info.model_stats.api_calls is {calls}, the trajectory holds {len(records)} steps"
        )


IMPORTER = SweAgentImporter()

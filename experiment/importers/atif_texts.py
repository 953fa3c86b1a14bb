"""ATIF steps as chat messages, for trajectories that hold texts and images but no token counts."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.importers.atif_files import Trajectory
from experiment.importers.base import Call, Log
from experiment.importers.chat import TOOL_DEFINITIONS, tool_call
from experiment.importers.conversation import Conversation
from experiment.importers.counting import Message
from experiment.importers.images import Images
from experiment.importers.json_fields import Fields
from experiment.strict_json import shown

PROMPT = (
    "the log holds no prompts: each is the steps before it, the observations of a step as tool "
    "results or turns of the user's; nothing is taken out of the history"
)
NOTES = "system steps behind the agent's first one (notes of the harness, not sent to the model)"


def counted_calls(
    trajectory: Trajectory, own: list[Fields], conversation: Conversation, log: Log
) -> Iterator[Call]:
    """The calls of a trajectory's ``own`` agent steps, counted from the texts and images.

    Raises:
        TraceImportError: a message is none, or an image cannot be used.
    """
    log.assume(PROMPT)
    log.assume(TOOL_DEFINITIONS)
    calls = {id(step) for step in own}
    images = Images(trajectory.path)
    messages: list[Message] = []
    answered = False
    for step in trajectory.steps:
        source = step.needed_text("source")
        if source == "system" and answered:
            log.drop(NOTES)
            continue
        message: Message = {
            "role": "assistant" if source == "agent" else source,
            "content": _content(step, "message", images),
        }
        if source == "agent":
            answered = True
            _add_calls(message, step)
            if id(step) in calls:
                yield conversation.call(messages, message, step.where)
        messages.append(message)
        messages.extend(_observed(step, images))


def _add_calls(message: Message, step: Fields) -> None:
    reasoning = step.text("reasoning_content")
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [
        _fields(step, "tool_calls", index, call) for index, call in _numbered(step, "tool_calls")
    ]
    if calls:
        message["tool_calls"] = [
            tool_call(
                call.needed_text("function_name"),
                call.members.get("arguments"),
                call.text("tool_call_id") or "",
            )
            for call in calls
        ]


def _observed(step: Fields, images: Images) -> Iterator[Message]:
    observation = step.fields("observation")
    if observation is None:
        return
    for index, item in _numbered(observation, "results"):
        result = _fields(observation, "results", index, item)
        if result.members.get("content") is None:
            continue  # a reference to a subagent, whose trajectory is a task of its own
        content = _content(result, "content", images)
        call_id = result.text("source_call_id")
        if call_id:
            yield {"role": "tool", "content": content, "tool_call_id": call_id}
        else:
            yield {"role": "user", "content": content}


def _content(record: Fields, name: str, images: Images) -> str | list[dict[str, object]]:
    if not isinstance(record.members.get(name), list):
        return record.text(name) or ""
    parts: list[dict[str, object]] = []
    for index, item in _numbered(record, name):
        part = _fields(record, name, index, item)
        kind = part.needed_text("type")
        if kind == "text":
            parts.append({"type": "text", "text": part.text("text") or ""})
        elif kind == "image":
            path = images.named(part.needed_fields("source"), "path")
            parts.append({"type": "image", "path": path})
        else:
            raise part.bad("type", f"{shown(kind)} is neither text nor image")
    return parts


def _numbered(record: Fields, name: str) -> Iterator[tuple[int, object]]:
    return enumerate(record.items(name) or [])


def _fields(record: Fields, name: str, index: int, item: object) -> Fields:
    if not isinstance(item, dict):
        raise record.bad(f"{name}.{index}", f"{shown(item)} is not an object")
    return Fields(item, record.where, f"{record.path}{name}.{index}.")

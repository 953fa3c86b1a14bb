"""Chat messages as logs hold them, in the form that counting takes."""

from __future__ import annotations

import json

from experiment.errors import TraceImportError
from experiment.importers.counting import Message
from experiment.importers.json_fields import Fields
from experiment.strict_json import shown

ROLES = ("system", "user", "assistant", "tool")

TOOL_DEFINITIONS = "the definitions of the agent's tools are not in the log and are not counted"


def message_of(item: object, where: str, path: str) -> Message:
    """A message in OpenAI's form: a role, a text or texts, and an assistant's tool calls.

    Args:
        item: as the log holds it.
        where: ``FILE:LINE`` of its record.
        path: its dotted path within the record, with a dot at the end.

    Raises:
        TraceImportError: it is no such message, or holds an image.
    """
    if not isinstance(item, dict):
        raise TraceImportError(f"{path[:-1]}: {shown(item)} is not an object", where=where)
    fields = Fields(item, where, path)
    role = fields.needed_text("role")
    if role not in ROLES:
        raise fields.bad("role", f"{shown(role)} is none of {', '.join(ROLES)}")
    message: Message = {"role": role, "content": _content(fields)}
    calls = fields.items("tool_calls")
    if calls:
        path = f"{path}tool_calls."
        message["tool_calls"] = [_call(call, where, path, i) for i, call in enumerate(calls)]
    if role == "tool":
        answered = fields.items("tool_call_ids") or [fields.text("tool_call_id")]
        message["tool_call_id"] = str(answered[0] or "")
    return message


def tool_call(name: str, arguments: object, call_id: str) -> dict[str, object]:
    """A tool call in OpenAI's form; arguments that are no JSON object are wrapped into one."""
    function = {"name": name, "arguments": _arguments(arguments)}
    return {"type": "function", "id": call_id, "function": function}


def _call(call: object, where: str, path: str, index: int) -> dict[str, object]:
    if not isinstance(call, dict):
        raise TraceImportError(f"{path}{index}: {shown(call)} is not an object", where=where)
    fields = Fields(call, where, f"{path}{index}.")
    function = fields.needed_fields("function")
    name = function.needed_text("name")
    return tool_call(name, function.members.get("arguments"), fields.text("id") or "")


def _arguments(arguments: object) -> str:
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    if isinstance(arguments, str):
        try:
            if isinstance(json.loads(arguments), dict):
                return arguments
        except (ValueError, RecursionError):
            pass
    return json.dumps({} if arguments is None else {"input": arguments}, ensure_ascii=False)


def _content(fields: Fields) -> str | list[dict[str, object]]:
    value = fields.members.get("content")
    if not isinstance(value, list):
        return fields.text("content") or ""
    parts: list[dict[str, object]] = []
    for index, part in enumerate(value):
        name = f"content.{index}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part, dict):
            found = shown(kind) if isinstance(part, dict) else shown(part)
            raise fields.bad(name, f"{found} is not a text; images are not read here")
        text = Fields(part, fields.where, f"{fields.path}{name}.").text("text")
        parts.append({"type": "text", "text": text or ""})
    return parts

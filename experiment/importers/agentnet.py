"""AgentNet tasks, raw (one a line) and of AgentNetBench (one a document), with screenshots.

The logs hold neither prompts nor counts: the conversation is put together and then counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiment.importers.base import Call, Context, Source
from experiment.importers.conversation import Conversation, Counted, counted
from experiment.importers.counting import Message
from experiment.importers.documents import read_records, shape
from experiment.importers.images import Images
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import objects

PROMPT = (
    "the log holds no prompts: the first is the instruction with the first screenshot, each later "
    "one the next screenshot in a turn of the user's; no system prompt; all earlier screenshots "
    "and answers stay in the prompt"
)
RAW_ANSWER = "an answer is value.thought, value.action and value.code, as far as they are there"
BENCH_ANSWER = "an answer is the thought and instruction of inner_monologue, and the action"


class AgentNetImporter:
    """Reads both forms; the task is named by ``task_id``, the images lie beside the log."""

    name = "agentnet"
    what = "AgentNet and AgentNetBench tasks with screenshots (JSONL, JSON)"
    counts = True

    def recognise(self, source: Source) -> str | None:
        """``traj[]`` with images and ``value``, or ``steps[]`` with images and ``step_num``."""
        seen = shape(source.head)
        if {"task_id", "instruction", "traj[].image", "traj[].value"} <= seen.keys():
            return "task_id, instruction and traj[] with image and value, as AgentNet's raw data"
        if {"task_id", "user_task_description", "steps[].image", "steps[].action"} <= seen.keys():
            return "task_id, user_task_description and steps[] with image, as AgentNetBench's"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call a step, in the order of the log; its image is what the step saw.

        Raises:
            TraceImportError: no model was named, or an image is missing.
        """
        counting: Counted | None = None
        images = Images(source.path)
        if "user_task_description" in shape(source.head):
            task, steps = read_records(source.path, "steps", context.progress)
            counting = _counting(context, task, BENCH_ANSWER, len(steps))
            instruction = task.needed_text("user_task_description")
            yield from _task(counting, task, steps, instruction, images)
        else:
            for task in objects(source.path, context.progress):
                counting = counting or _counting(context, task, RAW_ANSWER)
                instruction = task.needed_text("instruction")
                yield from _task(counting, task, _raw_steps(task), instruction, images)
        if counting:
            counting.close()


def _counting(context: Context, task: Fields, answer: str, steps: int | None = None) -> Counted:
    counting = counted(context, task.where, "an AgentNet task", steps)
    counting.log.assume(PROMPT)
    counting.log.assume(answer)
    return counting


def _task(
    counting: Counted, task: Fields, steps: list[Fields], instruction: str, images: Images
) -> Iterator[Call]:
    conversation = Conversation(counting, task.needed_text("task_id"))
    messages: list[Message] = []
    for step in steps:
        content: list[dict[str, object]] = [{"type": "image", "path": images.named(step, "image")}]
        if not messages:
            content.append({"type": "text", "text": instruction})
        messages.append({"role": "user", "content": content})
        answer: Message = {"role": "assistant", "content": _answer(step)}
        yield conversation.call(messages, answer, step.where)
        messages.append(answer)


def _raw_steps(task: Fields) -> list[Fields]:
    items = task.items("traj")
    if items is None:
        raise task.missing("traj")
    steps = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise task.bad(f"traj.{index}", "is not an object")
        steps.append(Fields(item, task.where, f"{task.path}traj.{index}."))
    return steps


def _answer(step: Fields) -> str:
    """What the model wrote at a step, as far as the log holds it; the action must be there."""
    if "action" in step.members:
        thoughts = step.fields("inner_monologue")
        parts = (
            [thoughts.text(name) for name in ("thought", "low_level_instruction")]
            if thoughts
            else []
        )
        return "\n".join([part for part in parts if part] + [step.needed_text("action")])
    value = step.needed_fields("value")
    parts = [value.text(name) for name in ("thought", "action")]
    return "\n".join([part for part in parts if part] + [value.needed_text("code")])


IMPORTER = AgentNetImporter()

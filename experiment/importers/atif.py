"""ATIF trajectories (Harbor, Terminal-Bench): token counts a step, or texts and images to count."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.importers.atif_files import Trajectory, continued_in, trajectories
from experiment.importers.atif_texts import counted_calls
from experiment.importers.base import Call, Context, Source, needs_tokenizer
from experiment.importers.conversation import Conversation, Counted, common_tokens, counted
from experiment.importers.documents import shape
from experiment.importers.json_fields import Fields
from experiment.importers.tokenizers import Tokenizers
from experiment.strict_json import shown

SOURCES = ("system", "user", "agent")

IDS = (
    "steps without cached_tokens: the cache held the prompt_token_ids of the call before and its "
    "completion_token_ids but the last; the depth is what the step's own ids have in common with "
    "them from the start"
)
NO_METRICS = "agent steps without metrics (no call of the model, or one that another step tells)"
NO_CALL = "agent steps with llm_call_count 0"


class AtifImporter:
    """Reads a trajectory, those that continue it, and subagents inside it; ``session_id`` names it.

    A call's counts include its images, so they stand for them. Of a trajectory without any counts
    the texts and images are counted, where a model is named.
    """

    name = "atif"
    what = "ATIF trajectories (JSON), with continuations and images"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """``schema_version`` that begins with ``ATIF``, and ``steps``."""
        seen = shape(source.head)
        version = seen.get("schema_version", "")
        if version.startswith("ATIF") and "steps" in seen:
            return f"schema_version {shown(version)} and steps[]"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call for each step of the agent that is not copied from another trajectory.

        Raises:
            TraceImportError: a step has counts that cannot be right, or lacks them.
        """
        if source.path.resolve() in continued_in(context.files):
            return
        reader = _Reader(context)
        task = None
        for trajectory in trajectories(source.path, context.progress, context.log):
            task = task or _task_id(trajectory.whole)
            yield from reader.read(task, trajectory)
        reader.close()


class _Reader:
    """Reads the trajectories of one import, with what goes on from one to the next."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokenizers = Tokenizers(context.log)
        self._ids: dict[str, list[object] | None] = {}
        self._counted: Counted | None = None
        self._conversations: dict[str, Conversation] = {}

    def read(self, task: str, trajectory: Trajectory) -> Iterator[Call]:
        """The calls of a trajectory, then those of the subagents that stand inside it."""
        own = [step for step in trajectory.steps if self._is_call(step)]
        if any(_has_counts(step) for step in own):
            yield from self._by_counts(task, trajectory.whole, own)
        elif own:
            yield from self._by_texts(task, trajectory, own)
        self._warn_of_references(trajectory)
        for index, inner in enumerate(trajectory.whole.items("subagent_trajectories") or []):
            subagent = _inside(trajectory, inner, index)
            name = subagent.whole.text("trajectory_id") or subagent.whole.text("session_id")
            if name in (None, "", task):
                name = f"{task}.{index}"
            yield from self.read(str(name), subagent)

    def close(self) -> None:
        """Write down what is known only at the end."""
        if self._counted is not None:
            self._counted.close()

    def _is_call(self, step: Fields) -> bool:
        source = step.needed_text("source")
        if source not in SOURCES:
            raise step.bad("source", f"{shown(source)} is none of {', '.join(SOURCES)}")
        if source != "agent" or step.flag("is_copied_context"):
            return False
        if step.count("llm_call_count") == 0:
            self._context.log.drop(NO_CALL)
            return False
        return True

    def _by_counts(self, task: str, whole: Fields, steps: list[Fields]) -> Iterator[Call]:
        agent = whole.fields("agent")
        total = 0
        for step in steps:
            metrics = step.fields("metrics")
            if metrics is None:
                self._context.log.drop(NO_METRICS)
                continue
            named = step.text("model_name") or (agent.text("model_name") if agent else None)
            self._tokenizers.add(named)
            call = self._call(task, step, metrics)
            total += call.total or 0
            yield call
        final = whole.fields("final_metrics")
        stated = final.count("total_prompt_tokens") if final else None
        if stated is not None and stated != total:
            self._context.log.warn(
                f"final_metrics.total_prompt_tokens is {stated}, the steps' own sum {total}: it "
                "may include subagents, and is not used"
            )

    def _call(self, task: str, step: Fields, metrics: Fields) -> Call:
        ids = _token_ids(metrics, "prompt_token_ids")
        total = metrics.count("prompt_tokens")
        if total is None:
            if ids is None:
                raise metrics.missing("prompt_tokens")
            total = len(ids)
        elif ids is not None and len(ids) != total:
            what = f"{len(ids)} ids for a prompt of {total} tokens"
            raise metrics.bad("prompt_token_ids", what)
        depth = metrics.count("cached_tokens")
        if depth is not None and depth > total:
            what = f"{depth} is more than the prompt's {total} tokens"
            raise metrics.bad("cached_tokens", what)
        assumed = None
        held = self._ids.get(task, [])
        if depth is None and ids is not None and held is not None:
            depth, assumed = common_tokens(held, ids), IDS
        written = _token_ids(metrics, "completion_token_ids") or []
        self._ids[task] = None if ids is None else ids + written[:-1]
        output = metrics.count("completion_tokens")
        return Call(task, step.where, depth, total, output, assumed=assumed)

    def _warn_of_references(self, trajectory: Trajectory) -> None:
        """Say that subagents are in files of their own, where they are."""
        for step in trajectory.steps:
            observation = step.fields("observation")
            for result in (observation.items("results") if observation else None) or []:
                named = result.get("subagent_trajectory_ref") if isinstance(result, dict) else None
                named = named if isinstance(named, list) else []
                if any(isinstance(one, dict) and one.get("trajectory_path") for one in named):
                    self._context.log.warn(
                        "subagents' trajectories are files of their own, tasks of their own: a "
                        "folder's import holds them too"
                    )
                    return

    def _by_texts(self, task: str, trajectory: Trajectory, own: list[Fields]) -> Iterator[Call]:
        if self._context.counter is None:
            raise needs_tokenizer(own[0].where, "an ATIF trajectory without metrics")
        if self._counted is None:
            self._counted = counted(self._context, own[0].where, "an ATIF trajectory")
        if task not in self._conversations:
            self._conversations[task] = Conversation(self._counted, task)
        yield from counted_calls(trajectory, own, self._conversations[task], self._context.log)


def _task_id(whole: Fields) -> str:
    # Since 1.7 a session may hold several documents, each with an id of its own.
    task = whole.text("session_id") or whole.text("trajectory_id")
    if not task:
        raise whole.missing("session_id")
    return task


def _inside(trajectory: Trajectory, inner: object, index: int) -> Trajectory:
    name = f"subagent_trajectories.{index}"
    if not isinstance(inner, dict):
        raise trajectory.whole.bad(name, f"{shown(inner)} is not an object")
    whole = Fields(inner, trajectory.whole.where, f"{trajectory.whole.path}{name}.")
    steps = []
    for number, step in enumerate(whole.items("steps") or []):
        if not isinstance(step, dict):
            raise whole.bad(f"steps.{number}", f"{shown(step)} is not an object")
        steps.append(Fields(step, whole.where, f"{whole.path}steps.{number}."))
    return Trajectory(trajectory.path, whole, steps)


def _has_counts(step: Fields) -> bool:
    metrics = step.fields("metrics")
    return metrics is not None and any(
        metrics.members.get(name) is not None for name in ("prompt_tokens", "prompt_token_ids")
    )


def _token_ids(metrics: Fields, name: str) -> list[object] | None:
    ids = metrics.items(name)
    if ids is not None and not all(type(token) is int for token in ids):
        raise metrics.bad(name, "holds something else than whole numbers")
    return ids


IMPORTER = AtifImporter()

"""A server that is ready for a trace: sized context, checked prefix support, prompts that land."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from experiment.build import Build
from experiment.client import Client
from experiment.errors import ModelError
from experiment.graph import GraphValue, memory_graph, parse_graph
from experiment.models import ModelFiles
from experiment.prefix import PrefixBuilder, StepPrompt
from experiment.screenshot import png_bytes
from experiment.server import Server, server_arguments
from experiment.settings import Settings
from experiment.step_size import context_size
from experiment.trace import Step
from experiment.words import load_words

# Prompts kept from one round to the next; a screenshot takes about 100 kB.
_PROMPTS_KEPT = 256


@dataclass(frozen=True)
class Session:
    """One running server and what was found out about it.

    ``prompt_of`` makes the prompt of a step, its screenshot rendered or read; it may raise
    `PrefixError` and `TraceError`.
    """

    server: Server
    client: Client
    graph: dict[str, GraphValue]
    prompt_of: Callable[[Step], StepPrompt]


def _prompt_maker(prefixes: PrefixBuilder, seed: int) -> Callable[[Step], StepPrompt]:
    @lru_cache(maxsize=_PROMPTS_KEPT)
    def prompt_of(step: Step) -> StepPrompt:
        shot = step.screenshot
        # Screens differ from step to step; the trace's line tells the steps apart.
        image = None if shot is None else png_bytes(shot, (seed + step.line) % 2**32)
        return prefixes.step_prompt(step, image)

    return prompt_of


@contextmanager
def open_session(
    settings: Settings, build: Build, model: ModelFiles, steps: Sequence[Step], log: Path
) -> Iterator[Session]:
    """Start a server for these steps and stop it at the end, whatever happens.

    Raises:
        ServerError: it does not start.
        ModelError: its memory cannot take a prefix, or the model has no vision tower and a step
            has a screenshot.
        PrefixError: the tokenizer has no placeholder of one token.
    """
    context = settings.server.context or context_size(steps)
    server = Server(
        build.server,
        server_arguments(settings, model, context),
        log,
        start_timeout_s=settings.server.start_timeout_s,
        request_timeout_s=settings.server.request_timeout_s,
    )
    with server:
        props = server.client.props()
        graph = parse_graph(server.log_text()) | memory_graph(props)
        if variant := server.cpu_variant():
            graph["cpu_variant"] = variant
        _check_support(graph, props, steps, model)
        prefixes = PrefixBuilder(
            server.client,
            load_words(),
            seed=settings.seed,
            max_depth=max(step.depth for step in steps),
            media_marker=str(props.get("media_marker", "")),
        )
        yield Session(server, server.client, graph, _prompt_maker(prefixes, settings.seed))


def _check_support(
    graph: dict[str, GraphValue],
    props: dict[str, object],
    steps: Sequence[Step],
    model: ModelFiles,
) -> None:
    if "memory_class" not in graph:
        raise ModelError(
            "this server does not know prefixes", hint="build it with the patches: invoke build"
        )
    for key, what in (("can_fake_prefix", "fabricated"), ("can_save_prefix", "restored")):
        if not graph[key]:
            raise ModelError(
                f"the model's memory (class: {graph['memory_class']}) cannot take a {what} prefix",
                where=str(model.model),
                hint="models with plain attention, recurrent or hybrid memory can; "
                "sliding-window attention cannot",
            )
    modalities = props.get("modalities")
    sees = isinstance(modalities, dict) and bool(modalities.get("vision"))
    first = next((step for step in steps if step.screenshot is not None), None)
    if first is not None and not sees:
        raise ModelError(
            f"line {first.line} of the trace has a screenshot, but the model has no vision tower",
            where=str(model.model),
            hint="name its mmproj file with --mmproj, or use a trace without screenshots",
        )

"""How what a trace is made of is written: a page for a terminal, sentences, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal, assert_never

from rich.cells import cell_len, set_cell_size

from experiment.budget import duration
from experiment.layout import NOTHING, WIDTH
from experiment.records import IMPORTED
from experiment.sentences import of, steps
from experiment.strict_json import shown
from experiment.text_plots import bar, histogram, sparkline
from experiment.trace_anomalies import Anomaly, Place
from experiment.trace_estimate import Estimate
from experiment.trace_header import told as of_header
from experiment.trace_info import Distribution, TraceInfo

Format = Literal["table", "json"]
FORMATS: tuple[Format, ...] = ("table", "json")

MAX_TASKS = 20
"""Tasks whose depths are drawn: those with the most steps."""

NAME_WIDTH = 32
PLOT_WIDTH = 100
BAR_WIDTH = 48

DISTRIBUTION_HEAD = (
    "",
    "steps",
    "least",
    "quartile",
    "median",
    "quartile",
    "90 %",
    "most",
    "sum",
)


def render(info: TraceInfo, form: Format, estimate: Estimate | None = None) -> str:
    """Write ``info``, and what a run takes if that was reckoned."""
    match form:
        case "table":
            return "\n".join(_page(info, estimate)) + "\n"
        case "json":
            told = as_value(info, estimate)
            return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case _:
            assert_never(form)


def title(info: TraceInfo) -> str:
    """The trace in a line."""
    return f"{info.path.name}: {steps(info.steps)} of {of(len(info.tasks), 'task')}"


def distribution_rows(info: TraceInfo) -> list[tuple[str, ...]]:
    """The quantiles, a row a figure."""
    named: list[tuple[str, Distribution | None]] = [
        ("depth L, tokens", info.depth),
        ("new, tokens" + ("" if info.new_low == info.new_high else ", likely"), info.new),
        ("text, tokens as told", info.told_tokens),
        ("text, bytes (at most so many tokens)", info.text_bytes),
    ]
    return [
        (
            name,
            *(
                f"{value:,}"
                for value in (
                    *(found.n, found.low, found.q1, found.median),
                    *(found.q3, found.p90, found.high, found.total),
                )
            ),
        )
        for name, found in named
        if found is not None
    ]


def estimate_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """Parts of a run, each likely, at least and at most; and all of it."""
    rows = [
        (
            part.name
            if part.name != "restored"
            else f"restored (of it {duration(estimate.prime_s)} real prefixes)",
            *(duration(value) for value in (part.seconds, part.low_s, part.high_s)),
        )
        for part in estimate.parts
    ]
    if estimate.added_s:
        rows.append(("added rounds, until precise", NOTHING, NOTHING, duration(estimate.added_s)))
    whole = (estimate.seconds, estimate.low_s, estimate.high_s)
    return [*rows, ("all", *map(duration, whole))]


def sentences(info: TraceInfo) -> tuple[str, ...]:
    """What the figures say."""
    return tuple(_sentences(info))


def notes(info: TraceInfo, estimate: Estimate | None = None) -> tuple[str, ...]:
    """What is odd, what an importer had assumed, and what an estimate leaves open."""
    told = [_anomaly(anomaly) for anomaly in info.anomalies]
    if info.header is not None:
        told += [sentence for kind, sentence in of_header(info.header) if kind != IMPORTED]
    return (*told, *(estimate.notes if estimate else ()))


def as_value(info: TraceInfo, estimate: Estimate | None = None) -> dict[str, Any]:
    """Everything but the steps themselves, which the trace holds."""
    value = asdict(info)
    del value["news"]
    value["path"] = str(info.path)
    value["steps"] = info.steps
    value["tasks"] = [
        {
            "task_id": task.task_id,
            "steps": len(task.depths),
            "max_depth": max(task.depths),
            "falls": task.falls,
        }
        for task in info.tasks
    ]
    value["sentences"] = sentences(info)
    value["notes"] = notes(info, estimate)
    value["estimate"] = estimate and {
        "parts": [asdict(part) for part in estimate.parts],
        "prime_s": estimate.prime_s,
        "added_s": estimate.added_s,
        "state_bytes": estimate.state_bytes,
        "seconds": estimate.seconds,
        "low_s": estimate.low_s,
        "high_s": estimate.high_s,
    }
    return value


def _page(info: TraceInfo, estimate: Estimate | None) -> Iterator[str]:
    yield title(info)
    yield from _table([DISTRIBUTION_HEAD, *distribution_rows(info)])
    yield ""
    yield from _tasks(info)
    for name, values in (
        ("depth L, tokens", [depth for task in info.tasks for depth in task.depths]),
        ("new, tokens", info.news),
    ):
        yield ""
        yield from _histogram(name, values)
    yield ""
    for sentence in sentences(info):
        yield from _wrapped(sentence)
    if estimate is not None:
        yield ""
        head = ("a run here", "likely", "at least", "at most")
        yield from _table([head, *estimate_rows(estimate)])
    if told := notes(info, estimate):
        yield ""
        yield "Notes:"
        for note in told:
            yield from _wrapped(f"- {note}")
    yield ""
    # Not wrapped: a path that is broken over two lines cannot be copied.
    yield f"Trace: {info.path}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, figures to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        first, *figures = row
        cells = [set_cell_size(first, widths[0])]
        cells += [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        line = "  ".join(cells)
        yield line.rstrip()
        if not number:
            yield "─" * cell_len(line)


def _tasks(info: TraceInfo) -> Iterator[str]:
    yield f"depth L by step, a column a step, up to {info.depth.high:,} tokens"
    longest = sorted(info.tasks, key=lambda task: -len(task.depths))[:MAX_TASKS]
    drawn = {task.task_id for task in longest}
    names = {task.task_id: _name(task.task_id) for task in longest}
    width = max(map(cell_len, names.values()))
    count = max(len(f"{len(task.depths):,}") for task in longest)
    for task in info.tasks:
        if task.task_id in drawn:
            line = sparkline(task.depths, info.depth.high, PLOT_WIDTH)
            name = set_cell_size(names[task.task_id], width)
            yield f"{name} {len(task.depths):>{count},} {line}"
    if more := len(info.tasks) - len(longest):
        yield f"… and {of(more, 'task')} with fewer steps"
    if max(len(task.depths) for task in longest) > PLOT_WIDTH:
        yield f"(of more than {PLOT_WIDTH} steps a column shows the deepest of several)"


def _name(task_id: str) -> str:
    name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in task_id)
    if cell_len(name) <= NAME_WIDTH:
        return name
    return set_cell_size(name, NAME_WIDTH - 1).rstrip() + "…"


def _histogram(name: str, values: Sequence[int]) -> Iterator[str]:
    bins = histogram(values)
    most = max(count for _, _, count in bins)
    labels = [f"{low:,} to {high:,}" if low < high else f"{low:,}" for low, high, _ in bins]
    width = max(map(len, [name, *labels]))
    digits = len(f"{most:,}")
    yield f"{name.rjust(width)} {'steps'.rjust(digits)}"
    for label, (_, _, count) in zip(labels, bins, strict=True):
        figure = f"{count:,}".rjust(max(digits, len("steps")))
        yield f"{label.rjust(width)} {figure} {bar(count, most, BAR_WIDTH)}".rstrip()


def _sentences(info: TraceInfo) -> Iterator[str]:
    hit = info.cache_hit
    text = f"The cache gives {_percent(hit.likely)} of all prompt tokens (sum of L over L + new"
    if hit.low != hit.high:
        text += f"; {_percent(hit.low)} to {_percent(hit.high)}, since texts and screenshots are "
        text += "not counted yet"
    yield text + ")."
    yield _falls(info)
    yield _images(info)
    yield _baselines(info)
    if info.header is not None:
        counted = f", tokens counted by {info.header.tokenizer}" if info.header.tokenizer else ""
        yield f"Imported from {info.header.source_format}{counted}."


def _falls(info: TraceInfo) -> str:
    if not info.followers:
        return "No step follows another of its task: whether depth falls cannot be told."
    if info.worst_fall is None:
        return f"Depth never falls within a task ({of(info.followers, 'pair')} of steps)."
    fall = info.worst_fall
    return (
        f"Depth falls in {info.falls:,} of the {steps(info.followers)} that follow another "
        f"({_percent(info.falls / info.followers)}), as it does where old content is evicted or "
        f"compacted; most by {fall.tokens:,}, from {fall.depth_before:,} to {fall.depth:,} "
        f"({_place(fall.place)})."
    )


def _images(info: TraceInfo) -> str:
    if not info.images:
        return "No step has a screenshot."
    shown_sizes = sorted(info.images, key=lambda size: -size.steps)[:4]
    sizes = ", ".join(f"{size.steps:,} of {size.width}x{size.height}" for size in shown_sizes)
    more = len(info.images) - len(shown_sizes)
    files = sum(size.files for size in info.images)
    return (
        f"Screenshots: {info.image_steps:,} of {steps(info.steps)} "
        f"({_percent(info.image_steps / info.steps)}); {sizes}"
        + (f" and {of(more, 'other size')}" if more else "")
        + f"; {of(files, 'file')}, {info.image_steps - files:,} to be rendered."
    )


def _baselines(info: TraceInfo) -> str:
    known = [(name, found) for name, found in info.baselines.items() if found.steps]
    if not known:
        return "No step tells what it took where it was recorded: there is no baseline."
    sums = ", ".join(
        f"{name.removesuffix('_s')} {duration(found.seconds)} in {steps(found.steps)}"
        for name, found in known
    )
    return (
        f"Baseline, in sum: {sums}; all of it in {info.complete_baselines:,} of "
        f"{steps(info.steps)}."
    )


def _anomaly(anomaly: Anomaly) -> str:
    have, limit = f"{steps(anomaly.steps)} {_verb(anomaly)}", f"{anomaly.limit:,}"
    match anomaly.kind:
        case "no_depth":
            what = "no depth: nothing was cached, so a run measures the whole prompt, as full alone"
        case "shallow":
            what = f"a depth below {limit}: a run refuses those below the chat template's head"
        case "stuck":
            what = "the depth of the step before although that appended something: it was not kept"
        case "jump":
            what = (
                f"a depth that is more than {limit} beyond the step before and its content: steps "
                f"are missing, or something else filled the cache"
            )
        case "repeated":
            what = "the very content of an earlier step"
        case "beyond_context":
            what = f"more tokens than the {limit} cells of the context: a run leaves them out"
        case "maybe_beyond_context":
            what = f"perhaps more tokens than the {limit} cells of the context"
        case "positions":
            what = (
                "a depth in positions: after screenshots that is less than the KV cells, and a "
                "lower bound"
            )
        case _:
            assert_never(anomaly.kind)
    return f"{have} {what} ({_places(anomaly)})."


def _verb(anomaly: Anomaly) -> str:
    return "has" if anomaly.steps == 1 else "have"


def _places(anomaly: Anomaly) -> str:
    more = anomaly.steps - len(anomaly.first)
    named = "; ".join(map(_place, anomaly.first))
    return named + (f" and {more:,} more" if more else "")


def _place(place: Place) -> str:
    return f"{shown(place.task_id)} step {place.step}, line {place.line}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _wrapped(text: str) -> Iterable[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)

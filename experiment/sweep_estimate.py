"""What a sweep is going to cost in time and memory, and which of its cells fit into the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiment.errors import SettingsError
from experiment.settings import Settings
from experiment.sweep_costs import Costs

MIN_ADDED_S = 60.0
"""Time that is kept free for the rounds that narrow the intervals."""

# Of the memory that is available when the probe begins: the driver and the system need some too.
_USABLE_SHARE = 0.9
# The untimed pass that counts experts asks for each cell once with fake and once with restored.
_EXPERT_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class DepthCost:
    """What the cells of one depth take: seconds of requests and of llama-bench, bytes of state."""

    depth: int
    requests_s: float
    bench_s: float
    state_bytes: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A depth or (where ``depth`` is None) a number of new tokens that is not measured, and why."""

    depth: int | None
    new: int | None
    reason: str

    @property
    def what(self) -> str:
        """Which it is."""
        return f"L = {self.depth:,}" if self.depth is not None else f"new = {self.new:,}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a sweep, ``depths`` by ``sizes`` (new tokens), and what they are to cost.

    ``prime_s`` is decoding the real prefixes, each from the one before, ``probe_s`` what the probe
    (its folder's name is ``probe``) has taken of ``limit_s``; ``added_s`` is left for the rounds
    that narrow the intervals. ``memory_bytes`` is what the server needs of ``available_bytes``.
    """

    depths: tuple[int, ...]
    sizes: tuple[int, ...]
    left_out: tuple[LeftOut, ...]
    costs: tuple[DepthCost, ...]
    prime_s: float
    probe_s: float
    limit_s: float
    added_s: float
    memory_bytes: float
    available_bytes: float
    tail_tokens: int
    probe: str

    @property
    def fixed_s(self) -> float:
        """All but the probe and the added rounds."""
        return self.prime_s + sum(cost.requests_s + cost.bench_s for cost in self.costs)


def choose_cells(
    costs: Costs,
    settings: Settings,
    depths: Sequence[int],
    sizes: Sequence[int],
    limit_s: float,
    probe: str,
) -> Plan:
    """Leave out the deepest depths, then the largest sizes, until the rest fits time and memory.

    Raises:
        SettingsError: a size has no room for a token of text before the template's tail, or not
            even the smallest cell fits.
    """
    if min(sizes) <= costs.tail_tokens:
        raise SettingsError(
            f"{min(sizes)} new tokens are too few: the chat template's tail alone has "
            f"{costs.tail_tokens}",
            where="--new",
            hint=f"ask for {costs.tail_tokens + 1} or more",
        )
    deep, large, left_out = sorted(depths), sorted(sizes), list[LeftOut]()
    while reason := _too_much(
        plan := _plan(costs, settings, deep, large, limit_s, probe), settings
    ):
        if len(deep) > 1:
            left_out.append(LeftOut(deep.pop(), None, reason))
        elif len(large) > 1:
            left_out.append(LeftOut(None, large.pop(), reason))
        else:
            raise SettingsError(
                f"not even the cell of {large[0]:,} new tokens at depth {deep[0]:,} fits: {reason}",
                hint="raise --time-limit, free memory, or choose a smaller model",
            )
    return replace(plan, left_out=tuple(left_out))


def _plan(
    costs: Costs,
    settings: Settings,
    depths: Sequence[int],
    sizes: Sequence[int],
    limit_s: float,
    probe: str,
) -> Plan:
    real = [depth for depth in depths if depth <= settings.schedule.restored_max_depth]
    each = tuple(_depth_cost(costs, settings, depth, sizes, depth in real) for depth in depths)
    prime_s = costs.prefix_s(max(real, default=0))
    fixed_s = prime_s + sum(cost.requests_s + cost.bench_s for cost in each)
    memory = costs.fixed_bytes + costs.kv_bytes_per_cell * (max(depths) + max(sizes))
    return Plan(
        depths=tuple(depths),
        sizes=tuple(sizes),
        left_out=(),
        costs=each,
        prime_s=prime_s,
        probe_s=costs.took_s,
        limit_s=limit_s,
        added_s=max(MIN_ADDED_S, limit_s - costs.took_s - fixed_s),
        memory_bytes=memory + sum(cost.state_bytes for cost in each),
        available_bytes=costs.available_bytes,
        tail_tokens=costs.tail_tokens,
        probe=probe,
    )


def _depth_cost(
    costs: Costs, settings: Settings, depth: int, sizes: Sequence[int], is_real: bool
) -> DepthCost:
    schedule, calibration = settings.schedule, settings.calibration
    requests_s = bench_s = 0.0
    for new in sizes:
        prefill_s = costs.prefill_s(new, depth)
        fake_s = costs.request_s(new, depth, restored=False)
        restored_s = costs.request_s(new, depth, restored=True) if is_real else 0.0
        # A warm-up has no control.
        requests_s += schedule.warmup_rounds * (fake_s + restored_s)
        requests_s += schedule.rounds * (2 * fake_s + restored_s)
        requests_s += is_real * _EXPERT_REQUESTS * prefill_s
    if is_real:
        bench_s = costs.bench_start_s + costs.prefix_s(depth)
        for chunk in {*sizes, calibration.chunk}:
            restore_s = costs.restore_ms_per_cell * depth / 1000
            sample_s = costs.prefill_s(chunk, depth) + restore_s
            bench_s += costs.prefill_s(chunk, 0) + calibration.repetitions * sample_s
    state = costs.state_bytes + costs.state_bytes_per_cell * depth if is_real else 0.0
    return DepthCost(depth, requests_s, bench_s, state)


def _too_much(plan: Plan, settings: Settings) -> str | None:
    usable = _USABLE_SHARE * plan.available_bytes
    saved = sum(cost.state_bytes for cost in plan.costs)
    allowed = settings.server.state_cache_mib * 2**20
    needed_s = plan.probe_s + plan.fixed_s + MIN_ADDED_S
    if plan.memory_bytes > usable:
        return (
            f"with it the server needs {plan.memory_bytes / 2**30:.1f} GiB, usable are "
            f"{usable / 2**30:.1f} GiB"
        )
    if saved > allowed:
        return (
            f"with it the saved states take {saved / 2**20:,.0f} MiB, server.state_cache_mib "
            f"allows {allowed / 2**20:,.0f} MiB"
        )
    context = settings.server.context
    if context and max(plan.depths) + max(plan.sizes) >= context:
        return f"server.context is {context:,}"
    if needed_s > plan.limit_s:
        return (
            f"with it the sweep takes {needed_s / 60:.1f} min, the limit is "
            f"{plan.limit_s / 60:.1f} min"
        )
    return None

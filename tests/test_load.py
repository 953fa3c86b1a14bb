"""What disturbed a request: counters of made-up trees, and of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from experiment.load import Load, LoadMeter, Sample, load_between

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PID = 4711

QUIET = Sample(10.0, 100.0, 5.0, 40.0, 3.0, 7)


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(busy_s: float, stolen_s: float = 0.0, *, user: int = 0) -> str:
    """``/proc/stat``; ``user`` of the busy time is user's, the rest the system's."""
    system = int(busy_s * TICKS_PER_S) - user - 30
    # user nice system idle iowait irq softirq steal guest guest_nice; the guests are in user.
    first = f"cpu  {user} 10 {system} 999999 888 5 15 {int(stolen_s * TICKS_PER_S)} 77 66"
    return f"{first}\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5 5\nctxt 9\n"


def process(cpu_s: float, name: str = "llama-server") -> str:
    """``/proc/PID/stat``: half of the time is the user's."""
    half = int(cpu_s * TICKS_PER_S / 2)
    rest = " ".join(str(number) for number in range(15, 53))
    return f"{PID} ({name}) S 1 {PID} {PID} 0 -1 4194560 6 7 8 9 {half} {half} 111 222 {rest}\n"


class Tree:
    """A made-up machine whose clock is set by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0
        self.busy(100.0)
        put(root, f"proc/{PID}/stat", process(40.0))
        put(root, "proc/self/stat", process(2.0, "python3"))

    def busy(self, busy_s: float, stolen_s: float = 0.0) -> None:
        put(self.root, "proc/stat", machine(busy_s, stolen_s, user=500))

    def meter(self) -> LoadMeter:
        return LoadMeter(PID, self.root, clock=lambda: self.now_s)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_sample_is_in_seconds(tree: Tree) -> None:
    tree.now_s = 5.5
    tree.busy(123.25, 7.5)
    with tree.meter() as meter:
        assert meter.sample() == Sample(5.5, 123.25, 7.5, 40.0, 2.0, None)


def test_what_server_and_driver_did_is_no_disturbance(tree: Tree) -> None:
    with tree.meter() as meter:
        before = meter.sample()
        tree.now_s = 2.0
        tree.busy(100.0 + 3.5, 1.0)
        put(tree.root, f"proc/{PID}/stat", process(40.0 + 2.5))
        put(tree.root, "proc/self/stat", process(2.0 + 0.5, "python3"))
        load = load_between(before, meter.sample())
    # Of 3.5 busy seconds 0.5 are others', in 2 s; 1 s of a core was stolen.
    assert load == Load(other_cores=0.25, stolen_cores=0.5, throttled=None)


def test_waiting_for_the_disk_and_guests_are_not_counted_twice(tree: Tree) -> None:
    with tree.meter() as meter:
        before = meter.sample()
        tree.now_s = 1.0
        text = machine(100.0, user=500).replace(" 999999 888 ", " 5555555 9999 ")
        put(tree.root, "proc/stat", text.replace(" 77 66", " 777 666"))
        assert load_between(before, meter.sample()).other_cores == 0.0


def test_a_name_with_blanks_and_parentheses_is_no_trouble(tree: Tree) -> None:
    put(tree.root, f"proc/{PID}/stat", process(3.0, "a) R 1 (b"))
    with tree.meter() as meter:
        assert meter.sample().server_s == 3.0


@pytest.mark.parametrize("text", ["", "cpu", "cpu  1 2 3", "intr 1\n", "cpu  0 0 0 0 0 0 0 0 0 0"])
def test_a_machine_that_does_not_count_is_not_known(tree: Tree, text: str) -> None:
    put(tree.root, "proc/stat", text)
    with tree.meter() as meter:
        sample = meter.sample()
    assert (sample.busy_s, sample.stolen_s) == (None, None)
    assert sample.server_s == 40.0


@pytest.mark.parametrize("text", ["", "4711 (x", "4711 (x) S 1 2"])
def test_a_process_that_cannot_be_read_is_not_known(tree: Tree, text: str) -> None:
    put(tree.root, f"proc/{PID}/stat", text)
    with tree.meter() as meter:
        before = meter.sample()
        tree.now_s = 1.0
        tree.busy(101.0, 0.5)
        load = load_between(before, meter.sample())
    assert before.server_s is None
    assert load == Load(other_cores=None, stolen_cores=0.5, throttled=None)


def test_a_system_without_these_files_tells_nothing(tmp_path: Path) -> None:
    with LoadMeter(PID, tmp_path) as meter:
        before, after = meter.sample(), meter.sample()
    assert (before.busy_s, before.server_s, before.driver_s) == (None, None, None)
    assert load_between(before, after) == Load(None, None, None)


@pytest.mark.parametrize(
    ("after", "load"),
    [
        # One busy second less than the server says to have had: the ticks are not of one moment.
        (replace(QUIET, at_s=11.0, busy_s=101.0, server_s=42.0), Load(0.0, 0.0, 0)),
        # Counters that were set back, by a migration of the machine.
        (replace(QUIET, at_s=11.0, stolen_s=1.0, throttles=2), Load(0.0, 0.0, 0)),
        (replace(QUIET, at_s=11.0, throttles=9), Load(0.0, 0.0, 2)),
        (replace(QUIET, at_s=11.0, throttles=None), Load(0.0, 0.0, None)),
        (replace(QUIET, at_s=11.0, driver_s=None), Load(None, 0.0, 0)),
        (QUIET, Load(None, None, 0)),  # no time has passed
        (replace(QUIET, at_s=14.0, busy_s=110.0, server_s=41.0), Load(2.25, 0.0, 0)),
    ],
)
def test_what_lies_between_two_samples(after: Sample, load: Load) -> None:
    assert load_between(QUIET, after) == load


V2 = {
    "proc/self/cgroup": "0::/user.slice/run.scope\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",  # the root has no quota
    "sys/fs/cgroup/user.slice/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled {}\n",
    "sys/fs/cgroup/user.slice/run.scope/cpu.stat": "nr_periods 9\nnr_throttled 100\n",
}
V1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/job\n1:cpu:/job\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": "nr_periods 9\nnr_throttled {}\nthrottled_time 1\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 9\nnr_throttled 100\n",
}
HEAT = {
    # Two packages with two cores each; the first core has two processors.
    **{
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": f"{number}\n"
        for cpu, (package, core) in enumerate([(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)])
        for name, number in (("physical_package_id", package), ("core_id", core))
    },
    **{
        f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/{kind}_throttle_count": f"{count}\n"
        for cpu in range(5)
        for kind, count in (("core", 0), ("package", 20 if cpu < 3 else 0))
    },
    "sys/devices/system/cpu/cpufreq/boost": "1\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_quota_that_slows_down_at_any_level_is_counted(tree: Tree, files: dict[str, str]) -> None:
    for name, text in files.items():
        put(tree.root, name, text.format(7))
    with tree.meter() as meter:
        before = meter.sample()
        assert before.throttles == 107
        for name, text in files.items():
            put(tree.root, name, text.format(10))
        tree.now_s = 1.0
        assert load_between(before, meter.sample()).throttled == 3


def test_a_controller_that_is_mounted_under_two_names_is_counted_once(tree: Tree) -> None:
    for name, text in V1.items():
        put(tree.root, name, text.format(7))
    (tree.root / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")
    with tree.meter() as meter:
        assert meter.sample().throttles == 107


def test_heat_is_counted_once_a_package_and_once_a_core(tree: Tree) -> None:
    for name, text in HEAT.items():
        put(tree.root, name, text)
    with tree.meter() as meter:
        before = meter.sample()
        assert before.throttles == 20
        for cpu in (0, 1):  # one core, which both of its processors show
            put(
                tree.root,
                f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count",
                "4\n",
            )
        tree.now_s = 1.0
        assert load_between(before, meter.sample()).throttled == 4


def test_heat_and_quota_are_added(tree: Tree) -> None:
    for name, text in (HEAT | V2).items():
        put(tree.root, name, text.format(7))
    with tree.meter() as meter:
        assert meter.sample().throttles == 127


def test_a_meter_leaves_no_file_open(tree: Tree) -> None:
    for name, text in (HEAT | V2).items():
        put(tree.root, name, text.format(7))
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("reads /proc")
    before = len(list(descriptors.iterdir()))
    with tree.meter():
        assert len(list(descriptors.iterdir())) > before
    assert len(list(descriptors.iterdir())) == before


@pytest.fixture
def here() -> Iterator[LoadMeter]:
    if not Path("/proc/stat").exists():
        pytest.skip("reads /proc")
    with LoadMeter(os.getppid()) as meter:
        yield meter


def test_this_machine(here: LoadMeter) -> None:
    before = here.sample()
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    after = here.sample()
    assert before.driver_s is not None
    assert after.driver_s is not None
    assert 0.1 <= after.driver_s - before.driver_s < 1.0
    load = load_between(before, after)
    if load.other_cores is not None:
        assert 0 <= load.other_cores <= (os.cpu_count() or 1) + 1


def test_a_sample_costs_far_less_than_what_it_stands_beside(here: LoadMeter) -> None:
    cost_s = []
    for _ in range(200):
        began_s = time.process_time()
        here.sample()
        cost_s.append(time.process_time() - began_s)
    assert sorted(cost_s)[100] < 0.5e-3

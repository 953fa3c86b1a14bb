"""`./inv`: which Python it takes, what it says where there is none, and when it installs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from experiment.paths import ROOT

SH = shutil.which("sh") or "/bin/sh"
INSTALLING = "inv: installing the locked packages"

Stubs = Callable[..., Path]
FirstCalls = tuple[Path, list[tuple[int, str, str]]]

WHEEL = {
    "stub_invoke.py": "import os, sys\ndef main(): print(os.getcwd(), *sys.argv[1:], sep='|')\n",
    "invoke-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: invoke\nVersion: 1.0\n",
    "invoke-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "invoke-1.0.dist-info/entry_points.txt": "[console_scripts]\ninvoke = stub_invoke:main\n",
}


def new_checkout(folder: Path) -> Path:
    """A checkout whose lock names one small wheel that lies beside it: no network is needed."""
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "inv", folder)
    shutil.copy(ROOT / "requirements/install.py", folder / "requirements")
    wheel = wheels(folder) / "invoke-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    record = "".join(f"{name},,\n" for name in [*WHEEL, "invoke-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**WHEEL, "invoke-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "requirements/run.txt").write_text(f"invoke==1.0 --hash=sha256:{digest}\n")
    (folder / "requirements/build.txt").write_text("# nothing more\n")
    (folder / "requirements/dev.txt").write_text("# nothing more\n")
    (folder / "tasks.py").write_text("import stub_invoke\n\nstub_invoke.main()\n")
    return folder


def wheels(checkout: Path) -> Path:
    # pip splits PIP_FIND_LINKS at spaces, and a checkout's path may hold some.
    return checkout.parent / "wheels"


def environment(checkout: Path, **more: str) -> dict[str, str]:
    # pip's own variables must be what decides where packages come from.
    return {
        "PATH": os.environ["PATH"],
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels(checkout)),
        "PIP_USER": "1",
        **more,
    }


def call(
    checkout: Path, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SH, str(checkout / "inv"), *arguments],
        cwd=cwd or checkout,
        env=env or environment(checkout),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def first_calls(tmp_path_factory: pytest.TempPathFactory) -> FirstCalls:
    """A checkout after two first calls at the same time, and what these gave."""
    checkout = new_checkout(tmp_path_factory.mktemp("inv") / "a checkout")
    calls = [
        subprocess.Popen(
            [SH, str(checkout / "inv"), "first"],
            cwd=checkout,
            env=environment(checkout),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in calls]
    return checkout, [(code, out, err) for out, err, code in ended]


def test_is_posix_shell() -> None:
    done = subprocess.run([SH, "-n", str(ROOT / "inv")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(ROOT / "inv", os.X_OK)


def test_two_first_calls_at_once_install_once(
    first_calls: FirstCalls,
) -> None:
    checkout, ended = first_calls
    for code, out, err in ended:
        assert (code, out) == (0, f"{checkout}|first\n"), err
    assert sorted(INSTALLING in err for _, _, err in ended) == [False, True]


def test_later_call_installs_nothing_and_keeps_the_callers_directory(
    first_calls: FirstCalls, tmp_path: Path
) -> None:
    checkout, _ = first_calls
    # With no place to take packages from, an installation could only fail.
    env = environment(checkout, PIP_FIND_LINKS=str(tmp_path / "nothing"))
    done = call(checkout, "run", "--trace=my trace.jsonl", cwd=tmp_path, env=env)
    assert done.stderr == ""
    assert done.stdout == f"{tmp_path}|run|--trace=my trace.jsonl\n"


def test_later_call_does_not_need_to_find_python(first_calls: FirstCalls, stubs: Stubs) -> None:
    checkout, _ = first_calls
    done = call(checkout, "x", env={"PATH": str(stubs())})
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_hash_is_refused_and_leaves_no_stamp(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path / "checkout")
    (checkout / "requirements/run.txt").write_text(f"invoke==1.0 --hash=sha256:{'0' * 64}\n")
    first = call(checkout, "x")
    assert first.returncode == 1
    assert "DO NOT MATCH THE HASHES" in first.stderr
    assert "inv: the locked packages could not be installed" in first.stderr
    assert first.stdout == ""
    check = [sys.executable, str(checkout / "requirements/install.py"), "--check"]
    assert subprocess.run(check).returncode == 1


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    """Make a PATH that holds only what `inv` needs, and Pythons that answer as told."""

    def make(**pythons: tuple[int, str]) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "dirname").symlink_to(shutil.which("dirname") or "/usr/bin/dirname")
        for name, (status, version) in pythons.items():
            stub = folder / name.replace("_", ".")
            stub.write_text(f'#!{SH}\n[ "$1" = -I ] && exit {status}\necho {version}\n')
            stub.chmod(0o755)
        return folder

    return make


@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        ({}, ["and there is none.", "apt-get install python3 python3-venv"]),
        (
            {"python3": (3, "3.9.2")},
            ["and there is none; python3 is 3.9.2.", "apt-get install python3 python3-venv"],
        ),
        (
            {"python3": (3, "3.9.2"), "python3_12": (4, "3.12.1")},
            [
                "python3 is 3.9.2; python3.12 (3.12.1) lacks the modules venv and ensurepip.",
                "apt-get install python3-venv",
            ],
        ),
    ],
    ids=["no python", "too old", "without venv"],
)
def test_says_what_to_install(
    tmp_path: Path, stubs: Stubs, pythons: dict[str, tuple[int, str]], said: list[str]
) -> None:
    checkout = new_checkout(tmp_path / "checkout")
    done = call(checkout, "x", env={"PATH": str(stubs(**pythons))})
    assert done.returncode == 1
    assert done.stdout == ""
    assert all(line.startswith("inv: ") for line in done.stderr.splitlines()), done.stderr
    for text in said:
        assert text in done.stderr
    assert not (checkout / ".venv").exists()


def test_takes_the_first_python_that_will_do(tmp_path: Path, stubs: Stubs) -> None:
    path = stubs(python3=(3, "3.9.2"), python3_12=(0, "chosen"))
    # The stub passes the probe; started as the installer it only prints, so nothing is installed.
    (path / "python3.12").write_text(f'#!{SH}\necho "$0 $2" >&2\n[ "$2" = -c ]\n')
    checkout = new_checkout(tmp_path / "checkout")
    done = call(checkout, "x", env={"PATH": str(path)})
    assert done.stderr == f"{path}/python3.12 {checkout}/requirements/install.py\n"


def test_named_python_is_the_only_one_tried(tmp_path: Path, stubs: Stubs) -> None:
    checkout = new_checkout(tmp_path / "checkout")
    env = {"PATH": str(stubs(python3=(0, "3.12.1"))), "PYTHON": str(tmp_path / "my python")}
    done = call(checkout, "x", env=env)
    assert done.returncode == 1
    assert f"PYTHON is {tmp_path}/my python, which does not run." in done.stderr


@pytest.fixture
def installer(tmp_path: Path) -> ModuleType:
    path = new_checkout(tmp_path / "checkout") / "requirements/install.py"
    spec = importlib.util.spec_from_file_location("install_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeRun:
    """Stands for `install.run`: makes the folder instead of a venv, fails where told."""

    def __init__(self, venv: str) -> None:
        self.venv, self.commands = Path(venv), list[list[str]]()
        self.failure: BaseException | None = None

    def __call__(self, command: list[str], what: str) -> None:
        self.commands.append(command)
        if "venv" in command:
            shutil.rmtree(self.venv, ignore_errors=True)
            self.venv.mkdir()
        elif self.failure:
            raise self.failure


@pytest.fixture
def fake_run(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun(installer.VENV)
    monkeypatch.setattr(installer, "run", fake)
    monkeypatch.setattr(sys, "argv", ["install.py"])
    return fake


def test_broken_off_installation_leaves_no_stamp(installer: ModuleType, fake_run: FakeRun) -> None:
    assert installer.main() == 0
    assert installer.is_current()
    (Path(installer.HERE) / "dev.txt").write_text("# a new lock\n")
    assert not installer.is_current()
    fake_run.failure = KeyboardInterrupt()
    assert installer.main() == 130
    assert not installer.is_current()
    fake_run.failure = OSError(28, "No space left on device")
    assert installer.main() == 1
    assert not installer.is_current()
    fake_run.failure = None
    assert installer.main() == 0
    assert installer.is_current()
    count = len(fake_run.commands)
    assert installer.main() == 0
    assert len(fake_run.commands) == count


def test_installs_by_hash_and_leaves_the_index_to_pip(
    installer: ModuleType, fake_run: FakeRun
) -> None:
    installer.main()
    pip = fake_run.commands[-1]
    assert "--require-hashes" in pip
    assert [Path(pip[n + 1]).name for n, word in enumerate(pip) if word == "-r"] == [
        "run.txt",
        "build.txt",
        "dev.txt",
    ]
    decided = {"--index-url", "-i", "--extra-index-url", "--cert", "--proxy", "--isolated"}
    assert not decided & set(pip)


@pytest.mark.parametrize("change", ["python", "place"])
def test_stamp_of_another_python_or_place_is_stale(
    installer: ModuleType, fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    assert installer.main() == 0
    if change == "python":
        monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    else:
        monkeypatch.setattr(installer, "ROOT", "/elsewhere")
    assert not installer.is_current()


@pytest.mark.parametrize("name", ["run", "dev"])
def test_lock_files_are_complete(name: str) -> None:
    wanted = [
        line
        for line in (ROOT / f"requirements/{name}.in").read_text().splitlines()
        if line and not line.startswith(("#", "-"))
    ]
    lock = (ROOT / f"requirements/{name}.txt").read_text()
    pinned = {line.split("==")[0] for line in lock.splitlines() if "==" in line and line[0] != " "}
    assert set(wanted) <= pinned
    # Every pin is followed by at least one hash, and no address of an index stands in the file.
    blocks = lock.replace("\\\n", "").splitlines()
    assert all("--hash=sha256:" in line for line in blocks if "==" in line and line[0] != "#")
    assert "://" not in lock
    assert "--index-url" not in lock.replace("--no-emit-index-url", "")


def test_lock_files_agree() -> None:
    pins: dict[str, set[str]] = {}
    for name in ("run", "dev"):
        for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines():
            if "==" in line and line[0] not in " #":
                package, _, version = line.rstrip(" \\").partition("==")
                pins.setdefault(package, set()).add(f"{name} {version}")
    both = {k: v for k, v in pins.items() if len({item.split()[0] for item in v}) == 2}
    assert both, "the two files share packages"
    for package, versions in both.items():
        assert len({item.split(" ", 1)[1] for item in versions}) == 1, (package, versions)

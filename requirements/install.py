"""Make ``.venv`` from the hash-locked requirements beside this file; called by ``../inv``.

Standard library only. The stamp is written last, so an installation that breaks off is not taken
for a finished one; a lock that the kernel holds keeps two calls apart and ends with its process.
"""

from __future__ import annotations

import os
import sys

LOCK_FILES = ("run.txt", "build.txt", "dev.txt")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "installed.stamp")


class InstallError(Exception):
    """What went wrong, for the user."""


def key() -> str:
    """Say what a finished installation was made of: Python, place, and the lock files' hash."""
    import hashlib

    digest = hashlib.sha256()
    for name in LOCK_FILES:
        with open(os.path.join(HERE, name), "rb") as file:
            digest.update(file.read() + b"\0")
    # The place counts because the scripts in .venv/bin hold absolute paths: a checkout that was
    # moved or copied needs new ones.
    version = ".".join(map(str, sys.version_info[:3]))
    return f"python {version}\nroot {ROOT}\nlocks {digest.hexdigest()}\n"


def is_current() -> bool:
    """Tell whether ``.venv`` was completely installed from the present lock files."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            return file.read() == key()
    except OSError:
        return False


def install() -> None:
    """Make the virtual environment anew and install the locked packages into it."""
    say("installing the locked packages into .venv (only the first call and new locks take this)")
    # -I: the caller's directory may hold files named like the modules that are started here.
    run([sys.executable, "-I", "-m", "venv", "--clear", VENV], "the virtual environment")
    files = [word for name in LOCK_FILES for word in ("-r", os.path.join(HERE, name))]
    # pip keeps its own configuration (proxy, CA bundle, index). Only --no-user is forced: where a
    # machine sets PIP_USER, pip refuses to install into any virtual environment.
    pip = [os.path.join(VENV, "bin", "python"), "-I", "-m", "pip", "install", "--no-user"]
    options = ["--no-input", "--disable-pip-version-check", "--require-hashes"]
    run([*pip, *options, *files], "the locked packages")
    with open(STAMP + ".part", "w", encoding="utf-8") as file:
        file.write(key())
    os.replace(STAMP + ".part", STAMP)


def run(command: list[str], what: str) -> None:
    """Run ``command`` quietly; show all it printed only if it fails."""
    import subprocess

    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        sys.stderr.flush()
        sys.stderr.buffer.write(done.stdout)
        raise InstallError(f"{what} could not be installed; the reason stands above")


def say(line: str) -> None:
    """Tell the user, without mixing into what a task prints."""
    print(f"inv: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Install under a lock, unless another call did it in the meantime."""
    if sys.argv[1:] == ["--check"]:
        return 0 if is_current() else 1
    import fcntl

    try:
        with open(os.path.join(ROOT, ".venv.lock"), "wb") as lock:
            # The children inherit the lock: a pip that outlives a killed call keeps others out.
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another call that is installing")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_current():
                install()
    except (InstallError, OSError) as error:
        say(f"{error}. The next call starts over.")
        say("Proxy, CA bundle and index are pip's: PIP_PROXY, PIP_CERT, PIP_INDEX_URL, pip.conf.")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next call starts over")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

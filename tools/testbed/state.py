"""Where the testbed keeps its state, what it remembers there, and how its errors look."""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path


class TestbedError(Exception):
    """What went wrong, where, and what to try next; printed as one paragraph, exit code 2."""

    def __init__(self, what, where=None, next_step=None):
        super().__init__(what)
        self.what, self.where, self.next_step = what, where, next_step

    def paragraph(self):
        lines = [f"TestbedError: {self.what}"]
        lines += [f"  where  {self.where}"] if self.where else []
        lines += [f"  try    {self.next_step}"] if self.next_step else []
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Testbed:
    """One testbed: `hosts` machines joined by links of `rate`."""

    name: str
    hosts: int
    rate: str
    nics: int
    topology: str
    mtu: int
    delay_us: int
    tcp: str | None = None

    @property
    def prefix(self):
        return namespace_prefix(self.name)

    @property
    def host_names(self):
        return [f"h{i}" for i in range(1, self.hosts + 1)]

    def namespace(self, host):
        return self.prefix + host


def namespace_prefix(name):
    return f"dt_{name}_"


def root_dir():
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / "dovetail-testbed"


def state_dir(name):
    return root_dir() / name


def check_name(name):
    if not re.fullmatch(r"[a-z0-9-]{1,20}", name):
        raise TestbedError(
            f"testbed name {name!r} is not usable",
            "--name or $TESTBED_NAME",
            "1 to 20 lower-case letters, digits and '-'",
        )
    return name


def save(testbed):
    path = state_dir(testbed.name) / "testbed.json"
    path.write_text(json.dumps(dataclasses.asdict(testbed)) + "\n")


def load(name):
    """The testbed of this name, its hosts checked to be alive; TestbedError otherwise."""
    path = state_dir(name) / "testbed.json"
    if not path.exists():
        raise TestbedError(f"no testbed is up (name {name!r})", str(path), "testbed up 2 100mbit")
    testbed = Testbed(**json.loads(path.read_text()))
    for host in ["head", *testbed.host_names]:
        if init_pid(testbed, host) is None:
            raise TestbedError(
                f"host {host} of testbed {name!r} is gone", str(path), "testbed up again: it replaces the old one"
            )
    return testbed


def init_pid(testbed, host):
    """Pid of the host's first process, or None; a recycled pid is recognised by its network namespace."""
    try:
        pid = int((state_dir(testbed.name) / f"{host}.pid").read_text())
        here = os.stat(f"/proc/{pid}/ns/net").st_ino
        return pid if here == os.stat(f"/run/netns/{testbed.namespace(host)}").st_ino else None
    except (OSError, ValueError):
        return None


def names_up():
    """Names of all testbeds that have state on this machine."""
    return sorted(path.parent.name for path in root_dir().glob("*/testbed.json"))


def forget(name):
    shutil.rmtree(state_dir(name), ignore_errors=True)
    with contextlib.suppress(OSError):  # other testbeds are up, or there was none
        root_dir().rmdir()


@contextlib.contextmanager
def exclusive():
    """One `up` or `down` at a time on this machine; the lock is on a folder that is there anyway."""
    folder = os.open(root_dir().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def command(*words, stdin=None):
    """Run a system tool and return its stdout; its own words become the error."""
    done = subprocess.run(words, input=stdin, text=True, capture_output=True)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise TestbedError(f"{words[0]} failed: {said}", " ".join(words), "testbed check")
    return done.stdout

"""The commands of the documentation, and a machine on which they can be run as they are printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
# The first pages of a new user also have commands in their sentences. A name such as `make run` alone is none.
FIRST_PAGES = (ROOT / "README.md", ROOT / "docs" / "install.md")
_PROGRAMS = "make svcnode apt apt-get python3 podman docker buildah sha256sum install man systemctl curl".replace(
    " ", "|"
)
_IN_A_SENTENCE = re.compile(rf"`((?:\w+=\S+ )?(?:{_PROGRAMS}) [^`]+ [^`]+|\w+=\S+ make \w+|(?:eval|export) [^`]+)`")
HOME = "/tmp/docs"


class ShownCommand(NamedTuple):
    page: str  # such as docs/install.md
    section: str  # the heading above it
    text: str  # without its comment
    is_prompted: bool  # its output is shown, too

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def shown_commands(page: Path) -> Iterator[ShownCommand]:
    """Those in blocks of shell commands. In a block with prompts, the other lines are output."""
    name = str(page.relative_to(ROOT))
    section = ""
    for heading, block in re.findall(
        r"^##+ ([^\n]*)$|^```(?:sh|console)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        section = heading or section
        prompted = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
        for text in prompted or _scripts(block):
            yield ShownCommand(name, section, re.sub(r"\s+# .*$", "", text), bool(prompted))
    if page in FIRST_PAGES:
        for text in _IN_A_SENTENCE.findall(
            re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        ):
            yield ShownCommand(name, "", text, is_prompted=False)


def _scripts(block: str) -> list[str]:
    """Each line is a command, except in a block that defines a function, which is one script."""
    if re.search(r"^\w+\(\) \{", block, re.MULTILINE):
        return [block]
    return list(filter(None, block.splitlines()))


# Addresses of the pages are on loopback, and what is written to these folders is gone with the machine.
_SETUP = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
for folder in etc opt run tmp var; do
    mkdir /mnt/$folder /mnt/$folder.work
    mount -t overlay overlay -o lowerdir=/$folder,upperdir=/mnt/$folder,workdir=/mnt/$folder.work /$folder
done
ip link set lo up
for address in 10.0.0.1 10.0.0.2 10.0.0.3; do ip address add $address/32 dev lo; done
echo "127.0.0.1 localhost node-1
10.0.0.2 node-2.example.com node-7.example.com fleet.example.com" > /etc/hosts
mkdir -p /tmp/docs /etc/svcnode /run/secrets /var/lib/svcnode /var/lib/etcd
touch /tmp/docs/ready
exec sleep infinity
"""


class Machine:
    """This machine with a network and changes of its own. It needs root; it exists during its `with` block."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, for a network and folders of its own")
        self._holder = subprocess.Popen(["unshare", "--mount", "--net", "sh", "-c", _SETUP])
        self._started: list[subprocess.Popen[str]] = []
        wait_until(lambda: self.path(f"{HOME}/ready").exists(), "the machine is set up")
        self.environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": HOME,
            "HOSTNAME": "host-1",
            "LC_ALL": "C.UTF-8",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            self.stop(process)
        self._holder.kill()
        self._holder.wait()

    def path(self, name: str) -> Path:
        """Where a file of this machine is for others."""
        return Path(f"/proc/{self._holder.pid}/root{name}")

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text, encoding="utf-8")
        self.path(name).chmod(mode)

    def run(self, command: str, *, folder: str = HOME, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(command, folder),
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def start(self, command: str, *, terminal: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """A command that runs until it is stopped."""
        environ = {**self.environ, "TERM": "xterm"}
        process = subprocess.Popen(
            self._command(command),
            env=environ,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def stop(self, process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(DEADLINE_S)

    def wait_for(self, command: str) -> None:
        """Until the command succeeds."""
        wait_until(lambda: self.run(command).returncode == 0, command)

    def _command(self, command: str, folder: str = HOME) -> list[str]:
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount", "--net", f"--wdns={folder}"]
        return [*enter, "sh", "-c", command]

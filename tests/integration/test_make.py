"""The first minute: what `make run` installs, and what it says if it cannot run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from svcnode.control import ControlClient
from tests.support.ports import free_port
from tests.support.processes import Agent, run_command

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
MAKE = ("make", "--old-file=.venv/.run", "run")  # the environment of the tests is not installed again
# Interpreters that differ from this one in one point. They are called with -c.
OLD_PYTHON = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])"
PYTHON_WITHOUT_VENV = "import sys; sys.modules['ensurepip'] = None; exec(sys.argv[1])"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is not set up, as far as `make` needs it before it installs something."""
    pins = (f"requirements/{name}.txt" for name in ("build", "dev", "run", "uv"))
    for name in ("Makefile", "pyproject.toml", "scripts/check_python.sh", *pins):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make_run(folder: Path, *arguments: str) -> list[str]:
    """The lines of an unsuccessful `make run`, without the last one, which is of make itself."""
    environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    ended = run_command(["make", "run", *arguments], folder, **environ)
    assert ended.returncode == 2
    *lines, last = ended.stderr.splitlines()
    assert "***" in last
    assert not (folder / ".uv").exists(), "nothing is installed"
    return lines


# Installs nothing. Writes its arguments down, and fails if there is a file `broken`.
FAKE_UV = """#!/bin/sh
echo "$*" >> calls
mkdir -p .venv/bin
ln -sf /bin/true .venv/bin/svcnode
! [ -e broken ] || ! echo "$*" | grep -q requirements/dev.txt
"""


class Installer:
    """`make` in a checkout with a program in the place of uv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        uv = folder / "fake-uv"
        uv.write_text(FAKE_UV)
        uv.chmod(0o755)

    def make(self, target: str) -> tuple[int, list[str]]:
        """The exit code, and the files of pins that were installed."""
        calls = self.folder / "calls"
        calls.write_text("")
        ended = run_command(["make", target, "UV=./fake-uv", f"PYTHON={sys.executable}"], self.folder)
        return ended.returncode, re.findall(r"(run|dev)\.txt", calls.read_text())

    @property
    def marks(self) -> set[str]:
        return {file.name for file in (self.folder / ".venv").glob(".r*")}


def test_make_run_installs_only_what_runs_and_make_setup_the_rest(checkout: Path) -> None:
    installer = Installer(checkout)
    assert installer.make("demo") == (0, ["run"])
    assert installer.make("run") == (0, [])
    assert installer.make("setup") == (0, ["dev"])
    assert installer.make("run") == (0, []), "it leaves the complete environment as it is"
    os.utime(checkout / "pyproject.toml")
    assert installer.make("run") == (0, ["run"])
    assert installer.make("setup") == (0, ["dev"])


def test_an_installation_that_failed_is_repeated(checkout: Path) -> None:
    installer = Installer(checkout)
    installer.make("run")
    (checkout / "broken").touch()
    assert installer.make("setup") == (2, ["dev"])
    assert installer.marks == set()
    assert installer.make("run") == (0, ["run"])
    (checkout / "broken").unlink()
    assert installer.make("setup") == (0, ["dev"])
    assert installer.marks == {".run", ".ready"}


def add_python(folder: Path, code: str) -> None:
    file = folder / "bin" / "python3"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'#!/bin/sh\nexec \'{sys.executable}\' -c "{code}" "$2"\n')
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("python", "arguments", "parts"),
    [
        (OLD_PYTHON, (), ("3.11", "python3 is 3.9.2", "make run PYTHON=python3.12")),
        (OLD_PYTHON, ("PYTHON=python3.99",), ("python3.99 does not run",)),
        (PYTHON_WITHOUT_VENV, (), (f"apt-get install python3.{sys.version_info.minor}-venv", "make run PYTHON=")),
    ],
)
def test_a_python_that_cannot_be_used_is_named(
    checkout: Path, python: str, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    add_python(checkout, python)
    (line,) = make_run(checkout, *arguments)
    assert all(part in line for part in parts)


def test_without_the_tools_of_an_image_or_a_package_their_packages_are_named(tmp_path: Path) -> None:
    ended = run_command(["make", "image", "BUILDAH=buildah-that-is-not-installed --isolation chroot"], ROOT)
    line, last = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert "apt-get install buildah" in line
    assert "***" in last
    build_deb = ["/bin/sh", str(ROOT / "scripts" / "build_deb.sh")]
    ended = subprocess.run(build_deb, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "apt-get install --no-install-recommends dpkg-dev debhelper" in ended.stderr


def test_with_a_port_in_use_make_run_names_both_ways_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = [*MAKE, f"SVCNODE_SERVER_LISTEN=127.0.0.1:{other.getsockname()[1]}"]
        printed = run_command(command, ROOT, HOME=str(tmp_path)).stderr
    assert "stop the other process" in printed
    assert "SVCNODE_SERVER_LISTEN" in printed
    assert "Traceback" not in printed


def test_a_second_node_runs_beside_the_first_with_another_name_and_address(tmp_path: Path) -> None:
    variables = [f"SVCNODE_SERVER_LISTEN=127.0.0.1:{free_port()}", "SVCNODE_NODE_NAME=second"]
    state = {"XDG_STATE_HOME": str(tmp_path)}  # a short path, which a socket can have
    with Agent(tmp_path, "--listen", "127.0.0.1:0", environ=state) as first:
        first.wait_for_log("control socket: ")
        refused = run_command([*MAKE, variables[0]], ROOT, **state)
        assert refused.returncode == 2
        assert "SVCNODE_NODE_NAME" in refused.stderr
        environ = {"PATH": os.environ["PATH"], **state}
        command = [*MAKE, *variables]
        with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as second:
            assert second.stderr is not None
            lines = iter(second.stderr.readline, "")
            started = json.loads(next(line for line in lines if '"control_socket"' in line))
            with ControlClient(started["path"]) as client:
                node = client.node()
            os.kill(node["process_id"], signal.SIGKILL)
    assert node["node_name"] == "second"

"""The first minute: what `make run` says if it cannot run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, run_command

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
MAKE = ("make", "--old-file=.venv/.ready", "run")  # the environment of the tests is not installed again
# Interpreters that differ from this one in one point. They are called with -c.
OLD_PYTHON = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])"
PYTHON_WITHOUT_VENV = "import sys; sys.modules['ensurepip'] = None; exec(sys.argv[1])"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is not set up, as far as `make` needs it before it installs something."""
    for name in ("Makefile", "scripts/check_python.sh", "requirements/uv.txt"):
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


def add_python(folder: Path, code: str, name: str = "python3") -> None:
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'#!/bin/sh\nexec \'{sys.executable}\' -c "{code}" "$2"\n')
    file.chmod(0o755)


def test_an_old_python_is_named_with_the_version_that_is_needed(checkout: Path) -> None:
    add_python(checkout, OLD_PYTHON)
    (line,) = make_run(checkout)
    assert all(part in line for part in ("3.11", "python3 is 3.9.2", "make run PYTHON=python3.12"))


def test_a_python_that_does_not_exist_is_named(checkout: Path) -> None:
    (line,) = make_run(checkout, "PYTHON=python3.99")
    assert "python3.99 does not run" in line


def test_without_the_venv_module_its_package_is_named(checkout: Path) -> None:
    add_python(checkout, PYTHON_WITHOUT_VENV)
    (line,) = make_run(checkout)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"apt-get install python{version}-venv" in line
    assert "make run PYTHON=" in line


def test_without_the_tools_of_an_image_or_a_package_their_packages_are_named(tmp_path: Path) -> None:
    ended = run_command(["make", "image", "BUILDAH=buildah-that-is-not-installed --isolation chroot"], ROOT)
    line, last = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert "apt-get install buildah" in line
    assert "***" in last
    build_deb = ["/bin/sh", ROOT / "scripts" / "build_deb.sh"]
    ended = subprocess.run(build_deb, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "apt-get install --no-install-recommends dpkg-dev debhelper" in ended.stderr


def start_make(folder: Path, port: int) -> subprocess.Popen[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "SVCNODE_SERVER_DRAIN": "0s"}
    command = [*MAKE, f"SVCNODE_SERVER_LISTEN=127.0.0.1:{port}"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def test_with_a_port_in_use_make_run_names_both_ways_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, printed = start_make(tmp_path, other.getsockname()[1]).communicate(timeout=DEADLINE_S)
    assert "stop the other process" in printed
    assert "SVCNODE_SERVER_LISTEN" in printed
    assert "Traceback" not in printed

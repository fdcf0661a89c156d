"""A checkout in a bare Debian: the first commands of a new user."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.debian import Machine, bare_debian
from tests.support.ports import free_port
from tests.support.servers.base import wait_until
from tests.support.servers.provision import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
# The packages come from a folder: a test needs no index.
OFFLINE = {
    "HOME": "/root",
    "PIP_FIND_LINKS": "/packages",
    "PIP_NO_INDEX": "1",
    "UV_FIND_LINKS": "/packages",
    "UV_OFFLINE": "1",
}
IGNORED = shutil.ignore_patterns(".git", ".uv", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    machine = Machine(bare_debian("make", "python3-venv"), tmp_path_factory.mktemp("checkout"))
    shutil.copytree(ROOT, machine.path("/root/svcnode"), ignore=IGNORED)
    python = ROOT / ".uv" / "bin" / "python"
    version = machine.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", version)
    download = [str(python), "-m", "pip", "download", *options, "--dest", str(machine.path("/packages"))]
    for name in ("uv", "run", "build"):
        command = [*download, "--requirement", str(ROOT / "requirements" / f"{name}.txt")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if ended.returncode:
            skip_or_fail(f"the packages cannot be had: {ended.stderr[-500:]}")
    return machine


@contextmanager
def running(machine: Machine, target: str) -> Iterator[int]:
    """Yields the first answer to a request for the health of the node."""
    port = free_port()
    make = ("make", "-C", "/root/svcnode", target, f"SVCNODE_SERVER_LISTEN=127.0.0.1:{port}")
    with subprocess.Popen(machine.command(*make, environ=OFFLINE), stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or health(port) != 0, f"make {target}", TIMEOUT_S)
            yield health(port)
        finally:
            process.terminate()


def health(port: int) -> int:
    """0 if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/svc/node/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_make_run_answers_after_installing_at_most_20_packages(machine: Machine) -> None:
    with running(machine, "run") as answer:
        assert answer in (200, 206)
    installed = list(machine.path("/root/svcnode/.venv").glob("lib/*/site-packages/*.dist-info"))
    assert "svcnode" in {path.name.partition("-")[0] for path in installed}
    assert len(installed) <= 20


def test_make_demo_honours_the_same_variables_and_leaves_no_file(machine: Machine) -> None:
    def files() -> set[str]:
        return {file for file in machine.files() if file.startswith("/root") and "__pycache__" not in file}

    with running(machine, "run"):
        pass
    before = files()
    with running(machine, "demo") as answer:
        assert answer in (200, 206, 503)
    assert files() == before

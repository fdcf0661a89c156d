"""A probe kind of another package: built, installed and used. Packages with faults: tests/unit/probes/test_table.py.

A pure Python wheel is installed by unpacking it into a folder on PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support.example_apps import EXAMPLES
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = EXAMPLES / "svcnode-probe-spool"
SCHEDULE = {
    "SVCNODE_DEFAULTS_INTERVAL": "6s",
    "SVCNODE_DEFAULTS_TIMEOUT": "5s",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number}.msg").touch()


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_package_can_be_built_installed_tested_and_used(tmp_path: Path, spool: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(PACKAGE)]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("svcnode_probe_spool-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "site")}
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    own_tests = [sys.executable, "-W", "error", "-m", "pytest", "-q", "tests"]
    tested = subprocess.run(own_tests, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    arguments = ("--listen", "127.0.0.1:0", "--service", f"outbox=spool:{spool}")
    with Agent(tmp_path, *arguments, environ={**environ, **SCHEDULE}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})
        fill(spool, 100)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Initializing"})
        shutil.rmtree(spool)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Down"})
        spool.mkdir()
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})

"""A probe kind of another package: built, installed and used. Packages with faults: tests/unit/probes/test_table.py.

A pure Python wheel is installed by unpacking it into a folder on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support import commands
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


def test_a_check_and_a_wrong_option_of_a_kind_of_another_package(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "svcnode_probe_spool-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: svcnode-probe-spool\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[svcnode.probes]\nspool = svcnode_spool:SpoolProbe\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(PACKAGE / "src"))
    for files, expected in ((2, (0, "ready", "ok")), (3, (1, "not_ready", "lagging"))):
        fill(spool, files)
        done = commands.svcnode("probe", f"spool:{spool}", "-o", "max_files=3", "--json", folder=tmp_path)
        result = json.loads(done.stdout)
        assert (done.returncode, result["outcome"], result["code"], done.stderr) == (*expected, "")
    for option, hint in (("max_files=0", "1"), ("max_flies=3", '"max_files"?'), ("_thread=1", "unknown")):
        done = commands.svcnode("probe", f"spool:{spool}", "-o", option, folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"svcnode: {option.partition('=')[0]}: ")
        assert hint in done.stderr
    text = f'[[services]]\nid = "outbox"\n[services.probe]\nurl = "spool:{spool}"\nmax_files = "20"\n'
    (tmp_path / "svcnode.toml").write_text(text)
    done = commands.svcnode("check-config", folder=tmp_path)
    assert "services.outbox.probe.max_files: " in done.stderr
    assert "svcnode.toml:5" in done.stderr

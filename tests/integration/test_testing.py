"""The pytest plugin in the test suite of another project, in its own process; the example of such a suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import svcnode
from tests.support.example_apps import EXAMPLES, ROOT
from tests.support.processes import DEADLINE_S

NODE_AND_CLOCK = """
from svcnode import Status
from svcnode.testing import assert_health, assert_status

def test_a_silent_worker_is_down(svcnode_node, svcnode_clock):
    assert not svcnode_node.is_probing
    svcnode_node.register("worker", ttl="30s").up()
    assert_health(svcnode_node, 200)
    svcnode_clock.advance("31s")
    assert_status(svcnode_node, "worker", Status.DOWN)

def test_each_test_has_its_own_node(svcnode_node, svcnode_clock):
    assert (len(svcnode_node), svcnode_clock()) == (0, 0.0)
"""
WRONG_STATUS = """
from svcnode.testing import assert_status

def test_the_worker_is_up(svcnode_node):
    svcnode_node.register("worker").down("out of disk")
    assert_status(svcnode_node, "worker", "Up")
"""
LEFT_PROBING = """
import threading

def test_start_without_stop(svcnode_node):
    svcnode_node.start()

def test_the_thread_does_not_outlive_the_test():
    assert threading.active_count() == 1
"""
STOPPED = """
import asyncio

def test_start_and_stop(svcnode_node):
    svcnode_node.start()
    svcnode_node.stop()

def test_a_block(svcnode_node):
    async def probe():
        async with svcnode_node.probing():
            assert svcnode_node.is_probing
    asyncio.run(probe())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the entry points of pyproject.toml: the environment of the tests may be older."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"svcnode-{svcnode.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: svcnode\nVersion: {svcnode.__version__}\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["pytest11"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return folder


def run_pytest(folder: Path, site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = Path(svcnode.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": f"{site}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_fixtures_need_no_import_and_the_example_of_a_test_suite_passes(tmp_path: Path, site: Path) -> None:
    shutil.copy(EXAMPLES / "test_my_node.py", tmp_path)
    (tmp_path / "test_stopped.py").write_text(STOPPED)
    (tmp_path / "test_mine.py").write_text(NODE_AND_CLOCK)
    ended = run_pytest(tmp_path, site, "-v")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name in ("test_my_node", "test_stopped", "test_mine"):
        assert f"{name}.py::" in ended.stdout


def test_a_failed_assertion_shows_its_line_and_a_node_that_is_left_probing_fails_its_test(
    tmp_path: Path, site: Path
) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG_STATUS)
    (tmp_path / "test_left.py").write_text(LEFT_PROBING)
    ended = run_pytest(tmp_path, site)
    assert ended.returncode == 1
    assert '>       assert_status(svcnode_node, "worker", "Up")' in ended.stdout
    assert "reason:       out of disk" in ended.stdout
    assert "def assert_status" not in ended.stdout
    assert "1 failed, 2 passed, 1 error" in ended.stdout
    assert "ERROR test_left.py::test_start_without_stop" in ended.stdout
    assert "still probing" in ended.stdout


def test_pytest_lists_the_fixtures_and_the_plugin_can_be_turned_off_by_its_name(tmp_path: Path, site: Path) -> None:
    listed = run_pytest(tmp_path, site, "--fixtures").stdout.splitlines()
    for name in ("svcnode_clock", "svcnode_node"):
        [number] = [number for number, line in enumerate(listed) if line.startswith(f"{name} ")]
        assert listed[number + 1].strip() not in ("", "no docstring available")
    assert "svcnode_node" not in run_pytest(tmp_path, site, "--fixtures", "-p", "no:svcnode").stdout

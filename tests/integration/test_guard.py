"""A test run that is interrupted leaves nothing behind: tests/support/guard.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import endless_run
from tests.support.processes import DEADLINE_S
from tests.support.servers.base import list_processes, wait_until
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# What interrupts a run, and its options.
CASES = {
    "SIGINT": (signal.SIGINT, ["-k", "etcd"]),
    "SIGTERM": (signal.SIGTERM, ["-k", "etcd"]),
    "SIGKILL": (signal.SIGKILL, ["-k", "etcd"]),
    "SIGKILL with workers": (signal.SIGKILL, ["-k", "postgresql", "-n", "1"]),
}


class Run:
    """A pytest that runs real servers without end."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.report = folder / "report"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, endless_run.__file__],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "REPORT": str(self.report)},
            stdout=subprocess.DEVNULL,
        )

    def wait_until_started(self) -> dict[str, Any]:
        wait_until(lambda: self.report.exists() or self.process.poll() is not None, "the report", 2 * DEADLINE_S)
        report: dict[str, Any] = json.loads(self.report.read_text())
        return report


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """All at once: a start is mostly a wait."""
    folder = tmp_path_factory.mktemp("installed")
    for server in (EtcdServer(folder / "etcd"), PostgresServer(folder / "postgresql")):
        server.command()  # skips here, if one is not installed
    started = {name: Run(tmp_path_factory.mktemp("run"), *options) for name, (_, options) in CASES.items()}
    yield started
    for run in started.values():
        run.process.terminate()
        run.process.wait(DEADLINE_S)


@pytest.mark.parametrize("name", CASES)
def test_no_process_no_mount_and_no_folder_outlives_an_interrupted_run(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    report = run.wait_until_started()
    assert report["pids"]
    run.process.send_signal(CASES[name][0])
    run.process.wait(DEADLINE_S)
    left = set(report["pids"])
    wait_until(lambda: not any(each.pid in left for each in list_processes()), "no process left")
    wait_until(lambda: not Path(report["folder"]).parents[1].exists(), "no folder left")
    assert report["folder"] not in Path("/proc/self/mounts").read_text()


def test_an_installation_is_not_interrupted(runs: dict[str, Run]) -> None:
    run = runs["SIGKILL with workers"]
    run.wait_until_started()
    run.process.kill()
    wait_until(run.report.with_suffix(".installed").exists, "installed")

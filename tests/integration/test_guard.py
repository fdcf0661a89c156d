"""A test run that is interrupted leaves nothing behind: tests/support/guard.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import endless_run
from tests.support.processes import DEADLINE_S
from tests.support.servers.base import list_processes, wait_until
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.postgresql import PostgresServer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(8 * DEADLINE_S)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGKILL, ["-k", "etcd"]),
        pytest.param(signal.SIGINT, ["-k", "etcd"], marks=pytest.mark.wide),
        pytest.param(signal.SIGTERM, ["-k", "etcd"], marks=pytest.mark.wide),
        pytest.param(signal.SIGKILL, ["-k", "postgresql", "-n", "1"], marks=pytest.mark.wide),
    ],
    ids=["SIGKILL", "SIGINT", "SIGTERM", "SIGKILL with workers"],
)
def test_nothing_but_an_installation_outlives_an_interrupted_run(
    number: signal.Signals, options: list[str], tmp_path: Path
) -> None:
    for server in (EtcdServer(tmp_path / "etcd"), PostgresServer(tmp_path / "postgresql")):
        server.command()  # skips here, if one is not installed
    report_file = tmp_path / "report"
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, endless_run.__file__],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "REPORT": str(report_file)},
        stdout=subprocess.DEVNULL,
    ) as run:
        try:
            wait_until(lambda: report_file.exists() or run.poll() is not None, "the report", 4 * DEADLINE_S)
            report: dict[str, Any] = json.loads(report_file.read_text())
        finally:
            run.send_signal(number)
    left = set(report["pids"])
    assert left
    wait_until(lambda: not any(each.pid in left for each in list_processes()), "no process left", DEADLINE_S)
    wait_until(lambda: not Path(report["folder"]).parents[1].exists(), "no folder left", DEADLINE_S)
    assert report["folder"] not in Path("/proc/self/mounts").read_text()
    if "postgresql" in options:
        wait_until(report_file.with_suffix(".installed").exists, "installed", DEADLINE_S)

"""Tests that do not end: tests/integration/test_guard.py interrupts them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

from tests.support.disks import MemoryDisk
from tests.support.processes import Agent
from tests.support.servers.base import descendants
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.postgresql import PostgresServer


def test_etcd(tmp_path: Path) -> None:
    disk = MemoryDisk(tmp_path / "disk")
    with EtcdServer(tmp_path / "etcd"), Agent(tmp_path), disk if os.geteuid() == 0 else nullcontext():
        report_and_wait(tmp_path)


def test_postgresql(tmp_path: Path) -> None:
    """While a package is being installed."""
    install = tmp_path / "apt-get"
    install.write_text(f'#!/bin/sh\nwhile kill -0 {os.getpid()}; do sleep 0.1; done\ntouch "$REPORT.installed"\n')
    install.chmod(0o755)
    with PostgresServer(tmp_path / "postgresql"), subprocess.Popen([install]):
        report_and_wait(tmp_path)


def report_and_wait(folder: Path) -> None:
    pids = [each.pid for each in descendants(os.getpid())]
    report = Path(os.environ["REPORT"])
    report.with_suffix(".new").write_text(json.dumps({"pids": pids, "folder": str(folder)}))
    report.with_suffix(".new").rename(report)
    time.sleep(600)

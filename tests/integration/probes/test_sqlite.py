"""SQLite probes that write to a database on a file system of its own: full, read-only, after an error, and frozen."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.disks import LoopDisk
from tests.support.servers.base import wait_until
from tests.support.verdicts import READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.core.model import Verdict
    from svcnode.probes.base import Probe

HANG_TIMEOUT_S = 0.5
WAIT_TIMEOUT_S = 30.0


def run(probe: Probe, timeout_s: float = WAIT_TIMEOUT_S) -> Verdict:
    verdict, error = asyncio.run(run_check(probe, timeout_s))
    assert error is None
    return verdict


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path / "disk", size_bytes=4 * 1024**2) as disk:
        yield disk


@pytest.fixture(params=["delete", "wal"])
def url(disk: LoopDisk, request: pytest.FixtureRequest) -> str:
    path = disk.path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {request.param}")
        database.execute("CREATE TABLE svcnode_write (slot INTEGER PRIMARY KEY, written_at TEXT NOT NULL)")
    return f"sqlite:{path}"


@pytest.mark.parametrize(("fault", "code"), [("full", ReasonCode.STORAGE_FULL), ("read_only", ReasonCode.READ_ONLY)])
def test_a_write_to_a_full_disk_or_a_read_only_mount_is_not_ready(
    disk: LoopDisk, url: str, fault: str, code: ReasonCode
) -> None:
    probe = make_probe({"url": url, "write": True})
    with getattr(disk, fault)():
        assert run(make_probe(url)) == READY
        assert run(probe) == not_ready(code)
    assert run(probe) == READY


def test_a_write_to_a_disk_after_an_error_is_not_ready(disk: LoopDisk, url: str) -> None:
    probe = make_probe({"url": url, "write": True})
    assert run(probe) == READY
    disk.report_error()
    assert run(probe) == not_ready(ReasonCode.READ_ONLY)


def test_a_write_that_hangs_is_failed_until_the_disk_works_again(disk: LoopDisk, url: str) -> None:
    probe = make_probe({"url": url, "write": True})
    with disk.frozen():
        assert run(make_probe(url), HANG_TIMEOUT_S) == READY
        assert run(probe, HANG_TIMEOUT_S) == failed(ReasonCode.WRITE_TIMEOUT)
        assert run(probe, HANG_TIMEOUT_S) == failed(ReasonCode.STILL_RUNNING)
    wait_until(lambda: run(probe) == READY, "ready again")

"""The tests of a program that embeds a node. Run them with `pytest test_my_node.py`; the fixtures come with svcnode."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

from svcnode import Node, Outcome, ReasonCode, Status, Verdict
from svcnode.testing import FakeClock, assert_health, assert_status, run_check

if TYPE_CHECKING:
    import pytest

# ---- the program


def disk_has_space() -> Verdict:
    free_bytes = shutil.disk_usage("/").free
    if free_bytes > 1_000_000_000:
        return Verdict.ready()
    return Verdict.failed(f"{free_bytes} bytes free", code=ReasonCode.DISK_LOW)


def register_services(node: Node) -> None:
    node.register("worker", ttl="30s", impact="critical")
    node.check("disk", interval="5s")(disk_has_space)


# ---- its tests


def test_the_node_is_unhealthy_without_heartbeats(svcnode_node: Node, svcnode_clock: FakeClock) -> None:
    register_services(svcnode_node)
    svcnode_node.beat("worker")
    assert_status(svcnode_node, "worker", Status.UP)

    svcnode_clock.advance("31s")
    assert_status(svcnode_node, "worker", Status.DOWN, code=ReasonCode.TTL_EXPIRED)
    assert_health(svcnode_node, 503)


def test_a_full_disk_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    verdict = run_check(disk_has_space)
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, ReasonCode.DISK_LOW)


def test_the_last_success_becomes_stale(svcnode_node: Node, svcnode_clock: FakeClock) -> None:
    register_services(svcnode_node)
    svcnode_node.record("disk", Verdict.ready())
    assert_status(svcnode_node, "disk", Status.UP)

    svcnode_clock.advance("1m")
    assert_status(svcnode_node, "disk", Status.INITIALIZING, code=ReasonCode.STALE)


def test_a_closed_port_is_failed() -> None:
    assert run_check("tcp://127.0.0.1:1").code == ReasonCode.CONNECTION_REFUSED

"""History, notifications and metrics of an embedded node run as long as its checks."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry

from svcnode import Node, Verdict, prometheus_collector
from svcnode.agent.embed.node import internals_of
from svcnode.core.errors import ConfigError, SvcnodeError

if TYPE_CHECKING:
    from pathlib import Path

DOWN = Verdict.failed("out of disk")


@pytest.fixture
def node() -> Node:
    node = Node("validator-7", version="v1")
    node.register("indexer").up()
    return node


def kinds(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [kind for (kind,) in database.execute("SELECT kind FROM transitions ORDER BY id")]


def probe_once(node: Node) -> None:
    async def run() -> None:
        async with node.probing():
            node.report("indexer", DOWN)

    asyncio.run(run())


def test_the_history_continues_at_the_next_start_also_of_checks_in_a_thread(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    node.record_history(str(path))
    probe_once(node)
    node.report("indexer", DOWN)
    node.start()
    node.stop()
    assert kinds(path) == ["started", "status", "stopped", "started", "stopped"]


WEBHOOK = {"webhook": "https://a.example"}


@pytest.mark.parametrize(
    ("method", "options", "key"),
    [
        ("record_history", {"path": ""}, "history.path"),
        ("record_history", {"path": "h.db", "max_age": "1m"}, "history.max_age"),
        ("record_history", {"path": "h.db", "max_size": "1KiB"}, "history.max_size"),
        ("record_history", {"path": "h.db", "maxage": "90d"}, "history.maxage"),
        ("notify", {}, "notify"),
        ("notify", {"webhook": "not a url"}, "notify.webhook"),
        ("notify", {"webhook": "https://a.example/${SVCNODE_TEST_NO_SUCH_VARIABLE}"}, "notify.webhook"),
        ("notify", {**WEBHOOK, "services": "some"}, "notify.services"),
        ("notify", {"webhok": "https://a.example"}, "notify.webhok"),
    ],
)
def test_a_bad_option_is_named(node: Node, method: str, options: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(node, method)(**options)
    assert caught.value.key == key


def test_alerts_are_shown_only_while_notifications_are_sent(node: Node) -> None:
    node.notify(webhook="https://a.example")
    status = internals_of(node).embedding.surface._notify_status
    found = []

    async def run() -> None:
        async with node.probing():
            found.append(status.alerts)

    asyncio.run(run())
    assert found[0] is not None
    assert status.alerts is None


@pytest.mark.parametrize("is_embedded", [True, False])
def test_nothing_can_be_added_while_the_checks_run(node: Node, tmp_path: Path, *, is_embedded: bool) -> None:
    if is_embedded:
        _ = internals_of(node).embedding

    async def run() -> None:
        async with node.probing():
            for add in (node.record_history, node.share_states, lambda _: node.notify(**cast("Any", WEBHOOK))):
                with pytest.raises(SvcnodeError, match="before they start"):
                    add(tmp_path / "file")

    asyncio.run(run())


def test_the_metrics_of_a_node_are_in_the_registry_of_the_program_and_more_while_the_checks_run(node: Node) -> None:
    registry = CollectorRegistry()
    registry.register(prometheus_collector(node))
    found = []

    async def run() -> None:
        async with node.probing():
            found.append(registry.get_sample_value("svcnode_history_healthy"))

    asyncio.run(run())
    assert found == [1.0]
    assert registry.get_sample_value("svcnode_history_healthy") is None
    assert registry.get_sample_value("svcnode_config_last_reload_successful") is None, "there is no configuration"
    assert registry.get_sample_value("svcnode_node_health_code") == 200
    node.report("indexer", DOWN)
    assert registry.get_sample_value("svcnode_service_status", {"service_id": "indexer", "status": "Down"}) == 1
    assert registry.get_sample_value("svcnode_checks_total", {"service_id": "indexer", "outcome": "failed"}) == 1

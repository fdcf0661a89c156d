"""Log lines of the agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from svcnode.agent.services import ConfigDiff, ConfiguredServices
from svcnode.config import ServiceSettings
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Status, Verdict
from svcnode.definition import define
from svcnode.logs import JsonFormatter
from svcnode.node import Node
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

NOON_S = 1_767_268_800


def fixed(service_id: str, status: Status) -> ServiceSettings:
    return ServiceSettings(definition=define(service_id), status=status)


def lines(records: list[logging.LogRecord]) -> str:
    """Each line as text, and below it its JSON fields."""
    formatter = JsonFormatter()
    shown = []
    for record in records:
        shown.append(f"{record.levelname.lower():7} {record.getMessage()}")
        shown.append("        " + formatter.format(record).partition('"message": ')[2])
    return "\n".join(shown)


def test_log_lines_of_changes(caplog: pytest.LogCaptureFixture, snapshot: Callable[[str, str], None]) -> None:
    clock = VirtualClock()
    node = Node("validator-7", version="v1", clock=clock, wall_clock=lambda: NOON_S + clock.now_s)
    services = ConfiguredServices(node)
    caplog.set_level(logging.DEBUG, "svcnode")
    probed = ServiceSettings(definition=define("db", probe="tcp://127.0.0.1:5432"))
    services.apply([probed, fixed("a", Status.UP), fixed("b", Status.DOWN)])
    refused = Verdict.failed("connection refused: 127.0.0.1:5432", code=ReasonCode.CONNECTION_REFUSED)
    for verdict in (Verdict.ready(), refused, refused, refused):
        node.record("db", verdict)
        clock.advance(2.0)
    services.apply([fixed("a", Status.DOWN)])
    services.apply([])
    node.drain()
    snapshot("log_lines_of_changes", lines(caplog.records))


def test_the_result_of_a_reload(snapshot: Callable[[str, str], None]) -> None:
    diffs = [
        ConfigDiff(),
        ConfigDiff(added=("a", "b")),
        ConfigDiff(removed=("a",), added=("b",), changed=("c", "d")),
        ConfigDiff(added=tuple(f"s{number}" for number in range(1000))),
    ]
    snapshot("result_of_a_reload", "\n".join(map(str, diffs)))

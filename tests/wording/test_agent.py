"""Log lines of the agent."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from svcnode.agent.configured_services import ConfigDiff, ConfiguredServices
from svcnode.agent.files import check_history_move, log_history_location
from svcnode.agent.logs import JsonFormatter
from svcnode.agent.watchdog import LOOP_HANGS, OUT_OF_MEMORY, STOP_HANGS
from svcnode.config import ServiceSettings, load
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ConfigError
from svcnode.core.model import Status, Verdict
from svcnode.net.threads import ThreadRefusedError
from svcnode.node.definition import define
from tests.support.nodes import make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.wording.conftest import Snapshot

NOON_S = 1_767_268_800


def fixed(service_id: str, status: Status) -> ServiceSettings:
    return ServiceSettings(definition=define(service_id), status=status)


def lines(records: list[logging.LogRecord]) -> str:
    """Each line as text, and below it its JSON fields."""
    formatter = JsonFormatter()
    shown = []
    for line in records:
        shown.append(f"{line.levelname.lower():7} {line.getMessage()}")
        shown.append("        " + formatter.format(line).partition('"message": ')[2])
    return "\n".join(shown)


def test_log_lines_of_changes(caplog: pytest.LogCaptureFixture, snapshot: Snapshot) -> None:
    clock = VirtualClock()
    node = make_node("validator-7", version="v1", clock=clock, wall_clock=lambda: NOON_S + clock.now_s)
    services = ConfiguredServices(node)
    caplog.set_level(logging.DEBUG, "svcnode")
    probed = ServiceSettings(definition=define("db", probe="tcp://127.0.0.1:5432"))
    asyncio.run(services.apply([probed, fixed("a", Status.UP), fixed("b", Status.DOWN)]))
    refused = Verdict.failed("connection refused: 127.0.0.1:5432", code=ReasonCode.CONNECTION_REFUSED)
    for verdict in (Verdict.ready(), refused, refused, refused):
        record(node, "db", verdict)
        clock.advance(2.0)
    asyncio.run(services.apply([fixed("a", Status.DOWN)]))
    asyncio.run(services.apply([]))
    node.overrides.drain()
    snapshot("log_lines_of_changes", lines(caplog.records))


def test_the_result_of_a_reload(snapshot: Snapshot) -> None:
    diffs = [
        ConfigDiff(),
        ConfigDiff(others=("operator token", "[notify]")),
        ConfigDiff(added=("a", "b")),
        ConfigDiff(removed=("a",), added=("b",), changed=("c", "d")),
        ConfigDiff(added=tuple(f"s{number}" for number in range(1000))),
    ]
    snapshot("result_of_a_reload", "\n".join(map(str, diffs)))


def test_the_location_of_the_history(caplog: pytest.LogCaptureFixture, snapshot: Snapshot, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "svcnode")
    settings = [load(None, {"STATE_DIRECTORY": str(tmp_path), "SVCNODE_NODE_NAME": name}) for name in ("one", "two")]
    for setting in settings:
        assert setting.history.path is not None
        assert setting.history.shared_path is not None
        log_history_location(setting.history)
        setting.history.path.parent.mkdir(parents=True)
        setting.history.path.touch()
        setting.history.shared_path.touch()
    try:
        check_history_move(*settings)
    except ConfigError as exc:
        logging.getLogger("svcnode").error("%s", exc)  # noqa: TRY400  the text
    text = "\n".join(f"{record.levelname.lower():7} {record.getMessage()}" for record in caplog.records)
    snapshot("location_of_the_history", text.replace(str(tmp_path), "/var/lib/svcnode"))


def test_the_last_line_of_a_process(snapshot: Snapshot) -> None:
    texts = [OUT_OF_MEMORY, LOOP_HANGS, STOP_HANGS]
    snapshot("last_line", "".join(text.decode() for text in texts) + f"svcnode: {ThreadRefusedError()}")

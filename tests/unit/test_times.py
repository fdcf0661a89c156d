"""Every time that people read is in UTC and says so, whatever the zone of the machine is."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import svcnode
from svcnode.agent.logs import JsonFormatter, TextFormatter
from svcnode.cli.history import text_lines
from svcnode.cli.probe import _format_json, _format_line, _ProbeResult
from svcnode.cli.terminal.explain.explanation import explain_node, explain_service
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.operator.page import page
from svcnode.operator.problems import problems
from tests.support.operator_context import STARTED_AT_S, OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(svcnode.__file__).parent
SNAPSHOTS = Path(__file__).parents[1] / "wording" / "snapshots"
TIME = re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?P<zone> UTC|Z|[+-][0-9]{2}:[0-9]{2})?")
REFUSED = Verdict.failed("connection refused", code=ReasonCode.CONNECTION_REFUSED)


def times_without_zone(text: str) -> list[str]:
    return [found[0] for found in TIME.finditer(text) if not found["zone"]]


@pytest.fixture
def harness(local_time: None) -> OperatorHarness:
    """Since 08:00:00 UTC, which is 13:45:00 in the zone of the machine, the ledger is Down."""
    harness = OperatorHarness()
    harness.node.register("db", name="Ledger", probe="tcp://db:5432", start_period=0.0)
    harness.record("db", REFUSED, REFUSED, REFUSED, interval_s=1.0)
    return harness


def texts(harness: OperatorHarness) -> Iterator[str]:
    document = json.loads(harness.request(problems).body)
    yield "\n".join(explain_node(document).lines)
    yield "\n".join(explain_service(harness.details("db")).lines)
    yield harness.request(page).body.decode()
    result = _ProbeResult(at_s=STARTED_AT_S, verdict=REFUSED, duration_s=0.1, steps=[])
    yield _format_line("tcp://db:5432", result)
    yield _format_json("tcp://db:5432", result)
    outage = {"type": "outage", "service": "db", "status": "Down", "reason": "refused", "duration_s": 3.0, "open": True}
    yield "\n".join(text_lines([{**outage, "from": "2027-01-15T08:00:00.000Z"}], (STARTED_AT_S, STARTED_AT_S + 60)))
    record = logging.makeLogRecord({"msg": "db is Down", "levelname": "WARNING", "created": STARTED_AT_S})
    yield TextFormatter().format(record)
    yield JsonFormatter().format(record)


def test_commands_page_and_log_show_the_same_time_in_utc(harness: OperatorHarness) -> None:
    for text in texts(harness):
        assert re.search("08:00:0[0-9]", text), text
        assert "13:45" not in text
        assert times_without_zone(text) == []


def test_no_text_that_is_reviewed_has_a_time_without_a_zone() -> None:
    files = sorted(SNAPSHOTS.rglob("*.txt"))
    found = {str(file.relative_to(SNAPSHOTS)): times_without_zone(file.read_text()) for file in files}
    assert sum(map(bool, files)) > 20
    assert {name: times for name, times in found.items() if times} == {}


def test_no_code_formats_a_time_in_the_zone_of_the_machine_or_of_the_browser() -> None:
    """The one function of each language is `utc_text` and `utcText`; `iso_time` is for programs."""
    forbidden = {
        "*.py": r"\.strftime\(|\.astimezone\(\)|\blocaltime\(|:%H:%M:%S",
        "*.js": r"toLocale(Date|Time)?String|DateTimeFormat|\.get(Hours|Minutes|Day|Date|TimezoneOffset)\(",
    }
    found = [
        (file.name, line.strip())
        for pattern, expression in forbidden.items()
        for file in SOURCE.rglob(pattern)
        for line in file.read_text().splitlines()
        if re.search(expression, line) and "gmtime" not in line
    ]
    assert found == []

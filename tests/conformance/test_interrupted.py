"""An interrupted run sends no more requests, closes its connections and reports the results so far."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.checks import CHECKS
from svcnode.conformance.run import STOPPED_REASON, CheckOutcome, Report, run_checks
from svcnode.conformance.target import parse_target
from tests.conformance.conforming_node import ConformingNode, NodeServer
from tests.support.http_server import becomes_true

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.conformance.check import Check

NAMES = [check.name for check in CHECKS]


@pytest.fixture
def server() -> Iterator[NodeServer]:
    with NodeServer(ConformingNode().respond) as running:
        yield running


def stopped_at(name: str, server: NodeServer) -> Report:
    """The report of a run that is stopped when this check starts."""

    async def run() -> Report:
        stopped = asyncio.get_running_loop().create_future()

        def stop(check: Check) -> None:
            if check.name == name:
                stopped.set_result(None)

        return await run_checks(parse_target(server.url), timeout_s=60.0, on_check=stop, stopped=stopped)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["version-supported-on-identity", "parallel-requests"])
def test_results_before_the_stop_are_kept_and_the_other_checks_are_skipped(name: str, server: NodeServer) -> None:
    report = stopped_at(name, server)
    index = NAMES.index(name)
    assert [result.check.name for result in report.results] == NAMES
    assert {result.outcome for result in report.results[:index]} == {CheckOutcome.PASSED}
    assert {(result.outcome, result.skip_reason) for result in report.results[index:]} == {
        (CheckOutcome.SKIPPED, STOPPED_REASON)
    }
    assert re.findall(r"\d+", report.interrupted) == [str(len(CHECKS) - index), str(len(CHECKS))]
    assert becomes_true(lambda: server.open_connections == 0)
    if name.startswith("version-"):
        assert len([request for request in server.requests if request.query]) <= 1, "of the running check"
        assert {request.method for request in server.requests} == {"GET"}


def test_an_interrupted_report_has_its_remarks() -> None:
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        report = stopped_at("version-supported-on-identity", server)
    assert len(report.remarks) == 1


def test_a_stop_before_the_first_response_leaves_no_results(server: NodeServer) -> None:
    async def run() -> Report:
        stopped = asyncio.get_running_loop().create_future()
        stopped.set_result(None)
        return await run_checks(parse_target(server.url), timeout_s=60.0, stopped=stopped)

    report = asyncio.run(run())
    assert (report.results, report.unreachable) == ((), "")
    assert re.findall(r"\d+", report.interrupted) == [str(len(CHECKS))] * 2

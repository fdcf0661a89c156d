"""A run that is stopped: it asks no more, keeps no connection, and tells what was judged by then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.checks import CHECKS
from svcnode.conformance.run import CheckOutcome, Report, RunOptions, run_checks
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
    """Stopped when the check of this name begins, which has to ask something."""

    async def judged() -> Report:
        stopped = asyncio.get_running_loop().create_future()

        def stop(check: Check) -> None:
            if check.name == name:
                stopped.set_result(None)

        return await run_checks(RunOptions(target=parse_target(server.url), progress=stop), stopped=stopped)

    return asyncio.run(judged())


@pytest.mark.parametrize("name", ["service-health-code", "version-supported-on-identity", "parallel-requests"])
def test_what_was_judged_before_the_stop_is_kept_and_the_rest_is_not_judged(name: str, server: NodeServer) -> None:
    report = stopped_at(name, server)
    place = NAMES.index(name)
    assert [result.check.name for result in report.results] == NAMES
    assert {result.outcome for result in report.results[:place]} == {CheckOutcome.PASSED}
    assert {(result.outcome, result.skip_reason) for result in report.results[place:]} == {
        (CheckOutcome.SKIPPED, "stopped before it was judged")
    }
    assert report.interrupted == f"stopped with {len(CHECKS) - place} of {len(CHECKS)} checks not made"
    assert becomes_true(lambda: server.open_connections == 0)


def test_after_the_stop_nothing_more_is_asked(server: NodeServer) -> None:
    stopped_at("version-supported-on-identity", server)
    assert becomes_true(lambda: server.open_connections == 0)
    assert len([asked for asked in server.requests if asked.query]) <= 1, "that of the check that was under way"
    assert {asked.method for asked in server.requests} == {"GET"}


def test_what_has_to_be_known_beside_the_checks_is_told_all_the_same() -> None:
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        report = stopped_at("version-supported-on-identity", server)
    assert report.remarks == ("No service is listed, so nothing about the health of services could be seen.",)


def test_a_stop_before_the_first_answer_leaves_no_results(server: NodeServer) -> None:
    async def judged() -> Report:
        stopped = asyncio.get_running_loop().create_future()
        stopped.set_result(None)
        return await run_checks(RunOptions(target=parse_target(server.url)), stopped=stopped)

    report = asyncio.run(judged())
    assert (report.results, report.unreachable) == ((), "")
    assert report.interrupted == f"stopped with {len(CHECKS)} of {len(CHECKS)} checks not made"


def test_a_stop_that_never_comes_changes_nothing(server: NodeServer) -> None:
    async def judged() -> Report:
        return await run_checks(
            RunOptions(target=parse_target(server.url)), stopped=asyncio.get_running_loop().create_future()
        )

    report = asyncio.run(judged())
    assert (report.interrupted, report.conforms()) == ("", True)

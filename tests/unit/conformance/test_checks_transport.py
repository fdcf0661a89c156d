"""Findings of fifty concurrent requests: not accepted, without a response, or wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.conformance.checks import transport
from svcnode.conformance.checks.transport import PARALLEL_REQUESTS, parallel_requests
from svcnode.conformance.http_client import NoResponseError, RequestLine
from svcnode.conformance.interface import Endpoint
from svcnode.conformance.node_under_test import Exchange
from svcnode.conformance.response import RawResponse

if TYPE_CHECKING:
    from svcnode.conformance.node_under_test import Finding, NodeUnderTest

HEALTH = Endpoint("health", "/node/health", (200, 206, 503))
REQUEST = RequestLine("GET", "/svc/node/health")
CORRECT = Exchange(REQUEST, RawResponse(200))
WRONG = Exchange(REQUEST, RawResponse(500))
NOT_ACCEPTED = NoResponseError(REQUEST, "connection refused", is_connected=False)
NOT_ANSWERED = NoResponseError(REQUEST, "timeout", is_timeout=True)


class FakeNode:
    """A node with one endpoint; `failures` are the counts and outcomes of failed requests."""

    def __init__(self, *failures: tuple[int, Exchange | NoResponseError]) -> None:
        failed = [outcome for count, outcome in failures for _ in range(count)]
        self._outcomes = [*failed, *[CORRECT] * (PARALLEL_REQUESTS - len(failed))]

    async def require_endpoints(self) -> list[Endpoint]:
        return [HEALTH]

    def request(self, path: str) -> RequestLine:
        return RequestLine("GET", f"/svc{path}")

    async def send_in_parallel(self, requests: list[RequestLine]) -> list[Any]:
        assert requests == [REQUEST] * PARALLEL_REQUESTS
        return self._outcomes


def findings(*failures: tuple[int, Exchange | NoResponseError]) -> list[Finding]:
    async def run() -> list[Finding]:
        return [finding async for finding in parallel_requests.function(cast("NodeUnderTest", FakeNode(*failures)))]

    return asyncio.run(run())


def test_fifty_correct_responses_give_no_finding() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("failure", "fix"),
    [(NOT_ACCEPTED, transport._BACKLOG_FIX), (NOT_ANSWERED, transport._CONCURRENCY_FIX), (WRONG, "")],
)
def test_failures_are_counted_and_have_their_own_fix(failure: Exchange | NoResponseError, fix: str) -> None:
    (finding,) = findings((7, failure))
    assert finding.actual.startswith("7 ")
    assert finding.fix == fix


def test_each_kind_of_failure_is_a_finding() -> None:
    found = findings((1, NOT_ACCEPTED), (2, NOT_ANSWERED), (3, WRONG))
    assert [finding.actual.split()[0] for finding in found] == ["1", "2", "3"]

"""Fifty requests at once: what is told of those that were not accepted, not answered, or answered wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.conformance.checks.transport import PARALLEL_REQUESTS, parallel_requests
from svcnode.conformance.http_client import NoResponseError, RawResponse, RequestLine
from svcnode.conformance.interface import Endpoint
from svcnode.conformance.node_under_test import Exchange

if TYPE_CHECKING:
    from svcnode.conformance.node_under_test import Finding

HEALTH = Endpoint("health", "/node/health", (200, 206, 503))
ASKED = RequestLine("GET", "/svc/node/health")
RIGHT = Exchange(ASKED, RawResponse(200))
WRONG = Exchange(ASKED, RawResponse(500))
NOT_ACCEPTED = NoResponseError(ASKED, "connection refused", is_connected=False)
NOT_ANSWERED = NoResponseError(ASKED, "no whole answer within 8 s", is_timeout=True)


class Crowd:
    """A node of one endpoint, which so many of the fifty requests come to grief at."""

    def __init__(self, *faults: tuple[int, Exchange | NoResponseError]) -> None:
        faulty = [outcome for count, outcome in faults for _ in range(count)]
        self._outcomes = [*faulty, *[RIGHT] * (PARALLEL_REQUESTS - len(faulty))]

    async def require_endpoints(self) -> list[Endpoint]:
        return [HEALTH]

    def request(self, path: str) -> RequestLine:
        return RequestLine("GET", f"/svc{path}")

    async def send_in_parallel(self, requests: list[RequestLine]) -> list[Any]:
        assert requests == [ASKED] * PARALLEL_REQUESTS
        return self._outcomes


def findings(*faults: tuple[int, Exchange | NoResponseError]) -> list[Finding]:
    async def judged() -> list[Finding]:
        return [finding async for finding in parallel_requests.function(cast("NodeUnderTest", Crowd(*faults)))]

    return asyncio.run(judged())


def test_fifty_right_answers_are_no_finding() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("fault", "came", "mend"),
    [
        (NOT_ACCEPTED, "7 of them not accepted: connection refused", "Let more connections wait until they are"),
        (NOT_ANSWERED, "7 of them without one: no whole answer within 8 s", "Serve connections side by side"),
        (WRONG, "7 of 50 wrong, the first 500 with no body", ""),
    ],
)
def test_what_went_wrong_is_counted_and_has_a_mend_of_its_own(
    fault: Exchange | NoResponseError, came: str, mend: str
) -> None:
    (finding,) = findings((7, fault))
    assert finding.actual == came
    assert finding.fix.startswith(mend)
    assert bool(finding.fix) is bool(mend)


def test_one_kind_does_not_hide_another() -> None:
    told = findings((1, NOT_ACCEPTED), (2, NOT_ANSWERED), (3, WRONG))
    assert [finding.actual.split()[0] for finding in told] == ["1", "2", "3"]

"""Fifty requests at once: what is told of those that were not accepted, not answered, or answered wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.conformance.checks.transport import IN_PARALLEL, parallel_requests
from svcnode.conformance.exchange import Answer, NoAnswerError, Request
from svcnode.conformance.interface import Place
from svcnode.conformance.subject import Exchanged, Subject

if TYPE_CHECKING:
    from svcnode.conformance.check import Finding

HEALTH = Place("health", "/node/health", (200, 206, 503))
ASKED = Request("GET", "/svc/node/health")
RIGHT = Exchanged(ASKED, Answer(200))
WRONG = Exchanged(ASKED, Answer(500))
NOT_ACCEPTED = NoAnswerError(ASKED, "connection refused", is_accepted=False)
NOT_ANSWERED = NoAnswerError(ASKED, "no whole answer within 8 s", is_silence=True)


class Crowd:
    """A node of one endpoint, which so many of the fifty requests come to grief at."""

    def __init__(self, *faults: tuple[int, Exchanged | NoAnswerError]) -> None:
        faulty = [outcome for count, outcome in faults for _ in range(count)]
        self._outcomes = [*faulty, *[RIGHT] * (IN_PARALLEL - len(faulty))]

    async def usable_places(self) -> list[Place]:
        return [HEALTH]

    def request(self, path: str) -> Request:
        return Request("GET", f"/svc{path}")

    async def ask_at_once(self, requests: list[Request]) -> list[Any]:
        assert requests == [ASKED] * IN_PARALLEL
        return self._outcomes


def findings(*faults: tuple[int, Exchanged | NoAnswerError]) -> list[Finding]:
    async def judged() -> list[Finding]:
        return [finding async for finding in parallel_requests.judge(cast("Subject", Crowd(*faults)))]

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
    fault: Exchanged | NoAnswerError, came: str, mend: str
) -> None:
    (finding,) = findings((7, fault))
    assert finding.came == came
    assert finding.mend.startswith(mend)
    assert bool(finding.mend) is bool(mend)


def test_one_kind_does_not_hide_another() -> None:
    told = findings((1, NOT_ACCEPTED), (2, NOT_ANSWERED), (3, WRONG))
    assert [finding.came.split()[0] for finding in told] == ["1", "2", "3"]

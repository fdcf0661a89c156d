"""What a check is: a demand of the interface as data, and the small function that finds out whether it is met."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.conformance.http_client import RequestLine
    from svcnode.conformance.node_under_test import NodeUnderTest

UNSPECIFIED = "unspecified"  # the clause of a demand that the interface document does not make
ROUNDS = 3  # looks at what may change between two requests


class Level(Enum):
    """In falling order of weight."""

    MUST = "must"
    SHOULD = "should"
    ADVICE = "advice"

    def is_included_in(self, strictest: Level) -> bool:
        order = list(Level)
        return order.index(self) <= order.index(strictest)


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a demand is not met, told so that it can be seen again with any HTTP client."""

    request: RequestLine
    expected: str
    actual: str
    fix: str = ""  # where the check's own would not help


class Skip(Exception):
    """The node gives no occasion to judge this; the text says why."""


def is_persistent(times: int) -> bool:
    """Whether what was seen so many times in all rounds is a fault, rather than a change that fell between requests."""
    return times * 2 > ROUNDS


Findings = AsyncGenerator[Finding, None]
CheckFunction = Callable[["NodeUnderTest"], Findings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`needs` are the checks without which this one would only say the same once more."""

    name: str
    clause: str
    level: Level
    requirement: str
    fix: str
    function: CheckFunction
    needs: tuple[str, ...] = ()
    uses_other_methods: bool = False


def check(  # noqa: PLR0913  each is a part of what a check says
    name: str,
    level: Level,
    clause: str,
    *,
    requirement: str,
    fix: str,
    needs: tuple[str, ...] = (),
    uses_other_methods: bool = False,
) -> Callable[[CheckFunction], Check]:
    def made(judge: CheckFunction) -> Check:
        return Check(
            name=name,
            clause=clause,
            level=level,
            requirement=requirement,
            fix=fix,
            function=judge,
            needs=needs,
            uses_other_methods=uses_other_methods,
        )

    return made

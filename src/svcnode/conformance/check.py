"""A check: a requirement of the interface as data, and the function that tests it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import partial

from svcnode.conformance.node_under_test import Finding, NodeUnderTest

CLAUSES_PAGE = "docs/interface.md"
_SILENT_SECTION = "10."  # of that page: what the interface document does not state
ROUNDS = 3  # repetitions of a comparison that a change of status may disturb


class Level(Enum):
    """How important a requirement is; the most important comes first."""

    MUST = "must"
    SHOULD = "should"
    ADVICE = "advice"

    def is_included_in(self, strictest: Level) -> bool:
        order = list(Level)
        return order.index(self) <= order.index(strictest)


def is_persistent(times: int) -> bool:
    """Whether a mismatch seen in `times` of all rounds is a defect, not a status that changed between requests."""
    return times * 2 > ROUNDS


Findings = AsyncGenerator[Finding, None]
CheckFunction = Callable[[NodeUnderTest], Findings]


@dataclass(frozen=True, slots=True)
class Check:
    """`needs` names checks that must pass before: if one fails, this check would only report the same defect again."""

    function: CheckFunction
    _: KW_ONLY
    name: str
    clause: str
    level: Level
    requirement: str
    fix: str
    needs: tuple[str, ...] = ()
    uses_other_methods: bool = False

    @property
    def is_specified(self) -> bool:
        """Whether the interface document states or implies it."""
        return not self.clause.startswith(_SILENT_SECTION)


def check(  # noqa: PLR0913  each is a field of Check
    name: str,
    level: Level,
    clause: str,
    *,
    requirement: str,
    fix: str,
    needs: tuple[str, ...] = (),
    uses_other_methods: bool = False,
) -> Callable[[CheckFunction], Check]:
    return partial(
        Check,
        name=name,
        clause=clause,
        level=level,
        requirement=requirement,
        fix=fix,
        needs=needs,
        uses_other_methods=uses_other_methods,
    )

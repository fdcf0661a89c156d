"""What one message says, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.core.model import Health, Service

TOLD_ONE_BY_ONE = 20  # services in one message


class Turn(Enum):
    """What became of a thing since it was last told."""

    WORSE = "worse"
    BETTER = "better"
    RECOVERED = "recovered"
    PASSED = "passed"  # it was worse for a moment, and is as it was
    FLAPPING = "flapping"
    SETTLED = "settled"
    REMOVED = "removed"  # nobody watches it any more
    STILL = "still"  # as it was before a restart, which not all may have been told
    AGAIN = "again"  # the same, but it was well after what some were told


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is told of one thing. The status of a service is told by the health that goes with it."""

    service: Service | None  # None: it is the node
    turn: Turn
    health: Health
    before: Health | None  # what was told last; None for a service that was never Up
    worst: Health  # since then
    reason: str
    since_s: float
    lasted_s: float  # the trouble that is over; with flapping, the changes; once settled, the standing still
    changes: int
    is_at_most: bool = False  # it may have been over sooner, while nobody watched


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    at_s: float
    health: Health
    node: Item | None  # None: its health is as it was told
    services: tuple[Item, ...]  # the worst, and they first
    more_services: int = 0  # that have changed as well
    issues: tuple[str, ...]
    not_up: tuple[Service, ...]  # those that count, and have not changed

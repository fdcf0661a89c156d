"""What one message says, before it is put into words.

What was told and is not over: whoever was told waits to hear the end of it, also over a restart.

After one, what all are certain to have been told is news again when it changes. What they are not is told once more, as
what it is by then.

How the telling fares, for whoever wants to know; apart from it, since it is there also where nobody is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.model import Health, Service

MAX_LISTED_SERVICES = 20  # services in one message


class ChangeType(Enum):
    """What became of a thing since it was last told."""

    WORSE = "worse"
    BETTER = "better"
    RECOVERED = "recovered"
    TRANSIENT = "transient"  # it was worse for a moment, and is as it was
    FLAPPING = "flapping"
    SETTLED = "settled"
    REMOVED = "removed"  # nobody watches it any more
    ONGOING = "ongoing"  # as it was before a restart, which not all may have been told
    RECURRED = "recurred"  # the same, but it was well after what some were told


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """What is told of one thing. The status of a service is told by the health that goes with it."""

    service: Service | None  # None: it is the node
    change_type: ChangeType
    health: Health
    before: Health | None  # what was told last; None for a service that was never Up
    worst: Health  # since then
    reason: str
    since_s: float
    duration_s: float  # the trouble that is over; with flapping, the changes; once settled, the standing ongoing
    changes: int
    duration_is_upper_bound: bool = False  # it may have been over sooner, while nobody watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    at_s: float
    health: Health
    node: AlertChange | None  # None: its health is as it was told
    services: tuple[AlertChange, ...]  # the worst, and they first
    truncated_services: int = 0  # that have changed as well
    issues: tuple[str, ...]
    not_up: tuple[Service, ...]  # those that count, and have not changed


MAX_INCIDENTS = 1000  # that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Somebody was told that a thing is not well, and not yet that it is."""

    service: Service | None  # None: it is the node
    notified_health: Health
    since_s: float  # when it was last well
    is_confirmed: bool  # that all were told
    is_recurrence: bool = False  # it was well after what some were told last


Incidents = Mapping[str | None, Incident]  # by id; that of the node is None


def open_incidents(posted: Incidents, taken: Sequence[Incidents]) -> list[Incident]:
    """What is not over for all: as it was last posted, and as each target took it last.

    What is on its way may never arrive: sure is only what every target took just so, and has not changed since.
    """
    keys = dict.fromkeys(chain(posted, *taken))
    return [_combined(posted.get(key), [incidents.get(key) for incidents in taken]) for key in keys]


def _combined(posted: Incident | None, taken: Sequence[Incident | None]) -> Incident:
    if posted is not None and all(one == posted for one in taken):
        return posted
    known = [one for one in taken if one is not None]
    # What is over, but not for all, has lasted the longest for whoever was told first.
    last = posted or min(known, key=lambda one: one.since_s)
    is_again = any(one.is_recurrence or one.since_s < last.since_s for one in known)
    return replace(last, is_confirmed=False, is_recurrence=is_again)


@dataclass(slots=True)
class DeliveryStats:
    """What became of messages, counted once for each target that they were for."""

    sent: int = 0
    failed: int = 0  # attempts
    dropped: int = 0
    queued: int = 0

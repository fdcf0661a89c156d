"""The values of notifications: changes, notifications and incidents.

An incident is a problem that was notified and is not resolved. Incidents are saved across restarts, so that every
target that was notified of a problem is also notified of its end. After a restart, a confirmed incident is notified
only when it changes; an unconfirmed one is notified once more, with its current health.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.codes import ReasonCode
    from svcnode.core.model import Health, Service

MAX_LISTED_SERVICES = 20  # per notification
MAX_INCIDENTS = 1000  # that are saved


class ChangeType(Enum):
    """A change of the node or of a service since its last notification."""

    WORSE = "worse"
    BETTER = "better"  # but not healthy
    RECOVERED = "recovered"
    TRANSIENT = "transient"  # worse for a short time, now as before
    FLAPPING = "flapping"
    SETTLED = "settled"  # stopped flapping
    REMOVED = "removed"  # the service is no longer registered
    ONGOING = "ongoing"  # unchanged since before a restart; sent again because a target may not have received it
    RECURRED = "recurred"  # like ONGOING, but it was healthy after the last notification that a target received


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """One change in a notification. The status of a service is given as the health that belongs to it."""

    service: Service | None  # None: the node
    change_type: ChangeType
    health: Health
    before: Health | None  # the last notified health; None for a service that was never Up
    worst: Health  # since the last notification
    reason: str
    code: str | None = None  # the reason code; None for the node, and if it is not known
    since_s: float
    first_failure_at_s: float | None = None  # of a service that is Down
    duration_s: float  # of the problem; if flapping, of the changes; if settled, since the last change
    changes: int
    duration_is_upper_bound: bool = False  # the problem may have ended earlier, while svcnode did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    at_s: float
    health: Health
    node: AlertChange | None  # None: the health of the node has not changed
    services: tuple[AlertChange, ...]  # the most severe first
    truncated_services: int = 0  # changed services that are not listed
    issues: tuple[str, ...]
    not_up: tuple[Service, ...]  # counted services that are not Up and have not changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A problem that was notified and is not resolved."""

    service: Service | None  # None: the node
    notified_health: Health
    since_s: float  # when it was last healthy
    is_confirmed: bool  # every target has received it
    is_recurrence: bool = False  # it was healthy after the last notification that a target received


Incidents = Mapping[str | None, Incident]  # by service id; None is the node


def open_incidents(dispatched: Incidents, delivered: Sequence[Incidents]) -> list[Incident]:
    """The incidents that are open for at least one target: as last dispatched, and as last delivered to each target.

    A queued message may never be delivered, so an incident is confirmed only if every target received it in its
    current form.
    """
    keys = dict.fromkeys(chain(dispatched, *delivered))
    return [_combined(dispatched.get(key), [incidents.get(key) for incidents in delivered]) for key in keys]


def _combined(dispatched: Incident | None, delivered: Sequence[Incident | None]) -> Incident:
    if dispatched is not None and all(incident == dispatched for incident in delivered):
        return dispatched
    received = [incident for incident in delivered if incident is not None]
    # If it is resolved but not for all targets, the earliest start gives the longest duration.
    last = dispatched or min(received, key=lambda incident: incident.since_s)
    is_recurrence = any(incident.is_recurrence or incident.since_s < last.since_s for incident in received)
    return replace(last, is_confirmed=False, is_recurrence=is_recurrence)


class DeliveryError(NamedTuple):
    """Why a message was not delivered."""

    reason: str
    code: ReasonCode

"""Incidents: problems that were notified and are not resolved, saved across restarts as JSON.

They are saved so that every target that was notified of a problem is also notified of its end. After a restart, a
confirmed incident is notified only when it changes; an unconfirmed one is notified once more, with its current health.
The number of messages that each target has lost is saved with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.model import Health, Impact, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_INCIDENTS = 1000  # that are saved

log = logging.getLogger("svcnode.notify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A problem that was notified and is not resolved."""

    service: Service | None  # None: the node
    notified_health: Health
    since_s: float  # when it was last healthy
    is_confirmed: bool  # every target has received it
    is_recurrence: bool = False  # it was healthy after the last notification that a target received
    reason: str = field(default="", compare=False)  # not saved


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


# ---- as JSON


class LostMessages(NamedTuple):
    """How many messages a target has lost. The target is identified by its name, since its URL may be a secret."""

    target: str
    messages: int


class SavedState(NamedTuple):
    incidents: Sequence[Incident] = ()
    lost: Sequence[LostMessages] = ()


def to_json(state: SavedState, to_wall: Callable[[float], float]) -> str:
    incidents = [_row(incident, to_wall(incident.since_s)) for incident in state.incidents]
    return json.dumps({"incidents": incidents, "lost": list(state.lost)})


def from_json(text: str | None, from_wall: Callable[[float], float]) -> SavedState:
    """An invalid text gives an empty state: open incidents are then notified once more."""
    if text is None:
        return SavedState()
    try:
        document = json.loads(text)
        return SavedState(
            incidents=[_incident(row, from_wall) for row in document["incidents"]],
            lost=[LostMessages(str(target), int(messages)) for target, messages in document["lost"]],
        )
    except (KeyError, TypeError, ValueError) as exc:
        text = "invalid saved notification state: %s; open incidents may be notified again"
        log.warning(text, exc, extra={"event": "notification_state_invalid"})
        return SavedState()


def _row(incident: Incident, since_s: float) -> list[object]:
    service = incident.service
    definition = (None, "", "") if service is None else (service.id, service.name, service.impact.value)
    return [
        *definition,
        int(incident.notified_health),
        round(since_s, 3),
        incident.is_confirmed,
        incident.is_recurrence,
    ]


def _incident(row: list[Any], from_wall: Callable[[float], float]) -> Incident:
    service_id, name, impact, notified_health, since_s, is_confirmed, is_recurrence = row
    service = None
    if service_id is not None:
        service = Service(id=service_id, name=name, description="", impact=Impact(impact))
    return Incident(
        service=service,
        notified_health=Health(notified_health),
        since_s=from_wall(float(since_s)),
        is_confirmed=bool(is_confirmed),
        is_recurrence=bool(is_recurrence),
    )

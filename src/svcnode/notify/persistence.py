"""Saves open incidents and the number of lost messages across restarts, as JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.model import Incident

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("svcnode.notify")


class StateStorage(Protocol):
    """Stores one text; svcnode.history.History implements it."""

    def save_state(self, text: str) -> None: ...

    async def load_state(self) -> str | None:
        """The text of the previous process. Waits until the storage is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyState:
    """The saved state."""

    incidents: Sequence[Incident] = ()
    lost: Sequence[LostMessages] = ()


class LostMessages(NamedTuple):
    """How many messages a target has lost. The target is identified by its name, since its URL may be a secret."""

    target: str
    messages: int


def to_json(state: NotifyState, to_wall: Callable[[float], float]) -> str:
    incidents = [_row(incident, to_wall(incident.since_s)) for incident in state.incidents]
    return json.dumps({"incidents": incidents, "lost": list(state.lost)})


def from_json(text: str | None, from_wall: Callable[[float], float]) -> NotifyState:
    """An invalid text gives an empty state: open incidents are then notified once more."""
    if text is None:
        return NotifyState()
    try:
        document = json.loads(text)
        return NotifyState(
            incidents=[_incident(row, from_wall) for row in document["incidents"]],
            lost=[LostMessages(str(target), int(messages)) for target, messages in document["lost"]],
        )
    except (KeyError, TypeError, ValueError) as exc:
        text = "invalid saved notification state: %s; open incidents may be notified again"
        log.warning(text, exc, extra={"event": "notification_state_invalid"})
        return NotifyState()


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

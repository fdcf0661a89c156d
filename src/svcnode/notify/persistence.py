"""What was told and is not over, and how much did not arrive, as a text that outlives the process."""

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
    """Where the text is kept."""

    def save_state(self, text: str) -> None: ...

    async def load_state(self) -> str | None:
        """As the process before this one left it, once that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyState:
    """What outlives the process."""

    incidents: Sequence[Incident] = ()
    lost: Sequence[LostMessages] = ()


class LostMessages(NamedTuple):
    """How many messages a target has not got, by its name: that holds no secret, and its address may be one."""

    target: str
    messages: int


def to_json(kept: NotifyState, to_wall: Callable[[float], float]) -> str:
    incidents = [_row(one, to_wall(one.since_s)) for one in kept.incidents]
    return json.dumps({"incidents": incidents, "lost": list(kept.lost)})


def from_json(text: str | None, from_wall: Callable[[float], float]) -> NotifyState:
    """Nothing, where that is not to be understood: then it is told once more."""
    if text is None:
        return NotifyState()
    try:
        given = json.loads(text)
        return NotifyState(
            incidents=[_incident(row, from_wall) for row in given["incidents"]],
            lost=[LostMessages(str(target), int(messages)) for target, messages in given["lost"]],
        )
    except (KeyError, TypeError, ValueError) as exc:
        log.warning("what was told before the start cannot be read, and may be told again: %s", exc)
        return NotifyState()


def _row(incident: Incident, since_s: float) -> list[object]:
    service = incident.service
    words = (None, "", "") if service is None else (service.id, service.name, service.impact.value)
    return [*words, int(incident.notified_health), round(since_s, 3), incident.is_confirmed, incident.is_recurrence]


def _incident(row: list[Any], from_wall: Callable[[float], float]) -> Incident:
    service_id, name, impact, told, since_s, is_sure, is_again = row
    service = None
    if service_id is not None:
        service = Service(id=service_id, name=name, description="", impact=Impact(impact))
    return Incident(
        service=service,
        notified_health=Health(told),
        since_s=from_wall(float(since_s)),
        is_confirmed=bool(is_sure),
        is_recurrence=bool(is_again),
    )

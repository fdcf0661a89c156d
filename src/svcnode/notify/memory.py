"""What was told and is not over, as a text that outlives the process."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.rules import Incident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger("svcnode.notify")


class Memory(Protocol):
    """Where the text is kept."""

    def keep_note(self, text: str) -> None: ...

    async def kept_note(self) -> str | None:
        """As the process before this one left it, once that is known."""


def not_over(delivered: Mapping[str | None, Incident], posted: Mapping[str | None, Incident]) -> list[Incident]:
    """What is on its way may never arrive: sure is only what was delivered just so, and has not changed since."""
    return [
        one if delivered.get(key) == posted.get(key) else replace(one, is_sure=False)
        for key, one in {**delivered, **posted}.items()
    ]


def to_text(incidents: Iterable[Incident], to_wall: Callable[[float], float]) -> str:
    return json.dumps([_row(one, to_wall(one.since_s)) for one in incidents])


def from_text(text: str | None, from_wall: Callable[[float], float]) -> list[Incident]:
    """Nothing, where that is not to be understood: then it is told once more."""
    try:
        return [_incident(row, from_wall) for row in json.loads(text or "[]")]
    except (TypeError, ValueError) as exc:
        log.warning("what was told before the start cannot be read, and may be told again: %s", exc)
        return []


def _row(incident: Incident, since_s: float) -> list[object]:
    service = incident.service
    words = (None, "", "") if service is None else (service.id, service.name, service.impact.value)
    return [*words, int(incident.told), round(since_s, 3), incident.is_sure]


def _incident(row: list[Any], from_wall: Callable[[float], float]) -> Incident:
    service_id, name, impact, told, since_s, is_sure = row
    service = None
    if service_id is not None:
        service = Service(id=service_id, name=name, description="", impact=Impact(impact))
    return Incident(service=service, told=Health(told), since_s=from_wall(float(since_s)), is_sure=bool(is_sure))

"""What was told and is not over, and how much did not arrive, as a text that outlives the process."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.incidents import Incident

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("svcnode.notify")


class Memory(Protocol):
    """Where the text is kept."""

    def keep_note(self, text: str) -> None: ...

    async def kept_note(self) -> str | None:
        """As the process before this one left it, once that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What outlives the process."""

    incidents: Sequence[Incident] = ()
    missed: Sequence[Missed] = ()


class Missed(NamedTuple):
    """How many messages a target has not got, by its name: that holds no secret, and its address may be one."""

    target: str
    messages: int


def to_text(kept: Kept, to_wall: Callable[[float], float]) -> str:
    incidents = [_row(one, to_wall(one.since_s)) for one in kept.incidents]
    return json.dumps({"incidents": incidents, "missed": list(kept.missed)})


def from_text(text: str | None, from_wall: Callable[[float], float]) -> Kept:
    """Nothing, where that is not to be understood: then it is told once more."""
    if text is None:
        return Kept()
    try:
        given = json.loads(text)
        return Kept(
            incidents=[_incident(row, from_wall) for row in given["incidents"]],
            missed=[Missed(str(target), int(messages)) for target, messages in given["missed"]],
        )
    except (KeyError, TypeError, ValueError) as exc:
        log.warning("what was told before the start cannot be read, and may be told again: %s", exc)
        return Kept()


def _row(incident: Incident, since_s: float) -> list[object]:
    service = incident.service
    words = (None, "", "") if service is None else (service.id, service.name, service.impact.value)
    return [*words, int(incident.told), round(since_s, 3), incident.is_sure, incident.is_again]


def _incident(row: list[Any], from_wall: Callable[[float], float]) -> Incident:
    service_id, name, impact, told, since_s, is_sure, is_again = row
    service = None
    if service_id is not None:
        service = Service(id=service_id, name=name, description="", impact=Impact(impact))
    return Incident(
        service=service,
        told=Health(told),
        since_s=from_wall(float(since_s)),
        is_sure=bool(is_sure),
        is_again=bool(is_again),
    )

"""From the transitions of services to their outages. Reasons, codes and people stay behind here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import ChangeKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcnode.history.records import Transition

_SETTLED = {Status.UP.value: True, Status.DOWN.value: False}


class Outage(NamedTuple):
    """An outage lasts from Down to Up. Neither Initializing in between nor a restart of the node ends it."""

    service_id: str
    begin_s: float  # wall clock, as all times here
    end_s: float | None = None  # None: it goes on


class Past(NamedTuple):
    """What the transitions say about the past of the services."""

    outages: tuple[Outage, ...] = ()  # in the order of their ends; those that go on are last
    maintenance_since_s: dict[str | None, float] = {}  # noqa: RUF012  never changed. By service; None: the node


def past_of(transitions: Iterable[Transition], service_ids: Sequence[str]) -> Past:
    """`transitions`: of these services and of the node, in order."""
    reader = _Reader(service_ids)
    for transition in transitions:
        reader.read(transition)
    going_on = (Outage(service_id, begin_s) for service_id, begin_s in reader.begun_at_s.items())
    return Past((*reader.ended, *going_on), reader.maintenance_since_s)


class _Reader:
    def __init__(self, service_ids: Sequence[str]) -> None:
        self._is_up: dict[str, bool | None] = dict.fromkeys(service_ids)  # None: neither Up nor Down was seen
        self.begun_at_s: dict[str, float] = {}  # outages that go on
        self.ended: list[Outage] = []
        self.maintenance_since_s: dict[str | None, float] = {}

    def read(self, one: Transition) -> None:
        if one.kind == "started":
            # What is still in maintenance is recorded again; services are Initializing until they are checked.
            self.maintenance_since_s.clear()
            self._is_up = dict.fromkeys(self._is_up)
        elif one.kind == ChangeKind.MAINTENANCE.value:
            self.maintenance_since_s.setdefault(one.service_id, one.at_s)
        elif one.kind == ChangeKind.MAINTENANCE_ENDED.value:
            self.maintenance_since_s.pop(one.service_id, None)
        if one.service_id is None:
            for service_id in self._is_up:
                self._settle(service_id, one.at_s)
        elif one.service_id in self._is_up:
            self._see(one.service_id, one)
            self._settle(one.service_id, one.at_s)

    def _see(self, service_id: str, one: Transition) -> None:
        if one.kind == ChangeKind.DEREGISTERED.value:
            self._is_up[service_id] = None
            self._end(service_id, one.at_s)
        elif one.after in _SETTLED:
            self._is_up[service_id] = _SETTLED[one.after]

    def _settle(self, service_id: str, at_s: float) -> None:
        """Down in maintenance is planned, and no outage before the maintenance ends."""
        is_up = self._is_up[service_id]
        if is_up:
            self._end(service_id, at_s)
        elif is_up is False and self.maintenance_since_s.keys().isdisjoint((None, service_id)):
            self.begun_at_s.setdefault(service_id, at_s)

    def _end(self, service_id: str, at_s: float) -> None:
        begin_s = self.begun_at_s.pop(service_id, None)
        if begin_s is not None:
            self.ended.append(Outage(service_id, begin_s, max(begin_s, at_s)))  # the clock may have been set back

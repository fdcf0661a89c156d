"""From the transitions of services to their outages. Reasons, codes and people stay behind here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import ChangeKind
from svcnode.history.records import DAYS
from svcnode.history.report import Move, OutageFinder, ReportPeriod
from svcnode.history.timeline import STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcnode.history.records import Stretch, Transition


class Outage(NamedTuple):
    """As in the report: an outage lasts from Down to Up, and neither Initializing nor a restart ends it."""

    service_id: str
    begin_s: float  # wall clock, as all times here
    end_s: float | None = None  # None: it goes on


class Past(NamedTuple):
    """What the transitions say about the past of the services."""

    outages: tuple[Outage, ...] = ()
    maintenance_since_s: dict[str | None, float] = {}  # noqa: RUF012  never changed. By service; None: the node


def past_of(
    transitions: Sequence[Transition], runs: Iterable[Stretch], service_ids: Sequence[str], from_s: float, to_s: float
) -> Past:
    """`transitions`: of these services and of the node, in order; `runs`: the times in which the node ran.

    An outage that began before `from_s` is left out, because nobody knows when it began.
    """
    finder = OutageFinder(ReportPeriod(from_s, to_s, DAYS), from_s - 1, runs)
    for one in transitions:
        finder.add(Move(one.id / 1e6, one.at_s, one.kind, *one[3:6], one.health_before, one.health))
    unconfirmed, found = finder.unconfirmed(), finder.of_services()
    outages: list[Outage] = []
    for service_id in service_ids:
        last = found.get(service_id, ())[-1:]
        for outage in found.get(service_id, ()):
            goes_on = outage.is_open or (service_id in unconfirmed and outage in last)
            if not outage.is_begun_before:
                outages.append(Outage(service_id, outage.begin_s, None if goes_on else outage.end_s))
    return Past(tuple(outages), _maintenance_since_s(transitions))


def _maintenance_since_s(transitions: Iterable[Transition]) -> dict[str | None, float]:
    since_s: dict[str | None, float] = {}
    for one in transitions:
        if one.kind == STARTED:
            since_s.clear()  # what is still in maintenance is recorded again
        elif one.kind == ChangeKind.MAINTENANCE.value:
            since_s.setdefault(one.service_id, one.at_s)
        elif one.kind == ChangeKind.MAINTENANCE_ENDED.value:
            since_s.pop(one.service_id, None)
    return since_s

"""What is public: the only module of the public view that reads the node.

A `PublicView` has no place for a reason, a code, an address, a latency, a person, or anything of a service that is not
published. Page, feed, JSON and badges are made from it alone, so they cannot show what it does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import Status
from svcnode.history.records import DAYS
from svcnode.operator.page_rows import availability
from svcnode.operator.public.outages import Outage, Past

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from svcnode.core.maintenance import MaintenanceSchedule
    from svcnode.core.model import Service, ServiceState
    from svcnode.history.records import Bucket
    from svcnode.node.node_state import NodeState

CHECKING_SHARE = 0.05  # a day with less time in Initializing, as after a restart, is one without a problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a node publishes: services that are named, in a group that is named, or with a tag that is named."""

    title: str
    services: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    url: str = ""  # where people reach the page: a URL, or its path; "": at the root of its own address
    schedules: tuple[MaintenanceSchedule, ...] = ()  # of the configuration


class PublicStatus(Enum):
    """Of a service, in words for everyone."""

    OPERATIONAL = "Working"
    MAINTENANCE = "In maintenance"
    CHECKING = "May have problems"  # starting, syncing or slow, or no fresh evidence: nobody may conclude that it works
    OUTAGE = "Not available"


class Overall(Enum):
    """The state of all published services together."""

    OPERATIONAL = "All services are working"
    MAINTENANCE = "Maintenance is in progress"
    CHECKING = "Some services may have problems"
    UNKNOWN = "The services may have problems"
    PARTIAL_OUTAGE = "Some services are not available"
    OUTAGE = "No service is available"


class Day(StrEnum):
    """The worst that happened on a day."""

    UNKNOWN = "?"
    OPERATIONAL = "o"
    CHECKING = "c"
    OUTAGE = "x"


class Days(NamedTuple):
    """The last days of a service."""

    begin_s: int  # of the first day
    days: str  # a letter of `Day` for each; many services have the same text, from which their bars are made once
    availability: float | None  # the share of the known time; None: no time is known

    @property
    def known_since_s(self) -> int | None:
        number = next((number for number, day in enumerate(self.days) if day != Day.UNKNOWN), None)
        return None if number is None else self.begin_s + number * DAYS.length_s


NO_DAYS = Days(0, "", None)


class PublicService(NamedTuple):
    id: str
    name: str
    group: str  # its heading; "": none, or its group is not published
    status: PublicStatus
    since_s: float | None  # of the status; None: the service is not registered. Wall clock, as all times here
    days: Days = NO_DAYS


class Window(NamedTuple):
    """Maintenance of services, and when it is."""

    begin_s: float
    end_s: float
    service_ids: tuple[str, ...]
    is_current: bool


class PublicView(NamedTuple):
    title: str
    url: str
    # A whole minute, or the last change of what is published, so that a change of anything else does not show.
    as_of_s: float
    services: tuple[PublicService, ...]  # in the order of the page
    outages: tuple[Outage, ...]  # the newest first
    maintenance: tuple[Window, ...]  # by begin

    @property
    def overall(self) -> Overall:
        return overall_of(service.status for service in self.services)

    @property
    def updated_s(self) -> float:
        """The last change of what is published."""
        times = [service.since_s for service in self.services if service.since_s is not None]
        times += [outage.begin_s if outage.end_s is None else outage.end_s for outage in self.outages]
        return max(times, default=self.as_of_s)

    @property
    def names(self) -> dict[str, str]:
        return {service.id: service.name for service in self.services}

    def find(self, service_id: str) -> PublicService | None:
        return next((service for service in self.services if service.id == service_id), None)


def overall_of(statuses: Iterable[PublicStatus]) -> Overall:
    """All services work only if each of them does, by fresh evidence; nothing follows from no services."""
    seen = set(statuses)
    if PublicStatus.OUTAGE in seen:
        return Overall.OUTAGE if len(seen) == 1 else Overall.PARTIAL_OUTAGE
    if PublicStatus.CHECKING in seen or not seen:
        return Overall.CHECKING if len(seen) > 1 else Overall.UNKNOWN
    return Overall.MAINTENANCE if PublicStatus.MAINTENANCE in seen else Overall.OPERATIONAL


# ---- reading the node


def published_services(node: NodeState, publication: Publication) -> tuple[PublicService, ...]:
    """Named and tagged services first, then groups. One that is named and not registered may have problems."""
    listed = {service_id: node.find(service_id) for service_id in publication.services}
    grouped: dict[str, list[PublicService]] = {group: [] for group in publication.groups}
    if grouped or publication.tags:
        for service, state in node:
            if service.group in grouped:
                grouped[service.group].append(_public_service(node, service, state, service.group))
            elif not set(publication.tags).isdisjoint(service.tags):
                listed[service.id] = (service, state)
    seen = {service.id for services in grouped.values() for service in services}
    alone = (_listed_service(node, service_id, found) for service_id, found in listed.items() if service_id not in seen)
    return (*alone, *(service for services in grouped.values() for service in services))


def _listed_service(node: NodeState, service_id: str, found: tuple[Service, ServiceState] | None) -> PublicService:
    if found is None:
        return PublicService(service_id, service_id, "", PublicStatus.CHECKING, None)
    return _public_service(node, *found, "")


def _public_service(node: NodeState, service: Service, state: ServiceState, group: str) -> PublicService:
    in_maintenance = node.maintenance.current(service.id) is not None
    since_s = min(node.wall_time_s(state.since_s), node.wall_time_s(node.now_s()))  # the clock may be set back
    return PublicService(service.id, service.name or service.id, group, _status(state.status, in_maintenance), since_s)


def _status(status: Status, in_maintenance: bool) -> PublicStatus:
    if in_maintenance:
        return PublicStatus.MAINTENANCE
    match status:
        case Status.UP:
            return PublicStatus.OPERATIONAL
        case Status.INITIALIZING:
            return PublicStatus.CHECKING
        case Status.DOWN:
            return PublicStatus.OUTAGE


def current_maintenance(node: NodeState) -> list[tuple[str | None, float]]:
    """The service, or None for the node, and when it ends."""
    return [(key, node.wall_time_s(one.ends_at_s)) for key, one in node.maintenance.all_current()]


def planned_maintenance(node: NodeState, publication: Publication, now_s: float) -> Iterator[Window]:
    """For the whole node, `service_ids` is empty."""
    for key, _, planned in node.maintenance.all_planned():
        yield Window(planned.from_s, planned.until_s, () if key is None else (key,), is_current=False)
    for schedule in publication.schedules:
        begin_s = schedule.next_begin_s(now_s)
        yield Window(begin_s, begin_s + schedule.duration_s, schedule.service_ids, is_current=False)


# ---- putting it together; pure


def days_of(buckets: Sequence[Bucket]) -> Days:
    """Without gaps, the oldest first."""
    return Days(buckets[0].begin_s, "".join(map(_day_of, buckets)), availability(buckets)) if buckets else NO_DAYS


def _day_of(bucket: Bucket) -> Day:
    if not bucket.known_s:
        return Day.UNKNOWN
    if bucket.down_s:
        return Day.OUTAGE
    return Day.CHECKING if bucket.initializing_s > CHECKING_SHARE * bucket.known_s else Day.OPERATIONAL


def all_outages(services: Sequence[PublicService], past: Past) -> tuple[Outage, ...]:
    """The newest first. The history may be behind the statuses, which are right."""
    now = {service.id: service for service in services}
    outages = [_ended_by_now(outage, now.get(outage.service_id)) for outage in past.outages]
    known = {outage.service_id for outage in outages if outage.end_s is None}
    outages += [
        Outage(service.id, service.since_s)
        for service in services
        if service.status is PublicStatus.OUTAGE and service.id not in known and service.since_s is not None
    ]
    published = (outage for outage in outages if outage.service_id in now)
    return tuple(sorted(published, key=lambda outage: outage.begin_s, reverse=True))


def _ended_by_now(outage: Outage, service: PublicService | None) -> Outage:
    is_over = service is not None and service.status is PublicStatus.OPERATIONAL and service.since_s is not None
    if outage.end_s is not None or service is None or not is_over:
        return outage
    return outage._replace(end_s=max(outage.begin_s, service.since_s or 0.0))


def all_windows(
    service_ids: Sequence[str],
    current: Iterable[tuple[str | None, float]],
    planned: Iterable[Window],
    since_s: Mapping[str | None, float],
    now_s: float,
) -> tuple[Window, ...]:
    """Those of published services: maintenance of the node is that of all, and equal times are one window."""
    windows = [
        Window(since_s.get(key, now_s), end_s, () if key is None else (key,), is_current=True) for key, end_s in current
    ]
    together: dict[tuple[bool, int, int], dict[str, None]] = {}
    for window in (*windows, *planned):
        affected = [one for one in service_ids if one in window.service_ids] if window.service_ids else service_ids
        if affected:
            key = window.is_current, round(window.begin_s), round(window.end_s)
            together.setdefault(key, {}).update(dict.fromkeys(affected))
    found = (Window(begin_s, end_s, tuple(ids), is_current) for (is_current, begin_s, end_s), ids in together.items())
    return tuple(sorted(found, key=lambda window: (window.begin_s, window.end_s)))

"""The public view as JSON, in the shape of version 2 of the API of Statuspage, which many programs can read.

Its vocabulary has no word for "may have problems": a service without fresh evidence is `degraded_performance`, and
never `operational`. Fields that would need texts of people, such as descriptions, are null or empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from svcnode.core.strict_json import compact_json
from svcnode.core.units import format_duration, iso_time
from svcnode.operator.public.view import Overall, PublicStatus, overall_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from svcnode.operator.public.outages import Outage
    from svcnode.operator.public.view import PublicService, PublicView, Window

MAX_INCIDENTS = 50
INDICATORS = {
    Overall.OPERATIONAL: "none",
    Overall.MAINTENANCE: "maintenance",
    Overall.CHECKING: "minor",
    Overall.UNKNOWN: "minor",
    Overall.PARTIAL_OUTAGE: "major",
    Overall.OUTAGE: "critical",
}
COMPONENT_STATUSES = {
    PublicStatus.OPERATIONAL: "operational",
    PublicStatus.MAINTENANCE: "under_maintenance",
    PublicStatus.CHECKING: "degraded_performance",
    PublicStatus.OUTAGE: "major_outage",
}
GROUP_STATUSES = {
    Overall.OPERATIONAL: "operational",
    Overall.MAINTENANCE: "under_maintenance",
    Overall.CHECKING: "degraded_performance",
    Overall.UNKNOWN: "degraded_performance",
    Overall.PARTIAL_OUTAGE: "partial_outage",
    Overall.OUTAGE: "major_outage",
}


def outage_uuid(outage: Outage) -> UUID:
    """The same at every reading, so that clients recognise an outage."""
    return uuid5(NAMESPACE_URL, f"outage {outage.service_id} {round(outage.begin_s * 1000)}")


def page_uuid(view: PublicView) -> UUID:
    return uuid5(NAMESPACE_URL, view.url or f"page {view.title}")


def outage_text(view: PublicView, outage: Outage) -> str:
    name = view.names[outage.service_id]
    if outage.end_s is None:
        return f"{name} is not available."
    return f"{name} is available again after {format_duration(outage.end_s - outage.begin_s)}."


def outage_title(view: PublicView, outage: Outage) -> str:
    return f"{view.names[outage.service_id]} {'is' if outage.end_s is None else 'was'} not available"


# ---- documents


def summary(view: PublicView) -> dict[str, Any]:
    return (
        status(view)
        | components(view)
        | unresolved_incidents(view)
        | {"scheduled_maintenances": [_maintenance(view, window) for window in view.maintenance]}
    )


def status(view: PublicView) -> dict[str, Any]:
    return _document(view, status={"indicator": INDICATORS[view.overall], "description": view.overall.value})


def components(view: PublicView) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    groups: dict[str, list[PublicService]] = {}
    for service in view.services:
        groups.setdefault(service.group, []).append(service)
    for group, services in groups.items():
        if group:
            found.append(_group(view, group, services))
        found += [_component(view, service) for service in services]
    return _document(view, components=[{**one, "position": number} for number, one in enumerate(found, 1)])


def incidents(view: PublicView) -> dict[str, Any]:
    return _document(view, incidents=[_incident(view, outage) for outage in view.outages[:MAX_INCIDENTS]])


def unresolved_incidents(view: PublicView) -> dict[str, Any]:
    return _document(view, incidents=[_incident(view, outage) for outage in view.outages if outage.end_s is None])


def _maintenances(is_wanted: Callable[[Window], bool]) -> Callable[[PublicView], dict[str, Any]]:
    return lambda view: _document(
        view, scheduled_maintenances=[_maintenance(view, window) for window in view.maintenance if is_wanted(window)]
    )


DOCUMENTS: dict[str, Callable[[PublicView], dict[str, Any]]] = {
    "summary.json": summary,
    "status.json": status,
    "components.json": components,
    "incidents.json": incidents,
    "incidents/unresolved.json": unresolved_incidents,
    "scheduled-maintenances.json": _maintenances(lambda _: True),
    "scheduled-maintenances/active.json": _maintenances(lambda window: window.is_current),
    "scheduled-maintenances/upcoming.json": _maintenances(lambda window: not window.is_current),
}


def render(document: Callable[[PublicView], dict[str, Any]], view: PublicView) -> bytes:
    return compact_json(document(view)).encode()


# ---- their parts


def _document(view: PublicView, **members: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    page = {
        "id": _page_id(view),
        "name": view.title,
        "url": view.url,
        "time_zone": "Etc/UTC",
        "updated_at": iso_time(view.updated_s),
    }
    return {"page": page, **members}


def _page_id(view: PublicView) -> str:
    return page_uuid(view).hex[:12]


def _component(view: PublicView, service: PublicService) -> dict[str, Any]:
    group_id = f"group:{service.group}" if service.group else None
    return _component_document(view, service.id, service.name, COMPONENT_STATUSES[service.status], [service]) | {
        "group_id": group_id,
        "group": False,
    }


def _group(view: PublicView, group: str, services: Sequence[PublicService]) -> dict[str, Any]:
    group_status = GROUP_STATUSES[overall_of(service.status for service in services)]
    return _component_document(view, f"group:{group}", group, group_status, services) | {
        "group_id": None,
        "group": True,
        "components": [service.id for service in services],
    }


def _component_document(
    view: PublicView, component_id: str, name: str, component_status: str, services: Sequence[PublicService]
) -> dict[str, Any]:
    times = [service.since_s for service in services if service.since_s is not None]
    days = [since_s for service in services if (since_s := service.days.known_since_s) is not None]
    return {
        "id": component_id,
        "name": name,
        "status": component_status,
        "created_at": iso_time(min(days or times, default=view.as_of_s)),
        "updated_at": iso_time(max(times, default=view.as_of_s)),
        "position": 0,
        "description": None,
        "showcase": False,
        "start_date": None,
        "group_id": None,
        "page_id": _page_id(view),
        "group": False,
        "only_show_if_degraded": False,
    }


def _components_of(view: PublicView, service_ids: Iterable[str]) -> list[dict[str, Any]]:
    return [_component(view, service) for service in view.services if service.id in service_ids]


def _incident(view: PublicView, outage: Outage) -> dict[str, Any]:
    incident_id, is_over = outage_uuid(outage).hex[:12], outage.end_s is not None
    updates = [_update(view, outage._replace(end_s=None), incident_id, "investigating", outage.begin_s)]
    if outage.end_s is not None:
        updates.insert(0, _update(view, outage, incident_id, "resolved", outage.end_s))
    return {
        "id": incident_id,
        "name": outage_title(view, outage),
        "status": "resolved" if is_over else "investigating",
        "created_at": iso_time(outage.begin_s),
        "updated_at": updates[0]["updated_at"],
        "monitoring_at": None,
        "resolved_at": None if outage.end_s is None else iso_time(outage.end_s),
        "impact": "major",
        "shortlink": f"{view.url}/#{incident_id}",
        "started_at": iso_time(outage.begin_s),
        "page_id": _page_id(view),
        "incident_updates": updates,
        "components": _components_of(view, (outage.service_id,)),
    }


def _update(view: PublicView, outage: Outage, incident_id: str, update_status: str, at_s: float) -> dict[str, Any]:
    at, statuses = iso_time(at_s), ("operational", "major_outage")
    old_status, new_status = statuses if update_status == "investigating" else statuses[::-1]
    affected = {
        "code": outage.service_id,
        "name": view.names[outage.service_id],
        "old_status": old_status,
        "new_status": new_status,
    }
    return {
        "id": f"{incident_id}-{update_status}",
        "status": update_status,
        "body": outage_text(view, outage),
        "incident_id": incident_id,
        "created_at": at,
        "updated_at": at,
        "display_at": at,
        "affected_components": [affected],
        "deliver_notifications": False,
        "custom_tweet": None,
        "tweet_id": None,
    }


def _maintenance(view: PublicView, window: Window) -> dict[str, Any]:
    """Nothing is known of who planned it, or why."""
    begin, end = iso_time(window.begin_s), iso_time(window.end_s)
    return {
        "id": uuid5(NAMESPACE_URL, f"maintenance {begin} {end} {' '.join(window.service_ids)}").hex[:12],
        "name": "Maintenance",
        "status": "in_progress" if window.is_current else "scheduled",
        "created_at": begin,
        "updated_at": begin,
        "monitoring_at": None,
        "resolved_at": None,
        "impact": "maintenance",
        "shortlink": f"{view.url}/#maintenance",
        "started_at": begin,
        "page_id": _page_id(view),
        "incident_updates": [],
        "components": _components_of(view, window.service_ids),
        "scheduled_for": begin,
        "scheduled_until": end,
    }

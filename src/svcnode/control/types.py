"""The options and the documents of the control socket, as type checkers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.core.model import ImpactName, LoweredImpactName
    from svcnode.core.units import Duration

ReportedStatus = Literal["up", "initializing", "down"]


class RegisteredOptions(TypedDict, total=False):
    """The keys of a [[services]] table that a program may set. A duration is a text such as "5s", or seconds."""

    name: str
    description: str
    group: str
    tags: Sequence[str]
    runbook: str
    slo: str
    depends_on: Sequence[str]
    impact: ImpactName
    maintenance_impact: LoweredImpactName
    probe: str | Mapping[str, Any]
    ttl: Duration
    deregister_after: Duration
    push_token: str
    push_get: bool
    interval: Duration
    transition_interval: Duration
    timeout: Duration
    max_latency: Duration
    rise: int
    fall: int
    tolerance: str
    start_period: Duration
    stale_after: Duration
    observers: int
    checked_by: Sequence[str]


class MaintenanceDocument(TypedDict):
    until: str
    by: NotRequired[str]
    user: NotRequired[str]  # of the process that has set it
    reason: NotRequired[str]
    via: NotRequired[str]  # of all replicas: the replica or the client that was asked
    at: NotRequired[str]  # of all replicas: when it was asked for
    source: NotRequired[
        Literal["control", "planned", "schedule", "all_replicas"]
    ]  # of the current one, whoever has set it
    revision: NotRequired[int]  # of the one that was set through the control socket


PlannedMaintenanceDocument = TypedDict(  # "from" cannot be the name of an attribute
    "PlannedMaintenanceDocument",
    {
        "from": str,
        "until": str,
        "by": NotRequired[str],
        "user": NotRequired[str],  # of the process that has set it
        "reason": NotRequired[str],
        "via": NotRequired[str],  # of all replicas: the replica or the client that was asked
        "at": NotRequired[str],  # of all replicas: when it was asked for
        "revision": NotRequired[int],
    },
)


class DrainDocument(TypedDict):
    reason: NotRequired[str]
    by: NotRequired[str]
    user: NotRequired[str]  # of the process that has set it
    via: NotRequired[str]  # of all replicas: the replica or the client that was asked
    at: NotRequired[str]  # of all replicas: when it was asked for
    revision: NotRequired[int]  # of this replica's own


class AckDocument(TypedDict):
    at: str
    until: NotRequired[str | None]  # without it, until the problem has cleared
    by: NotRequired[str]
    user: NotRequired[str]  # of the process that has made it
    reason: NotRequired[str]
    health: NotRequired[Literal[206, 503]]  # that it covers: when this gets worse, it ends
    revision: NotRequired[int]


class NoteDocument(TypedDict):
    at: str
    text: str
    service: NotRequired[str]
    by: NotRequired[str]


class IssueDocument(TypedDict):
    reason: NotRequired[str]
    by: NotRequired[str]
    user: NotRequired[str]  # of the process that has set it
    revision: int


class NodeDocument(TypedDict):
    node_name: str
    node_version: str
    process_id: NotRequired[int]  # an older node does not say this, nor the next two
    config_file: NotRequired[str | None]  # the absolute path; None: there is no file
    listen: NotRequired[list[str]]  # the addresses of the interface
    health: Literal[200, 206, 503]
    draining: bool
    issues: list[str]
    maintenance: MaintenanceDocument | None
    planned_maintenance: PlannedMaintenanceDocument | None
    acknowledged: AckDocument | None
    services: int
    revision: int


class ServiceDocument(TypedDict):
    id: str
    source: Literal["file", "control"]
    name: str
    description: str
    impact: ImpactName
    status: Literal["Up", "Down", "Initializing"]
    reason: str
    code: str
    maintenance: MaintenanceDocument | None
    planned_maintenance: PlannedMaintenanceDocument | None  # the next that has not begun, also of the node
    acknowledged: AckDocument | None
    options: NotRequired[dict[str, Any]]  # as registered, without secrets; of the file's services: absent
    revision: NotRequired[int]

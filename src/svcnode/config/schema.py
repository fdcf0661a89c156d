"""The keys of the configuration file and their types."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

KeyPath = tuple[str | int, ...]  # ("services", 0, "probe")

IMPACT_KEYS = ("impact", "maintenance_impact")
THRESHOLD_KEYS, TOLERANCE_KEYS = ("rise", "fall"), ("tolerance",)
DURATION_KEYS = ("interval", "transition_interval", "timeout", "max_latency", "start_period", "stale_after")
# With the unit that an error message suggests for a number without one.
OTHER_DURATION_KEYS = {
    "drain": "s",
    "max_age": "d",
    "group_wait": "s",
    "resolve_delay": "m",
    "repeat_interval": "h",
    "start_limit": "m",
    "lease": "s",
    "refresh_interval": "s",
    "duration": "h",
}


class NodeTable(TypedDict, total=False):
    name: str
    version: str


class TlsTable(TypedDict):
    certificate: str
    key: str


class ServerTable(TypedDict, total=False):
    listen: str | list[str]
    prefix: str | list[str]
    cors: str | list[str]
    drain: str
    operator: bool
    operator_listen: str | list[str]
    tls: TlsTable


class StoreTable(TypedDict, total=False):
    path: str


class HistoryTable(TypedDict, total=False):
    keep: bool
    path: str
    max_age: str
    max_size: str


class LogTable(TypedDict, total=False):
    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "text", "json"]


class SecurityTable(TypedDict, total=False):
    """Permissions; the defaults are strict."""

    allow_exec: bool
    operator_token: str | dict[str, Any]
    trust_loopback: bool


class ControlTable(TypedDict, total=False):
    enabled: bool
    listen: str
    group: str
    path: str
    allow_exec: bool


NotifyTargetKey = Literal["webhook", "alertmanager", "apprise"]
NOTIFY_TARGET_KEYS: tuple[NotifyTargetKey, ...] = get_args(NotifyTargetKey)


class NotifyTable(TypedDict, total=False):
    webhook: str | dict[str, Any] | list[str | dict[str, Any]]
    alertmanager: str | dict[str, Any] | list[str | dict[str, Any]]
    apprise: str | dict[str, Any] | list[str | dict[str, Any]]
    services: Literal["critical", "all", "none"]
    group_wait: str
    resolve_delay: str
    repeat_interval: str
    start_limit: str


class RegistryTable(TypedDict, total=False):
    """How to connect to the registry."""

    registry: str | dict[str, Any]
    password: str | dict[str, Any]
    tls: bool
    ca: str
    client_certificate: str
    client_key: str


class SharingTable(RegistryTable, total=False):
    replica: str
    observers: int
    lease: str
    url: str


class MaintenanceTimesTable(TypedDict):
    start: str
    duration: str


class MaintenanceTable(MaintenanceTimesTable, total=False):
    services: list[str]
    timezone: str
    reason: str


class DefaultsTable(TypedDict, total=False):
    """Defaults for all services."""

    impact: Literal["critical", "partial", "none"]
    interval: str
    transition_interval: str
    timeout: str
    max_latency: str
    rise: int
    fall: int
    tolerance: str
    start_period: str
    stale_after: str


class FleetTable(RegistryTable, DefaultsTable, total=False):
    """Where other nodes are, and the options of the services that they become."""

    file: str
    refresh_interval: str
    probe: dict[str, Any]


class ServiceIdTable(TypedDict):
    id: str


class ServiceTable(ServiceIdTable, DefaultsTable, total=False):
    name: str
    description: str
    group: str
    maintenance_impact: Literal["partial", "none"]
    probe: str | dict[str, Any]
    status: Literal["Up", "Down", "Initializing"]
    observers: int
    checked_by: list[str]
    push_token: str | dict[str, Any]


class RegisteredServiceTable(ServiceIdTable, DefaultsTable, total=False):
    """A service that a program registers through the control socket."""

    name: str
    description: str
    group: str
    maintenance_impact: Literal["partial", "none"]
    probe: str | dict[str, Any]
    ttl: str
    observers: int
    checked_by: list[str]


class FileTable(TypedDict, total=False):
    node: NodeTable
    server: ServerTable
    store: StoreTable
    history: HistoryTable
    log: LogTable
    security: SecurityTable
    control: ControlTable
    notify: NotifyTable
    sharing: SharingTable
    fleet: FleetTable
    defaults: DefaultsTable
    services: list[ServiceTable]
    maintenance: list[MaintenanceTable]

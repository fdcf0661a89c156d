"""The services of a configuration: from a [[services]] table to a definition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from svcnode.config.reading import read_tables
from svcnode.config.tables import OBSERVER_KEYS, TIMING_KEYS, DefaultsTable, SecurityTable, ServiceTable
from svcnode.core.dependencies import direct_causes, find_cycle
from svcnode.core.errors import DuplicateServiceError, InvalidValueError
from svcnode.core.model import Status
from svcnode.core.text import suggestion
from svcnode.node.definition import Definition, PushAccess, ServiceOptions, define, timing
from svcnode.probes import make_probe, option_names, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from svcnode.config.keys import KeyPath, Table
    from svcnode.config.reading import Tables
    from svcnode.config.sources import Source
    from svcnode.config.tables import RegisteredServiceTable
    from svcnode.core.model import Schedule, Service
    from svcnode.node.definition import TimingOptions
    from svcnode.probes.base import Probe

    MakeProbe = Callable[[str | Mapping[str, Any]], Probe]

STORE_ID = "store"  # of the one service of a node without configured services


def is_path_of_pushes(prefix: str) -> bool:
    """Whether the prefix is one of pushes. If pushes are received, the interface must not use it."""
    return prefix.split("/")[1:2] == ["push"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    definition: Definition
    status: Status | None = None  # the fixed status of a service without a probe
    push: PushAccess | None = None  # None: pushes are not received
    file: Path | None = None  # the configuration file with its probe; None: another source

    @property
    def id(self) -> str:
        return self.definition.service.id


class Defaults:
    """The table [defaults], for the services that use it."""

    def __init__(self, table: DefaultsTable) -> None:
        self.options = policy_options(table)
        self.is_right = table.is_right(*TIMING_KEYS)
        self._reported: set[str] = set()

    def report(self, text: str, source: Source) -> None:
        """Reports a wrong combination of defaults once, not for every service."""
        if text not in self._reported:
            self._reported.add(text)
            source.report(("defaults",), text)


def allowed_features(security: SecurityTable) -> frozenset[str]:
    # An error in allow_exec is reported; it must not be one for each exec: probe, too.
    is_allowed = security.allow_exec or not security.is_right("allow_exec")
    return frozenset({"allow_exec"} if is_allowed else ())


def services_from(tables: Tables) -> list[ServiceSettings | None]:
    source, defaults = tables.source, Defaults(tables.get(DefaultsTable))
    make = partial(make_probe, environ=source.environ, allowed=allowed_features(tables.get(SecurityTable)))
    seen: set[str] = set()
    services: list[ServiceSettings | None] = []
    written = read_tables(ServiceTable, source.data.get("services", []), ("services",), source)
    for index, service in enumerate(written):
        path = ("services", index)
        if service.is_right("id"):
            with source.reporting(*path, "id"):
                _check_id(service.id, seen, has_fleet="fleet" in tables)
        check_observer_keys(service, path, source, is_shared="sharing" in tables)
        services.append(service_from(service, path, defaults, make, source))
    if "sharing" not in tables and "fleet" not in tables:  # otherwise there are services from elsewhere
        _check_depended_on(written, source)
    if None not in services:
        _check_cycles([one.definition.service for one in services if one is not None], source)
    return services


def _check_depended_on(services: Sequence[ServiceTable], source: Source) -> None:
    """Every name is a service or a group of the file."""
    if not all(service.is_right("id", "group") for service in services):
        return
    known = {service.id for service in services} | {service.group for service in services if service.group}
    for index, service in enumerate(services):
        for name in service.depends_on or ():
            if name not in known:
                text = f'"{name}" is not a service or a group of this file{suggestion(name, known)}'
                source.report(("services", index, "depends_on"), text)


def _check_cycles(services: Sequence[Service], source: Source) -> None:
    direct = direct_causes(services)
    in_cycle: set[str] = set()
    for index, service in enumerate(services):
        path = ("services", index, "depends_on")
        if service.id not in in_cycle and (cycle := find_cycle(service.id, direct)):
            in_cycle.update(cycle)
            source.report(path, f"the service depends on itself: {' -> '.join(cycle)}; remove one of these")


def _check_id(service_id: str, seen: set[str], *, has_fleet: bool) -> None:
    if service_id in seen:
        raise DuplicateServiceError(service_id)
    seen.add(service_id)
    if has_fleet:
        from svcnode.config.fleet import SERVICE_ID

        if service_id == SERVICE_ID:
            raise InvalidValueError(f'"{SERVICE_ID}" is the id of the service that stands for [fleet]; use another id')


def check_observer_keys(
    service: ServiceTable | RegisteredServiceTable, path: KeyPath, source: Source, *, is_shared: bool
) -> None:
    if not is_shared:
        for key in service.given_keys(OBSERVER_KEYS):
            source.report(
                (*path, key), "only works for a node with replicas; add the table [sharing], or remove this key"
            )
            service.wrong.add(key)
    elif service.checked_by is not None and (service.observers or 0) > (count := len(service.checked_by)):
        source.report((*path, "observers"), f"must be at most {count}, the number of replicas in checked_by")


def service_from(
    service: ServiceTable, path: KeyPath, defaults: Defaults, make: MakeProbe, source: Source
) -> ServiceSettings | None:
    """None if there is an error."""
    if service.is_right("probe", "status") and ("probe" in service) == ("status" in service):
        both_or_neither = "both are" if "probe" in service else "neither is"
        source.report(path, f"a service needs exactly one of probe and status; {both_or_neither} set")
        service.wrong.update(("probe", "status"))
    probe = _probe(service, path, make, source)
    options = defaults.options | policy_options(service) | _text_options(service)
    if why_unchecked := _why_unchecked(service, probe):
        for key in service.given_keys((*TIMING_KEYS, *OBSERVER_KEYS)):
            if service.is_right(key):
                source.report((*path, key), f"{why_unchecked}; remove this key")
        options = cast("ServiceOptions", {key: value for key, value in options.items() if key not in TIMING_KEYS})
    elif (schedule := _schedule(service, options, path, defaults, source)) is None or not _fits(
        probe, schedule, path, source
    ):
        return None
    if service.push_token is not None and ("status" in service or (probe is not None and probe.ttl_s is None)):
        source.report((*path, "push_token"), 'only works for a service with the probe "heartbeat:"; remove this key')
    if service.push_get and service.push_token is None and service.is_right("push_token"):
        source.report((*path, "push_get"), "only works with push_token; set both")
    if service.wrong:
        return None
    if probe is not None:
        options["probe"] = probe
    with source.reporting(*path):
        return _service_settings(service, path, options, source)
    return None


def _service_settings(service: ServiceTable, path: KeyPath, options: ServiceOptions, source: Source) -> ServiceSettings:
    definition = define(service.id, **options)
    as_written = service.given_keys(("probe", "status", *OBSERVER_KEYS))
    file = source.file_of((*path, "probe"))
    return ServiceSettings(
        definition=definition._replace(options={**options, **as_written}),
        status=None if service.status is None else Status(service.status),
        push=None if service.push_token is None else PushAccess(service.push_token, service.push_get),
        file=None if file is None else file.absolute(),
    )


def _probe(service: ServiceTable, path: KeyPath, make: MakeProbe, source: Source) -> Probe | None:
    """None if there is no probe, or an error."""
    if service.probe is None:
        return None
    with source.reporting(*path, "probe"):
        probe = make(_without_misplaced(service, path, source))
        return None if "probe" in service.wrong else probe
    service.wrong.add("probe")
    return None


def _without_misplaced(service: ServiceTable, path: KeyPath, source: Source) -> str | dict[str, Any]:
    """The probe without the keys that belong to the service, which are reported."""
    written = cast("str | dict[str, Any]", service.probe)
    if isinstance(written, str) or service.keys.keys().isdisjoint(written):
        return written
    options = option_names(scheme_of(written))
    misplaced = [name for name in written if options and name in service.keys and name not in options]
    for name in misplaced:
        source.report((*path, "probe", name), "unknown option; it belongs to the service, beside probe")
        service.wrong.add("probe")
    return {name: value for name, value in written.items() if name not in misplaced}


def _why_unchecked(service: ServiceTable, probe: Probe | None) -> str:
    if probe is not None and probe.ttl_s is not None:
        return "a service that sends heartbeats is not checked"
    is_fixed = "status" in service and "probe" not in service
    return "a service with a fixed status is not checked" if is_fixed else ""


def _schedule(
    service: ServiceTable, options: ServiceOptions, path: KeyPath, defaults: Defaults, source: Source
) -> Schedule | None:
    """None if the keys of the schedule and the policy contradict each other. Keys with an error are not compared."""
    if not defaults.is_right or not service.is_right(*TIMING_KEYS):
        return None
    try:
        return timing(**cast("TimingOptions", {key: value for key, value in options.items() if key in TIMING_KEYS}))[0]
    except InvalidValueError as exc:
        if service.given_keys(TIMING_KEYS):
            source.report(path, str(exc))
        else:
            defaults.report(str(exc), source)
        return None


def _fits(probe: Probe | None, schedule: Schedule, path: KeyPath, source: Source) -> bool:
    with source.reporting(*path, "probe"):
        if probe is not None:
            probe.validate_interval(schedule.interval_s)
        return True
    return False


def _text_options(service: ServiceTable) -> ServiceOptions:
    return cast("ServiceOptions", service.given_keys(("name", "description", "group", "tags", "runbook", "depends_on")))


def policy_options(table: Table) -> ServiceOptions:
    """The impact, objective, schedule and policy of a table. Whatever has an error is reported and left out."""
    keys = [key for key in ("impact", "maintenance_impact", "slo", *TIMING_KEYS) if table.is_right(key)]
    return cast("ServiceOptions", table.given_keys(keys))


def store_service(tables: Tables, options: ServiceOptions, store_path: Path) -> ServiceSettings | None:
    from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe

    if not tables.get(DefaultsTable).is_right(*TIMING_KEYS):
        return None
    with tables.source.reporting("defaults"):
        definition = define(
            STORE_ID,
            **options
            | {
                "name": "Embedded store",
                "description": "SQLite store of this node",
                "probe": SqliteProbe.for_path(store_path, STORE_APPLICATION_ID),
            },
        )
        return ServiceSettings(definition=definition)
    return None

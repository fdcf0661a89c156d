"""The settings that the rest of the program uses: frozen, complete and valid."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from svcnode.api.spec import parse_prefixes
from svcnode.config.schema import (
    DURATION_KEYS,
    IMPACT_KEYS,
    NOTIFY_TARGET_KEYS,
    THRESHOLD_KEYS,
    TOLERANCE_KEYS,
    ServiceTable,
)
from svcnode.config.validate import validate_keys, validate_value
from svcnode.core.address import Address, parse_address
from svcnode.core.errors import DuplicateServiceError, InvalidValueError
from svcnode.core.model import (
    DEFAULT_PREFIX,
    MAX_THRESHOLD,
    SPEC_VERSION,
    Identity,
    Status,
    Tolerance,
    validate_multiline,
    validate_service_id,
    validate_single_line,
    validate_text,
    validate_token,
    validate_version,
)
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text, suggestion
from svcnode.core.units import parse_duration_s, parse_size_bytes
from svcnode.definition import Definition, ServiceOptions, define
from svcnode.net.files import MAX_PEM_BYTES, read_in_time
from svcnode.probes import make_probe
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from svcnode.api.cors import CorsPolicy
    from svcnode.config.schema import (
        ControlTable,
        FileTable,
        HistoryTable,
        KeyPath,
        MaintenanceTable,
        NodeTable,
        NotifyTable,
        NotifyTargetKey,
        TlsTable,
    )
    from svcnode.config.sources import Source
    from svcnode.core.maintenance import MaintenanceSchedule
    from svcnode.core.redaction import SecretScope
    from svcnode.fleet import FleetSettings
    from svcnode.notify.notifier import NotifySettings
    from svcnode.notify.targets import NotificationTarget
    from svcnode.probes.base import Probe
    from svcnode.sharing import SharingSettings

    MakeProbe = Callable[[str | Mapping[str, Any]], Probe]

DEFAULT_LISTEN = "127.0.0.1:8420"
DEFAULT_HISTORY_AGE = "400d"
DEFAULT_HISTORY_SIZE, MIN_HISTORY_BYTES = "256MiB", 1024**2
# The first path segments of the operator surface; a prefix must not use them.
RESERVED_SEGMENTS = ("static", "events", "details", "history", "metrics", "badge")
PUSH_SEGMENT = "push"  # a prefix must not use it if pushes are received
DEFAULT_GROUP_WAIT, DEFAULT_RESOLVE_DELAY, DEFAULT_START_LIMIT = "5s", "5m", "5m"
DEFAULT_REPEAT_INTERVAL, MIN_REPEAT_INTERVAL_S, MAX_REPEAT_INTERVAL_S = "0s", 60.0, 30 * 86_400.0  # 0s: no reminders
# Lower case: two such names are two folders also where the file system ignores case.
FOLDER_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
HISTORY_FILE = "history.db"
STORE_ID = "store"  # of the one service of a node without configured services
CONTROL_SOCKET, CONTROL_STORE = "control.sock", "control.db"
MAX_SOCKET_PATH_BYTES = 107  # of the operating system

_POLICY_KEYS = (*DURATION_KEYS, *THRESHOLD_KEYS, *TOLERANCE_KEYS)
_OBSERVER_KEYS = ("observers", "checked_by")  # which replicas of a shared node check a service


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    definition: Definition
    status: Status | None = None  # the fixed status of a service without a probe
    push_token: str | None = field(default=None, repr=False)  # None: pushes are not received
    file: Path | None = None  # the configuration file with its probe; None: another source

    @property
    def id(self) -> str:
        return self.definition.service.id


class TlsSettings(NamedTuple):
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The operator surface: page, metrics and everything else beyond the interface."""

    listen: tuple[Address, ...]  # empty: the addresses of the interface
    token: str | None = field(repr=False)  # None: loopback only
    trusts_loopback: bool  # a request from loopback needs no token


class HistorySettings(NamedTuple):
    path: Path | None  # None: in memory only
    max_age_s: float
    max_bytes: int
    shared_path: Path | None = None  # if the path is a default: the default of earlier versions, for all nodes
    has_folder: bool = True  # False: no path is set, and there is no folder for state


class ControlSettings(NamedTuple):
    """The control socket. Who may connect to it is a matter of its file."""

    listen: Path
    group_id: int | None  # whose members may connect; None: only the user of the node
    path: Path  # of the store
    allows_exec: bool
    is_default: bool  # no path of the socket is set, so that the node also works without it


class Settings(NamedTuple):
    """The configuration of a node."""

    node_name: str
    node_version: str
    listen: tuple[Address, ...]  # of the interface
    # All addresses to bind, each with the option, environment variable or key that sets it; None: the default.
    addresses: Mapping[Address, str | None]
    prefixes: tuple[str, ...]
    cors: CorsPolicy | None  # None: no page of another origin may read the responses
    drain_s: float | None  # None: the agent chooses
    tls: TlsSettings | None
    operator: OperatorSettings | None
    store_path: Path
    history: HistorySettings
    control: ControlSettings | None  # None: no control socket
    notify: NotifySettings | None  # None: no notifications
    sharing: SharingSettings | None  # None: the node is on one machine
    fleet: FleetSettings | None  # None: its services are not found elsewhere
    defaults: ServiceOptions
    log_level: str
    log_format: str
    services: tuple[ServiceSettings, ...]
    maintenance: tuple[MaintenanceSchedule, ...]
    uses_store: bool  # no services are configured, shared or found, so the node probes its own store
    secrets: SecretScope  # of this configuration


def settings_from(table: FileTable, source: Source, secrets: SecretScope) -> Settings:
    node, server, log = table.get("node", {}), table.get("server", {}), table.get("log", {})
    identity = _identity(node, source)
    state_folder = _state_folder(source.environ)
    with source.error_context("store", "path"):
        store_path = _store_path(table, state_folder)
    with source.error_context("server", "prefix"):
        prefixes = parse_prefixes(_as_list(server.get("prefix", DEFAULT_PREFIX)))
    cors = _cors(server["cors"], source) if "cors" in server else None
    drain_s = _duration_s(source, ("server", "drain"), server["drain"], at_most="1h") if "drain" in server else None
    with source.error_context("server", "listen"):
        listen = _addresses(server.get("listen", DEFAULT_LISTEN), has_tls="tls" in server)
    operator = _operator(table, source, prefixes, listen)
    operator_listen = () if operator is None else operator.listen
    if "tls" in server and all(address.scheme != "https" for address in (*listen, *operator_listen)):
        raise source.error(
            ("server", "listen"), "[server.tls] is set, but no address uses TLS; add an https:// address"
        )
    defaults = _policy_options(table.get("defaults", {}), ("defaults",), source)
    make = partial(make_probe, environ=source.environ, allowed=_allowed_features(table))
    services = tuple(_services(table, defaults, make, source))
    control = _control(table.get("control", {}), source, state_folder, identity.node_name)
    _check_push(services, control, prefixes, source)
    sharing = _sharing(table, source, listen)
    fleet = _fleet(table, source, defaults)
    uses_store = not services and sharing is None and fleet is None
    return Settings(
        node_name=identity.node_name,
        node_version=identity.node_version,
        listen=listen,
        addresses={
            **dict.fromkeys(listen, source.set_by("server", "listen")),
            **dict.fromkeys(operator_listen, source.set_by("server", "operator_listen")),
        },
        prefixes=prefixes,
        cors=cors,
        drain_s=drain_s,
        tls=_tls(server["tls"], source) if "tls" in server else None,
        operator=operator,
        store_path=store_path,
        history=_history(table.get("history", {}), source, state_folder, identity.node_name),
        control=control,
        notify=notify_settings(table["notify"], source) if "notify" in table else None,
        sharing=sharing,
        fleet=fleet,
        defaults=defaults,
        log_level=log.get("level", "info"),
        log_format=log.get("format", "auto"),
        services=(_store_service(defaults, source, store_path),) if uses_store else services,
        maintenance=tuple(_maintenance(table, source)),
        uses_store=uses_store,
        secrets=secrets,
    )


def notify_from(table: FileTable, source: Source) -> tuple[Identity, NotifySettings | None]:
    """The identity in messages, and the notification settings; other tables are not read."""
    notify = notify_settings(table["notify"], source) if "notify" in table else None
    return _identity(table.get("node", {}), source), notify


def history_from(table: FileTable, source: Source) -> HistorySettings:
    """The history, whose path is set; other tables are not read."""
    return _history(table["history"], source, state_folder=None, node_name="")


def control_from(table: FileTable, source: Source) -> ControlSettings | None:
    """The control socket; other tables are not read."""
    identity = _identity(table.get("node", {}), source)
    return _control(table.get("control", {}), source, _state_folder(source.environ), identity.node_name)


def _sharing(table: FileTable, source: Source, listen: tuple[Address, ...]) -> SharingSettings | None:
    if "sharing" not in table:
        return None
    from svcnode.config.sharing import sharing_from  # few nodes are shared

    return sharing_from(table, source, listen)


def _fleet(table: FileTable, source: Source, defaults: ServiceOptions) -> FleetSettings | None:
    if "fleet" not in table:
        return None
    from svcnode.config.fleet import fleet_from  # few nodes show a fleet

    return fleet_from(table, source, defaults | _policy_options(table["fleet"], ("fleet",), source))


def configured_service(source: Source, service_id: str) -> ServiceSettings:
    """One service; other services are not read."""
    keys = {"defaults": None, "security": ("allow_exec",), "store": None}
    table = validate_keys(source, keys)
    defaults = _policy_options(table.get("defaults", {}), ("defaults",), source)
    services = source.data.get("services", [])
    validate_value(services, list[dict[str, Any]], ("services",), source)
    ids = [str(service.get("id", "")) for service in services]
    if not ids and service_id == STORE_ID:
        with source.error_context("store", "path"):
            return _store_service(defaults, source, _store_path(table, _state_folder(source.environ)))
    if service_id not in ids:
        known = suggestion(service_id, ids) if ids else f'; without services, the node has only "{STORE_ID}"'
        raise source.error(("services",), f'no service "{service_id}"{known}')
    path = ("services", ids.index(service_id))
    validate_value(services[path[1]], ServiceTable, path, source)
    make = partial(make_probe, environ=source.environ, allowed=_allowed_features(table))
    return service_from(services[path[1]], path, defaults, make, source)


def _identity(node: NodeTable, source: Source) -> Identity:
    name, version = node.get("name", socket.gethostname()), node.get("version", f"v{__version__}")
    with source.error_context("node", "name"):
        validate_text("the name", name)
    with source.error_context("node", "version"):
        validate_version("a version", version)
    return Identity(node_name=name, spec_version=SPEC_VERSION, node_version=version)


def _duration_s(source: Source, path: KeyPath, text: str, *, at_least: str = "0s", at_most: str = "") -> float:
    with source.error_context(*path):
        duration_s = parse_duration_s(text)
        if duration_s < parse_duration_s(at_least):
            raise InvalidValueError(f"must be at least {at_least}")
        if at_most and duration_s > parse_duration_s(at_most):
            raise InvalidValueError(f"must be at most {at_most}")
    return duration_s


def _as_list(value: str | list[str]) -> list[str]:
    """A list, one value, or several values separated by commas, as in an environment variable."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _cors(origins: str | list[str], source: Source) -> CorsPolicy:
    from svcnode.api.cors import parse_origins  # few nodes are read by pages of another origin

    with source.error_context("server", "cors"):
        return parse_origins(_as_list(origins))


def _addresses(listen: str | list[str], *, has_tls: bool) -> tuple[Address, ...]:
    addresses = tuple(parse_address(text, has_tls=has_tls) for text in _as_list(listen))
    if not addresses:
        raise InvalidValueError("needs at least one address")
    if not _are_distinct(addresses):
        raise InvalidValueError("duplicate address")
    return addresses


def _are_distinct(addresses: Sequence[Address]) -> bool:
    # Port 0 is a random port: the same host may be given twice with different schemes.
    keys = [address.bind_key if address.port or address.path else address for address in addresses]
    return len(set(keys)) == len(keys)


def _operator(
    table: FileTable, source: Source, prefixes: tuple[str, ...], listen: tuple[Address, ...]
) -> OperatorSettings | None:
    server, security = table.get("server", {}), table.get("security", {})
    operator_listen: tuple[Address, ...] = ()
    with source.error_context("security", "operator_token"):
        token = _token(security.get("operator_token"), source.environ)
    with source.error_context("server", "operator_listen"):
        if "operator_listen" in server:
            operator_listen = _addresses(server["operator_listen"], has_tls="tls" in server)
            if not _are_distinct((*listen, *operator_listen)):
                raise InvalidValueError("listen has this address already; remove operator_listen to serve both there")
    if not server.get("operator", True):
        return None
    with source.error_context("server", "prefix"):
        for prefix in prefixes:
            if prefix.split("/")[1:2] and prefix.split("/")[1] in RESERVED_SEGMENTS:
                raise InvalidValueError(
                    f'"{prefix}" is a path of the operator pages; choose another, or set operator = false in [server]'
                )
    trusts_loopback = security.get("trust_loopback", token is None)
    if not trusts_loopback and token is None:
        raise source.error(
            ("security", "trust_loopback"),
            "is false, but no operator token is set; set operator_token in [security], or operator = false in [server]",
        )
    return OperatorSettings(listen=operator_listen, token=token, trusts_loopback=trusts_loopback)


def _token(value: object, environ: Mapping[str, str]) -> str | None:
    if value is None:
        return None
    from svcnode.probes.interpolate import interpolate

    token = interpolate(value, environ)
    if not isinstance(token, str):
        raise InvalidValueError('must be a string, "${NAME}", or { file = "…" }')
    validate_token(token)
    register_secret(token)
    return token


def _history(history: HistoryTable, source: Source, state_folder: Path | None, node_name: str) -> HistorySettings:
    with source.error_context("history", "path"):
        path, shared_path = _configured_path(history.get("path")), None
    max_age_s = _duration_s(source, ("history", "max_age"), history.get("max_age", DEFAULT_HISTORY_AGE), at_least="1h")
    with source.error_context("history", "max_size"):
        max_bytes = parse_size_bytes(history.get("max_size", DEFAULT_HISTORY_SIZE))
        if max_bytes < MIN_HISTORY_BYTES:
            raise InvalidValueError("must be at least 1MiB")
    if not history.get("keep", True):
        return HistorySettings(path=None, max_age_s=max_age_s, max_bytes=max_bytes)
    if path is None and state_folder is not None:
        path = state_folder / "nodes" / node_folder_name(node_name) / HISTORY_FILE
        shared_path = state_folder / HISTORY_FILE
    return HistorySettings(
        path=path, max_age_s=max_age_s, max_bytes=max_bytes, shared_path=shared_path, has_folder=path is not None
    )


def _control(
    control: ControlTable, source: Source, state_folder: Path | None, node_name: str
) -> ControlSettings | None:
    folder = None if state_folder is None else state_folder / "nodes" / node_folder_name(node_name)
    with source.error_context("control", "listen"):
        listen = _control_socket(control.get("listen"), source.environ, folder)
    with source.error_context("control", "path"):
        path = _configured_path(control.get("path")) or (None if folder is None else folder / CONTROL_STORE)
    with source.error_context("control", "group"):
        group_id = _group_id(control["group"]) if "group" in control else None
    if not control.get("enabled", True) or listen is None or path is None:
        return None
    return ControlSettings(
        listen=listen,
        group_id=group_id,
        path=path,
        allows_exec=control.get("allow_exec", False),
        is_default="listen" not in control,
    )


def _control_socket(listen: str | None, environ: Mapping[str, str], folder: Path | None) -> Path | None:
    """The default is in systemd's RUNTIME_DIRECTORY, or beside the history; None if there is neither."""
    if listen is not None:
        if not listen.startswith("unix:"):
            raise InvalidValueError('must be a Unix socket, such as "unix:/run/svcnode/control.sock"')
        return Path(parse_address(listen, has_tls=False).path)
    if runtime_directory := environ.get("RUNTIME_DIRECTORY"):
        return Path(runtime_directory.split(":")[0]) / CONTROL_SOCKET
    path = None if folder is None else folder / CONTROL_SOCKET
    return None if path is None or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES else path


def _group_id(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidValueError(f'there is no group "{name}" on this machine') from None


def notify_settings(notify: NotifyTable, source: Source) -> NotifySettings:
    from svcnode.notify.alert import AlertPolicy
    from svcnode.notify.notifier import NotifySettings

    if not notify.keys() & NOTIFY_TARGET_KEYS:
        hint = 'set webhook = "https://…", alertmanager = "http://…" or apprise = ["…"]'
        raise source.error(("notify",), f"no notification targets; {hint}")
    group_wait, resolve_delay = (
        notify.get("group_wait", DEFAULT_GROUP_WAIT),
        notify.get("resolve_delay", DEFAULT_RESOLVE_DELAY),
    )
    group_wait_s = _duration_s(source, ("notify", "group_wait"), group_wait, at_most="5m")
    resolve_delay_s = _duration_s(source, ("notify", "resolve_delay"), resolve_delay, at_most="24h")
    start_limit = notify.get("start_limit", DEFAULT_START_LIMIT)
    start_limit_s = _duration_s(source, ("notify", "start_limit"), start_limit, at_most="24h")
    with source.error_context("notify", "repeat_interval"):
        repeat_interval_s = parse_duration_s(notify.get("repeat_interval", DEFAULT_REPEAT_INTERVAL))
        if repeat_interval_s and not MIN_REPEAT_INTERVAL_S <= repeat_interval_s <= MAX_REPEAT_INTERVAL_S:
            raise InvalidValueError("must be 0s for no reminders, or from 1m to 30d")
    return NotifySettings(
        targets=tuple(_targets(notify, source)),
        policy=AlertPolicy(
            services=notify.get("services", "critical"),
            group_wait_s=group_wait_s,
            resolve_delay_s=resolve_delay_s,
            repeat_interval_s=repeat_interval_s,
            start_limit_s=start_limit_s,
        ),
    )


def _targets(notify: NotifyTable, source: Source) -> Iterator[NotificationTarget]:
    from svcnode.notify.alertmanager import alertmanager_from
    from svcnode.notify.targets import apprise_from, webhook_from

    build: dict[str, Callable[[object, Mapping[str, str]], NotificationTarget]] = {
        "webhook": webhook_from,
        "alertmanager": alertmanager_from,
        "apprise": apprise_from,
    }
    seen: set[NotificationTarget] = set()
    for key in NOTIFY_TARGET_KEYS:
        for path, entry in _notify_entries(notify, key):
            with source.error_context("notify", *path):
                target = build[key](entry, source.environ)
                if target in seen:
                    raise InvalidValueError("duplicate target")
            seen.add(target)
            yield target


def _notify_entries(notify: NotifyTable, key: NotifyTargetKey) -> Iterator[tuple[KeyPath, object]]:
    """The value, or the elements of a list, each with its path."""
    value = notify.get(key, [])
    if isinstance(value, list):
        yield from (((key, index), target) for index, target in enumerate(value))
    else:
        yield (key,), value


def _tls(tls: TlsTable, source: Source) -> TlsSettings:
    with source.error_context("server", "tls", "certificate"):
        certificate = _readable_file(tls["certificate"])
    with source.error_context("server", "tls", "key"):
        key = _readable_file(tls["key"])
    return TlsSettings(certificate=certificate, key=key)


def _readable_file(name: str) -> Path:
    validate_text("the path", name)
    path = Path(name)
    try:
        read_in_time(path, MAX_PEM_BYTES)
    except OSError as exc:
        raise InvalidValueError(f"cannot read {path}: {os_error_text(exc)}") from exc
    return path


def _allowed_features(table: FileTable) -> frozenset[str]:
    return frozenset(key for key, is_allowed in table.get("security", {}).items() if is_allowed is True)


def _services(table: FileTable, defaults: ServiceOptions, make: MakeProbe, source: Source) -> Iterator[ServiceSettings]:
    seen: set[str] = set()
    for index, service in enumerate(table.get("services", [])):
        with source.error_context("services", index, "id"):
            validate_service_id(service["id"])
            if service["id"] in seen:
                raise DuplicateServiceError(service["id"])
        seen.add(service["id"])
        check_observer_keys(service, ("services", index), source, is_shared="sharing" in table)
        yield service_from(service, ("services", index), defaults, make, source)


def check_observer_keys(service: Mapping[str, Any], path: KeyPath, source: Source, *, is_shared: bool) -> None:
    for key in (key for key in _OBSERVER_KEYS if key in service):
        if not is_shared:
            raise source.error((*path, key), "is for a node with replicas; add the table [sharing], or remove this key")
        from svcnode.config.sharing import check_observer_key

        with source.error_context(*path, key):
            check_observer_key(key, service)


def service_from(
    service: ServiceTable, path: KeyPath, defaults: ServiceOptions, make: MakeProbe, source: Source
) -> ServiceSettings:
    if ("probe" in service) == ("status" in service):
        both_or_neither = "both are" if "probe" in service else "neither is"
        raise source.error(path, f"a service needs exactly one of probe and status; {both_or_neither} set")
    options = defaults | _policy_options(service, path, source) | _text_options(service, path, source)
    why_unchecked = "a service with a fixed status is not checked"
    if "probe" in service:
        with source.error_context(*path, "probe"):
            options["probe"] = probe = make(service["probe"])
        why_unchecked = "" if probe.ttl_s is None else "a service that sends heartbeats is not checked"
    if why_unchecked:
        for key in (key for key in (*_POLICY_KEYS, *_OBSERVER_KEYS) if key in service):
            raise source.error((*path, key), f"{why_unchecked}; remove this key")
        options = cast("ServiceOptions", {key: value for key, value in options.items() if key not in _POLICY_KEYS})
    with source.error_context(*path):
        as_written = {key: value for key, value in service.items() if key in ("probe", "status", *_OBSERVER_KEYS)}
        definition = define(service["id"], **options)._replace(options={**options, **as_written})
    with source.error_context(*path, "push_token"):
        if "push_token" in service and ("status" in service or definition.probe_config is not None):
            raise InvalidValueError('is only for a service with the probe "heartbeat:"; remove this key')
        push_token = _token(service.get("push_token"), source.environ)
    status = Status(service["status"]) if "status" in service else None
    file = source.file_of((*path, "probe"))
    return ServiceSettings(
        definition=definition, status=status, push_token=push_token, file=None if file is None else file.absolute()
    )


def _check_push(
    services: Sequence[ServiceSettings], control: ControlSettings | None, prefixes: tuple[str, ...], source: Source
) -> None:
    for index, service in enumerate(services):
        if service.push_token is None:
            continue
        if control is None:
            raise source.error(
                ("services", index, "push_token"),
                "pushes are stored in the control store; set listen and path in [control], without enabled = false",
            )
        with source.error_context("server", "prefix"):
            if prefix := next((prefix for prefix in prefixes if prefix.split("/")[1:2] == [PUSH_SEGMENT]), None):
                raise InvalidValueError(f'"{prefix}" is the path of pushes; choose another, or remove push_token')


def _text_options(service: ServiceTable, path: KeyPath, source: Source) -> ServiceOptions:
    with source.error_context(*path, "name"):
        validate_single_line("the name", service.get("name", ""))
    with source.error_context(*path, "description"):
        validate_multiline("the description", service.get("description", ""))
    with source.error_context(*path, "group"):
        validate_single_line("the group", service.get("group", ""))
    return cast("ServiceOptions", {key: service[key] for key in ("name", "description", "group") if key in service})


def _policy_options(table: Mapping[str, object], path: KeyPath, source: Source) -> ServiceOptions:
    """The impact, schedule and policy of a table, each checked at its own path."""
    options = {key: table[key] for key in (*IMPACT_KEYS, *_POLICY_KEYS) if key in table}
    for key, value in options.items():
        with source.error_context(*path, key):
            _check_policy_option(key, value)
    return cast("ServiceOptions", options)


def _check_policy_option(key: str, value: Any) -> None:  # noqa: ANN401  validation has checked its type
    if key in IMPACT_KEYS:
        return  # validation has checked it
    if key in TOLERANCE_KEYS:
        Tolerance.parse(value)
    elif key in THRESHOLD_KEYS:
        if value < 1:
            raise InvalidValueError(f"must be at least 1 check, not {value}")
        if value > MAX_THRESHOLD:
            raise InvalidValueError(f"must be at most {MAX_THRESHOLD} checks, not {value}")
    elif not parse_duration_s(value) and key != "start_period":
        raise InvalidValueError(f'must be greater than 0, not "{value}"')


def _maintenance(table: FileTable, source: Source) -> Iterator[MaintenanceSchedule]:
    known = [service["id"] for service in table.get("services", [])]
    for index, maintenance in enumerate(table.get("maintenance", [])):
        yield _maintenance_schedule(maintenance, ("maintenance", index), known, source)


def _maintenance_schedule(
    table: MaintenanceTable, path: KeyPath, known: Sequence[str], source: Source
) -> MaintenanceSchedule:
    from svcnode.core.maintenance import MaintenanceSchedule, parse_start, parse_timezone

    with source.error_context(*path, "services"):
        if table.get("services") == []:
            raise InvalidValueError("is empty; remove it for maintenance of the whole node")
        for service_id in table.get("services", []):
            if service_id not in known:
                raise InvalidValueError(f'"{service_id}" is not a service of this file{suggestion(service_id, known)}')
    with source.error_context(*path, "start"):
        start = parse_start(table["start"])
    with source.error_context(*path, "duration"):
        duration_s = parse_duration_s(table["duration"])
        if not 0 < duration_s < start.period_s:
            period = "24h" if start.weekday is None else "7d"
            raise InvalidValueError(f"must be more than 0 and less than {period}, when it begins again")
    with source.error_context(*path, "timezone"):
        timezone = parse_timezone(table.get("timezone", "UTC"))
    with source.error_context(*path, "reason"):
        validate_single_line("the reason", table.get("reason", ""))
    return MaintenanceSchedule(
        service_ids=tuple(table.get("services", ())),
        start=start,
        duration_s=duration_s,
        timezone=timezone,
        reason=table.get("reason", ""),
    )


def _store_service(defaults: ServiceOptions, source: Source, store_path: Path) -> ServiceSettings:
    from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe

    with source.error_context("defaults"):
        definition = define(
            STORE_ID,
            **defaults
            | {
                "name": "Embedded store",
                "description": "SQLite store of this node",
                "probe": SqliteProbe.for_path(store_path, STORE_APPLICATION_ID),
            },
        )
    return ServiceSettings(definition=definition)


def node_folder_name(node_name: str) -> str:
    """The folder of a node's history; no two names have the same one.

    A name that is not a plain folder name gets a hash after "~", which no plain one contains.
    """
    if FOLDER_NAME_PATTERN.fullmatch(node_name):
        return node_name
    import hashlib  # loaded late: it takes milliseconds, and most names do not need it

    readable = re.sub(r"[^a-z0-9]+", "-", node_name.lower())[:40].strip("-")
    return f"{readable or 'node'}~{hashlib.sha256(node_name.encode()).hexdigest()[:16]}"


def _store_path(table: FileTable, state_folder: Path | None) -> Path:
    if (path := _configured_path(table.get("store", {}).get("path"))) is not None:
        return path
    if state_folder is not None:
        return state_folder / "store.db"
    if table.get("services") or "sharing" in table or "fleet" in table:
        return Path()  # unused
    raise InvalidValueError(
        "not set, and no home folder: HOME is not set, and this user is not in the password database; "
        "set a path here, or configure a service: the node needs this file only without services"
    )


def _configured_path(path: str | None) -> Path | None:
    if path is None:
        return None
    validate_text("the path", path)
    return Path(path)


def _state_folder(environ: Mapping[str, str]) -> Path | None:
    """systemd's STATE_DIRECTORY, or the XDG state folder; None if there is no home folder."""
    if state_directory := environ.get("STATE_DIRECTORY"):
        return Path(state_directory.split(":")[0])
    if state_home := environ.get("XDG_STATE_HOME"):
        return Path(state_home) / "svcnode"
    home = _home(environ)
    return None if home is None else home / ".local" / "state" / "svcnode"


def _home(environ: Mapping[str, str]) -> Path | None:
    if home := environ.get("HOME"):
        return Path(home)
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None

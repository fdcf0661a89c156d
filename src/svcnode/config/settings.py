"""The settings that the rest of the program uses: frozen, complete and valid."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from svcnode.config.reading import Tables, read_table, read_tables
from svcnode.config.service_tables import (
    STORE_ID,
    Defaults,
    ServiceSettings,
    allowed_features,
    is_path_of_pushes,
    policy_options,
    service_from,
    services_from,
    store_service,
)
from svcnode.config.tables import (
    LISTS,
    TABLES,
    TIMING_KEYS,
    ControlTable,
    DefaultsTable,
    FleetTable,
    HistoryTable,
    LogTable,
    MaintenanceTable,
    NodeTable,
    NotifyTable,
    OperatorTable,
    PublicTable,
    SecurityTable,
    ServerTable,
    ServiceTable,
    SharingTable,
    StoreTable,
)
from svcnode.core.address import Address, parse_address
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import SPEC_VERSION, Identity
from svcnode.core.text import os_error_text, suggestion, type_name
from svcnode.net.files import MAX_PEM_BYTES, read_in_time
from svcnode.probes import make_probe
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from svcnode.api.cors import CorsPolicy
    from svcnode.config.fleet import FleetSettings
    from svcnode.config.keys import KeyPath, Table
    from svcnode.config.public import PublicSettings
    from svcnode.config.sources import Source
    from svcnode.config.tables import TlsTable
    from svcnode.core.maintenance import MaintenanceSchedule
    from svcnode.core.redaction import SecretScope
    from svcnode.node.definition import ServiceOptions
    from svcnode.notify.heartbeat import Heartbeat
    from svcnode.notify.notifier import NotifySettings
    from svcnode.notify.routes import RouteSettings
    from svcnode.notify.targets import NotificationTarget
    from svcnode.sharing import SharingSettings

# The first path segments of the operator surface; a prefix must not use them.
RESERVED_SEGMENTS = (
    "static",
    "events",
    "details",
    "history",
    "metrics",
    "badge",
    "page",
    "problems",
    "report",
    "targets",
)
# Lower case: two such names are two folders also where the file system ignores case.
FOLDER_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
HISTORY_FILE = "history.db"
CONTROL_SOCKET, CONTROL_STORE = "control.sock", "control.db"
MAX_SOCKET_PATH_BYTES = 107  # of the operating system


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
    public: PublicSettings | None  # None: nothing is published
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
    file: Path | None  # None: there is no file


# ---- reading


def settings_from(source: Source, secrets: SecretScope) -> Settings:
    """Raises the first error, with the others: a wrong table does not hide the errors of another."""
    tables = Tables(source)
    _report_unknown_tables(source)
    server, log, state_folder = tables.get(ServerTable), tables.get(LogTable), _state_folder(source.environ)
    identity = _identity(tables)
    listen, operator_listen = _listen_addresses(server, source)
    operator = _operator(tables, operator_listen)
    operator_listen = () if operator is None else operator.listen
    public = _public(tables, (*listen, *operator_listen))
    public_listen = () if public is None else public.listen
    all_listen = (*listen, *operator_listen, *public_listen)
    if server.is_right("listen", "operator_listen") and "tls" in server and not _uses_tls(all_listen):
        source.report(("server", "listen"), "[server.tls] is set, but no address uses TLS; add an https:// address")
    defaults = policy_options(tables.get(DefaultsTable))
    services = services_from(tables)
    control = _control(tables, state_folder, identity.node_name)
    _check_push(tables, services, control, server.prefix)
    sharing = _sharing(tables, listen, _node_folder(state_folder, identity.node_name))
    fleet = _fleet(tables, defaults)
    uses_store = not source.data.get("services") and "sharing" not in tables and "fleet" not in tables
    store_path = _store_path(tables, state_folder, is_used=uses_store)
    store = [store_service(tables, defaults, store_path)] if uses_store else []
    history = _history(tables, state_folder, identity.node_name)
    notify = notify_settings(tables) if "notify" in tables else None
    maintenance = tuple(_maintenance(tables))
    tls = None if server.tls is None else _tls(server.tls, source)
    source.raise_errors()
    return Settings(
        node_name=identity.node_name,
        node_version=identity.node_version,
        listen=listen,
        addresses={
            **dict.fromkeys(listen, source.set_by("server", "listen")),
            **dict.fromkeys(operator_listen, source.set_by("server", "operator_listen")),
            **dict.fromkeys(public_listen, source.set_by("public", "listen")),
        },
        prefixes=server.prefix,
        cors=server.cors,
        drain_s=server.drain,
        tls=tls,
        operator=operator,
        public=public,
        store_path=store_path,
        history=history,
        control=control,
        notify=notify,
        sharing=sharing,
        fleet=fleet,
        defaults=defaults,
        log_level=log.level,
        log_format=log.format,
        services=tuple(service for service in (*store, *services) if service is not None),
        maintenance=maintenance,
        uses_store=uses_store,
        secrets=secrets,
        file=source.file,
    )


def _report_unknown_tables(source: Source) -> None:
    known = (*TABLES, *LISTS)
    for name in (name for name in source.data if name not in known):
        from svcnode.config.places import unknown_key_text  # needed only for errors

        source.report((name,), unknown_key_text(name, suggestion(name, known)))


def notify_from(source: Source) -> tuple[Identity, NotifySettings | None]:
    """The identity in messages, and the notification settings; other tables are not read."""
    tables = Tables(source)
    notify, identity = notify_settings(tables) if "notify" in tables else None, _identity(tables)
    source.raise_errors()
    return identity, notify


def embedded_notify_from(source: Source) -> NotifySettings:
    notify = notify_settings(Tables(source))
    source.raise_errors()
    return notify


def history_from(source: Source) -> HistorySettings:
    """The history, whose path is set; other tables are not read."""
    history = _history(Tables(source), state_folder=None, node_name="")
    source.raise_errors()
    return history


def node_history_from(source: Source) -> HistorySettings:
    """The history of the node, at its path or the default path; other tables are not read."""
    tables = Tables(source)
    history = _history(tables, _state_folder(source.environ), _identity(tables).node_name)
    source.raise_errors()
    return history


def control_from(source: Source) -> ControlSettings | None:
    """The control socket; other tables are not read."""
    tables = Tables(source)
    control = _control(tables, _state_folder(source.environ), _identity(tables).node_name)
    source.raise_errors()
    return control


def configured_service(source: Source, service_id: str) -> ServiceSettings:
    """One service; other services are not read."""
    tables, services = Tables(source), source.data.get("services", [])
    defaults = policy_options(tables.get(DefaultsTable))
    allowed = allowed_features(
        read_table(SecurityTable, source.data.get("security", {}), ("security",), source, ["allow_exec"])
    )
    found: ServiceSettings | None = None
    if not isinstance(services, list):
        source.report(("services",), f"must be a list, not {type_name(services)}")
        services = []
    ids = [str(service.get("id", "")) if isinstance(service, dict) else "" for service in services]
    if not ids and service_id == STORE_ID:
        path = _store_path(tables, _state_folder(source.environ), is_used=True)
        found = store_service(tables, defaults, path)
    elif service_id not in ids:
        known = suggestion(service_id, ids) if ids else f'; without services, the node has only "{STORE_ID}"'
        source.report(("services",), f'no service "{service_id}"{known}')
    else:
        index = ids.index(service_id)
        service = read_table(ServiceTable, services[index], ("services", index), source)
        make = partial(make_probe, environ=source.environ, allowed=allowed)
        found = service_from(service, ("services", index), Defaults(tables.get(DefaultsTable)), make, source)
    source.raise_errors()
    assert found is not None, "or an error was raised"
    return found


# ---- the node and its server


def _identity(tables: Tables) -> Identity:
    node = tables.get(NodeTable)
    identity = partial(Identity, spec_version=SPEC_VERSION, node_version=node.version or f"v{__version__}")
    with tables.source.reporting("node", "name"):  # the host name may be invalid
        return identity(node_name=socket.gethostname() if node.name is None else node.name)
    return identity(node_name="node")


def _listen_addresses(server: ServerTable, source: Source) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    """The addresses of the interface and, if it has its own, of the operator surface. Empty if there is an error."""
    has_tls = "tls" in server
    listen = _addresses(server, ("server", "listen"), source, has_tls=has_tls)
    operator_listen = _addresses(server, ("server", "operator_listen"), source, has_tls=has_tls)
    if server.is_right("listen", "operator_listen") and (pair := _overlapping((*listen, *operator_listen))):
        same = "listen has this address already; remove operator_listen to serve both there"
        source.report(("server", "operator_listen"), _overlap_text(pair, same))
    return listen, operator_listen


def _addresses(table: Table, path: tuple[str, str], source: Source, *, has_tls: bool) -> tuple[Address, ...]:
    _, key = path
    with source.reporting(*path):
        addresses = tuple(parse_address(text, has_tls=has_tls) for text in getattr(table, key) or ())
        if pair := _overlapping(addresses):
            raise InvalidValueError(_overlap_text(pair, "the same address is there twice; remove one of them"))
        return addresses
    table.wrong.add(key)
    return ()


def _overlapping(addresses: Sequence[Address]) -> tuple[Address, Address] | None:
    return next(((one, other) for one, other in combinations(addresses, 2) if one.overlaps(other)), None)


def _overlap_text(pair: tuple[Address, Address], same: str) -> str:
    one, other = pair
    if one.bind_key == other.bind_key:
        return same
    every = f"{one} and {other} overlap: one of them means all addresses of this machine"
    return f"{every}; remove one of them, or set another port"


def _uses_tls(addresses: Iterable[Address]) -> bool:
    return any(address.scheme == "https" for address in addresses)


def _operator(tables: Tables, listen: tuple[Address, ...]) -> OperatorSettings | None:
    server, security, source = tables.get(ServerTable), tables.get(SecurityTable), tables.source
    page_url = tables.get(OperatorTable).url
    if not server.operator:
        if page_url:
            source.report(
                ("operator", "url"),
                "there is no page, because operator in [server] is false; remove one of the two keys",
            )
        return None
    if server.is_right("prefix", "operator"):
        for prefix in server.prefix:
            if prefix.split("/")[1:2] and prefix.split("/")[1] in RESERVED_SEGMENTS:
                source.report(
                    ("server", "prefix"),
                    f'"{prefix}" clashes with the operator pages; choose another, or set operator = false in [server]',
                )
    token = security.operator_token
    trusts_loopback = token is None if security.trust_loopback is None else security.trust_loopback
    if not trusts_loopback and token is None and security.is_right("operator_token", "trust_loopback"):
        source.report(
            ("security", "trust_loopback"),
            "is false, but no operator token is set; set operator_token in [security], or operator = false in [server]",
        )
    return OperatorSettings(listen=listen, token=token, trusts_loopback=trusts_loopback)


def _public(tables: Tables, others: tuple[Address, ...]) -> PublicSettings | None:
    """`others` are the other addresses of the node."""
    if "public" not in tables:
        return None
    from svcnode.config.public import public_from  # few nodes publish anything

    public, server, source = tables.get(PublicTable), tables.get(ServerTable), tables.source
    listen = _addresses(public, ("public", "listen"), source, has_tls="tls" in server)
    if server.is_right("listen", "operator_listen") and (pair := _overlapping((*others, *listen))):
        same = "[server] has this address already; choose another, or set path instead of listen"
        source.report(("public", "listen"), _overlap_text(pair, same))
    return public_from(public, listen, source, server.prefix, RESERVED_SEGMENTS)


def _tls(tls: TlsTable, source: Source) -> TlsSettings:
    for key, path in (("certificate", tls.certificate), ("key", tls.key)):
        if tls.is_right(key):
            with source.reporting("server", "tls", key):
                _check_readable(path)
    return TlsSettings(certificate=tls.certificate, key=tls.key)


def _check_readable(path: Path) -> None:
    try:
        read_in_time(path, MAX_PEM_BYTES)
    except OSError as exc:
        raise InvalidValueError(f"cannot read {path}: {os_error_text(exc)}") from exc


def _history(tables: Tables, state_folder: Path | None, node_name: str) -> HistorySettings:
    history = tables.get(HistoryTable)
    settings = partial(HistorySettings, max_age_s=history.max_age, max_bytes=history.max_size)
    if not history.keep:
        return settings(path=None)
    if history.path is not None or state_folder is None:
        return settings(path=history.path, has_folder=history.path is not None)
    path = state_folder / "nodes" / node_folder_name(node_name) / HISTORY_FILE
    return settings(path=path, shared_path=state_folder / HISTORY_FILE)


def _control(tables: Tables, state_folder: Path | None, node_name: str) -> ControlSettings | None:
    control, source = tables.get(ControlTable), tables.source
    folder = _node_folder(state_folder, node_name)
    listen = control.listen or _default_control_socket(source.environ, folder)
    path = control.path or (None if folder is None else folder / CONTROL_STORE)
    group_id: int | None = None
    if control.group is not None:
        with source.reporting("control", "group"):
            group_id = _group_id(control.group)
    if not control.enabled or listen is None or path is None:
        return None
    return ControlSettings(
        listen=listen,
        group_id=group_id,
        path=path,
        allows_exec=control.allow_exec,
        is_default="listen" not in control,
    )


def _default_control_socket(environ: Mapping[str, str], folder: Path | None) -> Path | None:
    """In systemd's RUNTIME_DIRECTORY, or beside the history; None if there is neither."""
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


# ---- notifications


def notify_settings(tables: Tables) -> NotifySettings:
    from svcnode.notify.notifier import NotifySettings
    from svcnode.notify.routes import AlertPolicy

    notify, source = tables.get(NotifyTable), tables.source
    keys = (*notify.target_keys, "heartbeat")
    if notify.is_right(*keys) and not any(key in notify for key in keys):
        hint = 'set webhook = "https://…", alertmanager = "http://…" or apprise = ["…"]'
        source.report(("notify",), f"no notification targets; {hint}")
    return NotifySettings(
        routes=tuple(_routes(notify, source)),
        heartbeat=_heartbeat(notify, source),
        page_url=tables.get(OperatorTable).url or "",
        policy=AlertPolicy(
            services=cast("Literal['critical', 'all', 'none']", notify.services),
            group_wait_s=notify.group_wait,
            resolve_delay_s=notify.resolve_delay,
            repeat_interval_s=notify.repeat_interval,
            start_limit_s=notify.start_limit,
        ),
    )


def _routes(notify: NotifyTable, source: Source) -> Iterator[RouteSettings]:
    from svcnode.config.routes import route_from
    from svcnode.notify.alertmanager import alertmanager_from
    from svcnode.notify.targets import HTTP_OPTIONS, apprise_from, webhook_from

    # What builds a target, and the names of its options.
    build: dict[str, tuple[Callable[..., NotificationTarget], Collection[str]]] = {
        "webhook": (webhook_from, HTTP_OPTIONS),
        "alertmanager": (alertmanager_from, HTTP_OPTIONS),
        "apprise": (apprise_from, ()),
    }
    seen: set[NotificationTarget] = set()
    names: Counter[str] = Counter()
    for key in notify.target_keys:
        for index, entry in enumerate(getattr(notify, key) or ()):
            path = (key, index) if isinstance(notify.given[key], list) else (key,)
            with source.reporting("notify", *path):
                make, options = build[key]
                route = route_from(entry, partial(make, environ=source.environ), options)
                if route.target in seen:
                    raise InvalidValueError("the same target is there twice; remove one of them")
                seen.add(route.target)
                names[route.name] += 1
                yield _with_own_name(route, names[route.name])


def _with_own_name(route: RouteSettings, number: int) -> RouteSettings:
    """Numbers the targets that would have the same name: webhooks of one host, and URLs of one scheme of Apprise."""
    if number == 1:
        return route
    if route.name == route.id:
        raise OptionError("name", "another target has this name; choose another one")
    return replace(route, name=f"{route.name} ({number})")


def _heartbeat(notify: NotifyTable, source: Source) -> Heartbeat | None:
    from svcnode.notify.heartbeat import heartbeat_from

    if not notify.is_right("heartbeat"):
        return None
    if notify.heartbeat is not None:
        with source.reporting("notify", "heartbeat"):
            return heartbeat_from(notify.heartbeat, source.environ, notify.heartbeat_interval)
    elif "heartbeat_interval" in notify:
        source.report(("notify", "heartbeat_interval"), "only works with heartbeat; set both")
    return None


# ---- several machines


def _sharing(tables: Tables, listen: tuple[Address, ...], folder: Path | None) -> SharingSettings | None:
    if "sharing" not in tables:
        return None
    from svcnode.config.sharing import sharing_from  # few nodes are shared

    return sharing_from(tables.get(SharingTable), tables.get(NodeTable), tables.source, listen, folder)


def _fleet(tables: Tables, defaults: ServiceOptions) -> FleetSettings | None:
    if "fleet" not in tables:
        return None
    from svcnode.config.fleet import fleet_from  # few nodes show a fleet

    fleet = tables.get(FleetTable)
    if "sharing" in tables:
        tables.source.report(("fleet",), "a node with [sharing] cannot have [fleet]; use another node for the fleet")
    is_right = fleet.is_right(*TIMING_KEYS) and tables.get(DefaultsTable).is_right(*TIMING_KEYS)
    return fleet_from(fleet, tables.source, defaults | policy_options(fleet), is_timing_right=is_right)


def _check_push(
    tables: Tables, services: Sequence[ServiceSettings | None], control: ControlSettings | None, prefixes: Sequence[str]
) -> None:
    source = tables.source
    pushed = [index for index, service in enumerate(services) if service is not None and service.push is not None]
    if control is None and tables.get(ControlTable).is_right(*ControlTable.keys):
        for index in pushed:
            source.report(
                ("services", index, "push_token"),
                "pushes need the control store; set listen and path in [control], and remove enabled = false",
            )
    elif pushed and (prefix := next(filter(is_path_of_pushes, prefixes), None)):
        source.report(
            ("server", "prefix"), f'"{prefix}" clashes with the path of pushes; choose another, or remove push_token'
        )


def _maintenance(tables: Tables) -> Iterator[MaintenanceSchedule]:
    source, services = tables.source, tables.source.data.get("services", [])
    tables_of_services = services if isinstance(services, list) else []
    known = {str(service.get("id")) for service in tables_of_services if isinstance(service, dict)}
    given = read_tables(MaintenanceTable, source.data.get("maintenance", []), ("maintenance",), source)
    for index, table in enumerate(given):
        yield from _maintenance_schedule(table, ("maintenance", index), known, source)


def _maintenance_schedule(
    table: MaintenanceTable, path: KeyPath, known: Collection[str], source: Source
) -> Iterator[MaintenanceSchedule]:
    """None if there is an error."""
    from svcnode.core.maintenance import MaintenanceSchedule

    for service_id in table.services or ():
        if service_id not in known:
            source.report(
                (*path, "services"), f'"{service_id}" is not a service of this file{suggestion(service_id, known)}'
            )
    if not table.is_right("start", "duration"):
        return
    if table.duration >= table.start.period_s:
        period = "24h" if table.start.weekday is None else "7d"
        source.report((*path, "duration"), f"must be less than {period}, because then it begins again")
    yield MaintenanceSchedule(
        service_ids=table.services or (),
        start=table.start,
        duration_s=table.duration,
        timezone=table.timezone or UTC,
        reason=table.reason or "",
    )


# ---- the store and the folders


def node_folder_name(node_name: str) -> str:
    """The folder of a node's history; no two names have the same one.

    A name that is not a plain folder name gets a hash after "~", which no plain one contains.
    """
    if FOLDER_NAME_PATTERN.fullmatch(node_name):
        return node_name
    import hashlib  # loaded late: it takes milliseconds, and most names do not need it

    readable = re.sub(r"[^a-z0-9]+", "-", node_name.lower())[:40].strip("-")
    return f"{readable or 'node'}~{hashlib.sha256(node_name.encode()).hexdigest()[:16]}"


def _node_folder(state_folder: Path | None, node_name: str) -> Path | None:
    return None if state_folder is None else state_folder / "nodes" / node_folder_name(node_name)


def _store_path(tables: Tables, state_folder: Path | None, *, is_used: bool) -> Path:
    if (path := tables.get(StoreTable).path) is not None:
        return path
    if state_folder is not None:
        return state_folder / "store.db"
    if is_used and tables.get(StoreTable).is_right("path"):
        tables.source.report(
            ("store", "path"),
            "there is no place for this file: HOME is not set, and this user is not in the password database; "
            "set a path here, or add a service, because the node needs this file only without services",
        )
    return Path()  # unused


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

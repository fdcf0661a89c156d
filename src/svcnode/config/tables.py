"""The keys of the configuration file. Each is declared once: type, bounds, default, meaning, and if it is a secret.

The parser, its errors, the environment variables, the JSON Schema, docs/reference.md and the manual page follow.
"""

from __future__ import annotations

from typing import ClassVar

from svcnode.config.keys import Table, inner_table, value
from svcnode.config.values import (
    REGISTRY_URL,
    addresses,
    any_of,
    description,
    file_path,
    line,
    link,
    names,
    node_url,
    origins,
    page_url,
    password,
    prefixes,
    public_path,
    published,
    replica_name,
    replicas,
    service_id,
    service_ids,
    slo,
    start_time,
    tags,
    targets,
    timezone,
    token,
    tolerance,
    unix_socket,
    version,
)
from svcnode.core.model import DEFAULT_PREFIX, MAX_THRESHOLD, RETIRED_KEYS
from svcnode.core.option_types import byte_size, duration, flag, one_of, whole_number

DEFAULT_LISTEN = "127.0.0.1:8420"
MAX_OBSERVERS = 7
_FILE = {"$ref": "#/$defs/file"}
_PEM_FILE = line("the path", may_be_empty=True)
_PROBE = any_of(str, dict, schema={"$ref": "#/$defs/probe"})


# ---- the node and its server


class OperatorTable(Table):
    """The page and everything else beyond the interface; `[server]` and `[security]` say where it is served to whom."""

    url = value(
        page_url,
        default_text="none",
        doc="Where people reach the [page](see.md#the-page), such as `https://node.example.com:8420`; "
        "[alerts](alerts.md#messages) link to it",
    )


class NodeTable(Table):
    name = value(line("the name"), default_text="the host name", doc="Name of the node")
    version = value(version, default_text="svcnode's version", doc="Version of the node: `v` and dotted numbers")


class TlsTable(Table):
    certificate = value(file_path, is_required=True, doc="PEM file, with the chain")
    key = value(file_path, is_required=True, doc="PEM file, not encrypted")


class ServerTable(Table):
    listen = value(
        addresses,
        default=DEFAULT_LISTEN,
        doc="One address or a list: `host:port`, `[ipv6]:port`, `http://…`, `https://…`, `unix:/path`; port 0 selects "
        "a "
        "free port",
    )
    prefix = value(prefixes, default=DEFAULT_PREFIX, doc="One prefix or a list")
    cors = value(
        origins,
        default_text="none",
        doc="Web origins whose pages may [read the four endpoints](operate.md#pages-of-other-origins): a list, or "
        '`"*"`',
    )
    drain = value(
        duration(at_most="1h"),
        default_text="`5s`; `0s` under a terminal",
        doc="How long health is 503 before the node stops; at most `1h`",
    )
    operator = value(flag, default=True, doc="Serve the [operator surface](operate.md#operator-surface)")
    operator_listen = value(
        addresses,
        default_text="those of `listen`",
        doc="Addresses of the operator surface; the interface is served there, too",
    )
    tls = inner_table(TlsTable)


class PublicTable(Table):
    """What everyone may see without a token, on a [public page](public.md): it is off unless this table is there."""

    services = value(published, default_text="none", doc="Ids of services that are published, with their names")
    groups = value(published, default_text="none", doc="Groups whose services are published, under their headings")
    tags = value(published, default_text="none", doc="Tags whose services are published; the tags are not shown")
    title = value(line("the title"), default="Status", doc="Heading of the page, and title of its feed")
    listen = value(
        addresses,
        default_text="none",
        doc="Own addresses of the public page, as in `[server]`; nothing else is served there",
    )
    path = value(
        public_path,
        default_text="none",
        doc="Instead of `listen`: a path of the addresses of `[server]`, such as `/public`",
    )
    url = value(
        page_url,
        default_text="none",
        doc="Where people reach the public page, such as `https://status.example.com`; its feed and JSON link to it",
    )

    rules: ClassVar = {
        "anyOf": [{"required": ["services"]}, {"required": ["groups"]}, {"required": ["tags"]}],
        "oneOf": [{"required": ["listen"]}, {"required": ["path"]}],
    }


class StoreTable(Table):
    path = value(
        file_path,
        default_text="`store.db` in the [state folder](configure.md#files-of-the-node)",
        doc="The node's own SQLite file",
    )


class HistoryTable(Table):
    keep = value(
        flag, default=True, doc="Keep the [history](see.md#history) in a file; if false, the newest part in memory"
    )
    path = value(
        file_path,
        default_text="`nodes/<name>/history.db` in the state folder",
        doc="The SQLite file; it belongs to one node",
    )
    max_age = value(duration(at_least="1h", unit="d"), default="400d", doc="Older data is deleted; at least `1h`")
    max_size = value(
        byte_size(at_least="1MiB"), default="256MiB", doc="The oldest data is deleted first; at least `1MiB`"
    )


class LogTable(Table):
    level = value(
        one_of("debug", "info", "warning", "error"), default="info", doc="`debug`, `info`, `warning`, `error`"
    )
    format = value(
        one_of("auto", "text", "json"),
        default="auto",
        doc="`text`, `json`; `auto` is text on a terminal, otherwise JSON",
    )


class ControlTable(Table):
    enabled = value(flag, default=True, doc="Serve the [control socket](report.md)")
    listen = value(
        unix_socket,
        default_text="`control.sock` in the [runtime or state folder](report.md#where-the-socket-is)",
        doc="Path of the socket: `unix:/path`",
    )
    group = value(
        line("the group", may_be_empty=True),
        default_text="none",
        doc="Group whose members may connect, beside the user of the node",
    )
    path = value(
        file_path,
        default_text="`nodes/<name>/control.db` in the state folder",
        doc="The SQLite file of what was registered; it belongs to one node",
    )
    allow_exec = value(
        flag, default=False, doc="Allow registered probes to run programs, read files and use secrets of the node"
    )


# ---- notifications

_HTTP_TARGET = {"$ref": "#/$defs/http_target"}
_HTTP_ROUTE = {"$ref": "#/$defs/http_route"}


class NotifyTable(Table):
    webhook = value(
        targets(_HTTP_ROUTE),
        doc="[Webhook](alerts.md): a URL, a table with a `url`, [what it gets](alerts.md#who-gets-what) and options, "
        "or a list of both",
    )
    alertmanager = value(targets(_HTTP_ROUTE), doc="[Alertmanager](alerts.md#alertmanager): as `webhook`")
    apprise = value(
        targets({"$ref": "#/$defs/apprise_target"}), doc="Apprise URL, a table with a `url` and what it gets, or a list"
    )
    services = value(
        one_of("critical", "all", "none"),
        default="critical",
        doc="Services with their own messages: `critical`, `all`, `none`",
    )
    group_wait = value(duration(at_most="5m"), default="5s", doc="Changes within this time are one message")
    resolve_delay = value(
        duration(at_most="24h", unit="m"),
        default="5m",
        doc="How long something must be better without a break before that is reported",
    )
    repeat_interval = value(
        duration(at_least="1m", at_most="30d", zero="no reminders", unit="h"),
        default="0s",
        doc="Time after the last message until a reminder of the problems that last; from `1m` to `30d`, or `0s` for "
        "none",
    )

    start_limit = value(
        duration(at_most="24h", unit="m"),
        default="5m",
        doc="A service that is not Up is reported this long after its `start_period`; at most `24h`",
    )

    heartbeat = value(
        any_of(str, dict, schema=_HTTP_TARGET),
        doc="URL of a [dead man's switch](alerts.md#dead-mans-switch), or a table with a `url` and options",
    )
    heartbeat_interval = value(
        duration(at_least="1s", at_most="1h"),
        default="1m",
        doc="Time between two requests to `heartbeat`; from `1s` to `1h`",
    )

    target_keys: ClassVar = ("webhook", "alertmanager", "apprise")
    rules: ClassVar = {
        "anyOf": [{"required": [key]} for key in (*target_keys, "heartbeat")],
        "dependentRequired": {"heartbeat_interval": ["heartbeat"]},
    }


# ---- several machines


class RegistryTable(Table):
    """How to connect to the registry."""

    registry = value(
        any_of(str, dict, schema={"anyOf": [REGISTRY_URL, {"type": "string", "pattern": r"\$\{.*\}"}, _FILE]}),
        doc='URL of etcd: `etcd://[user:password@]host1:2379,host2:2379/prefix`, or `{ file = "…" }`; default port '
        "2379, "
        "default prefix `/svcnode`; [its keys](registry-format.md)",
    )
    password = value(password, is_secret=True, default_text="that of `registry`", doc="Of the user in `registry`")
    tls = value(flag, default=False, doc="Connect to etcd with TLS")
    ca = value(_PEM_FILE, default_text="that of the system", doc="PEM file")
    client_certificate = value(_PEM_FILE, default_text="none", doc="PEM file")
    client_key = value(_PEM_FILE, default_text="in `client_certificate`", doc="PEM file")


_WITHOUT_TLS = {
    "if": {"not": {"properties": {"tls": {"const": True}}, "required": ["tls"]}},
    "then": {"properties": {"ca": False, "client_certificate": False, "client_key": False}},
    "dependentRequired": {"client_key": ["client_certificate"], "password": ["registry"]},
}


class _Replica(Table):
    replica = value(
        replica_name,
        default_text="the host name",
        doc="Name of this replica of a node on [several machines](several-machines.md); each has its own",
    )
    observers = value(
        whole_number(1, MAX_OBSERVERS),
        default=1,
        doc="How many replicas check a service, 1 to 7; the majority decides",
    )
    lease = value(
        duration(at_least="2s", at_most="10m"),
        default="10s",
        doc="After this time without a sign of it, others take over the checks of a replica; `2s` to `10m`",
    )
    url = value(
        node_url,
        default_text="from `listen`, if not loopback",
        doc="Where others reach the interface of this replica; may be empty",
    )


class SharingTable(RegistryTable, _Replica):
    """A node on [several machines](several-machines.md); all its replicas set the same `[node] name`."""

    rules: ClassVar = {"required": ["registry"], **_WITHOUT_TLS}


# ---- services


class TimingTable(Table):
    """When a service is checked, and what the results mean."""

    interval = value(
        duration(is_positive=True, at_most="1d"),
        default_text="`10s`",
        doc="From the start of a check to the start of the next, with 5 % jitter; at most `1d`",
    )
    transition_interval = value(
        duration(is_positive=True),
        default_text="a fifth of the interval",
        doc="The same during [quick checks](concepts.md#status)",
    )
    timeout = value(
        duration(is_positive=True),
        default_text="`3s`, or half a shorter interval",
        doc="Longest duration of a check; less than the interval",
    )
    max_latency = value(duration(is_positive=True), default_text="none", doc="A success that took longer is not ready")
    rise = value(whole_number(1, MAX_THRESHOLD), default_text="2", doc="Successes in a row from Down to Up; 1 to 1000")
    fall = value(whole_number(1, MAX_THRESHOLD), default_text="3", doc="Failures in a row to Down; 1 to 1000")
    tolerance = value(
        tolerance,
        default_text="`4/10`",
        doc="With more than 4 [failures among the last 10 checks](concepts.md#failures-that-are-not-in-a-row), a "
        "service "
        "is not Up; at most 1000 checks; `off`: no limit",
    )
    start_period = value(duration(), default_text="`30s`", doc="A starting service is not Down before this time")
    stale_after = value(
        duration(is_positive=True, at_most="7d"),
        default_text="3 intervals + timeout",
        doc="Older evidence is [stale](concepts.md#stale-evidence); more than the interval, at most `7d`",
    )

    retired: ClassVar = RETIRED_KEYS


TIMING_KEYS = tuple(TimingTable.keys)
OBSERVER_KEYS = ("observers", "checked_by")  # which replicas of a shared node check a service
_IMPACT = value(
    one_of("critical", "partial", "none"),
    default_text="`partial`",
    doc="`critical`, `partial` or `none`: how it counts for the [node](concepts.md#node-health)",
)


_SLO = value(
    slo,
    default_text="none",
    doc='Share of the time in which it is to be Up, such as `"99.9%"`, for the [report](see.md#report); `off`: none',
)


class DefaultsTable(TimingTable):
    impact = _IMPACT
    slo = _SLO


class _Fleet(Table):
    file = value(
        file_path,
        doc="Instead of `registry`: file with the nodes of the [fleet](see.md#a-fleet), one per line: URL and name",
    )
    refresh_interval = value(
        duration(at_least="1s", at_most="1h"),
        default="10s",
        doc="How often the registry or the file is read; `1s` to `1h`",
    )
    probe = value(
        any_of(dict, schema={"$ref": "#/$defs/fleet_probe"}),
        is_free_table=True,
        doc="Table of options of the [`svc+http`](probes/network.md#svchttp-svchttps) probes of all nodes",
    )


class FleetTable(RegistryTable, _Fleet, DefaultsTable):
    """Where other [nodes](see.md#a-fleet) are, and the options of the services that they become."""

    rules: ClassVar = {
        "oneOf": [{"required": ["registry"]}, {"required": ["file"]}],
        "dependentSchemas": {"file": {"properties": dict.fromkeys((*RegistryTable.keys,), False)}},
        **_WITHOUT_TLS,
    }


class _Named(Table):
    id = value(service_id, is_required=True, doc="Unique; 1 to 256 characters, no control characters, not `.` or `..`")
    name = value(line("the name", may_be_empty=True), default_text="the id", doc="One line")
    description = value(description, default_text="empty", doc="One line or several")
    impact = _IMPACT
    group = value(
        line("the group", may_be_empty=True),
        default_text="none",
        doc="Its heading on the [page](see.md#the-page); one line",
    )
    tags = value(
        tags,
        default_text="none",
        doc='List of at most 10 words, such as `["chain", "eu"]`, to find and filter services by: on the page, in '
        "[metrics](metrics.md) and for [targets](alerts.md#who-gets-what) of alerts; without spaces and commas",
    )
    runbook = value(
        link,
        default_text="none",
        doc="Link to what to do when it is not Up, `http://…` or `https://…`; in [alerts](alerts.md#messages), on the "
        "page and in `explain`",
    )
    slo = _SLO
    depends_on = value(
        names,
        default_text="none",
        doc="List of ids and groups that it needs: if one of them is not Up, [alerts](alerts.md#one-message-per-cause) "
        "are about that one",
    )
    maintenance_impact = value(
        one_of("partial", "none"),
        default_text="as `impact`",
        doc="`partial` or `none`: the impact during [maintenance](operate.md#maintenance), if it is lower",
    )


class _Observed(Table):
    observers = value(
        whole_number(1, MAX_OBSERVERS), default_text="that of `[sharing]`", doc="How many replicas check it"
    )
    checked_by = value(replicas, default_text="all", doc="List of the replicas that may check it")


class _Source(Table):
    probe = value(
        _PROBE,
        doc="A URL, or a table with a `url` and options; the scheme selects the [kind](probes/README.md#kinds). A "
        "service "
        "has either `probe` or `status`",
    )
    status = value(one_of("Up", "Down", "Initializing"), doc="`Up`, `Down` or `Initializing`: fixed, not checked")


class _Pushed(Table):
    push_token = value(
        token,
        is_secret=True,
        default_text="none",
        doc="For a service with the probe `heartbeat:`: the token of its [pushes](report.md#push), as for "
        "`operator_token`",
    )
    push_get = value(
        flag,
        default=False,
        doc="With `push_token`: [pushes](report.md#push) by GET, too. What follows links may push as well",
    )


class ServiceTable(_Named, _Source, _Pushed, _Observed, TimingTable):
    pass


class _RegisteredSource(Table):
    probe = value(_PROBE, doc="As in the file")
    ttl = value(any_of(str, schema={"type": "string"}), doc="Instead of `probe`: time within which it reports")
    deregister_after = value(
        duration(is_positive=True, unit="h"),
        default_text="never",
        doc="With `ttl`: the service is removed after [so long without a report](report.md#services-that-come-and-go)",
    )


class RegisteredServiceTable(_Named, _RegisteredSource, _Pushed, _Observed, TimingTable):
    """A service that a program registers through the control socket."""


class MaintenanceTable(Table):
    services = value(service_ids, default_text="the node", doc="Ids of services of the file")
    start = value(
        start_time,
        is_required=True,
        doc="Time of day, such as `02:00`, or with a day of the week, such as `Sun 02:00`",
    )
    duration = value(duration(is_positive=True, unit="h"), is_required=True, doc="Less than a day, or a week")
    timezone = value(timezone, default_text="`UTC`", doc="Such as `Europe/Berlin`")
    reason = value(line("the reason", may_be_empty=True), default_text="empty", doc="One line")


# ---- permissions


class SecurityTable(Table):
    """Permissions; the defaults are strict."""

    allow_exec = value(flag, default=False, doc="Allow [`exec`](probes/host.md#exec) probes to run programs")
    operator_token = value(
        token,
        is_secret=True,
        doc="[Token](operate.md#access) of the operator surface: 16 characters or more of letters, digits and "
        "`-._~+/=`",
    )
    trust_loopback = value(
        flag,
        default_text="`true` without a token, else `false`",
        doc="Loopback and Unix sockets need no token; `false` requires an `operator_token`",
    )


TABLES: dict[str, type[Table]] = {
    "node": NodeTable,
    "server": ServerTable,
    "operator": OperatorTable,
    "public": PublicTable,
    "store": StoreTable,
    "history": HistoryTable,
    "log": LogTable,
    "control": ControlTable,
    "notify": NotifyTable,
    "sharing": SharingTable,
    "fleet": FleetTable,
    "security": SecurityTable,
    "defaults": DefaultsTable,
}
LISTS: dict[str, type[Table]] = {"services": ServiceTable, "maintenance": MaintenanceTable}

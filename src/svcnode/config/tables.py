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
        doc="Where people reach the [page](see.md#the-page), such as `https://node.example.com:8420`. "
        "[Alerts](alerts.md#messages) link to it",
    )


class NodeTable(Table):
    name = value(line("the name"), default_text="the host name", doc="Name of the node, as the interface reports it")
    version = value(version, default_text="svcnode's version", doc="Version of your node, such as `v1.4.2`")


class TlsTable(Table):
    certificate = value(file_path, is_required=True, doc="PEM file with the certificate of the node and its chain")
    key = value(file_path, is_required=True, doc="PEM file with its private key, not encrypted")


class ServerTable(Table):
    listen = value(
        addresses,
        default=DEFAULT_LISTEN,
        doc="Where the node listens: one address or a list of `host:port`, `[ipv6]:port`, `http://…`, `https://…` and "
        "`unix:/path`. Port 0 picks a free port",
    )
    prefix = value(
        prefixes,
        default=DEFAULT_PREFIX,
        doc="Path in front of the four endpoints: one prefix, or a list to serve them under several",
    )
    cors = value(
        origins,
        default_text="none",
        doc="Which web origins may [read the four endpoints](operate.md#pages-of-other-origins) from a browser: a "
        'list, or `"*"` for all',
    )
    drain = value(
        duration(at_most="1h"),
        default_text="`5s`; `0s` in a terminal",
        doc="How long the node answers 503 before it stops, so that load balancers notice; at most `1h`",
    )
    operator = value(
        flag,
        default=True,
        doc="Whether to serve the [operator surface](operate.md#operator-surface): page, metrics, details and history",
    )
    operator_listen = value(
        addresses,
        default_text="those of `listen`",
        doc="Separate addresses for the operator surface. The interface is served there as well",
    )
    tls = inner_table(TlsTable)


class PublicTable(Table):
    """What everyone may see without a token, on a [public page](public.md): it is off unless this table is there."""

    services = value(published, default_text="none", doc="Ids of the services to publish. Their names are shown")
    groups = value(published, default_text="none", doc="Groups to publish, each with its services under its heading")
    tags = value(
        published,
        default_text="none",
        doc="Publish the services with one of these tags. The tags themselves are not shown",
    )
    title = value(line("the title"), default="Status", doc="Heading of the public page, and title of its feed")
    listen = value(
        addresses,
        default_text="none",
        doc="Addresses of the public page alone, written as in `[server]`. Nothing else is served there",
    )
    path = value(
        public_path,
        default_text="none",
        doc="Instead of `listen`: serve the public page under this path of the addresses of `[server]`, such as "
        "`/public`",
    )
    url = value(
        page_url,
        default_text="none",
        doc="Where people reach the public page, such as `https://status.example.com`. Its feed and JSON link to it",
    )

    rules: ClassVar = {
        "anyOf": [{"required": ["services"]}, {"required": ["groups"]}, {"required": ["tags"]}],
        "oneOf": [{"required": ["listen"]}, {"required": ["path"]}],
    }


class StoreTable(Table):
    path = value(
        file_path,
        default_text="`store.db` in the [state folder](configure.md#files-of-the-node)",
        doc="SQLite file of the node's own store",
    )


class HistoryTable(Table):
    keep = value(
        flag,
        default=True,
        doc="Whether to keep the [history](see.md#history) in a file. With `false`, only the newest part is kept, in "
        "memory",
    )
    path = value(
        file_path,
        default_text="`nodes/<name>/history.db` in the state folder",
        doc="SQLite file of the history. Each node needs its own",
    )
    max_age = value(duration(at_least="1h", unit="d"), default="400d", doc="The node deletes older data; at least `1h`")
    max_size = value(
        byte_size(at_least="1MiB"),
        default="256MiB",
        doc="If the file gets larger, the node deletes the oldest data; at least `1MiB`",
    )


class LogTable(Table):
    level = value(
        one_of("debug", "info", "warning", "error"),
        default="info",
        doc="Write lines of this level and above: `debug`, `info`, `warning` or `error`",
    )
    format = value(
        one_of("auto", "text", "json"),
        default="auto",
        doc="`text` or `json`. `auto` writes text to a terminal and JSON everywhere else",
    )


class ControlTable(Table):
    enabled = value(flag, default=True, doc="Whether to serve the [control socket](report.md)")
    listen = value(
        unix_socket,
        default_text="`control.sock` in the [runtime or state folder](report.md#where-the-socket-is)",
        doc="Where the control socket is, as `unix:/path`",
    )
    group = value(
        line("the group", may_be_empty=True),
        default_text="none",
        doc="Members of this group may connect, in addition to the user of the node",
    )
    path = value(
        file_path,
        default_text="`nodes/<name>/control.db` in the state folder",
        doc="SQLite file of everything that programs have registered. Each node needs its own",
    )
    allow_exec = value(
        flag, default=False, doc="Whether registered probes may run programs, read files and use secrets of the node"
    )


# ---- notifications

_HTTP_TARGET = {"$ref": "#/$defs/http_target"}
_HTTP_ROUTE = {"$ref": "#/$defs/http_route"}


class NotifyTable(Table):
    webhook = value(
        targets(_HTTP_ROUTE),
        doc="[Webhook](alerts.md) to send alerts to: a URL, or a table with a `url`, [what it "
        "gets](alerts.md#who-gets-what) and other options, or a list of these",
    )
    alertmanager = value(
        targets(_HTTP_ROUTE), doc="[Alertmanager](alerts.md#alertmanager) to send alerts to, written like `webhook`"
    )
    apprise = value(
        targets({"$ref": "#/$defs/apprise_target"}),
        doc="Apprise URL to send alerts to, or a table with a `url` and what it gets, or a list of these",
    )
    services = value(
        one_of("critical", "all", "none"),
        default="critical",
        doc="Which services cause messages: `critical`, `all` or `none`. The others are only listed",
    )
    group_wait = value(
        duration(at_most="5m"), default="5s", doc="Changes that happen within this time are sent as one message"
    )
    resolve_delay = value(
        duration(at_most="24h", unit="m"),
        default="5m",
        doc="How long a recovery must last before it is reported",
    )
    repeat_interval = value(
        duration(at_least="1m", at_most="30d", zero="no reminders", unit="h"),
        default="0s",
        doc="How long after the last message a reminder of unsolved problems is sent; from `1m` to `30d`, or `0s` for "
        "no reminders",
    )

    start_limit = value(
        duration(at_most="24h", unit="m"),
        default="5m",
        doc="A service that is still not Up this long after its `start_period` is reported; at most `24h`",
    )

    heartbeat = value(
        any_of(str, dict, schema=_HTTP_TARGET),
        doc="[Dead man's switch](alerts.md#dead-mans-switch) to call regularly: its URL, or a table with a `url` and "
        "options",
    )
    heartbeat_interval = value(
        duration(at_least="1s", at_most="1h"),
        default="1m",
        doc="How often `heartbeat` is called; from `1s` to `1h`",
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
        doc='URL of etcd, in the form `etcd://[user:password@]host1:2379,host2:2379/prefix`, or `{ file = "…" }`. The '
        "default port is 2379, and the default prefix `/svcnode`. [What is stored there](registry-format.md)",
    )
    password = value(
        password, is_secret=True, default_text="that of `registry`", doc="Password of the user in `registry`"
    )
    tls = value(flag, default=False, doc="Whether to connect to etcd with TLS")
    ca = value(_PEM_FILE, default_text="that of the system", doc="PEM file with the authorities to trust")
    client_certificate = value(
        _PEM_FILE, default_text="none", doc="PEM file with the certificate that svcnode presents to etcd"
    )
    client_key = value(_PEM_FILE, default_text="in `client_certificate`", doc="PEM file with its private key")


_WITHOUT_TLS = {
    "if": {"not": {"properties": {"tls": {"const": True}}, "required": ["tls"]}},
    "then": {"properties": {"ca": False, "client_certificate": False, "client_key": False}},
    "dependentRequired": {"client_key": ["client_certificate"], "password": ["registry"]},
}


class _Replica(Table):
    replica = value(
        replica_name,
        default_text="the host name",
        doc="Name of this replica of a node on [several machines](several-machines.md). Each replica needs a name of "
        "its own",
    )
    observers = value(
        whole_number(1, MAX_OBSERVERS),
        default=1,
        doc="How many replicas check each service, from 1 to 7. The majority decides",
    )
    lease = value(
        duration(at_least="2s", at_most="10m"),
        default="10s",
        doc="When a replica has been silent for this long, others take over its checks; from `2s` to `10m`",
    )
    url = value(
        node_url,
        default_text="from `listen`, if not loopback",
        doc="Where other machines reach the interface of this replica. Leave it empty if they cannot",
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
        doc="How often to check: the time from the start of one check to the start of the next, varied by 5 %; at most"
        " `1d`",
    )
    transition_interval = value(
        duration(is_positive=True),
        default_text="a fifth of the interval",
        doc="How often to check during [quick checks](concepts.md#status), when the status may be about to change",
    )
    timeout = value(
        duration(is_positive=True),
        default_text="`3s`, or half a shorter interval",
        doc="How long a check may take; must be less than the interval",
    )
    max_latency = value(
        duration(is_positive=True),
        default_text="none",
        doc="A check that succeeds but takes longer than this is not ready",
    )
    rise = value(
        whole_number(1, MAX_THRESHOLD),
        default_text="2",
        doc="How many successes in a row bring a service from Down to Up; 1 to 1000",
    )
    fall = value(
        whole_number(1, MAX_THRESHOLD),
        default_text="3",
        doc="How many failures in a row make a service Down; 1 to 1000",
    )
    tolerance = value(
        tolerance,
        default_text="`4/10`",
        doc="How many failures [that are not in a row](concepts.md#failures-that-are-not-in-a-row) a service may have "
        "and still be Up: `4/10` allows 4 among the last 10 checks. At most 1000 checks; `off` for no limit",
    )
    start_period = value(
        duration(),
        default_text="`30s`",
        doc="How much time a service has to come Up for the first time before it counts as Down",
    )
    stale_after = value(
        duration(is_positive=True, at_most="7d"),
        default_text="3 intervals + timeout",
        doc="If no check has succeeded for this long, the service is [stale](concepts.md#stale-evidence) and no longer "
        "Up; more than the interval, at most `7d`",
    )

    retired: ClassVar = RETIRED_KEYS


TIMING_KEYS = tuple(TimingTable.keys)
OBSERVER_KEYS = ("observers", "checked_by")  # which replicas of a shared node check a service
_IMPACT = value(
    one_of("critical", "partial", "none"),
    default_text="`partial`",
    doc="How much the service matters for the [health of the node](concepts.md#node-health): `critical`, `partial`"
    " or `none`",
)


_SLO = value(
    slo,
    default_text="none",
    doc='Share of the time that the service should be Up, such as `"99.9%"`, for the [report](see.md#report). '
    "`off` for no goal",
)


class DefaultsTable(TimingTable):
    impact = _IMPACT
    slo = _SLO


class _Fleet(Table):
    file = value(
        file_path,
        doc="Instead of `registry`: file that lists the nodes of the [fleet](see.md#a-fleet), one per line, each with "
        "its URL and a name",
    )
    refresh_interval = value(
        duration(at_least="1s", at_most="1h"),
        default="10s",
        doc="How often to read the registry or the file; from `1s` to `1h`",
    )
    probe = value(
        any_of(dict, schema={"$ref": "#/$defs/fleet_probe"}),
        is_free_table=True,
        doc="Options of the [`svc+http`](probes/network.md#svchttp-svchttps) probes of all nodes, as a table",
    )


class FleetTable(RegistryTable, _Fleet, DefaultsTable):
    """Where other [nodes](see.md#a-fleet) are, and the options of the services that they become."""

    rules: ClassVar = {
        "oneOf": [{"required": ["registry"]}, {"required": ["file"]}],
        "dependentSchemas": {"file": {"properties": dict.fromkeys((*RegistryTable.keys,), False)}},
        **_WITHOUT_TLS,
    }


class _Named(Table):
    id = value(
        service_id,
        is_required=True,
        doc="Unique name by which the service is requested. It has 1 to 256 characters, no control characters, and is "
        "not `.` or `..`",
    )
    name = value(
        line("the name", may_be_empty=True), default_text="the id", doc="Name of the service for people; one line"
    )
    description = value(description, default_text="empty", doc="What the service is, for people; one line or several")
    impact = _IMPACT
    group = value(
        line("the group", may_be_empty=True),
        default_text="none",
        doc="Heading under which the [page](see.md#the-page) shows the service; one line",
    )
    tags = value(
        tags,
        default_text="none",
        doc="Up to 10 words by which you find and filter services on the page, in [metrics](metrics.md) and for "
        '[targets](alerts.md#who-gets-what) of alerts, such as `["chain", "eu"]`. A tag has no spaces or commas',
    )
    runbook = value(
        link,
        default_text="none",
        doc="Link to instructions for when the service is not Up, `http://…` or `https://…`. "
        "[Alerts](alerts.md#messages), the page and `explain` show it",
    )
    slo = _SLO
    depends_on = value(
        names,
        default_text="none",
        doc="Ids and groups that the service needs, as a list. If one of them is not Up, "
        "[alerts](alerts.md#one-message-per-cause) name it as the cause",
    )
    maintenance_impact = value(
        one_of("partial", "none"),
        default_text="as `impact`",
        doc="The impact during [maintenance](operate.md#maintenance), if it is lower: `partial` or `none`",
    )


class _Observed(Table):
    observers = value(
        whole_number(1, MAX_OBSERVERS), default_text="that of `[sharing]`", doc="How many replicas check this service"
    )
    checked_by = value(replicas, default_text="all", doc="The replicas that may check this service, as a list")


class _Source(Table):
    probe = value(
        _PROBE,
        doc="How to check the service: a URL, or a table with a `url` and options. The scheme of the URL selects the "
        "[kind](probes/README.md#kinds). A service has either `probe` or `status`",
    )
    status = value(
        one_of("Up", "Down", "Initializing"),
        doc="A fixed status, `Up`, `Down` or `Initializing`, for a service that is not checked",
    )


class _Pushed(Table):
    push_token = value(
        token,
        is_secret=True,
        default_text="none",
        doc="For a service with a `heartbeat:` probe: the token of its [pushes](report.md#push), written like "
        "`operator_token`",
    )
    push_get = value(
        flag,
        default=False,
        doc="With `push_token`: accept [pushes](report.md#push) by GET as well. Then anything that follows a link may "
        "push too",
    )


class ServiceTable(_Named, _Source, _Pushed, _Observed, TimingTable):
    pass


class _RegisteredSource(Table):
    probe = value(_PROBE, doc="How to check the service, written as in the file")
    ttl = value(
        any_of(str, schema={"type": "string"}),
        doc="Instead of `probe`: the longest time between two reports of the service",
    )
    deregister_after = value(
        duration(is_positive=True, unit="h"),
        default_text="never",
        doc="With `ttl`: remove the service when it has been [silent for this "
        "long](report.md#services-that-come-and-go)",
    )


class RegisteredServiceTable(_Named, _RegisteredSource, _Pushed, _Observed, TimingTable):
    """A service that a program registers through the control socket."""


class MaintenanceTable(Table):
    services = value(
        service_ids, default_text="the node", doc="Ids of the services in maintenance; they must be in the file"
    )
    start = value(
        start_time,
        is_required=True,
        doc="When maintenance starts: every day, such as `02:00`, or once a week, such as `Sun 02:00`",
    )
    duration = value(
        duration(is_positive=True, unit="h"),
        is_required=True,
        doc="How long it lasts: less than a day, or less than a week if it is weekly",
    )
    timezone = value(timezone, default_text="`UTC`", doc="Time zone of `start`, such as `Europe/Berlin`")
    reason = value(line("the reason", may_be_empty=True), default_text="empty", doc="Why, for people; one line")


# ---- permissions


class SecurityTable(Table):
    """Permissions; the defaults are strict."""

    allow_exec = value(flag, default=False, doc="Whether [`exec`](probes/host.md#exec) probes may run programs")
    operator_token = value(
        token,
        is_secret=True,
        doc="[Token](operate.md#access) of the operator surface: at least 16 letters, digits and characters of "
        "`-._~+/=`",
    )
    trust_loopback = value(
        flag,
        default_text="`true` without a token, else `false`",
        doc="With `true`, requests over loopback and Unix sockets need no token. `false` requires an `operator_token`",
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

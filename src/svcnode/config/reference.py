"""The default and the meaning of each key of the configuration file, in Markdown.

docs/reference.md, the manual page and the JSON Schema are made from these rows. Links are relative to docs/.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class KeyRow(NamedTuple):
    keys: tuple[str, ...]  # such as ("server.tls.key",); in a table of a list, without the table
    default: str
    meaning: str


def plain_text(markdown: str) -> str:
    """Without links and marks."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", markdown).replace("`", "")


TABLE_ROWS = (
    KeyRow(("node.name",), "the host name", "Name of the node"),
    KeyRow(("node.version",), "svcnode's version", "Version of the node: `v` and dotted numbers"),
    KeyRow(
        ("server.listen",),
        "`127.0.0.1:8420`",
        "One address or a list: `host:port`, `[ipv6]:port`, `http://…`, `https://…`, `unix:/path`; port 0 "
        "selects a free port",
    ),
    KeyRow(("server.prefix",), "`/svc`", "One prefix or a list"),
    KeyRow(
        ("server.cors",),
        "none",
        'Web origins whose pages may [read the four endpoints](operate.md#pages-of-other-origins): a list, or `"*"`',
    ),
    KeyRow(
        ("server.drain",), "`5s`; `0s` under a terminal", "How long health is 503 before the node stops; at most `1h`"
    ),
    KeyRow(("server.operator",), "`true`", "Serve the [operator surface](operate.md#operator-surface)"),
    KeyRow(
        ("server.operator_listen",),
        "those of `listen`",
        "Addresses of the operator surface; the interface is served there, too",
    ),
    KeyRow(("server.tls.certificate",), "", "PEM file, with the chain"),
    KeyRow(("server.tls.key",), "", "PEM file, not encrypted"),
    KeyRow(
        ("store.path",),
        "`store.db` in the [state folder](configure.md#files-of-the-node)",
        "The node's own SQLite file",
    ),
    KeyRow(
        ("history.keep",), "`true`", "Keep the [history](see.md#history) in a file; if false, the newest part in memory"
    ),
    KeyRow(
        ("history.path",), "`nodes/<name>/history.db` in the state folder", "The SQLite file; it belongs to one node"
    ),
    KeyRow(("history.max_age",), "`400d`", "Older data is deleted; at least `1h`"),
    KeyRow(("history.max_size",), "`256MiB`", "The oldest data is deleted first; at least `1MiB`"),
    KeyRow(("log.level",), "`info`", "`debug`, `info`, `warning`, `error`"),
    KeyRow(("log.format",), "`auto`", "`text`, `json`; `auto` is text on a terminal, otherwise JSON"),
    KeyRow(("control.enabled",), "`true`", "Serve the [control socket](report.md)"),
    KeyRow(
        ("control.listen",),
        "`control.sock` in the [runtime or state folder](report.md#where-the-socket-is)",
        "Path of the socket: `unix:/path`",
    ),
    KeyRow(("control.group",), "none", "Group whose members may connect, beside the user of the node"),
    KeyRow(
        ("control.path",),
        "`nodes/<name>/control.db` in the state folder",
        "The SQLite file of what was registered; it belongs to one node",
    ),
    KeyRow(
        ("control.allow_exec",),
        "`false`",
        "Allow registered probes to run programs, read files and use secrets of the node",
    ),
    KeyRow(("notify.webhook",), "", "[Webhook](alerts.md): a URL, a table with a `url` and options, or a list of both"),
    KeyRow(("notify.alertmanager",), "", "[Alertmanager](alerts.md#alertmanager): as `webhook`"),
    KeyRow(("notify.apprise",), "", "Apprise URL, or a list"),
    KeyRow(("notify.services",), "`critical`", "Services with their own messages: `critical`, `all`, `none`"),
    KeyRow(("notify.group_wait",), "`5s`", "Changes within this time are one message"),
    KeyRow(
        ("notify.resolve_delay",),
        "`5m`",
        "Delay of the resolved message after a message about the same service or node",
    ),
    KeyRow(
        ("notify.repeat_interval",),
        "`0s`",
        "Time after the last message until a reminder of the problems that last; from `1m` to `30d`, or `0s` for none",
    ),
    KeyRow(
        ("notify.start_limit",),
        "`5m`",
        "A service that was never Up is reported this long after its `start_period`; at most `24h`",
    ),
    KeyRow(
        ("sharing.registry",),
        "",
        "etcd of a node on [several machines](several-machines.md), whose replicas all set the same `[node] name`: "
        '`etcd://[user:password@]host1:2379,host2:2379/prefix`, or `{ file = "…" }`; default port 2379, default prefix '
        "`/svcnode`; [its keys](registry-format.md)",
    ),
    KeyRow(("sharing.password",), "that of `registry`", 'Of the user in `registry`; `${NAME}` or `{ file = "…" }`'),
    KeyRow(("sharing.tls",), "`false`", "Connect to etcd with TLS"),
    KeyRow(("sharing.ca",), "that of the system", "PEM file"),
    KeyRow(("sharing.client_certificate",), "none", "PEM file"),
    KeyRow(("sharing.client_key",), "in `client_certificate`", "PEM file"),
    KeyRow(("sharing.replica",), "the host name", "Name of this replica; each has its own"),
    KeyRow(("sharing.observers",), "1", "How many replicas check a service, 1 to 7; the majority decides"),
    KeyRow(
        ("sharing.lease",),
        "`10s`",
        "After this time without a sign of it, others take over the checks of a replica; `2s` to `10m`",
    ),
    KeyRow(
        ("sharing.url",),
        "from `listen`, if not loopback",
        "Where others reach the interface of this replica; may be empty",
    ),
    KeyRow(("fleet.registry",), "", "etcd with the nodes of a [fleet](see.md#a-fleet), as in `[sharing]`"),
    KeyRow(("fleet.password",), "that of `registry`", "As in `[sharing]`, as the next four"),
    KeyRow(("fleet.tls",), "`false`", ""),
    KeyRow(("fleet.ca",), "that of the system", ""),
    KeyRow(("fleet.client_certificate",), "none", ""),
    KeyRow(("fleet.client_key",), "in `client_certificate`", ""),
    KeyRow(("fleet.file",), "", "Instead: file with one node per line: its URL, and the name of the node"),
    KeyRow(("fleet.refresh_interval",), "`10s`", "How often the registry or the file is read; `1s` to `1h`"),
    KeyRow(
        ("fleet.probe",),
        "",
        "Table of options of the [`svc+http`](probes/network.md#svchttp-svchttps) probes of all nodes",
    ),
    KeyRow(("security.allow_exec",), "`false`", "Allow [`exec`](probes/host.md#exec) probes to run programs"),
    KeyRow(
        ("security.operator_token",),
        "",
        "[Token](operate.md#access) of the operator surface: 16 characters or more of letters, digits and `-._~+/=`",
    ),
    KeyRow(
        ("security.trust_loopback",),
        "`true` without a token, else `false`",
        "Loopback and Unix sockets need no token; `false` requires an `operator_token`",
    ),
)
SERVICE_ROWS = (
    KeyRow(("id",), "required", "Unique; 1 to 256 characters, no control characters, not `.` or `..`"),
    KeyRow(("name",), "the id", "One line"),
    KeyRow(("description",), "empty", ""),
    KeyRow(
        ("impact",),
        "`partial`",
        "`critical`, `partial` or `none`: how it counts for the [node](concepts.md#node-health)",
    ),
    KeyRow(("group",), "none", "Its heading on the [page](see.md#the-page); one line"),
    KeyRow(
        ("maintenance_impact",),
        "as `impact`",
        "`partial` or `none`: the impact during [maintenance](operate.md#maintenance), if it is lower",
    ),
    KeyRow(
        ("probe",),
        "",
        "A URL, or a table with a `url` and options; the scheme selects the [kind](probes/README.md#kinds). "
        "A service has either `probe` or `status`",
    ),
    KeyRow(("status",), "", "`Up`, `Down` or `Initializing`: fixed, not checked"),
    KeyRow(("observers",), "that of `[sharing]`", "How many replicas check it"),
    KeyRow(("checked_by",), "all", "List of the replicas that may check it"),
    KeyRow(
        ("push_token",),
        "none",
        "For a service with the probe `heartbeat:`: the token of its [pushes](report.md#push), as for "
        '`operator_token`; `${NAME}` or `{ file = "…" }`',
    ),
    KeyRow(("interval",), "`10s`", "From the start of a check to the start of the next, with 5 % jitter; at most `1d`"),
    KeyRow(("transition_interval",), "a fifth of the interval", "The same during [quick checks](concepts.md#status)"),
    KeyRow(("timeout",), "`3s`, or half a shorter interval", "Longest duration of a check; less than the interval"),
    KeyRow(("max_latency",), "none", "A success that took longer is not ready"),
    KeyRow(
        (
            "rise",
            "fall",
        ),
        "2, 3",
        "Successes in a row from Down to Up, failures in a row to Down; 1 to 1000",
    ),
    KeyRow(
        ("tolerance",),
        "`4/10`",
        "With more than 4 [failures among the last 10 checks](concepts.md#failures-that-are-not-in-a-row), a service is not "
        "Up; at most 1000 checks; `off`: no limit",
    ),
    KeyRow(("start_period",), "`30s`", "A starting service is not Down before this time"),
    KeyRow(
        ("stale_after",),
        "3 intervals + timeout",
        "Older evidence is [stale](concepts.md#stale-evidence); more than the interval, at most `7d`",
    ),
)
MAINTENANCE_ROWS = (
    KeyRow(("services",), "the node", "Ids of services of the file"),
    KeyRow(("start",), "required", "Time of day, such as `02:00`, or with a day of the week, such as `Sun 02:00`"),
    KeyRow(("duration",), "required", "Less than a day, or a week"),
    KeyRow(("timezone",), "`UTC`", "Such as `Europe/Berlin`"),
    KeyRow(("reason",), "empty", "One line"),
)

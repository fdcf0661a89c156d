"""Renders the configuration file that `svcnode init` writes, with comments on the keys to change."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, validate_text
from svcnode.core.text import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.cli.init.select import SelectedProbe

DEFAULT_PORT = 8420
DEFAULT_NODE_NAME = "node"
_PORTS_TRIED = 20
PORT_ONLY = "only that the port is open, so a frozen server counts as Up"

_HEADER = """\
# The configuration of this node and its services, written by `svcnode init`. Change it as you like.
#
#   svcnode check-config --check   validates this file, and checks each service once
#   svcnode serve                  runs the node
"""
_DEFAULTS = """\
# Defaults for all services.
[defaults]
# impact = "partial"           # "critical": the node is unhealthy (503) while the service is Down; "none": not counted
# interval = "10s"             # how often to check
# transition_interval = "2s"   # how often to check while the status may be about to change
# timeout = "3s"               # how long a check may take
# max_latency = "1s"           # a check that succeeds but takes longer is not ready (default: no limit)
# rise = 2                     # how many successes in a row bring a service from Down to Up
# fall = 3                     # how many failures in a row make it Down
# tolerance = "4/10"           # how many failures a service may have among its last checks and still be Up; "off": any
# start_period = "30s"         # how much time it has to come Up for the first time before it counts as Down
# stale_after = "33s"          # if the newest result is older than this, the service is no longer Up
# slo = "off"                  # share of the time that it should be Up, such as "99.9%", for svcnode report
"""
_SECURITY = """\
# By default, the node runs no programs, and only this machine can open the operator page.
[security]
# allow_exec = true            # allow exec: probes to run programs
# operator_token = "${OPERATOR_TOKEN}"  # other machines can open the operator page too, with this token
# trust_loopback = true        # this machine needs no token; do not set it behind a reverse proxy
"""
_NOTHING_FOUND = """\
# No known service was found on this host. Without services, the node checks only its own store.
# A service looks like this:
#
# [[services]]
# id = "ledger"
# name = "Ledger database"
# description = "PostgreSQL holding the ledger"
# probe = "postgresql://monitor@127.0.0.1/ledger"
# impact = "critical"
"""


def render_config(node_name: str, port: int, probes: Sequence[SelectedProbe], schema_url: str = "") -> str:
    """`schema_url` is for editors, which complete the file with it."""
    counts = Counter(probe.found.entry.kind for probe in probes)
    services = [_service_table(probe, is_only_one=counts[probe.found.entry.kind] == 1) for probe in probes]
    return "\n".join(
        [
            f"#:schema {schema_url}\n{_HEADER}" if schema_url else _HEADER,
            _node_table(node_name),
            _server_table(port),
            _DEFAULTS,
            _SECURITY,
            *(services or [_NOTHING_FOUND]),
        ]
    )


def node_name_from(host_name: str) -> str:
    """The host name without characters that a node name must not contain."""
    name = "".join(char for char in host_name if _is_valid_in_name(char)).strip()
    return name or DEFAULT_NODE_NAME


def _is_valid_in_name(char: str) -> bool:
    try:
        validate_text("a name", char)
    except InvalidValueError:
        return False
    return True


def free_port(first: int = DEFAULT_PORT) -> int:
    """The default port, or the next free one."""
    return next(filter(_is_free, range(first, first + _PORTS_TRIED)), first)


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def toml_comment(text: str) -> str:
    """One comment line; foreign text may contain line breaks."""
    return "# " + "".join(char if char.isprintable() else " " for char in text)


def _node_table(name: str) -> str:
    return f"""\
[node]
name = {toml_value(name)}
version = "v0.1.0"             # the version of your node's software
"""


def _server_table(port: int) -> str:
    lines = [
        "[server]",
        f'listen = ["127.0.0.1:{port}"]  # for this machine only; "0.0.0.0:{port}" for all machines',
    ]
    if port != DEFAULT_PORT:
        lines.insert(1, toml_comment(f"The default port, {DEFAULT_PORT}, is in use."))
    return "\n".join(lines) + "\n"


def _service_table(probe: SelectedProbe, *, is_only_one: bool) -> str:
    entry, endpoint = probe.found.entry, probe.found.endpoint
    return "\n".join(
        [
            "[[services]]",
            f"id = {toml_value(entry.kind if is_only_one else f'{entry.kind}-{endpoint.port}')}",
            f"name = {toml_value(entry.title)}",
            f"description = {toml_value(f'{entry.title} on port {endpoint.port} of this host')}",
            *(_tcp_fallback_comments(probe) if probe.preferred_probe else _deep_probe_comments(probe)),
            f"probe = {toml_value(probe.probe)}",
            '# impact = "critical"',
            "",
        ]
    )


def _deep_probe_comments(probe: SelectedProbe) -> Iterator[str]:
    verdict, found = probe.verdict, probe.found
    if verdict is None or verdict.outcome is Outcome.READY:
        return
    yield toml_comment(
        f"When this file was written, the check was {verdict.outcome.value.replace('_', ' ')}: {verdict.reason}"
    )
    if login_probe := found.entry.login_probe_at(found.endpoint):
        yield toml_comment("If it asks for a password once it is ready, replace the probe below with this one:")
        yield toml_comment(f"probe = {toml_value(login_probe)}")


def _tcp_fallback_comments(probe: SelectedProbe) -> Iterator[str]:
    yield toml_comment(f"This probe checks {PORT_ONLY}. The better one does not work yet:")
    yield toml_comment(f"  {probe.unavailable_reason or (probe.verdict.reason if probe.verdict is not None else '')}")
    yield toml_comment(_fix_text(probe))
    yield toml_comment(f"probe = {toml_value(probe.preferred_probe)}")


def _fix_text(probe: SelectedProbe) -> str:
    replace = "Fix this, then replace" if probe.unavailable_reason else "Replace"
    user = (
        ", with a user that may log in, and set its password in the environment"
        if "${" in str(probe.preferred_probe)
        else ""
    )
    return f"{replace} the probe below with this{user}:"

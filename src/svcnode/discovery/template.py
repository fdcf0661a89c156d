"""The file that `svcnode init` writes: ready to serve, and with a word on whatever its reader may want to change."""

from __future__ import annotations

import json
import socket
from collections import Counter
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, validate_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.discovery.select import SelectedProbe

DEFAULT_PORT = 8420
DEFAULT_NODE_NAME = "node"
_PORTS_TRIED = 20

_HEADER = """\
# What this node is, and which services it stands on. `svcnode init` wrote it, and it is yours to change.
#
#   svcnode check-config   says whether it can be used, and what it would do
#   svcnode serve          answers for the node
"""
_DEFAULTS = """\
# How services are looked at, where they say nothing else. These are the defaults.
[defaults]
# impact = "partial"           # "critical": the node is down with it; "none": listed, but not counted
# interval = "10s"             # from look to look
# transition_interval = "2s"   # the same, while a change of status is being confirmed
# timeout = "3s"               # how long a look may take
# max_latency = "1s"           # a success that takes longer is not ready; without it, any will do
# rise = 2                     # successes in a row that bring a service back up
# fall = 3                     # failures in a row that take it down
# start_period = "30s"         # failures do not take a starting service down before
# stale_after = "33s"          # evidence that is older counts no more
"""
_SECURITY = """\
# Who may do and see more. With nothing said, no programs are run, and the page is for this host alone.
[security]
# allow_exec = true            # let exec: probes run programs
# operator_token = "${OPERATOR_TOKEN}"  # who has it may see the page and all beside it from other hosts, too
# trust_loopback = false       # ask for that token on this host as well, as when a proxy here might let others in
"""
_NOTHING_FOUND = """\
# No known service was found on this host. With none named here, the node answers for its own embedded store.
# Yours might look like this:
#
# [[services]]
# id = "ledger"
# name = "Ledger database"
# description = "PostgreSQL holding the ledger"
# probe = "tcp://127.0.0.1:5432"
# impact = "critical"
"""


def render_config(node_name: str, port: int, choices: Sequence[SelectedProbe]) -> str:
    counts = Counter(choice.found.entry.kind for choice in choices)
    services = [_service_table(choice, is_alone=counts[choice.found.entry.kind] == 1) for choice in choices]
    return "\n".join(
        [_HEADER, _node_table(node_name), _server_table(port), _DEFAULTS, _SECURITY, *(services or [_NOTHING_FOUND])]
    )


def node_name_from(host_name: str) -> str:
    """The name of a host as the name of a node, without what a name must not hold."""
    name = "".join(char for char in host_name if _is_valid_in_name(char)).strip()
    return name or DEFAULT_NODE_NAME


def _is_valid_in_name(char: str) -> bool:
    try:
        validate_text("a name", char)
    except InvalidValueError:
        return False
    return True


def free_port(first: int = DEFAULT_PORT) -> int:
    """The usual port, or, where something has it already, the next one that is free."""
    return next(filter(_is_free, range(first, first + _PORTS_TRIED)), first)


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def toml_string(text: str) -> str:
    """As a TOML string: JSON's way of quoting is TOML's too, but for one character that TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    """One line, whatever somebody else's words hold."""
    return "# " + "".join(char if char.isprintable() else " " for char in text)


def _node_table(name: str) -> str:
    return f"""\
[node]
name = {toml_string(name)}
version = "v0.1.0"             # of your node's software: set it to what runs here
"""


def _server_table(port: int) -> str:
    lines = [
        "[server]",
        f'listen = ["127.0.0.1:{port}"]  # for this host alone; for all who can reach it, "0.0.0.0:{port}"',
    ]
    if port != DEFAULT_PORT:
        lines.insert(1, toml_comment(f"Something else listens on the usual port, {DEFAULT_PORT}."))
    return "\n".join(lines) + "\n"


def _service_table(choice: SelectedProbe, *, is_alone: bool) -> str:
    known, endpoint = choice.found.entry, choice.found.endpoint
    return "\n".join(
        [
            "[[services]]",
            f"id = {toml_string(known.kind if is_alone else f'{known.kind}-{endpoint.port}')}",
            f"name = {toml_string(known.title)}",
            f"description = {toml_string(f'{known.title} on port {endpoint.port} of this host')}",
            *_probe_comments(choice),
            f"probe = {toml_string(choice.probe)}",
            '# impact = "critical"',
            "",
        ]
    )


def _probe_comments(choice: SelectedProbe) -> Iterator[str]:
    return _tcp_fallback_comments(choice) if choice.preferred_probe else _deep_probe_comments(choice)


def _deep_probe_comments(choice: SelectedProbe) -> Iterator[str]:
    verdict, found = choice.verdict, choice.found
    if verdict is None or verdict.outcome is Outcome.READY:
        return
    yield toml_comment(f"When this was written: {verdict.outcome.value.replace('_', ' ')}: {verdict.reason}")
    if login_probe := found.entry.login_probe_at(found.endpoint):
        yield toml_comment("Should it ask for a password once it is ready, put this in the place of the line after it:")
        yield toml_comment(f"probe = {toml_string(login_probe)}")


def _tcp_fallback_comments(choice: SelectedProbe) -> Iterator[str]:
    yield toml_comment("This only shows that something listens, even when it hangs. A closer look was not possible:")
    yield toml_comment(
        f"  {choice.unavailable_reason or (choice.verdict.reason if choice.verdict is not None else '')}"
    )
    yield toml_comment(_fix_text(choice))
    yield toml_comment(f"probe = {toml_string(choice.preferred_probe)}")


def _fix_text(choice: SelectedProbe) -> str:
    when = "Once that is mended, put" if choice.unavailable_reason else "Put"
    user = (
        ", with a user who may log in (the password stands in the environment)"
        if "${" in choice.preferred_probe
        else ""
    )
    return f"{when} this in the place of the line after it{user}:"

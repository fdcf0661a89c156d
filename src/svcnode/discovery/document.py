"""The file that `svcnode init` writes: ready to serve, and with a word on whatever its reader may want to change."""

from __future__ import annotations

import json
import socket
from collections import Counter
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.discovery.choice import Choice

DEFAULT_PORT = 8420
UNNAMED = "node"
_PORTS_TRIED = 20

_HEAD = """\
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


def document(node_name: str, port: int, choices: Sequence[Choice]) -> str:
    counts = Counter(choice.found.known.kind for choice in choices)
    services = [_service(choice, is_alone=counts[choice.found.known.kind] == 1) for choice in choices]
    return "\n".join([_HEAD, _node(node_name), _server(port), _DEFAULTS, _SECURITY, *(services or [_NOTHING_FOUND])])


def name_from(host_name: str) -> str:
    """The name of a host as the name of a node, without what a name must not hold."""
    name = "".join(char for char in host_name if _may_stand_in_a_name(char)).strip()
    return name or UNNAMED


def _may_stand_in_a_name(char: str) -> bool:
    try:
        check_text("a name", char)
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


def quoted(text: str) -> str:
    """As a TOML string: JSON's way of quoting is TOML's too, but for one character that TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def comment(text: str) -> str:
    """One line, whatever somebody else's words hold."""
    return "# " + "".join(char if char.isprintable() else " " for char in text)


def _node(name: str) -> str:
    return f"""\
[node]
name = {quoted(name)}
version = "v0.1.0"             # of your node's software: set it to what runs here
"""


def _server(port: int) -> str:
    lines = [
        "[server]",
        f'listen = ["127.0.0.1:{port}"]  # for this host alone; for all who can reach it, "0.0.0.0:{port}"',
    ]
    if port != DEFAULT_PORT:
        lines.insert(1, comment(f"Something else listens on the usual port, {DEFAULT_PORT}."))
    return "\n".join(lines) + "\n"


def _service(choice: Choice, *, is_alone: bool) -> str:
    known, endpoint = choice.found.known, choice.found.endpoint
    return "\n".join(
        [
            "[[services]]",
            f"id = {quoted(known.kind if is_alone else f'{known.kind}-{endpoint.port}')}",
            f"name = {quoted(known.title)}",
            f"description = {quoted(f'{known.title} on port {endpoint.port} of this host')}",
            *_remarks(choice),
            f"probe = {quoted(choice.probe)}",
            '# impact = "critical"',
            "",
        ]
    )


def _remarks(choice: Choice) -> Iterator[str]:
    return _shallow_remarks(choice) if choice.better else _deep_remarks(choice)


def _deep_remarks(choice: Choice) -> Iterator[str]:
    verdict, found = choice.verdict, choice.found
    if verdict is None or verdict.outcome is Outcome.READY:
        return
    yield comment(f"When this was written: {verdict.outcome.value.replace('_', ' ')}: {verdict.reason}")
    if login_probe := found.known.login_probe_at(found.endpoint):
        yield comment("Should it ask for a password once it is ready, put this in the place of the line after it:")
        yield comment(f"probe = {quoted(login_probe)}")


def _shallow_remarks(choice: Choice) -> Iterator[str]:
    yield comment("This only shows that something listens, even when it hangs. A closer look was not possible:")
    yield comment(f"  {choice.missing or (choice.verdict.reason if choice.verdict is not None else '')}")
    yield comment(_what_to_do(choice))
    yield comment(f"probe = {quoted(choice.better)}")


def _what_to_do(choice: Choice) -> str:
    when = "Once that is mended, put" if choice.missing else "Put"
    user = ", with a user who may log in (the password stands in the environment)" if "${" in choice.better else ""
    return f"{when} this in the place of the line after it{user}:"

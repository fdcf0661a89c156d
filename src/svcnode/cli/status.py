"""`svcnode status URL…`: one look at nodes, ours or not.

What `svcnode status` does: asks all nodes at the same time, and shows them in the order given.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from svcnode.cli._node_args import clients_from, timeout_from
from svcnode.cli.output import show
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.redaction import redacted
from svcnode.terminal.progress import ProgressBar
from svcnode.terminal.sigint import handle_sigint
from svcnode.terminal.snapshot import take_snapshots

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.cli._args import CommandParser, Commands
    from svcnode.terminal.snapshot import NodeSnapshot

EXIT_UNKNOWN = 3


def configure(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "status",
        allow_abbrev=False,
        help="ask nodes how they are, once",
        description="Ask nodes once who they are, how they are, and which services they have; all at the same time. "
        "Exit 0 healthy, 1 partially healthy, 2 unhealthy, 3 unreachable, no such node, or not asked; of many nodes, "
        "the worst. Ended by Ctrl-C 130, with what is known by then (at once by a second one), by SIGTERM 143.",
    )
    parser.usage_exit_code = EXIT_UNKNOWN  # 2 would say that a node is unhealthy
    add_node_arguments(parser)
    add = parser.add_argument
    add("--all", callback="store_true", help="of many nodes, list every service, not only those that are not Up")
    add("--json", callback="store_true", help="one JSON object per node and line, in the order given")
    return parser


def add_node_arguments(parser: CommandParser) -> None:
    """Which nodes, and how to ask them."""
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="a node: host:port, a URL, or unix:/path; without a scheme it is http")
    add("--from", dest="file", metavar="FILE", help='more of them, one per line, "#" for remarks; "-" is stdin')
    add("--prefix", default="/svc", metavar="PREFIX", help="path prefix of the interface (default: /svc)")
    add("--version", metavar="VERSION", help="ask for this version of the interface")
    add("--timeout", default="10s", metavar="DURATION", help="how long a node may take in all (default: 10s)")
    add("--ca", metavar="FILE", help="trust this PEM file instead of what this machine trusts")


def run_command(arguments: argparse.Namespace) -> int:

    return show_status(arguments)


def show_status(arguments: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        looks, is_interrupted = runner.run(_fetch_snapshots(arguments))
    with suppress(BrokenPipeError):
        if arguments.json:
            for look in looks:
                show(format_json(look), sys.stdout)
        else:
            _render(looks, with_all=arguments.all)
    gc.freeze()  # at the end of the process, the search for garbage in all this would take longer than to draw it
    return 128 + signal.SIGINT if is_interrupted else max(look.overall_health for look in looks).value


async def _fetch_snapshots(arguments: argparse.Namespace) -> tuple[Sequence[NodeSnapshot], bool]:
    """With whether somebody pressed Ctrl-C before all had answered."""
    clients, timeout_s = clients_from(arguments), timeout_from(arguments)
    loop = asyncio.get_running_loop()
    with ProgressBar("asking nodes", len(clients), loop) as progress, handle_sigint(progress.interrupt) as interrupted:
        looks = await take_snapshots(clients, timeout_s, on_snapshot=progress.advance, stopped=interrupted)
    return looks, interrupted.done()


def format_json(look: NodeSnapshot) -> str:
    return json.dumps(
        _redact(
            {
                "url": look.url,
                "overall_health": look.overall_health.name.lower(),
                "health": look.health,
                "identity": dataclasses.asdict(look.identity) if look.identity else None,
                "services": None
                if look.services is None
                else [
                    dataclasses.asdict(service) | {"status": service.status.value if service.status else None}
                    for service in look.services
                ],
                "errors": [{"kind": type(error).__name__, "message": str(error)} for error in look.errors],
                "interrupted": look.interrupted or None,
                "remarks": look.remarks,
                "deviations": look.deviations,
                "duration_ms": round(look.duration_s * 1000, 3),
            }
        )
    )


def _redact(value: Any) -> Any:  # noqa: ANN401  whatever JSON can hold
    """A node may echo what it was asked with."""
    match value:
        case str():
            return redacted(value)
        case dict():
            return {name: _redact(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_redact(inner) for inner in value]
        case _:
            return value


def _render(looks: Sequence[NodeSnapshot], *, with_all: bool) -> None:
    from svcnode.terminal.render import Symbols, create_console, print_lines, render_node, render_nodes

    if sys.stdout is None:
        return
    is_terminal = sys.stdout.isatty()
    symbols = Symbols.for_stream(is_terminal=is_terminal, encoding=sys.stdout.encoding)
    console = create_console(sys.stdout) if is_terminal else None
    width = console.width if console else None
    if len(looks) == 1:
        lines = render_node(looks[0], symbols, width=width)
    else:
        lines = render_nodes(looks, symbols, with_all=with_all, width=width)
    if console:
        print_lines(console, lines)
    else:
        show("\n".join(line.plain for line in lines), sys.stdout)

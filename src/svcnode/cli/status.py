"""`svcnode status URL…`: the health of nodes, requested once and at the same time."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from svcnode.cli._args import EXIT_BAD, EXIT_PARTIAL, EXIT_UNKNOWN
from svcnode.cli._node_args import add_node_arguments, open_registry_nodes, sources_from, timeout_from
from svcnode.cli.output import show
from svcnode.cli.terminal.progress import ProgressBar, handle_sigint
from svcnode.cli.terminal.snapshot import OverallHealth, take_snapshots
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.redaction import redacted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.cli._args import CommandParser
    from svcnode.cli.terminal.snapshot import NodeSnapshot

EXIT_CODES = {
    OverallHealth.HEALTHY: 0,
    OverallHealth.PARTIAL: EXIT_PARTIAL,
    OverallHealth.UNHEALTHY: EXIT_BAD,
    OverallHealth.UNKNOWN: EXIT_UNKNOWN,
}

_EPILOG = """\
exit codes:
  0    healthy; with several nodes, the worst one counts
  1    partially healthy
  2    invalid arguments or configuration
  3    unhealthy
  4    unreachable, or not a node
  130  ended by Ctrl-C, with the results so far (a second Ctrl-C ends at once)
  143  ended by SIGTERM

examples:
  svcnode status
  svcnode status 10.0.0.5:8420 https://node.example.com
  svcnode status --from nodes.txt --json
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Are the nodes healthy? Ask each of them once, all at the same time, and show its name, health and services."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    add_node_arguments(parser)
    add = parser.add_argument
    add(
        "--all", action="store_true", help="with several nodes: list all services instead of only those that are not Up"
    )
    add("--json", action="store_true", help="print one line of JSON per node, in the order given")


def run_command(arguments: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        snapshots, is_interrupted = runner.run(_fetch_snapshots(arguments))
    with suppress(BrokenPipeError):
        if arguments.json:
            for snapshot in snapshots:
                show(format_json(snapshot), sys.stdout)
        else:
            _render(snapshots, with_all=arguments.all)
    gc.freeze()  # otherwise the garbage collection at exit takes longer than the output
    if is_interrupted:
        return 128 + signal.SIGINT
    return EXIT_CODES[max(snapshot.overall_health for snapshot in snapshots)]


async def _fetch_snapshots(arguments: argparse.Namespace) -> tuple[Sequence[NodeSnapshot], bool]:
    """The snapshots, and whether Ctrl-C came before all were complete."""
    timeout_s = timeout_from(arguments)
    is_configured = not (arguments.urls or arguments.file or arguments.registry)
    ca, config = arguments.ca, arguments.config
    async with open_registry_nodes(arguments) as registry:
        sources = await sources_from(arguments, registry)
    loop = asyncio.get_running_loop()
    with (
        ProgressBar("requesting nodes", len(sources), loop) as progress,
        handle_sigint(progress.interrupt) as interrupted,
    ):
        snapshots = await take_snapshots(sources, timeout_s, on_snapshot=progress.advance, stopped=interrupted)
        if any(snapshot.has_problem for snapshot in snapshots):
            from svcnode.cli._problems import with_problems

            adding = asyncio.ensure_future(with_problems(snapshots, ca=ca, config=config, is_configured=is_configured))
            ending: list[asyncio.Future[Any]] = [adding, interrupted]
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            snapshots = adding.result() if adding.done() else snapshots
            adding.cancel()
    return snapshots, interrupted.done()


def format_json(snapshot: NodeSnapshot) -> str:
    return json.dumps(
        _redact(
            {
                "url": snapshot.url,
                "overall_health": snapshot.overall_health.name.lower(),
                "health": snapshot.health,
                "acknowledged": snapshot.acknowledged.get(None),
                "identity": dataclasses.asdict(snapshot.identity) if snapshot.identity else None,
                "services": None
                if snapshot.services is None
                else [
                    dataclasses.asdict(service)
                    | {
                        "status": service.status.value if service.status else None,
                        "acknowledged": snapshot.acknowledged.get(service.id),
                    }
                    for service in snapshot.services
                ],
                "problems": None if snapshot.problems is None else snapshot.problems["problems"],
                "errors": [
                    {"kind": type(error).__name__, "code": error.code, "message": str(error)}
                    for error in snapshot.errors
                ],
                "interrupted": snapshot.interrupted or None,
                "remarks": snapshot.remarks,
                "deviations": snapshot.deviations,
                "duration_ms": round(snapshot.duration_s * 1000, 3),
            }
        )
    )


def _redact(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """A node may echo secrets of the request, such as a password in the URL."""
    match value:
        case str():
            return redacted(value)
        case dict():
            return {name: _redact(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_redact(inner) for inner in value]
        case _:
            return value


def _render(snapshots: Sequence[NodeSnapshot], *, with_all: bool) -> None:
    from svcnode.cli.terminal.render import Symbols, create_console, print_lines, render_node, render_nodes

    if sys.stdout is None:
        return
    is_terminal = sys.stdout.isatty()
    symbols = Symbols.for_stream(is_terminal=is_terminal, encoding=sys.stdout.encoding)
    console = create_console(sys.stdout) if is_terminal else None
    width = console.width if console else None
    if len(snapshots) == 1:
        lines = render_node(snapshots[0], symbols, width=width)
    else:
        lines = render_nodes(snapshots, symbols, with_all=with_all, width=width)
    if console:
        print_lines(console, lines)
    else:
        show("\n".join(line.plain for line in lines), sys.stdout)

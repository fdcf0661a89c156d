"""What `svcnode status` does: asks all nodes at the same time, and shows them in the order given."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from svcnode.cli.nodes import clients_from, timeout_from
from svcnode.cli.showing import show
from svcnode.client.loops import PromptLoop
from svcnode.terminal.looking import look_at_all
from svcnode.terminal.progress import ProgressBar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.terminal.looking import Look


def show_status(arguments: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=PromptLoop) as runner:
        looks = runner.run(_look(arguments))
    with suppress(BrokenPipeError):
        if arguments.json:
            for look in looks:
                show(as_json(look), sys.stdout)
        else:
            _draw(looks, with_all=arguments.all)
    return max(look.finding for look in looks).value


async def _look(arguments: argparse.Namespace) -> Sequence[Look]:
    clients = clients_from(arguments)
    with ProgressBar("asking nodes", len(clients), asyncio.get_running_loop()) as progress:
        return await look_at_all(clients, timeout_from(arguments), on_look=progress.advance)


def as_json(look: Look) -> str:
    return json.dumps(
        {
            "url": look.url,
            "finding": look.finding.name.lower(),
            "health": look.health,
            "identity": dataclasses.asdict(look.identity) if look.identity else None,
            "services": None
            if look.services is None
            else [
                dataclasses.asdict(service) | {"status": service.status.value if service.status else None}
                for service in look.services
            ],
            "errors": [{"kind": type(error).__name__, "message": str(error)} for error in look.errors],
            "tolerated": look.tolerated,
            "duration_ms": round(look.duration_s * 1000, 3),
        }
    )


def _draw(looks: Sequence[Look], *, with_all: bool) -> None:
    from svcnode.terminal.drawing import Symbols, many_nodes, one_node, print_lines

    if sys.stdout is None:
        return
    is_terminal = sys.stdout.isatty()
    symbols = Symbols.for_stream(is_terminal=is_terminal, encoding=sys.stdout.encoding)
    lines = one_node(looks[0], symbols) if len(looks) == 1 else many_nodes(looks, symbols, with_all=with_all)
    if is_terminal:
        from rich.console import Console

        print_lines(Console(highlight=False), lines)
    else:
        show("\n".join(line.plain for line in lines), sys.stdout)

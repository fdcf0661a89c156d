"""What `svcnode status` does: asks all nodes at the same time, and shows them in the order given."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from svcnode.cli.nodes import clients_from, timeout_from
from svcnode.cli.showing import show
from svcnode.client.loops import PromptLoop
from svcnode.core.redaction import redacted
from svcnode.terminal.interruption import interruption
from svcnode.terminal.looking import look_at_all
from svcnode.terminal.progress import ProgressBar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.terminal.looking import Look


def show_status(arguments: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=PromptLoop) as runner:
        looks, is_interrupted = runner.run(_look(arguments))
    with suppress(BrokenPipeError):
        if arguments.json:
            for look in looks:
                show(as_json(look), sys.stdout)
        else:
            _draw(looks, with_all=arguments.all)
    gc.freeze()  # at the end of the process, the search for garbage in all this would take longer than to draw it
    return 128 + signal.SIGINT if is_interrupted else max(look.finding for look in looks).value


async def _look(arguments: argparse.Namespace) -> tuple[Sequence[Look], bool]:
    """With whether somebody pressed Ctrl-C before all had answered."""
    clients, timeout_s = clients_from(arguments), timeout_from(arguments)
    loop = asyncio.get_running_loop()
    with ProgressBar("asking nodes", len(clients), loop) as progress, interruption(progress.interrupt) as interrupted:
        looks = await look_at_all(clients, timeout_s, on_look=progress.advance, stopped=interrupted)
    return looks, interrupted.done()


def as_json(look: Look) -> str:
    return json.dumps(
        _without_secrets(
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
                "cut_short": look.cut_short or None,
                "remarks": look.remarks,
                "tolerated": look.tolerated,
                "duration_ms": round(look.duration_s * 1000, 3),
            }
        )
    )


def _without_secrets(value: Any) -> Any:  # noqa: ANN401  whatever JSON can hold
    """A node may echo what it was asked with."""
    match value:
        case str():
            return redacted(value)
        case dict():
            return {name: _without_secrets(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_without_secrets(inner) for inner in value]
        case _:
            return value


def _draw(looks: Sequence[Look], *, with_all: bool) -> None:
    from svcnode.terminal.drawing import Symbols, console_on, many_nodes, one_node, print_lines

    if sys.stdout is None:
        return
    is_terminal = sys.stdout.isatty()
    symbols = Symbols.for_stream(is_terminal=is_terminal, encoding=sys.stdout.encoding)
    console = console_on(sys.stdout) if is_terminal else None
    width = console.width if console else None
    if len(looks) == 1:
        lines = one_node(looks[0], symbols, width=width)
    else:
        lines = many_nodes(looks, symbols, with_all=with_all, width=width)
    if console:
        print_lines(console, lines)
    else:
        show("\n".join(line.plain for line in lines), sys.stdout)

"""An explanation on a terminal: the same words, the first line in a colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from svcnode.core.model import Health, Status
from svcnode.terminal.render import CRITICAL, INDENT, OK, WARNING, Symbols, create_console, print_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.explanation import Explanation

_MARKS = {
    Status.UP: OK,
    Status.INITIALIZING: WARNING,
    Status.DOWN: CRITICAL,
    Health.HEALTHY: OK,
    Health.PARTIAL: WARNING,
    Health.UNHEALTHY: CRITICAL,
}


def print_explanation(explanation: Explanation, stream: TextIO) -> None:
    symbols = Symbols.for_stream(is_terminal=True, encoding=stream.encoding)
    print_lines(create_console(stream), render_explanation(explanation, symbols))


def render_explanation(explanation: Explanation, symbols: Symbols) -> Iterator[Text]:
    yield symbols.with_symbol(_MARKS[explanation.status], explanation.headline)
    for line in explanation.about:
        yield Text(f"{INDENT}{line}", "dim")
    for title, sentences in explanation.sections:
        yield Text()
        yield Text(title, "bold")
        for sentence in sentences:
            yield Text(f"{INDENT}{sentence}")

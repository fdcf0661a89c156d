"""An explanation on a terminal: the same words, the first line in a colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from svcnode.core.model import Health, Status
from svcnode.terminal.drawing import BAD, GOOD, INDENT, SOON, Symbols, console_on, print_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.explanation import Explanation

_MARKS = {
    Status.UP: GOOD,
    Status.INITIALIZING: SOON,
    Status.DOWN: BAD,
    Health.HEALTHY: GOOD,
    Health.PARTIAL: SOON,
    Health.UNHEALTHY: BAD,
}


def draw(explanation: Explanation, stream: TextIO) -> None:
    symbols = Symbols.for_stream(is_terminal=True, encoding=stream.encoding)
    print_lines(console_on(stream), drawn(explanation, symbols))


def drawn(explanation: Explanation, symbols: Symbols) -> Iterator[Text]:
    yield symbols.marked(_MARKS[explanation.finding], explanation.head)
    for line in explanation.about:
        yield Text(f"{INDENT}{line}", "dim")
    for title, sentences in explanation.sections:
        yield Text()
        yield Text(title, "bold")
        for sentence in sentences:
            yield Text(f"{INDENT}{sentence}")

"""How nodes and services look: one line of text each. A colour never says what a word does not say as well."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from svcnode.core.errors import NodeFailedError, NotThisInterfaceError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status
from svcnode.core.redaction import redacted
from svcnode.core.wording import one_line
from svcnode.terminal.looking import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from enum import Enum

    from rich.console import Console

    from svcnode.client import BackingService
    from svcnode.core.errors import ClientError
    from svcnode.terminal.looking import Look

INDENT = "  "
GAP = "  "
_MAX_COLUMN = 32  # of what is aligned; what is longer is shown whole, out of line
# What a node says of itself is cut, so that it cannot push out what we say of it.
_MAX_NAME, _MIN_NAME = 32, 12
_MAX_VERSION = 16
_MAX_SPEC = len("interface ") + _MAX_VERSION
_NAME_COLUMN = 1


class Mark(NamedTuple):
    symbol: str
    ascii_symbol: str
    style: str


GOOD = Mark("●", "+", "green")
SOON = Mark("◐", "~", "yellow")
BAD = Mark("✖", "x", "bold red")
NONE = Mark("○", "?", "dim")
LOST = Mark("!", "!", "bold magenta")

_FINDING_MARKS = {
    Finding.HEALTHY: GOOD,
    Finding.PARTIAL: SOON,
    Finding.UNHEALTHY: BAD,
    Finding.UNCLEAR: LOST,
}
_STATUS_MARKS = {Status.UP: GOOD, Status.INITIALIZING: SOON, Status.DOWN: BAD, None: NONE}
_HEALTH_WORDS = {Health.HEALTHY: "healthy", Health.PARTIAL: "partial", Health.UNHEALTHY: "unhealthy"}
_ERROR_WORDS: dict[type[ClientError], str] = {
    UnreachableError: "unreachable",
    VersionNotFoundError: "other version",
    NodeFailedError: "failing",
    NotThisInterfaceError: "not a node",
}


class Symbols(NamedTuple):
    """Which symbols can be shown: none where nobody looks, and plain ones where a terminal has no others."""

    are_shown: bool = True
    are_ascii: bool = False

    @classmethod
    def for_stream(cls, *, is_terminal: bool, encoding: str) -> Symbols:
        try:
            "".join(mark.symbol for mark in (GOOD, SOON, BAD, NONE)).encode(encoding)
        except (UnicodeError, LookupError):
            return cls(is_terminal, are_ascii=True)
        return cls(is_terminal)

    @property
    def ellipsis(self) -> str:
        return "~" if self.are_ascii else "…"

    def marked(self, mark: Mark, word: str) -> Text:
        symbol = mark.ascii_symbol if self.are_ascii else mark.symbol
        return Text(f"{symbol} {word}" if self.are_shown else word, mark.style)


def finding_word(look: Look) -> str:
    if look.cut_short:
        return "cut short"
    if look.errors:
        error = look.errors[0]
        is_half_reached = isinstance(error, UnreachableError) and look.is_reached
        return "unclear" if is_half_reached else _ERROR_WORDS.get(type(error), "unclear")
    return "unclear" if look.health is None else _HEALTH_WORDS[look.health]


def finding_cell(look: Look, symbols: Symbols) -> Text:
    mark = NONE if look.cut_short else _FINDING_MARKS[look.finding]
    return symbols.marked(mark, finding_word(look))


def status_word(status: Enum | None) -> str:
    return "not told" if status is None else str(status.value)


def status_cell(status: Status | None, symbols: Symbols) -> Text:
    return symbols.marked(_STATUS_MARKS[status], status_word(status))


def clean(text: str) -> str:
    """What somebody else wrote, in one line, with no secret of ours and nothing in it that steers a terminal."""
    return one_line(redacted(text))


def told(text: str, style: str = "") -> Text:
    return Text(clean(text), style)


def shortened(text: str, width: int, symbols: Symbols) -> str:
    if len(text) <= width and cell_len(text) <= width:  # there are characters that take no room
        return text
    return set_cell_size(text[:width], width - 1).rstrip() + symbols.ellipsis


def aligned(rows: Sequence[Sequence[Text]], indent: str = "") -> list[Text]:
    """One line for each row, its cells under those of the others; a terminal cuts off what is too long for it."""
    widths = [
        max((width for cell in column if (width := cell.cell_len) <= _MAX_COLUMN), default=0)
        for column in zip(*rows, strict=True)
    ]
    lines = []
    for row in rows:
        line = Text(indent, no_wrap=True, overflow="ellipsis")
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * max(0, width - cell.cell_len) + GAP)
        line.append_text(row[-1])
        line.rstrip()
        lines.append(line)
    return lines


def console_on(stream: TextIO) -> Console:
    """What the terminal cannot spell is a question mark there: it must not stop us, nor move what stands beside it."""
    from rich.console import Console  # what goes into a pipe does without

    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(file=stream, highlight=False)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """What is aligned is cut off at the edge of the terminal; all else goes on in the next line."""
    for line in lines:
        parts = [line] if line.no_wrap or line.cell_len <= console.width else _wrapped(console, line)
        for part in parts:
            console.print(part, no_wrap=True, overflow="ellipsis")


def _wrapped(console: Console, line: Text) -> Iterator[Text]:
    """What goes on stands further in than what begins: nobody's words look like a line of their own."""
    indent = len(line.plain) - len(line.plain.lstrip())
    further = max(indent, len(INDENT) * 2)
    for number, part in enumerate(line[indent:].wrap(console, max(1, console.width - further))):
        part.rstrip()
        yield Text(" " * (further if number else indent)).append_text(part)


# ---- one node, and many


def node_row(look: Look, symbols: Symbols) -> list[Text]:
    who = look.identity
    return [
        finding_cell(look, symbols),
        _cut_cell(who.node_name if who else "-", _MAX_NAME, symbols, "bold"),
        _cut_cell(who.node_version if who else "-", _MAX_VERSION, symbols),
        Text(up_count(look.services)),
        told(look.url, "dim"),
    ]


def _cut_cell(text: str, width: int, symbols: Symbols, style: str = "") -> Text:
    """With single spaces: where there are more, another column begins."""
    return Text(shortened(" ".join(clean(text).split()), width, symbols), style)


def _fitted(rows: list[list[Text]], symbols: Symbols, width: int | None) -> list[list[Text]]:
    """With names as long as there is room for them beside all else."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    excess = 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width
    room = max(_MIN_NAME, widths[_NAME_COLUMN] - max(0, excess))
    for row in rows:
        row[_NAME_COLUMN] = _cut_cell(row[_NAME_COLUMN].plain, room, symbols, "bold")
    return rows


def up_count(services: tuple[BackingService, ...] | None) -> str:
    if services is None:
        return "-"
    return f"{sum(service.status is Status.UP for service in services)}/{len(services)} up"


def service_rows(services: Iterable[BackingService], symbols: Symbols) -> list[list[Text]]:
    return [
        [
            status_cell(service.status, symbols),
            told(service.id),
            told(service.name),
            told(service.description, "dim"),
        ]
        for service in services
    ]


def remarks(look: Look, symbols: Symbols) -> Iterator[Text]:
    """What went wrong; then what was told nevertheless, what is odd about it, and what was tolerated."""
    if look.cut_short:
        yield Text(INDENT * 2).append_text(symbols.marked(NONE, look.cut_short))
    for error in look.reasons:
        yield Text(INDENT * 2).append_text(symbols.marked(LOST, clean(str(error))))
    if look.health is not None and look.finding is Finding.UNCLEAR:
        yield Text(f"{INDENT * 2}its health answer is {look.health.value} ({_HEALTH_WORDS[look.health]})")
    for sentence in look.remarks:
        yield Text(f"{INDENT * 2}remark: {sentence}", "yellow")
    for sentence in look.tolerated:
        yield Text(f"{INDENT * 2}tolerated: {clean(sentence)}", "dim")


def _head(line: Text, url: Text, width: int | None) -> list[Text]:
    """Where a node is must not be cut off: without room at the end of the line, it stands below."""
    is_short = width is None or line.cell_len <= width
    lines = [line] if is_short else [line[: -len(url)], Text(INDENT * 2).append_text(url)]
    for one in lines:
        one.rstrip()
        one.no_wrap, one.overflow = False, "fold"
    return lines


def one_node(look: Look, symbols: Symbols, *, width: int | None = None) -> list[Text]:
    """In full: every service, even those that are well."""
    row = node_row(look, symbols)
    if look.identity is not None:
        row.insert(3, _cut_cell(f"interface {look.identity.spec_version or '-'}", _MAX_SPEC, symbols))
    (line,) = aligned([row])
    lines = [*_head(line, row[-1], width), *remarks(look, symbols)]
    if look.services:
        heads = [Text(word, "dim") for word in ("STATUS", "ID", "NAME", "DESCRIPTION")]
        lines += [Text(), *aligned([heads, *service_rows(look.services, symbols)], INDENT)]
    return lines


def many_nodes(looks: Sequence[Look], symbols: Symbols, *, with_all: bool, width: int | None = None) -> list[Text]:
    """A line for each, and below it what is not well; then how many there are of each kind."""
    lines = []
    rows = _fitted([node_row(look, symbols) for look in looks], symbols, width)
    for look, row, line in zip(looks, rows, aligned(rows), strict=True):
        lines += [*_head(line, row[-1], width), *remarks(look, symbols)]
        listed = [service for service in look.services or () if with_all or service.status is not Status.UP]
        if listed:
            lines += aligned(service_rows(listed, symbols), INDENT * 2)
    return [*lines, Text(), Text(summary(looks))]


def summary(looks: Sequence[Look]) -> str:
    counts = Counter((look.finding, finding_word(look)) for look in looks)
    return f"{len(looks)} nodes: " + ", ".join(f"{count} {word}" for (_, word), count in sorted(counts.items()))

"""How nodes and services look: one line of text each. A colour never says what a word does not say as well."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from svcnode.core.errors import NodeFailedError, NotThisInterfaceError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status
from svcnode.logs import one_line
from svcnode.terminal.looking import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from svcnode.client import BackingService
    from svcnode.core.errors import ClientError
    from svcnode.terminal.looking import Look

INDENT = "  "
GAP = "  "
_MAX_COLUMN = 32  # of what is aligned; what is longer is shown whole, out of line


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

    def marked(self, mark: Mark, word: str) -> Text:
        symbol = mark.ascii_symbol if self.are_ascii else mark.symbol
        return Text(f"{symbol} {word}" if self.are_shown else word, mark.style)


def finding_word(look: Look) -> str:
    if look.errors:
        return _ERROR_WORDS.get(type(look.errors[0]), "unclear")
    return "unclear" if look.health is None else _HEALTH_WORDS[look.health]


def finding_cell(look: Look, symbols: Symbols) -> Text:
    return symbols.marked(_FINDING_MARKS[look.finding], finding_word(look))


def status_cell(status: Status | None, symbols: Symbols) -> Text:
    return symbols.marked(_STATUS_MARKS[status], "not told" if status is None else status.value)


def told(text: str, style: str = "") -> Text:
    """What somebody else wrote, in one line, with nothing in it that steers a terminal."""
    return Text(one_line(text), style)


def aligned(rows: Sequence[Sequence[Text]], indent: str = "") -> list[Text]:
    """One line for each row, its cells under those of the others; a terminal cuts off what is too long for it."""
    widths = [
        max((width for cell in column if (width := cell_len(cell.plain)) <= _MAX_COLUMN), default=0)
        for column in zip(*rows, strict=True)
    ]
    lines = []
    for row in rows:
        line = Text(indent, no_wrap=True, overflow="ellipsis")
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * max(0, width - cell_len(cell.plain)) + GAP)
        line.append_text(row[-1])
        line.rstrip()
        lines.append(line)
    return lines


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """What is aligned is cut off at the edge of the terminal; all else goes on below its own beginning."""
    from rich.padding import Padding

    for line in lines:
        if line.no_wrap or not line:
            console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            indent = len(line.plain) - len(line.plain.lstrip())
            console.print(Padding(line[indent:], (0, 0, 0, indent), expand=False))


# ---- one node, and many


def node_row(look: Look, symbols: Symbols) -> list[Text]:
    who = look.identity
    return [
        finding_cell(look, symbols),
        told(who.node_name if who else "-", "bold"),
        told(who.node_version if who else "-"),
        Text(up_count(look.services)),
        told(look.url, "dim"),
    ]


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
    """What went wrong; then what was told nevertheless, and what was tolerated."""
    # Where nothing could be had, one reason is enough: the others are of its kind.
    errors = look.errors if look.health is not None else look.errors[:1]
    for error in errors:
        yield Text(INDENT * 2).append_text(symbols.marked(LOST, one_line(str(error))))
    if errors and look.health is not None:
        yield Text(f"{INDENT * 2}its health answer is {look.health.value} ({_HEALTH_WORDS[look.health]})")
    for sentence in look.tolerated:
        yield Text(f"{INDENT * 2}tolerated: {one_line(sentence)}", "dim")


def one_node(look: Look, symbols: Symbols) -> list[Text]:
    """In full: every service, even those that are well."""
    row = node_row(look, symbols)
    if look.identity is not None:
        row.insert(3, told(f"interface {look.identity.spec_version or '-'}"))
    (head,) = aligned([row])
    head.no_wrap, head.overflow = False, "fold"  # there is no other for it to be aligned with
    lines = [head, *remarks(look, symbols)]
    if look.services:
        heads = [Text(word, "dim") for word in ("STATUS", "ID", "NAME", "DESCRIPTION")]
        lines += [Text(), *aligned([heads, *service_rows(look.services, symbols)], INDENT)]
    return lines


def many_nodes(looks: Sequence[Look], symbols: Symbols, *, with_all: bool) -> list[Text]:
    """A line for each, and below it what is not well; then how many there are of each kind."""
    lines = []
    for look, line in zip(looks, aligned([node_row(look, symbols) for look in looks]), strict=True):
        lines += [line, *remarks(look, symbols)]
        listed = [service for service in look.services or () if with_all or service.status is not Status.UP]
        if listed:
            lines += aligned(service_rows(listed, symbols), INDENT * 2)
    return [*lines, Text(), Text(summary(looks))]


def summary(looks: Sequence[Look]) -> str:
    counts = Counter((look.finding, finding_word(look)) for look in looks)
    return f"{len(looks)} nodes: " + ", ".join(f"{count} {word}" for (_, word), count in sorted(counts.items()))

"""How nodes and services look: one line of text each. A colour never says what a word does not say as well."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from svcnode.core.errors import NodeFailedError, UnexpectedResponseError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line
from svcnode.terminal.snapshot import OverallHealth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from enum import Enum

    from rich.console import Console

    from svcnode.client import BackingService
    from svcnode.core.errors import ClientError
    from svcnode.terminal.snapshot import NodeSnapshot

INDENT = "  "
COLUMN_GAP = "  "
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


OK = Mark("●", "+", "green")
WARNING = Mark("◐", "~", "yellow")
CRITICAL = Mark("✖", "x", "bold red")
NEUTRAL = Mark("○", "?", "dim")
ERROR = Mark("!", "!", "bold magenta")

_HEALTH_MARKS = {
    OverallHealth.HEALTHY: OK,
    OverallHealth.PARTIAL: WARNING,
    OverallHealth.UNHEALTHY: CRITICAL,
    OverallHealth.UNKNOWN: ERROR,
}
_STATUS_MARKS = {Status.UP: OK, Status.INITIALIZING: WARNING, Status.DOWN: CRITICAL, None: NEUTRAL}
_HEALTH_TEXT = {Health.HEALTHY: "healthy", Health.PARTIAL: "partial", Health.UNHEALTHY: "unhealthy"}
_ERROR_TEXT: dict[type[ClientError], str] = {
    UnreachableError: "unreachable",
    VersionNotFoundError: "other version",
    NodeFailedError: "failing",
    UnexpectedResponseError: "not a node",
}


class Symbols(NamedTuple):
    """Which symbols can be shown: none where nobody looks, and plain ones where a terminal has no others."""

    are_shown: bool = True
    are_ascii: bool = False

    @classmethod
    def for_stream(cls, *, is_terminal: bool, encoding: str) -> Symbols:
        try:
            "".join(mark.symbol for mark in (OK, WARNING, CRITICAL, NEUTRAL)).encode(encoding)
        except (UnicodeError, LookupError):
            return cls(is_terminal, are_ascii=True)
        return cls(is_terminal)

    @property
    def ellipsis(self) -> str:
        return "~" if self.are_ascii else "…"

    def with_symbol(self, mark: Mark, word: str) -> Text:
        symbol = mark.ascii_symbol if self.are_ascii else mark.symbol
        return Text(f"{symbol} {word}" if self.are_shown else word, mark.style)


def health_text(look: NodeSnapshot) -> str:
    if look.interrupted:
        return "cut short"
    if look.errors:
        error = look.errors[0]
        is_half_reached = isinstance(error, UnreachableError) and look.is_reachable
        return "unknown" if is_half_reached else _ERROR_TEXT.get(type(error), "unknown")
    return "unknown" if look.health is None else _HEALTH_TEXT[look.health]


def health_cell(look: NodeSnapshot, symbols: Symbols) -> Text:
    mark = NEUTRAL if look.interrupted else _HEALTH_MARKS[look.overall_health]
    return symbols.with_symbol(mark, health_text(look))


def status_text(status: Enum | None) -> str:
    return "not reported" if status is None else str(status.value)


def status_cell(status: Status | None, symbols: Symbols) -> Text:
    return symbols.with_symbol(_STATUS_MARKS[status], status_text(status))


def sanitize(text: str) -> str:
    """What somebody else wrote, in one line, with no secret of ours and nothing in it that steers a terminal."""
    return one_line(redacted(text))


def sanitized_text(text: str, style: str = "") -> Text:
    return Text(sanitize(text), style)


def truncate(text: str, width: int, symbols: Symbols) -> str:
    if len(text) <= width and cell_len(text) <= width:  # there are characters that take no room
        return text
    return set_cell_size(text[:width], width - 1).rstrip() + symbols.ellipsis


def align_columns(rows: Sequence[Sequence[Text]], indent: str = "") -> list[Text]:
    """One line for each row, its cells under those of the others; a terminal cuts off what is too long for it."""
    widths = [
        max((width for cell in column if (width := cell.cell_len) <= _MAX_COLUMN), default=0)
        for column in zip(*rows, strict=True)
    ]
    lines = []
    for row in rows:
        line = Text(indent, no_wrap=True, overflow="ellipsis")
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * max(0, width - cell.cell_len) + COLUMN_GAP)
        line.append_text(row[-1])
        line.rstrip()
        lines.append(line)
    return lines


def create_console(stream: TextIO) -> Console:
    """What the terminal cannot spell is a question mark there: it must not stop us, nor move what stands beside it."""
    from rich.console import Console  # what goes into a pipe does without

    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(file=stream, highlight=False)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """What is aligned is cut off at the edge of the terminal; all else goes on in the next line."""
    for line in lines:
        parts = [line] if line.no_wrap or line.cell_len <= console.width else _wrap_line(console, line)
        for part in parts:
            console.print(part, no_wrap=True, overflow="ellipsis")


def _wrap_line(console: Console, line: Text) -> Iterator[Text]:
    """What goes on stands further in than what begins: nobody's words look like a line of their own."""
    indent = len(line.plain) - len(line.plain.lstrip())
    further = max(indent, len(INDENT) * 2)
    for number, part in enumerate(line[indent:].wrap(console, max(1, console.width - further))):
        part.rstrip()
        yield Text(" " * (further if number else indent)).append_text(part)


# ---- one node, and many


def node_row(look: NodeSnapshot, symbols: Symbols) -> list[Text]:
    who = look.identity
    return [
        health_cell(look, symbols),
        _truncated_cell(who.node_name if who else "-", _MAX_NAME, symbols, "bold"),
        _truncated_cell(who.node_version if who else "-", _MAX_VERSION, symbols),
        Text(up_count(look.services)),
        sanitized_text(look.url, "dim"),
    ]


def _truncated_cell(text: str, width: int, symbols: Symbols, style: str = "") -> Text:
    """With single spaces: where there are more, another column begins."""
    return Text(truncate(" ".join(sanitize(text).split()), width, symbols), style)


def _fit_names(rows: list[list[Text]], symbols: Symbols, width: int | None) -> list[list[Text]]:
    """With names as long as there is room for them beside all else."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    excess = 0 if width is None else sum(widths) + len(COLUMN_GAP) * (len(widths) - 1) - width
    room = max(_MIN_NAME, widths[_NAME_COLUMN] - max(0, excess))
    for row in rows:
        row[_NAME_COLUMN] = _truncated_cell(row[_NAME_COLUMN].plain, room, symbols, "bold")
    return rows


def up_count(services: tuple[BackingService, ...] | None) -> str:
    if services is None:
        return "-"
    return f"{sum(service.status is Status.UP for service in services)}/{len(services)} up"


def service_rows(services: Iterable[BackingService], symbols: Symbols) -> list[list[Text]]:
    return [
        [
            status_cell(service.status, symbols),
            sanitized_text(service.id),
            sanitized_text(service.name),
            sanitized_text(service.description, "dim"),
        ]
        for service in services
    ]


def remark_lines(look: NodeSnapshot, symbols: Symbols) -> Iterator[Text]:
    """What went wrong; then what was told nevertheless, what is odd about it, and what was deviations."""
    if look.interrupted:
        yield Text(INDENT * 2).append_text(symbols.with_symbol(NEUTRAL, look.interrupted))
    for error in look.shown_errors:
        yield Text(INDENT * 2).append_text(symbols.with_symbol(ERROR, sanitize(str(error))))
    if look.health is not None and look.overall_health is OverallHealth.UNKNOWN:
        yield Text(f"{INDENT * 2}its health answer is {look.health.value} ({_HEALTH_TEXT[look.health]})")
    for sentence in look.remarks:
        yield Text(f"{INDENT * 2}remark: {sentence}", "yellow")
    for sentence in look.deviations:
        yield Text(f"{INDENT * 2}deviations: {sanitize(sentence)}", "dim")


def _header_lines(line: Text, url: Text, width: int | None) -> list[Text]:
    """Where a node is must not be cut off: without room at the end of the line, it stands below."""
    is_short = width is None or line.cell_len <= width
    lines = [line] if is_short else [line[: -len(url)], Text(INDENT * 2).append_text(url)]
    for one in lines:
        one.rstrip()
        one.no_wrap, one.overflow = False, "fold"
    return lines


def render_node(look: NodeSnapshot, symbols: Symbols, *, width: int | None = None) -> list[Text]:
    """In full: every service, even those that are well."""
    row = node_row(look, symbols)
    if look.identity is not None:
        row.insert(3, _truncated_cell(f"interface {look.identity.spec_version or '-'}", _MAX_SPEC, symbols))
    (line,) = align_columns([row])
    lines = [*_header_lines(line, row[-1], width), *remark_lines(look, symbols)]
    if look.services:
        heads = [Text(word, "dim") for word in ("STATUS", "ID", "NAME", "DESCRIPTION")]
        lines += [Text(), *align_columns([heads, *service_rows(look.services, symbols)], INDENT)]
    return lines


def render_nodes(
    looks: Sequence[NodeSnapshot], symbols: Symbols, *, with_all: bool, width: int | None = None
) -> list[Text]:
    """A line for each, and below it what is not well; then how many there are of each kind."""
    lines = []
    rows = _fit_names([node_row(look, symbols) for look in looks], symbols, width)
    for look, row, line in zip(looks, rows, align_columns(rows), strict=True):
        lines += [*_header_lines(line, row[-1], width), *remark_lines(look, symbols)]
        listed = [service for service in look.services or () if with_all or service.status is not Status.UP]
        if listed:
            lines += align_columns(service_rows(listed, symbols), INDENT * 2)
    return [*lines, Text(), Text(summary(looks))]


def summary(looks: Sequence[NodeSnapshot]) -> str:
    counts = Counter((look.overall_health, health_text(look)) for look in looks)
    return f"{len(looks)} nodes: " + ", ".join(f"{count} {word}" for (_, word), count in sorted(counts.items()))

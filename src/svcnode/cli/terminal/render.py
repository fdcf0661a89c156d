"""Nodes, services and explanations as lines of text. Every colour repeats the meaning of a word beside it."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from svcnode.cli.terminal.problems import (
    group_lines,
    in_order,
    more_lines,
    often_text,
    reasons,
    since_text,
)
from svcnode.cli.terminal.snapshot import OverallHealth
from svcnode.core.errors import (
    NodeFailedError,
    UnexpectedResponseError,
    UnreachableError,
    VersionIgnoredError,
    VersionNotFoundError,
)
from svcnode.core.model import Health, Status
from svcnode.core.problems import impact_text, left_out_text, title_text
from svcnode.core.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from enum import Enum

    from rich.console import Console

    from svcnode.cli.terminal.explain.explanation import Explanation
    from svcnode.cli.terminal.problems import Problems
    from svcnode.cli.terminal.snapshot import NodeSnapshot, RegistryEntry
    from svcnode.client import BackingService
    from svcnode.core.errors import ClientError

INDENT = "  "
COLUMN_GAP = "  "
_MAX_COLUMN = 32  # a longer cell does not widen its column
# Texts of the node are truncated, so that our own columns stay visible.
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
_NODE_MARKS = {Health.HEALTHY: OK, Health.PARTIAL: WARNING, Health.UNHEALTHY: CRITICAL}
_ERROR_TEXT: dict[type[ClientError], str] = {
    UnreachableError: "unreachable",
    VersionNotFoundError: "other version",
    VersionIgnoredError: "other version",
    NodeFailedError: "failing",
    UnexpectedResponseError: "not a node",
}


class Symbols(NamedTuple):
    """Which symbols to show: none in a pipe, ASCII if the encoding of the terminal has no others."""

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

    def symbol(self, mark: Mark) -> str:
        return mark.ascii_symbol if self.are_ascii else mark.symbol

    def with_symbol(self, mark: Mark, word: str) -> Text:
        return Text(f"{self.symbol(mark)} {word}" if self.are_shown else word, mark.style)


def health_text(snapshot: NodeSnapshot) -> str:
    if snapshot.interrupted:
        return "interrupted"
    if snapshot.lacks_identity:
        return "no identity"
    if snapshot.errors:
        error = snapshot.errors[0]
        if not snapshot.is_reachable and snapshot.in_registry is not None and snapshot.in_registry.is_gone:
            return "gone"
        is_partly_reachable = isinstance(error, UnreachableError) and snapshot.is_reachable
        return "unknown" if is_partly_reachable else _ERROR_TEXT.get(type(error), "unknown")
    return "unknown" if snapshot.health is None else snapshot.health.label


def health_cell(snapshot: NodeSnapshot, symbols: Symbols) -> Text:
    mark = NEUTRAL if snapshot.interrupted else _HEALTH_MARKS[snapshot.overall_health]
    return symbols.with_symbol(mark, health_text(snapshot))


def status_text(status: Enum | None) -> str:
    return "not reported" if status is None else str(status.value)


def status_cell(status: Status | None, symbols: Symbols) -> Text:
    return symbols.with_symbol(_STATUS_MARKS[status], status_text(status))


def sanitized_text(text: str, style: str = "") -> Text:
    return Text(sanitize(text), style)


def truncate(text: str, width: int, symbols: Symbols) -> str:
    if len(text) <= width and cell_len(text) <= width:  # some characters have no width
        return text
    return set_cell_size(text[:width], width - 1).rstrip() + symbols.ellipsis


def align_columns(rows: Sequence[Sequence[Text]], indent: str = "") -> list[Text]:
    """One line per row, in aligned columns. The terminal truncates a line that is too long."""
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
    """A character that the terminal cannot encode is shown as a question mark."""
    from rich.console import Console  # output into a pipe does not need it

    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(file=stream, highlight=False)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Lines with aligned columns are truncated at the edge of the terminal, all others are wrapped."""
    for line in lines:
        parts = [line] if line.no_wrap or line.cell_len <= console.width else _wrap_line(console, line)
        for part in parts:
            console.print(part, no_wrap=True, overflow="ellipsis")


def _wrap_line(console: Console, line: Text) -> Iterator[Text]:
    """Continuation lines are indented, so that a text from outside cannot imitate a line of ours."""
    indent = len(line.plain) - len(line.plain.lstrip())
    continuation = max(indent, len(INDENT) * 2)
    for number, part in enumerate(line[indent:].wrap(console, max(1, console.width - continuation))):
        part.rstrip()
        yield Text(" " * (continuation if number else indent)).append_text(part)


# ---- one node, and many


def node_row(snapshot: NodeSnapshot, symbols: Symbols) -> list[Text]:
    identity = snapshot.identity
    return [
        _acknowledged_cell(health_cell(snapshot, symbols), snapshot, None),
        _truncated_cell(snapshot.node_name or "-", _MAX_NAME, symbols, "bold"),
        _truncated_cell(identity.node_version if identity else "-", _MAX_VERSION, symbols),
        Text(up_count(snapshot.services)),
        sanitized_text(snapshot.url, "dim"),
    ]


def _truncated_cell(text: str, width: int, symbols: Symbols, style: str = "") -> Text:
    """Spaces are collapsed: several in a row separate columns."""
    return Text(truncate(" ".join(sanitize(text).split()), width, symbols), style)


def _fit_names(rows: list[list[Text]], symbols: Symbols, width: int | None) -> list[list[Text]]:
    """Truncates the names if the rows are wider than the terminal."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    excess = 0 if width is None else sum(widths) + len(COLUMN_GAP) * (len(widths) - 1) - width
    name_width = max(_MIN_NAME, widths[_NAME_COLUMN] - max(0, excess))
    for row in rows:
        row[_NAME_COLUMN] = _truncated_cell(row[_NAME_COLUMN].plain, name_width, symbols, "bold")
    return rows


def up_count(services: tuple[BackingService, ...] | None) -> str:
    if services is None:
        return "-"
    return f"{sum(service.status is Status.UP for service in services)}/{len(services)} up"


def service_rows(
    snapshot: NodeSnapshot, services: Iterable[BackingService], symbols: Symbols, *, with_reasons: bool
) -> list[list[Text]]:
    """In the order of the problems. A reason, if it is known, is shown instead of the description."""
    known = reasons(snapshot.problems) if with_reasons else {}
    return [
        [
            _acknowledged_cell(status_cell(service.status, symbols), snapshot, service.id),
            sanitized_text(service.id),
            sanitized_text(service.name),
            sanitized_text(known.get(service.id) or service.description, "dim"),
        ]
        for service in in_order(services, snapshot.problems)
    ]


def problem_lines(problems: Problems, symbols: Symbols) -> Iterator[Text]:
    """Each problem in one row, and beneath it who is affected and what to do; then the groups."""
    listed = problems["problems"]
    rows = [
        [
            status_cell(Status(problem["status"]), symbols),
            sanitized_text(title_text(problem), "bold"),
            Text(impact_text(problem)),
            Text(since_text(problem)),
            sanitized_text(problem["reason"]),
            Text(often_text(problem), "dim"),
        ]
        for problem in listed
    ]
    if rows:
        yield Text()
        yield Text(f"{INDENT}PROBLEMS ({len(listed)}{'+' if problems['more'] else ''})", "dim")
    for problem, line in zip(listed, align_columns(rows, INDENT), strict=True):
        yield line
        for sentence in more_lines(problem):
            yield Text(INDENT * 3).append_text(sanitized_text(sentence, "dim"))
    if more := left_out_text(problems):
        yield Text(INDENT).append(more)
    groups = list(group_lines(problems))
    if groups:
        yield Text()
        yield Text(f"{INDENT}GROUPS", "dim")
        for sentence in groups:
            yield Text(INDENT).append_text(sanitized_text(sentence))


def _acknowledged_cell(cell: Text, snapshot: NodeSnapshot, service_id: str | None) -> Text:
    return cell.append(", acknowledged") if service_id in snapshot.acknowledged else cell


def remark_lines(snapshot: NodeSnapshot, symbols: Symbols) -> Iterator[Text]:
    """Errors, the health response if there are errors, remarks, and deviations from the interface."""
    if snapshot.interrupted:
        yield Text(INDENT * 2).append_text(symbols.with_symbol(NEUTRAL, snapshot.interrupted))
    for error in snapshot.shown_errors:
        yield Text(INDENT * 2).append_text(symbols.with_symbol(ERROR, sanitize(str(error))))
    if snapshot.health is not None and snapshot.overall_health is OverallHealth.UNKNOWN:
        yield Text(f"{INDENT * 2}health response: {snapshot.health.value} ({snapshot.health.label})")
    for sentence in snapshot.remarks:
        yield Text(f"{INDENT * 2}remark: {sentence}", "yellow")
    for sentence in snapshot.deviations:
        yield Text(f"{INDENT * 2}deviation: {sanitize(sentence)}", "dim")


def _header_lines(line: Text, url: Text, width: int | None) -> list[Text]:
    """The URL of a node is never truncated: if the line is too long, the URL goes on its own line."""
    is_short = width is None or line.cell_len <= width
    lines = [line] if is_short else [line[: -len(url)], Text(INDENT * 2).append_text(url)]
    for header_line in lines:
        header_line.rstrip()
        header_line.no_wrap, header_line.overflow = False, "fold"
    return lines


def render_node(snapshot: NodeSnapshot, symbols: Symbols, *, width: int | None = None) -> list[Text]:
    """With every service, also those that are Up."""
    row = node_row(snapshot, symbols)
    if snapshot.identity is not None:
        row.insert(3, _truncated_cell(f"interface {snapshot.identity.spec_version or '-'}", _MAX_SPEC, symbols))
    (line,) = align_columns([row])
    lines = [*_header_lines(line, row[-1], width), *remark_lines(snapshot, symbols)]
    if snapshot.problems is not None:
        lines += problem_lines(snapshot.problems, symbols)
    if snapshot.services:
        rows = service_rows(snapshot, snapshot.services, symbols, with_reasons=False)
        header = [Text(title, "dim") for title in ("STATUS", "ID", "NAME", "DESCRIPTION")]
        lines += [Text(), *align_columns([header, *rows], INDENT)]
    return lines


def render_nodes(
    snapshots: Sequence[NodeSnapshot], symbols: Symbols, *, with_all: bool, width: int | None = None
) -> list[Text]:
    """One line per node, the worst first, and below it the services that are not Up; at the end the number of nodes
    by health."""
    lines = []
    snapshots = sorted(snapshots, key=lambda snapshot: snapshot.trouble)
    rows = _fit_names([node_row(snapshot, symbols) for snapshot in snapshots], symbols, width)
    for snapshot, row, line in zip(snapshots, rows, align_columns(rows), strict=True):
        lines += [*_header_lines(line, row[-1], width), *remark_lines(snapshot, symbols)]
        listed = [service for service in snapshot.services or () if with_all or service.status is not Status.UP]
        if listed:
            lines += align_columns(service_rows(snapshot, listed, symbols, with_reasons=True), INDENT * 2)
    return [*lines, Text(), Text(summary(snapshots))]


def summary(snapshots: Sequence[NodeSnapshot]) -> str:
    counts = Counter((snapshot.overall_health, health_text(snapshot)) for snapshot in snapshots)
    noun = counted_noun(len(snapshots), [snapshot.in_registry for snapshot in snapshots])
    return f"{noun}: " + ", ".join(f"{count} {text}" for (_, text), count in sorted(counts.items()))


def counted_noun(count: int, entries: Iterable[RegistryEntry | None]) -> str:
    """ "replicas" if all of them are; a node that was named by its URL counts as a node."""
    noun = "replica" if all(entry is not None and entry.replica for entry in entries) else "node"
    return f"{count} {noun}{'' if count == 1 else 's'}"


# ---- an explanation


def print_explanation(explanation: Explanation, stream: TextIO) -> None:
    symbols = Symbols.for_stream(is_terminal=True, encoding=stream.encoding)
    print_lines(create_console(stream), render_explanation(explanation, symbols))


def render_explanation(explanation: Explanation, symbols: Symbols) -> Iterator[Text]:
    """The text of the explanation, with a colour for the first line."""
    status = explanation.status
    mark = _NODE_MARKS[status] if isinstance(status, Health) else _STATUS_MARKS[status]
    yield symbols.with_symbol(mark, explanation.headline)
    for line in explanation.about:
        yield Text(f"{INDENT}{line}", "dim")
    for title, sentences in explanation.sections:
        yield Text()
        yield Text(title, "bold")
        for sentence in sentences:
            yield Text(f"{INDENT}{sentence}")

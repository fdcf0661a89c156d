"""A page as lines of text, as many and as wide as the terminal has.

Every colour repeats another mark: a state has a symbol and a word, a recent change a star, the selected row an arrow.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

from svcnode.cli.terminal.problems import reasons
from svcnode.cli.terminal.render import (
    CRITICAL,
    ERROR,
    NEUTRAL,
    OK,
    WARNING,
    Mark,
    counted_noun,
    health_cell,
    sanitized_text,
    status_cell,
)
from svcnode.cli.terminal.watch.model import HISTORY_CELLS, Severity, UnreachableStatus, is_recently_changed
from svcnode.cli.terminal.watch.view import NOTE_INDENT, display_name, state_text
from svcnode.core.text import sanitize
from svcnode.core.units import format_narrow_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.cli.terminal.render import Symbols
    from svcnode.cli.terminal.watch.model import StateTracker, WatchedNode, WatchedService, WatchModel
    from svcnode.cli.terminal.watch.view import Page, Row

FIXED_LINES = 4  # summary and header above; details and keys below
CHANGED_STYLE = "reverse"
HEADER_STYLE = "dim"
_CURSOR = "█"
_PENDING = -1  # sorts after all healths in the summary


_BARS = {
    Severity.NO_DATA: Mark(" ", " ", ""),
    Severity.OK: Mark("▇", "#", OK.style),
    Severity.WARNING: Mark("▄", "=", WARNING.style),
    Severity.NOT_REPORTED: Mark("?", "?", NEUTRAL.style),
    Severity.CRITICAL: Mark("▁", "_", CRITICAL.style),
    Severity.ERROR: Mark("!", "!", ERROR.style),
}


_MARK_WIDTH = 2
_GAP = 1
_MIN_UP_WIDTH = 7
_MIN_URL_WIDTH = 16


class Columns(NamedTuple):
    """The width of each column. A narrow terminal has no timeline, a wide one a longer timeline."""

    state: int
    name: int
    version: int
    up: int
    since: int
    timeline: int
    url: int

    @classmethod
    def for_width(cls, width: int, up: int = _MIN_UP_WIDTH) -> Columns:
        state, version, since = 16, 10, 6
        left = width - _MARK_WIDTH - state - version - up - since - 5 * _GAP  # for name, timeline and URL
        spare = max(0, left - 34)
        name = max(8, min(left, 18 + min(8, spare // 4)))
        timeline = max(0, min(left - name, HISTORY_CELLS, 16 + spare // 4))
        url = left - name - timeline - _GAP
        if url < _MIN_URL_WIDTH:
            timeline, url = max(0, min(left - name, HISTORY_CELLS)), 0
        return cls(state, name, version, up, since, timeline, url)

    @property
    def message(self) -> int:
        """The width of an error, which replaces version and count; of the name, for a service."""
        return self.version + _GAP + self.up


def render_page(page: Page, now_s: float, width: int, height: int, symbols: Symbols) -> list[Text]:
    renderer = _Renderer(page, now_s, width, symbols)
    body = renderer.help() if page.has_help else renderer.body()
    body_height = max(0, height - FIXED_LINES)
    body = [*body[:body_height], *(Text() for _ in range(body_height - len(body)))]
    lines = [renderer.summary(), renderer.header(), *body, renderer.details(), renderer.keys()]
    return [line if line.cell_len <= width else renderer.fit(line, width) for line in lines[:height]]


class _Renderer:
    def __init__(self, page: Page, now_s: float, width: int, symbols: Symbols) -> None:
        self._page = page
        self._model: WatchModel = page.model
        self._now_s = now_s
        self._width = width
        self._symbols = symbols
        most_services = max((len(node.services) for node in self._model.nodes), default=0)
        self._columns = Columns.for_width(width, max(_MIN_UP_WIDTH, len(f"{most_services}/{most_services}")))

    # ---- the fixed lines

    def summary(self) -> Text:
        counts = Counter(
            (_PENDING if n.snapshot is None else n.snapshot.overall_health, state_text(n)) for n in self._model.nodes
        )
        noun = counted_noun(len(self._model.nodes), [node.in_registry for node in self._model.nodes])
        states = ", ".join(f"{count} {state}" for (_, state), count in sorted(counts.items(), reverse=True))
        left = Text(f"{noun}: {states}", "bold")
        right = Text(f"every {self._model.interval_s:g} s")
        if self._model.registry_problem:
            right = sanitized_text(self._model.registry_problem, ERROR.style).append(f"  {right.plain}", "not bold")
        if self._page.filter:
            right = Text(f"filter: {sanitize(self._page.filter)}", "bold").append(f"  {right.plain}", "not bold")
        return self._justify(left, right)

    def header(self) -> Text:
        columns = self._columns
        span = f"LAST {format_narrow_duration(columns.timeline * self._model.cell_s).replace('m00s', 'm')}"
        titles = ["HEALTH", "NAME", "VERSION", "UP", " SINCE", span, "URL"]
        return self._line(
            "", [(Text(title, HEADER_STYLE), width) for title, width in zip(titles, columns, strict=True)]
        )

    def details(self) -> Text:
        row = self._page.selected
        if row is None and len(self._model.nodes) != 1:
            return Text()
        node = self._model.nodes[0] if row is None else row.node
        service = None if row is None else row.service
        if row is None or service is None:
            return sanitized_text(_node_details(node), "dim")
        return sanitized_text(_service_details(service, reason_of(row)), "dim")

    def keys(self) -> Text:
        page = self._page
        last = page.first + len(page.rows)
        position = f"{page.first + 1}-{last} of {page.row_count}" if page.rows else "no rows"
        if page.is_typing:
            cursor = "_" if self._symbols.are_ascii else _CURSOR
            prompt = Text(f"/{sanitize(page.filter)}{cursor}", "bold").append("  Enter keep  Esc clear", "not bold dim")
            return self._justify(prompt, Text(position))
        keys = f"q quit  s sort: {page.sort.value}  / filter  Enter services  ? help"
        return self._justify(Text(keys, "dim"), Text(position))

    def help(self) -> list[Text]:
        symbols = self._symbols
        arrows = "Up Down" if symbols.are_ascii else "↑ ↓"
        keys = [
            ("q  Ctrl-C", "quit"),
            ("s", "sort: worst first, as given, by name, last change"),
            ("/", "filter nodes and services by name, address, version or state"),
            (f"{arrows}  j k", "select; PgUp PgDn: one page; Home End, g G: first and last row"),
            ("Enter", "show or hide the services, errors and deviations of a node"),
            ("Esc", "clear the filter, then the selection"),
        ]
        lines = [Text(f"  {key:12} {meaning}") for key, meaning in keys]
        legend = [
            ("Up, healthy", Severity.OK),
            ("Initializing, partial", Severity.WARNING),
            ("Down, unhealthy", Severity.CRITICAL),
            ("not reported", Severity.NOT_REPORTED),
            ("no valid response", Severity.ERROR),
        ]
        lines.append(Text())
        lines += [
            Text("  ").append_text(self._bar(severity, 5)).append(f"        {label}") for label, severity in legend
        ]
        span = f"{self._model.cell_s:g} s"
        return [
            *lines,
            Text(),
            Text(f"  Each bar shows the worst state within {span}; the newest is on the right."),
            Text("  * changed recently      >12s no change since the watch began"),
            Text(),
            Text("  Press any key to return.", "dim"),
        ]

    # ---- rows

    def body(self) -> list[Text]:
        return [self._row(row) for row in self._page.rows]

    def _row(self, row: Row) -> Text:
        is_selected = self._page.selected is not None and row.key == self._page.selected.key
        if row.note is not None:
            line = Text(" " * NOTE_INDENT + row.note, "dim")
            return Text(">").append_text(line[1:]) if is_selected else line
        line = self._node(row.node) if row.service is None else self._service(row.service, reason_of(row))
        if is_selected:
            line = Text(">").append_text(line[1:])
            line.stylize("bold")
        return line

    def _node(self, node: WatchedNode) -> Text:
        columns, now_s = self._columns, self._now_s
        identity = node.identity
        is_changed = node.tracker is not None and is_recently_changed(node.tracker.changed_s, now_s)
        is_service_changed = is_recently_changed(node.services_changed_s, now_s)
        is_identity_changed = is_recently_changed(node.identity_changed_s, now_s)
        state = (
            self._symbols.with_symbol(NEUTRAL, state_text(node))
            if node.snapshot is None
            else health_cell(node.snapshot, self._symbols)
        )
        name = sanitized_text(display_name(node), "" if identity else "dim")
        cells = [
            (_highlight_changed(state, is_changed), columns.state),
            (_highlight_changed(name, is_identity_changed), columns.name),
        ]
        if note := self._problem(node):
            cells.append((note, columns.message))
        else:
            version = sanitized_text(identity.node_version if identity else "-")
            cells.append((_highlight_changed(version, is_identity_changed), columns.version))
            cells.append((_highlight_changed(Text(_up_count(node)), is_service_changed), columns.up))
        cells += self._time_cells(node.tracker, is_changed=is_changed)
        cells.append((sanitized_text(node.url, "dim"), columns.url))
        return self._line("*" if is_changed or is_service_changed or is_identity_changed else "", cells)

    def _problem(self, node: WatchedNode) -> Text | None:
        waited_s = node.waiting_s(self._now_s, self._model.wait_notice_s)
        if waited_s is not None:
            return Text(f"waiting for {format_narrow_duration(waited_s)}", "yellow")
        if node.snapshot is not None and node.snapshot.errors:
            return sanitized_text(error_text(node), ERROR.style)
        return None

    def _service(self, watched: WatchedService, reason: str) -> Text:
        """The reason, if it is known, is in the last column, or instead of the name if there is no such column."""
        columns, service = self._columns, watched.service
        is_changed = is_recently_changed(watched.tracker.changed_s, self._now_s)
        status = watched.status
        if isinstance(status, UnreachableStatus):
            state = self._symbols.with_symbol(ERROR, status.value)
        else:
            state = status_cell(status, self._symbols)
        cells = [
            (Text("  ").append_text(_highlight_changed(state, is_changed)), columns.state),
            (sanitized_text(service.id), columns.name),
            (sanitized_text(service.name if columns.url else reason or service.name, "dim"), columns.message),
            *self._time_cells(watched.tracker, is_changed=is_changed),
            (sanitized_text(reason or service.description, "dim"), columns.url),
        ]
        return self._line("*" if is_changed else "", cells)

    def _time_cells(self, tracker: StateTracker | None, *, is_changed: bool) -> list[tuple[Text, int]]:
        columns = self._columns
        if tracker is None:
            return [(Text(), columns.since), (Text(), columns.timeline)]
        since = f"{'>' if tracker.changed_s is None else ''}{format_narrow_duration(tracker.age_s(self._now_s))}"
        severities = tracker.timeline.last(columns.timeline, self._now_s)
        bars = Text.assemble(*(self._bar(severity, len(list(run))) for severity, run in groupby(severities)))
        return [
            (_highlight_changed(Text(f"{since:>{columns.since}}"), is_changed), columns.since),
            (bars, columns.timeline),
        ]

    def _bar(self, severity: Severity, count: int) -> Text:
        bar = _BARS[severity]
        return Text(self._symbols.symbol(bar) * count, bar.style)

    # ---- cells and lines

    def _line(self, mark: str, cells: Iterable[tuple[Text, int]]) -> Text:
        line = Text().append(f"{mark:>{_MARK_WIDTH}}", "bold")
        for number, (cell, width) in enumerate(cell for cell in cells if cell[1]):
            line.append(" " * _GAP if number else "").append_text(self.fit(cell, width))
        return line

    def _justify(self, left: Text, right: Text) -> Text:
        """One text at each end of the line; only the left one is truncated."""
        left_width = self._width - right.cell_len - 2
        if left_width < 1:
            return left
        return self.fit(left, left_width).append("  ").append_text(right)

    def fit(self, text: Text, width: int) -> Text:
        """Truncated or padded to this width."""
        missing = width - text.cell_len
        if missing >= 0:
            return text.copy().append(" " * missing)
        fitting = set_cell_size(text.plain, max(0, width - 1))
        is_exact = text.plain.startswith(fitting)  # otherwise half of a wide character became a space
        count = len(fitting) if is_exact else len(fitting) - 1
        truncated = text[:count]
        truncated.append(self._symbols.ellipsis + " " * (len(fitting) - count), text.style)
        return truncated


def _highlight_changed(text: Text, is_changed: bool) -> Text:
    if is_changed:
        text.stylize(CHANGED_STYLE)
    return text


def _up_count(node: WatchedNode) -> str:
    if node.snapshot is None or node.snapshot.services is None:
        return "-"
    return f"{sum(service.severity is Severity.OK for service in node.services)}/{len(node.services)}"


def error_text(node: WatchedNode) -> str:
    """The first error, without the address of the node, which the row shows already."""
    if node.snapshot is None or not node.snapshot.errors:
        return ""
    error = node.snapshot.errors[0]
    path = error.url.removeprefix(node.url)
    return f"{error.problem}: {path}" if path else error.problem


def _node_details(node: WatchedNode) -> str:
    parts = [node.url]
    if node.snapshot is not None and node.snapshot.errors:
        parts.append(error_text(node))
    elif node.snapshot is not None and node.identity is not None:
        parts += [node.identity.node_name, node.identity.node_version, f"interface {node.identity.spec_version or '-'}"]
        parts.append(f"took {node.snapshot.duration_s * 1000:.0f} ms")
    return "  ".join(parts)


def _service_details(watched: WatchedService, reason: str) -> str:
    return "  ".join(filter(None, (watched.service.id, watched.service.name, reason or watched.service.description)))


def reason_of(row: Row) -> str:
    """Why a service is not Up; empty if the node does not say it here."""
    snapshot = row.node.snapshot
    if row.service is None or snapshot is None or row.service.severity is Severity.OK:
        return ""
    return reasons(snapshot.problems).get(row.service.service.id, "")

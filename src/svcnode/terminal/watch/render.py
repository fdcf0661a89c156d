"""How a page looks: as many lines as the terminal has, each as wide as it is. A colour never says what nothing else
says: every state has a symbol and a word, what has just changed a star, what is selected an arrow."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

from svcnode.terminal.render import (
    CRITICAL,
    ERROR,
    NEUTRAL,
    OK,
    WARNING,
    health_cell,
    sanitize,
    sanitized_text,
    status_cell,
)
from svcnode.terminal.watch.model import HISTORY_CELLS, Severity, UnknownStatus, is_recently_changed
from svcnode.terminal.watch.view import NOTE_INDENT, display_name, state_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.terminal.render import Symbols
    from svcnode.terminal.watch.model import StateTracker, WatchedNode, WatchedService, WatchModel
    from svcnode.terminal.watch.view import Page, Row

FIXED_LINES = 4  # summary and heads above; details and keys below
CHANGED_STYLE = "reverse"
HEADER_STYLE = "dim"
_CURSOR = "█"
_PENDING = -1  # stands after all findings in the summary


class _BarStyle(NamedTuple):
    symbol: str
    ascii_symbol: str
    style: str


_BARS = {
    Severity.NO_DATA: _BarStyle(" ", " ", ""),
    Severity.OK: _BarStyle("▇", "#", OK.style),
    Severity.WARNING: _BarStyle("▄", "=", WARNING.style),
    Severity.NOT_REPORTED: _BarStyle("?", "?", NEUTRAL.style),
    Severity.CRITICAL: _BarStyle("▁", "_", CRITICAL.style),
    Severity.ERROR: _BarStyle("!", "!", ERROR.style),
}


_MARK_WIDTH = 2
_GAP = 1
_MIN_UP_WIDTH = 7
_MIN_URL_WIDTH = 16


class Columns(NamedTuple):
    """How wide each is; where there is little room, the history goes first, and where there is much, it grows."""

    state: int
    name: int
    version: int
    up: int
    since: int
    history: int
    url: int

    @classmethod
    def for_width(cls, width: int, up: int = _MIN_UP_WIDTH) -> Columns:
        state, version, since = 16, 10, 6
        left = width - _MARK_WIDTH - state - version - up - since - 5 * _GAP  # for name, history and address
        spare = max(0, left - 34)
        name = max(8, min(left, 18 + min(8, spare // 4)))
        history = max(0, min(left - name, HISTORY_CELLS, 16 + spare // 4))
        url = left - name - history - _GAP
        if url < _MIN_URL_WIDTH:
            history, url = max(0, min(left - name, HISTORY_CELLS)), 0
        return cls(state, name, version, up, since, history, url)

    @property
    def message(self) -> int:
        """Where a reason stands instead of what could not be had, and the name of a service."""
        return self.version + _GAP + self.up


def render_page(page: Page, now_s: float, width: int, height: int, symbols: Symbols) -> list[Text]:
    pen = _Renderer(page, now_s, width, symbols)
    body = pen.help() if page.has_help else pen.body()
    room = max(0, height - FIXED_LINES)
    body = [*body[:room], *(Text() for _ in range(room - len(body)))]
    lines = [pen.summary(), pen.header(), *body, pen.details(), pen.keys()]
    return lines if height >= FIXED_LINES else lines[:height]


def format_age(seconds: float) -> str:
    """In at most five characters."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 36000:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 3600}h" if whole < 172800 else f"{whole // 86400}d"


class _Renderer:
    def __init__(self, page: Page, now_s: float, width: int, symbols: Symbols) -> None:
        self._page = page
        self._model: WatchModel = page.model
        self._now_s = now_s
        self._width = width
        self._symbols = symbols
        most_services = max((len(node.services) for node in self._model.nodes), default=0)
        self._columns = Columns.for_width(width, max(_MIN_UP_WIDTH, len(f"{most_services}/{most_services}")))

    # ---- the lines that do not move

    def summary(self) -> Text:
        counts = Counter(
            (_PENDING if n.snapshot is None else n.snapshot.overall_health, state_text(n)) for n in self._model.nodes
        )
        total = len(self._model.nodes)
        words = ", ".join(f"{count} {word}" for (_, word), count in sorted(counts.items(), reverse=True))
        left = Text(f"{total} node{'' if total == 1 else 's'}: {words}", "bold")
        right = Text(f"every {self._model.interval_s:g} s")
        if self._page.filter:
            right = Text(f"filter: {sanitize(self._page.filter)}", "bold").append(f"  {right.plain}", "not bold")
        return self._justify(left, right)

    def header(self) -> Text:
        columns = self._columns
        span = f"LAST {format_age(columns.history * self._model.cell_s).replace('m00s', 'm')}"
        words = ["HEALTH", "NAME", "VERSION", "UP", " SINCE", span, "URL"]
        return self._line("", [(Text(word, HEADER_STYLE), width) for word, width in zip(words, columns, strict=True)])

    def details(self) -> Text:
        row = self._page.selected
        if row is None and len(self._model.nodes) != 1:
            return Text()
        node = self._model.nodes[0] if row is None else row.node
        service = None if row is None else row.service
        return self._truncate(
            sanitized_text(_node_details(node) if service is None else _service_details(service), "dim")
        )

    def keys(self) -> Text:
        page = self._page
        last = page.first + len(page.rows)
        place = "nothing to show" if not page.rows else f"{page.first + 1}-{last} of {page.row_count}"
        if page.is_typing:
            cursor = "_" if self._symbols.are_ascii else _CURSOR
            typed = Text(f"/{sanitize(page.filter)}{cursor}", "bold").append("  Enter keep  Esc clear", "not bold dim")
            return self._justify(typed, Text(place))
        words = f"q quit  s sort: {page.sort.value}  / filter  Enter services  ? help"
        return self._justify(Text(words, "dim"), Text(place))

    def help(self) -> list[Text]:
        symbols = self._symbols
        arrows = "Up Down" if symbols.are_ascii else "↑ ↓"
        keys = [
            ("q  Ctrl-C", "quit"),
            ("s", "sort: as given, worst first, by name, last change"),
            ("/", "filter nodes and services by name, address, version or state"),
            (f"{arrows}  j k", "select; PgUp PgDn a page; Home End, g G to the ends"),
            ("Enter", "show or hide the services of a node, and why it is as it is"),
            ("Esc", "drop the filter, then the selection"),
        ]
        lines = [Text(f"  {key:12} {meaning}") for key, meaning in keys]
        shown = [
            ("Up, healthy", Severity.OK),
            ("Initializing, partial", Severity.WARNING),
            ("Down, unhealthy", Severity.CRITICAL),
            ("not reported", Severity.NOT_REPORTED),
            ("no usable answer", Severity.ERROR),
        ]
        lines.append(Text())
        lines += [Text("  ").append_text(self._bar(level, 5)).append(f"        {word}") for word, level in shown]
        span = f"{self._model.cell_s:g} s"
        return [
            *(self._truncate(line) for line in lines),
            Text(),
            self._truncate(Text(f"  Each bar is the worst of {span}, the newest on the right.")),
            self._truncate(Text("  * has just changed      >12s longer than that: no change was seen yet")),
            Text(),
            self._truncate(Text("  Any key goes back.", "dim")),
        ]

    # ---- the rows

    def body(self) -> list[Text]:
        return [self._row(row) for row in self._page.rows]

    def _row(self, row: Row) -> Text:
        is_selected = self._page.selected is not None and row.key == self._page.selected.key
        if row.note is not None:
            line = self._truncate(Text(" " * NOTE_INDENT + row.note, "dim"))
            return Text(">").append_text(line[1:]) if is_selected else line
        line = self._node(row.node) if row.service is None else self._service(row.service)
        if is_selected:
            line = Text(">").append_text(line[1:])
            line.stylize("bold")
        return line

    def _node(self, node: WatchedNode) -> Text:
        columns, now_s = self._columns, self._now_s
        who = node.identity
        is_changed = node.tracker is not None and node.tracker.is_recently_changed(now_s)
        is_moved, is_renamed = (
            is_recently_changed(node.services_changed_s, now_s),
            is_recently_changed(node.identity_changed_s, now_s),
        )
        state = (
            self._symbols.with_symbol(NEUTRAL, "asking")
            if node.snapshot is None
            else health_cell(node.snapshot, self._symbols)
        )
        cells = [
            (_highlight_changed(state, is_changed), columns.state),
            (_highlight_changed(sanitized_text(display_name(node), "" if who else "dim"), is_renamed), columns.name),
        ]
        if note := self._problem(node):
            cells.append((note, columns.message))
        else:
            version = sanitized_text(who.node_version if who else "-")
            cells.append((_highlight_changed(version, is_renamed), columns.version))
            cells.append((_highlight_changed(Text(_up_count(node)), is_moved), columns.up))
        cells += self._time_cells(node.tracker, is_changed=is_changed)
        cells.append((sanitized_text(node.url, "dim"), columns.url))
        return self._line("*" if is_changed or is_moved or is_renamed else "", cells)

    def _problem(self, node: WatchedNode) -> Text | None:
        waited_s = node.waiting_s(self._now_s, self._model.wait_notice_s)
        if waited_s is not None:
            return Text(f"waiting for {format_age(waited_s)}", "yellow")
        if node.snapshot is not None and node.snapshot.errors:
            return sanitized_text(error_text(node), ERROR.style)
        return None

    def _service(self, seen: WatchedService) -> Text:
        columns = self._columns
        is_changed = seen.tracker.is_recently_changed(self._now_s)
        status = seen.status
        if isinstance(status, UnknownStatus):
            state = self._symbols.with_symbol(ERROR, status.value)
        else:
            state = status_cell(status, self._symbols)
        cells = [
            (Text("  ").append_text(_highlight_changed(state, is_changed)), columns.state),
            (sanitized_text(seen.service.id), columns.name),
            (sanitized_text(seen.service.name, "dim"), columns.message),
            *self._time_cells(seen.tracker, is_changed=is_changed),
            (sanitized_text(seen.service.description, "dim"), columns.url),
        ]
        return self._line("*" if is_changed else "", cells)

    def _time_cells(self, track: StateTracker | None, *, is_changed: bool) -> list[tuple[Text, int]]:
        columns = self._columns
        if track is None:
            return [(Text(), columns.since), (Text(), columns.history)]
        since = (
            format_age(track.age_s(self._now_s))
            if track.changed_s is not None
            else f">{format_age(track.age_s(self._now_s))}"
        )
        levels = track.history.last(columns.history, self._now_s)
        bars = Text.assemble(*(self._bar(level, len(list(run))) for level, run in groupby(levels)))
        return [
            (_highlight_changed(Text(f"{since:>{columns.since}}"), is_changed), columns.since),
            (bars, columns.history),
        ]

    def _bar(self, level: Severity, count: int) -> Text:
        bar = _BARS[level]
        return Text((bar.ascii_symbol if self._symbols.are_ascii else bar.symbol) * count, bar.style)

    # ---- cells and lines

    def _line(self, mark: str, cells: Iterable[tuple[Text, int]]) -> Text:
        line = Text().append(f"{mark:>{_MARK_WIDTH}}", "bold")
        for number, (cell, width) in enumerate(cell for cell in cells if cell[1]):
            line.append(" " * _GAP if number else "").append_text(self._fit(cell, width))
        return self._truncate(line)

    def _justify(self, left: Text, right: Text) -> Text:
        """One at each end of the line; what stands on the right is not cut as long as there is room for it alone."""
        room = self._width - right.cell_len - 2
        if room < 1:
            return self._truncate(left)
        return self._fit(left, room).append("  ").append_text(right)

    def _truncate(self, text: Text) -> Text:
        return text if text.cell_len <= self._width else self._fit(text, self._width)

    def _fit(self, text: Text, width: int) -> Text:
        """Exactly so wide."""
        missing = width - text.cell_len
        if missing >= 0:
            return text.copy().append(" " * missing)
        kept = set_cell_size(text.plain, max(0, width - 1))
        whole = len(kept) if text.plain.startswith(kept) else len(kept) - 1  # half of a wide character became a space
        cut = text[:whole]
        cut.append(self._symbols.ellipsis + " " * (len(kept) - whole), text.style)
        return cut


def _highlight_changed(text: Text, is_changed: bool) -> Text:
    if is_changed:
        text.stylize(CHANGED_STYLE)
    return text


def _up_count(node: WatchedNode) -> str:
    if node.snapshot is None or node.snapshot.services is None:
        return "-"
    return f"{sum(seen.severity is Severity.OK for seen in node.services)}/{len(node.services)}"


def error_text(node: WatchedNode) -> str:
    """Why it is unknown, without the address, which the row has already."""
    if node.snapshot is None or not node.snapshot.errors:
        return ""
    text = str(node.snapshot.errors[0])
    return (
        text.removeprefix(f"cannot reach {node.url}: ")
        .replace(f" from {node.url}/", " from /")
        .replace(f" from {node.url}", "")
        .replace(f" at {node.url}", " at ")
    )


def _node_details(node: WatchedNode) -> str:
    parts = [node.url]
    if node.snapshot is not None and node.snapshot.errors:
        parts.append(error_text(node))
    elif node.snapshot is not None and node.identity is not None:
        parts += [node.identity.node_name, node.identity.node_version, f"interface {node.identity.spec_version or '-'}"]
        parts.append(f"answered in {node.snapshot.duration_s * 1000:.0f} ms")
    return "  ".join(parts)


def _service_details(seen: WatchedService) -> str:
    return "  ".join(filter(None, (seen.service.id, seen.service.name, seen.service.description)))

"""Which rows are shown: order, filter, expanded nodes, selection, scrolling; and the effect of keys."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.cli.terminal.problems import down_text, in_order
from svcnode.cli.terminal.render import health_text, status_text
from svcnode.cli.terminal.watch.keys import Key
from svcnode.core.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.cli.terminal.watch.model import ServiceKey, WatchedNode, WatchedService, WatchModel

NOTE_INDENT = 4
_MIN_NOTE_WIDTH = 20


class SortOrder(Enum):
    """The value is the label on the screen."""

    WORST = "worst first"
    GIVEN = "as given"
    NAME = "by name"
    CHANGE = "last change"


class RowKey(NamedTuple):
    """Identifies a row while other rows appear, disappear and move."""

    node: int
    part: ServiceKey | int | None = None  # a service, the number of a note, or None for the node


class Row(NamedTuple):
    key: RowKey
    node: WatchedNode
    service: WatchedService | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that is needed to draw one frame."""

    model: WatchModel
    rows: Sequence[Row]  # the visible ones
    first: int  # the index of the first visible row
    row_count: int
    selected: Row | None
    sort: SortOrder
    filter: str
    is_typing: bool
    has_help: bool


class WatchView:
    def __init__(self, model: WatchModel) -> None:
        self._model = model
        self._sort = SortOrder.WORST
        self._filter = ""
        self._is_typing = False
        self._has_help = False
        self._expanded = {0} if len(model.nodes) == 1 else set()
        self._selected: RowKey | None = None
        self._selected_before_filter: RowKey | None = None  # selected again when the filter no longer hides it
        self._selected_index = 0  # of the selected row in the last frame
        self._top = 0
        self._height = 1
        self._just_expanded = False
        self.is_quit = False

    # ---- rows

    def page(self, width: int, height: int) -> Page:
        """The rows that fit; the selected row is one of them."""
        rows = self._rows(width)
        self._height = max(1, height)
        self._update_scroll(rows)
        return Page(
            model=self._model,
            rows=rows[self._top : self._top + self._height],
            first=self._top,
            row_count=len(rows),
            selected=rows[self._selected_index] if self._selected is not None else None,
            sort=self._sort,
            filter=self._filter,
            is_typing=self._is_typing,
            has_help=self._has_help,
        )

    def _update_scroll(self, rows: Sequence[Row]) -> None:
        target = self._selected_before_filter or self._selected
        if target is not None:
            indexes = {row.key: index for index, row in enumerate(rows)}
            nearest = (
                indexes.get(RowKey(target.node), self._selected_index)
                if self._selected_before_filter
                else self._selected_index
            )
            self._select(rows, indexes.get(target, nearest))
        if not self._filter:
            self._selected_before_filter = None
        if self._selected is not None:
            last = self._last_row_of_node(rows) if self._just_expanded else self._selected_index
            self._top = min(max(self._top, last - self._height + 1), self._selected_index)
        self._top = max(0, min(self._top, len(rows) - self._height))

    def _last_row_of_node(self, rows: Sequence[Row]) -> int:
        """The last row of the node that was just expanded: all of its rows should be visible."""
        node = rows[self._selected_index].node
        return self._selected_index + sum(row.node is node for row in rows[self._selected_index + 1 :])

    def _select(self, rows: Sequence[Row], index: int) -> None:
        self._selected_index = max(0, min(index, len(rows) - 1))
        self._selected = rows[self._selected_index].key if rows else None

    def _rows(self, width: int) -> list[Row]:
        nodes = sorted(self._model.nodes, key=_NODE_SORT_KEYS[self._sort])
        return [row for node in nodes for row in self._node_rows(node, width)]

    def _node_rows(self, node: WatchedNode, width: int) -> Iterator[Row]:
        text = self._filter.casefold()
        is_expanded = node.number in self._expanded
        if text in _node_search_text(node):
            listed = list(node.services) if is_expanded else []
        else:
            listed = [service for service in node.services if text in _service_search_text(service)]
            if not listed:
                return
        yield Row(RowKey(node.number), node)
        notes = _note_lines(node, width) if is_expanded else () if listed else _down_lines(node)
        for number, note in enumerate(notes):
            yield Row(RowKey(node.number, number), node, note=note)
        for service in self._sorted(node, listed):
            yield Row(RowKey(node.number, service.key), node, service)

    def _sorted(self, node: WatchedNode, services: Sequence[WatchedService]) -> list[WatchedService]:
        if self._sort is not SortOrder.WORST:
            return sorted(services, key=_SERVICE_SORT_KEYS[self._sort])
        problems = None if node.snapshot is None else node.snapshot.problems
        places = {id(one): place for place, one in enumerate(in_order([one.service for one in services], problems))}
        return sorted(services, key=lambda one: places[id(one.service)])

    # ---- keys

    def press(self, key: Key | str, width: int) -> None:
        self._just_expanded = False
        if self._has_help:
            self._has_help = False
            self.is_quit = key == "q"
        elif self._is_typing and self._edit_filter(key):
            pass
        elif isinstance(key, Key) or key in _MOVES:
            self._press_named(key, width)
        else:
            self._press_letter(key)

    def _edit_filter(self, key: Key | str) -> bool:
        self._selected_before_filter = self._selected_before_filter or self._selected
        match key:
            case Key.ENTER:
                self._is_typing = False
            case Key.BACKSPACE:
                self._is_typing = bool(self._filter)
                self._filter = self._filter[:-1]
            case str():
                self._filter += key
            case _:
                return False
        return True

    def _press_letter(self, key: str) -> None:
        match key:
            case "q":
                self.is_quit = True
            case "s":
                sorts = list(SortOrder)
                self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
                self._top = 0
            case "/":
                self._is_typing = True
            case "?":
                self._has_help = True
            case _:
                pass

    def _press_named(self, key: Key | str, width: int) -> None:
        if key is Key.ESCAPE:
            self._escape()
            return
        rows = self._rows(width)
        self._update_scroll(rows)
        self._selected_before_filter = None
        if key is Key.ENTER:
            self._toggle_expanded(rows)
        elif move := _MOVES.get(key):
            if self._selected is None:
                self._move_without_selection(rows, key, move)
            else:
                self._select(rows, move(self._selected_index, self._height, len(rows)))

    def _move_without_selection(
        self, rows: Sequence[Row], key: Key | str, move: Callable[[int, int, int], int]
    ) -> None:
        """The first arrow key selects the top row; Page Up and Page Down scroll at once."""
        is_step = key in (Key.UP, Key.DOWN, "j", "k")
        self._select(rows, self._top if is_step else move(self._top, self._height, len(rows)))

    def _escape(self) -> None:
        """Clears the filter, or else the selection."""
        if self._is_typing or self._filter:
            self._selected_before_filter = self._selected_before_filter or self._selected
            self._is_typing, self._filter = False, ""
        else:
            self._selected, self._top = None, 0

    def _toggle_expanded(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._selected is None:
            self._select(rows, self._top)
        node = rows[self._selected_index].node.number
        self._expanded ^= {node}
        self._selected = RowKey(node)
        self._just_expanded = node in self._expanded


_MOVES: dict[Key | str, Callable[[int, int, int], int]] = {
    Key.UP: lambda index, _height, _count: index - 1,
    Key.DOWN: lambda index, _height, _count: index + 1,
    Key.PAGE_UP: lambda index, height, _count: index - height,
    Key.PAGE_DOWN: lambda index, height, _count: index + height,
    Key.HOME: lambda _index, _height, _count: 0,
    Key.END: lambda _index, _height, count: count - 1,
}
_MOVES |= {
    "k": _MOVES[Key.UP],
    "j": _MOVES[Key.DOWN],
    "g": _MOVES[Key.HOME],
    "G": _MOVES[Key.END],
}


# ---- order


_NODE_SORT_KEYS: dict[SortOrder, Callable[[WatchedNode], Any]] = {
    SortOrder.GIVEN: lambda node: node.number,
    SortOrder.WORST: lambda node: (1, 0) if node.snapshot is None else node.snapshot.trouble,  # without one: last
    SortOrder.NAME: lambda node: display_name(node).casefold(),
    SortOrder.CHANGE: lambda node: _recency(node.changed_s),
}
_SERVICE_SORT_KEYS: dict[SortOrder, Callable[[WatchedService], float | str]] = {
    SortOrder.GIVEN: lambda _: 0,
    SortOrder.NAME: lambda service: service.service.id.casefold(),
    SortOrder.CHANGE: lambda service: _recency(service.tracker.changed_s),
}


def _recency(changed_s: float | None) -> float:
    return float("inf") if changed_s is None else -changed_s


# ---- texts that the filter searches, and notes


def display_name(node: WatchedNode) -> str:
    """The name of the node; its address if the name is not known yet."""
    if node.identity is not None:
        return node.identity.node_name
    return (node.snapshot.node_name if node.snapshot is not None else "") or node.url.partition("://")[2]


def state_text(node: WatchedNode) -> str:
    return "pending" if node.snapshot is None else health_text(node.snapshot)


def _node_search_text(node: WatchedNode) -> str:
    version = node.identity.node_version if node.identity is not None else ""
    return "\n".join((display_name(node), node.url, version, state_text(node))).casefold()


def _service_search_text(watched: WatchedService) -> str:
    return "\n".join((watched.service.id, watched.service.name, status_text(watched.status))).casefold()


def _down_lines(node: WatchedNode) -> Iterator[str]:
    """Of a node whose services are not listed: which of them are Down."""
    if node.snapshot is None or not (text := down_text(node.snapshot.services or (), node.snapshot.problems)):
        return
    yield sanitize(text)


def _note_lines(node: WatchedNode, width: int) -> Iterator[str]:
    if node.snapshot is None:
        return
    sentences = [
        *map(str, node.snapshot.shown_errors),
        *(f"remark: {sentence}" for sentence in node.snapshot.remarks),
        *(f"deviation: {sentence}" for sentence in node.snapshot.deviations),
    ]
    width = max(_MIN_NOTE_WIDTH, width - NOTE_INDENT)
    for sentence in sentences:
        yield from textwrap.wrap(sanitize(sentence), width, subsequent_indent="  ", break_on_hyphens=False)

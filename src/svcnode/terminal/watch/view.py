"""Which part of what was seen is shown: the order, the filter, what is open, what is selected, and what keys do."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.terminal.drawing import clean, finding_word, status_word
from svcnode.terminal.watch.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.terminal.watch.seen import NodeSeen, ServiceKey, ServiceSeen, Watch

NOTE_INDENT = 4
_MIN_NOTE_WIDTH = 20


class Sort(Enum):
    """The value is how people are told."""

    GIVEN = "as given"
    WORST = "worst first"
    NAME = "by name"
    CHANGE = "last change"


class RowKey(NamedTuple):
    """What stays selected while rows come, go and change places."""

    node: int
    part: ServiceKey | int | None = None  # a service, the line of a remark, or the node itself


class Row(NamedTuple):
    key: RowKey
    node: NodeSeen
    service: ServiceSeen | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that is needed to draw, and nothing that moves."""

    watch: Watch
    rows: Sequence[Row]  # those that can be seen
    first: int  # the place of the first of them
    row_count: int
    selected: Row | None
    sort: Sort
    filter: str
    is_typing: bool
    has_help: bool


class View:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._sort = Sort.GIVEN
        self._filter = ""
        self._is_typing = False
        self._has_help = False
        self._open = {0} if len(watch.nodes) == 1 else set()
        self._selected: RowKey | None = None
        self._kept: RowKey | None = None  # was selected when the filter last changed; it may hide it for a while
        self._place = 0  # of what is selected, when it was last seen
        self._top = 0
        self._height = 1
        self._is_opening = False
        self.is_over = False

    # ---- what is shown

    def page(self, width: int, height: int) -> Page:
        """As many rows as there is room for; what is selected is among them."""
        rows = self._rows(width)
        self._height = max(1, height)
        self._follow(rows)
        return Page(
            watch=self._watch,
            rows=rows[self._top : self._top + self._height],
            first=self._top,
            row_count=len(rows),
            selected=rows[self._place] if self._selected is not None else None,
            sort=self._sort,
            filter=self._filter,
            is_typing=self._is_typing,
            has_help=self._has_help,
        )

    def _follow(self, rows: Sequence[Row]) -> None:
        wanted = self._kept or self._selected
        if wanted is not None:
            places = {row.key: place for place, row in enumerate(rows)}
            nearest = places.get(RowKey(wanted.node), self._place) if self._kept else self._place
            self._select(rows, places.get(wanted, nearest))
        if not self._filter:
            self._kept = None
        if self._selected is not None:
            last = self._last_of_node(rows) if self._is_opening else self._place
            self._top = min(max(self._top, last - self._height + 1), self._place)
        self._top = max(0, min(self._top, len(rows) - self._height))

    def _last_of_node(self, rows: Sequence[Row]) -> int:
        """Of the node that was just opened: what was asked for should be in sight."""
        node = rows[self._place].node
        return self._place + sum(row.node is node for row in rows[self._place + 1 :])

    def _select(self, rows: Sequence[Row], place: int) -> None:
        self._place = max(0, min(place, len(rows) - 1))
        self._selected = rows[self._place].key if rows else None

    def _rows(self, width: int) -> list[Row]:
        return [row for node in _sorted(self._watch.nodes, self._sort) for row in self._rows_of(node, width)]

    def _rows_of(self, node: NodeSeen, width: int) -> Iterator[Row]:
        text = self._filter.casefold()
        is_open = node.number in self._open
        if text in _text_of_node(node):
            listed = list(node.services) if is_open else []
        else:
            listed = [service for service in node.services if text in _text_of_service(service)]
            if not listed:
                return
        yield Row(RowKey(node.number), node)
        if is_open:
            for number, note in enumerate(_notes(node, width)):
                yield Row(RowKey(node.number, number), node, note=note)
        for service in _sorted_services(listed, self._sort):
            yield Row(RowKey(node.number, service.key), node, service)

    # ---- what keys do

    def press(self, key: Key | str, width: int) -> None:
        self._is_opening = False
        if self._has_help:
            self._has_help = False
            self.is_over = key == "q"
        elif self._is_typing and self._type(key):
            pass
        elif isinstance(key, Key) or key in _MOVES:
            self._press_named(key, width)
        else:
            self._press_letter(key)

    def _type(self, key: Key | str) -> bool:
        self._kept = self._kept or self._selected
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
                self.is_over = True
            case "s":
                sorts = list(Sort)
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
            self._back()
            return
        rows = self._rows(width)
        self._follow(rows)
        self._kept = None
        if key is Key.ENTER:
            self._open_or_close(rows)
        elif move := _MOVES.get(key):
            if self._selected is None:
                self._move_unselected(rows, key, move)
            else:
                self._select(rows, move(self._place, self._height, len(rows)))

    def _move_unselected(self, rows: Sequence[Row], key: Key | str, move: Callable[[int, int, int], int]) -> None:
        """The first press of an arrow selects what is in sight; a page is turned at once."""
        is_step = key in (Key.UP, Key.DOWN, "j", "k")
        self._select(rows, self._top if is_step else move(self._top, self._height, len(rows)))

    def _back(self) -> None:
        """First out of the filter, then out of the selection."""
        if self._is_typing or self._filter:
            self._kept = self._kept or self._selected
            self._is_typing, self._filter = False, ""
        else:
            self._selected, self._top = None, 0

    def _open_or_close(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._selected is None:
            self._select(rows, self._top)
        node = rows[self._place].node.number
        self._open ^= {node}
        self._selected = RowKey(node)
        self._is_opening = node in self._open


_MOVES: dict[Key | str, Callable[[int, int, int], int]] = {
    Key.UP: lambda place, _height, _count: place - 1,
    Key.DOWN: lambda place, _height, _count: place + 1,
    Key.PAGE_UP: lambda place, height, _count: place - height,
    Key.PAGE_DOWN: lambda place, height, _count: place + height,
    Key.HOME: lambda _place, _height, _count: 0,
    Key.END: lambda _place, _height, count: count - 1,
}
_MOVES |= {
    "k": _MOVES[Key.UP],
    "j": _MOVES[Key.DOWN],
    "g": _MOVES[Key.HOME],
    "G": _MOVES[Key.END],
}


# ---- the order


def _sorted(nodes: Sequence[NodeSeen], sort: Sort) -> Sequence[NodeSeen]:
    match sort:
        case Sort.GIVEN:
            return nodes
        case Sort.WORST:  # those that were not heard of yet are not bad yet
            return sorted(nodes, key=lambda node: -1 if node.look is None else node.look.finding, reverse=True)
        case Sort.NAME:
            return sorted(nodes, key=lambda node: name_of(node).casefold())
        case Sort.CHANGE:
            return sorted(nodes, key=lambda node: _recency(node.changed_s))


def _sorted_services(services: Sequence[ServiceSeen], sort: Sort) -> Sequence[ServiceSeen]:
    match sort:
        case Sort.GIVEN:
            return services
        case Sort.WORST:
            return sorted(services, key=lambda seen: seen.level, reverse=True)
        case Sort.NAME:
            return sorted(services, key=lambda seen: seen.service.id.casefold())
        case Sort.CHANGE:
            return sorted(services, key=lambda seen: _recency(seen.track.changed_s))


def _recency(changed_s: float | None) -> float:
    return float("inf") if changed_s is None else -changed_s


# ---- the words that are searched, and shown


def name_of(node: NodeSeen) -> str:
    """Until it has told its name, its address has to do."""
    return node.identity.node_name if node.identity is not None else node.url.partition("://")[2]


def word_of(node: NodeSeen) -> str:
    return "asking" if node.look is None else finding_word(node.look)


def _text_of_node(node: NodeSeen) -> str:
    version = node.identity.node_version if node.identity is not None else ""
    return "\n".join((name_of(node), node.url, version, word_of(node))).casefold()


def _text_of_service(seen: ServiceSeen) -> str:
    return "\n".join((seen.service.id, seen.service.name, status_word(seen.status))).casefold()


def _notes(node: NodeSeen, width: int) -> Iterator[str]:
    if node.look is None:
        return
    sentences = [
        *map(str, node.look.reasons),
        *(f"remark: {sentence}" for sentence in node.look.remarks),
        *(f"tolerated: {sentence}" for sentence in node.look.tolerated),
    ]
    width = max(_MIN_NOTE_WIDTH, width - NOTE_INDENT)
    for sentence in sentences:
        yield from textwrap.wrap(clean(sentence), width, subsequent_indent="  ", break_on_hyphens=False)

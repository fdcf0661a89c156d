"""Which rows are shown, in which order, and what keys do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import UnexpectedResponseError, UnreachableError
from svcnode.terminal.snapshot import NodeSnapshot
from svcnode.terminal.watch.keys import Key
from svcnode.terminal.watch.model import WatchModel
from svcnode.terminal.watch.view import SortOrder, WatchView

if TYPE_CHECKING:
    from svcnode.terminal.watch.view import Page, Row

WIDTH = 80


def look(name: str, health: Health = Health.HEALTHY, **statuses: Status | None) -> NodeSnapshot:
    return NodeSnapshot(
        url=f"http://{name}:1",
        identity=Identity(node_name=name, spec_version="v0.0.1", node_version="v1.4.2"),
        health=health,
        services=tuple(
            BackingService(id=key, name=key.title(), description="", status=status) for key, status in statuses.items()
        ),
    )


def lost(name: str, *reasons: str) -> NodeSnapshot:
    return NodeSnapshot(url=f"http://{name}:1", errors=tuple(map(UnreachableError, reasons or ("gone",))))


class Shown:
    """A view of nodes, and what can be seen through it."""

    def __init__(self, *looks: NodeSnapshot, height: int = 20) -> None:
        self.watch = WatchModel([one.url for one in looks], 2.0)
        self.view = WatchView(self.watch)
        self.height = height
        self.now_s = 0.0
        for number, one in enumerate(looks):
            self.watch.update(number, one, 0.0)
        self.view.page(WIDTH, height)

    @property
    def page(self) -> Page:
        return self.view.page(WIDTH, self.height)

    @property
    def names(self) -> list[str]:
        return list(map(_name, self.page.rows))

    @property
    def selected(self) -> str | None:
        return None if (row := self.page.selected) is None else _name(row)

    def see(self, number: int, one: NodeSnapshot) -> None:
        self.now_s += 10
        self.watch.update(number, one, self.now_s)

    def press(self, *keys: Key | str) -> list[str]:
        for key in keys:
            self.view.press(key, WIDTH)
        return self.names

    def type(self, text: str) -> list[str]:
        return self.press(*text)


def _name(row: Row) -> str:
    if row.note is not None:
        return f"# {row.note}"
    if row.service is not None:
        return f"- {row.service.service.id}"
    return row.node.url.removeprefix("http://").removesuffix(":1")


def three() -> Shown:
    return Shown(
        look("b", Health.PARTIAL, db=Status.UP, indexer=Status.DOWN),
        look("C", db=Status.UP),
        lost("a"),
    )


def many(count: int = 200, height: int = 20) -> Shown:
    return Shown(*(look(f"n{number}", db=Status.UP) for number in range(count)), height=height)


# ---- opening


def test_many_nodes_are_closed_and_one_alone_is_open() -> None:
    assert three().names == ["b", "C", "a"]
    assert Shown(look("a", db=Status.UP, cache=Status.UP)).names == ["a", "- db", "- cache"]


def test_enter_opens_what_is_selected_and_closes_it_again() -> None:
    shown = three()
    assert shown.press(Key.DOWN, Key.ENTER) == ["b", "- db", "- indexer", "C", "a"]
    assert shown.selected == "b"
    assert shown.press(Key.ENTER) == ["b", "C", "a"]


def test_enter_on_a_service_closes_its_node() -> None:
    shown = three()
    shown.press(Key.ENTER, Key.DOWN, Key.DOWN)
    assert shown.selected == "- indexer"
    assert shown.press(Key.ENTER) == ["b", "C", "a"]
    assert shown.selected == "b"


def test_an_open_node_says_why_and_what_was_tolerated_as_long_as_that_is() -> None:
    error = UnexpectedResponseError("word " * 20)
    one = NodeSnapshot(url="http://a:1", health=Health.HEALTHY, errors=(error, error), deviations=("a\x1bb",))
    names = Shown(one).names
    assert len(names) == 6
    assert all(len(name) <= WIDTH - 2 for name in names)
    assert names[-1] == "# deviations: a\\x1bb"


def test_an_open_node_that_says_200_beside_a_service_that_is_down_has_a_remark() -> None:
    remark = "# remark: it says 200 although 1 of its services is not Up"
    assert Shown(look("a", db=Status.DOWN)).names == ["a", remark, "- db"]
    assert Shown(look("a", Health.PARTIAL, db=Status.DOWN)).names == ["a", "- db"]


def test_where_nothing_could_be_had_one_reason_is_enough() -> None:
    assert Shown(lost("a", "gone", "gone too")).names == ["a", "# gone"]


def test_what_was_opened_at_the_lower_end_comes_into_sight() -> None:
    shown = Shown(*(look(f"n{n}", a=Status.UP, b=Status.UP) for n in range(9)), height=5)
    assert shown.press(Key.END, Key.ENTER) == ["n6", "n7", "n8", "- a", "- b"]
    small = Shown(*(look(f"n{n}", a=Status.UP, b=Status.UP, c=Status.UP) for n in range(9)), height=2)
    assert small.press(Key.END, Key.ENTER) == ["n8", "- a"]


# ---- order


def test_s_goes_through_the_orders() -> None:
    shown = three()
    orders = []
    for _ in SortOrder:
        shown.press("s")
        orders.append((shown.page.sort, shown.names))
    assert orders == [
        (SortOrder.WORST, ["a", "b", "C"]),
        (SortOrder.NAME, ["a", "b", "C"]),
        (SortOrder.CHANGE, ["b", "C", "a"]),
        (SortOrder.GIVEN, ["b", "C", "a"]),
    ]


def test_what_changed_last_is_first_and_what_did_not_change_stays_as_given() -> None:
    shown = three()
    shown.press("s", "s", "s")
    shown.see(2, look("a", db=Status.UP))
    assert shown.names == ["a", "b", "C"]
    shown.see(1, look("C", db=Status.DOWN))
    assert shown.names == ["C", "a", "b"]


def test_services_are_in_the_same_order() -> None:
    shown = Shown(look("a", Health.PARTIAL, y=Status.UP, x=Status.INITIALIZING, z=Status.DOWN))
    assert shown.names == ["a", "- y", "- x", "- z"]
    assert shown.press("s") == ["a", "- z", "- x", "- y"]
    assert shown.press("s") == ["a", "- x", "- y", "- z"]
    shown.see(0, look("a", Health.PARTIAL, y=Status.DOWN, x=Status.INITIALIZING, z=Status.DOWN))
    assert shown.press("s") == ["a", "- y", "- x", "- z"]


def test_who_was_not_heard_of_is_neither_worst_nor_nameless() -> None:
    watch = WatchModel(["http://b:1", "http://a:1"], 2.0)
    watch.update(0, look("b"), 0.0)
    view = WatchView(watch)
    view.press("s", WIDTH)
    assert [row.node.url for row in view.page(WIDTH, 9).rows] == ["http://b:1", "http://a:1"]
    view.press("s", WIDTH)
    assert [row.node.url for row in view.page(WIDTH, 9).rows] == ["http://a:1", "http://b:1"]


# ---- filter


def test_a_filter_finds_nodes_by_name_address_version_and_state() -> None:
    for text, found in {"c:": ["C"], "A:1": ["a"], "V1.4": ["b", "C"], "unreach": ["a"], "zzz": []}.items():
        assert three().type(f"/{text}") == found


def test_a_filter_finds_services_and_shows_them_below_their_node() -> None:
    assert three().type("/down") == ["b", "- indexer"]
    assert three().type("/db") == ["b", "- db", "C", "- db"]


def test_while_a_filter_is_typed_letters_are_no_commands() -> None:
    shown = three()
    shown.type("/qs?j")
    assert not shown.view.is_quit
    assert (shown.page.filter, shown.page.is_typing, shown.page.sort) == ("qs?j", True, SortOrder.GIVEN)


def test_enter_keeps_the_filter_and_escape_drops_it() -> None:
    shown = three()
    shown.type("/c:")
    assert shown.press(Key.ENTER) == ["C"]
    assert not shown.page.is_typing
    assert shown.press("s") == ["C"]
    assert shown.press(Key.ESCAPE) == ["a", "b", "C"]
    shown.type("/c:")
    assert shown.press(Key.ESCAPE) == ["a", "b", "C"]
    assert not shown.page.is_typing


def test_backspace_takes_a_letter_and_at_last_the_filter() -> None:
    shown = three()
    assert shown.press("/", "c", ":", "x", Key.BACKSPACE) == ["C"]
    shown.press(Key.BACKSPACE, Key.BACKSPACE)
    assert shown.page.is_typing
    shown.press(Key.BACKSPACE)
    assert not shown.page.is_typing


def test_arrows_move_while_a_filter_is_typed() -> None:
    shown = three()
    shown.press("/", "v", Key.DOWN, Key.DOWN)
    assert shown.selected == "C"


def test_nothing_that_is_shown_can_be_opened_or_selected_when_nothing_is_found() -> None:
    shown = three()
    shown.press(Key.DOWN)
    assert shown.type("/zzz") == []
    assert shown.press(Key.ENTER, Key.ENTER, Key.DOWN, Key.END, Key.PAGE_UP) == []
    assert shown.selected is None


def test_a_filter_that_hides_the_selected_service_does_not_select_another() -> None:
    shown = Shown(look("n", xq=Status.UP, q=Status.UP, z=Status.UP))

    def selected_after(*keys: Key | str) -> str | None:
        shown.press(*keys)
        return shown.selected

    assert selected_after(Key.END) == "- z"
    assert selected_after("/", "q") == "n", "its node"
    assert shown.names == ["n", "- xq", "- q"]
    assert selected_after(Key.BACKSPACE) == "- z"
    assert selected_after("z", "z") is None
    assert selected_after(Key.ESCAPE) == "- z"


def test_a_selected_service_stays_selected_while_a_filter_still_shows_it() -> None:
    shown = Shown(look("n", xq=Status.UP, z=Status.UP, q=Status.UP))
    shown.press(Key.END)
    assert shown.type("/q") == ["n", "- xq", "- q"]
    assert shown.selected == "- q"
    shown.press(Key.UP, Key.ESCAPE)
    assert shown.selected == "- xq", "it was moved meanwhile"


def test_a_service_that_only_a_filter_shows_leaves_the_selection_to_its_node() -> None:
    shown = Shown(look("a", x=Status.UP, y=Status.DOWN), look("b"), look("c"))
    shown.type("/down")
    shown.press(Key.DOWN, Key.DOWN)
    assert shown.selected == "- y"
    assert shown.press(Key.ESCAPE) == ["a", "b", "c"]
    assert shown.selected == "a"


# ---- moving


def test_nothing_is_selected_until_somebody_moves() -> None:
    assert many().selected is None
    shown = many()
    shown.press(Key.DOWN)
    assert shown.selected == "n0"
    shown.press("j", "j", "k")
    assert shown.selected == "n1"
    shown.press(Key.ESCAPE)
    assert shown.selected is None


def test_the_page_follows_the_selection() -> None:
    shown = many()
    assert shown.press(*[Key.DOWN] * 20)[-1] == "n19"
    assert shown.press(Key.DOWN) == [f"n{n}" for n in range(1, 21)]
    assert shown.press(*[Key.UP] * 19)[0] == "n1"
    assert shown.press(Key.UP)[0] == "n0"
    assert shown.press(Key.UP)[0] == "n0"


def test_pages_and_ends() -> None:
    shown = many()
    assert shown.press(Key.PAGE_DOWN)[-1] == "n20"
    assert shown.press(Key.PAGE_DOWN)[-1] == "n40"
    assert shown.press("G") == [f"n{n}" for n in range(180, 200)]
    assert shown.press(Key.PAGE_DOWN)[-1] == "n199"
    assert shown.press(Key.PAGE_UP)[0] == "n179"
    assert shown.press("g") == [f"n{n}" for n in range(20)]
    assert shown.selected == "n0"


def test_a_selection_stays_with_its_node_when_the_order_changes() -> None:
    shown = many()
    shown.press(Key.END, "s")
    assert shown.selected == "n199"
    assert "n199" in shown.names
    shown.see(199, lost("n199"))
    assert shown.names[0] == "n199"
    assert shown.selected == "n199"


def test_without_a_selection_the_page_stays_where_it_is() -> None:
    shown = many()
    shown.press("s")
    shown.see(150, lost("n150"))
    assert shown.names[:2] == ["n150", "n0"]


def test_a_selection_whose_row_is_gone_goes_to_the_one_in_its_place() -> None:
    shown = Shown(look("a", x=Status.UP, y=Status.UP), look("b"))
    shown.press(Key.ENTER, Key.DOWN)
    assert shown.selected == "- x"
    shown.see(0, look("a", y=Status.UP))
    assert shown.selected == "- y"


def test_a_terminal_that_grows_shows_more_and_one_that_shrinks_keeps_the_selection() -> None:
    shown = many()
    shown.press(Key.END)
    shown.height = 300
    assert len(shown.names) == 200
    shown.height = 3
    assert shown.names == ["n197", "n198", "n199"]
    shown.height = 0
    assert shown.names == ["n199"]


# ---- help, and the end


def test_any_key_leaves_the_help_and_does_no_more() -> None:
    shown = three()
    shown.press("?")
    helps = [shown.page.has_help]
    shown.press("s")
    assert [*helps, shown.page.has_help] == [True, False]
    assert shown.page.sort is SortOrder.GIVEN


def test_q_is_the_end_even_in_the_help() -> None:
    presses: list[list[Key | str]] = [["q"], ["?", "q"], ["/", "a", Key.ENTER, "q"]]
    for keys in presses:
        shown = three()
        shown.press(*keys[:-1])
        ends = [shown.view.is_quit]
        shown.press(keys[-1])
        assert [*ends, shown.view.is_quit] == [False, True]


def test_keys_without_a_meaning_do_nothing() -> None:
    shown = three()
    assert shown.press("x", "é", Key.BACKSPACE) == ["b", "C", "a"]
    assert shown.selected is None


def test_a_page_says_where_it_is() -> None:
    shown = many()
    shown.press(Key.END)
    page = shown.page
    assert (page.first, page.row_count, len(page.rows)) == (180, 200, 20)

"""Rows, order, filter, selection, and the effect of keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.cli.terminal.snapshot import NodeSnapshot
from svcnode.cli.terminal.watch.keys import Key
from svcnode.cli.terminal.watch.model import WatchModel
from svcnode.cli.terminal.watch.view import SortOrder, WatchView
from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import UnexpectedResponseError, UnreachableError

if TYPE_CHECKING:
    from svcnode.cli.terminal.watch.view import Page, Row

WIDTH = 80


def node(name: str, health: Health = Health.HEALTHY, **statuses: Status | None) -> NodeSnapshot:
    return NodeSnapshot(
        url=f"http://{name}:1",
        identity=Identity(node_name=name, spec_version="v0.0.1", node_version="v1.4.2"),
        health=health,
        services=tuple(
            BackingService(id=key, name=key.title(), description="", status=status) for key, status in statuses.items()
        ),
    )


def unreachable(name: str, *reasons: str) -> NodeSnapshot:
    return NodeSnapshot(url=f"http://{name}:1", errors=tuple(map(UnreachableError, reasons or ("gone",))))


class ViewHarness:
    """A view of nodes, and its rows as short names."""

    def __init__(self, *snapshots: NodeSnapshot, height: int = 20) -> None:
        self.model = WatchModel([snapshot.url for snapshot in snapshots], 2.0)
        self.view = WatchView(self.model)
        self.height = height
        self.now_s = 0.0
        for number, snapshot in enumerate(snapshots):
            self.model.nodes[number].update(snapshot, 0.0)
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

    def update(self, number: int, snapshot: NodeSnapshot) -> None:
        self.now_s += 10
        self.model.nodes[number].update(snapshot, self.now_s)

    def press(self, *keys: Key | str) -> list[str]:
        for key in keys:
            self.view.press(key, WIDTH)
        return self.names


def _name(row: Row) -> str:
    if row.note is not None:
        return f"# {row.note}"
    if row.service is not None:
        return f"- {row.service.service.id}"
    return row.node.url.removeprefix("http://").removesuffix(":1")


def three() -> ViewHarness:
    return ViewHarness(
        node("b", Health.PARTIAL, db=Status.UP, indexer=Status.DOWN), node("C", db=Status.UP), unreachable("a")
    )


def many(count: int = 200, height: int = 20) -> ViewHarness:
    return ViewHarness(*(node(f"n{number}", db=Status.UP) for number in range(count)), height=height)


def test_many_nodes_are_collapsed_and_enter_expands_the_selected_one() -> None:
    assert ViewHarness(node("a", db=Status.UP, cache=Status.UP)).names == ["a", "- db", "- cache"], "a single one"
    harness = three()
    collapsed = ["a", "b", "# 1 Down: indexer", "C"]
    assert harness.names == collapsed
    assert harness.press(Key.DOWN, Key.DOWN, Key.ENTER) == ["a", "b", "- indexer", "- db", "C"]
    assert harness.selected == "b"
    assert harness.press(Key.ENTER) == collapsed
    harness.press(Key.ENTER, Key.DOWN, Key.DOWN)
    assert harness.selected == "- db"
    assert harness.press(Key.ENTER) == collapsed, "on a service, enter collapses its node"
    assert harness.selected == "b"


def test_a_collapsed_node_names_its_services_that_are_down() -> None:
    statuses = dict.fromkeys("abcdefg", Status.DOWN) | {"h": Status.UP, "i": Status.INITIALIZING}
    harness = ViewHarness(node("n", Health.UNHEALTHY, **statuses), node("m"))
    assert harness.names == ["n", "# 7 Down: a, b, c, d, e and 2 more", "m"]


def test_nodes_are_ordered_by_trouble() -> None:
    one, two = {"x": Status.DOWN}, {"x": Status.DOWN, "y": Status.DOWN}
    harness = ViewHarness(
        node("green", x=Status.UP),
        node("206", Health.PARTIAL, **two),
        node("503", Health.UNHEALTHY, **one),
        node("worse", Health.UNHEALTHY, **two),
        unreachable("gone"),
    )
    assert [name for name in harness.names if "#" not in name] == ["gone", "worse", "503", "206", "green"]


def test_services_have_the_order_of_the_problems_if_the_node_says_it() -> None:
    first, second = ({"members": [{"id": name}], "effects": []} for name in ("x", "z"))
    problems = {"problems": [first, second | {"effects": [{"id": "a"}]}]}
    snapshot = node("n", Health.PARTIAL, up=Status.UP, y=Status.DOWN, a=Status.DOWN, z=Status.DOWN, x=Status.DOWN)
    assert ViewHarness(replace(snapshot, problems=problems)).names == ["n", "- x", "- z", "- a", "- y", "- up"]


def test_an_expanded_node_shows_deviations_and_errors_in_wrapped_lines_or_the_first_error_without_data() -> None:
    error = UnexpectedResponseError("word " * 20)
    snapshot = NodeSnapshot(url="http://a:1", health=Health.HEALTHY, errors=(error, error), deviations=("a\x1bb",))
    names = ViewHarness(snapshot).names
    assert len(names) == 6
    assert all(len(name) <= WIDTH - 2 for name in names)
    assert names[-1] == "# deviation: a\\x1bb"
    assert ViewHarness(unreachable("a", "gone", "gone too")).names == ["a", "# gone"]


def test_an_expanded_node_with_200_beside_a_down_service_has_a_remark() -> None:
    (first, remark, last) = ViewHarness(node("a", db=Status.DOWN)).names
    assert (first, remark.partition(":")[0], last) == ("a", "# remark", "- db")
    assert ViewHarness(node("a", Health.PARTIAL, db=Status.DOWN)).names == ["a", "- db"]


def test_expanding_the_last_node_scrolls_to_its_rows() -> None:
    harness = ViewHarness(*(node(f"n{n}", a=Status.UP, b=Status.UP) for n in range(9)), height=5)
    assert harness.press(Key.END, Key.ENTER) == ["n6", "n7", "n8", "- a", "- b"]
    small = ViewHarness(*(node(f"n{n}", a=Status.UP, b=Status.UP, c=Status.UP) for n in range(9)), height=2)
    assert small.press(Key.END, Key.ENTER) == ["n8", "- a"]


def test_s_selects_the_next_order_and_by_change_the_last_one_is_first() -> None:
    harness = three()
    orders = {}
    for _ in SortOrder:
        harness.press("s")
        orders[harness.page.sort] = [name for name in harness.names if "#" not in name]
    assert orders == {
        SortOrder.WORST: ["a", "b", "C"],
        SortOrder.NAME: ["a", "b", "C"],
        SortOrder.CHANGE: ["b", "C", "a"],
        SortOrder.GIVEN: ["b", "C", "a"],
    }
    harness.press("s", "s", "s")
    harness.update(2, node("a", db=Status.UP))
    assert harness.names == ["a", "b", "# 1 Down: indexer", "C"]
    harness.update(1, node("C", db=Status.DOWN))
    assert harness.names == ["C", "# 1 Down: db", "a", "b", "# 1 Down: indexer"], "unchanged nodes stay as given"


def test_services_follow_the_same_order() -> None:
    harness = ViewHarness(node("a", Health.PARTIAL, y=Status.UP, x=Status.INITIALIZING, z=Status.DOWN))
    assert harness.names == ["a", "- z", "- x", "- y"]
    assert harness.press("s") == ["a", "- y", "- x", "- z"]
    assert harness.press("s") == ["a", "- x", "- y", "- z"]
    harness.update(0, node("a", Health.PARTIAL, y=Status.DOWN, x=Status.INITIALIZING, z=Status.DOWN))
    assert harness.press("s") == ["a", "- y", "- x", "- z"]


def test_a_node_without_a_snapshot_is_last_by_health_and_sorted_by_its_address() -> None:
    model = WatchModel(["http://b:1", "http://a:1"], 2.0)
    model.nodes[0].update(node("b"), 0.0)
    view = WatchView(model)
    assert [row.node.url for row in view.page(WIDTH, 9).rows] == ["http://b:1", "http://a:1"]
    view.press("s", WIDTH)
    view.press("s", WIDTH)
    assert [row.node.url for row in view.page(WIDTH, 9).rows] == ["http://a:1", "http://b:1"]


def test_a_filter_finds_nodes_and_services_which_are_shown_below_their_node() -> None:
    b = ["b", "# 1 Down: indexer"]
    for text, found in {"c:": ["C"], "A:1": ["a"], "V1.4": [*b, "C"], "unreach": ["a"], "zzz": []}.items():
        assert three().press(*f"/{text}") == found
    assert three().press(*"/down") == ["b", "- indexer"]
    assert three().press(*"/db") == ["b", "- db", "C", "- db"]


def test_while_a_filter_is_typed_arrows_move_and_letters_are_no_commands() -> None:
    harness = three()
    harness.press("/", "v", Key.DOWN, Key.DOWN, Key.DOWN)
    assert harness.selected == "C"
    harness.press(*"qs?j")
    assert not harness.view.is_quit
    assert (harness.page.filter, harness.page.is_typing, harness.page.sort) == ("vqs?j", True, SortOrder.WORST)


def test_enter_keeps_the_filter_and_escape_clears_it() -> None:
    harness = three()
    harness.press(*"/c:")
    assert harness.press(Key.ENTER) == ["C"]
    assert not harness.page.is_typing
    assert harness.press("s") == ["C"]
    assert harness.press(Key.ESCAPE) == ["b", "# 1 Down: indexer", "C", "a"]
    harness.press(*"/c:")
    assert harness.press(Key.ESCAPE) == ["b", "# 1 Down: indexer", "C", "a"]
    assert not harness.page.is_typing


def test_backspace_removes_a_letter_and_then_ends_the_filter() -> None:
    harness = three()
    assert harness.press("/", "c", ":", "x", Key.BACKSPACE) == ["C"]
    harness.press(Key.BACKSPACE, Key.BACKSPACE)
    assert harness.page.is_typing
    harness.press(Key.BACKSPACE)
    assert not harness.page.is_typing


def test_without_rows_nothing_can_be_expanded_or_selected() -> None:
    harness = three()
    harness.press(Key.DOWN)
    assert harness.press(*"/zzz") == []
    assert harness.press(Key.ENTER, Key.ENTER, Key.DOWN, Key.END, Key.PAGE_UP) == []
    assert harness.selected is None


def test_a_filter_that_hides_the_selected_service_selects_its_node_until_it_is_visible_again() -> None:
    harness = ViewHarness(node("n", xq=Status.UP, q=Status.UP, z=Status.UP))

    def selected_after(*keys: Key | str) -> str | None:
        harness.press(*keys)
        return harness.selected

    assert selected_after(Key.END) == "- z"
    assert selected_after("/", "q") == "n", "its node"
    assert harness.names == ["n", "- xq", "- q"]
    assert selected_after(Key.BACKSPACE) == "- z"
    assert selected_after("z", "z") is None
    assert selected_after(Key.ESCAPE) == "- z"


def test_the_selection_moves_to_the_node_when_its_service_is_hidden_again() -> None:
    harness = ViewHarness(node("a", x=Status.UP, y=Status.DOWN), node("b"), node("c"))
    harness.press(*"/down", Key.DOWN, Key.DOWN)
    assert harness.selected == "- y"
    assert harness.press(Key.ESCAPE) == ["a", "# 1 Down: y", "b", "c"]
    assert harness.selected == "a"


def test_nothing_is_selected_before_the_first_move() -> None:
    assert many().selected is None
    harness = many()
    harness.press(Key.DOWN)
    assert harness.selected == "n0"
    harness.press("j", "j", "k")
    assert harness.selected == "n1"
    harness.press(Key.ESCAPE)
    assert harness.selected is None


def test_the_page_follows_the_selection_also_by_pages_and_to_the_ends() -> None:
    harness = many()
    assert harness.press(*[Key.DOWN] * 20)[-1] == "n19"
    assert harness.press(Key.DOWN) == [f"n{n}" for n in range(1, 21)]
    assert harness.press(*[Key.UP] * 19)[0] == "n1"
    assert harness.press(Key.UP)[0] == "n0"
    assert harness.press(Key.UP)[0] == "n0"
    assert harness.press(Key.PAGE_DOWN)[-1] == "n20"
    assert harness.press(Key.PAGE_DOWN)[-1] == "n40"
    assert harness.press("G") == [f"n{n}" for n in range(180, 200)]
    assert harness.press(Key.PAGE_DOWN)[-1] == "n199"
    assert harness.press(Key.PAGE_UP)[0] == "n179"
    assert harness.press("g") == [f"n{n}" for n in range(20)]
    assert harness.selected == "n0"


def test_the_selection_stays_on_its_node_when_the_order_changes() -> None:
    harness = many()
    harness.press("s", Key.END, *"sss")
    assert harness.page.sort is SortOrder.WORST
    assert harness.selected == "n199"
    assert "n199" in harness.names
    harness.update(199, unreachable("n199"))
    assert harness.names[0] == "n199"
    assert harness.selected == "n199"


def test_the_selection_moves_to_the_next_row_when_its_row_disappears() -> None:
    harness = ViewHarness(node("a", x=Status.UP, y=Status.UP), node("b"))
    harness.press(Key.ENTER, Key.DOWN)
    assert harness.selected == "- x"
    harness.update(0, node("a", y=Status.UP))
    assert harness.selected == "- y"


def test_a_larger_terminal_shows_more_rows_and_a_smaller_one_the_selected_row() -> None:
    harness = many()
    harness.press(Key.END)
    harness.height = 300
    assert len(harness.names) == 200
    harness.height = 3
    assert harness.names == ["n197", "n198", "n199"]
    harness.height = 0
    assert harness.names == ["n199"]


def test_any_key_leaves_the_help_and_has_no_other_effect() -> None:
    harness = three()
    harness.press("?")
    before = harness.page.has_help
    harness.press("s")
    assert (before, harness.page.has_help) == (True, False)
    assert harness.page.sort is SortOrder.WORST
    assert harness.press("x", "é", Key.BACKSPACE) == ["a", "b", "# 1 Down: indexer", "C"], "unknown keys"
    assert (harness.selected, harness.view.is_quit) == (None, False)
    for keys in ("q", "?q"):
        harness = three()
        harness.press(*keys)
        assert harness.view.is_quit, "also in the help"

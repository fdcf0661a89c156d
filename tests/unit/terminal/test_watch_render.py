"""How a page looks, line by line."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from svcnode.client import BackingService, Health, Status
from svcnode.client.parse import unvalidated_identity
from svcnode.core.errors import UnexpectedResponseError, UnreachableError
from svcnode.core.redaction import register_secret
from svcnode.terminal.render import Symbols
from svcnode.terminal.snapshot import NodeSnapshot
from svcnode.terminal.watch.keys import Key
from svcnode.terminal.watch.model import HISTORY_CELLS, WatchModel
from svcnode.terminal.watch.render import FIXED_LINES, Columns, format_age, render_page
from svcnode.terminal.watch.view import WatchView

UP, DOWN, INITIALIZING = Status.UP, Status.DOWN, Status.INITIALIZING


def service(service_id: str, status: Status | None, name: str = "", description: str = "") -> BackingService:
    return BackingService(id=service_id, name=name, description=description, status=status)


def look(
    name: str, health: Health = Health.HEALTHY, *services: BackingService, version: str = "v1.4.2"
) -> NodeSnapshot:
    who = unvalidated_identity(name, "v0.0.1", version)
    return NodeSnapshot(url=f"http://{name}:1", identity=who, health=health, services=services, duration_s=0.004)


def lost(url: str, reason: str = "connection refused") -> NodeSnapshot:
    return NodeSnapshot(url=url, errors=(UnreachableError(f"cannot reach {url}: {reason}"),))


class Drawn:
    """Nodes that were seen at 0 s, and how they look some time after."""

    def __init__(self, *looks: NodeSnapshot | str, symbols: Symbols = Symbols()) -> None:  # noqa: B008  has no state
        self.watch = WatchModel([one if isinstance(one, str) else one.url for one in looks], 2.0)
        self.view = WatchView(self.watch)
        self.symbols = symbols
        self.now_s = 0.0
        for number, one in enumerate(looks):
            if not isinstance(one, str):
                self.watch.update(number, one, 0.0)

    def at(self, now_s: float) -> Drawn:
        self.now_s = now_s
        return self

    def press(self, *keys: Key | str) -> Drawn:
        for key in keys:
            self.view.press(key, 80)
        return self

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        page = self.view.page(width, height - FIXED_LINES)
        drawn = render_page(page, self.now_s, width, height, self.symbols)
        assert len(drawn) == height
        assert all(line.cell_len <= width for line in drawn)
        return [line.plain.rstrip() for line in drawn]

    def styles(self, number: int) -> list[tuple[str, str]]:
        """The pieces of a line that have a style."""
        page = self.view.page(80, 20)
        line = render_page(page, self.now_s, 80, 24, self.symbols)[number]
        return [(line.plain[span.start : span.end].strip(), str(span.style)) for span in line.spans]


def some() -> Drawn:
    drawn = Drawn(
        look("validator-1", Health.HEALTHY, service("db", UP), service("cache", UP)),
        look("validator-2", Health.HEALTHY, service("db", UP, "Ledger database"), service("indexer", UP, "Indexer")),
        lost("http://10.0.0.3:8420"),
        "http://10.0.0.4:8420",
    )
    changed = look("validator-2", Health.PARTIAL, service("db", UP, "Ledger database"), service("indexer", DOWN))
    drawn.watch.update(1, changed, 62.0)
    drawn.watch.update(0, look("validator-1", Health.HEALTHY, service("db", UP), service("cache", UP)), 63.0)
    drawn.watch.mark_requested(3, 60.0)
    return drawn.at(64)


# ---- the whole screen


def test_the_screen_at_80x24() -> None:
    assert some().press(Key.DOWN, Key.DOWN, Key.ENTER).lines() == [
        "4 nodes: 1 unreachable, 1 partial, 1 healthy, 1 asking                 every 2 s",
        "  HEALTH           NAME               VERSION    UP       SINCE LAST 2m40s",
        "  ● healthy        validator-1        v1.4.2     2/2     >1m04s          ▇     ▇",
        ">*◐ partial        validator-2        v1.4.2     1/2         2s          ▇     ▄",
        "    ● Up           db                 Ledger database    >1m04s          ▇     ▇",
        " *  ✖ Down         indexer                                   2s          ▇     ▁",
        "  ! unreachable    10.0.0.3:8420      connection refused >1m04s          !",
        "  ○ asking         10.0.0.4:8420      waiting for 4s",
        *[""] * 14,
        "http://validator-2:1  validator-2  v1.4.2  interface v0.0.1  answered in 4 ms",
        "q quit  s sort: as given  / filter  Enter services  ? help              1-6 of 6",
    ]


def test_where_a_terminal_has_no_other_signs_letters_do() -> None:
    drawn = some()
    drawn.symbols = Symbols(are_ascii=True)
    text = "\n".join([*drawn.press(Key.DOWN, Key.ENTER).lines(), *drawn.press("?").lines()])
    drawn.press("x", "/")
    assert ("\n".join([text, *drawn.lines(40)])).isascii()
    assert " *~ partial" in text
    assert "    + Up " in text


def test_200_nodes_are_paged_between_lines_that_stay() -> None:
    drawn = Drawn(*(look(f"n{number}", Health.HEALTHY, service("db", UP)) for number in range(200)))
    first = drawn.lines()
    assert first[0].startswith("200 nodes: 200 healthy ")
    assert first[-1].endswith(" 1-20 of 200")
    assert [line.split()[2] for line in first[2:22]] == [f"n{number}" for number in range(20)]
    last = drawn.press(Key.END).lines()
    assert last[:2] == first[:2]
    assert last[-1].endswith(" 181-200 of 200")
    assert last[21].startswith("> ● healthy        n199 ")


@pytest.mark.parametrize("width", [1, 2, 10, 30, 50, 60, 79, 80, 100, 132, 200, 500])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 10, 24, 100])
def test_any_terminal_is_filled_and_never_overfull(width: int, height: int) -> None:
    for keys in ([], [Key.ENTER], ["?"], ["/", *"word" * 30]):
        some().press(*keys).lines(width, height)


def test_a_wide_terminal_shows_addresses_and_a_longer_history() -> None:
    lines = some().lines(160)
    assert lines[1].endswith(" URL")
    assert lines[2].endswith(" http://validator-1:1")
    assert Columns.for_width(500).history == HISTORY_CELLS
    assert "LAST 6m " in some().lines(160)[1]


def test_a_narrow_terminal_does_without_the_history_first() -> None:
    assert some().lines(64)[2] == "  ● healthy        validator-1        v1.4.2     2/2     >1m04s"
    assert some().lines(50)[2] == "  ● healthy        validat… v1.4.2     2/2     >1…"


# ---- what others wrote


def test_long_names_are_cut_and_keep_the_columns() -> None:
    drawn = Drawn(look("n" * 60, Health.HEALTHY, service("s" * 60, UP, "t" * 60), version="v" + "1" * 60)).at(1)
    assert drawn.lines()[2:4] == [
        f"  ● healthy        {'n' * 17}… v111111111… 1/1        >1s                ▇".replace(
            "111111111…", "11111111…"
        ),
        f"    ● Up           {'s' * 17}… {'t' * 17}…    >1s                ▇",
    ]


@pytest.mark.parametrize("count", [999, 1000, 10_000, 123_456])
@pytest.mark.parametrize("width", [80, 160])
def test_of_many_services_every_digit_is_shown_and_the_columns_are_kept(count: int, width: int) -> None:
    up = tuple(service(str(number), UP) for number in range(count))
    head, many, few = Drawn(look("a", Health.HEALTHY, *up), look("b")).at(1).lines(width)[1:4]
    assert f" {count}/{count} " in many
    assert head.index("SINCE") + len("SINCE") == many.index(">1s") + len(">1s") == few.index(">1s") + len(">1s")


def test_wide_characters_keep_the_columns() -> None:
    drawn = Drawn(look("検証" * 2), look("検証" * 9), look("x" + "検証" * 9), look("plain")).at(1)
    lines = drawn.lines()[2:6]
    assert {cell_len(line[: line.index("v1.4.2")]) for line in lines} == {38}
    assert "検証検証検証検証…  v1.4.2" in lines[1]
    assert "x検証検証検証検証… v1.4.2" in lines[2]


def test_what_a_node_says_steers_no_terminal() -> None:
    evil = service("a\x1b[2J", UP, "b\nc", "\u202ed")
    drawn = Drawn(look("n\x1b]0;t\x07", Health.HEALTHY, evil, version="v\r1")).press(Key.DOWN)
    text = "\n".join([*drawn.lines(160), *drawn.press(Key.DOWN).lines(160), *drawn.press("/", "\x9b").lines(160)])
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    for shown in ("n\\x1b]0;t\\x07", "v\\r1", "a\\x1b[2J", "b\\nc", "\\u202ed", "/\\x9b"):
        assert shown in text


def test_what_a_node_echoes_shows_no_secret() -> None:
    register_secret("s3cr3t-word")
    echo = service("s3cr3t-word", UP, "s3cr3t-word", "s3cr3t-word")
    drawn = Drawn(look("s3cr3t-word", Health.HEALTHY, echo, version="s3cr3t-word")).press(Key.DOWN)
    text = "\n".join([*drawn.lines(160), *drawn.press(Key.DOWN).lines(160)])
    assert "***" in text
    assert "s3cr3t" not in text.replace("http://s3cr3t-word:1", "")


def test_what_a_node_says_is_no_markup() -> None:
    assert "[red]a[/red]" in Drawn(look("[red]a[/red]")).lines()[2]


# ---- changes


def test_what_changed_is_marked_and_highlighted_for_some_seconds_and_its_age_is_exact() -> None:
    drawn = Drawn(look("a", Health.HEALTHY, service("db", UP))).at(1)
    assert drawn.lines()[2].startswith("  ● healthy ")
    drawn.watch.update(0, look("a", Health.UNHEALTHY, service("db", DOWN)), 10)
    node, down = drawn.at(10.4).lines()[2:4]
    assert node.startswith(" *✖ unhealthy ")
    assert down.startswith(" *  ✖ Down ")
    assert " 0s " in node
    assert " 0s " in down
    for number, words in ((2, {"✖ unhealthy", "0/1", "0s"}), (3, {"✖ Down", "0s"})):
        assert {text for text, style in drawn.styles(number) if style == "reverse"} == words
    assert drawn.at(15.9).lines()[2].startswith(" *")
    assert drawn.at(16).lines()[2].startswith("  ✖ unhealthy ")
    assert not [style for _, style in drawn.styles(2) if style == "reverse"]


def test_a_closed_node_shows_that_a_service_of_it_changed() -> None:
    drawn = Drawn(look("a", Health.HEALTHY, service("db", UP)), look("b"))
    drawn.watch.update(0, look("a", Health.HEALTHY, service("db", DOWN)), 10)
    assert drawn.at(11).lines()[2].startswith(" *● healthy ")
    assert [text for text, style in drawn.styles(2) if style == "reverse"] == ["0/1"]


def test_another_version_is_highlighted() -> None:
    drawn = Drawn(look("a"), look("b"))
    drawn.watch.update(0, look("a", version="v2"), 10)
    assert drawn.at(11).lines()[2].startswith(" *● healthy ")
    assert ("v2", "reverse") in drawn.styles(2)


def test_every_level_has_a_height_or_a_sign_of_its_own() -> None:
    drawn = Drawn(look("a", Health.HEALTHY, service("db", UP)))
    for at_s, status in ((10, INITIALIZING), (20, DOWN), (30, None)):
        drawn.watch.update(0, look("a", Health.PARTIAL, service("db", status)), at_s)
    drawn.watch.update(0, lost("http://a:1"), 40)
    assert drawn.at(41).lines()[4].endswith("▇▄▁?!")
    drawn.symbols = Symbols(are_ascii=True)
    assert drawn.lines()[4].endswith("#=_?!")


# ---- nodes that cannot be had


def test_services_of_a_node_that_is_gone_are_unknown() -> None:
    drawn = Drawn(look("a", Health.HEALTHY, service("db", UP)))
    drawn.watch.update(0, lost("http://a:1"), 10)
    assert [line[:60].rstrip() for line in drawn.at(12).lines()[2:5]] == [
        " *! unreachable    a                  connection refused",
        "    cannot reach http://a:1: connection refused",
        " *  ! unknown      db",
    ]


def test_a_reason_does_not_repeat_the_address() -> None:
    url = "http://a:1"
    for text, shown in {
        f"cannot reach {url}: connection refused": "  connection refused",
        f"no whole answer from {url} within 10 s": "  no whole answer within 10 s",
        f"no whole answer from {url}/svc/node within 10 s": "  no whole answer from /svc/node within 10 s",
        f"got 404 without a body at {url}/svc/node": "  got 404 without a body at /svc/node",
    }.items():
        drawn = Drawn(NodeSnapshot(url=url, errors=(UnexpectedResponseError(text),)), "b").press(Key.DOWN)
        assert drawn.lines()[-2] == f"{url}{shown}"


def test_who_does_not_answer_is_told_before_the_timeout_is_over() -> None:
    drawn = Drawn(look("a"), look("b"))
    drawn.watch.mark_requested(0, 10)
    assert " v1.4.2 " in drawn.at(11.9).lines()[2]
    assert " waiting for 5s " in drawn.at(15).lines()[2]


# ---- the other lines


def test_one_node_alone_is_told_about_without_being_selected() -> None:
    assert Drawn(look("a")).lines()[0].startswith("1 node: 1 healthy ")
    assert Drawn(look("a")).lines()[-2].startswith("http://a:1  a  v1.4.2  interface v0.0.1 ")
    assert Drawn(look("a"), look("b")).lines()[-2] == ""


def test_a_selected_service_is_told_about_in_full() -> None:
    drawn = Drawn(look("a", Health.HEALTHY, service("db", UP, "Ledger", "Holds it"))).press(Key.DOWN, Key.DOWN)
    assert drawn.lines()[-2] == "db  Ledger  Holds it"


def test_the_last_line_shows_the_filter_while_it_is_typed_and_the_first_while_it_holds() -> None:
    drawn = some().press("/", *"dow")
    assert drawn.lines()[-1] == f"{'/dow█  Enter keep  Esc clear':72}1-2 of 2"
    assert drawn.press("n", Key.ENTER).lines()[0].endswith(" filter: down  every 2 s")
    assert drawn.lines()[-1].startswith("q quit  s sort: as given  / filter ")


def test_that_nothing_was_found_is_told() -> None:
    assert some().press("/", *"zzz").lines()[-1].endswith("nothing to show")


def test_the_order_is_told() -> None:
    assert "s sort: worst first" in some().press("s").lines()[-1]


def test_the_help_explains_every_key_and_every_sign_at_80x24() -> None:
    text = "\n".join(some().press("?").lines())
    for word in (
        "Ctrl-C",
        "filter",
        "Enter",
        "Esc",
        "PgUp",
        "▇▇▇▇▇",
        "▄▄▄▄▄",
        "▁▁▁▁▁",
        "* has just",
        "Any key goes back",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (599, "9m59s"),
        (600, "10m"),
        (3599, "59m"),
        (3600, "1h00m"),
        (35999, "9h59m"),
        (36000, "10h"),
        (172799, "47h"),
        (172800, "2d"),
        (86400 * 999, "999d"),
    ],
)
def test_an_age_has_at_most_five_characters(seconds: float, text: str) -> None:
    assert format_age(seconds) == text

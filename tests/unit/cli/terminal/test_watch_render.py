"""A page as lines. tests/wording/test_terminal.py pins the whole screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from svcnode.cli.terminal.render import Symbols
from svcnode.cli.terminal.snapshot import NodeSnapshot
from svcnode.cli.terminal.watch.keys import Key
from svcnode.cli.terminal.watch.model import HISTORY_CELLS, WatchModel
from svcnode.cli.terminal.watch.render import FIXED_LINES, Columns, render_page
from svcnode.cli.terminal.watch.view import SortOrder, WatchView
from svcnode.client import BackingService, Health, Status
from svcnode.client.parse import unvalidated_identity
from svcnode.core.errors import UnexpectedResponseError, UnreachableError
from svcnode.core.redaction import register_secret

UP, DOWN, INITIALIZING = Status.UP, Status.DOWN, Status.INITIALIZING


def service(service_id: str, status: Status | None, name: str = "", description: str = "") -> BackingService:
    return BackingService(id=service_id, name=name, description=description, status=status)


def node(
    name: str, health: Health = Health.HEALTHY, *services: BackingService, version: str = "v1.4.2"
) -> NodeSnapshot:
    identity = unvalidated_identity(name, "v0.0.1", version)
    return NodeSnapshot(url=f"http://{name}:1", identity=identity, health=health, services=services, duration_s=0.004)


def unreachable(url: str, problem: str = "refused") -> NodeSnapshot:
    return NodeSnapshot(url=url, errors=(UnreachableError(problem, url=url),))


class RenderHarness:
    """Nodes with a snapshot at 0 s, rendered at a later time."""

    def __init__(self, *snapshots: NodeSnapshot | str, symbols: Symbols = Symbols()) -> None:  # noqa: B008  has no state
        self.model = WatchModel([one if isinstance(one, str) else one.url for one in snapshots], 2.0)
        self.view = WatchView(self.model)
        self.symbols = symbols
        self.now_s = 0.0
        for number, one in enumerate(snapshots):
            if not isinstance(one, str):
                self.model.nodes[number].update(one, 0.0)

    def at(self, now_s: float) -> RenderHarness:
        self.now_s = now_s
        return self

    def press(self, *keys: Key | str) -> RenderHarness:
        for key in keys:
            self.view.press(key, 80)
        return self

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        page = self.view.page(width, height - FIXED_LINES)
        screen = render_page(page, self.now_s, width, height, self.symbols)
        assert len(screen) == height
        assert all(line.cell_len <= width for line in screen)
        return [line.plain.rstrip() for line in screen]

    def styles(self, number: int) -> list[tuple[str, str]]:
        """The parts of a line that have a style."""
        page = self.view.page(80, 20)
        line = render_page(page, self.now_s, 80, 24, self.symbols)[number]
        return [(line.plain[span.start : span.end].strip(), str(span.style)) for span in line.spans]


def four_nodes() -> RenderHarness:
    screen = RenderHarness(
        node("validator-1", Health.HEALTHY, service("db", UP), service("cache", UP)),
        node("validator-2", Health.HEALTHY, service("db", UP, "Ledger database"), service("indexer", UP, "Indexer")),
        unreachable("http://10.0.0.3:8420"),
        "http://10.0.0.4:8420",
    )
    changed = node("validator-2", Health.PARTIAL, service("db", UP, "Ledger database"), service("indexer", DOWN))
    screen.model.nodes[1].update(changed, 62.0)
    screen.model.nodes[0].update(node("validator-1", Health.HEALTHY, service("db", UP), service("cache", UP)), 63.0)
    screen.model.nodes[3].requested_s = 60.0
    return screen.at(64)


def test_the_rows_at_80x24() -> None:
    lines = four_nodes().press(Key.DOWN, Key.DOWN, Key.ENTER).lines()
    assert lines[0].endswith("every 2 s")
    assert lines[1] == "  HEALTH           NAME               VERSION    UP       SINCE LAST 2m40s"
    assert lines[2:-2] == [
        "  ! unreachable    10.0.0.3:8420      refused            >1m04s          !",
        ">*◐ partial        validator-2        v1.4.2     1/2         2s          ▇     ▄",
        " *  ✖ Down         indexer                                   2s          ▇     ▁",
        "    ● Up           db                 Ledger database    >1m04s          ▇     ▇",
        "  ● healthy        validator-1        v1.4.2     2/2     >1m04s          ▇     ▇",
        "  ○ pending        10.0.0.4:8420      waiting for 4s",
        *[""] * 14,
    ]
    assert lines[-2].split("  ")[:3] == ["http://validator-2:1", "validator-2", "v1.4.2"]
    assert lines[-2].endswith(" 4 ms")
    assert lines[-1].endswith("1-6 of 6")


def test_a_terminal_without_the_symbols_gets_ascii() -> None:
    screen = four_nodes()
    screen.symbols = Symbols(are_ascii=True)
    text = "\n".join([*screen.press(Key.DOWN, Key.DOWN, Key.ENTER).lines(), *screen.press("?").lines()])
    screen.press("x", "/")
    assert ("\n".join([text, *screen.lines(40)])).isascii()
    assert ">*~ partial" in text
    assert "    + Up " in text


@pytest.mark.parametrize("keys", [[], [Key.ENTER], ["?"], ["/", *"word" * 30]], ids=["", "enter", "help", "filter"])
def test_every_terminal_size_is_filled_exactly(keys: list[Key | str]) -> None:
    screen = four_nodes().press(*keys)
    for width in (1, 2, 30, 60, 79, 80, 132, 500):
        for height in (1, 2, 3, 4, 5, 24, 100):
            screen.lines(width, height)


def test_a_wide_terminal_shows_urls_and_a_longer_timeline_and_a_narrow_one_drops_it_first() -> None:
    assert four_nodes().press("s").lines(64)[2] == "  ● healthy        validator-1        v1.4.2     2/2     >1m04s"
    assert four_nodes().press("s").lines(50)[2] == "  ● healthy        validat… v1.4.2     2/2     >1…"
    lines = four_nodes().press("s").lines(160)
    assert lines[1].endswith(" URL")
    assert lines[2].endswith(" http://validator-1:1")
    assert Columns.for_width(500).timeline == HISTORY_CELLS
    assert "LAST 6m " in four_nodes().lines(160)[1]


def test_long_names_are_truncated_and_keep_the_columns() -> None:
    long = node("n" * 60, Health.HEALTHY, service("s" * 60, UP, "t" * 60), version="v" + "1" * 60)
    assert RenderHarness(long).at(1).lines()[2:4] == [
        f"  ● healthy        {'n' * 17}… v11111111… 1/1        >1s                ▇",
        f"    ● Up           {'s' * 17}… {'t' * 17}…    >1s                ▇",
    ]


@pytest.mark.parametrize("count", [999, 1000])
@pytest.mark.parametrize("width", [80, 160])
def test_a_large_count_shows_every_digit_and_keeps_the_columns(count: int, width: int) -> None:
    up = tuple(service(str(number), UP) for number in range(count))
    head, many, few = RenderHarness(node("a", Health.HEALTHY, *up), node("b")).at(1).lines(width)[1:4]
    assert f" {count}/{count} " in many
    assert head.index("SINCE") + len("SINCE") == many.index(">1s") + len(">1s") == few.index(">1s") + len(">1s")


def test_wide_characters_keep_the_columns() -> None:
    screen = RenderHarness(node("検証" * 2), node("検証" * 9), node("x" + "検証" * 9), node("plain")).at(1)
    lines = screen.lines()[2:6]
    assert {cell_len(line[: line.index("v1.4.2")]) for line in lines} == {38}
    assert "検証検証検証検証…  v1.4.2" in lines[1]
    assert "x検証検証検証検証… v1.4.2" in lines[2]


def test_control_characters_in_responses_are_escaped() -> None:
    evil = service("a\x1b[2J", UP, "b\nc", "\u202ed")
    screen = RenderHarness(node("n\x1b]0;t\x07", Health.HEALTHY, evil, version="v\r1")).press(Key.DOWN)
    text = "\n".join([*screen.lines(160), *screen.press(Key.DOWN).lines(160), *screen.press("/", "\x9b").lines(160)])
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    for shown in ("n\\x1b]0;t\\x07", "v\\r1", "a\\x1b[2J", "b\\nc", "\\u202ed", "/\\x9b"):
        assert shown in text


def test_secrets_in_responses_are_redacted() -> None:
    register_secret("s3cr3t-word")
    echo = service("s3cr3t-word", UP, "s3cr3t-word", "s3cr3t-word")
    screen = RenderHarness(node("s3cr3t-word", Health.HEALTHY, echo, version="s3cr3t-word")).press(Key.DOWN)
    text = "\n".join([*screen.lines(160), *screen.press(Key.DOWN).lines(160)])
    assert "***" in text
    assert "s3cr3t" not in text.replace("http://s3cr3t-word:1", "")


def test_a_recent_change_is_marked_and_highlighted_with_its_age() -> None:
    screen = RenderHarness(node("a", Health.HEALTHY, service("db", UP))).at(1)
    assert screen.lines()[2].startswith("  ● healthy ")
    screen.model.nodes[0].update(node("a", Health.UNHEALTHY, service("db", DOWN)), 10)
    node_line, service_line = screen.at(10.4).lines()[2:4]
    assert node_line.startswith(" *✖ unhealthy ")
    assert service_line.startswith(" *  ✖ Down ")
    assert " 0s " in node_line
    assert " 0s " in service_line
    for number, texts in ((2, {"✖ unhealthy", "0/1", "0s"}), (3, {"✖ Down", "0s"})):
        assert {text for text, style in screen.styles(number) if style == "reverse"} == texts
    assert screen.at(15.9).lines()[2].startswith(" *")
    assert screen.at(16).lines()[2].startswith("  ✖ unhealthy ")
    assert not [style for _, style in screen.styles(2) if style == "reverse"]


def test_a_collapsed_node_shows_that_a_service_or_its_version_changed() -> None:
    screen = RenderHarness(node("a", Health.HEALTHY, service("db", UP)), node("b"))
    screen.model.nodes[0].update(node("a", Health.HEALTHY, service("db", DOWN)), 10)
    screen.model.nodes[1].update(node("b", version="v2"), 10)
    assert [line[:12] for line in screen.at(11).lines()[2:5]] == [" *● healthy ", "    1 Down: ", " *● healthy "]
    assert [text for text, style in screen.styles(2) if style == "reverse"] == ["0/1"]
    assert ("v2", "reverse") in screen.styles(4)


@pytest.mark.parametrize("width", [80, 160])
def test_a_service_that_is_not_up_shows_its_reason_if_the_node_says_it(width: int) -> None:
    problem = {"members": [{"id": "db"}], "effects": [], "reason": "no route to host"}
    services = service("db", DOWN, "Ledger", "Holds it"), service("cache", UP, "Cache", "Warm")
    snapshot = replace(node("a", Health.PARTIAL, *services), problems={"problems": [problem]})
    screen = RenderHarness(snapshot).press(Key.DOWN, Key.DOWN)
    down, up = screen.lines(width)[3:5]
    assert "no route to host" in down
    assert ("Ledger" in down) == (width == 160)
    assert "Cache" in up
    assert screen.lines(width)[-2].endswith("no route to host")


def test_every_severity_has_its_own_bar() -> None:
    screen = RenderHarness(node("a", Health.HEALTHY, service("db", UP)))
    for at_s, status in ((10, INITIALIZING), (20, DOWN), (30, None)):
        screen.model.nodes[0].update(node("a", Health.PARTIAL, service("db", status)), at_s)
    screen.model.nodes[0].update(unreachable("http://a:1"), 40)
    assert screen.at(41).lines()[4].endswith("▇▄▁?!")
    screen.symbols = Symbols(are_ascii=True)
    assert screen.lines()[4].endswith("#=_?!")


def test_services_of_an_unreachable_node_are_unknown() -> None:
    screen = RenderHarness(node("a", Health.HEALTHY, service("db", UP)))
    screen.model.nodes[0].update(unreachable("http://a:1"), 10)
    assert [line[:60].rstrip() for line in screen.at(12).lines()[2:5]] == [
        " *! unreachable    a                  refused",
        "    refused: http://a:1",
        " *  ! unknown      db",
    ]


def test_an_error_does_not_repeat_the_url_of_the_node() -> None:
    url = "http://a:1"
    for error_url, expected in {url: "refused", f"{url}/svc/node": "refused: /svc/node", "": "refused"}.items():
        error = UnexpectedResponseError("refused", url=error_url)
        screen = RenderHarness(NodeSnapshot(url=url, errors=(error,)), "b").press(Key.DOWN)
        assert screen.lines()[-2] == f"{url}  {expected}"


def test_a_pending_request_shows_its_age_before_the_timeout() -> None:
    screen = RenderHarness(node("a"), node("b"))
    screen.model.nodes[0].requested_s = 10
    assert " v1.4.2 " in screen.at(11.9).lines()[2]
    assert " waiting for 5s " in screen.at(15).lines()[2]


def test_the_last_lines_have_details_of_a_single_node_the_order_and_the_position_if_there_are_rows() -> None:
    single = RenderHarness(node("a")).lines()
    assert single[0].startswith("1 node: 1 healthy ")
    assert single[-2].startswith("http://a:1  a  v1.4.2  interface v0.0.1 ")
    assert RenderHarness(node("a"), node("b")).lines()[-2] == ""
    assert f" {SortOrder.WORST.value}  " in four_nodes().lines()[-1]
    assert " of " not in four_nodes().press("/", *"zzz").lines()[-1]
    many = RenderHarness(*(node(f"n{number}") for number in range(200)))
    assert many.lines()[-1].endswith(" 1-20 of 200")
    assert many.press(Key.END).lines()[-1].endswith(" 181-200 of 200")

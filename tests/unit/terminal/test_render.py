"""How nodes and services look, on a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.console import Console

from svcnode.client import BackingService, Health, Identity, Status
from svcnode.client.parse import unvalidated_identity
from svcnode.core.errors import NodeFailedError, UnexpectedResponseError, UnreachableError, VersionNotFoundError
from svcnode.core.redaction import register_secret
from svcnode.terminal.render import Symbols, create_console, print_lines, render_node, render_nodes, summary
from svcnode.terminal.snapshot import NodeSnapshot, OverallHealth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from svcnode.core.errors import ClientError

PLAIN = Symbols(are_shown=False)
WHO = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")


def service(
    status: Status | None, service_id: str = "db", name: str = "Ledger", description: str = ""
) -> BackingService:
    return BackingService(id=service_id, name=name, description=description, status=status)


DB = service(Status.UP, "db", "Ledger", "Holds it")
INDEXER = service(Status.DOWN, "indexer", "Indexer")
STORAGE = service(Status.INITIALIZING, "storage", "Storage")
PARTIAL = NodeSnapshot(url="http://a:1", identity=WHO, health=Health.PARTIAL, services=(DB, INDEXER, STORAGE))
HEALTHY = NodeSnapshot(url="http://b:1", identity=WHO, health=Health.HEALTHY, services=(DB,))
LOST = NodeSnapshot(url="http://c:1", errors=(UnreachableError("cannot reach http://c:1: connection refused"),))


def drawn(lines: Sequence[Text]) -> str:
    return "\n".join(line.plain for line in lines)


def printed(lines: Sequence[Text], width: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_lines(console, lines)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


# ---- what a look comes to


@pytest.mark.parametrize(
    ("health", "finding"),
    [
        (Health.HEALTHY, OverallHealth.HEALTHY),
        (Health.PARTIAL, OverallHealth.PARTIAL),
        (Health.UNHEALTHY, OverallHealth.UNHEALTHY),
    ],
)
def test_a_node_is_as_well_as_it_says(health: Health, finding: OverallHealth) -> None:
    assert NodeSnapshot(url="u", health=health).overall_health is finding


def test_a_200_beside_something_that_could_not_be_had_is_no_green_light() -> None:
    look = NodeSnapshot(url="u", health=Health.HEALTHY, errors=(NodeFailedError("x"),))
    assert look.overall_health is OverallHealth.UNKNOWN


def test_a_node_that_told_no_health_is_unclear() -> None:
    assert NodeSnapshot(url="u").overall_health is OverallHealth.UNKNOWN


# ---- one node


def test_one_node_is_shown_in_full() -> None:
    assert drawn(render_node(PARTIAL, PLAIN)) == (
        "partial  validator-7  v1.4.2  interface v0.0.1  1/3 up  http://a:1\n"
        "\n"
        "  STATUS        ID       NAME     DESCRIPTION\n"
        "  Up            db       Ledger   Holds it\n"
        "  Down          indexer  Indexer\n"
        "  Initializing  storage  Storage"
    )


def test_on_a_terminal_every_status_has_a_symbol_of_its_own() -> None:
    look = NodeSnapshot(url="u", health=Health.UNHEALTHY, services=(DB, INDEXER, STORAGE, service(None)))
    head, _, _, *rows = drawn(render_node(look, Symbols())).splitlines()
    assert head.startswith("✖ unhealthy")
    assert [row.split("  ")[1] for row in rows] == ["● Up", "✖ Down", "◐ Initializing", "○ not reported"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
def test_where_a_terminal_cannot_spell_the_symbols_it_gets_others(encoding: str) -> None:
    symbols = Symbols.for_stream(is_terminal=True, encoding=encoding)
    look = NodeSnapshot(url="u", health=Health.UNHEALTHY, services=(DB, INDEXER, STORAGE, service(None)))
    head, _, _, *rows = drawn(render_node(look, symbols)).splitlines()
    assert head.startswith("x unhealthy")
    assert [row.split("  ")[1] for row in rows] == ["+ Up", "x Down", "~ Initializing", "? not reported"]


def test_what_a_terminal_cannot_spell_is_a_question_mark_and_stops_nothing() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_lines(create_console(stream), render_node(NodeSnapshot(url="http://größe"), PLAIN))
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue() == b"unknown  -  -  -  http://gr??e\n"


def test_a_node_without_services_has_no_table() -> None:
    look = NodeSnapshot(url="http://a:1", identity=WHO, health=Health.HEALTHY, services=())
    assert drawn(render_node(look, PLAIN)) == "healthy  validator-7  v1.4.2  interface v0.0.1  0/0 up  http://a:1"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (UnreachableError("why"), "unreachable"),
        (VersionNotFoundError("why"), "other version"),
        (NodeFailedError("why"), "failing"),
        (UnexpectedResponseError("why"), "not a node"),
    ],
)
def test_a_node_that_could_not_be_asked_says_why(error: ClientError, word: str) -> None:
    assert drawn(render_node(NodeSnapshot(url="u", errors=(error, error)), PLAIN)) == f"{word}  -  -  -  u\n    why"


def test_what_a_node_told_beside_an_error_is_shown_too() -> None:
    look = NodeSnapshot(url="u", identity=WHO, health=Health.HEALTHY, errors=(NodeFailedError("no list"),))
    assert drawn(render_node(look, PLAIN)).splitlines()[1:] == ["    no list", "    its health answer is 200 (healthy)"]


def test_a_node_that_was_cut_short_has_a_mark_that_blames_nobody_and_shows_what_it_told() -> None:
    errors = (NodeFailedError("no name"),)
    look = NodeSnapshot(url="u", health=Health.HEALTHY, errors=errors, interrupted="stopped after 1.5 s")
    assert drawn(render_node(look, Symbols())).splitlines() == [
        "○ cut short  -  -  -  u",
        "    ○ stopped after 1.5 s",
        "    ! no name",
        "    its health answer is 200 (healthy)",
    ]
    assert summary([HEALTHY, LOST, look]) == "3 nodes: 1 healthy, 1 cut short, 1 unreachable"


def test_what_was_tolerated_is_told() -> None:
    look = NodeSnapshot(url="u", health=Health.HEALTHY, services=(), deviations=("a service has no status",))
    assert "    deviations: a service has no status" in drawn(render_node(look, PLAIN)).splitlines()


@pytest.mark.parametrize(
    ("health", "statuses", "remark"),
    [
        (Health.HEALTHY, [Status.UP, Status.DOWN], ["it says 200 although 1 of its services is not Up"]),
        (Health.HEALTHY, [Status.INITIALIZING] * 2, ["it says 200 although 2 of its services are not Up"]),
        (Health.HEALTHY, [Status.UP, None], []),
        (Health.PARTIAL, [Status.DOWN], []),
        (Health.UNHEALTHY, [Status.DOWN], []),
        (None, [Status.DOWN], []),
    ],
)
def test_a_200_beside_a_service_that_is_not_up_is_remarked_and_no_more(
    health: Health | None, statuses: list[Status | None], remark: list[str]
) -> None:
    look = NodeSnapshot(url="u", health=health, services=tuple(map(service, statuses)))
    assert list(look.remarks) == remark
    assert look.overall_health is (
        OverallHealth.UNKNOWN if health is None else NodeSnapshot(url="u", health=health).overall_health
    )
    lines = drawn(render_node(look, PLAIN)).splitlines()
    assert [line for line in lines if "remark" in line] == [f"    remark: {one}" for one in remark]


def test_what_a_node_echoes_shows_no_secret() -> None:
    register_secret("s3cr3t-word")
    who = unvalidated_identity("s3cr3t-word", "v s3cr3t-word", "s3cr3t-word")
    services = (service(Status.DOWN, "s3cr3t-word", "is s3cr3t-word", "s3cr3t-word\n"),)
    look = NodeSnapshot(url="u", identity=who, health=Health.UNHEALTHY, services=services, deviations=("s3cr3t-word",))
    for lines in (render_node(look, PLAIN), render_nodes([look, look], PLAIN, with_all=False)):
        assert "s3cr3t" not in drawn(lines)
    assert drawn(render_node(look, PLAIN)).startswith("unhealthy  ***  ***  interface v ***  0/1 up  u\n")


def test_what_a_node_says_steers_no_terminal() -> None:
    look = NodeSnapshot(
        url="u", health=Health.HEALTHY, services=(service(Status.UP, "a\x1b[2J", "b\nc", "\u202eevil\ud800"),)
    )
    text = drawn(render_node(look, PLAIN))
    assert "a\\x1b[2J  b\\nc  \\u202eevil\\ud800" in text


def test_what_a_node_says_is_no_markup() -> None:
    look = NodeSnapshot(url="u", health=Health.HEALTHY, services=(service(Status.UP, "[red]a[/red]"),))
    assert "[red]a[/red]" in "\n".join(printed(render_node(look, Symbols()), 80))


# ---- many nodes


def test_of_many_nodes_each_has_a_line_and_below_it_what_is_not_well() -> None:
    assert drawn(render_nodes([PARTIAL, HEALTHY, LOST], PLAIN, with_all=False)) == (
        "partial      validator-7  v1.4.2  1/3 up  http://a:1\n"
        "    Down          indexer  Indexer\n"
        "    Initializing  storage  Storage\n"
        "healthy      validator-7  v1.4.2  1/1 up  http://b:1\n"
        "unreachable  -            -       -       http://c:1\n"
        "    cannot reach http://c:1: connection refused\n"
        "\n"
        "3 nodes: 1 healthy, 1 partial, 1 unreachable"
    )


def test_of_many_nodes_every_service_can_be_listed() -> None:
    assert "    Up  db  Ledger  Holds it" in drawn(render_nodes([HEALTHY, HEALTHY], PLAIN, with_all=True)).splitlines()


def test_the_summary_counts_from_the_best_to_the_worst() -> None:
    unhealthy = NodeSnapshot(url="u", health=Health.UNHEALTHY)
    looks = [LOST, unhealthy, HEALTHY, LOST, PARTIAL]
    assert summary(looks) == "5 nodes: 1 healthy, 1 partial, 1 unhealthy, 2 unreachable"


def named(name: str, version: str = "v1", url: str = "http://b") -> NodeSnapshot:
    return NodeSnapshot(url=url, identity=unvalidated_identity(name, "v1", version), services=())


def test_a_wide_name_keeps_the_columns() -> None:
    first, second, *_ = drawn(render_nodes([named("検証"), HEALTHY], PLAIN, with_all=False)).splitlines()
    assert first == "unknown  検証         v1      0/0 up  http://b"
    assert second == "healthy  validator-7  v1.4.2  1/1 up  http://b:1"


@pytest.mark.parametrize("name", ["n" * 60, "検証" * 30, "n" * 25 + "\u0301" * 999])
def test_a_long_name_and_version_push_out_neither_the_count_nor_the_address(name: str) -> None:
    looks = [named(name, "v1." + "1" * 99, "http://127.0.0.1:65535"), HEALTHY]
    lines = printed(render_nodes(looks, Symbols(), with_all=False, width=80), 80)
    assert lines[0].endswith("…  v1.111111111111…  0/0 up  http://127.0.0.1:65535")
    assert lines[1].endswith("     v1.4.2            1/1 up  http://b:1")
    assert len({cell_len(line[: line.index("/")]) for line in lines[:2]}) == 1
    (piped, *_) = drawn(render_nodes(looks, PLAIN, with_all=False)).splitlines()
    assert piped.endswith("…  v1.111111111111…  0/0 up  http://127.0.0.1:65535")
    assert cell_len(piped) < 100


def test_a_name_cannot_look_like_other_columns_or_another_line() -> None:
    name = f"n  v9  3/3 up  http://other:1{' ' * 40}● healthy  other  v9  3/3 up  http://other:1"
    for lines in (render_node(named(name), Symbols()), render_nodes([named(name), HEALTHY], Symbols(), with_all=False)):
        text = "\n".join(printed(lines, 80))
        assert "n v9 3/3 up" in text
        assert "3/3 up  http" not in text
        assert "● healthy  other" not in text


def test_where_a_terminal_has_no_ellipsis_a_name_is_cut_with_another_sign() -> None:
    assert "n~  v1 " in drawn(render_node(named("n" * 60), Symbols(are_ascii=True)))


def test_an_address_that_is_too_long_for_the_line_goes_on_in_the_next_and_further_in() -> None:
    url = f"http://{'c' * 50}/base"
    first, second, third, *_ = printed(
        render_nodes([named("n", url=url), HEALTHY], Symbols(), with_all=False, width=50), 50
    )
    assert first == "! unknown  n            v1      0/0 up"
    assert (second[:5], third[:5]) == ("    h", "    c")
    assert second.strip() + third.strip() == url


# ---- on a terminal


def test_a_line_of_a_table_is_cut_at_the_edge_and_an_error_goes_on_below_itself() -> None:
    error = UnreachableError("cannot reach http://c:1: its name cannot be resolved")
    look = NodeSnapshot(url="http://c:1", errors=(error,), services=(service(Status.DOWN, description="x" * 50),))
    _, *lines = printed(render_nodes([look], Symbols(), with_all=False))[:4]
    assert lines[:2] == ["    ! cannot reach http://c:1: its name", "    cannot be resolved"]
    assert len(lines[2]) == 40
    assert lines[2].endswith("x…")


def test_the_whole_address_of_a_node_alone_is_shown() -> None:
    url = f"http://{'c' * 50}"
    assert url in "".join(line.strip() for line in printed(render_node(NodeSnapshot(url=url), Symbols())))

"""How nodes and services look, on a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import NodeFailedError, NotThisInterfaceError, UnreachableError, VersionNotFoundError
from svcnode.terminal.drawing import Symbols, many_nodes, one_node, print_lines, summary
from svcnode.terminal.looking import Finding, Look

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
PARTIAL = Look(url="http://a:1", identity=WHO, health=Health.PARTIAL, services=(DB, INDEXER, STORAGE))
HEALTHY = Look(url="http://b:1", identity=WHO, health=Health.HEALTHY, services=(DB,))
LOST = Look(url="http://c:1", errors=(UnreachableError("cannot reach http://c:1: Connection refused"),))


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
    [(Health.HEALTHY, Finding.HEALTHY), (Health.PARTIAL, Finding.PARTIAL), (Health.UNHEALTHY, Finding.UNHEALTHY)],
)
def test_a_node_is_as_well_as_it_says(health: Health, finding: Finding) -> None:
    assert Look(url="u", health=health).finding is finding


def test_a_200_beside_something_that_could_not_be_had_is_no_green_light() -> None:
    look = Look(url="u", health=Health.HEALTHY, errors=(NodeFailedError("x"),))
    assert look.finding is Finding.UNCLEAR


def test_a_node_that_told_no_health_is_unclear() -> None:
    assert Look(url="u").finding is Finding.UNCLEAR


# ---- one node


def test_one_node_is_shown_in_full() -> None:
    assert drawn(one_node(PARTIAL, PLAIN)) == (
        "partial  validator-7  v1.4.2  interface v0.0.1  1/3 up  http://a:1\n"
        "\n"
        "  STATUS        ID       NAME     DESCRIPTION\n"
        "  Up            db       Ledger   Holds it\n"
        "  Down          indexer  Indexer\n"
        "  Initializing  storage  Storage"
    )


def test_on_a_terminal_every_status_has_a_symbol_of_its_own() -> None:
    look = Look(url="u", health=Health.UNHEALTHY, services=(DB, INDEXER, STORAGE, service(None)))
    head, _, _, *rows = drawn(one_node(look, Symbols())).splitlines()
    assert head.startswith("✖ unhealthy")
    assert [row.split("  ")[1] for row in rows] == ["● Up", "✖ Down", "◐ Initializing", "○ not told"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
def test_where_a_terminal_cannot_spell_the_symbols_it_gets_others(encoding: str) -> None:
    symbols = Symbols.for_stream(is_terminal=True, encoding=encoding)
    look = Look(url="u", health=Health.UNHEALTHY, services=(DB, INDEXER, STORAGE, service(None)))
    head, _, _, *rows = drawn(one_node(look, symbols)).splitlines()
    assert head.startswith("x unhealthy")
    assert [row.split("  ")[1] for row in rows] == ["+ Up", "x Down", "~ Initializing", "? not told"]


def test_a_node_without_services_has_no_table() -> None:
    look = Look(url="http://a:1", identity=WHO, health=Health.HEALTHY, services=())
    assert drawn(one_node(look, PLAIN)) == "healthy  validator-7  v1.4.2  interface v0.0.1  0/0 up  http://a:1"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (UnreachableError("why"), "unreachable"),
        (VersionNotFoundError("why"), "other version"),
        (NodeFailedError("why"), "failing"),
        (NotThisInterfaceError("why"), "not a node"),
    ],
)
def test_a_node_that_could_not_be_asked_says_why(error: ClientError, word: str) -> None:
    assert drawn(one_node(Look(url="u", errors=(error, error)), PLAIN)) == f"{word}  -  -  -  u\n    why"


def test_what_a_node_told_beside_an_error_is_shown_too() -> None:
    look = Look(url="u", identity=WHO, health=Health.HEALTHY, errors=(NodeFailedError("no list"),))
    assert drawn(one_node(look, PLAIN)).splitlines()[1:] == ["    no list", "    its health answer is 200 (healthy)"]


def test_what_was_tolerated_is_told() -> None:
    look = Look(url="u", health=Health.HEALTHY, services=(), tolerated=("a service has no status",))
    assert "    tolerated: a service has no status" in drawn(one_node(look, PLAIN)).splitlines()


def test_what_a_node_says_steers_no_terminal() -> None:
    look = Look(url="u", health=Health.HEALTHY, services=(service(Status.UP, "a\x1b[2J", "b\nc", "\u202eevil\ud800"),))
    text = drawn(one_node(look, PLAIN))
    assert "a\\x1b[2J  b\\nc  \\u202eevil\\ud800" in text


def test_what_a_node_says_is_no_markup() -> None:
    look = Look(url="u", health=Health.HEALTHY, services=(service(Status.UP, "[red]a[/red]"),))
    assert "[red]a[/red]" in "\n".join(printed(one_node(look, Symbols()), 80))


# ---- many nodes


def test_of_many_nodes_each_has_a_line_and_below_it_what_is_not_well() -> None:
    assert drawn(many_nodes([PARTIAL, HEALTHY, LOST], PLAIN, with_all=False)) == (
        "partial      validator-7  v1.4.2  1/3 up  http://a:1\n"
        "    Down          indexer  Indexer\n"
        "    Initializing  storage  Storage\n"
        "healthy      validator-7  v1.4.2  1/1 up  http://b:1\n"
        "unreachable  -            -       -       http://c:1\n"
        "    cannot reach http://c:1: Connection refused\n"
        "\n"
        "3 nodes: 1 healthy, 1 partial, 1 unreachable"
    )


def test_of_many_nodes_every_service_can_be_listed() -> None:
    assert "    Up  db  Ledger  Holds it" in drawn(many_nodes([HEALTHY, HEALTHY], PLAIN, with_all=True)).splitlines()


def test_the_summary_counts_from_the_best_to_the_worst() -> None:
    unhealthy = Look(url="u", health=Health.UNHEALTHY)
    looks = [LOST, unhealthy, HEALTHY, LOST, PARTIAL]
    assert summary(looks) == "5 nodes: 1 healthy, 1 partial, 1 unhealthy, 2 unreachable"


def test_a_wide_name_keeps_the_columns_and_a_long_one_does_not_push_the_others() -> None:
    wide = Look(url="http://a", identity=Identity(node_name="検証", spec_version="v1", node_version="v1"), services=())
    long = Look(url="http://b", identity=Identity(node_name="n" * 60, spec_version="v1", node_version="v1"))
    first, second, third, *_ = drawn(many_nodes([wide, HEALTHY, long], PLAIN, with_all=False)).splitlines()
    assert first == "unclear  検証         v1      0/0 up  http://a"
    assert second == "healthy  validator-7  v1.4.2  1/1 up  http://b:1"
    assert third.startswith(f"unclear  {'n' * 60}  v1 ")


# ---- on a terminal


def test_a_line_of_a_table_is_cut_at_the_edge_and_an_error_goes_on_below_itself() -> None:
    error = UnreachableError("cannot reach http://c:1: its name cannot be resolved")
    look = Look(url=f"http://{'c' * 50}", errors=(error,))
    head, *rest = printed(many_nodes([look], Symbols(), with_all=False))[:3]
    assert len(head) == 40
    assert head.endswith("…")
    assert [line.rstrip() for line in rest] == ["    ! cannot reach http://c:1: its name", "    cannot be resolved"]


def test_the_whole_address_of_a_node_alone_is_shown() -> None:
    url = f"http://{'c' * 50}"
    assert url in "".join(line.strip() for line in printed(one_node(Look(url=url), Symbols())))

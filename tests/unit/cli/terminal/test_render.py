"""Nodes and services as lines of text, on a terminal and in a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.console import Console

from svcnode.cli.terminal.render import Symbols, create_console, print_lines, render_node, render_nodes, summary
from svcnode.cli.terminal.snapshot import NodeSnapshot, OverallHealth
from svcnode.client import BackingService, Health, Identity, Status
from svcnode.client.parse import unvalidated_identity
from svcnode.core.errors import NodeFailedError, UnreachableError
from svcnode.core.redaction import register_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from svcnode.core.errors import ClientError

PLAIN = Symbols(are_shown=False)
IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")


def service(
    status: Status | None, service_id: str = "db", name: str = "Ledger", description: str = ""
) -> BackingService:
    return BackingService(id=service_id, name=name, description=description, status=status)


DB = service(Status.UP, "db", "Ledger", "Holds it")
INDEXER = service(Status.DOWN, "indexer", "Indexer")
STORAGE = service(Status.INITIALIZING, "storage", "Storage")
PARTIAL = NodeSnapshot(url="http://a:1", identity=IDENTITY, health=Health.PARTIAL, services=(DB, INDEXER, STORAGE))
HEALTHY = NodeSnapshot(url="http://b:1", identity=IDENTITY, health=Health.HEALTHY, services=(DB,))
UNREACHABLE = NodeSnapshot(url="http://c:1", errors=(UnreachableError("connection refused", url="http://c:1"),))


def plain(lines: Sequence[Text]) -> str:
    return "\n".join(line.plain for line in lines)


def printed(lines: Sequence[Text], width: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_lines(console, lines)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("health", "errors", "overall_health"),
    [
        (Health.HEALTHY, (), OverallHealth.HEALTHY),
        (Health.PARTIAL, (), OverallHealth.PARTIAL),
        (Health.UNHEALTHY, (), OverallHealth.UNHEALTHY),
        (Health.HEALTHY, (NodeFailedError("x"),), OverallHealth.UNKNOWN),
        (None, (), OverallHealth.UNKNOWN),
    ],
)
def test_the_overall_health_is_that_of_the_node_and_unknown_if_a_response_is_missing(
    health: Health | None, errors: tuple[ClientError, ...], overall_health: OverallHealth
) -> None:
    assert NodeSnapshot(url="u", health=health, errors=errors).overall_health is overall_health


@pytest.mark.parametrize(
    ("encoding", "symbols"), [("utf-8", "✖✖◐○●"), ("latin-1", "xx~?+"), ("no-such-encoding", "xx~?+")]
)
def test_every_status_has_its_own_symbol_also_in_ascii(encoding: str, symbols: str) -> None:
    shown = Symbols.for_stream(is_terminal=True, encoding=encoding)
    snapshot = NodeSnapshot(url="u", health=Health.UNHEALTHY, services=(DB, INDEXER, STORAGE, service(None)))
    head, _, _, *rows = plain(render_node(snapshot, shown)).splitlines()
    assert head.startswith(f"{symbols[0]} unhealthy")
    texts = zip(symbols[1:], ["Down", "Initializing", "not reported", "Up"], strict=True)
    assert [row.split("  ")[1] for row in rows] == [f"{symbol} {text}" for symbol, text in texts]


def test_a_character_that_the_encoding_lacks_is_a_question_mark() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_lines(create_console(stream), render_node(NodeSnapshot(url="http://größe"), PLAIN))
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue() == b"unknown  -  -  -  http://gr??e\n"


def test_an_interrupted_node_has_a_neutral_symbol_and_shows_its_responses() -> None:
    errors = (NodeFailedError("no name"),)
    snapshot = NodeSnapshot(url="u", health=Health.HEALTHY, errors=errors, interrupted="stopped")
    *lines, health = plain(render_node(snapshot, Symbols())).splitlines()
    assert lines == ["○ interrupted  -  -  -  u", "    ○ stopped", "    ! no name"]
    assert health.endswith(" 200 (healthy)")
    assert summary([HEALTHY, UNREACHABLE, snapshot]) == "3 nodes: 1 healthy, 1 interrupted, 1 unreachable"


@pytest.mark.parametrize(
    ("health", "statuses", "not_up"),
    [
        (Health.HEALTHY, [Status.UP, Status.DOWN], 1),
        (Health.HEALTHY, [Status.INITIALIZING] * 2, 2),
        (Health.HEALTHY, [Status.UP, None], 0),
        (Health.PARTIAL, [Status.DOWN], 0),
        (None, [Status.DOWN], 0),
    ],
)
def test_a_200_beside_a_service_that_is_not_up_is_a_remark(
    health: Health | None, statuses: list[Status | None], not_up: int
) -> None:
    snapshot = NodeSnapshot(url="u", health=health, services=tuple(map(service, statuses)))
    assert len(snapshot.remarks) == (1 if not_up else 0)
    assert all(f" {not_up} service" in remark for remark in snapshot.remarks)
    lines = plain(render_node(snapshot, PLAIN)).splitlines()
    assert [line for line in lines if "remark" in line] == [f"    remark: {remark}" for remark in snapshot.remarks]


def test_secrets_in_responses_are_redacted() -> None:
    register_secret("s3cr3t-word")
    identity = unvalidated_identity("s3cr3t-word", "v s3cr3t-word", "s3cr3t-word")
    services = (service(Status.DOWN, "s3cr3t-word", "is s3cr3t-word", "s3cr3t-word\n"),)
    snapshot = NodeSnapshot(
        url="u", identity=identity, health=Health.UNHEALTHY, services=services, deviations=("s3cr3t-word",)
    )
    for lines in (render_node(snapshot, PLAIN), render_nodes([snapshot, snapshot], PLAIN, with_all=False)):
        assert "s3cr3t" not in plain(lines)
    assert plain(render_node(snapshot, PLAIN)).startswith("unhealthy  ***  ***  interface v ***  0/1 up  u\n")


def test_control_characters_and_markup_in_responses_are_shown_as_text() -> None:
    snapshot = NodeSnapshot(
        url="u", health=Health.HEALTHY, services=(service(Status.UP, "a\x1b[2J", "b\nc", "[red]\u202eevil\ud800"),)
    )
    text = "\n".join(printed(render_node(snapshot, PLAIN), 80))
    assert "a\\x1b[2J  b\\nc  [red]\\u202eevil\\ud800" in text, "and markup is text"


def test_many_nodes_have_one_line_each_and_list_services_that_are_not_up_or_all() -> None:
    every = plain(render_nodes([HEALTHY, UNREACHABLE, HEALTHY, UNREACHABLE], PLAIN, with_all=True)).splitlines()
    assert "    Up  db  Ledger  Holds it" in every
    assert every[-1] == "4 nodes: 2 healthy, 2 unreachable"
    assert plain(render_nodes([PARTIAL, HEALTHY, UNREACHABLE], PLAIN, with_all=False)) == (
        "unreachable  -            -       -       http://c:1\n"
        "    connection refused: http://c:1\n"
        "partial      validator-7  v1.4.2  1/3 up  http://a:1\n"
        "    Down          indexer  Indexer\n"
        "    Initializing  storage  Storage\n"
        "healthy      validator-7  v1.4.2  1/1 up  http://b:1\n"
        "\n"
        "3 nodes: 1 healthy, 1 partial, 1 unreachable"
    )


def named(name: str, version: str = "v1", url: str = "http://b") -> NodeSnapshot:
    return NodeSnapshot(url=url, identity=unvalidated_identity(name, "v1", version), services=())


def test_wide_characters_keep_the_columns_aligned() -> None:
    first, second, *_ = plain(render_nodes([named("検証"), HEALTHY], PLAIN, with_all=False)).splitlines()
    assert first == "unknown  検証         v1      0/0 up  http://b"
    assert second == "healthy  validator-7  v1.4.2  1/1 up  http://b:1"


@pytest.mark.parametrize("name", ["検証" * 30, "n" * 25 + "\u0301" * 999])
def test_a_long_name_and_version_hide_neither_the_count_nor_the_url(name: str) -> None:
    snapshots = [named(name, "v1." + "1" * 99, "http://127.0.0.1:65535"), HEALTHY]
    lines = printed(render_nodes(snapshots, Symbols(), with_all=False, width=80), 80)
    assert lines[0].endswith("…  v1.111111111111…  0/0 up  http://127.0.0.1:65535")
    assert lines[1].endswith("     v1.4.2            1/1 up  http://b:1")
    assert len({cell_len(line[: line.index("/")]) for line in lines[:2]}) == 1
    (in_pipe, *_) = plain(render_nodes(snapshots, PLAIN, with_all=False)).splitlines()
    assert in_pipe.endswith("…  v1.111111111111…  0/0 up  http://127.0.0.1:65535")
    assert cell_len(in_pipe) < 100


def test_a_name_cannot_imitate_other_columns_or_another_line() -> None:
    name = f"n  v9  3/3 up  http://other:1{' ' * 40}● healthy  other  v9  3/3 up  http://other:1"
    for lines in (render_node(named(name), Symbols()), render_nodes([named(name), HEALTHY], Symbols(), with_all=False)):
        text = "\n".join(printed(lines, 80))
        assert "n v9 3/3 up" in text
        assert "3/3 up  http" not in text
        assert "● healthy  other" not in text


def test_a_url_that_is_too_long_for_the_line_is_wrapped_and_indented() -> None:
    url = f"http://{'c' * 50}/base"
    first, second, third, *_ = printed(
        render_nodes([named("n", url=url), HEALTHY], Symbols(), with_all=False, width=50), 50
    )
    assert first == "! unknown  n            v1      0/0 up"
    assert (second[:5], third[:5]) == ("    h", "    c")
    assert second.strip() + third.strip() == url
    assert url in "".join(line.strip() for line in printed(render_node(NodeSnapshot(url=url), Symbols()))), "alone"


def test_a_table_row_is_truncated_and_an_error_is_wrapped() -> None:
    error = UnreachableError("host not found", url="http://c.example:1/with/a/path")
    snapshot = NodeSnapshot(url="http://c:1", errors=(error,), services=(service(Status.DOWN, description="x" * 50),))
    _, *lines = printed(render_nodes([snapshot], Symbols(), with_all=False))[:4]
    assert lines[:2] == ["    ! host not found:", "    http://c.example:1/with/a/path"]
    assert len(lines[2]) == 40
    assert lines[2].endswith("x…")
    assert "n~  v1 " in plain(render_node(named("n" * 60), Symbols(are_ascii=True))), "in ASCII"

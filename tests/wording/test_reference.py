"""docs/reference.md agrees with the code. `make wording` writes its generated tables again."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import COMMANDS, load_command
from svcnode.cli._args import CommandParser
from svcnode.config.reference import file_rows, table_rows
from svcnode.config.tables import DefaultsTable, MaintenanceTable, ServiceTable
from svcnode.core.remedies import REMEDIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from svcnode.config.keys import Table
    from svcnode.config.reference import KeyRow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of the wheel")


def commands_table() -> str:
    rows = [row for command in COMMANDS for row in command_rows(command.name, command.help, parser_of(command.name))]
    return "\n".join(["| command | use | options |", "|---|---|---|", *rows, ""])


def command_rows(name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """One row, or one for each command below it."""
    below = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
    if below is None:
        yield command_row(name, summary, parser)
        return
    for choice in below._choices_actions:
        yield command_row(f"{name} {choice.dest}", choice.help or "", below.choices[choice.dest])


def command_row(name: str, summary: str, parser: argparse.ArgumentParser) -> str:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    arguments = "".join(
        f" [{action.metavar}]" if action.nargs == "?" else f" {action.metavar}{'…' if action.nargs else ''}"
        for action in actions
        if not action.option_strings
    )
    options = [action.option_strings[-1] for action in actions if action.option_strings]
    return f"| `{name}{arguments}` | {summary} | `{' '.join(options)}` |"


def parser_of(name: str) -> CommandParser:
    parser = CommandParser(prog=f"svcnode {name}")
    load_command(name, parser)
    return parser


def reason_codes_table() -> str:
    rows = [f"| `{code}` | {remedy.meaning} |" for code, remedy in REMEDIES.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows, ""])


def file_table() -> str:
    keys = ", ".join(f"`{key}`" for key in DefaultsTable.keys)
    defaults = f"| `[defaults] …`, `[fleet] …` | | For all services, or for the nodes of a fleet: {keys} |"
    return keys_table(((f"[{row.table}] {row.key}", row) for row in file_rows()), defaults)


def list_table(table: type[Table]) -> str:
    return keys_table((row.key, row) for row in table_rows(table))


def keys_table(rows: Iterable[tuple[str, KeyRow]], *more: str) -> str:
    lines = [f"| `{name}` | {row.default} | {row.meaning} |".replace("|  |", "| |") for name, row in rows]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines, *more, ""])


TABLES = {
    "commands": commands_table,
    "reason codes": reason_codes_table,
    "keys": file_table,
    "keys of services": partial(list_table, ServiceTable),
    "keys of maintenance": partial(list_table, MaintenanceTable),
}


@pytest.mark.parametrize(("name", "table"), TABLES.items(), ids=[name.replace(" ", "-") for name in TABLES])
def test_a_generated_table_is_up_to_date(name: str, table: Callable[[], str], request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, start, rest = page.partition(f"<!-- generated: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    assert start
    assert end
    expected = f"{before}{start}{table()}{end}{after}"
    if request.config.getoption("--update-wording"):
        PAGE.write_text(expected, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected, "run `make wording` to write the table again"


def section(title: str) -> str:
    match = re.search(rf"^##+ {title}$(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert match, title
    return match[1]


def test_the_exit_codes_name_every_command() -> None:
    table, _ = section("Exit codes").split("| ended by |")
    rows = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\S+)`", row)]
    assert sorted(named) == sorted(command.name for command in COMMANDS)


def log_sources() -> Iterator[str]:
    for file in (ROOT / "src" / "svcnode").rglob("*.py"):
        yield file.read_text(encoding="utf-8")


def test_the_log_events_are_those_of_the_code() -> None:
    _, events = section("Log").split("| about |")
    listed = set(re.findall(r"`([a-z_]+)`", events)) - {"event", "debug"}
    source = "\n".join(log_sources())
    used = set(re.findall(r'"event": "(\w+)"', source)) | set(re.findall(r'_extra\(\s*"(\w+)"', source))
    assert used - listed == set()
    from_change_kinds = {f"service_{kind}" for kind in ("registered", "replaced", "deregistered")}
    assert {event for event in listed if f'"{event}"' not in source} <= from_change_kinds


def test_the_log_fields_are_those_of_the_code() -> None:
    fields, _ = section("Log").split("| about |")
    listed = {
        name for cell in re.findall(r"^\| (`.*?`) \|", fields, re.MULTILINE) for name in re.findall("`(.*?)`", cell)
    }
    used = {
        key
        for source in log_sources()
        for logged in re.findall(r'\{\s*"event": [^{}]*?\}', source)
        for key in re.findall(r'"(\w+)": ', logged)
    }
    assert used - listed == set()
    source = "\n".join(log_sources())
    assert {name for name in listed if f'"{name}"' not in source and f"{name}=" not in source} == set()

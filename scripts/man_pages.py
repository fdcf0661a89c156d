"""Writes the manual pages svcnode(1) and svcnode.toml(5), from the tables of --help and of the reference.

python scripts/man_pages.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli import COMMANDS, build_parser, load_command
from svcnode.cli._args import CommandParser
from svcnode.config.reference import file_rows, plain_text, table_rows
from svcnode.config.tables import DefaultsTable, MaintenanceTable, ServiceTable
from svcnode.probes import KINDS
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from svcnode.config.reference import KeyRow

EXAMPLE = """\
[node]
name = "validator-7"

[[services]]
id = "ledger"
probe = { url = "postgresql://monitor@127.0.0.1/ledger", password = "${LEDGER_PASSWORD}" }
impact = "critical"
"""


def escape(text: str) -> str:
    """Text for roff: no line begins with a control character, and hyphens can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("'", "\\(aq").replace("`", "")
    return re.sub(r"(?m)^\.", r"\\&.", " ".join(text.split()))


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escape(text)}\\fR"


def title(name: str, section: int, manual: str) -> str:
    built = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), UTC)
    return f'.TH "{name}" "{section}" "{built:%Y-%m-%d}" "svcnode {__version__}" "{manual}"'


def entry(term: str, text: str) -> Iterator[str]:
    yield from (".TP", term, escape(text) or "\\&")


# ---- svcnode(1)


def command_page() -> Iterator[str]:
    parser = build_parser()
    yield title("SVCNODE", 1, "User Commands")
    yield from (".SH NAME", "svcnode \\- check the services of a node and serve its health over HTTP")
    yield from (".SH SYNOPSIS", f"{bold('svcnode')} {italic('COMMAND')} [{italic('OPTION')}]...")
    yield from (".SH DESCRIPTION", escape(parser.description or ""), ".SH OPTIONS")
    yield from entry(bold("--version"), "Show the versions of svcnode, of the interface and of Python.")
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from command_section(command.name)
    yield from (".SH FIRST STEPS AND EXIT STATUS", *raw_lines(parser.epilog or ""))
    yield ".SH ENVIRONMENT"
    yield from entry(bold("SVCNODE_CONFIG"), "The configuration file.")
    yield from entry(bold("SVCNODE_CONTROL"), "The control socket of the node, for the commands that need it.")
    yield from entry(bold("SVCNODE_SERVICES"), "Services as ID=URL, separated by white space.")
    yield from entry(bold("SVCNODE_<TABLE>_<KEY>"), "The value of a key of the configuration file.")
    yield from (".SH SEE ALSO", f"{bold('svcnode.toml')}(5)")


def command_section(name: str) -> Iterator[str]:
    parser = CommandParser(prog=f"svcnode {name}")
    load_command(name, parser)
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    yield f".SS {bold(f'svcnode {name}')} {' '.join(map(argument_text, arguments_of(actions)))}".rstrip()
    yield escape(parser.description or "")
    for action in actions:
        names = ", ".join(map(bold, action.option_strings)) or argument_text(action)
        value = f" {italic(value_name(action))}" if action.option_strings and action.nargs != 0 else ""
        yield from entry(f"{names}{value}", (action.help or "").replace("%%", "%"))
    if parser.epilog:
        yield from (".PP", *raw_lines(parser.epilog))


def arguments_of(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    return [action for action in actions if not action.option_strings]


def argument_text(action: argparse.Action) -> str:
    text = f"{italic(value_name(action))}{'...' if action.nargs in ('*', '+') else ''}"
    return f"[{text}]" if action.nargs in ("?", "*") else text


def value_name(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def raw_lines(text: str) -> Iterator[str]:
    yield from (".nf", *map(raw_line, text.rstrip().splitlines()), ".fi")


def raw_line(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return "\\&" + indent * "\\ " + escape(line)


# ---- svcnode.toml(5)


def file_page() -> Iterator[str]:
    yield title("SVCNODE.TOML", 5, "File Formats")
    yield from (".SH NAME", "svcnode.toml \\- configuration of a svcnode node")
    yield from (
        ".SH DESCRIPTION",
        escape(
            'One TOML file names the node and its services. Durations are strings with a unit, such as "5s"; so are '
            'sizes, such as "5GiB". ${NAME} is replaced by an environment variable, and { file = "..." } by the '
            "content of a file. svcnode check-config validates the file."
        ),
    )
    yield ".SH TABLES"
    for row in file_rows():
        yield from key_entry(f"[{row.table}] {row.key}", row)
    defaults = ", ".join(DefaultsTable.keys)
    yield from entry(bold("[defaults]"), f"Defaults for all services: {defaults}.")
    yield from (".SH SERVICES", escape("[[services]] is one table per service."))
    for row in table_rows(ServiceTable):
        yield from key_entry(row.key, row)
    yield from (".SH MAINTENANCE", escape("[[maintenance]] is one table per maintenance that repeats."))
    for row in table_rows(MaintenanceTable):
        yield from key_entry(row.key, row)
    yield from (".SH PROBES", escape("The scheme of the URL selects the kind; each kind has its options."))
    for schemes, options in kinds():
        yield from entry(bold(", ".join(schemes)), f"{', '.join(options)}." if options else "No options.")
    yield from (".SH EXAMPLES", *raw_lines(EXAMPLE))
    yield from (".SH SEE ALSO", f"{bold('svcnode')}(1)")


def key_entry(term: str, row: KeyRow) -> Iterator[str]:
    default = plain_text(row.default)
    notes = {"": "", "required": " Required."}.get(default, f" Default: {default}.")
    meaning = plain_text(row.meaning)
    yield from entry(bold(term), f"{f'{meaning}.' if meaning else ''}{notes}")


def kinds() -> Iterator[tuple[list[str], list[str]]]:
    schemes: dict[str, list[str]] = {}
    for scheme, target in KINDS.items():
        schemes.setdefault(target.partition(" ")[0], []).append(scheme)
    for target, names in schemes.items():
        module, _, name = target.partition(":")
        fields = dataclasses.fields(getattr(import_module(module), name))
        yield names, sorted(field.name for field in fields if field.init and field.name != "url")


PAGES = {"svcnode.1": command_page, "svcnode.toml.5": file_page}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in PAGES.items():
        (folder / name).write_text("\n".join(lines()) + "\n", encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()

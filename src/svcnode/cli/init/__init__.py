"""`svcnode init`: find known services on this host and write a configuration that probes them.

catalog.py   the known services: ports, fingerprint, probe URL
scan.py      tries all ports at the same time
select.py    chooses a probe for each service found
template.py  renders the configuration file
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import socket
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli.init.catalog import CATALOG
from svcnode.cli.init.scan import ScanResult, scan
from svcnode.cli.init.select import SelectedProbe, select_probes
from svcnode.cli.init.template import PORT_ONLY, free_port, node_name_from, render_config
from svcnode.cli.output import show, show_bytes
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.text import one_line, os_error_text, suggestion, toml_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from svcnode.cli._args import CommandParser


DEFAULT_FILE = Path("svcnode.toml")
SCHEMA_FILE = "svcnode.schema.json"
_EPILOG = """\
exit codes:
  0  the file is written, or printed
  1  the file could not be written
  2  invalid arguments

examples:
  svcnode init
  svcnode init --port postgresql=5433
  svcnode init --stdout
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Get a first configuration in seconds: look for known services on this machine, confirm each by its protocol, "
        "and write a file for svcnode serve. An existing file is never overwritten."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "file",
        nargs="?",
        type=_file_argument,
        metavar="FILE",
        help=f"file to write (default: {DEFAULT_FILE} in this folder)",
    )
    add(
        "--stdout",
        action="store_true",
        help="print the configuration instead of writing it; what was found goes to stderr",
    )
    add(
        "--port",
        action="append",
        default=[],
        metavar="KIND=PORT",
        dest="ports",
        help="look for a kind of service at this port, such as postgresql=5433; may be repeated",
    )


def _file_argument(text: str) -> Path:
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("empty file name; use a name such as svcnode.toml")
    if text == "-":
        raise argparse.ArgumentTypeError(
            "to print the configuration, use --stdout; for a file with the name -, write ./-"
        )
    return Path(text)


def run_command(arguments: argparse.Namespace) -> int:
    ports = parse_ports(arguments.ports)
    if arguments.stdout:
        if arguments.file is not None:
            raise InvalidValueError("--stdout: prints the configuration, so it takes no file name")
        result, probes = asyncio.run(_scan_and_select(ports))
        show_bytes(_config_text(probes).encode(), sys.stdout)
        show("\n".join(format_report(result, probes)), sys.stderr)
        return 0
    file = arguments.file or DEFAULT_FILE
    if os.path.lexists(file):
        raise _exists_error(file)
    result, probes = asyncio.run(_scan_and_select(ports))
    write_new_file(file, _config_text(probes))
    show("\n".join([*format_report(result, probes), *_next_steps(file)]), sys.stdout)
    return 0


async def _scan_and_select(ports: Mapping[str, Collection[int]]) -> tuple[ScanResult, list[SelectedProbe]]:
    result = await scan(ports)
    return result, await select_probes(result.found)


def _config_text(probes: Sequence[SelectedProbe]) -> str:
    schema = files("svcnode.config") / SCHEMA_FILE
    schema_url = schema.as_uri() if isinstance(schema, Path) else ""  # in a zip file, it is not a file of its own
    return render_config(node_name_from(socket.gethostname()), free_port(), probes, schema_url)


def parse_ports(texts: Iterable[str]) -> dict[str, list[int]]:
    """The ports by kind, from KIND=PORT."""
    kinds = {name: entry.kind for entry in CATALOG for name in (entry.kind, *entry.aliases)}
    ports: dict[str, list[int]] = {}
    for text in texts:
        name, _, port = text.partition("=")
        if name not in kinds:
            raise InvalidValueError(f'--port: unknown kind "{name}"{suggestion(name, kinds)}')
        if not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) <= 65535):
            raise InvalidValueError(
                f"--port: must be KIND=PORT with a port from 1 to 65535, such as {name}={_default_port(name)}"
            )
        kind_ports = ports.setdefault(kinds[name], [])
        if int(port) not in kind_ports:
            kind_ports.append(int(port))
    return ports


def _default_port(name: str) -> int:
    return next(entry.ports[0] for entry in CATALOG if name in (entry.kind, *entry.aliases))


# ---- the file


def write_new_file(file: Path, text: str) -> None:
    """Writes the whole file or none; an existing file, or a dangling symbolic link, is not changed."""
    try:
        with file.open("xb") as opened:
            try:
                opened.write(text.encode())
                opened.flush()
            except BaseException:
                file.unlink()
                raise
    except FileExistsError:
        raise _exists_error(file) from None
    except (OSError, ValueError) as exc:  # a null character in a path is a ValueError
        raise SvcnodeError(f"cannot write {file}: {os_error_text(exc) if isinstance(exc, OSError) else exc}") from exc


def _exists_error(file: Path) -> SvcnodeError:
    return SvcnodeError(f"{file} already exists and is not overwritten; give another file name, or move the file")


# ---- the report


def format_report(result: ScanResult, probes: Sequence[SelectedProbe]) -> Iterator[str]:
    if probes:
        yield "Found on this host:"
        yield from _table([_row(probe) for probe in probes])
    else:
        yield "Found no known service on this host; the node will only check its own store."
    if result.unconfirmed:
        yield "Not confirmed, and not written:"
        yield from (f"  {one_line(str(unconfirmed))}" for unconfirmed in result.unconfirmed)


def _row(probe: SelectedProbe) -> tuple[str, str, str]:
    shown = probe.probe if isinstance(probe.probe, str) else toml_value(probe.probe)
    return probe.found.entry.title, one_line(shown), one_line(_result_text(probe))


def _result_text(probe: SelectedProbe) -> str:
    if probe.unavailable_reason:
        return f"checks {PORT_ONLY}; {probe.unavailable_reason}"
    assert probe.verdict is not None, "a probe that is available has been checked"
    text = probe.verdict.outcome.value.replace("_", " ")
    if probe.verdict.reason:
        text += f": {probe.verdict.reason}"
    if probe.preferred_probe:
        return f"checks {PORT_ONLY}; {probe.found.entry.kind} probe {text}"
    return text


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return (f"  {title:{first}}  {probe:{second}}  {result}" for title, probe, result in rows)


def _next_steps(file: Path) -> Iterator[str]:
    option = "" if file == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    yield f"Written: {one_line(str(file))}. Review it, set the version of your node, then run: svcnode serve{option}"

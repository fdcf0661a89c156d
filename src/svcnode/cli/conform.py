"""`svcnode conform URL`: test any node, in any language, against the interface."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import EXIT_FAILED, EXIT_UNKNOWN, positive_duration_s
from svcnode.cli.output import show, show_bytes
from svcnode.cli.terminal.progress import handle_sigint
from svcnode.conformance.check import Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.report import as_json, as_junit, plain_text, report_lines
from svcnode.conformance.run import run_checks
from svcnode.conformance.target import parse_target
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from svcnode.cli._args import CommandParser
    from svcnode.conformance.check import Check
    from svcnode.conformance.report import Line
    from svcnode.conformance.run import Report

EXIT_INTERRUPTED = 128 + signal.SIGINT
STDOUT = "-"

_EPILOG = """\
levels:
  must    the interface document states it
  should  the document implies it, or clients break without it
  advice  the document does not mention it; recommended practice

All checks run, and all failures are shown. --level decides which of them count
for the exit code.

the four endpoints, after the URL and the prefix:
  /node   /node/health   /node/services   /node/services/{id}/health

what is sent to the node:
  GET and HEAD requests to the four endpoints, with and without ?version=, and to
  an id and several paths that do not exist. Once, 50 requests at the same time.
  POST, PUT, PATCH, DELETE and OPTIONS requests to the four endpoints, without a
  body, to see that the node rejects them. --read-only leaves these out.

exit codes:
  0    the node conforms
  1    the node does not conform
  2    invalid arguments
  4    no check ran, because the node is unreachable or does not speak HTTP, or
       the report could not be written
  130  ended by Ctrl-C, with the results so far (a second Ctrl-C ends at once)

examples:
  svcnode conform http://127.0.0.1:8420
  svcnode conform https://node.example.com --ca ca.pem --level must
  svcnode conform http://127.0.0.1:9010 --prefix /eigen --junit conform.xml
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Does a node conform to the interface? Test it over HTTP against every clause, whatever language it is written "
        "in. Each failed check shows the request, the requirement, the actual response, and how to fix it."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    add = parser.add_argument
    add(
        "url",
        metavar="URL",
        help="base URL of the node, such as http://127.0.0.1:8420 (http:// is optional); "
        "user:password@ before the host is sent as basic authentication and never shown",
    )
    add("--prefix", default="/svc", help="path in front of the four endpoints (default: /svc)")
    add(
        "--level",
        choices=("must", "should", "advice"),
        default="should",
        help="lowest level that counts for the exit code (default: should)",
    )
    add("--timeout", default="5s", metavar="DURATION", help="how long one response may take (default: 5s)")
    add("--ca", metavar="FILE", help="PEM file of the certificate authority that signed the node's certificate")
    add("--read-only", action="store_true", help="send only GET and HEAD")
    add("--json", action="store_true", help="print the report as one JSON object")
    add(
        "--junit",
        metavar="FILE",
        help='also write a JUnit report to this file, for CI; "-" prints only this report',
    )
    add("-v", "--verbose", action="store_true", help="show all checks, and why a check was skipped")


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.junit == STDOUT:
        arguments.parser.error("--json and --junit - cannot both write to stdout; give --junit a file")
    if arguments.ca == "":
        raise InvalidValueError("--ca: the file name is empty")
    level = Level(arguments.level)
    report = asyncio.run(_run_checks(arguments))
    if arguments.junit and arguments.junit != STDOUT:
        _write_file(Path(arguments.junit), as_junit(report, level))
    with suppress(BrokenPipeError):
        _show(report, level, arguments)
    return _exit_code(report, level)


async def _run_checks(arguments: argparse.Namespace) -> Report:
    """The whole report, or the results so far after Ctrl-C."""
    ca = Path(arguments.ca) if arguments.ca else None
    target = parse_target(arguments.url, prefix=arguments.prefix, ca=ca)
    timeout_s = positive_duration_s("--timeout", arguments.timeout)
    with _progress_bar() as (advance, hide), handle_sigint(hide) as interrupted:
        return await run_checks(
            target,
            timeout_s=timeout_s,
            other_methods=not arguments.read_only,
            on_check=advance,
            stopped=interrupted,
        )


@contextmanager
def _progress_bar() -> Iterator[tuple[Callable[[Check], None], Callable[[], None]]]:
    """The functions that advance and remove a progress bar; without a terminal as stderr, they do nothing."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None, lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(CHECKS))
        yield lambda check: bar.update(task, advance=1, description=check.name), bar.stop


def _exit_code(report: Report, level: Level) -> int:
    if report.interrupted:
        return EXIT_INTERRUPTED  # also if all checks so far passed: the report is incomplete
    if report.unreachable:
        return EXIT_UNKNOWN
    return 0 if report.conforms(level) else EXIT_FAILED


def _write_file(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as exc:
        raise SvcnodeError(f"--junit: cannot write {file}: {os_error_text(exc)}") from exc


def _show(report: Report, level: Level, arguments: argparse.Namespace) -> None:
    if arguments.json:
        show(as_json(report, level), sys.stdout)
        return
    if arguments.junit == STDOUT:
        show_bytes(as_junit(report, level), sys.stdout)  # the XML declares its own encoding
        return
    stream = sys.stdout if report.results else sys.stderr
    lines = report_lines(report, level, is_full=arguments.verbose)
    if stream is not None and stream.isatty():
        _show_colored(lines, is_error=not report.results)
    else:
        show("\n".join(map(plain_text, lines)), stream)


def _show_colored(lines: Iterable[Line], *, is_error: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=is_error, highlight=False)
    for line in lines:
        encodable = [
            (piece.text.encode(console.encoding, "backslashreplace").decode(console.encoding), piece.style)
            for piece in line
        ]
        console.print(Text.assemble(*encodable), soft_wrap=True)

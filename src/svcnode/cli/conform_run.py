"""What `svcnode conform` does: judges, and shows what came of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli.conform import EXIT_NOT_JUDGED
from svcnode.cli.durations import positive_s
from svcnode.cli.showing import show, show_as_file
from svcnode.conformance.check import Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.report import as_json, as_junit, lines, plain
from svcnode.conformance.run import Plan, run
from svcnode.conformance.target import target_from
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.wording import system_words
from svcnode.terminal.interruption import interruption

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from svcnode.conformance.report import Line
    from svcnode.conformance.run import Report

STDOUT = "-"
EXIT_CONFORMS, EXIT_FAILS = 0, 1
EXIT_INTERRUPTED = 128 + signal.SIGINT


def show_judgement(arguments: argparse.Namespace) -> int:
    """One run over one node; returns the exit code that says what came of it."""
    plan = _plan(arguments)
    level = Level(arguments.level)
    report = asyncio.run(_judged(plan))
    if arguments.junit and arguments.junit != STDOUT:
        _write(Path(arguments.junit), as_junit(report, level))
    with suppress(BrokenPipeError):
        _show(report, level, arguments)
    return _exit_code(report, level)


def _plan(arguments: argparse.Namespace) -> Plan:
    if arguments.json and arguments.junit == STDOUT:
        arguments.parser.error("--json and --junit - cannot both go to stdout; name a file for one of them")
    if arguments.ca == "":
        raise InvalidValueError("--ca: names no file")
    ca = Path(arguments.ca) if arguments.ca else None
    target = target_from(arguments.url, prefix=arguments.prefix, ca=ca)
    timeout_s = positive_s("--timeout", arguments.timeout)
    return Plan(target=target, timeout_s=timeout_s, other_methods=not arguments.no_other_methods)


async def _judged(plan: Plan) -> Report:
    """All of it, or what was judged when somebody pressed Ctrl-C."""
    with _progress(plan) as (watched, vanish), interruption(vanish) as interrupted:
        return await run(watched, stopped=interrupted)


@contextmanager
def _progress(plan: Plan) -> Iterator[tuple[Plan, Callable[[], None]]]:
    """A bar on a terminal, gone when the run is over, or when the function beside the plan is called."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield plan, lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(CHECKS))
        yield replace(plan, progress=lambda check: bar.update(task, advance=1, description=check.name)), bar.stop


def _exit_code(report: Report, level: Level) -> int:
    if report.cut_short:
        return EXIT_INTERRUPTED  # whatever was seen by then: a script must not take a part for the whole
    if report.unreachable:
        return EXIT_NOT_JUDGED
    return EXIT_CONFORMS if report.conforms(level) else EXIT_FAILS


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as exc:
        raise SvcnodeError(f"--junit: cannot write {file}: {system_words(exc)}") from exc


def _show(report: Report, level: Level, arguments: argparse.Namespace) -> None:
    if arguments.json:
        show(as_json(report, level), sys.stdout)
        return
    if arguments.junit == STDOUT:
        show_as_file(as_junit(report, level), sys.stdout)  # it says itself in which encoding it is
        return
    stream = sys.stdout if report.results else sys.stderr
    found = lines(report, level, is_full=arguments.verbose)
    if stream is not None and stream.isatty():
        _show_in_colour(found, is_error=not report.results)
    else:
        show("\n".join(map(plain, found)), stream)


def _show_in_colour(found: Iterable[Line], *, is_error: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=is_error, highlight=False)
    for line in found:
        encodable = [
            (piece.text.encode(console.encoding, "backslashreplace").decode(console.encoding), piece.style)
            for piece in line
        ]
        console.print(Text.assemble(*encodable), soft_wrap=True)

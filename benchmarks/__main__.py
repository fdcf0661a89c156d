"""Measures svcnode beside real peers and says which figures meet their threshold. A slow figure does not fail a run."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import beats, cores, idle, page, probing, provision, report, responsiveness, serving
from benchmarks.comparison import run_benchmark

if TYPE_CHECKING:
    from benchmarks.provision import Python

BENCHMARKS = {
    **serving.BENCHMARKS,
    **probing.BENCHMARKS,
    **beats.BENCHMARKS,
    **responsiveness.BENCHMARKS,
    **idle.BENCHMARKS,
    **page.BENCHMARKS,
}


def main() -> int:
    options = _options()
    try:
        provision.require_two_cores()
        provision.install_tools()
    except provision.MissingError as exc:
        print(exc, file=sys.stderr)
        return 2
    pythons = [provision.environment(path) for path in options.python]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # runs every `finally`, so no server is left running
    cores.pin_to_load_core()
    rows = [row for python in pythons for row in _measure(python, options)]
    print(report.table(rows))
    if not (options.only or options.quick):
        report.write(rows, pythons, " ".join(["python -m benchmarks", *sys.argv[1:]]))
        print(f"\nwritten to {report.RESULTS}")
    return 0


def _measure(python: Python, options: argparse.Namespace) -> list[list[str]]:
    rows = []
    for key in options.only or BENCHMARKS:
        print(f"Python {python.version}: {key} …", file=sys.stderr, flush=True)
        figure = BENCHMARKS[key](python, options.seconds)
        rows += [report.row(python, outcome) for outcome in run_benchmark(figure, options.rounds)]
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=9, help="how often each server is measured (%(default)s)")
    add("--seconds", type=int, default=2, help="how long each time (%(default)s)")
    add("--only", action="append", choices=BENCHMARKS, metavar="FIGURE", help=f"one of: {', '.join(BENCHMARKS)}")
    add("--python", action="append", type=Path, help="an interpreter; default: this one, and 3.13 if installed")
    add("--quick", action="store_true", help="one short round on this interpreter, to test the benchmarks")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 1
    if options.python is None:
        options.python = [Path(sys.executable)] if options.quick else provision.default_pythons()
    return options


if __name__ == "__main__":
    sys.exit(main())

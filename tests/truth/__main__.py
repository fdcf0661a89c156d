"""Hurt real servers in every known way, and count how often the node says what is not so: never, if it ends with 0."""

# ruff: noqa: T201  it is a program that prints

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.truth import matrix
from tests.truth.campaign import KindResult, Options, run
from tests.truth.kinds import KINDS, SHORT_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.truth.evaluate import Row

MAX_CONCURRENT_KINDS = (
    3  # more would starve each other on a machine with two cores, and a node that is starved may see ghosts
)


def main() -> int:
    arguments = _arguments()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # through every `with`, so that no server stays
        signal.signal(number, lambda *_: stopping.set())
    options = Options(is_short=arguments.short, reuse=arguments.reuse, node_url=arguments.node, stopping=stopping)
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="svcnode-truth-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        outcomes = list(pool.map(lambda kind: run_kind(kind, Path(folder), options), _selected_kinds(arguments)))
    return report(outcomes, arguments.output, time.monotonic() - began_s)


def _selected_kinds(arguments: argparse.Namespace) -> Sequence[Kind]:
    names = arguments.only or (SHORT_KINDS if arguments.short else list(KINDS))
    return [KINDS[name] for name in names]


def run_kind(kind: Kind, folder: Path, options: Options) -> KindResult | str:
    """Or why there is none."""
    if options.stopping.is_set():
        return f"{kind.name}: stopped"
    _log(f"{kind.name} …")
    try:
        outcome = run(kind, folder / kind.name.replace(" ", "-"), options)
    except (pytest.skip.Exception, pytest.fail.Exception) as exc:  # so speaks whoever cannot have a server
        return f"{kind.name}: {exc}"
    except Exception as exc:  # noqa: BLE001  the others go on
        return f"{kind.name}: {type(exc).__name__}: {exc}"
    _log(f"{kind.name}: {'right' if all(row.is_correct for row in outcome.rows) else 'WRONG'}")
    return outcome


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(found: Sequence[KindResult | str], output: Path | None, took_s: float) -> int:
    outcomes = [outcome for outcome in found if isinstance(outcome, KindResult)]
    not_judged = [outcome for outcome in found if isinstance(outcome, str)]
    rows = [row for outcome in outcomes for row in outcome.rows]
    is_right = bool(rows) and not not_judged and all(row.is_correct for row in rows)
    for outcome in outcomes:
        if not all(row.is_correct for row in outcome.rows):
            _log("\n".join([f"what the node of {outcome.kind} said:", *outcome.node_log]))
    notes = [
        f"{kind.name}: {kind.note}" for kind in KINDS.values() if kind.note and kind.name in {row.kind for row in rows}
    ]
    closing = [
        *notes,
        *(f"not judged: {why}" for why in not_judged),
        *_sample_statistics(outcomes, took_s),
        *_totals(rows),
    ]
    print("\n".join([matrix.plain(rows), "", *closing]))
    if output is not None:
        output.write_text("\n\n".join([matrix.markdown(rows), *closing, ""]))
    return 0 if is_right else 1


def _sample_statistics(outcomes: Sequence[KindResult], took_s: float) -> list[str]:
    if not outcomes:
        return []
    samples = sum(row.sample_count for outcome in outcomes for row in outcome.rows)
    slowest = min(outcome.rounds_per_s for outcome in outcomes)
    gap_s = max(outcome.longest_gap_s for outcome in outcomes)
    asked = f"each node was asked {slowest:.1f} times a second or more, with {gap_s:.2f} s at most in between"
    return [f"{samples} samples in {took_s:.0f} s; {asked}"]


def _totals(rows: Sequence[Row]) -> list[str]:
    false_200s, false_downs = matrix.totals(rows)
    return [f"samples that said 200 past the bound: {false_200s}", f"false Downs while healthy: {false_downs}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    add = parser.add_argument
    add("--short", callback="store_true", help=f"{', '.join(SHORT_KINDS)} only, and few faults")
    add("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"some of: {', '.join(KINDS)}")
    add("--reuse", callback="store_true", help="with probes that keep their connections")
    add("--output", type=Path, metavar="FILE", help="write the matrix there, too, in Markdown")
    add("--jobs", type=int, default=MAX_CONCURRENT_KINDS, metavar="COUNT", help="kinds at the same time (%(default)s)")
    add("--node", metavar="URL", help="ask this node, instead of one that watches the servers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

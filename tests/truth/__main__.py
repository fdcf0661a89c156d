"""Inject every known fault into real servers and count false statuses of the node. Exit code 0: none."""

# ruff: noqa: T201  a command that prints

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import pytest

from tests.truth import matrix
from tests.truth.campaign import KindResult, Options, run, service_id
from tests.truth.kinds import KINDS, SHORT_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CONCURRENT_KINDS = 3  # for two cores; a node without CPU time reports failures of its own


def main() -> int:
    arguments = _arguments()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # ends every `with`, so that no server is left
        signal.signal(number, lambda *_: stopping.set())
    options = Options(is_short=arguments.short, reuse=arguments.reuse, node_url=arguments.node, stopping=stopping)
    names = arguments.only or (SHORT_KINDS if arguments.short else list(KINDS))
    started_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="svcnode-truth-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        results = list(pool.map(lambda name: run_kind(KINDS[name], Path(folder), options), names))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summarize(results)))
    return report(results, arguments.output, time.monotonic() - started_s)


def run_kind(kind: Kind, folder: Path, options: Options) -> KindResult | str:
    """The result, or the reason why the kind was not tested."""
    if options.stopping.is_set():
        return f"{kind.name}: stopped"
    _log(f"{kind.name} …")
    try:
        result = run(kind, folder / service_id(kind), options)
    except (pytest.skip.Exception, pytest.fail.Exception) as exc:  # the server is not installed
        return f"{kind.name}: {exc}"
    except Exception as exc:  # noqa: BLE001  the other kinds continue
        return f"{kind.name}: {type(exc).__name__}: {exc}"
    _log(f"{kind.name}: {'right' if all(row.is_correct for row in result.rows) else 'WRONG'}")
    return result


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Summary(TypedDict):
    false_200s: int
    false_downs: int
    disagreements: int
    tested: list[str]  # kinds
    not_tested: list[str]  # reasons
    is_correct: bool


def summarize(results: Sequence[KindResult | str]) -> Summary:
    rows = [row for result in results if isinstance(result, KindResult) for row in result.rows]
    not_tested = [result for result in results if isinstance(result, str)]
    false_200s, false_downs = matrix.totals(rows)
    return Summary(
        false_200s=false_200s,
        false_downs=false_downs,
        disagreements=sum(row.disagreements for row in rows),
        tested=list(dict.fromkeys(row.kind for row in rows)),
        not_tested=not_tested,
        is_correct=bool(rows) and not not_tested and all(row.is_correct for row in rows),
    )


def report(results: Sequence[KindResult | str], output: Path | None, duration_s: float) -> int:
    """Print the matrix and the totals; the exit code."""
    tested = [result for result in results if isinstance(result, KindResult)]
    rows = [row for result in tested for row in result.rows]
    summary = summarize(results)
    for result in tested:
        if not all(row.is_correct for row in result.rows):
            _log("\n".join([f"log of the node of {result.kind}:", *result.node_log]))
    notes = [f"{kind.name}: {kind.note}" for kind in KINDS.values() if kind.note and kind.name in summary["tested"]]
    closing = [
        *matrix.problems(rows),
        *notes,
        *(f"not tested: {reason}" for reason in summary["not_tested"]),
        *_sample_statistics(tested, duration_s),
        f"samples with 200 after the bound: {summary['false_200s']}",
        f"false Downs while healthy: {summary['false_downs']}",
    ]
    print("\n".join([matrix.markdown(rows), "", *closing]))
    if output is not None:
        output.write_text("\n\n".join([matrix.markdown(rows), *closing, ""]))
    return 0 if summary["is_correct"] else 1


def _sample_statistics(results: Sequence[KindResult], duration_s: float) -> list[str]:
    if not results:
        return []
    samples = sum(row.sample_count for result in results for row in result.rows)
    slowest = min(result.rounds_per_s for result in results)
    gap_s = max(result.longest_gap_s for result in results)
    polled = f"each node was polled at least {slowest:.1f} times a second; the longest gap was {gap_s:.2f} s"
    return [f"{samples} samples in {duration_s:.0f} s; {polled}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    add = parser.add_argument
    add("--short", action="store_true", help=f"only {', '.join(SHORT_KINDS)} and few faults")
    add("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"some of: {', '.join(KINDS)}")
    add("--reuse", action="store_true", help="probes reuse their connections")
    add("--output", type=Path, metavar="FILE", help="also write the matrix to this file")
    add("--json", type=Path, metavar="FILE", help="also write the totals to this file, in JSON")
    add("--jobs", type=int, default=MAX_CONCURRENT_KINDS, metavar="COUNT", help="kinds at the same time (%(default)s)")
    add("--node", metavar="URL", help="poll this node instead of one that probes the servers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Measures what the tests notice: makes small faults (mutants) in the source and runs the tests that reach them.

    python -m scripts.mutants [--tree FOLDER] [--count 150] [--seed 1] [--results FILE.json]

Mutants are chosen by a hash of the function and the expression they change, so a function that stays the same has the
same mutants before and after a change elsewhere. The tree is not touched: two copies of its commit are made, each with
its own environment. In one of them all tests run once, while the places of the mutants record which tests reach them,
also in processes that tests start. Then each mutant is written into a copy, and the shortest tests that reach it run
until one fails. A failure outside of the unit tests counts if the test fails again with the mutant, and passes without
it. The tests in SLOW_FOLDERS run in a second stage, only for the mutants that no other test catches.

The results are written after each mutant. A second call with the same work folder goes on where the first ended.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.mutants.copies import Copy
from scripts.mutants.coverage import Chosen, Coverage, record
from scripts.mutants.find import Mutant, find_mutants
from scripts.mutants.trial import Result, judge, shortest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
MARKS = "not wide and not serial and not deploy"  # as in `make test`
SLOW_FOLDERS = ("tests/browser", "tests/conformance", "tests/integration", "tests/stress")


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{row['number']:>4}  {row['result']:<11}  {row['path']}:{row['line']}  {row['operator']}  "
        f"{str(row['before'])[:80]!r} -> {str(row['after'])[:80]!r}  "
        f"({row['tests_run']} of {row['covering_tests']} tests)  {row['by']}"
        for row in rows
    ]
    packages = sorted({str(row["package"]) for row in rows})
    shares = [share_text(name, [row for row in rows if row["package"] == name]) for name in packages]
    return "\n".join([*lines, "", *shares, share_text("all", rows), ""])


def share_text(name: str, rows: Sequence[dict[str, Any]]) -> str:
    results = Counter(str(row["result"]) for row in rows)
    share = 100 * results["caught"] / max(1, len(rows))
    return (
        f"{name:<14} {share:5.1f} %  {results['caught']} of {len(rows)} caught, "
        f"{results['survived']} survived, {results['not covered']} not covered"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure which small faults of the source the tests notice.")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="a clone of this repository; its commit HEAD is measured"
    )
    parser.add_argument("--count", type=int, default=150, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="another seed chooses other mutants")
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="seconds of tests per mutant, at most")
    parser.add_argument("--marks", default=MARKS, help="the tests that judge, as `pytest -m`")
    parser.add_argument("--workers", type=int, default=4, help="processes of the run that records, as `pytest -n`")
    parser.add_argument("--results", type=Path, default=Path("mutants.json"), help="the table is written beside it")
    parser.add_argument("--work", type=Path, help="a folder to keep; a second call goes on in it")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="mutants-"))).resolve()
    work.mkdir(exist_ok=True)
    work.chmod(0o755)
    try:
        measure(arguments, work)
    finally:
        if arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def measure(arguments: argparse.Namespace, work: Path) -> None:
    copies = [Copy(arguments.tree.resolve(), work / str(number)) for number in (1, 2)]
    cache = copies[0].folder / ".cache"  # what tests build once
    cache.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (copies[1].folder / ".cache").symlink_to(cache)
    candidates = find_mutants(copies[1].folder)
    mutants = sorted(candidates, key=lambda one: one.rank(arguments.seed))[: arguments.count]
    print(f"{len(mutants)} of {len(candidates)} possible mutants", flush=True)
    results = Results(arguments.results, mutants)
    parallel = ("-n", str(arguments.workers), "--dist", "loadfile", "--no-loadscope-reorder", "-m", arguments.marks)
    fast = tuple(f"--ignore={folder}" for folder in SLOW_FOLDERS)
    slow = tuple(folder for folder in SLOW_FOLDERS if (copies[0].folder / folder).exists())
    for number, paths in enumerate((fast, slow)):
        saved = work / f"coverage-{number}.json"
        if saved.exists():
            content = json.loads(saved.read_text())
            content["reached_by"] = {int(mutant): tests for mutant, tests in content["reached_by"].items()}
            coverage = Coverage(**content)
        else:
            not_caught = {one: mutants[one] for one in results.not_caught(number)}
            coverage = record(copies, Chosen(not_caught, candidates), (*parallel, *paths))
            saved.write_text(json.dumps(asdict(coverage)))
        print(f"stage {number + 1}: {len(coverage.durations)} tests", flush=True)
        judge_all(copies, coverage, results, number, arguments.budget)
    print(table(results.rows()))


def judge_all(copies: Sequence[Copy], coverage: Coverage, results: Results, stage: int, budget_s: float) -> None:
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge_one(number: int) -> None:
        copy = free.get()
        try:
            reaching = coverage.reached_by.get(number, [])
            tests = shortest(reaching, coverage.durations, budget_s)
            results.add(number, stage, judge(copy, results.mutants[number], tests, coverage.durations), len(reaching))
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(judge_one, results.not_caught(stage)))


class Results:
    """Kept in a file, so that nothing is lost if the run is ended."""

    def __init__(self, file: Path, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self._file = file
        self._lock = threading.Lock()
        self._by_number: dict[int, dict[str, Any]] = {}
        if file.exists():
            self._by_number = {row["number"]: row for row in json.loads(file.read_text())}

    def not_caught(self, stage: int) -> list[int]:
        """Those that neither an earlier stage has caught nor this one has judged."""
        done = {number for number, row in self._by_number.items() if row["result"] == "caught" or row["stage"] >= stage}
        return [number for number in range(len(self.mutants)) if number not in done]

    def rows(self) -> list[dict[str, Any]]:
        return [row for _, row in sorted(self._by_number.items())]

    def add(self, number: int, stage: int, result: Result, covering_tests: int) -> None:
        mutant = self.mutants[number]
        row = {"number": number, "package": mutant.package, "stage": stage, "covering_tests": covering_tests}
        row |= {**asdict(mutant), **asdict(result)}
        with self._lock:
            if before := self._by_number.get(number):
                for name in ("covering_tests", "tests_run", "took_s"):
                    row[name] += before[name]
                if row["result"] == "not covered":
                    row["result"] = before["result"]
            self._by_number[number] = row
            self._file.write_text(json.dumps(self.rows(), indent=1))
            self._file.with_suffix(".txt").write_text(table(self.rows()))
        print(f"{number}: {row['result']} after {result.took_s} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Judges one mutant: runs tests that reach it until one fails."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.mutants.copies import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scripts.mutants.copies import Copy, Run
    from scripts.mutants.find import Mutant

FIRST_FILES = 5
# Other failures are confirmed: they may depend on processes and on time.
RELIABLE_TESTS = "tests/unit/"
RELIABLE_BELOW_S = 0.5
START_LIMIT_S = 300.0
NO_TESTS = 5  # an exit code of pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    result: str  # "caught", "survived", "not covered"
    by: str = ""
    tests_run: int = 0
    took_s: float = 0.0


def judge(copy: Copy, mutant: Mutant, tests: Sequence[str], durations: dict[str, float]) -> Result:
    if not tests:
        return Result(result="not covered")
    began_s = time.monotonic()
    trial = Trial(copy, mutant, durations)
    by = ""
    for batch in batches(mutant, tests, durations):
        by = by or trial.first_failure(batch)
    return Result(
        result="caught" if by else "survived",
        by=by,
        tests_run=len(tests),
        took_s=round(time.monotonic() - began_s, 1),
    )


def shortest(tests: Sequence[str], durations: dict[str, float], budget_s: float) -> list[str]:
    """As many as take no more than `budget_s` together, but at least one if there is any."""
    chosen: list[str] = []
    total_s = 0.0
    for test in sorted(tests, key=lambda test: (durations[test], test)):
        total_s += durations[test]
        if chosen and total_s > budget_s:
            break
        chosen.append(test)
    return chosen


def batches(mutant: Mutant, tests: Sequence[str], durations: dict[str, float]) -> Iterator[list[str]]:
    """The tests by file, since a file shares servers: first a few that are named like the mutant's, or short."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        files[file_of(test)].append(test)
    words = {*Path(mutant.path.removesuffix(".py").removesuffix("/__init__")).parts[2:]}

    def order(file: str) -> tuple[int, float]:
        named = words & {*Path(file.removesuffix(".py").replace("test_", "")).parts}
        return -len(named), sum(durations[test] for test in files[file])

    ordered = [files[file] for file in sorted(files, key=order)]
    for part in (ordered[:FIRST_FILES], ordered[FIRST_FILES:]):
        if part:
            yield [test for file in part for test in file]


class Trial:
    """One mutant in one copy."""

    def __init__(self, copy: Copy, mutant: Mutant, durations: dict[str, float]) -> None:
        self._copy = copy
        self._path = mutant.path
        self._durations = durations
        self._original = source = copy.read(mutant.path)
        self._mutated = source[: mutant.start] + f"({mutant.after})".encode() + source[mutant.end :]

    def first_failure(self, tests: list[str]) -> str:
        """The test that catches the mutant, or how else it is caught; empty if it is not."""
        while tests:
            run = self._run(tests, self._mutated)
            if run.code in (0, NO_TESTS):
                return ""
            if not run.failed:  # such as an import that fails, or no end; without the mutant it must not happen
                end = f"pytest exits {run.code}: {run.output[-200:].strip()}"
                return end if self._run(tests, self._original).code in (0, NO_TESTS) else ""
            test = next(iter(run.failed))
            if self._is_reliable(test) or self._is_confirmed(test):
                return test
            tests = tests[tests.index(test) + 1 :]
        return ""

    def _is_reliable(self, test: str) -> bool:
        return test.startswith(RELIABLE_TESTS) and self._durations[test] < RELIABLE_BELOW_S

    def _is_confirmed(self, test: str) -> bool:
        return self._run([test], self._mutated).code != 0 and self._run([test], self._original).code == 0

    def _run(self, tests: list[str], source: bytes) -> Run:
        limit_s = START_LIMIT_S + 5 * sum(self._durations[test] for test in tests)
        self._copy.write(self._path, source)
        try:
            return self._copy.run_tests("-x", tests=tests, limit_s=limit_s)
        finally:
            self._copy.write(self._path, self._original)

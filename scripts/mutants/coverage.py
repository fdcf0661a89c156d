"""Which tests reach which mutant, and how long they take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.mutants.copies import Run, file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.mutants.copies import Copy
    from scripts.mutants.find import Mutant

TESTS_FAILED = 1  # an exit code of pytest
RECORD_LIMIT_S = 3 * 3600.0
HIT = '(__import__("builtins").__dict__.get("mutant_hit", {{}}.get)({}) or ('  # harmless where there is no recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    durations: dict[str, float]  # of the tests that pass
    reached_by: dict[int, list[str]]


def record(copies: Sequence[Copy], chosen: Chosen, options: Sequence[str]) -> Coverage:
    """`options` are those of pytest. A test that fails counts if it passes where nothing is recorded."""
    copy, plain = copies
    originals = {path: copy.read(path) for path in {one.path for one in chosen.mutants.values()}}
    for path, source in originals.items():
        copy.write(path, instrument(source, chosen.places(path)))
    for file in copy.hits.iterdir():
        file.unlink()
    try:
        run = copy.run_tests(*options, limit_s=RECORD_LIMIT_S)
    finally:
        for path, source in originals.items():
            copy.write(path, source)
    if run.code not in (0, TESTS_FAILED):
        raise SystemExit(f"the recording run ends with {run.code}:\n{run.output[-2000:]}")
    failed = list(run.failed)
    print(f"{len(failed)} tests fail without a mutant, and run again", *failed, sep="\n  ", flush=True)
    again = plain.run_tests(tests=failed, limit_s=RECORD_LIMIT_S) if failed else Run()
    left_out = {*again.failed, *again.skipped, *run.skipped}
    durations = {test: s for test, s in (run.durations | again.durations).items() if test not in left_out}
    return Coverage(durations=durations, reached_by=reached(copy, chosen.mutants, durations))


@dataclass(frozen=True, slots=True)
class Chosen:
    mutants: dict[int, Mutant]
    candidates: Sequence[Mutant]

    def places(self, path: str) -> list[tuple[int, int, int]]:
        """A mutant that is evaluated at import is reached by the tests that use any function of its module."""
        used = {(one.start, one.end) for one in self.candidates if one.path == path and not one.at_import}
        found = []
        for number, one in self.mutants.items():
            if one.path == path:
                ranges = used if one.at_import and used else {(one.start, one.end)}
                found += [(number, start, end) for start, end in ranges]
        return found


def reached(copy: Copy, mutants: dict[int, Mutant], tests: dict[str, float]) -> dict[int, list[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for file in copy.hits.glob("hits-*"):
        for line in file.read_text(errors="replace").splitlines():
            number, _, test = line.partition(" ")
            if test in tests:
                found[int(number)].add(test)
    texts = {path: (copy.folder / path).read_text() for path in {file_of(test) for test in tests}}
    for mutant_number, one in mutants.items():
        if one.at_import:  # also the tests of files that name the module: most import it before any test runs
            module = one.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            naming = {path for path, text in texts.items() if f"{module} import" in text}
            found[mutant_number] |= {test for test in tests if file_of(test) in naming}
    return {number: sorted(found[number]) for number in mutants}


def instrument(source: bytes, places: Sequence[tuple[int, int, int]]) -> bytes:
    """`places` are the number of a mutant, and start and end of an expression that tells it."""
    inserted = [(start, HIT.format(number)) for number, start, _ in places] + [(end, "))") for _, _, end in places]
    for position, text in sorted(inserted, key=lambda one: (one[0], one[1] == "))"), reverse=True):
        source = source[:position] + text.encode() + source[position:]
    return source

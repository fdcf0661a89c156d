"""The matrix of kinds and faults, as Markdown tables, and what is wrong in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.truth.kinds import AVAILABILITY_FAULTS, CHAIN_FAULTS, WORK_FAULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.truth.evaluate import Row

EMPTY_CELL = "—"


def totals(rows: Sequence[Row]) -> tuple[int, int]:
    """The samples with 200 after the bound, and the false Downs while healthy."""
    return sum(row.false_200s for row in rows), sum(row.false_downs for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """Tables with one line for each kind: the observed status and the seconds for each fault, and both totals."""
    tables = (_table(rows, faults) for faults in (AVAILABILITY_FAULTS, WORK_FAULTS, CHAIN_FAULTS))
    return "\n\n".join(filter(None, tables))


def _table(rows: Sequence[Row], faults: Sequence[str]) -> str:
    """Empty if no kind has one of the faults."""
    by_fault = {(row.kind, row.fault): row for row in rows if row.fault in faults}
    kinds = dict.fromkeys(kind for kind, _ in by_fault)
    names = [fault for fault in faults if any((kind, fault) in by_fault for kind in kinds)]
    lines = [["kind", *names, "200 after the bound", "false Downs"]]
    lines += [["---"] * len(lines[0])]
    for kind in kinds:
        found = [by_fault.get((kind, fault)) for fault in names]
        sums = totals([row for row in rows if row.kind == kind])
        lines += [[kind, *(EMPTY_CELL if row is None else _cell(row) for row in found), *map(str, sums)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if kinds else ""


def _cell(row: Row) -> str:
    observed = _statuses(row.observed)
    seconds = EMPTY_CELL if row.detected_s is None else f"{row.detected_s:.2f}"
    return f"{observed} {seconds} s" if row.is_correct else f"**{observed}**, expected {_statuses(row.expected)}"


def problems(rows: Sequence[Row]) -> list[str]:
    """A line for each wrong row."""
    return [
        f"WRONG: {row.kind}, {row.fault}: {_statuses(row.observed)} instead of {_statuses(row.expected)} within "
        f"{row.bound_s:.2f} s; list and health disagree {row.disagreements} times; {row.sample_count} samples"
        for row in rows
        if not row.is_correct
    ]


def _statuses(statuses: tuple[str, ...]) -> str:
    return ", ".join(statuses) or "nothing"

"""The matrix of kinds and faults: as plain text with a line for each fault, and as a Markdown table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.truth.faults import AVAILABILITY_FAULTS, FAULT_NAMES, WORK_FAULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.truth.evaluate import Row

HEADINGS = ("kind", "fault", "expected", "observed", "seconds", "bound", "200 after it", "false Downs", "")
EMPTY_CELL = "—"


def totals(rows: Sequence[Row]) -> tuple[int, int]:
    """The samples with 200 after the bound, and the false Downs while healthy."""
    return sum(row.false_200s for row in rows), sum(row.false_downs for row in rows)


def plain(rows: Sequence[Row]) -> str:
    cells = [HEADINGS, *(_line(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, *_absent(rows)])


def _line(row: Row) -> tuple[str, ...]:
    is_healthy = row.expected == ("Up",)
    return (
        row.kind,
        row.fault,
        _statuses(row.expected),
        _statuses(row.observed),
        _seconds(row),
        f"{row.bound_s:.2f}",
        EMPTY_CELL if is_healthy else str(row.false_200s),
        str(row.false_downs) if is_healthy else EMPTY_CELL,
        _problem_text(row),
    )


def _absent(rows: Sequence[Row]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        absent = [name for name in FAULT_NAMES if name not in {row.fault for row in rows if row.kind == kind}]
        lines += [f"{kind}: {EMPTY_CELL} {', '.join(absent)}"] if absent else []
    return ["", *lines] if lines else []


def _statuses(statuses: tuple[str, ...]) -> str:
    return ", ".join(statuses) or "nothing"


def _seconds(row: Row) -> str:
    return EMPTY_CELL if row.detected_s is None else f"{row.detected_s:.2f}"


def _problem_text(row: Row) -> str:
    if row.is_correct:
        return ""
    disagreements = [f"list and health disagree {row.disagreements} times"] if row.disagreements else []
    return "; ".join(["WRONG", *disagreements, *([] if row.has_enough_samples else ["too few samples"])])


def markdown(rows: Sequence[Row]) -> str:
    """Two tables with one line for each kind: the observed status and the seconds for each fault, and both totals."""
    tables = (_markdown_table(rows, faults) for faults in (AVAILABILITY_FAULTS, WORK_FAULTS))
    return "\n\n".join(filter(None, tables))


def _markdown_table(rows: Sequence[Row], faults: Sequence[str]) -> str:
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
    if row.is_correct:
        return f"{_statuses(row.observed)} {_seconds(row)} s"
    return f"**{_statuses(row.observed)}**, expected {_statuses(row.expected)}"

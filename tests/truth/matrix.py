"""The matrix: kind by fault, on a terminal as one line for each, in Markdown as a table of kinds and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.truth.faults import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.truth.judge import Row

HEADINGS = ("kind", "fault", "expected", "seen", "seconds", "bound", "200 past it", "false Downs", "")
NOTHING = "—"


def totals(rows: Sequence[Row]) -> tuple[int, int]:
    """The samples that said 200 past the bound, and the false Downs while healthy."""
    return sum(row.false_200s for row in rows), sum(row.false_downs for row in rows)


def plain(rows: Sequence[Row]) -> str:
    cells = [HEADINGS, *(_line(row) for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, *_absent(rows)])


def _line(row: Row) -> tuple[str, ...]:
    is_healthy = row.expected == ("Up",)
    return (
        row.kind,
        row.fault,
        _statuses(row.expected),
        _statuses(row.seen),
        _seconds(row),
        f"{row.bound_s:.2f}",
        NOTHING if is_healthy else str(row.false_200s),
        str(row.false_downs) if is_healthy else NOTHING,
        _complaint(row),
    )


def _absent(rows: Sequence[Row]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        absent = [name for name in NAMES if name not in {row.fault for row in rows if row.kind == kind}]
        lines += [f"{kind}: {NOTHING} {', '.join(absent)}"] if absent else []
    return ["", *lines] if lines else []


def _statuses(statuses: tuple[str, ...]) -> str:
    return ", ".join(statuses) or "nothing"


def _seconds(row: Row) -> str:
    return NOTHING if row.detected_s is None else f"{row.detected_s:.2f}"


def _complaint(row: Row) -> str:
    if row.is_right:
        return ""
    said = [f"{row.disagreements} times, list and health disagree"] if row.disagreements else []
    return "; ".join(["WRONG", *said, *([] if row.is_enough else ["too few samples"])])


def markdown(rows: Sequence[Row]) -> str:
    """One line for each kind: what was seen of each fault and after how many seconds, and its two totals."""
    by_place = {(row.kind, row.fault): row for row in rows}
    lines = [["kind", *NAMES, "200 past the bound", "false Downs"]]
    lines += [["---"] * len(lines[0])]
    for kind in dict.fromkeys(row.kind for row in rows):
        found = [by_place.get((kind, fault)) for fault in NAMES]
        sums = totals([row for row in found if row is not None])
        lines += [[kind, *(NOTHING if row is None else _cell(row) for row in found), *map(str, sums)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row) -> str:
    if row.is_right:
        return f"{_statuses(row.seen)} {_seconds(row)} s"
    return f"**{_statuses(row.seen)}**, expected {_statuses(row.expected)}"

"""The report of the campaign: the exit code is 0 only if every kind was tested and every status was right."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.truth.__main__ import report, run_kind, summarize
from tests.truth.campaign import KindResult, Options
from tests.truth.evaluate import DOWN, UP, Row
from tests.truth.kinds import AVAILABILITY_FAULTS, CHAIN_FAULTS, KINDS, WORK_FAULTS, Kind

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = Row(kind="nginx", fault="killed", expected=(DOWN,), observed=(DOWN,), detected_s=1.0, bound_s=1.82)
WRONG = Row(kind="nginx", fault="killed", expected=(DOWN,), observed=(UP,), detected_s=None, bound_s=1.82, false_200s=9)
OPTIONS = Options(is_short=False, reuse=False, node_url=None, stopping=threading.Event())
LOG_LINE = "10:00:00 a line of the node"


def result(*rows: Row) -> KindResult:
    return KindResult(kind="nginx", rows=[*rows], rounds_per_s=20.0, longest_gap_s=0.06, node_log=[LOG_LINE])


def test_the_exit_code_is_0_if_all_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([result(RIGHT)], tmp_path / "matrix.md", 60.0) == 0
    assert "| nginx | Down 1.00 s | 0 | 0 |" in (tmp_path / "matrix.md").read_text()
    assert LOG_LINE not in capsys.readouterr().err


def test_the_exit_code_is_1_if_one_row_is_wrong_and_the_log_of_the_node_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [result(RIGHT), result(WRONG)]
    assert report(results, None, 60.0) == 1
    assert summarize(results)["false_200s"] == 9
    output = capsys.readouterr()
    assert "WRONG: nginx, killed: Up instead of Down" in output.out
    assert LOG_LINE in output.err


def test_the_exit_code_is_1_if_a_kind_was_not_tested_or_none_was() -> None:
    reason = "Redis: missing"
    results: list[KindResult | str] = [result(RIGHT), reason]
    assert report(results, None, 60.0) == 1
    assert summarize(results)["not_tested"] == [reason]
    assert report([], None, 60.0) == 1


def test_the_matrix_has_a_column_for_every_fault() -> None:
    columns = {*AVAILABILITY_FAULTS, *WORK_FAULTS, *CHAIN_FAULTS}
    assert {fault.name for kind in KINDS.values() for fault in kind.faults} <= columns


def test_a_condition_of_a_kind_expects_one_status() -> None:
    """Rows of the same condition are merged."""
    expected = {(kind.name, fault.name, fault.expected) for kind in KINDS.values() for fault in kind.faults}
    assert len({(kind, fault) for kind, fault, _ in expected}) == len(expected)


@pytest.mark.parametrize("error", [pytest.skip.Exception("missing"), AssertionError("not ready")])
def test_a_server_that_is_not_installed_or_does_not_start_does_not_end_the_campaign(
    tmp_path: Path, error: BaseException
) -> None:
    def make(*_: object) -> NoReturn:
        raise error

    assert str(run_kind(Kind("nginx", make, ()), tmp_path, OPTIONS)).startswith("nginx: ")

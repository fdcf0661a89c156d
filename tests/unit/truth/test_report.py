"""The report of the campaign: the exit code is 0 only if every kind was tested and every status was right."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.support.servers.provision import skip_or_fail
from tests.truth.__main__ import report, run_kind, summarize
from tests.truth.campaign import KindResult, Options
from tests.truth.evaluate import DOWN, UP, Row
from tests.truth.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = Row(kind="nginx", fault="killed", expected=(DOWN,), observed=(DOWN,), detected_s=1.0, bound_s=1.82)
WRONG = Row(kind="nginx", fault="killed", expected=(DOWN,), observed=(UP,), detected_s=None, bound_s=1.82, false_200s=9)
OPTIONS = Options(is_short=False, reuse=False, node_url=None, stopping=threading.Event())
LOG_LINE = "10:00:00 a line of the node"


def result(*rows: Row) -> KindResult:
    return KindResult(kind="nginx", rows=[*rows], rounds_per_s=20.0, longest_gap_s=0.06, node_log=[LOG_LINE])


def test_the_exit_code_is_0_if_all_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([result(RIGHT)], None, 60.0) == 0
    assert summarize([result(RIGHT)]) == {
        "false_200s": 0,
        "false_downs": 0,
        "disagreements": 0,
        "tested": ["nginx"],
        "not_tested": [],
        "is_correct": True,
    }
    assert LOG_LINE not in capsys.readouterr().err


def test_the_exit_code_is_1_if_one_row_is_wrong_and_the_log_of_the_node_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [result(RIGHT), result(WRONG)]
    assert report(results, None, 60.0) == 1
    assert summarize(results)["false_200s"] == 9
    assert LOG_LINE in capsys.readouterr().err


def test_the_exit_code_is_1_if_a_kind_was_not_tested_or_none_was() -> None:
    reason = "Redis: missing"
    results: list[KindResult | str] = [result(RIGHT), reason]
    assert report(results, None, 60.0) == 1
    assert summarize(results)["not_tested"] == [reason]
    assert report([], None, 60.0) == 1


def test_the_matrix_is_written_to_the_output_file(tmp_path: Path) -> None:
    report([result(RIGHT)], tmp_path / "matrix.md", 60.0)
    assert "| Down 1.00 s |" in (tmp_path / "matrix.md").read_text()


@pytest.mark.parametrize("is_in_ci", ["true", ""])
def test_a_server_that_is_not_installed_does_not_end_the_campaign(
    is_in_ci: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", is_in_ci)
    reason = "nginx-light is missing"

    def make(*_: object) -> NoReturn:
        skip_or_fail(reason)

    assert run_kind(Kind(name="nginx", make=make, faults=()), tmp_path, OPTIONS) == f"nginx: {reason}"


def test_a_server_that_does_not_start_does_not_end_the_campaign(tmp_path: Path) -> None:
    reason = "not ready"

    def make(*_: object) -> NoReturn:
        raise AssertionError(reason)

    kind = Kind(name="nginx", make=make, faults=())
    assert run_kind(kind, tmp_path, OPTIONS) == f"nginx: AssertionError: {reason}"

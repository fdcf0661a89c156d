"""How the campaign ends: with 0 only when everything was judged, and everything was right."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.support.servers.provision import skip_or_fail
from tests.truth.__main__ import report, run_kind
from tests.truth.campaign import KindResult, Options
from tests.truth.evaluate import DOWN, UP, Row
from tests.truth.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = Row(kind="nginx", error="killed", expected=(DOWN,), observed=(DOWN,), detected_s=1.0, bound_s=1.82)
WRONG = Row(kind="nginx", error="killed", expected=(DOWN,), observed=(UP,), detected_s=None, bound_s=1.82, false_200s=9)
OPTIONS = Options(is_short=False, reuse=False, node_url=None, stopping=threading.Event())


def outcome(*rows: Row) -> KindResult:
    return KindResult(
        kind="nginx", rows=[*rows], rounds_per_s=20.0, longest_gap_s=0.06, node_log=["10:00:00 it said so"]
    )


def test_it_ends_with_0_and_its_two_totals_when_all_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([outcome(RIGHT)], None, 60.0) == 0
    *_, false_200s, false_downs = capsys.readouterr().out.splitlines()
    assert (false_200s, false_downs) == ("samples that said 200 past the bound: 0", "false Downs while healthy: 0")


def test_it_ends_with_1_and_what_the_node_said_when_one_row_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([outcome(RIGHT), outcome(WRONG)], None, 60.0) == 1
    told = capsys.readouterr()
    assert "samples that said 200 past the bound: 9\n" in told.out
    assert "10:00:00 it said so" in told.err


def test_it_ends_with_1_when_a_kind_was_not_judged_or_none_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([outcome(RIGHT), "Redis: it is not there"], None, 60.0) == 1
    assert "not judged: Redis: it is not there\n" in capsys.readouterr().out
    assert report([], None, 60.0) == 1


def test_what_it_prints_is_also_written_in_markdown(tmp_path: Path) -> None:
    report([outcome(RIGHT)], tmp_path / "matrix.md", 60.0)
    written = (tmp_path / "matrix.md").read_text()
    assert "| Down 1.00 s |" in written
    assert "false Downs while healthy: 0\n" in written


@pytest.mark.parametrize("is_in_ci", ["true", ""])
def test_a_server_that_cannot_be_had_is_a_reason_and_no_end_of_the_campaign(
    is_in_ci: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", is_in_ci)

    def make(*_: object) -> NoReturn:
        skip_or_fail("nginx is not installed: sudo apt-get install nginx-light")

    kind = Kind(name="nginx", make=make, faults=())
    assert run_kind(kind, tmp_path, OPTIONS) == "nginx: nginx is not installed: sudo apt-get install nginx-light"


def test_a_launcher_that_fails_is_a_reason_and_no_end_of_the_campaign(tmp_path: Path) -> None:
    def make(*_: object) -> NoReturn:
        raise AssertionError("not ready within 60 s")

    kind = Kind(name="nginx", make=make, faults=())
    assert run_kind(kind, tmp_path, OPTIONS) == "nginx: AssertionError: not ready within 60 s"

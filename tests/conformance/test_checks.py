"""Every check against a node that is right in everything but what it demands: that one fails, and no other."""

from __future__ import annotations

import pytest

from svcnode.conformance.checks import CHECKS, health
from svcnode.conformance.run import Outcome, Report, judge
from tests.conformance.broken import BREAKAGES, Breakage
from tests.conformance.right import NodeServer, RightNode

TIMEOUT_S = 10.0


def judged(node: RightNode, *, other_methods: bool = True) -> Report:
    with NodeServer(node.answer) as server:
        node.server = server  # type: ignore[attr-defined]
        return judge(server.url, timeout_s=TIMEOUT_S, other_methods=other_methods)


def failed(report: Report) -> list[str]:
    return [result.check.name for result in report.failed()]


def test_a_node_that_is_right_in_everything_passes_every_check() -> None:
    report = judged(RightNode())
    assert [result for result in report.results if result.outcome is not Outcome.PASSED] == []
    assert [result.check for result in report.results] == list(CHECKS)
    assert report.conforms()


@pytest.mark.parametrize("breakage", [pytest.param(one, id=f"{one.check}: {one.how}") for one in BREAKAGES])
def test_what_is_broken_fails_its_own_check_and_no_other(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    if breakage.check == "health-quick":
        monkeypatch.setattr(health, "QUICK_S", 0.2)
    report = judged(breakage.node())
    assert failed(report) == [breakage.check], report.failed()
    (result,) = report.failed()
    for finding in result.findings:
        assert str(finding.request).split(" ")[1].startswith("/svc/")
        assert finding.expected
        assert finding.came


def test_every_check_has_a_broken_node() -> None:
    assert {breakage.check for breakage in BREAKAGES} == {check.name for check in CHECKS}

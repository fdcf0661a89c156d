"""A service in virtual time, with the checks or reports that a test records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.cli.terminal.explain.explanation import HOW_TO_FIX_IT, WHAT_CHANGES_IT, WHY, explain_service
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from tests.support.operator_context import OperatorHarness

if TYPE_CHECKING:
    from svcnode.cli.terminal.explain.explanation import Explanation

PROBE = "tcp://127.0.0.1:5432"
READY = Verdict.ready()
REFUSED = Verdict.failed("connection refused: 127.0.0.1:5432", code=ReasonCode.CONNECTION_REFUSED)
NO_FILES = Verdict.unknown("too many open files", code=ReasonCode.RESOURCE_EXHAUSTED)
LOADING = Verdict.not_ready("loading", code=ReasonCode.STARTING)


class ServiceScenario:
    """A service that is checked every 10 s, registered at 08:00:00."""

    def __init__(self, probe: Any = PROBE, **options: Any) -> None:
        self.harness = OperatorHarness()
        self.harness.node.register("db", **options | ({"probe": probe} if probe else {}))

    def record(self, *verdicts: Verdict, interval_s: float = 2.0, duration_s: float = 0.0004) -> ServiceScenario:
        self.harness.record("db", *verdicts, interval_s=interval_s, duration_s=duration_s)
        return self

    def wait(self, seconds: float) -> ServiceScenario:
        self.harness.clock.advance(seconds)
        return self

    def details(self, *, next_check_in_s: float | None = 2.2) -> Any:
        details = self.harness.details("db")
        return details | {"next_check_in_s": next_check_in_s if details["schedule"] else None}

    def explain(self, *, next_check_in_s: float | None = 2.2) -> Explanation:
        return explain_service(self.details(next_check_in_s=next_check_in_s))

    def section(self, title: str) -> tuple[str, ...]:
        return dict(self.explain().sections).get(title, ())

    @property
    def why(self) -> tuple[str, ...]:
        return self.section(WHY)

    @property
    def changes(self) -> tuple[str, ...]:
        return self.section(WHAT_CHANGES_IT)

    @property
    def hints(self) -> tuple[str, ...]:
        return self.section(HOW_TO_FIX_IT)


def up(**options: Any) -> ServiceScenario:
    return ServiceScenario(**options).record(*[READY] * 4, interval_s=10.0)


def resolving(**options: Any) -> ServiceScenario:
    """Its failure was notified 10 s ago, and the message about its recovery waits."""
    scenario = up(rise=1, fall=1, **options)
    scenario.harness.start_alerts()
    scenario.record(REFUSED, interval_s=0).harness.send_alerts(after_s=5.0)
    return scenario.wait(10.0).record(READY, interval_s=0)

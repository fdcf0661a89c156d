"""A node with statistics, a virtual clock and the context that operator handlers get."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from svcnode.api.spec import Request
from svcnode.history.timeline import Period, TimelinePage
from svcnode.node.stats import CheckStats
from svcnode.notify import NotifyStatus
from svcnode.notify.alerts import Alerts
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.notify.targets import webhook_from
from svcnode.operator.context import OperatorContext, ProcessStats
from svcnode.operator.details import services_details
from svcnode.operator.outages import RecentOutages
from svcnode.operator.page_feed import PageFeed
from svcnode.operator.single_flight import SingleFlight
from svcnode.operator.structure import StructureCache
from tests.support.nodes import make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.api.spec import Response
    from svcnode.core.model import Verdict
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.replica import Replica

STARTED_AT_S = 1_800_000_000.0  # the wall clock when the node's clock shows 0: 2027-01-15T08:00:00Z


def operator_context(
    node: NodeState, process_stats: ProcessStats | None = None, replica: Replica | None = None
) -> OperatorContext:
    """With a history and an event hub that are empty and fake."""
    history = SimpleNamespace(last_id=0, problem=None, problem_code=None, is_healthy=True, buckets=no_buckets)
    history.timeline = no_timeline
    history.subscribe, history.load_latest = lambda _: None, no_transitions
    return OperatorContext(
        node=node,
        next_check_in_s=lambda _: None,
        check_stats=CheckStats(node),
        history=cast("Any", history),
        events=cast("Any", SimpleNamespace(stream_count=0)),
        page_feed=PageFeed(node),
        process_stats=process_stats or ProcessStats(0.0, node.now_s()),
        notify_status=NotifyStatus(),
        single_flight=SingleFlight(),
        history_single_flight=SingleFlight(),
        outages=RecentOutages(cast("Any", history)),
        structure=StructureCache(node),
        replica=replica,
    )


async def no_buckets(*_: object) -> dict[str, Any]:
    return {}


async def no_timeline(_: Period) -> TimelinePage:
    return TimelinePage([], None)


async def no_transitions(_: int) -> list[Any]:
    return []


class OperatorHarness:
    """Time passes only when the test advances the clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.wall = VirtualClock(STARTED_AT_S)  # plus the time of the other clock
        self.node = make_node(
            "validator-7",
            version="v1.4.2",
            clock=self.clock,
            wall_clock=lambda: self.wall.now_s + self.clock.now_s,
            **options,
        )
        self.process_stats = ProcessStats(STARTED_AT_S, self.clock.now_s)
        self.context = operator_context(self.node, self.process_stats)
        self.history = cast("Any", self.context.history)

    def start_alerts(self) -> None:
        """As with a notification target."""
        route = RouteSettings(target=webhook_from("https://hooks.example.com", {}))
        alerts = Alerts(self.node, [route], AlertPolicy(), self.clock.now_s)
        self.node.subscribe(lambda change: alerts.record_change(change, None))
        self.context.notify_status.alerts = alerts

    def send_alerts(self, *, after_s: float) -> None:
        self.clock.advance(after_s)
        assert self.context.notify_status.alerts is not None
        (route,) = self.context.notify_status.alerts.routes
        report = route.report(self.clock.now_s)
        assert report is not None
        route.delivered(report, self.clock.now_s)

    def record(self, service_id: str, *verdicts: Verdict, interval_s: float = 0.0, duration_s: float = 0.0) -> None:
        """Record each verdict, then advance the clock."""
        for verdict in verdicts:
            record(self.node, service_id, verdict, duration_s=duration_s)
            self.clock.advance(interval_s)

    def details(self, service_id: str) -> Any:
        """As in the JSON response."""
        return json.loads(json.dumps(*services_details(self.context, [service_id], with_recent_checks=True)))

    def request(self, handler: Callable[..., Any], name: str = "", query: str = "") -> Response:
        request = Request("GET", b"/", query.encode())
        return cast("Response", asyncio.run(handler(self.context, request, name)))

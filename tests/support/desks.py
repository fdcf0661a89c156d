"""A node with its journal and a clock, and a desk to ask what the operator surface says of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from svcnode.journal import Journal
from svcnode.node import Node
from svcnode.notify.notices import Notices
from svcnode.web.operator.desk import Desk, Vitals
from svcnode.web.operator.details import Now, service_details
from svcnode.web.visits import Visit
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from svcnode.spec import Answer

STARTED_AT_S = 1_800_000_000.0  # by the clock on the wall, when the node's own shows 0: 2027-01-15T08:00:00Z


class Scene:
    """Time passes only as the test says."""

    def __init__(self, **words: Any) -> None:
        self.clock = VirtualClock()
        self.node = Node("validator-7", version="v1.4.2", clock=self.clock, **words)
        self.journal = Journal(self.node)
        self.vitals = Vitals(started_at_s=STARTED_AT_S, began_s=self.clock.now_s)
        self.history = cast("Any", SimpleNamespace(last_id=0, problem=None))
        no_events = cast("Any", None)
        self.desk = Desk(
            node=self.node,
            journal=self.journal,
            history=self.history,
            events=no_events,
            vitals=self.vitals,
            notices=Notices(),
        )

    def see(self, service_id: str, *verdicts: Verdict, every_s: float = 0.0, took_s: float = 0.0) -> None:
        """Each verdict, and then the time that passes."""
        for verdict in verdicts:
            self.node.saw(service_id, verdict, duration_s=took_s)
            self.clock.advance(every_s)

    @property
    def now(self) -> Now:
        return Now(self.clock.now_s, STARTED_AT_S + self.clock.now_s)

    def details(self, service_id: str) -> Any:
        """As they come over the wire."""
        return json.loads(json.dumps(service_details(self.node, self.journal, service_id, self.now)))

    def ask(self, handler: Callable[..., Any], name: str = "", query: str = "") -> Answer:
        visit = Visit("GET", b"/", query.encode())
        return cast("Answer", asyncio.run(handler(self.desk, visit, name)))

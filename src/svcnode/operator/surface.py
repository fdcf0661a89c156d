"""OperatorSurface: records what operators see of a node. `svcnode serve` and embedded nodes use the same."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from svcnode.node.stats import CheckStats
from svcnode.notify import NotifyStatus
from svcnode.operator.context import LoopLagMeter, OperatorContext, ProcessStats
from svcnode.operator.event_hub import EventHub
from svcnode.operator.outages import RecentOutages
from svcnode.operator.page_feed import PageFeed
from svcnode.operator.single_flight import SingleFlight
from svcnode.operator.structure import StructureCache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from svcnode.history import History
    from svcnode.node.checks import Checks
    from svcnode.node.node_state import NodeState
    from svcnode.notify.notifier import AlertStateStorage, Notifier, NotifySettings
    from svcnode.sharing.replica import Replica


class OperatorSurface:
    """Counts checks from its creation on. History and notifications run while the blocks of its methods run."""

    def __init__(
        self,
        node: NodeState,
        checks: Checks,
        config_file_of: Callable[[str], Path | None] = lambda _: None,
    ) -> None:
        self._node = node
        self._checks = checks
        self._config_file_of = config_file_of
        self.check_stats = CheckStats(node)
        self.process_stats = ProcessStats(time.time(), node.now_s())
        self._notify_status = NotifyStatus()
        self._notifier: Notifier | None = None
        self.context: OperatorContext  # while `recording`

    @asynccontextmanager
    async def recording(self, history: History, replica: Replica | None = None) -> AsyncIterator[OperatorContext]:
        page_feed = PageFeed(self._node)
        async with history:
            self.context = OperatorContext(
                node=self._node,
                next_check_in_s=self._checks.next_check_in_s,
                check_stats=self.check_stats,
                history=history,
                events=EventHub(history),
                page_feed=page_feed,
                process_stats=self.process_stats,
                notify_status=self._notify_status,
                single_flight=SingleFlight(),
                history_single_flight=SingleFlight(),
                outages=RecentOutages(history),
                structure=StructureCache(self._node),
                config_file_of=self._config_file_of,
                replica=replica,
            )
            try:
                with page_feed.following():
                    yield self.context
            finally:
                self.context.outages.close()
                self.context.structure.close()
                await self.context.single_flight.close()
                await self.context.history_single_flight.close()

    @asynccontextmanager
    async def notifying(
        self, settings: NotifySettings | None, storage: AlertStateStorage | None = None
    ) -> AsyncIterator[None]:
        """Send notifications while `recording`, and measure the delay of the event loop.

        Their state is saved in `storage`, by default in the history.
        """
        self._storage = storage or self.context.history
        async with AsyncExitStack() as self._notifier_stack:
            try:
                await self.apply_notify(settings)
                with LoopLagMeter(self.process_stats).running():
                    yield
            finally:
                self._notifier = None

    async def apply_notify(self, settings: NotifySettings | None) -> None:
        """Apply new settings while `notifying`."""
        if self._notifier is not None:
            self._notifier.apply(settings)
        elif settings is not None:
            from svcnode.notify.notifier import Notifier

            notifier = Notifier(
                self._node,
                settings,
                self._notify_status,
                storage=self._storage,
                turns=None if self.context.replica is None else self.context.replica.turns,
                history=self.context.history,
                ping_scheduler=self._checks.ping,
            )
            self._notifier = await self._notifier_stack.enter_async_context(notifier)

    def flush_notifications(self) -> None:
        """Send the pending changes, and notify of no further ones: a planned stop is not notified."""
        if self._notifier is not None:
            self._notifier.flush()

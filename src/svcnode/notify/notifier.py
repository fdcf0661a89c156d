"""Follows a node, and tells people. All of it happens on the event loop, in the moments that others leave."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Self

from svcnode.core.model import ChangeKind
from svcnode.notify.digest import digest
from svcnode.notify.memory import from_text, to_text
from svcnode.notify.rules import Rules
from svcnode.notify.sending import Sender

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from svcnode.core.model import Change, Service
    from svcnode.node import Node
    from svcnode.notify.memory import Memory
    from svcnode.notify.notices import Notices
    from svcnode.notify.settings import NotifySettings

log = logging.getLogger("svcnode.notify")

_DEFINING = (ChangeKind.REGISTERED, ChangeKind.REPLACED)


class Notifier:
    """Tells of changes for as long as its `async with` block runs; without settings, nobody."""

    def __init__(
        self,
        node: Node,
        settings: NotifySettings | None,
        notices: Notices,
        *,
        memory: Memory | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._first_settings = settings
        self._memory = memory
        self._wall_clock = wall_clock
        self._sender = Sender(notices, self._remember)
        self._recalling: asyncio.Task[None] | None = None
        self._rules: Rules | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at_s = math.inf  # when the rules are asked again whether there is something to tell

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.apply(self._first_settings)
        if self._memory is not None:
            self._recalling = asyncio.create_task(self._recall(self._memory), name="what was told before")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hush()
        if self._recalling is not None:
            self._recalling.cancel()  # and stays, so that what it would have read is not written over
        if exc_type is None:
            await self._sender.close()
        else:
            self._sender.abandon()

    def apply(self, settings: NotifySettings | None) -> None:
        """Go on with other settings; what waits to be told or sent is kept."""
        targets = () if settings is None else settings.targets
        if self._sender.set_targets(targets):
            log.info("changes are told to %s", ", ".join(target.name for target in targets) or "nobody")
        if settings is None or not settings.targets:
            self._follow_no_more()
            self._forget()
        elif self._rules is None:
            self._rules = Rules(settings.manners, self._node.now_s())
            self._unsubscribe = self._node.subscribe(self._heard)
            self._rules.begin(self._node, self._node.health, self._node.condition.issues, self._node.now_s())
        else:
            self._rules.adopt(settings.manners, self._node.now_s())
        self._set_timer()

    def hush(self) -> None:
        """Say what was held back, and nothing of what is still to come: stopping on purpose is no news."""
        self._tell(is_end=True)
        self._follow_no_more()

    def _follow_no_more(self) -> None:
        self._unsubscribe()
        self._rules = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._asked_at_s = None, math.inf

    def _heard(self, change: Change) -> None:
        # Called on whichever thread made the change.
        condition = self._node.condition
        if condition.draining:
            return
        found = self._node.find(change.service_id) if change.service_id and change.kind in _DEFINING else None
        self._loop.call_soon_threadsafe(self._note, change, found and found[0], condition.issues)

    def _note(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        if self._rules is not None:
            self._rules.note(change, service, issues)
            self._set_timer()

    def _set_timer(self) -> None:
        due_at_s = math.inf if self._rules is None else self._rules.due_at_s
        if due_at_s >= self._asked_at_s:
            return  # the question that is set for then will find nothing to tell yet, and be set anew
        if self._timer is not None:
            self._timer.cancel()
        self._asked_at_s = due_at_s
        self._timer = self._loop.call_later(max(0.0, due_at_s - self._node.now_s()), self._on_time)

    def _on_time(self) -> None:
        self._timer, self._asked_at_s = None, math.inf
        self._tell()
        self._set_timer()

    def _tell(self, *, is_end: bool = False) -> None:
        if self._rules is None:
            return
        now_s = self._node.now_s()
        news = self._rules.take_all(now_s) if is_end else self._rules.take(now_s)
        if news is not None:
            to_wall = self._wall_clock() - now_s
            message_id = os.urandom(8).hex()
            message = digest(news, self._node.identity, message_id, lambda at_s: at_s + to_wall)
            self._sender.post(message, self._rules.incidents())
            self._remember()

    # ---- over a restart

    async def _recall(self, memory: Memory) -> None:
        """The file may take its time; until then, what comes is told as if nothing had been told before."""
        text = await memory.kept_note()
        if self._rules is None:
            return  # it is the end
        self._recalling = None
        now_s, wall_s = self._node.now_s(), self._wall_clock()
        before = from_text(text, lambda at_s: now_s - max(0.0, wall_s - at_s))
        self._rules.recall(before.incidents, now_s)
        self._set_timer()
        self._sender.recall(self._rules.incidents(), before.missed)
        self._remember()

    def _forget(self) -> None:
        if self._recalling is not None:
            self._recalling.cancel()
            self._recalling = None
        self._sender.forget()
        self._remember()

    def _remember(self) -> None:
        if self._memory is None or self._recalling is not None:
            return  # nothing is written over what is still to be read
        to_wall = self._wall_clock() - self._node.now_s()
        self._memory.keep_note(to_text(self._sender.kept, lambda at_s: at_s + to_wall))

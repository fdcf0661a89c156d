"""The change feed: every change to every listener, once and in order, with no lock held while they run."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from svcnode.core.errors import is_user_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Change

log = logging.getLogger("svcnode.feed")


class ChangeFeed:
    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Change], None], ...] = ()
        self._listeners_lock = threading.Lock()
        self._pending: deque[Change] = deque()
        self._delivery_lock = threading.Lock()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        with self._listeners_lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._listeners_lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return unsubscribe

    def append(self, change: Change) -> None:
        """Take a change in; the caller's own lock sets the order, and `deliver` follows once it is free."""
        self._pending.append(change)

    def deliver(self) -> None:
        # One thread at a time delivers. A change that comes while it does is taken along, or seen by the loop's
        # own second look after the release; a listener that causes a change finds it delivered after its own.
        while self._pending and (delivering := self._delivery_lock).acquire(blocking=False):
            try:
                while self._pending:
                    self._call_listeners(self._pending.popleft())
            finally:
                delivering.release()  # that one, should a listener have forked

    def after_fork(self) -> None:
        """In the child, nobody is there to let go of the locks that other threads held."""
        self._listeners_lock, self._delivery_lock = threading.Lock(), threading.Lock()

    def _call_listeners(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except BaseException as exc:  # whoever made the change must not end by it
                if is_user_interrupt(exc):
                    raise
                log.exception("a listener to the changes of the node failed; the others go on")

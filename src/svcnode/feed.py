"""The change feed: every change to every listener, once and in order, with no lock held while they run."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from svcnode.core.interrupts import is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Change

log = logging.getLogger("svcnode.feed")


class ChangeFeed:
    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Change], None], ...] = ()
        self._listeners_lock = threading.Lock()
        self._undelivered: deque[Change] = deque()
        self._delivering = threading.Lock()

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
        self._undelivered.append(change)

    def deliver(self) -> None:
        # One thread at a time delivers. A change that comes while it does is taken along, or seen by the loop's
        # own second look after the release; a listener that causes a change finds it delivered after its own.
        while self._undelivered and (delivering := self._delivering).acquire(blocking=False):
            try:
                while self._undelivered:
                    self._tell(self._undelivered.popleft())
            finally:
                delivering.release()  # that one, should a listener have forked

    def come_out_of_fork(self) -> None:
        """In the child, nobody is there to let go of the locks that other threads held."""
        self._listeners_lock, self._delivering = threading.Lock(), threading.Lock()

    def _tell(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except BaseException as exc:  # whoever made the change must not end by it
                if is_ctrl_c(exc):
                    raise
                log.exception("a listener to the changes of the node failed; the others go on")

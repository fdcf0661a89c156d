"""The change feed: calls every listener once per change, in order, without holding a lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcnode.core.errors import is_user_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Change, Evidence, ServiceState

    OnChange = Callable[[Change], None]
    OnEvidence = Callable[[str, Evidence, ServiceState], None]

log = logging.getLogger("svcnode.feed")


class _Author(threading.local):
    name = ""


# Not a context variable: tasks that a change starts, such as checks, would inherit it.
_author = _Author()


@contextmanager
def changes_by(name: str) -> Iterator[None]:
    """What this thread changes at a node meanwhile, this person or program has requested."""
    before, _author.name = _author.name, name
    try:
        yield
    finally:
        _author.name = before


def current_author() -> str:
    """Who has requested what this thread changes; empty: nobody."""
    name: str = _author.name
    return name


class ChangeFeed:
    def __init__(self) -> None:
        self._on_change: tuple[OnChange, ...] = ()
        self._on_evidence: tuple[OnEvidence, ...] = ()
        self._listeners_lock = threading.Lock()
        self._pending: deque[Change] = deque()
        self._pending_evidence: deque[tuple[str, Evidence, ServiceState]] = deque()
        self._delivery_lock = threading.Lock()

    @property
    def has_listeners(self) -> bool:
        return bool(self._on_change)

    def subscribe(
        self, on_change: OnChange | None = None, *, on_evidence: OnEvidence | None = None
    ) -> Callable[[], None]:
        """Returns a function that ends the subscription."""
        with self._listeners_lock:
            if on_change is not None:
                self._on_change = (*self._on_change, on_change)
            if on_evidence is not None:
                self._on_evidence = (*self._on_evidence, on_evidence)

        def unsubscribe() -> None:
            with self._listeners_lock:
                self._on_change = tuple(listener for listener in self._on_change if listener is not on_change)
                self._on_evidence = tuple(listener for listener in self._on_evidence if listener is not on_evidence)

        return unsubscribe

    def publish_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        """Call the evidence listeners at once, on the thread that recorded the evidence."""
        for listener in self._on_evidence:
            try:
                listener(service_id, evidence, state)
            except BaseException as exc:  # noqa: BLE001  a listener must not stop the thread that records
                _log_or_raise(exc)

    def append(self, change: Change) -> None:
        """Queue a change. The caller's own lock sets the order; `deliver` is called once that lock is free."""
        self._pending.append(change._replace(by=_author.name) if _author.name else change)

    def append_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        """Queue evidence of another process, which is delivered before the changes that it causes."""
        self._pending_evidence.append((service_id, evidence, state))

    def deliver(self) -> None:
        # One thread delivers at a time. A change that is queued during delivery is delivered by the inner loop, or by
        # the outer loop after the release. A change that a listener causes is delivered after the current one.
        while self._has_pending and (delivering := self._delivery_lock).acquire(blocking=False):
            try:
                while self._has_pending:
                    while self._pending_evidence:
                        self.publish_evidence(*self._pending_evidence.popleft())
                    if self._pending:
                        self._call_listeners(self._pending.popleft())
            finally:
                delivering.release()  # the same lock, even if a listener forked

    @property
    def _has_pending(self) -> bool:
        return bool(self._pending or self._pending_evidence)

    def after_fork(self) -> None:
        """Replace the locks: in the child, the threads that held them do not exist."""
        self._listeners_lock, self._delivery_lock = threading.Lock(), threading.Lock()

    def _call_listeners(self, change: Change) -> None:
        for listener in self._on_change:
            try:
                listener(change)
            except BaseException as exc:  # noqa: BLE001  a listener must not stop the thread that made the change
                _log_or_raise(exc)


def _log_or_raise(exc: BaseException) -> None:
    if is_user_interrupt(exc):
        raise exc
    log.error("listener failed; the other listeners are still called", exc_info=exc, extra={"event": "listener_failed"})

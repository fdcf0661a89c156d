"""Which problems somebody takes care of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svcnode.core.model import Health

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from svcnode.core.model import Acknowledgement

MAX_WAIT_S = 60.0  # then the wall clock is read again: it may have been set


class Acknowledgements:
    """Acknowledgements of services, by id, and of the node itself, which is None. Thread-safe.

    An acknowledgement ends by itself when it expires, when the problem has cleared, or when the problem has got worse,
    even if it had got better in between. The service need not be registered yet: after a restart, it may come later.
    """

    def __init__(
        self,
        changing: Callable[[], AbstractContextManager[float]],
        on_change: Callable[[str | None, float, Acknowledgement | None, str], None],
        *,
        health_of: Callable[[str | None], Health | None],
        wall_time_s: Callable[[float], float],
    ) -> None:
        """`changing` holds the lock of the node, and gives the time.

        `on_change`: of a service or of the node, the time, what is acknowledged, or why that has ended.
        `health_of`: of a service or of the node; None if there is no such service.
        """
        self._changing = changing
        self._on_change = on_change
        self.health_of = health_of
        self._wall_time_s = wall_time_s
        self._made: dict[str | None, Acknowledgement] = {}  # never changed, but replaced: it is read without a lock
        self._seen: dict[str | None, Health] = {}  # as it was last, since it was acknowledged or this process started
        self.next_check_at_s = math.inf  # none ends before, unless a health changes

    def find(self, service_id: str | None = None) -> Acknowledgement | None:
        return self._made.get(service_id)

    def make(self, acknowledgement: Acknowledgement, service_id: str | None = None) -> None:
        """It replaces an earlier one. Nothing happens if the problem has cleared or got worse in the meantime."""
        with self._changing() as now_s:
            health = self.health_of(service_id)
            if health is None or acknowledgement.covers(health):
                self._made = {**self._made, service_id: acknowledgement}
                self._seen.pop(service_id, None)
                self.check(service_id, now_s)
                self._on_change(service_id, now_s, acknowledgement, "")
                self.expire(now_s)

    def end(self, service_id: str | None = None, reason: str = "") -> None:
        with self._changing() as now_s:
            self.remove(service_id, now_s, reason)

    # ---- the caller holds the lock

    def remove(self, service_id: str | None, now_s: float, reason: str) -> None:
        if service_id in self._made:
            self._made = {key: one for key, one in self._made.items() if key != service_id}
            self._on_change(service_id, now_s, None, reason)

    def check(self, service_id: str | None, now_s: float) -> None:
        """After a change of a service, by which the node may have changed, too; or of the node alone."""
        for key in {service_id, None} & self._made.keys():
            made, health = self.find(key), self.health_of(key)
            if made is None or health is None:
                continue
            if health < self._seen.get(key, Health.HEALTHY):
                made = made._replace(health=health)
                self._made = {**self._made, key: made}
            self._seen[key] = health
            if not made.covers(health):
                is_over = health is Health.HEALTHY
                self.remove(key, now_s, "the problem has cleared" if is_over else "the problem has got worse")

    def expire(self, now_s: float) -> None:
        wall_s, self.next_check_at_s = self._wall_time_s(now_s), math.inf
        for key, made in self._made.items():
            left_s = math.inf if made.until_s is None else made.until_s - wall_s
            if left_s <= 0:
                self.remove(key, now_s, "it has expired")
            elif left_s < math.inf:
                self.next_check_at_s = min(self.next_check_at_s, now_s + min(left_s, MAX_WAIT_S))

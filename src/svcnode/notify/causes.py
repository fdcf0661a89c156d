"""Which services depend on which, and what their status is now. There is no I/O.

The message about a cause lists its effects, and names the other services that depend on it (`depends_on`). From then
on, none of them causes a message of its own until the target was told that the cause is over. Problems that remain are
reported then. The rule is `Record.explains` in record.py; folding.py makes one line of a cause and its effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.dependencies import Dependencies, find_dependencies
from svcnode.core.model import Health, Impact, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Related(NamedTuple):
    """A cause or an effect of a service, as it is now."""

    service: Service
    health: Health
    is_acknowledged: bool = False


class Relations:
    """Which services of the node depend on which."""

    def __init__(self, services: Callable[[], Iterable[Service]], find: Callable[[str], Related | None]) -> None:
        """`find` gives a service as it is at this moment."""
        self._services = services
        self._find = find
        self._dependencies: Dependencies | None = None

    def forget(self, service: Service | None) -> None:
        """After a service was registered, redefined or removed. Most nodes have no dependencies: that costs nothing."""
        has_some = self._dependencies is None or self._dependencies.causes
        if has_some or (service is not None and service.depends_on):
            self._dependencies = None

    @property
    def _current(self) -> Dependencies:
        if self._dependencies is None:
            self._dependencies = find_dependencies(self._services())
        return self._dependencies

    def causes_of(self, service_id: str) -> frozenset[str]:
        return self._current.causes_of(service_id)

    def dependents_of(self, service_id: str) -> frozenset[str]:
        return self._current.dependents_of(service_id)

    def look(self, service_ids: Iterable[str]) -> tuple[Related, ...]:
        """The critical services first."""
        found = [one for one in map(self._find, service_ids) if one is not None]
        return tuple(sorted(found, key=lambda one: (one.service.impact is not Impact.CRITICAL, one.service.id)))

"""Why a replica cannot read or write the registry, by loop; logged once for each kind of problem."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from svcnode.core.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("svcnode.sharing")


class Problems:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._texts: dict[str, str] = {}
        self._logged: set[type[Exception]] = set()
        self._began_at_s = 0.0

    @property
    def text(self) -> str:
        """The first one; empty if there is none. May be called in any thread."""
        return next(iter(list(self._texts.values())), "")

    def set(self, name: str, text: str, kind: type[Exception] = Exception) -> None:
        if not self._texts:
            self._began_at_s = self._clock()
        self._texts[name] = text
        if kind not in self._logged:
            self._logged.add(kind)
            message = "registry problem: %s; the checks of this replica go on"
            log.warning(message, text, extra={"event": "registry_problem", "problem": text})

    def clear(self, name: str) -> None:
        """Logged when the last loop has none any more."""
        if self._texts.pop(name, None) is not None and not self._texts:
            self._logged.clear()
            outage_s = round(self._clock() - self._began_at_s, 3)
            extra = {"event": "registry_recovered", "outage_s": outage_s}
            log.info("registry: connected again after %s", format_duration(outage_s), extra=extra)

"""The services that the configuration names: put into the node, and what becomes of them told in the log."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Change, ChangeKind, Status, Verdict
from svcnode.core.text import join_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.config import ServiceSettings
    from svcnode.node import Node

MAX_LISTED_IDS = 5

log = logging.getLogger("svcnode")

_FIXED_VERDICTS = {
    Status.UP: Verdict.ready("set in the configuration", code=ReasonCode.FIXED),
    Status.INITIALIZING: Verdict.not_ready("set in the configuration", code=ReasonCode.FIXED),
    Status.DOWN: Verdict.failed("set in the configuration", code=ReasonCode.FIXED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDiff:
    """Between what was configured and what is now, by id."""

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        return {"removed": len(self.removed), "added": len(self.added), "changed": len(self.changed)}

    def __str__(self) -> str:
        told = (("removed", self.removed), ("added", self.added), ("changed", self.changed))
        return (
            "; ".join(f"{what} {join_first(ids, MAX_LISTED_IDS)}" for what, ids in told if ids) or "no service changed"
        )


class ConfiguredServices:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._current: dict[str, ServiceSettings] = {}
        self._fixed: dict[str, Status] = {}
        node.subscribe(self._log_change)

    def apply(self, services: Iterable[ServiceSettings]) -> ConfigDiff:
        """Into these; what has not changed is left alone."""
        wanted = {service.id: service for service in services}
        difference = self._diff(wanted)
        self._log_fixed({service.id: service.status for service in wanted.values() if service.status is not None})
        # What goes, goes last: the node must not look healthy for a moment because its only sick service left.
        for service in wanted.values():
            self._apply_service(service)
        for service_id in difference.removed:
            self._node.deregister(service_id)
            del self._current[service_id]
        return difference

    def _diff(self, wanted: Mapping[str, ServiceSettings]) -> ConfigDiff:
        known = self._current
        return ConfigDiff(
            removed=tuple(service_id for service_id in known if service_id not in wanted),
            added=tuple(service_id for service_id in wanted if service_id not in known),
            changed=tuple(
                service_id for service_id in wanted if service_id in known and known[service_id] != wanted[service_id]
            ),
        )

    def _apply_service(self, service: ServiceSettings) -> None:
        known = self._current.get(service.id)
        if known is None:
            self._node.add(service.definition)
        elif known.definition != service.definition:
            self._node.replace(service.definition)
        self._current[service.id] = service
        if service.status is not None:
            self._node.report(service.id, _FIXED_VERDICTS[service.status])

    def _log_fixed(self, fixed: dict[str, Status]) -> None:
        if fixed != self._fixed:
            log.info("%s", _fixed_text(fixed))
        self._fixed = fixed

    def _log_change(self, change: Change) -> None:
        if change.kind is ChangeKind.STATUS and change.before and change.after:
            level = logging.WARNING if change.after.status is Status.DOWN else logging.INFO
            if change.service_id in self._fixed:
                level = logging.DEBUG  # there may be thousands, and one line tells of them all
            reason = f": {change.after.reason}" if change.after.reason else ""
            log.log(
                level,
                "service %s is %s, was %s%s",
                change.service_id,
                change.after.status.value,
                change.before.status.value,
                reason,
            )
        if change.health is not change.health_before:
            log.info("node health is %d, was %d", change.health, change.health_before)


def _fixed_text(fixed: Mapping[str, Status]) -> str:
    counts = Counter(status.value for status in fixed.values())
    told = ": " + ", ".join(f"{count} {status}" for status, count in counts.items()) if counts else ""
    have = "1 service has" if len(fixed) == 1 else f"{len(fixed) or 'no'} services have"
    return f"{have} a status that is set in the configuration{told}"

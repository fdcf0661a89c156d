"""Applies the configured services to the node, and logs changes of services and of the node."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import (
    ACKNOWLEDGEMENT_CHANGES,
    MAINTENANCE_CHANGES,
    PLAN_CHANGES,
    Change,
    ChangeKind,
    Health,
    Status,
    Verdict,
)
from svcnode.core.text import join_first, with_author
from svcnode.core.units import iso_time, utc_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from svcnode.config import ControlSettings, ServiceSettings, Settings
    from svcnode.node.definition import ServiceList
    from svcnode.node.node_state import NodeState

MAX_LISTED_IDS = 5
MAX_LOGGED_STATES = 100
BATCH = 10  # services that are applied at once: some milliseconds

log = logging.getLogger("svcnode")

_FIXED_VERDICTS = {
    Status.UP: Verdict.ready("set in the configuration", code=ReasonCode.FIXED),
    Status.INITIALIZING: Verdict.not_ready("set in the configuration", code=ReasonCode.FIXED),
    Status.DOWN: Verdict.failed("set in the configuration", code=ReasonCode.FIXED),
}


class ConfigDiff(NamedTuple):
    """The ids of the services that a reload changed."""

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    renamed: str = ""  # a text about a new name of the node
    others: tuple[str, ...] = ()  # what else has changed

    @property
    def counts(self) -> dict[str, int]:
        return {"removed": len(self.removed), "added": len(self.added), "changed": len(self.changed)}

    def __str__(self) -> str:
        parts = (("removed", self.removed), ("added", self.added), ("changed", self.changed))
        text = "; ".join(f"{verb} {join_first(ids, MAX_LISTED_IDS)}" for verb, ids in parts if ids)
        others = f"also changed: {', '.join(self.others)}" if self.others else ""
        return "; ".join(filter(None, [self.renamed, text or "no service changed", others]))


# The settings beside the services and the name of the node, each with what people call it.
_PARTS: dict[str, Callable[[Settings], object]] = {
    "operator token": lambda settings: settings.operator and settings.operator.token,
    "addresses": lambda settings: set(settings.addresses),
    "[server]": lambda settings: (settings.prefixes, settings.cors, settings.drain_s, settings.tls),
    "[public]": lambda settings: settings.public,
    "[history]": lambda settings: (settings.history.max_age_s, settings.history.max_bytes),
    "[control]": lambda settings: _control_part(settings.control),
    "[notify]": lambda settings: settings.notify,
    "[fleet]": lambda settings: settings.fleet,
    "[log]": lambda settings: (settings.log_level, settings.log_format),
    "[[maintenance]]": lambda settings: settings.maintenance,
    "node version": lambda settings: settings.node_version,
}


def _control_part(control: ControlSettings | None) -> object:
    """Without its default paths, which follow the name of the node."""
    return control and (control.group_id, control.allows_exec, control.is_default or control.listen)


def changed_parts(old: Settings, new: Settings) -> tuple[str, ...]:
    return tuple(name for name, of in _PARTS.items() if of(old) != of(new))


class _Pauses:
    """Lets the event loop run its other callbacks after each batch."""

    def __init__(self) -> None:
        self._done = 0

    async def if_due(self) -> None:
        self._done += 1
        if self._done % BATCH == 0:
            await asyncio.sleep(0)


class ConfiguredServices:
    def __init__(self, node: NodeState, service_list: ServiceList | None = None) -> None:
        """`service_list` registers the services; by default, the node does."""
        self._node = node
        self._service_list: ServiceList = node if service_list is None else service_list
        self._current: dict[str, ServiceSettings] = {}
        self._fixed: dict[str, Status] = {}
        node.subscribe(self._log_change)

    async def apply(self, services: Iterable[ServiceSettings]) -> ConfigDiff:
        """Add, replace and remove services, a few at a time: requests are answered in between.

        Unchanged services are left alone.
        """
        configured = {service.id: service for service in services}
        pause = _Pauses()
        removed, added, changed = [], [], []
        self._log_fixed({service.id: service.status for service in configured.values() if service.status is not None})
        for service in configured.values():
            current = self._current.get(service.id)
            if current is None:
                added.append(service.id)
            elif current != service:
                changed.append(service.id)
            self._apply_service(current, service)
            await pause.if_due()
        # Services are removed last: otherwise the node may be healthy for a moment, without its failed service.
        for service_id in [service_id for service_id in self._current if service_id not in configured]:
            removed.append(service_id)
            self._service_list.deregister(service_id)
            del self._current[service_id]
            await pause.if_due()
        return ConfigDiff(tuple(removed), tuple(added), tuple(changed))

    def file_of(self, service_id: str) -> Path | None:
        """The configuration file with the probe of the service; None: it comes from another source."""
        service = self._current.get(service_id)
        return None if service is None else service.file

    def _apply_service(self, current: ServiceSettings | None, service: ServiceSettings) -> None:
        if current is None:
            self._service_list.add(service.definition)
        elif current.definition != service.definition:
            self._service_list.replace(service.definition)
        self._current[service.id] = service
        if service.status is not None:
            self._node.report(service.id, _FIXED_VERDICTS[service.status])

    def log_not_up(self) -> None:
        """One line for each service that is not Up, the first to fail first."""
        not_up = self._node.summary()[1]
        for service, state in not_up[:MAX_LOGGED_STATES]:
            extra = {
                "event": "state",
                "service": service.id,
                "status": state.status.value,
                "since": self._iso(state.since_s),
                "code": str(state.code),
                "reason": state.reason,
            }
            suffix = f": {state.reason}" if state.reason else ""
            since = utc_text(extra["since"])
            log.info("service %s is %s, since %s%s", service.id, state.status.value, since, suffix, extra=extra)
        if (more := len(not_up) - MAX_LOGGED_STATES) > 0:
            log.info("%d more services are not Up", more, extra={"event": "state"})

    def _log_fixed(self, fixed: dict[str, Status]) -> None:
        if fixed != self._fixed:
            log.info("%s", _fixed_text(fixed), extra={"event": "fixed_status", "services": len(fixed)})
        self._fixed = fixed

    def _log_change(self, change: Change) -> None:
        if change.kind is ChangeKind.STATUS:
            self._log_status(change)
        elif change.kind in MAINTENANCE_CHANGES:
            self._log_maintenance(change)
        elif change.kind in PLAN_CHANGES:
            self._log_plan(change)
        elif change.kind in ACKNOWLEDGEMENT_CHANGES:
            self._log_acknowledgement(change)
        elif change.kind is ChangeKind.NOTE:
            extra = {"event": "note", "service": change.service_id, "reason": change.reason, **_author(change)}
            log.info("note: %s", with_author(change.reason, change.by), extra=extra)
        elif change.service_id is not None:
            extra = {"event": f"service_{change.kind.value}", "service": change.service_id, **_author(change)}
            level = logging.INFO if change.by else logging.DEBUG
            text = with_author(change.kind.value, change.by)
            log.log(level, "service %s %s", change.service_id, text, extra=extra)
        if change.health is not change.health_before:
            self._log_node_health(change)
        elif change.kind is ChangeKind.NODE and change.reason:
            extra = {"event": "node_changed", "reason": change.reason, **_author(change)}
            log.info("node: %s", with_author(change.reason, change.by), extra=extra)

    def _log_status(self, change: Change) -> None:
        before, after = change.before, change.after
        assert before is not None, "a status change has a state before"
        assert after is not None, "a status change has a state after"
        level = logging.WARNING if after.status is Status.DOWN else logging.INFO
        if change.service_id in self._fixed:
            level = logging.DEBUG  # there may be thousands; one line has their count
        extra = {
            "event": "service_status",
            "service": change.service_id,
            "status": after.status.value,
            "previous": before.status.value,
            "since": self._iso(after.since_s),
            "code": str(after.code),
            "reason": after.reason,
            "node_health": change.health.value,
        }
        extra |= _author(change)
        reason = with_author(after.reason, change.by)
        suffix = f": {reason}" if reason else ""
        if (
            after.status is Status.DOWN
            and after.first_failure_at_s is not None
            and change.service_id not in self._fixed
        ):
            extra["first_failure"] = self._iso(after.first_failure_at_s)
            if after.first_failure_at_s < after.since_s:
                first, since = (utc_text(str(extra[key]), with_ms=True) for key in ("first_failure", "since"))
                suffix += f" (first failure at {first}, Down at {since})"
        text = "service %s is %s, was %s%s"
        log.log(level, text, change.service_id, after.status.value, before.status.value, suffix, extra=extra)

    def _log_maintenance(self, change: Change) -> None:
        subject = "the node" if change.service_id is None else f"service {change.service_id}"
        extra: dict[str, object] = {"event": change.kind.value, "service": change.service_id}
        if change.maintenance is None:
            ended = with_author("has ended", change.by)
            log.info("maintenance of %s %s", subject, ended, extra=extra | _author(change))
            return
        source, ends_at_s, by, reason = change.maintenance
        extra |= {"until": self._iso(ends_at_s), "by": by, "reason": reason, "source": source}
        log.info("%s is in maintenance %s", subject, self._node.maintenance.text(change.maintenance), extra=extra)

    def _log_plan(self, change: Change) -> None:
        subject = "the node" if change.service_id is None else f"service {change.service_id}"
        extra = {"event": change.kind.value, "service": change.service_id, "reason": change.reason, **_author(change)}
        if change.kind is ChangeKind.MAINTENANCE_PLANNED:
            log.info("maintenance of %s is planned %s", subject, change.reason, extra=extra)
        else:
            cancelled = with_author("is cancelled", change.by)
            log.info("planned maintenance of %s %s; it was planned %s", subject, cancelled, change.reason, extra=extra)

    def _log_acknowledgement(self, change: Change) -> None:
        subject = "the node" if change.service_id is None else f"service {change.service_id}"
        extra: dict[str, object] = {"event": change.kind.value, "service": change.service_id}
        made = change.acknowledgement
        if made is None:
            ended = with_author(f"has ended{f': {change.reason}' if change.reason else ''}", change.by)
            extra |= {"reason": change.reason, **_author(change)}
            log.info("the acknowledgement of %s %s", subject, ended, extra=extra)
            return
        extra |= {"until": None if made.until_s is None else iso_time(made.until_s), "by": made.by}
        log.info("%s is acknowledged %s", subject, made.text, extra=extra | {"reason": made.reason})

    def _iso(self, at_s: float) -> str:
        return iso_time(self._node.wall_time_s(at_s))

    def _log_node_health(self, change: Change) -> None:
        is_failure = change.health is Health.UNHEALTHY and not self._node.condition.draining
        extra: dict[str, object] = {
            "event": "node_health",
            "previous": change.health_before.value,
            "node_health": change.health.value,
        }
        if change.reason:
            extra |= {"reason": change.reason, **_author(change)}
        suffix = f": {with_author(change.reason, change.by)}" if change.reason else ""
        level = logging.WARNING if is_failure else logging.INFO
        log.log(level, "node health is %d, was %d%s", change.health, change.health_before, suffix, extra=extra)


def _author(change: Change) -> dict[str, str]:
    return {"by": change.by} if change.by else {}


def _fixed_text(fixed: Mapping[str, Status]) -> str:
    counts = Counter(status.value for status in fixed.values())
    return "services with a fixed status: " + (
        ", ".join(f"{count} {status}" for status, count in counts.items()) or "none"
    )

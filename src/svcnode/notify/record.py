"""What one target was told about one subject, and how that is saved. There is no I/O."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Health, Impact, Service
from svcnode.core.text import sanitize, truncate
from svcnode.notify.rule import Seen, Told
from svcnode.notify.subjects import Key, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.notify.rule import Timing

MAX_SAVED = 1000  # subjects per target
MAX_SAVED_REASON_CHARS = 300


class Record(Told):
    """One subject for one target."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.named: frozenset[str] = frozenset()  # the services that depend on this one, if it is open and told so

    def explains(self, effect: Record, timing: Timing) -> bool:
        """Whether the message about this problem has told of that one, too.

        It has not if that one is more severe, began before this one, or began after this one was over.
        """
        if not (self.is_open and effect.subject.key.name in self.named) or self.subject.seen.is_held:
            return False
        is_told_as_critical = self.subject.severity(self.health) is Severity.CRITICAL
        if effect.severity is Severity.CRITICAL and not is_told_as_critical:
            return False
        opened_s = math.inf if self.opened_at_s is None else self.opened_at_s
        if effect.opened_at_s is None or effect.opened_at_s < opened_s - timing.group_wait_s:
            return False
        is_over = self.is_visible and self.level is Health.HEALTHY
        return not (is_over and effect.is_worse) or effect.since_s <= self.since_s

    @property
    def severity(self) -> Severity:
        """Of all that a message now may say."""
        worst = max(self.health, self.level, self.worst_level)
        return self.subject.severity(worst) or Severity.WARNING

    @property
    def state(self) -> str:
        if self.worse_at_s is not None:
            return "pending"
        if self.is_better:
            return "resolving"
        return "firing" if self.is_open else "inactive"


# ---- as JSON


def to_row(record: Record, to_wall: Callable[[float], float]) -> dict[str, Any]:
    def wall(at_s: float | None) -> float | None:
        return None if at_s is None or math.isinf(at_s) else round(to_wall(at_s), 3)

    service, worst = record.subject.service, record.worst
    row = {
        "type": record.subject.key.type,
        "name": record.subject.key.name,
        "told": int(record.health),
        "at": wall(record.at_s),
        "over_at": wall(record.over_at_s),
        "opened_at": wall(record.opened_at_s),
        "changes": record.changes,
    }
    if service is not None:
        row |= {"service_name": service.name, "impact": service.impact.value}
    if record.named:
        row |= {"named": sorted(record.named)[:MAX_SAVED]}
    if worst is not None:
        reason = truncate(sanitize(worst.reason), MAX_SAVED_REASON_CHARS)
        row |= {"worst": int(record.worst_level), "reason": reason, "code": worst.code}
        row |= {"worst_at": wall(record.worst_at_s), "worse_at": wall(record.escalates_from_s)}
    return row


def from_row(
    row: dict[str, Any], find: Callable[[Key], Subject | None], from_wall: Callable[[float], float], now_s: float
) -> Record:
    """Raises KeyError, TypeError or ValueError if it is invalid."""

    def monotonic(name: str) -> float:
        return -math.inf if row[name] is None else from_wall(float(row[name]))

    if row["type"] not in ("node", "issue", "service", "target"):
        raise ValueError(f"unknown type {row['type']!r}")
    key = Key(row["type"], str(row["name"]))
    subject = find(key)
    if subject is None:
        service = None
        if key.type == "service":
            service = Service(id=key.name, name=row["service_name"], description="", impact=Impact(row["impact"]))
        subject = Subject(key, now_s, service)
        text = key.name if key.type == "issue" else ""
        subject.seen = Seen(Health.HEALTHY, now_s, text, is_removed=key.type == "service")
    record = Record(subject)
    record.health, record.changes, record.is_restored = Health(row["told"]), int(row["changes"]), True
    record.level = record.health
    record.at_s = monotonic("at")
    record.over_at_s = monotonic("over_at")
    record.opened_at_s = None if row["opened_at"] is None else monotonic("opened_at")
    record.named = frozenset(map(str, row.get("named", ())))
    if "worst" in row:
        record.worst_level = Health(row["worst"])
        record.worst_at_s = from_wall(float(row["worst_at"]))
        record.escalates_from_s = monotonic("worse_at") if row["worse_at"] else math.inf
        record.worst = Seen(record.worst_level, record.worst_at_s, str(row["reason"]), row["code"])
    return record

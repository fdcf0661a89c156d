"""What was seen lately, in memory: the last attempts at each service, and counts since the start.

Every report comes by here, so a report costs a few additions and one append. Nothing is summed up before somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import Change, ChangeKind, Evidence, Outcome, ServiceState, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.definition import Watch
    from svcnode.node import Node

KEPT_ATTEMPTS = 20
# Looks take from a fraction of a millisecond (a socket on this machine) to the longest timeout that makes sense.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NOT_LOOKED_AT = "reported"  # the kind of a service that somebody reports for
FIXED = "fixed"  # the kind of a service of which nobody learns anything: the configuration says what it is


@dataclass(frozen=True, slots=True)
class Setting(Verdict):
    """What the configuration says of a service. Nobody has seen it, so it is no attempt."""


class Attempt(NamedTuple):
    """One piece of evidence, and the status that was published after it."""

    evidence: Evidence
    status: Status


class Durations:
    """How long the looks of one kind took: how many fell into each bucket (the last has no end), and all together."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class Record:
    """What the journal holds of one service."""

    __slots__ = ("attempts", "durations", "kind", "looks", "transitions")

    def __init__(self, kind: str, durations: Durations) -> None:
        self.kind = kind
        self.durations = durations  # shared by all of its kind
        self.attempts: deque[Attempt] = deque(maxlen=KEPT_ATTEMPTS)  # the newest last
        self.looks = dict.fromkeys(Outcome, 0)
        self.transitions = 0


class Journal:
    """Follows a node from the moment it is made."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._records: dict[str, Record] = {}
        self._durations: dict[str, Durations] = {}
        self.node_transitions = 0
        for service, _ in node:
            self._begin(service.id)
        node.observe(self._note)
        node.subscribe(self._heard)

    def of(self, service_id: str) -> Record | None:
        return self._records.get(service_id)

    @property
    def durations(self) -> Mapping[str, Durations]:
        """By kind of probe, of which there are few, however many services there are."""
        return self._durations

    def _note(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        record = self._records.get(service_id)
        if record is None:
            if service_id not in self._node:  # it left while this was under way
                return
            record = self._begin(service_id)
        if isinstance(evidence.verdict, Setting):
            if record.kind != FIXED:  # what was reported before is another story
                self._begin(service_id).kind = FIXED
            return
        record.attempts.append(Attempt(evidence, state.status))
        record.looks[evidence.verdict.outcome] += 1
        if record.kind != NOT_LOOKED_AT:
            record.durations.add(evidence.duration_s)

    def _begin(self, service_id: str) -> Record:
        kind = kind_of(self._node.watch(service_id))
        durations = self._durations.setdefault(kind, Durations())
        record = self._records[service_id] = Record(kind, durations)
        return record

    def _heard(self, change: Change) -> None:
        if change.health is not change.health_before:
            self.node_transitions += 1
        if change.service_id is None:
            return
        match change.kind:
            case ChangeKind.DEREGISTERED:
                self._records.pop(change.service_id, None)
            case ChangeKind.REGISTERED:
                self._begin(change.service_id)
            case ChangeKind.REPLACED if _is_another_story(change, self._records.get(change.service_id)):
                self._begin(change.service_id)
            case ChangeKind.STATUS if record := self._records.get(change.service_id):
                record.transitions += not _is_first_setting(change, record)
            case _:
                pass


def _is_another_story(change: Change, record: Record | None) -> bool:
    """Whether another probe looks at it now, or anything may have come in the place of a fixed status."""
    is_new = change.after is not None and change.after.counted_at_s is None
    return is_new or (record is not None and record.kind == FIXED)


def _is_first_setting(change: Change, record: Record) -> bool:
    """What the configuration said from the start is no change."""
    return record.kind == FIXED and change.before is not None and change.before.counted_at_s is None


def kind_of(watch: Watch | None) -> str:
    """The scheme of the URL that a service is looked at by."""
    if watch is None:
        return NOT_LOOKED_AT
    url = getattr(watch.probe, "url", None)
    return str(getattr(url, "scheme", "function"))

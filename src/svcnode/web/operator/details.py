"""`/details` and `/details/{id}`: all that is known of a service and why, as JSON.

The id, the name and the description stand as the interface publishes them; every other text is redacted.
"""

from __future__ import annotations

import asyncio
import math
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from svcnode.core import rules
from svcnode.core.encoding import compact_json
from svcnode.core.model import Outcome
from svcnode.core.redaction import redacted
from svcnode.core.times import iso_time
from svcnode.journal import FIXED, kind_of
from svcnode.spec import SERVICE_NOT_FOUND, Answer, answer_with, parse_query
from svcnode.version import __version__
from svcnode.web.operator.answering import json_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from svcnode.core.model import Evidence, Policy, Service, ServiceState
    from svcnode.definition import Watch
    from svcnode.journal import Journal
    from svcnode.node import Node
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Visit

Json = dict[str, Any]


class ServiceDetails(TypedDict, total=False):
    """Times named `…_s` are in seconds: how long ago, or how long from now."""

    id: str
    name: str
    description: str
    impact: str
    kind: str  # the scheme of the probe's URL, "function", "reported", or "fixed"
    probe: str | None  # its URL, fit to be shown
    status: str
    health: int
    reason: str
    since: str
    since_s: float
    counters: Json
    policy: Json
    schedule: Json | None  # None: nobody looks
    evidence: Json | None  # the newest that came, of any verdict
    last_ready: Json | None
    lapses_in_s: float | None  # when silence alone would change the status
    next_look_in_s: float | None
    registered_s: float
    looks: Json
    transitions: int
    attempts: list[Json]  # the newest first


class Now(NamedTuple):
    """One moment by both clocks: the node's, by which evidence is dated, and that of the wall."""

    node_s: float
    wall_s: float

    @classmethod
    def of(cls, node: Node) -> Now:
        return cls(node.now_s(), time())

    def iso(self, at_s: float) -> str:
        return iso_time(self.wall_s - (self.node_s - at_s))

    def ago_s(self, at_s: float) -> float:
        return round(max(0.0, self.node_s - at_s), 3)

    def until_s(self, at_s: float) -> float:
        return max(0.0, at_s - self.node_s)


# ---- the handlers


async def all_details(desk: Desk, visit: Visit, name: str) -> Answer:
    query = parse_query(visit.query)
    with_attempts = _is_wanted(query.get("attempts", ["0"]))
    if "id" not in query:
        key, version = ("details", with_attempts), desk.vitals.reload_problem
        return await desk.shared.get(key, lambda: _answer(desk, with_attempts=with_attempts), version=version)
    ids = dict.fromkeys(query["id"])  # each once
    desk.node.settle()
    # Whoever follows the events must not be told here of a health that was before the last one.
    versions = desk.node.revision, desk.vitals.reload_problem
    about_node = await desk.shared.get("details of the node", lambda: node_details(desk), version=versions)
    return await asyncio.to_thread(lambda: _answer(desk, about_node, ids, with_attempts=with_attempts))


async def one_in_detail(desk: Desk, visit: Visit, name: str) -> Answer:
    details = service_details(desk.node, desk.journal, name, Now.of(desk.node))
    return SERVICE_NOT_FOUND if details is None else json_answer(details)


def _is_wanted(values: list[str]) -> bool:
    return values[-1] not in ("", "0", "false", "no")


def _answer(
    desk: Desk, about_node: Json | None = None, ids: Iterable[str] | None = None, *, with_attempts: bool
) -> Answer:
    about_node = about_node or node_details(desk)
    services = services_details(desk.node, desk.journal, ids, with_attempts=with_attempts)
    # One by one: all at once, every other thread of this process would have to wait until it is done.
    encoded = b",".join([_encoded(service) for service in services])
    return answer_with(200, b'{"node":%s,"services":[%s]}' % (_encoded(about_node), encoded))


def _encoded(document: Json | ServiceDetails) -> bytes:
    return compact_json(document).encode()


# ---- from the node and its journal to what is said


def node_details(desk: Desk) -> Json:
    """Health and its reason come from one look at the services, so that they cannot contradict each other."""
    last_event_id = desk.history.last_id  # first: whoever follows the events after it misses nothing
    identity, condition, vitals, now = desk.node.identity, desk.node.condition, desk.vitals, Now.of(desk.node)
    vitals.correct(now.node_s, now.wall_s)
    services = [(service, state.status) for service, state in desk.node]
    health, reason = rules.node_health_with_reason(services, condition)
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "spec_version": identity.spec_version,
        "svcnode": __version__,
        "health": int(health),
        "health_reason": _shown(reason),
        "starting": condition.starting,
        "draining": condition.draining,
        "issues": [_shown(issue) for issue in condition.issues],
        "started": iso_time(vitals.started_at_s),
        "uptime_s": now.ago_s(vitals.began_s),
        "last_event_id": last_event_id,
        "history_problem": _shown(desk.history.problem) if desk.history.problem else None,
        "reload_problem": _shown(vitals.reload_problem) if vitals.reload_problem else None,
    }


def services_details(
    node: Node,
    journal: Journal,
    ids: Iterable[str] | None = None,
    *,
    with_attempts: bool = False,
    now: Now | None = None,
) -> Iterator[ServiceDetails]:
    """In the order of the node, or of the ids; those that are not there, or no longer, are left out."""
    reader = _Reader(node, journal, now or Now.of(node))
    for found in node if ids is None else filter(None, map(node.find, ids)):
        yield reader.details(found, with_attempts=with_attempts)


def service_details(node: Node, journal: Journal, service_id: str, now: Now) -> ServiceDetails | None:
    """With its last attempts; None when no such service is registered."""
    return next(services_details(node, journal, [service_id], with_attempts=True, now=now), None)


class _Reader:
    """Reads services as of one moment."""

    def __init__(self, node: Node, journal: Journal, now: Now) -> None:
        self._node = node
        self._journal = journal
        self._now = now
        self._texts = _Texts()

    def details(self, found: tuple[Service, ServiceState], *, with_attempts: bool) -> ServiceDetails:
        (service, state), now = found, self._now
        watch, record = self._node.watch(service.id), self._journal.of(service.id)
        # Copied in one step: attempts come from other threads meanwhile.
        attempts = list(reversed(record.attempts.copy())) if record else []
        kind = record.kind if record else kind_of(watch)
        ready_at_s = None if kind == FIXED else state.ready_at_s
        details: ServiceDetails = {
            "id": service.id,
            "name": service.name,
            "description": service.description,
            "impact": service.impact.value,
            "kind": kind,
            "probe": self._probe_url(watch),
            "status": state.status.value,
            "health": int(rules.service_health(state.status)),
            "reason": self._texts[state.reason],
            "since": now.iso(state.since_s),
            "since_s": now.ago_s(state.since_s),
            "counters": {"ready_in_a_row": state.ready_in_a_row, "failures_in_a_row": state.failures_in_a_row},
            "policy": _policy(service.policy),
            "schedule": _schedule(watch),
            "evidence": self._evidence(attempts[0].evidence) if attempts else None,
            "last_ready": None if ready_at_s is None else self._moment(ready_at_s),
            "lapses_in_s": _rounded(now.until_s(rules.lapses_at_s(state, service.policy))),
            "next_look_in_s": _rounded(self._node.next_look_in_s(service.id)),
            "registered_s": now.ago_s(state.registered_at_s),
            "looks": {outcome.value: record.looks[outcome] if record else 0 for outcome in Outcome},
            "transitions": record.transitions if record else 0,
        }
        if with_attempts:
            details["attempts"] = [self._evidence(one.evidence) | {"status": one.status.value} for one in attempts]
        return details

    def _evidence(self, evidence: Evidence) -> Json:
        return {
            "verdict": evidence.verdict.outcome.value,
            "reason": self._texts[evidence.verdict.reason],
            **self._moment(evidence.at_s),
            "duration_ms": round(evidence.duration_s * 1000, 3),
        }

    def _moment(self, at_s: float) -> Json:
        return {"at": self._now.iso(at_s), "age_s": self._now.ago_s(at_s)}

    def _probe_url(self, watch: Watch | None) -> str | None:
        if watch is None:
            return None
        url = getattr(watch.probe, "shown", None) or getattr(watch.probe, "url", None)
        return None if url is None else self._texts[str(url)]


class _Texts(dict[str, str]):
    """Each as it is shown. What is read together repeats itself, and a text takes its time."""

    def __missing__(self, text: str) -> str:
        shown = self[text] = _shown(text)
        return shown


def _policy(policy: Policy) -> Json:
    return {
        "rise": policy.rise,
        "fall": policy.fall,
        "start_period_s": policy.start_period_s,
        "stale_after_s": policy.stale_after_s,
        "ttl_s": policy.ttl_s,
    }


def _schedule(watch: Watch | None) -> Json | None:
    if watch is None:
        return None
    return {
        "interval_s": watch.schedule.interval_s,
        "timeout_s": watch.schedule.timeout_s,
        "transition_interval_s": watch.schedule.wait_s(is_change_pending=True),
        "max_latency_s": watch.max_latency_s,
    }


def _shown(text: str) -> str:
    """Without secrets, and without the halves of characters that no JSON can carry."""
    return redacted(text).encode("utf-8", "replace").decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == math.inf else round(seconds, 3)

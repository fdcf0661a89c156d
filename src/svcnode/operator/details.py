"""`/details` and `/details/{id}`: the state of the services, its reasons and the evidence behind it, as JSON.

Id, name and description are as the interface publishes them, and groups as they are set; all other texts are redacted.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from svcnode.api.spec import SERVICE_NOT_FOUND, Response, error_response, make_response, parse_known_query
from svcnode.core import state_machine
from svcnode.core.dependencies import find_dependencies
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Status, Tolerance, slo_text
from svcnode.core.strict_json import compact_json
from svcnode.core.text import encodable
from svcnode.core.units import iso_time
from svcnode.net.threads import call_in_pool
from svcnode.node.maintenance import planned_text
from svcnode.node.stats import FIXED_KIND, probe_kind
from svcnode.operator.sharing import node_sharing, observed_states, shared_probe
from svcnode.probes.options import public_options
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from svcnode.api.spec import Request
    from svcnode.core.dependencies import Dependencies
    from svcnode.core.model import Evidence, KnownBefore, Policy, Service, ServiceState
    from svcnode.node.definition import ProbeConfig
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.sharing import ProbeDisplay

Json = dict[str, Any]

_OUTCOMES = {
    Status.UP.value: Outcome.READY,
    Status.INITIALIZING.value: Outcome.NOT_READY,
    Status.DOWN.value: Outcome.FAILED,
}


class ServiceDetails(TypedDict, total=False):
    """Fields named `…_s` are in seconds: an age, or the time from now."""

    id: str
    name: str
    description: str
    group: str  # its heading on the page; "": none
    tags: list[str]
    runbook: str | None  # a link to what to do when it is not Up
    slo: str | None  # the share of the time in which it is to be Up, such as "99.9%"
    depends_on: list[str]  # ids and groups
    causes: list[Json]  # if it is not Up: the services that it depends on, directly or not, and that are not Up either
    impact: str  # now: during maintenance it may be a lower one
    maintenance: Json | None  # of the service or of the node; None: it is not in maintenance
    planned_maintenance: Json | None  # the next that has not begun, of the service or of the node
    acknowledged: Json | None  # by whom, and when; None: there is no problem, or nobody has acknowledged it
    kind: str  # the scheme of the probe's URL, "function", "reported", "fixed", or "restricted"
    probe: str | None  # the URL of the probe without secrets
    page: str | None  # of another node: a link to its page
    # Of the probe, other than the defaults; those that may hold a secret are masked. None: other replicas have them
    options: Json | None
    config_file: str | None  # the configuration file with the probe; None: it comes from another source
    status: str
    health: int
    code: str  # of core.codes
    reason: str
    since: str  # when the status was decided
    since_s: float
    since_before_restart: bool  # whether that was before this process started
    before_restart: Json | None  # what was known then, as long as no check has decided the status since
    first_failure: Json | None  # the first of the failures in a row, or of this Down
    counters: Json
    unreliable: bool  # too many of the last checks failed, although not enough in a row, or too many outages
    policy: Json
    schedule: Json | None  # None: not probed here
    checked_by: list[str] | None  # the replicas that check it, or receive its reports; None: the node has no replicas
    lost: bool  # whether the registry has lost it: it stays until it is registered again, or the loss is accepted
    observed: list[Json] | None  # its state by each of them, and by clients that report it
    evidence: Json | None  # the latest, of any outcome
    last_ready: Json | None
    expires_in_s: float | None  # until the evidence expires, if none follows
    next_check_in_s: float | None
    registered_s: float
    checks: Json
    transitions: int
    alert: Json | None  # None: no notification targets are configured
    recent_checks: list[Json]  # the latest first


# ---- the handlers


async def all_details(context: OperatorContext, request: Request, name: str) -> Response:
    try:
        query = parse_known_query(request.query, ("id", "recent_checks"))
    except InvalidValueError as exc:
        return error_response(400, str(exc))
    with_recent_checks = _parse_flag(query.get("recent_checks", ["0"]))
    if "id" not in query:
        key = "details", with_recent_checks
        return await context.shared(key, lambda: _make_response(context, with_recent_checks=with_recent_checks))
    ids = dict.fromkeys(query["id"])  # without duplicates
    node = await context.shared("node details", lambda: node_details(context))
    return await call_in_pool(lambda: _make_response(context, node, ids, with_recent_checks=with_recent_checks))


async def details_of_one(context: OperatorContext, request: Request, name: str) -> Response:
    details = next(services_details(context, [name], with_recent_checks=True), None)
    return SERVICE_NOT_FOUND if details is None else make_response(200, _encode(details))


def _parse_flag(values: list[str]) -> bool:
    return values[-1] not in ("", "0", "false", "no")


def _make_response(
    context: OperatorContext, node: Json | None = None, ids: Iterable[str] | None = None, *, with_recent_checks: bool
) -> Response:
    node = node or node_details(context)
    services = services_details(context, ids, with_recent_checks=with_recent_checks)
    # Each service separately: json.dumps of everything would hold the interpreter lock until it is done.
    encoded = b",".join([_encode(service) for service in services])
    return make_response(200, b'{"node":%s,"services":[%s]}' % (_encode(node), encoded))


def _encode(document: Json | ServiceDetails) -> bytes:
    return compact_json(document).encode()


# ---- the documents


def node_details(context: OperatorContext) -> Json:
    """Health and its reason come from one snapshot of the services, so they agree."""
    last_event_id = context.history.last_id  # read first: a client that follows the events after it misses none
    identity, condition, process = context.node.identity, context.node.condition, context.process_stats
    builder = _DetailsBuilder(context)
    process.adjust_start_time(builder.now_s, context.node.wall_time_s(builder.now_s))
    tally, not_up = context.node.summary()
    fault = state_machine.common_fault(state for _, state in not_up)
    services = [(service, state.status) for service, state in not_up]
    health, reason = state_machine.health_with_reason(tally, services, condition, fault)
    _, summary = state_machine.health_with_reason(tally, services, condition, fault, with_ids=False)
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "spec_version": identity.spec_version,
        "svcnode": __version__,
        "health": int(health),
        "health_reason": encodable(reason),
        "health_summary": encodable(summary),
        "starting": condition.starting,
        "draining": condition.draining,
        "issues": [encodable(issue) for issue in condition.issues],
        "caveats": [encodable(caveat) for caveat in condition.caveats],
        "maintenance": builder.maintenance(),
        "planned_maintenance": builder.planned_maintenance(),
        "acknowledged": builder.acknowledged(),
        "started": iso_time(process.started_at_s),
        "uptime_s": builder.ago_s(process.started_monotonic_s),
        "last_event_id": last_event_id,
        "history_problem": encodable(context.history.problem) if context.history.problem else None,
        "history_problem_code": context.history.problem_code,
        "reload_problem": encodable(process.reload_problem) if process.reload_problem else None,
        "alert": builder.alert(None),
        "notifications": builder.deliveries(),
        "heartbeat": builder.heartbeat(),
        "sharing": builder.sharing(),
    }


def services_details(
    context: OperatorContext,
    ids: Iterable[str] | None = None,
    *,
    with_recent_checks: bool = False,
    with_causes: bool = True,
) -> Iterator[ServiceDetails]:
    """In the order of the node, or of the ids; unknown ids are left out. Finding causes looks at all services."""
    builder = _DetailsBuilder(context, with_causes=with_causes)
    for service, state in context.node if ids is None else filter(None, map(context.node.find, ids)):
        yield builder.build(service, state, with_recent_checks=with_recent_checks)


class _DetailsBuilder:
    """Builds details as of one moment of the node's clock, which dates evidence."""

    def __init__(self, context: OperatorContext, *, with_causes: bool = True) -> None:
        self._context = context
        self._with_causes = with_causes
        self.now_s = context.node.now_s()
        self._redacted = _RedactionCache()

    def ago_s(self, at_s: float) -> float:
        return round(max(0.0, self.now_s - at_s), 3)

    def _until_s(self, at_s: float) -> float | None:
        return None if at_s == math.inf else round(max(0.0, at_s - self.now_s), 3)

    def _iso(self, at_s: float) -> str:
        return iso_time(self._context.node.wall_time_s(at_s))

    def build(self, service: Service, state: ServiceState, *, with_recent_checks: bool) -> ServiceDetails:
        node, stats = self._context.node, self._context.check_stats.get(service.id)
        probe_config, next_check_in_s = node.probe_config(service.id), self._context.next_check_in_s(service.id)
        # Copied in one step: other threads add results.
        results = list(reversed(stats.recent_results.copy())) if stats else []
        replica = self._context.replica
        shared = None if replica is None or probe_config else shared_probe(replica.services, service.id)
        observed = None if replica is None else observed_states(replica.services, service.id, self.ago_s)
        kind = shared.kind if shared else stats.kind if stats else probe_kind(probe_config)
        is_fixed = kind == FIXED_KIND
        details: ServiceDetails = {
            "id": service.id,
            "name": service.name,
            "description": service.description,
            "group": service.group,
            "tags": [encodable(tag) for tag in service.tags],
            "runbook": self._redacted[service.runbook] or None,
            "slo": slo_text(service.slo_percent),
            "depends_on": [encodable(name) for name in service.depends_on],
            "causes": [*self._causes(service, state)] if self._with_causes else [],
            "impact": service.impact.value,
            "maintenance": self.maintenance(service.id),
            "planned_maintenance": self.planned_maintenance(service.id),
            "acknowledged": self.acknowledged(service.id),
            "kind": kind,
            "probe": self._probe_url(probe_config, shared),
            "page": None if probe_config is None else probe_config.probe.page_url,
            "status": state.status.value,
            "health": int(state_machine.service_health(state.status)),
            "code": state.code,
            "reason": self._redacted[state.reason],
            "since": self._iso(state.since_s),
            "since_s": self.ago_s(state.since_s),
            "since_before_restart": state.since_s < self._context.process_stats.started_monotonic_s,
            "before_restart": self._before_restart(state.known_before),
            "first_failure": None if is_fixed else self._time_fields(state.first_failure_at_s),
            "counters": _counters(state),
            "unreliable": state.recent_failures.is_unreliable,
            "policy": _policy(service.policy),
            "schedule": _schedule(probe_config),
            "checked_by": None if replica is None else [*replica.services.observers_of(service.id)],
            "lost": replica is not None and service.id in replica.lost.services,
            "observed": observed,
            "evidence": self._evidence(results[0].evidence) if results else self._observed_evidence(observed or []),
            "last_ready": None if is_fixed else self._time_fields(state.last_ready_at_s),
            "expires_in_s": self._until_s(state_machine.expires_at_s(state, service.policy)),
            "next_check_in_s": None if next_check_in_s is None else round(next_check_in_s, 3),
            "registered_s": self.ago_s(state.registered_at_s),
            "checks": {outcome.value: stats.checks_by_outcome[outcome] if stats else 0 for outcome in Outcome},
            "transitions": stats.transitions if stats else 0,
            "alert": self.alert(service.id),
        }
        if with_recent_checks:
            config_file = self._context.config_file_of(service.id)
            details["config_file"] = None if config_file is None else encodable(str(config_file))
            details["options"] = None if shared and shared.has_options else self._options(probe_config)
            details["recent_checks"] = [
                self._evidence(result.evidence) | {"status": result.status.value} for result in results
            ]
        return details

    def _before_restart(self, known: KnownBefore | None) -> Json | None:
        if known is None:
            return None
        times = {"since": self._iso(known.since_s), "since_s": self.ago_s(known.since_s)}
        return {"status": known.status.value, "code": known.code, "reason": self._redacted[known.reason], **times}

    def _causes(self, service: Service, state: ServiceState) -> Iterator[Json]:
        if not service.depends_on or state.status is Status.UP:
            return
        for cause_id in sorted(self._dependencies.causes_of(service.id)):
            cause = self._context.node.find(cause_id)
            if cause is not None and cause[1].status is not Status.UP:
                since_s = cause[1].since_s
                times = {"since": self._iso(since_s), "since_s": self.ago_s(since_s)}
                yield {"id": cause_id, "status": cause[1].status.value, **times}

    @cached_property
    def _dependencies(self) -> Dependencies:
        return find_dependencies(service for service, _ in self._context.node)

    def _evidence(self, evidence: Evidence) -> Json:
        return {
            "outcome": evidence.verdict.outcome.value,
            "code": evidence.verdict.code,
            "reason": self._redacted[evidence.verdict.reason],
            "at": self._iso(evidence.at_s),
            "age_s": self.ago_s(evidence.at_s),
            "duration_ms": round(evidence.duration_s * 1000, 3),
        }

    def _observed_evidence(self, observed: Iterable[Json]) -> Json | None:
        """Of a service that other replicas check: the newest that they publish, which has no duration."""
        dated = [state for state in observed if state["age_s"] is not None]
        if not dated:
            return None
        newest = min(dated, key=lambda state: state["age_s"])
        age_s = newest["age_s"]
        texts = {"code": newest["code"], "reason": newest["reason"]}
        outcome = _OUTCOMES[newest["status"]].value
        return {"outcome": outcome, **texts, "at": self._iso(self.now_s - age_s), "age_s": age_s, "duration_ms": 0.0}

    def _time_fields(self, at_s: float | None) -> Json | None:
        return None if at_s is None else {"at": self._iso(at_s), "age_s": self.ago_s(at_s)}

    def sharing(self) -> Json | None:
        replica = self._context.replica
        wall_s = self._context.node.wall_time_s(self.now_s)
        return None if replica is None else node_sharing(replica, self.ago_s, self._iso, wall_s)

    def _probe_url(self, probe_config: ProbeConfig | None, shared: ProbeDisplay | None) -> str | None:
        url = shared.url if shared else None if probe_config is None else probe_config.probe.display_url
        return None if url is None else self._redacted[url]

    def _options(self, probe_config: ProbeConfig | None) -> Json:
        options = {} if probe_config is None else public_options(probe_config.probe)
        return {name: self._redact(value) for name, value in options.items()}

    def _redact(self, value: object) -> object:
        match value:
            case str():
                return self._redacted[value]
            case dict():
                return {self._redacted[key]: self._redact(inner) for key, inner in value.items()}
            case list():
                return [self._redact(inner) for inner in value]
            case _:
                return value

    def maintenance(self, service_id: str | None = None) -> Json | None:
        """Of a service, or of the node."""
        node = self._context.node
        maintenance = node.maintenance.current(service_id)
        if maintenance is None:
            return None
        return {
            "source": maintenance.source,
            "until": self._iso(maintenance.ends_at_s),
            "ends_in_s": self._until_s(maintenance.ends_at_s),
            "by": self._redacted[maintenance.by],
            "reason": self._redacted[maintenance.reason],
            "text": self._redacted[node.maintenance.text(maintenance)],
        }

    def planned_maintenance(self, service_id: str | None = None) -> Json | None:
        planned = self._context.node.maintenance.next_planned(service_id)
        if planned is None:
            return None
        return {
            "from": iso_time(planned.from_s),
            "until": iso_time(planned.until_s),
            "by": self._redacted[planned.by],
            "reason": self._redacted[planned.reason],
            "text": self._redacted[planned_text(planned)],
        }

    def acknowledged(self, service_id: str | None = None) -> Json | None:
        made = self._context.node.acknowledgements.find(service_id)
        if made is None:
            return None
        return {
            "at": iso_time(made.made_s),
            "until": None if made.until_s is None else iso_time(made.until_s),
            "by": self._redacted[made.by],
            "reason": self._redacted[made.reason],
            "text": self._redacted[made.text],
        }

    def alert(self, service_id: str | None) -> Json | None:
        """Of a service, or of the node. A recovery that waits for resolve_delay is in the state `resolving`."""
        alerts = self._context.notify_status.alerts
        if alerts is None:
            return None
        alert = alerts.find(service_id)
        return {
            "state": alert.state,
            "notified_health": int(alert.told),
            "message_in_s": self._until_s(alert.due_at_s),
        }

    def deliveries(self) -> list[Json]:
        """What was tried for each notification target, and the result."""
        return [
            {
                "target": one.target,
                "sender": None if one.turn is None else one.turn.sender,
                "delivered": one.delivered,
                "failed": one.failed,
                "last_attempt": self._time_fields(one.last_attempt_at_s),
                "last_delivery": self._time_fields(one.last_delivery_at_s),
                "failing": self._time_fields(one.failing_since_s),
                "failures_in_a_row": one.failures_in_a_row,
                "error": self._redacted[one.error],
                "code": one.code,
                "waiting": one.waiting_since_s is not None,
                "waiting_since": self._time_fields(one.waiting_since_s),
                "retry_in_s": self._until_s(one.retry_at_s) if one.error else None,
            }
            for one in self._context.notify_status.deliveries
        ]

    def heartbeat(self) -> Json | None:
        """To the dead man's switch."""
        sender = self._context.notify_status.heartbeat
        heartbeat = None if sender is None else sender.heartbeat
        if sender is None or heartbeat is None:
            return None
        result, sent_at_s = sender.result, sender.sent_at_s
        return {
            "target": heartbeat.name,
            "interval_s": heartbeat.interval_s,
            "result": None if result is None else result.value,
            "reason": self._redacted[sender.reason],
            "last_sent_s": None if sent_at_s is None else self.ago_s(sent_at_s),
        }


class _RedactionCache(dict[str, str]):
    """Redaction is slow, and the texts of one response repeat."""

    def __missing__(self, text: str) -> str:
        result = self[text] = encodable(text)
        return result


def _counters(state: ServiceState) -> Json:
    return {
        "ready_in_a_row": state.ready_in_a_row,
        "failures_in_a_row": state.failures_in_a_row,
        "recent_failures": state.recent_failures.failure_count,
        "repeated_failures": len(state.recent_failures.repeated_at_s),
    }


def _policy(policy: Policy) -> Json:
    return {
        "rise": policy.rise,
        "fall": policy.fall,
        "tolerance": str(Tolerance(policy.max_failures, policy.window)),
        "window_s": policy.window_s,
        "outage_failures": policy.outage_failures,
        "start_period_s": policy.start_period_s,
        "stale_after_s": policy.stale_after_s,
        "ttl_s": policy.ttl_s,
        "grace_s": policy.grace_s,
        "run_schedule": None if policy.run_times is None else str(policy.run_times),
    }


def _schedule(probe_config: ProbeConfig | None) -> Json | None:
    if probe_config is None:
        return None
    return {
        "interval_s": probe_config.schedule.interval_s,
        "timeout_s": probe_config.schedule.timeout_s,
        "transition_interval_s": probe_config.schedule.wait_s(is_change_pending=True),
        "max_latency_s": probe_config.max_latency_s,
    }

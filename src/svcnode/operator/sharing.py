"""What operators see of a node on several machines: the registry, the replicas, and what each observes.

Without [sharing], `OperatorContext.replica` is None, and none of this is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.redaction import redacted
from svcnode.core.text import encodable
from svcnode.core.url import Url, UrlError, redact_url
from svcnode.node.stats import FIXED_KIND, REPORTED_KIND
from svcnode.probes import scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.sharing.replica import Replica
    from svcnode.sharing.shared_services import SharedServices

Json = dict[str, Any]

RESTRICTED_KIND = "restricted"  # of a service whose probe only other replicas have


class ProbeDisplay(NamedTuple):
    kind: str
    url: str | None = None
    has_options: bool = False


def node_sharing(replica: Replica, ago_s: Callable[[float], float], iso: Callable[[float], str], wall_s: float) -> Json:
    """`ago_s` and `iso` format a time of the node's clock. `wall_s` is the wall clock."""
    from svcnode.sharing.work import work_fields  # loaded late: most nodes are on one machine

    last_s, problem = replica.last_response_at_s, replica.problem
    counts, view = replica.services.checked_counts(), replica.view
    return {
        "replica": replica.name,
        "registry": str(replica.registry),
        "connected": replica.is_connected,
        "problem": encodable(problem) if problem else None,
        "last_response_age_s": None if last_s is None else ago_s(last_s),
        "replicas": [
            {
                "name": member.name,
                "url": member.document.url,
                "software": member.document.software,
                "since": iso(member.seen_at_s),
                "since_s": ago_s(member.seen_at_s),
                "checks": counts[member.name],
                "is_self": member.name == replica.name,
            }
            for member in replica.members()
        ],
        "work": [
            {name: encodable(value) if isinstance(value, str) else value for name, value in one.items()}
            for one in work_fields(replica.work.shown(), wall_s)
        ],
        "lost_services": [encodable(name) for name in replica.lost.services],
        "lost_issues": [encodable(name) for name in replica.lost.issues],
        "ignored_keys": {kind.value: count for kind, count in view.ignored_counts().items()},
        "unmatched_records": view.unmatched_records,
    }


def observed_states(services: SharedServices, service_id: str, ago_s: Callable[[float], float]) -> list[Json]:
    """By every replica that publishes a state of the service, and by every client that reports one."""
    return [
        {
            "observer": state.observer,
            "status": state.status.value,
            "code": state.code,
            "reason": encodable(state.reason),
            "age_s": None if state.evidence_at_s is None else ago_s(state.evidence_at_s),
        }
        for state in services.observed(service_id)
    ]


def shared_probe(services: SharedServices, service_id: str) -> ProbeDisplay | None:
    """The probe of a service that this replica does not check; None if the registry has no such service.

    It is read as it is written: this replica may not have its driver.
    """
    definition = services.definition(service_id)
    if definition is None:
        return None
    if definition.fixed_status is not None:
        return ProbeDisplay(FIXED_KIND)
    if not definition.is_checked:
        return ProbeDisplay(REPORTED_KIND)
    if definition.restricted:
        probe = services.own_probe(service_id)
        return (
            ProbeDisplay(RESTRICTED_KIND)
            if probe is None
            else ProbeDisplay(probe.kind, probe.display_url, has_options=True)
        )
    written = definition.options["probe"]
    is_table = isinstance(written, dict)
    return ProbeDisplay(scheme_of(written), _display_url(written["url"] if is_table else written), has_options=is_table)


def _display_url(text: str) -> str:
    try:
        return redacted(str(Url.parse(text)))
    except UrlError:
        return redact_url(text)

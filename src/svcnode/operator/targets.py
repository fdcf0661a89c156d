"""`/targets`: where Prometheus finds the metrics of other nodes, in the format of its HTTP service discovery.

The nodes are the replicas of this node, and those that `svc+http` and `svc+https` probes check, such as the nodes of a
fleet. All of them are listed, whether they answer or not: a target that disappears raises no alert. For the same reason
the answer is an error until the nodes are known, because Prometheus then keeps the targets that it has.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from svcnode.api.spec import Response, error_response, make_response
from svcnode.core.errors import SvcnodeError
from svcnode.core.strict_json import compact_json
from svcnode.core.text import encodable
from svcnode.core.url import Url
from svcnode.probes import scheme_of
from svcnode.probes.svc import SvcProbe

if TYPE_CHECKING:
    from svcnode.api.spec import Request
    from svcnode.operator.context import OperatorContext
    from svcnode.probes.base import Probe
    from svcnode.sharing.shared_services import SharedServices

NOT_KNOWN_YET = error_response(503, "The other nodes are not known yet; retry in 10 seconds", ("Retry-After", "10"))
DEFAULT_PORTS = {"http": 80, "https": 443}
SCHEMES = ("svc+http", "svc+https")


class OtherNode(NamedTuple):
    """Another node. It has the id, name and group of the service that stands for it in a fleet."""

    id: str
    name: str
    group: str
    page_url: str


async def targets(context: OperatorContext, request: Request, name: str) -> Response:
    return await context.shared("targets", lambda: _make_response(context))


def _make_response(context: OperatorContext) -> Response:
    nodes = other_nodes(context)
    return NOT_KNOWN_YET if nodes is None else make_response(200, compact_json(target_groups(nodes)).encode())


def target_groups(nodes: list[OtherNode]) -> list[dict[str, Any]]:
    """One group for each node, by id; a node with several services is listed once."""
    found: dict[str, dict[str, Any]] = {}
    for node in sorted(nodes):
        url = urlsplit(node.page_url)
        target = url.netloc if url.port else f"{url.netloc}:{DEFAULT_PORTS[url.scheme]}"
        labels = {
            "__scheme__": url.scheme,
            "__metrics_path__": f"{url.path}metrics",
            "__meta_svcnode_id": encodable(node.id),
            "__meta_svcnode_name": encodable(node.name),
            "__meta_svcnode_group": encodable(node.group),
        }
        found.setdefault(f"{url.scheme}://{target}{url.path}", {"targets": [target], "labels": labels})
    return list(found.values())


def other_nodes(context: OperatorContext) -> list[OtherNode] | None:
    """None while some of them are not known. Runs in a thread."""
    nodes = []
    replica = context.replica
    if replica is not None:
        if (members := replica.known_members()) is None:
            return None
        group = context.node.identity.node_name
        for member in members:
            with suppress(SvcnodeError):  # it has no URL, or another one than this version understands
                page_url = SvcProbe(Url.parse(f"svc+{member.document.url}")).page_url
                nodes.append(OtherNode(f"{group}/{member.name}", member.name, group, page_url))
    for service, _ in context.node:
        probe = _probe(context, service.id)
        if probe is not None and not probe.has_found_nodes:
            return None
        if probe is not None and probe.page_url is not None:
            nodes.append(OtherNode(service.id, service.name, service.group, probe.page_url))
    return nodes


def _probe(context: OperatorContext, service_id: str) -> Probe | None:
    config, replica = context.node.probe_config(service_id), context.replica
    if config is not None:
        return config.probe
    return None if replica is None else _shared_probe(replica.services, service_id)


def _shared_probe(services: SharedServices, service_id: str) -> Probe | None:
    """The one of a service that another replica checks, so that all replicas list the same nodes."""
    definition = services.definition(service_id)
    if definition is None or not definition.is_checked or definition.restricted:
        return services.own_probe(service_id)
    written = definition.options["probe"]
    if scheme_of(written) not in SCHEMES:
        return None
    table = written if isinstance(written, dict) else {"url": written}
    with suppress(SvcnodeError):
        return SvcProbe(Url.parse(table["url"]), prefix=str(table.get("prefix", "")))
    return None

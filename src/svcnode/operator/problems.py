"""`/problems`: what is wrong with the services, in the order in which people look at it; and the same as HTML.

The rules are in core/problems.py. The answer is bounded, however many services are Down.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from svcnode.api.spec import Response, make_response
from svcnode.core.dependencies import find_dependencies
from svcnode.core.model import Status
from svcnode.core.problems import Trouble, count_groups, find_problems, groups_document, problems_document
from svcnode.core.strict_json import compact_json
from svcnode.operator.details import node_details, services_details

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.api.spec import Request
    from svcnode.core.model import Service, ServiceState
    from svcnode.operator.context import OperatorContext

Json = dict[str, Any]


async def problems(context: OperatorContext, request: Request, name: str) -> Response:
    return await context.shared("problems", lambda: _make_response(context))


def _make_response(context: OperatorContext) -> Response:
    return make_response(200, compact_json({"node": node_details(context), **find(context)}).encode())


def find(context: OperatorContext) -> Json:
    """All that the page and the commands show of problems. Runs in a thread."""
    services = list(context.node)
    troubles = list(_troubles(context, services))
    now_s = context.node.wall_time_s(context.node.now_s())
    groups = count_groups((service.group, state.status) for service, state in services)
    return {
        "counts": Counter(state.status.value for _, state in services),
        **problems_document(
            find_problems(troubles),
            lambda service_id: next(services_details(context, [service_id])),
            lambda service_id: context.outages.find(service_id, now_s),
            now_s,
        ),
        **groups_document(groups),
        "acknowledged": {
            service["id"]: service["acknowledged"]
            for service in services_details(context, [one.id for one in troubles if one.is_acknowledged])
        },
    }


def _troubles(context: OperatorContext, services: list[tuple[Service, ServiceState]]) -> Iterator[Trouble]:
    node = context.node
    not_up = [(service, state) for service, state in services if state.status is not Status.UP]
    has_dependencies = any(service.depends_on for service, _ in not_up)
    dependencies = find_dependencies(service for service, _ in services) if has_dependencies else None
    ids = {service.id for service, _ in not_up}
    for service, state in not_up:
        began_s = state.since_s if state.first_failure_at_s is None else state.first_failure_at_s
        yield Trouble(
            id=service.id,
            name=service.name,
            group=service.group,
            status=state.status,
            impact=service.impact,
            code=str(state.code),
            reason=state.reason,
            began_s=node.wall_time_s(began_s),
            causes=frozenset() if dependencies is None else dependencies.causes_of(service.id) & ids,
            runbook=service.runbook,
            is_acknowledged=node.acknowledgements.find(service.id) is not None,
            in_maintenance=node.maintenance.current(service.id) is not None,
        )

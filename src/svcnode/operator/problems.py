"""`/problems`: what is wrong with the services, in the order in which people look at it; and the same as HTML.

The rules are in core/problems.py. The answer is bounded, however many services are Down.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from svcnode.api.spec import Response, make_response
from svcnode.core.model import Status
from svcnode.core.problems import Trouble, count_groups, find_problems, groups_document, problems_document
from svcnode.core.strict_json import compact_json
from svcnode.operator.details import node_details, services_details

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.api.spec import Request
    from svcnode.core.dependencies import Dependencies
    from svcnode.core.model import Service, ServiceState
    from svcnode.operator.context import OperatorContext

Json = dict[str, Any]


async def problems(context: OperatorContext, request: Request, name: str) -> Response:
    return await context.shared("problems", lambda: _make_response(context))


def _make_response(context: OperatorContext) -> Response:
    return make_response(200, compact_json({"node": node_details(context), **find(context)}).encode())


def find(context: OperatorContext) -> Json:
    """All that the page and the commands show of problems. Runs in a thread. Costs nothing for a service that is Up."""
    tally, not_up = context.node.summary()
    structure = context.structure.get()
    troubles = list(_troubles(context, not_up, structure.dependencies))
    now_s = context.node.wall_time_s(context.node.now_s())
    by_status = Counter(trouble.status.value for trouble in troubles)
    return {
        "counts": {Status.UP.value: tally.registered - len(troubles), **by_status},
        **problems_document(
            find_problems(troubles),
            lambda service_id: next(services_details(context, [service_id], with_causes=False)),
            lambda service_id: context.outages.find(service_id, now_s),
            now_s,
        ),
        **groups_document(count_groups(structure.group_totals, troubles)),
        "acknowledged": {
            service["id"]: service["acknowledged"]
            for service in services_details(context, [one.id for one in troubles if one.is_acknowledged])
        },
    }


def _troubles(
    context: OperatorContext, not_up: list[tuple[Service, ServiceState]], dependencies: Dependencies
) -> Iterator[Trouble]:
    node = context.node
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
            causes=dependencies.causes_of(service.id) & ids,
            runbook=service.runbook,
            is_acknowledged=node.acknowledgements.find(service.id) is not None,
            in_maintenance=node.maintenance.current(service.id) is not None,
        )

"""`GET /node/health`: the node's health, as a code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, Level, check, is_persistent
from svcnode.conformance.interface import HEALTH, SERVICES, STATIC_ENDPOINTS
from svcnode.conformance.node_under_test import MAX_SERVICES, Exchange, Skip
from svcnode.conformance.response import addressable_ids, format_response, join_items, json_text, service_items

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import NodeUnderTest

MAX_LATENCY_S = 1.0  # the default timeout of a kubelet


@check(
    "health-code",
    Level.MUST,
    "3.1 and 4.2",
    requirement="GET /node/health answers 200, 206 or 503.",
    fix="Answer 200 when healthy, 206 when partially healthy (starting, or a backing service is not healthy) and 503 "
    "when unhealthy, at /node/health under the prefix.",
)
async def health_code(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(HEALTH)
    if exchange.response.code not in STATIC_ENDPOINTS[HEALTH].expected_codes:
        yield exchange.finding(STATIC_ENDPOINTS[HEALTH].expected_text)


@check(
    "health-no-body",
    Level.ADVICE,
    "4.2",
    requirement="The health of the node is the status code alone: the response needs no body.",
    fix="Send no body, and Content-Length: 0.",
    needs=("health-code",),
)
async def health_no_body(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(HEALTH)
    if exchange.response.body:
        yield exchange.finding(f"{exchange.response.code} with no body")


@check(
    "health-reflects-services",
    Level.SHOULD,
    "3.2",
    requirement="The node does not answer 200 while one of its backing services is not Up.",
    fix="Answer 206, or 503 if the node cannot work without the service, while any listed service is Down or "
    "Initializing.",
    needs=("health-code", "services-answers"),
)
async def health_reflects_services(node: NodeUnderTest) -> Findings:
    """A status may change between two requests, so only statuses that are equal before and after count."""
    wrong: list[tuple[Exchange, list[str]]] = []
    compared = 0
    for _ in range(ROUNDS):
        before = await _services_not_up(node)
        health = await node.get(STATIC_ENDPOINTS[HEALTH].path)
        after = await _services_not_up(node)
        if stable := [service for service in before if service in after]:
            compared += 1
            if health.response.code == 200:
                wrong.append((health, stable))
    if not compared:
        raise Skip("no listed service is Down or Initializing")
    if is_persistent(len(wrong)):
        health, services = wrong[-1]
        yield health.finding("206 or 503", f"{format_response(health.response)}, while {join_items(services, 5)}")


async def _services_not_up(node: NodeUnderTest) -> list[str]:
    """By the status in the list, or by the health endpoint if the list has no status."""
    exchange = await node.get(STATIC_ENDPOINTS[SERVICES].path)
    items = [item for item in service_items(exchange.response) or [] if isinstance(item, dict)]
    not_up = [item for item in items if item.get("status") in ("Down", "Initializing")]
    unstated = addressable_ids([item for item in items if "status" not in item])[:MAX_SERVICES]
    outcomes = dict(zip(unstated, await node.send_each(map(node.health_request, unstated)), strict=True))
    codes = {
        service_id: outcome.response.code for service_id, outcome in outcomes.items() if isinstance(outcome, Exchange)
    }
    return [
        *(f"{json_text(item.get('id'))} is {item['status']}" for item in not_up),
        *(f"{json_text(service_id)} has the health {code}" for service_id, code in codes.items() if code in (206, 503)),
    ]


@check(
    "health-latency",
    Level.ADVICE,
    "10.12",
    requirement=f"The health of the node is answered within {MAX_LATENCY_S:g} s.",
    fix="Answer from memory and check the backing services in the background: kubelets wait "
    f"{MAX_LATENCY_S:g} s by default.",
    needs=("health-code",),
)
async def health_latency(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(HEALTH)
    for _ in range(ROUNDS - 1):
        if exchange.response.duration_s <= MAX_LATENCY_S:
            return
        exchange = await node.get(STATIC_ENDPOINTS[HEALTH].path)
    if exchange.response.duration_s > MAX_LATENCY_S:
        yield exchange.finding(
            f"a response within {MAX_LATENCY_S:g} s", f"a response after {exchange.response.duration_s:.1f} s"
        )

"""`GET /node/health`: the node's health, as a code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, UNSPECIFIED, Level, Skip, check, is_persistent
from svcnode.conformance.interface import HEALTH, SERVICES, STATIC_ENDPOINTS
from svcnode.conformance.node_under_test import MAX_SERVICES, Exchange
from svcnode.conformance.parse import addressable_ids, format_response, service_items
from svcnode.conformance.text import join_words, json_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import NodeUnderTest

MAX_LATENCY_S = 1.0  # how long a kubelet waits by default


@check(
    "health-code",
    Level.MUST,
    "4.2",
    requirement="GET /node/health answers 200, 206 or 503.",
    fix="Answer 200 when healthy, 206 when partially healthy (starting, or a backing service is not healthy) and 503 "
    "when unhealthy, at /node/health under the prefix.",
)
async def health_code(node: NodeUnderTest) -> Findings:
    exchanged = await node.first_response(HEALTH)
    if exchanged.response.code not in STATIC_ENDPOINTS[HEALTH].expected_codes:
        yield exchanged.finding(STATIC_ENDPOINTS[HEALTH].expected_text)


@check(
    "health-no-body",
    Level.SHOULD,
    "4.2",
    requirement="The health of the node is its status code alone: the answer has no body.",
    fix="Send no body, and Content-Length: 0.",
    needs=("health-code",),
)
async def health_no_body(node: NodeUnderTest) -> Findings:
    exchanged = await node.first_response(HEALTH)
    if exchanged.response.body:
        yield exchanged.finding(f"{exchanged.response.code} with no body")


@check(
    "health-reflects-services",
    Level.SHOULD,
    "3",
    requirement="The node does not answer 200 while one of its backing services is not Up.",
    fix="Answer 206 (or 503, where the node cannot work without it) as long as any listed service is Down or "
    "Initializing.",
    needs=("health-code", "services-answers"),
)
async def health_reflects_services(node: NodeUnderTest) -> Findings:
    """A status may change between two reads: judged is only what a list before and one after agree on."""
    wrong: list[tuple[Exchange, list[str]]] = []
    judged = 0
    for _ in range(ROUNDS):
        before = await _services_not_up(node)
        health = await node.get(STATIC_ENDPOINTS[HEALTH].path)
        after = await _services_not_up(node)
        if steady := [service for service in before if service in after]:
            judged += 1
            if health.response.code == 200:
                wrong.append((health, steady))
    if not judged:
        raise Skip("no listed service is Down or Initializing now")
    if is_persistent(len(wrong)):
        health, services = wrong[-1]
        yield health.finding("206 or 503", f"{format_response(health.response)}, beside {join_words(services, 5)}")


async def _services_not_up(node: NodeUnderTest) -> list[str]:
    """By the list; where that gives no status, by what the service answers for its health."""
    exchanged = await node.get(STATIC_ENDPOINTS[SERVICES].path)
    items = [item for item in service_items(exchanged.response) or [] if isinstance(item, dict)]
    not_up = [item for item in items if item.get("status") in ("Down", "Initializing")]
    unstated = addressable_ids([item for item in items if "status" not in item])[:MAX_SERVICES]
    asked = dict(zip(unstated, await node.send_each(map(node.health_request, unstated)), strict=True))
    codes = {one: outcome.response.code for one, outcome in asked.items() if isinstance(outcome, Exchange)}
    return [
        *(f"{json_text(item.get('id'))} which is {item['status']}" for item in not_up),
        *(f"{json_text(one)} whose health is {code}" for one, code in codes.items() if code in (206, 503)),
    ]


@check(
    "health-latency",
    Level.ADVICE,
    UNSPECIFIED,
    requirement=f"The health of the node is answered within {MAX_LATENCY_S:g} s.",
    fix="Answer from what is known already, and look at the backing services in the background: kubelets wait "
    f"{MAX_LATENCY_S:g} s by default.",
    needs=("health-code",),
)
async def health_latency(node: NodeUnderTest) -> Findings:
    exchanged = await node.first_response(HEALTH)
    for _ in range(ROUNDS - 1):
        if exchanged.response.duration_s <= MAX_LATENCY_S:
            return
        exchanged = await node.get(STATIC_ENDPOINTS[HEALTH].path)
    if exchanged.response.duration_s > MAX_LATENCY_S:
        yield exchanged.finding(
            f"an answer within {MAX_LATENCY_S:g} s", f"one after {exchanged.response.duration_s:.1f} s"
        )

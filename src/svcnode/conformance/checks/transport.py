"""Connections: keep-alive, framing, concurrency and caching."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.conformance.check import Level, check
from svcnode.conformance.http_client import NoResponseError
from svcnode.conformance.interface import IDENTITY, OTHER_METHODS, SERVICES, UNSUPPORTED_VERSION
from svcnode.conformance.node_under_test import Exchange, Finding, no_response_finding
from svcnode.conformance.response import format_response, parse_body, safe_text, service_items

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import NodeUnderTest

SEQUENTIAL_REQUESTS = 12
PARALLEL_REQUESTS = 50
_BACKLOG_FIX = (
    "Use a listen backlog of 128 or more, such as request_queue_size = 128 for the servers of Python's standard "
    "library."
)
_CONCURRENCY_FIX = f"Serve connections concurrently, or fast enough that {PARALLEL_REQUESTS} take a few seconds."
NO_CACHE_DIRECTIVES = {"no-store", "no-cache", "max-age=0"}


@check(
    "keep-alive-order",
    Level.SHOULD,
    "10.11",
    requirement="Each request on a keep-alive connection gets its own response, until the node announces the close.",
    fix="Send a correct Content-Length, and Connection: close with the last response before closing.",
)
async def keep_alive_order(node: NodeUnderTest) -> Findings:
    endpoints = _cycle_endpoints(await node.require_endpoints(), SEQUENTIAL_REQUESTS)
    exchanges = await node.send_in_sequence([node.request(endpoint.path) for endpoint in endpoints])
    for endpoint, exchange in zip(endpoints, exchanges, strict=False):
        if finding := await _wrong_response_finding(node, endpoint, exchange):
            yield finding


@check(
    "keep-alive-persistent",
    Level.ADVICE,
    "10.11",
    requirement=f"One connection can carry {SEQUENTIAL_REQUESTS} requests.",
    fix="Support keep-alive of HTTP/1.1: with a request every second, a new connection costs far more than the "
    "response.",
    needs=("keep-alive-order",),
)
async def keep_alive_persistent(node: NodeUnderTest) -> Findings:
    endpoints = _cycle_endpoints(await node.require_endpoints(), SEQUENTIAL_REQUESTS)
    exchanges = await node.send_in_sequence([node.request(endpoint.path) for endpoint in endpoints])
    if len(exchanges) < SEQUENTIAL_REQUESTS:
        yield exchanges[-1].finding(
            f"{SEQUENTIAL_REQUESTS} responses on one connection", f"{len(exchanges)}, then the connection closed"
        )


@check(
    "error-responses-framed",
    Level.SHOULD,
    "10.11",
    requirement="Error responses for another method, path, id or version have a length, or close the connection.",
    fix="Send Content-Length with every response, 0 without a body: otherwise a keep-alive client waits until its "
    "timeout.",
)
async def error_responses_framed(node: NodeUnderTest) -> Findings:
    endpoints = await node.require_endpoints()
    requests = [
        node.request(f"/{node.unknown_id}"),
        node.request(endpoints[0].path, f"version={UNSUPPORTED_VERSION}"),
        node.health_request(node.unknown_id),
    ]
    if node.other_methods:
        requests += [node.request(endpoint.path, method=method) for endpoint in endpoints for method in OTHER_METHODS]
    for outcome in await node.send_each(requests, keep_alive=True):
        if isinstance(outcome, NoResponseError) and outcome.is_undelimited:
            yield no_response_finding(outcome)


@check(
    "parallel-requests",
    Level.SHOULD,
    "10.12",
    requirement=f"{PARALLEL_REQUESTS} concurrent requests are answered like single ones.",
    fix="Protect shared state against concurrent reads and writes.",
)
async def parallel_requests(node: NodeUnderTest) -> Findings:
    endpoints = _cycle_endpoints(await node.require_endpoints(), PARALLEL_REQUESTS)
    outcomes = await node.send_in_parallel([node.request(endpoint.path) for endpoint in endpoints])
    lost = [outcome for outcome in outcomes if isinstance(outcome, NoResponseError)]
    refused = [exc for exc in lost if not exc.is_connected]
    broken = [exc for exc in lost if exc.is_connected]
    if refused:
        actual = f"{len(refused)} not accepted: {refused[0]}"
        yield Finding(refused[0].request, f"{PARALLEL_REQUESTS} concurrent connections", actual, _BACKLOG_FIX)
    if broken:
        actual = f"{len(broken)} without a complete response: {broken[0]}"
        yield Finding(broken[0].request, f"{PARALLEL_REQUESTS} complete responses", actual, _CONCURRENCY_FIX)
    pairs = [
        (endpoint, outcome)
        for endpoint, outcome in zip(endpoints, outcomes, strict=True)
        if isinstance(outcome, Exchange)
    ]
    wrong = [
        finding for endpoint, exchange in pairs if (finding := await _wrong_response_finding(node, endpoint, exchange))
    ]
    if wrong:
        yield replace(wrong[0], actual=f"{len(wrong)} of {PARALLEL_REQUESTS} wrong, the first {wrong[0].actual}")


def _cycle_endpoints(endpoints: list[Endpoint], count: int) -> list[Endpoint]:
    return [endpoints[index % len(endpoints)] for index in range(count)]


async def _wrong_response_finding(node: NodeUnderTest, endpoint: Endpoint, exchange: Exchange) -> Finding | None:
    """A status may change at any time, but a response must belong to its request."""
    response = exchange.response
    if response.code not in endpoint.expected_codes:
        return exchange.finding(endpoint.expected_text)
    first = (await node.first_response(endpoint.name)).response if endpoint.name in (IDENTITY, SERVICES) else response
    if endpoint.name == IDENTITY and parse_body(response) != parse_body(first):
        return exchange.finding(f"the same identity as before: {format_response(first)}")
    if endpoint.name == SERVICES and service_items(first) is not None and service_items(response) is None:
        return exchange.finding("the list of services")
    return None


@check(
    "not-cached",
    Level.ADVICE,
    "10.9",
    requirement="Every response has the header Cache-Control: no-store.",
    fix="Send Cache-Control: no-store; otherwise a proxy may serve an old health.",
)
async def not_cached(node: NodeUnderTest) -> Findings:
    for exchange in await node.send_all(node.request(endpoint.path) for endpoint in await node.require_endpoints()):
        if not exchange.response.tokens("cache-control") & NO_CACHE_DIRECTIVES:
            yield exchange.finding("Cache-Control: no-store", _cache_control(exchange))


def _cache_control(exchange: Exchange) -> str:
    values = exchange.response.values("cache-control")
    return f"Cache-Control: {safe_text(', '.join(values))}" if values else "no Cache-Control"


@check(
    "query-unknown-ignored",
    Level.ADVICE,
    "10.10",
    requirement="An unknown query parameter changes nothing.",
    fix="Ignore unknown parameters: monitors add some to bypass caches.",
)
async def query_unknown_ignored(node: NodeUnderTest) -> Findings:
    endpoints = await node.require_endpoints()
    exchanges = await node.send_all(node.request(endpoint.path, f"{node.unknown_id}=1") for endpoint in endpoints)
    for endpoint, exchange in zip(endpoints, exchanges, strict=True):
        if exchange.response.code not in endpoint.expected_codes:
            yield exchange.finding(endpoint.expected_text)

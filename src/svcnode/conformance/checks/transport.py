"""How the answers come: on one connection after another, many at once, and through caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.conformance.check import UNSPECIFIED, Finding, Level, check
from svcnode.conformance.http_client import NoResponseError
from svcnode.conformance.interface import IDENTITY, OTHER_METHODS, SERVICES, UNSUPPORTED_VERSION
from svcnode.conformance.node_under_test import Exchange, no_response_finding
from svcnode.conformance.parse import format_response, parse_body, service_items
from svcnode.conformance.text import safe_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import NodeUnderTest

SEQUENTIAL_REQUESTS = 12
PARALLEL_REQUESTS = 50
_BACKLOG_FIX = (
    "Let more connections wait until they are accepted: a listen backlog of 128 or more, such as "
    "request_queue_size = 128 for the servers of Python's standard library."
)
_CONCURRENCY_FIX = (
    f"Serve connections side by side, or one after another so fast that {PARALLEL_REQUESTS} are done in seconds."
)
NO_CACHE_DIRECTIVES = {"no-store", "no-cache", "max-age=0"}


@check(
    "keep-alive-order",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="Requests that follow each other on one connection each get their own answer, until the node says that it "
    "closes it.",
    fix="Send a Content-Length that is right, and Connection: close with the last answer before closing.",
)
async def keep_alive_order(node: NodeUnderTest) -> Findings:
    places = _cycle_endpoints(await node.require_endpoints(), SEQUENTIAL_REQUESTS)
    asked = await node.send_in_sequence([node.request(place.path) for place in places])
    for place, exchanged in zip(places, asked, strict=False):
        if fault := await _wrong_response_finding(node, place, exchanged):
            yield fault


@check(
    "keep-alive-persistent",
    Level.ADVICE,
    UNSPECIFIED,
    requirement=f"{SEQUENTIAL_REQUESTS} requests can follow each other on one connection.",
    fix="Speak HTTP/1.1 and leave the connection open: asked every second, a new one each time costs far more than "
    "the answer.",
    needs=("keep-alive-order",),
)
async def keep_alive_persistent(node: NodeUnderTest) -> Findings:
    places = _cycle_endpoints(await node.require_endpoints(), SEQUENTIAL_REQUESTS)
    asked = await node.send_in_sequence([node.request(place.path) for place in places])
    if len(asked) < SEQUENTIAL_REQUESTS:
        yield asked[-1].finding(f"{SEQUENTIAL_REQUESTS} answers on one connection", f"{len(asked)}, and then its end")


@check(
    "error-responses-framed",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="A refusal too says where it ends, or ends the connection: that of another method, path, id or version.",
    fix="Send Content-Length with every answer, 0 where it has no body: a client that keeps its connections waits for "
    "the end of the answer in vain.",
)
async def error_responses_framed(node: NodeUnderTest) -> Findings:
    places = await node.require_endpoints()
    requests = [
        node.request(f"/{node.unknown_id}"),
        node.request(places[0].path, f"version={UNSUPPORTED_VERSION}"),
        node.health_request(node.unknown_id),
    ]
    if node.other_methods:
        requests += [node.request(place.path, method=method) for place in places for method in OTHER_METHODS]
    for outcome in await node.send_each(requests, keep_alive=True):
        if isinstance(outcome, NoResponseError) and outcome.is_undelimited:
            yield no_response_finding(outcome)


@check(
    "parallel-requests",
    Level.SHOULD,
    UNSPECIFIED,
    requirement=f"{PARALLEL_REQUESTS} requests at once are each answered as one alone is.",
    fix="Guard what the answers are made from against threads that read and write it at once.",
)
async def parallel_requests(node: NodeUnderTest) -> Findings:
    places = _cycle_endpoints(await node.require_endpoints(), PARALLEL_REQUESTS)
    asked = await node.send_in_parallel([node.request(place.path) for place in places])
    lost = [outcome for outcome in asked if isinstance(outcome, NoResponseError)]
    refused = [exc for exc in lost if not exc.is_connected]
    broken = [exc for exc in lost if exc.is_connected]
    if refused:
        came = f"{len(refused)} of them not accepted: {refused[0]}"
        yield Finding(refused[0].request, f"{PARALLEL_REQUESTS} connections at once", came, _BACKLOG_FIX)
    if broken:
        came = f"{len(broken)} of them without one: {broken[0]}"
        yield Finding(broken[0].request, f"{PARALLEL_REQUESTS} whole answers", came, _CONCURRENCY_FIX)
    pairs = [(place, outcome) for place, outcome in zip(places, asked, strict=True) if isinstance(outcome, Exchange)]
    wrong = [fault for place, exchanged in pairs if (fault := await _wrong_response_finding(node, place, exchanged))]
    if wrong:
        yield replace(wrong[0], actual=f"{len(wrong)} of {PARALLEL_REQUESTS} wrong, the first {wrong[0].actual}")


def _cycle_endpoints(places: list[Endpoint], count: int) -> list[Endpoint]:
    return [places[turn % len(places)] for turn in range(count)]


async def _wrong_response_finding(node: NodeUnderTest, place: Endpoint, exchanged: Exchange) -> Finding | None:
    """Statuses may change at any time, but an answer stays one to its own request."""
    answer = exchanged.response
    if answer.code not in place.expected_codes:
        return exchanged.finding(place.expected_text)
    first = (await node.first_response(place.name)).response if place.name in (IDENTITY, SERVICES) else answer
    if place.name == IDENTITY and parse_body(answer) != parse_body(first):
        return exchanged.finding(f"the identity, as before: {format_response(first)}")
    if place.name == SERVICES and service_items(first) is not None and service_items(answer) is None:
        return exchanged.finding("the list of services")
    return None


@check(
    "not-cached",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="No cache may keep an answer: each has the header Cache-Control: no-store.",
    fix="Send Cache-Control: no-store, or a proxy may go on telling a health that has passed.",
)
async def not_cached(node: NodeUnderTest) -> Findings:
    for exchanged in await node.send_all(node.request(place.path) for place in await node.require_endpoints()):
        if not exchanged.response.tokens("cache-control") & NO_CACHE_DIRECTIVES:
            yield exchanged.finding("Cache-Control: no-store", _cache_control(exchanged))


def _cache_control(exchanged: Exchange) -> str:
    found = exchanged.response.values("cache-control")
    return f"Cache-Control: {safe_text(', '.join(found))}" if found else "no Cache-Control"


@check(
    "query-unknown-ignored",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="A query parameter that the interface does not have changes nothing.",
    fix="Ignore parameters that are not known: monitors add some, to get past caches.",
)
async def query_unknown_ignored(node: NodeUnderTest) -> Findings:
    places = await node.require_endpoints()
    asked = await node.send_all(node.request(place.path, f"{node.unknown_id}=1") for place in places)
    for place, exchanged in zip(places, asked, strict=True):
        if exchanged.response.code not in place.expected_codes:
            yield exchanged.finding(place.expected_text)

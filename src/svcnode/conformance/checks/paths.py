"""Paths other than the four endpoints answer 404."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.conformance.check import Level, check
from svcnode.conformance.checks.service_health import not_found_finding
from svcnode.conformance.interface import STATIC_ENDPOINTS
from svcnode.conformance.response import is_success_code, safe_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import Exchange, Finding, NodeUnderTest

REDIRECT_FIX = "Answer 404: kubelets and HAProxy read a redirect as success, whatever the health is."


@check(
    "path-unknown-refused",
    Level.SHOULD,
    "10.8",
    requirement="An unknown path is not answered with success.",
    fix="Answer 404, and serve no catch-all page: a monitor with a misspelt path would see a healthy node.",
)
async def path_unknown_refused(node: NodeUnderTest) -> Findings:
    for exchange in await _unknown_path_exchanges(node):
        if is_success_code(exchange.response.code):
            yield exchange.finding("404")


@check(
    "path-unknown-404",
    Level.ADVICE,
    "10.8",
    requirement="An unknown path is answered 404 with an error body.",
    fix='Answer 404 with Content-Type: application/json and a body such as {"message":"Not found"}.',
    needs=("path-unknown-refused",),
)
async def path_unknown_404(node: NodeUnderTest) -> Findings:
    for exchange in await _unknown_path_exchanges(node):
        if (finding := not_found_finding(exchange)) is not None:
            yield finding


async def _unknown_path_exchanges(node: NodeUnderTest) -> list[Exchange]:
    return await node.send_all(map(node.request, (f"/{node.unknown_id}", f"/node/{node.unknown_id}")))


@check(
    "path-trailing-slash",
    Level.ADVICE,
    "10.8",
    requirement="An endpoint with a trailing slash is neither an alias nor a redirect.",
    fix="Answer 404, so that each endpoint has one path: a rule of a proxy or a cache for that path does not apply to "
    "its alias.",
    needs=("path-unknown-refused",),
)
async def path_trailing_slash(node: NodeUnderTest) -> Findings:
    endpoints = list(STATIC_ENDPOINTS.values())
    exchanges = await node.send_all(node.request(f"{endpoint.path}/") for endpoint in endpoints)
    for endpoint, exchange in zip(endpoints, exchanges, strict=True):
        if exchange.response.code != 404:
            yield _trailing_slash_finding(endpoint, exchange)


def _trailing_slash_finding(endpoint: Endpoint, exchange: Exchange) -> Finding:
    response = exchange.response
    if 300 <= response.code < 400:
        location = safe_text(next(iter(response.values("location")), "an unnamed target"))
        return replace(exchange.finding("404", f"{response.code}, a redirect to {location}"), fix=REDIRECT_FIX)
    if response.code in endpoint.expected_codes:
        return exchange.finding("404", f"{response.code}, the response of the endpoint without the slash")
    return replace(exchange.finding("404"), fix="Answer 404, as for any other unknown path.")

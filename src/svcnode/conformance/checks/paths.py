"""Paths other than the four endpoints answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import UNSPECIFIED, Level, check
from svcnode.conformance.checks.service_health import not_found_finding
from svcnode.conformance.interface import STATIC_ENDPOINTS
from svcnode.conformance.parse import is_success_code

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import Exchange, NodeUnderTest


@check(
    "path-unknown-refused",
    Level.SHOULD,
    UNSPECIFIED,
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
    UNSPECIFIED,
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
    UNSPECIFIED,
    requirement="An endpoint with a trailing slash is neither an alias nor a redirect.",
    fix="Answer 404: kubelets and HAProxy read a redirect as success, whatever the health is.",
    needs=("path-unknown-refused",),
)
async def path_trailing_slash(node: NodeUnderTest) -> Findings:
    for exchange in await node.send_all(node.request(f"{endpoint.path}/") for endpoint in STATIC_ENDPOINTS.values()):
        if exchange.response.code != 404:
            yield exchange.finding("404")

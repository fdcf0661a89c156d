"""What stands beside the four endpoints is nothing, and has to look like it."""

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
    requirement="A path that the interface does not have is not answered as if it were fine.",
    fix="Answer 404 for it, and no page for everything: a monitor with a misspelt path would see a healthy node.",
)
async def path_unknown_refused(node: NodeUnderTest) -> Findings:
    for exchanged in await _unknown_path_exchanges(node):
        if is_success_code(exchanged.response.code):
            yield exchanged.finding("404")


@check(
    "path-unknown-404",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="A path that the interface does not have is answered 404, with an error body.",
    fix='Answer 404 with Content-Type: application/json and a body such as {"message":"Not found"}.',
    needs=("path-unknown-refused",),
)
async def path_unknown_404(node: NodeUnderTest) -> Findings:
    for exchanged in await _unknown_path_exchanges(node):
        if (fault := not_found_finding(exchanged)) is not None:
            yield fault


async def _unknown_path_exchanges(node: NodeUnderTest) -> list[Exchange]:
    return await node.send_all(map(node.request, (f"/{node.unknown_id}", f"/node/{node.unknown_id}")))


@check(
    "path-trailing-slash",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="An endpoint with a slash after it is neither another name for it nor a redirect.",
    fix="Answer 404 for it: kubelets and HAProxy take the redirect for a yes, whatever the health is.",
    needs=("path-unknown-refused",),
)
async def path_trailing_slash(node: NodeUnderTest) -> Findings:
    for exchanged in await node.send_all(node.request(f"{place.path}/") for place in STATIC_ENDPOINTS.values()):
        if exchanged.response.code != 404:
            yield exchanged.finding("404")

"""What stands beside the four endpoints is nothing, and has to look like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import SILENT, Level, check
from svcnode.conformance.checks.service_health import not_found_fault
from svcnode.conformance.interface import FIXED
from svcnode.conformance.reading import is_as_if_fine

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.subject import Exchanged, Subject


@check(
    "path-unknown-refused",
    Level.SHOULD,
    SILENT,
    demands="A path that the interface does not have is not answered as if it were fine.",
    mend="Answer 404 for it, and no page for everything: a monitor with a misspelt path would see a healthy node.",
)
async def path_unknown_refused(node: Subject) -> Findings:
    for exchanged in await _strangers(node):
        if is_as_if_fine(exchanged.answer.code):
            yield exchanged.finding("404")


@check(
    "path-unknown-404",
    Level.ADVICE,
    SILENT,
    demands="A path that the interface does not have is answered 404, with an error body.",
    mend='Answer 404 with Content-Type: application/json and a body such as {"message":"Not found"}.',
    needs=("path-unknown-refused",),
)
async def path_unknown_404(node: Subject) -> Findings:
    for exchanged in await _strangers(node):
        if (fault := not_found_fault(exchanged)) is not None:
            yield fault


async def _strangers(node: Subject) -> list[Exchanged]:
    return await node.ask_all(map(node.request, (f"/{node.unknown_id}", f"/node/{node.unknown_id}")))


@check(
    "path-trailing-slash",
    Level.ADVICE,
    SILENT,
    demands="An endpoint with a slash after it is neither another name for it nor a redirect.",
    mend="Answer 404 for it: kubelets and HAProxy take the redirect for a yes, whatever the health is.",
    needs=("path-unknown-refused",),
)
async def path_trailing_slash(node: Subject) -> Findings:
    for exchanged in await node.ask_all(node.request(f"{place.path}/") for place in FIXED.values()):
        if exchanged.answer.code != 404:
            yield exchanged.finding("404")

"""`GET /node/health`: the node's health, as a code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, SILENT, Level, NotJudgedError, check, comes_again
from svcnode.conformance.interface import FIXED, HEALTH, SERVICES
from svcnode.conformance.reading import items_of, told, usable_ids
from svcnode.conformance.subject import MAX_SERVICES, Exchanged
from svcnode.conformance.wording import as_json, listed

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.subject import Subject

QUICK_S = 1.0  # how long a kubelet waits by default


@check(
    "health-code",
    Level.MUST,
    "4.2",
    demands="GET /node/health answers 200, 206 or 503.",
    mend="Answer 200 when healthy, 206 when partially healthy (starting, or a backing service is not healthy) and 503 "
    "when unhealthy, at /node/health under the prefix.",
)
async def health_code(node: Subject) -> Findings:
    exchanged = await node.first(HEALTH)
    if exchanged.answer.code not in FIXED[HEALTH].codes:
        yield exchanged.finding(FIXED[HEALTH].expected)


@check(
    "health-no-body",
    Level.SHOULD,
    "4.2",
    demands="The health of the node is its status code alone: the answer has no body.",
    mend="Send no body, and Content-Length: 0.",
    needs=("health-code",),
)
async def health_no_body(node: Subject) -> Findings:
    exchanged = await node.first(HEALTH)
    if exchanged.answer.body:
        yield exchanged.finding(f"{exchanged.answer.code} with no body")


@check(
    "health-heeds-services",
    Level.SHOULD,
    "3",
    demands="The node does not answer 200 while one of its backing services is not Up.",
    mend="Answer 206 (or 503, where the node cannot work without it) as long as any listed service is Down or "
    "Initializing.",
    needs=("health-code", "services-answers"),
)
async def health_heeds_services(node: Subject) -> Findings:
    """A status may change between two reads: judged is only what a list before and one after agree on."""
    wrong: list[tuple[Exchanged, list[str]]] = []
    judged = 0
    for _ in range(ROUNDS):
        before = await _not_up(node)
        health = await node.get(FIXED[HEALTH].path)
        after = await _not_up(node)
        if steady := [service for service in before if service in after]:
            judged += 1
            if health.answer.code == 200:
                wrong.append((health, steady))
    if not judged:
        raise NotJudgedError("no listed service is Down or Initializing now")
    if comes_again(len(wrong)):
        health, services = wrong[-1]
        yield health.finding("206 or 503", f"{told(health.answer)}, beside {listed(services, 5)}")


async def _not_up(node: Subject) -> list[str]:
    """By the list; where that gives no status, by what the service answers for its health."""
    exchanged = await node.get(FIXED[SERVICES].path)
    items = [item for item in items_of(exchanged.answer) or [] if isinstance(item, dict)]
    not_up = [item for item in items if item.get("status") in ("Down", "Initializing")]
    unstated = usable_ids([item for item in items if "status" not in item])[:MAX_SERVICES]
    asked = dict(zip(unstated, await node.ask_each(map(node.health_request, unstated)), strict=True))
    codes = {one: outcome.answer.code for one, outcome in asked.items() if isinstance(outcome, Exchanged)}
    return [
        *(f"{as_json(item.get('id'))} which is {item['status']}" for item in not_up),
        *(f"{as_json(one)} whose health is {code}" for one, code in codes.items() if code in (206, 503)),
    ]


@check(
    "health-quick",
    Level.ADVICE,
    SILENT,
    demands=f"The health of the node is answered within {QUICK_S:g} s.",
    mend="Answer from what is known already, and look at the backing services in the background: kubelets wait "
    f"{QUICK_S:g} s by default.",
    needs=("health-code",),
)
async def health_quick(node: Subject) -> Findings:
    exchanged = await node.first(HEALTH)
    for _ in range(ROUNDS - 1):
        if exchanged.answer.took_s <= QUICK_S:
            return
        exchanged = await node.get(FIXED[HEALTH].path)
    if exchanged.answer.took_s > QUICK_S:
        yield exchanged.finding(f"an answer within {QUICK_S:g} s", f"one after {exchanged.answer.took_s:.1f} s")

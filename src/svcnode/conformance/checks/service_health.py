"""`GET /node/services/{id}/health`: the health of one backing service, as a code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svcnode.conformance.check import Level, NotJudgedError, check
from svcnode.conformance.subject import (
    FIXED,
    HEALTH_CODES,
    SERVICES,
    VERSION_NOT_FOUND,
    content_type_of,
    error_fault,
    is_as_if_fine,
    items_of,
    needs_encoding,
    parsed,
    told,
    usable_ids,
)
from svcnode.conformance.wording import shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Finding, Findings
    from svcnode.conformance.subject import Exchanged, Subject

CODES = tuple(HEALTH_CODES.values())
ROUNDS = 3


@check(
    "service-health-code",
    Level.MUST,
    "4.4",
    demands="GET /node/services/{id}/health answers 200, 206 or 503 for every id in the list.",
    mend="Look the id of the path up among the services that the list has, and answer 200 for Up, 206 for Initializing "
    "and 503 for Down.",
    needs=("services-answers",),
)
def service_health_code(node: Subject) -> Findings:
    return _code_findings(node, is_encoded=False)


@check(
    "service-id-encoded",
    Level.MUST,
    "4.4",
    demands="An id with characters that a path cannot hold is asked for percent-encoded, and answers 200, 206 or 503.",
    mend="Split the path first and percent-decode its parts once, after that; or use only letters, digits and - . _ ~ "
    "in ids.",
    needs=("services-answers",),
)
def service_id_encoded(node: Subject) -> Findings:
    return _code_findings(node, is_encoded=True)


async def _code_findings(node: Subject, *, is_encoded: bool) -> Findings:
    healths = await node.healths()
    asked = {one: exchanged for one, exchanged in healths.items() if needs_encoding(one) == is_encoded}
    if not asked:
        raise NotJudgedError(f"no listed id has {'a character' if is_encoded else 'only characters'} of that kind")
    for service_id, exchanged in asked.items():
        if exchanged.answer.code not in CODES:
            came = f'{told(exchanged.answer)}, for the id "{shown(service_id)}" of the list'
            yield exchanged.finding("200, 206 or 503", came)


@check(
    "service-health-no-body",
    Level.SHOULD,
    "3",
    demands="The health of a service is its status code alone: the answer has no body.",
    mend="Send no body, and Content-Length: 0.",
    needs=("services-answers",),
)
async def service_health_no_body(node: Subject) -> Findings:
    for exchanged in (await _answered(node)).values():
        if exchanged.answer.body:
            yield exchanged.finding(f"{exchanged.answer.code} with no body")


async def _answered(node: Subject) -> dict[str, Exchanged]:
    found = {one: exchanged for one, exchanged in (await node.healths()).items() if exchanged.answer.code in CODES}
    if not found:
        raise NotJudgedError("no service answers for its health")
    return found


@check(
    "service-health-agrees",
    Level.MUST,
    "3",
    demands="The health of a service agrees with its status in the list: Up 200, Initializing 206, Down 503.",
    mend="Take both from the same state: the status in the list decides the code of /node/services/{id}/health.",
    needs=("services-answers",),
)
async def service_health_agrees(node: Subject) -> Findings:
    """A status may change between two reads: judged is only what a list before and one after agree on."""
    answered = list(await _answered(node))
    judged: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    last: dict[str, tuple[Exchanged, str]] = {}
    for _ in range(ROUNDS):
        before = await _statuses(node)
        asked = await node.ask_all(map(node.health_request, answered))
        after = await _statuses(node)
        for service_id, exchanged in zip(answered, asked, strict=True):
            status = before.get(service_id)
            if status is None or status != after.get(service_id):
                continue
            judged[service_id] += 1
            if exchanged.answer.code != HEALTH_CODES[status]:
                wrong[service_id] += 1
                last[service_id] = exchanged, status
    if not judged:
        raise NotJudgedError("no service has a status in the list that holds still")
    for service_id, (exchanged, status) in last.items():
        if wrong[service_id] * 2 > ROUNDS:
            expected = f'{HEALTH_CODES[status]}, since the list says that "{shown(service_id)}" is {status}'
            yield exchanged.finding(expected, str(exchanged.answer.code))


async def _statuses(node: Subject) -> dict[str, str]:
    items = items_of((await node.get(FIXED[SERVICES].path)).answer) or []
    usable = set(usable_ids(items))
    named = [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    return {
        item["id"]: item["status"]
        for item in named
        if item["id"] in usable and item.get("status") in tuple(HEALTH_CODES)
    }


# ---- ids that are not registered


@check(
    "service-unknown-refused",
    Level.SHOULD,
    "4.4",
    demands="An id that is not registered is not answered as if its service were fine.",
    mend="Answer 404 for an id that is not in the list; codes from 200 to 399 are taken for a healthy service.",
    needs=("services-answers",),
)
async def service_unknown_refused(node: Subject) -> Findings:
    exchanged = await node.ask(node.health_request(node.unknown_id))
    if is_as_if_fine(exchanged.answer.code):
        yield exchanged.finding("404")


@check(
    "service-unknown-told-apart",
    Level.SHOULD,
    "7",
    demands=f'An id that is not registered is not answered with the message "{VERSION_NOT_FOUND}".',
    mend='Send another message, such as {"message":"Service not found"}: clients tell the two 404 apart by it.',
    needs=("service-unknown-refused",),
)
async def service_unknown_told_apart(node: Subject) -> Findings:
    exchanged = await node.ask(node.health_request(node.unknown_id))
    value = parsed(exchanged.answer).value
    if isinstance(value, dict) and value.get("message") == VERSION_NOT_FOUND:
        yield exchanged.finding("another message")


@check(
    "service-unknown-404",
    Level.ADVICE,
    "silent",
    demands="An id that is not registered is answered 404, with an error body.",
    mend='Answer 404 with Content-Type: application/json and a body such as {"message":"Service not found"}.',
    needs=("service-unknown-refused",),
)
async def service_unknown_404(node: Subject) -> Findings:
    exchanged = await node.ask(node.health_request(node.unknown_id))
    if (fault := not_found_fault(exchanged)) is not None:
        yield fault


def not_found_fault(exchanged: Exchanged) -> Finding | None:
    answer = exchanged.answer
    expected = '404, application/json, {"message":"…"}'
    if answer.code != 404:
        return exchanged.finding(expected)
    if fault := error_fault(answer):
        return exchanged.finding(expected, fault)
    if answer.media_type != "application/json":
        return exchanged.finding(expected, f"404 with {content_type_of(answer)}")
    return None

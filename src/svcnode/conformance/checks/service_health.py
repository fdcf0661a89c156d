"""`GET /node/services/{id}/health`: the health of one backing service, as a code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, SILENT, Level, NotJudgedError, check, comes_again
from svcnode.conformance.interface import (
    ANY_HEALTH,
    ANY_HEALTH_WORDS,
    FIXED,
    HEALTH_CODES,
    SERVICES,
    VERSION_NOT_FOUND,
    needs_encoding,
)
from svcnode.conformance.reading import by_id, content_type_of, error_fault, field_of, is_as_if_fine, items_of, told
from svcnode.conformance.subject import no_answer
from svcnode.conformance.wording import shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Finding, Findings
    from svcnode.conformance.exchange import Answer
    from svcnode.conformance.subject import Exchanged, Subject


@check(
    "service-health-code",
    Level.MUST,
    "4.4",
    demands="GET /node/services/{id}/health answers 200, 206 or 503 for every id in the list.",
    mend="Look the id of the path up among the services that the list has, and answer 200 for Up, 206 for Initializing "
    "and 503 for Down.",
    needs=("services-answers",),
)
async def service_health_code(node: Subject) -> Findings:
    asked = await _asked(node, is_encoded=False)
    for finding in [*await _unanswered(node, is_encoded=False), *_wrong_codes(asked)]:
        yield finding


@check(
    "service-id-encoded",
    Level.MUST,
    "4.4",
    demands="An id with characters that a path cannot hold is asked for percent-encoded, and answers 200, 206 or 503.",
    mend="Split the path first and percent-decode its parts once, after that; or use only letters, digits and - . _ ~ "
    "in ids.",
    needs=("services-answers",),
)
async def service_id_encoded(node: Subject) -> Findings:
    asked = await _asked(node, is_encoded=True)
    wrong = [*await _unanswered(node, is_encoded=True), *_wrong_codes(asked)]
    for finding in wrong or await _taken_for_unknown(node, list(asked)):
        yield finding


async def _asked(node: Subject, *, is_encoded: bool) -> dict[str, Exchanged]:
    asked = {one: exchanged for one, exchanged in (await node.healths()).items() if needs_encoding(one) == is_encoded}
    if not asked and not await _unanswered(node, is_encoded=is_encoded):
        raise NotJudgedError(f"no listed id has {'a character' if is_encoded else 'only characters'} of that kind")
    return asked


async def _unanswered(node: Subject, *, is_encoded: bool) -> list[Finding]:
    found = await node.unanswered_healths()
    return [no_answer(exc) for one, exc in found.items() if needs_encoding(one) == is_encoded]


def _wrong_codes(asked: dict[str, Exchanged]) -> list[Finding]:
    return [
        exchanged.finding(ANY_HEALTH_WORDS, f'{told(exchanged.answer)}, for the id "{shown(service_id)}" of the list')
        for service_id, exchanged in asked.items()
        if exchanged.answer.code not in ANY_HEALTH
    ]


async def _taken_for_unknown(node: Subject, ids: list[str]) -> list[Finding]:
    """A node that decodes no id knows none of these, and may answer for them as for any other that it does not know.

    That is seen where the status in the list asks for another answer; otherwise, nobody can tell.
    """
    unknown = (await node.ask(node.health_request(node.unknown_id))).answer
    before = await _statuses(node)
    asked = dict(zip(ids, await node.ask_all(map(node.health_request, ids)), strict=True))
    after = await _statuses(node)
    alike = {one: exchanged for one, exchanged in asked.items() if _is_alike(exchanged.answer, unknown)}
    mistaken = {
        one: before[one]
        for one in alike
        if one in before and before[one] == after.get(one) and HEALTH_CODES[before[one]] != unknown.code
    }
    plain = [exchanged for one, exchanged in (await node.healths()).items() if not needs_encoding(one)]
    if mistaken and any(not _is_alike(exchanged.answer, unknown) for exchanged in plain):
        came = f"{told(unknown)}, as for an id that is not registered"
        return [asked[one].finding(_expected(one, status), came) for one, status in mistaken.items()]
    if len(alike) == len(asked):
        hint = f": make that service {'Down' if unknown.code == 200 else 'Up'} to have it judged"
        raise NotJudgedError(
            f'an id that is not registered gets the same answer as "{shown(ids[0])}" ({unknown.code})'
            f"{'' if ids[0] in mistaken else hint}"
        )
    return []


def _is_alike(answer: Answer, other: Answer) -> bool:
    return (answer.code, answer.body) == (other.code, other.body)


def _expected(service_id: str, status: str) -> str:
    return f'{HEALTH_CODES[status]}, since the list says that "{shown(service_id)}" is {status}'


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
    found = {one: exchanged for one, exchanged in (await node.healths()).items() if exchanged.answer.code in ANY_HEALTH}
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
        if comes_again(wrong[service_id]):
            yield exchanged.finding(_expected(service_id, status), str(exchanged.answer.code))


async def _statuses(node: Subject) -> dict[str, str]:
    """By the list as it is now; of the services that have one of the three, and an id that can be asked for."""
    items = items_of((await node.get(FIXED[SERVICES].path)).answer) or []
    return {one: item["status"] for one, item in by_id(items).items() if item.get("status") in tuple(HEALTH_CODES)}


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
    if field_of(exchanged.answer, "message") == VERSION_NOT_FOUND:
        yield exchanged.finding("another message")


@check(
    "service-unknown-404",
    Level.ADVICE,
    SILENT,
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

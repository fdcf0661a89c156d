"""`GET /node/services/{id}/health`: the health of one backing service, as a code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, UNSPECIFIED, Level, Skip, check, is_persistent
from svcnode.conformance.interface import (
    ALL_HEALTH_CODES,
    HEALTH_CODES,
    HEALTH_CODES_TEXT,
    SERVICES,
    STATIC_ENDPOINTS,
    VERSION_NOT_FOUND,
    needs_encoding,
)
from svcnode.conformance.node_under_test import no_response_finding
from svcnode.conformance.parse import (
    body_field,
    error_body_problem,
    format_content_type,
    format_response,
    is_success_code,
    service_items,
    services_by_id,
)
from svcnode.conformance.text import safe_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Finding, Findings
    from svcnode.conformance.http_client import RawResponse
    from svcnode.conformance.node_under_test import Exchange, NodeUnderTest


@check(
    "service-health-code",
    Level.MUST,
    "4.4",
    requirement="GET /node/services/{id}/health answers 200, 206 or 503 for every id in the list.",
    fix="Look the id of the path up among the services that the list has, and answer 200 for Up, 206 for Initializing "
    "and 503 for Down.",
    needs=("services-answers",),
)
async def service_health_code(node: NodeUnderTest) -> Findings:
    asked = await _health_exchanges(node, is_encoded=False)
    for finding in [*await _unanswered_findings(node, is_encoded=False), *_wrong_code_findings(asked)]:
        yield finding


@check(
    "service-id-encoded",
    Level.MUST,
    "4.4",
    requirement="An id with characters that a path cannot hold is asked for percent-encoded, and answers 200, 206 or 503.",
    fix="Split the path first and percent-decode its parts once, after that; or use only letters, digits and - . _ ~ "
    "in ids.",
    needs=("services-answers",),
)
async def service_id_encoded(node: NodeUnderTest) -> Findings:
    asked = await _health_exchanges(node, is_encoded=True)
    wrong = [*await _unanswered_findings(node, is_encoded=True), *_wrong_code_findings(asked)]
    for finding in wrong or await _decoding_findings(node, list(asked)):
        yield finding


async def _health_exchanges(node: NodeUnderTest, *, is_encoded: bool) -> dict[str, Exchange]:
    asked = {
        one: exchanged for one, exchanged in (await node.service_healths()).items() if needs_encoding(one) == is_encoded
    }
    if not asked and not await _unanswered_findings(node, is_encoded=is_encoded):
        raise Skip(f"no listed id has {'a character' if is_encoded else 'only characters'} of that kind")
    return asked


async def _unanswered_findings(node: NodeUnderTest, *, is_encoded: bool) -> list[Finding]:
    found = await node.unanswered_services()
    return [no_response_finding(exc) for one, exc in found.items() if needs_encoding(one) == is_encoded]


def _wrong_code_findings(asked: dict[str, Exchange]) -> list[Finding]:
    return [
        exchanged.finding(
            HEALTH_CODES_TEXT,
            f'{format_response(exchanged.response)}, for the id "{safe_text(service_id)}" of the list',
        )
        for service_id, exchanged in asked.items()
        if exchanged.response.code not in ALL_HEALTH_CODES
    ]


async def _decoding_findings(node: NodeUnderTest, ids: list[str]) -> list[Finding]:
    """A node that decodes no id knows none of these, and may answer for them as for any other that it does not know.

    That is seen where the status in the list asks for another answer; otherwise, nobody can tell.
    """
    unknown = (await node.send(node.health_request(node.unknown_id))).response
    before = await _statuses(node)
    asked = dict(zip(ids, await node.send_all(map(node.health_request, ids)), strict=True))
    after = await _statuses(node)
    alike = {one: exchanged for one, exchanged in asked.items() if _is_same_response(exchanged.response, unknown)}
    mistaken = {
        one: before[one]
        for one in alike
        if one in before and before[one] == after.get(one) and HEALTH_CODES[before[one]] != unknown.code
    }
    plain = [exchanged for one, exchanged in (await node.service_healths()).items() if not needs_encoding(one)]
    if mistaken and any(not _is_same_response(exchanged.response, unknown) for exchanged in plain):
        came = f"{format_response(unknown)}, as for an id that is not registered"
        return [asked[one].finding(_expected_text(one, status), came) for one, status in mistaken.items()]
    if len(alike) == len(asked):
        hint = f": make that service {'Down' if unknown.code == 200 else 'Up'} to have it judged"
        raise Skip(
            f'an id that is not registered gets the same answer as "{safe_text(ids[0])}" ({unknown.code})'
            f"{'' if ids[0] in mistaken else hint}"
        )
    return []


def _is_same_response(answer: RawResponse, other: RawResponse) -> bool:
    return (answer.code, answer.body) == (other.code, other.body)


def _expected_text(service_id: str, status: str) -> str:
    return f'{HEALTH_CODES[status]}, since the list says that "{safe_text(service_id)}" is {status}'


@check(
    "service-health-no-body",
    Level.SHOULD,
    "3",
    requirement="The health of a service is its status code alone: the answer has no body.",
    fix="Send no body, and Content-Length: 0.",
    needs=("services-answers",),
)
async def service_health_no_body(node: NodeUnderTest) -> Findings:
    for exchanged in (await _answered_services(node)).values():
        if exchanged.response.body:
            yield exchanged.finding(f"{exchanged.response.code} with no body")


async def _answered_services(node: NodeUnderTest) -> dict[str, Exchange]:
    found = {
        one: exchanged
        for one, exchanged in (await node.service_healths()).items()
        if exchanged.response.code in ALL_HEALTH_CODES
    }
    if not found:
        raise Skip("no service answers for its health")
    return found


@check(
    "service-health-agrees",
    Level.MUST,
    "3",
    requirement="The health of a service agrees with its status in the list: Up 200, Initializing 206, Down 503.",
    fix="Take both from the same state: the status in the list decides the code of /node/services/{id}/health.",
    needs=("services-answers",),
)
async def service_health_agrees(node: NodeUnderTest) -> Findings:
    """A status may change between two reads: judged is only what a list before and one after agree on."""
    answered = list(await _answered_services(node))
    judged: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    last: dict[str, tuple[Exchange, str]] = {}
    for _ in range(ROUNDS):
        before = await _statuses(node)
        asked = await node.send_all(map(node.health_request, answered))
        after = await _statuses(node)
        for service_id, exchanged in zip(answered, asked, strict=True):
            status = before.get(service_id)
            if status is None or status != after.get(service_id):
                continue
            judged[service_id] += 1
            if exchanged.response.code != HEALTH_CODES[status]:
                wrong[service_id] += 1
                last[service_id] = exchanged, status
    if not judged:
        raise Skip("no service has a status in the list that holds still")
    for service_id, (exchanged, status) in last.items():
        if is_persistent(wrong[service_id]):
            yield exchanged.finding(_expected_text(service_id, status), str(exchanged.response.code))


async def _statuses(node: NodeUnderTest) -> dict[str, str]:
    """By the list as it is now; of the services that have one of the three, and an id that can be asked for."""
    items = service_items((await node.get(STATIC_ENDPOINTS[SERVICES].path)).response) or []
    return {
        one: item["status"] for one, item in services_by_id(items).items() if item.get("status") in tuple(HEALTH_CODES)
    }


# ---- ids that are not registered


@check(
    "service-unknown-refused",
    Level.SHOULD,
    "4.4",
    requirement="An id that is not registered is not answered as if its service were fine.",
    fix="Answer 404 for an id that is not in the list; codes from 200 to 399 are taken for a healthy service.",
    needs=("services-answers",),
)
async def service_unknown_refused(node: NodeUnderTest) -> Findings:
    exchanged = await node.send(node.health_request(node.unknown_id))
    if is_success_code(exchanged.response.code):
        yield exchanged.finding("404")


@check(
    "service-unknown-distinct-message",
    Level.SHOULD,
    "7",
    requirement=f'An id that is not registered is not answered with the message "{VERSION_NOT_FOUND}".',
    fix='Send another message, such as {"message":"Service not found"}: clients tell the two 404 apart by it.',
    needs=("service-unknown-refused",),
)
async def service_unknown_distinct_message(node: NodeUnderTest) -> Findings:
    exchanged = await node.send(node.health_request(node.unknown_id))
    if body_field(exchanged.response, "message") == VERSION_NOT_FOUND:
        yield exchanged.finding("another message")


@check(
    "service-unknown-404",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="An id that is not registered is answered 404, with an error body.",
    fix='Answer 404 with Content-Type: application/json and a body such as {"message":"Service not found"}.',
    needs=("service-unknown-refused",),
)
async def service_unknown_404(node: NodeUnderTest) -> Findings:
    exchanged = await node.send(node.health_request(node.unknown_id))
    if (fault := not_found_finding(exchanged)) is not None:
        yield fault


def not_found_finding(exchanged: Exchange) -> Finding | None:
    answer = exchanged.response
    expected = '404, application/json, {"message":"…"}'
    if answer.code != 404:
        return exchanged.finding(expected)
    if fault := error_body_problem(answer):
        return exchanged.finding(expected, fault)
    if answer.media_type != "application/json":
        return exchanged.finding(expected, f"404 with {format_content_type(answer)}")
    return None

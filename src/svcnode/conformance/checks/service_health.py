"""`GET /node/services/{id}/health`: the health of one backing service, as a code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, Level, check, is_persistent
from svcnode.conformance.interface import (
    ALL_HEALTH_CODES,
    HEALTH_CODES,
    HEALTH_CODES_TEXT,
    SERVICES,
    STATIC_ENDPOINTS,
    VERSION_NOT_FOUND,
    needs_encoding,
)
from svcnode.conformance.node_under_test import Skip, no_response_finding
from svcnode.conformance.response import (
    body_field,
    error_body_problem,
    format_content_type,
    format_response,
    is_success_code,
    safe_text,
    service_items,
    services_by_id,
)

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import Exchange, Finding, NodeUnderTest
    from svcnode.conformance.response import RawResponse


@check(
    "service-health-code",
    Level.MUST,
    "3.1 and 4.4",
    requirement="GET /node/services/{id}/health answers 200, 206 or 503 for every id in the list.",
    fix="Find the service of the id in the path, and answer 200 for Up, 206 for Initializing and 503 for Down.",
    needs=("services-answers",),
)
async def service_health_code(node: NodeUnderTest) -> Findings:
    exchanges = await _health_exchanges(node, is_encoded=False)
    for finding in [*await _unanswered_findings(node, is_encoded=False), *_wrong_code_findings(exchanges)]:
        yield finding


@check(
    "service-id-encoded",
    Level.MUST,
    "4.4",
    requirement="A percent-encoded id with characters that a path cannot hold is answered 200, 206 or 503.",
    fix="Split the path first, then percent-decode each segment once; or use only letters, digits and - . _ ~ in ids.",
    needs=("services-answers",),
)
async def service_id_encoded(node: NodeUnderTest) -> Findings:
    exchanges = await _health_exchanges(node, is_encoded=True)
    wrong = [*await _unanswered_findings(node, is_encoded=True), *_wrong_code_findings(exchanges)]
    for finding in wrong or await _decoding_findings(node, list(exchanges)):
        yield finding


async def _health_exchanges(node: NodeUnderTest, *, is_encoded: bool) -> dict[str, Exchange]:
    exchanges = {
        service_id: exchange
        for service_id, exchange in (await node.service_healths()).items()
        if needs_encoding(service_id) == is_encoded
    }
    if not exchanges and not await _unanswered_findings(node, is_encoded=is_encoded):
        raise Skip(f"no listed id {'needs' if is_encoded else 'is free of'} percent-encoding")
    return exchanges


async def _unanswered_findings(node: NodeUnderTest, *, is_encoded: bool) -> list[Finding]:
    unanswered = await node.unanswered_services()
    return [
        no_response_finding(exc) for service_id, exc in unanswered.items() if needs_encoding(service_id) == is_encoded
    ]


def _wrong_code_findings(exchanges: dict[str, Exchange]) -> list[Finding]:
    return [
        exchange.finding(
            HEALTH_CODES_TEXT,
            f'{format_response(exchange.response)}, for the id "{safe_text(service_id)}" of the list',
        )
        for service_id, exchange in exchanges.items()
        if exchange.response.code not in ALL_HEALTH_CODES
    ]


async def _decoding_findings(node: NodeUnderTest, ids: list[str]) -> list[Finding]:
    """A node that does not decode ids may answer an encoded id like an unknown one.

    This shows only if the status in the list requires another code.
    """
    unknown = (await node.send(node.health_request(node.unknown_id))).response
    exchanges, statuses = await _healths_and_statuses(node, ids)
    alike = [service_id for service_id in ids if _is_same_response(exchanges[service_id].response, unknown)]
    mistaken = [
        service_id
        for service_id in alike
        if service_id in statuses and HEALTH_CODES[statuses[service_id]] != unknown.code
    ]
    if mistaken and await _answers_known_ids_otherwise(node, unknown):
        actual = f"{format_response(unknown)}, as for an unknown id"
        return [
            exchanges[service_id].finding(_expected_text(service_id, statuses[service_id]), actual)
            for service_id in mistaken
        ]
    if alike == ids:
        hint = f"; set that service to {'Down' if unknown.code == 200 else 'Up'} to check it"
        raise Skip(
            f'an unknown id gets the same response as "{safe_text(ids[0])}" ({unknown.code})'
            f"{'' if ids[0] in mistaken else hint}"
        )
    return []


async def _answers_known_ids_otherwise(node: NodeUnderTest, unknown: RawResponse) -> bool:
    """Whether an id that needs no decoding gets another response than an unknown one."""
    return any(
        not needs_encoding(service_id) and not _is_same_response(exchange.response, unknown)
        for service_id, exchange in (await node.service_healths()).items()
    )


async def _healths_and_statuses(node: NodeUnderTest, ids: list[str]) -> tuple[dict[str, Exchange], dict[str, str]]:
    """The health of services, and the status in the list where it is equal before and after.

    A status may change between two requests.
    """
    before = await _statuses(node)
    exchanges = dict(zip(ids, await node.send_all(map(node.health_request, ids)), strict=True))
    after = await _statuses(node)
    return exchanges, {service_id: status for service_id, status in before.items() if status == after.get(service_id)}


def _is_same_response(response: RawResponse, other: RawResponse) -> bool:
    return (response.code, response.body) == (other.code, other.body)


def _expected_text(service_id: str, status: str) -> str:
    return f'{HEALTH_CODES[status]}, because the list says that "{safe_text(service_id)}" is {status}'


@check(
    "service-health-no-body",
    Level.SHOULD,
    "3.4",
    requirement="The health of a service is the status code alone: the response has no body.",
    fix="Send no body, and Content-Length: 0.",
    needs=("services-answers",),
)
async def service_health_no_body(node: NodeUnderTest) -> Findings:
    for exchange in (await _answered_services(node)).values():
        if exchange.response.body:
            yield exchange.finding(f"{exchange.response.code} with no body")


async def _answered_services(node: NodeUnderTest) -> dict[str, Exchange]:
    answered = {
        service_id: exchange
        for service_id, exchange in (await node.service_healths()).items()
        if exchange.response.code in ALL_HEALTH_CODES
    }
    if not answered:
        raise Skip("no service has a valid health response")
    return answered


@check(
    "service-health-agrees",
    Level.MUST,
    "3.3",
    requirement="The health of a service agrees with its status in the list: Up 200, Initializing 206, Down 503.",
    fix="Take both from the same state: the status in the list decides the code of /node/services/{id}/health.",
    needs=("services-answers",),
)
async def service_health_agrees(node: NodeUnderTest) -> Findings:
    answered = list(await _answered_services(node))
    is_compared = False
    wrong: Counter[str] = Counter()
    last: dict[str, tuple[Exchange, str]] = {}
    for _ in range(ROUNDS):
        exchanges, statuses = await _healths_and_statuses(node, answered)
        for service_id in filter(statuses.__contains__, answered):
            is_compared = True
            exchange, status = exchanges[service_id], statuses[service_id]
            if exchange.response.code != HEALTH_CODES[status]:
                wrong[service_id] += 1
                last[service_id] = exchange, status
    if not is_compared:
        raise Skip("no service has a stable status in the list")
    for service_id, (exchange, status) in last.items():
        if is_persistent(wrong[service_id]):
            yield exchange.finding(_expected_text(service_id, status), str(exchange.response.code))


async def _statuses(node: NodeUnderTest) -> dict[str, str]:
    """The current status by id, of services with a valid status and a usable id."""
    items = service_items((await node.get(STATIC_ENDPOINTS[SERVICES].path)).response) or []
    return {
        service_id: item["status"]
        for service_id, item in services_by_id(items).items()
        if item.get("status") in tuple(HEALTH_CODES)
    }


# ---- unknown ids


@check(
    "service-unknown-refused",
    Level.SHOULD,
    "10.2",
    requirement="An unknown id is not answered with success.",
    fix="Answer 404 for an id that is not in the list; codes from 200 to 399 read as healthy.",
    needs=("services-answers",),
)
async def service_unknown_refused(node: NodeUnderTest) -> Findings:
    exchange = await node.send(node.health_request(node.unknown_id))
    if is_success_code(exchange.response.code):
        yield exchange.finding("404")


@check(
    "service-unknown-distinct-message",
    Level.SHOULD,
    "7.1",
    requirement=f'An unknown id is not answered with the message "{VERSION_NOT_FOUND}".',
    fix='Send another message, such as {"message":"Service not found"}: it distinguishes the two kinds of 404.',
    needs=("service-unknown-refused",),
)
async def service_unknown_distinct_message(node: NodeUnderTest) -> Findings:
    exchange = await node.send(node.health_request(node.unknown_id))
    if body_field(exchange.response, "message") == VERSION_NOT_FOUND:
        yield exchange.finding("another message")


@check(
    "service-unknown-404",
    Level.ADVICE,
    "10.2",
    requirement="An unknown id is answered 404 with an error body.",
    fix='Answer 404 with Content-Type: application/json and a body such as {"message":"Service not found"}.',
    needs=("service-unknown-refused",),
)
async def service_unknown_404(node: NodeUnderTest) -> Findings:
    exchange = await node.send(node.health_request(node.unknown_id))
    if (finding := not_found_finding(exchange)) is not None:
        yield finding


def not_found_finding(exchange: Exchange) -> Finding | None:
    response = exchange.response
    expected = '404, application/json, {"message":"…"}'
    if response.code != 404:
        return exchange.finding(expected)
    if problem := error_body_problem(response):
        return exchange.finding(expected, problem)
    if response.media_type != "application/json":
        return exchange.finding(expected, f"404 with {format_content_type(response)}")
    return None

"""The query parameter `version`, on all four endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import Check, Level, check
from svcnode.conformance.interface import (
    HEALTH,
    IDENTITY,
    SERVICE_HEALTH,
    SERVICES,
    STATIC_ENDPOINTS,
    UNSUPPORTED_VERSION,
    VERSION,
    VERSION_NOT_FOUND,
)
from svcnode.conformance.node_under_test import Skip
from svcnode.conformance.response import (
    body_field,
    error_body_problem,
    format_content_type,
    format_response,
    join_items,
    parse_body,
    safe_text,
)

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import Exchange, NodeUnderTest

PATH_TEMPLATES = {
    IDENTITY: "/node",
    HEALTH: "/node/health",
    SERVICES: "/node/services",
    SERVICE_HEALTH: "/node/services/{id}/health",
}
ERROR_BODY = f'{{"message":"{VERSION_NOT_FOUND}"}}'
VERSION_FORMS = (VERSION, VERSION.removeprefix("v"))  # clause 9.5 does not say which of them is accepted
MALFORMED_VERSIONS = ("latest", f"{VERSION}x")


def _supported_on(name: str, *needs: str) -> Check:
    @check(
        f"version-supported-on-{name}",
        Level.MUST,
        "9.2",
        requirement=f"{PATH_TEMPLATES[name]} with version {' or '.join(VERSION_FORMS)} answers as without a version.",
        fix=f"Read the query parameter version on this endpoint and accept {' and '.join(VERSION_FORMS)}.",
        needs=needs,
    )
    async def supported(node: NodeUnderTest) -> Findings:
        endpoint = await node.require_endpoint(name)
        if await _accepted_form(node, endpoint) is None:
            exchange = await node.get(endpoint.path, f"version={VERSION}")
            yield exchange.finding(endpoint.expected_text)

    return supported


def _unsupported_on(name: str, *needs: str) -> Check:
    @check(
        f"version-unsupported-on-{name}",
        Level.MUST,
        "9.4",
        requirement=f"{PATH_TEMPLATES[name]}?version={UNSUPPORTED_VERSION} answers 404, like any unsupported version.",
        fix=f"Read the query parameter version on this endpoint and answer 404 with {ERROR_BODY} for an unsupported "
        "version.",
        needs=needs,
    )
    async def unsupported(node: NodeUnderTest) -> Findings:
        endpoint = await node.require_endpoint(name)
        exchange = await node.get(endpoint.path, f"version={UNSUPPORTED_VERSION}")
        if exchange.response.code != 404:
            yield exchange.finding("404")

    return unsupported


async def _accepted_form(node: NodeUnderTest, endpoint: Endpoint) -> str | None:
    """The form of the version that the endpoint accepts, the one with a "v" first; None if it accepts neither."""
    for form in VERSION_FORMS:
        exchange = await node.get(endpoint.path, f"version={form}")
        if exchange.response.code in endpoint.expected_codes:
            return form
    return None


supported_on_identity = _supported_on(IDENTITY, "identity-answers")
supported_on_health = _supported_on(HEALTH, "health-code")
supported_on_services = _supported_on(SERVICES, "services-answers")
supported_on_service_health = _supported_on(SERVICE_HEALTH, "services-answers")
unsupported_on_identity = _unsupported_on(IDENTITY, "identity-answers")
unsupported_on_health = _unsupported_on(HEALTH, "health-code")
unsupported_on_services = _unsupported_on(SERVICES, "services-answers")
unsupported_on_service_health = _unsupported_on(SERVICE_HEALTH, "services-answers")


# ---- the error response


async def _version_refusals(node: NodeUnderTest) -> list[Exchange]:
    """Error responses of the endpoints that reject an unsupported version; the others fail their own checks."""
    endpoints = await node.working_endpoints()
    exchanges = await node.send_all(
        node.request(endpoint.path, f"version={UNSUPPORTED_VERSION}") for endpoint in endpoints
    )
    refusals = [exchange for exchange in exchanges if exchange.response.code == 404]
    if not refusals:
        raise Skip("no endpoint rejects an unsupported version")
    return refusals


@check(
    "version-error-message",
    Level.MUST,
    "7.1",
    requirement=f'An unsupported version is answered with a JSON error body whose message is "{VERSION_NOT_FOUND}".',
    fix=f"Send exactly {ERROR_BODY} on all four endpoints.",
)
async def version_error_message(node: NodeUnderTest) -> Findings:
    for exchange in await _version_refusals(node):
        if problem := error_body_problem(exchange.response):
            yield exchange.finding(ERROR_BODY, problem)
        elif body_field(exchange.response, "message") != VERSION_NOT_FOUND:
            yield exchange.finding(ERROR_BODY)


@check(
    "version-error-content-type",
    Level.SHOULD,
    "7.1",
    requirement="The error body for an unsupported version is sent as application/json.",
    fix="Send the header Content-Type: application/json with error bodies too.",
)
async def version_error_content_type(node: NodeUnderTest) -> Findings:
    for exchange in await _version_refusals(node):
        if exchange.response.body and exchange.response.media_type != "application/json":
            yield exchange.finding("Content-Type: application/json", format_content_type(exchange.response))


@check(
    "version-error-no-other-fields",
    Level.ADVICE,
    "2.3",
    requirement="The error body has only the field message.",
    fix=f"Send only {ERROR_BODY}; write causes to the log of the node.",
    needs=("version-error-message",),
)
async def version_error_no_other_fields(node: NodeUnderTest) -> Findings:
    for exchange in await _version_refusals(node):
        if others := sorted(set(parse_body(exchange.response).value) - {"message"}):
            yield exchange.finding(ERROR_BODY, f"also {join_items(list(map(safe_text, others)))}")


@check(
    "version-selected",
    Level.MUST,
    "9.1",
    requirement=f"The identity requested with version {VERSION} has the spec_version {VERSION}.",
    fix=f"Report {VERSION}, the version of the interface, not that of the node or of a library.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_selected(node: NodeUnderTest) -> Findings:
    form = await _accepted_form(node, STATIC_ENDPOINTS[IDENTITY])
    exchange = await node.get(STATIC_ENDPOINTS[IDENTITY].path, f"version={form}")
    if body_field(exchange.response, "spec_version") != VERSION:
        yield exchange.finding(f'spec_version is "{VERSION}"', format_response(exchange.response))


@check(
    "version-reported-is-supported",
    Level.MUST,
    "9.1",
    requirement="The version in spec_version is supported in the query, with or without its v.",
    fix="Accept the value of spec_version in the query parameter version, in the same spelling.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_reported_is_supported(node: NodeUnderTest) -> Findings:
    _, fields = await node.identity()
    reported: str = fields["spec_version"]
    forms = (reported, reported.removeprefix("v"))
    exchanges = [await node.get(STATIC_ENDPOINTS[IDENTITY].path, f"version={form}") for form in forms]
    if all(exchange.response.code != 200 for exchange in exchanges):
        yield exchanges[0].finding("200")


# ---- other values


async def _versioned_endpoints(node: NodeUnderTest) -> list[Endpoint]:
    """The endpoints that reject an unsupported version and accept the supported one."""
    endpoints = await node.working_endpoints()
    rejected = await node.send_all(
        node.request(endpoint.path, f"version={UNSUPPORTED_VERSION}") for endpoint in endpoints
    )
    versioned = [
        endpoint
        for endpoint, rejection in zip(endpoints, rejected, strict=True)
        if rejection.response.code == 404 and await _accepted_form(node, endpoint) is not None
    ]
    if not versioned:
        raise Skip("no endpoint reads the version")
    return versioned


async def _refusal_findings(node: NodeUnderTest, *queries: str) -> Findings:
    endpoints = await _versioned_endpoints(node)
    for exchange in await node.send_all(
        node.request(endpoint.path, query) for endpoint in endpoints for query in queries
    ):
        if exchange.response.code != 404:
            yield exchange.finding(f"404 with {ERROR_BODY}")


async def _acceptance_findings(node: NodeUnderTest, endpoint: Endpoint, query: str) -> Findings:
    exchange = await node.get(endpoint.path, query)
    if exchange.response.code not in endpoint.expected_codes:
        yield exchange.finding(endpoint.expected_text)


@check(
    "version-malformed",
    Level.SHOULD,
    "9.4",
    requirement=f"A malformed version ({join_items(list(MALFORMED_VERSIONS))}) is answered 404.",
    fix="Compare the whole value with the supported versions, and answer 404 for everything else.",
)
def version_malformed(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, *(f"version={value}" for value in MALFORMED_VERSIONS))


@check(
    "version-repeated",
    Level.ADVICE,
    "10.4",
    requirement="If version is given twice and one of the values is unsupported, the answer is 404, in either order.",
    fix="Read every value of the query parameter version, not only the first or the last.",
)
async def version_repeated(node: NodeUnderTest) -> Findings:
    for endpoint in await _versioned_endpoints(node):
        values = (await _accepted_form(node, endpoint), UNSUPPORTED_VERSION)
        for first, second in (values, reversed(values)):
            exchange = await node.get(endpoint.path, f"version={first}&version={second}")
            if exchange.response.code != 404:
                yield exchange.finding(f"404 with {ERROR_BODY}")


@check(
    "version-among-others",
    Level.SHOULD,
    "9.2",
    requirement="The version is read in any position among other query parameters.",
    fix="Parse the query string into parameters before reading version.",
)
def version_among_others(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, f"a=1&version={UNSUPPORTED_VERSION}&b=2")


@check(
    "version-empty",
    Level.SHOULD,
    "9.3 and 9.4",
    requirement="An empty version (?version=) is answered 404: it is not the same as no version.",
    fix="Distinguish an empty version from a missing one, and answer 404.",
)
def version_empty(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, "version=")


@check(
    "version-repeated-same",
    Level.ADVICE,
    "10.4",
    requirement="A supported version given twice is answered as if given once.",
    fix="Examine each value of the query parameter version, and reject only unsupported ones.",
)
async def version_repeated_same(node: NodeUnderTest) -> Findings:
    for endpoint in await _versioned_endpoints(node):
        form = await _accepted_form(node, endpoint)
        async for finding in _acceptance_findings(node, endpoint, f"version={form}&version={form}"):
            yield finding


@check(
    "version-both-forms",
    Level.SHOULD,
    "9.5",
    requirement=f"The version is accepted with and without its v: {' and '.join(VERSION_FORMS)}.",
    fix=f"Accept both {' and '.join(VERSION_FORMS)}: the interface does not say which form clients send.",
)
async def version_both_forms(node: NodeUnderTest) -> Findings:
    for endpoint in await _versioned_endpoints(node):
        for form in VERSION_FORMS:
            async for finding in _acceptance_findings(node, endpoint, f"version={form}"):
                yield finding


@check(
    "version-before-id",
    Level.ADVICE,
    "10.5",
    requirement="The version is examined first: an unknown id with an unsupported version gives a version error.",
    fix=f"Examine version before anything else in the request, and answer 404 with {ERROR_BODY}.",
    needs=("version-error-message", "service-unknown-refused"),
)
async def version_before_id(node: NodeUnderTest) -> Findings:
    if SERVICE_HEALTH not in {endpoint.name for endpoint in await _versioned_endpoints(node)}:
        raise Skip("the health of services does not read the version, or no service is registered")
    exchange = await node.send(node.health_request(node.unknown_id, f"version={UNSUPPORTED_VERSION}"))
    if exchange.response.code != 404 or body_field(exchange.response, "message") != VERSION_NOT_FOUND:
        yield exchange.finding(f"404 with {ERROR_BODY}")

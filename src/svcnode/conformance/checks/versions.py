"""The query parameter `version`, on all four endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import UNSPECIFIED, Check, Level, Skip, check
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
from svcnode.conformance.parse import body_field, error_body_problem, format_content_type, format_response, parse_body
from svcnode.conformance.text import join_words, safe_text

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
MALFORMED_VERSIONS = ("latest", f"{VERSION}x")


def _supported_on(endpoint: str, *needs: str) -> Check:
    @check(
        f"version-supported-on-{endpoint}",
        Level.MUST,
        "9.2",
        requirement=f"{PATH_TEMPLATES[endpoint]}?version={VERSION} answers as it does without a version.",
        fix=f"Read the query parameter version here, and accept {VERSION}.",
        needs=needs,
    )
    async def supported(node: NodeUnderTest) -> Findings:
        place = await node.require_endpoint(endpoint)
        exchanged = await node.get(place.path, f"version={VERSION}")
        if exchanged.response.code not in place.expected_codes:
            yield exchanged.finding(place.expected_text)

    return supported


def _unsupported_on(endpoint: str, *needs: str) -> Check:
    @check(
        f"version-unsupported-on-{endpoint}",
        Level.MUST,
        "9.4",
        requirement=f"{PATH_TEMPLATES[endpoint]}?version={UNSUPPORTED_VERSION} answers 404, as any unsupported version does.",
        fix=f"Read the query parameter version here, and answer 404 with {ERROR_BODY} for a version that the node "
        "does not have.",
        needs=needs,
    )
    async def unsupported(node: NodeUnderTest) -> Findings:
        place = await node.require_endpoint(endpoint)
        exchanged = await node.get(place.path, f"version={UNSUPPORTED_VERSION}")
        if exchanged.response.code != 404:
            yield exchanged.finding("404")

    return unsupported


supported_on_identity = _supported_on(IDENTITY, "identity-answers")
supported_on_health = _supported_on(HEALTH, "health-code")
supported_on_services = _supported_on(SERVICES, "services-answers")
supported_on_service_health = _supported_on(SERVICE_HEALTH, "services-answers")
unsupported_on_identity = _unsupported_on(IDENTITY, "identity-answers")
unsupported_on_health = _unsupported_on(HEALTH, "health-code")
unsupported_on_services = _unsupported_on(SERVICES, "services-answers")
unsupported_on_service_health = _unsupported_on(SERVICE_HEALTH, "services-answers")


# ---- what the answer says


async def _version_refusals(node: NodeUnderTest) -> list[Exchange]:
    """Of the endpoints that heed the version at all; the others have failed checks of their own."""
    places = await node.working_endpoints()
    asked = await node.send_all(node.request(place.path, f"version={UNSUPPORTED_VERSION}") for place in places)
    refusals = [exchanged for exchanged in asked if exchanged.response.code == 404]
    if not refusals:
        raise Skip("no endpoint refuses a version that is not supported")
    return refusals


@check(
    "version-error-message",
    Level.MUST,
    "7",
    requirement=f'An unsupported version is answered with a JSON error body whose message is "{VERSION_NOT_FOUND}".',
    fix=f"Send {ERROR_BODY}, letter by letter, on all four endpoints.",
)
async def version_error_message(node: NodeUnderTest) -> Findings:
    for exchanged in await _version_refusals(node):
        if fault := error_body_problem(exchanged.response):
            yield exchanged.finding(ERROR_BODY, fault)
        elif body_field(exchanged.response, "message") != VERSION_NOT_FOUND:
            yield exchanged.finding(ERROR_BODY)


@check(
    "version-error-content-type",
    Level.SHOULD,
    "7",
    requirement="The error body for an unsupported version is sent as application/json.",
    fix="Send the header Content-Type: application/json with error bodies too.",
)
async def version_error_content_type(node: NodeUnderTest) -> Findings:
    for exchanged in await _version_refusals(node):
        if exchanged.response.body and exchanged.response.media_type != "application/json":
            yield exchanged.finding("Content-Type: application/json", format_content_type(exchanged.response))


@check(
    "version-error-no-other-fields",
    Level.ADVICE,
    "2.3",
    requirement="The error body has no field but message.",
    fix=f"Send {ERROR_BODY} alone; causes belong into the log of the node.",
    needs=("version-error-message",),
)
async def version_error_no_other_fields(node: NodeUnderTest) -> Findings:
    for exchanged in await _version_refusals(node):
        if others := sorted(set(parse_body(exchanged.response).value) - {"message"}):
            yield exchanged.finding(ERROR_BODY, f"also {join_words(list(map(safe_text, others)))}")


@check(
    "version-selected",
    Level.MUST,
    "9.1",
    requirement=f"The identity that is asked for as version {VERSION} reports {VERSION} as its spec_version.",
    fix=f"Report {VERSION}, the version of the interface that answers, and not a version of the node or of a library.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_selected(node: NodeUnderTest) -> Findings:
    exchanged = await node.get(STATIC_ENDPOINTS[IDENTITY].path, f"version={VERSION}")
    if body_field(exchanged.response, "spec_version") != VERSION:
        yield exchanged.finding(f'spec_version is "{VERSION}"', format_response(exchanged.response))


@check(
    "version-reported-is-supported",
    Level.MUST,
    "9.1",
    requirement="The version that spec_version reports can be asked for.",
    fix="Accept in the query parameter version what the node itself reports as spec_version, as it is spelt there.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_reported_is_supported(node: NodeUnderTest) -> Findings:
    _, fields = await node.identity()
    exchanged = await node.get(STATIC_ENDPOINTS[IDENTITY].path, f"version={fields['spec_version']}")
    if exchanged.response.code != 200:
        yield exchanged.finding("200")


# ---- other values


async def _versioned_endpoints(node: NodeUnderTest) -> list[Endpoint]:
    """The endpoints that refuse a version that is not supported, and accept the one that is."""
    places = await node.working_endpoints()
    refused = await node.send_all(node.request(place.path, f"version={UNSUPPORTED_VERSION}") for place in places)
    accepted = await node.send_all(node.request(place.path, f"version={VERSION}") for place in places)
    heeding = [
        place
        for place, no, yes in zip(places, refused, accepted, strict=True)
        if no.response.code == 404 and yes.response.code in place.expected_codes
    ]
    if not heeding:
        raise Skip("no endpoint heeds the version at all")
    return heeding


async def _refusal_findings(node: NodeUnderTest, *queries: str) -> Findings:
    places = await _versioned_endpoints(node)
    for exchanged in await node.send_all(node.request(place.path, query) for place in places for query in queries):
        if exchanged.response.code != 404:
            yield exchanged.finding(f"404 with {ERROR_BODY}")


async def _acceptance_findings(node: NodeUnderTest, query: str) -> Findings:
    places = await _versioned_endpoints(node)
    asked = await node.send_all(node.request(place.path, query) for place in places)
    for place, exchanged in zip(places, asked, strict=True):
        if exchanged.response.code not in place.expected_codes:
            yield exchanged.finding(place.expected_text)


@check(
    "version-malformed",
    Level.SHOULD,
    "9.4",
    requirement=f"What is no version at all ({join_words(list(MALFORMED_VERSIONS))}) is answered 404 too.",
    fix="Compare the whole value with the versions that the node has, and answer 404 for everything else.",
)
def version_malformed(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, *(f"version={value}" for value in MALFORMED_VERSIONS))


@check(
    "version-repeated",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="Where version stands twice and one of the two is not supported, the answer is 404, whichever comes first.",
    fix="Look at every value of the query parameter version, and not only at the first or the last.",
)
def version_repeated(node: NodeUnderTest) -> Findings:
    values = (VERSION, UNSUPPORTED_VERSION)
    queries = (f"version={one}&version={other}" for one, other in (values, reversed(values)))
    return _refusal_findings(node, *queries)


@check(
    "version-among-others",
    Level.SHOULD,
    "9.2",
    requirement="The version is heeded wherever it stands among other query parameters.",
    fix="Parse the query string into its parameters before looking for version.",
)
def version_among_others(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, f"a=1&version={UNSUPPORTED_VERSION}&b=2")


@check(
    "version-empty",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="An empty version (?version=) is answered 404: it names none that is supported.",
    fix="Tell a version that is empty from one that is not there, and answer 404 for it.",
)
def version_empty(node: NodeUnderTest) -> Findings:
    return _refusal_findings(node, "version=")


@check(
    "version-repeated-same",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="A supported version that stands twice is answered as if it stood once.",
    fix="Look at each value of the query parameter version by itself, and refuse only what is not supported.",
)
def version_repeated_same(node: NodeUnderTest) -> Findings:
    return _acceptance_findings(node, f"version={VERSION}&version={VERSION}")


@check(
    "version-without-v",
    Level.ADVICE,
    "9.5",
    requirement=f"The version is accepted without its v too: {VERSION.removeprefix('v')}.",
    fix=f"Accept {VERSION.removeprefix('v')} beside {VERSION}: the interface does not say which of them clients send.",
)
def version_without_v(node: NodeUnderTest) -> Findings:
    return _acceptance_findings(node, f"version={VERSION.removeprefix('v')}")


@check(
    "version-before-id",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="The version is judged first: an unknown id under a version that is not supported is a version not found.",
    fix=f"Look at version before anything else about the request, and answer 404 with {ERROR_BODY}.",
    needs=("version-error-message", "service-unknown-refused"),
)
async def version_before_id(node: NodeUnderTest) -> Findings:
    if SERVICE_HEALTH not in {place.name for place in await _versioned_endpoints(node)}:
        raise Skip("the health of services does not heed the version, or there is none to ask for")
    exchanged = await node.send(node.health_request(node.unknown_id, f"version={UNSUPPORTED_VERSION}"))
    if exchanged.response.code != 404 or body_field(exchanged.response, "message") != VERSION_NOT_FOUND:
        yield exchanged.finding(f"404 with {ERROR_BODY}")

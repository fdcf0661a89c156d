"""The query parameter `version`, on all four endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import SILENT, Check, Level, NotJudgedError, check
from svcnode.conformance.interface import (
    FIXED,
    HEALTH,
    IDENTITY,
    SERVICE_HEALTH,
    SERVICES,
    UNSUPPORTED,
    VERSION,
    VERSION_NOT_FOUND,
)
from svcnode.conformance.reading import content_type_of, error_fault, field_of, parsed, told
from svcnode.conformance.wording import listed, shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Place
    from svcnode.conformance.subject import Exchanged, Subject

SHOWN_PATHS = {
    IDENTITY: "/node",
    HEALTH: "/node/health",
    SERVICES: "/node/services",
    SERVICE_HEALTH: "/node/services/{id}/health",
}
ERROR_BODY = f'{{"message":"{VERSION_NOT_FOUND}"}}'
NOT_VERSIONS = ("latest", f"{VERSION}x")


def _supported_on(endpoint: str, *needs: str) -> Check:
    @check(
        f"version-supported-on-{endpoint}",
        Level.MUST,
        "9.2",
        demands=f"{SHOWN_PATHS[endpoint]}?version={VERSION} answers as it does without a version.",
        mend=f"Read the query parameter version here, and accept {VERSION}.",
        needs=needs,
    )
    async def supported(node: Subject) -> Findings:
        place = await node.place(endpoint)
        exchanged = await node.get(place.path, f"version={VERSION}")
        if exchanged.answer.code not in place.codes:
            yield exchanged.finding(place.expected)

    return supported


def _unsupported_on(endpoint: str, *needs: str) -> Check:
    @check(
        f"version-unsupported-on-{endpoint}",
        Level.MUST,
        "9.4",
        demands=f"{SHOWN_PATHS[endpoint]}?version={UNSUPPORTED} answers 404, as any unsupported version does.",
        mend=f"Read the query parameter version here, and answer 404 with {ERROR_BODY} for a version that the node "
        "does not have.",
        needs=needs,
    )
    async def unsupported(node: Subject) -> Findings:
        place = await node.place(endpoint)
        exchanged = await node.get(place.path, f"version={UNSUPPORTED}")
        if exchanged.answer.code != 404:
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


async def _refusals(node: Subject) -> list[Exchanged]:
    """Of the endpoints that heed the version at all; the others have failed checks of their own."""
    places = await node.places()
    asked = await node.ask_all(node.request(place.path, f"version={UNSUPPORTED}") for place in places)
    refusals = [exchanged for exchanged in asked if exchanged.answer.code == 404]
    if not refusals:
        raise NotJudgedError("no endpoint refuses a version that is not supported")
    return refusals


@check(
    "version-error-message",
    Level.MUST,
    "7",
    demands=f'An unsupported version is answered with a JSON error body whose message is "{VERSION_NOT_FOUND}".',
    mend=f"Send {ERROR_BODY}, letter by letter, on all four endpoints.",
)
async def version_error_message(node: Subject) -> Findings:
    for exchanged in await _refusals(node):
        if fault := error_fault(exchanged.answer):
            yield exchanged.finding(ERROR_BODY, fault)
        elif field_of(exchanged.answer, "message") != VERSION_NOT_FOUND:
            yield exchanged.finding(ERROR_BODY)


@check(
    "version-error-content-type",
    Level.SHOULD,
    "7",
    demands="The error body for an unsupported version is sent as application/json.",
    mend="Send the header Content-Type: application/json with error bodies too.",
)
async def version_error_content_type(node: Subject) -> Findings:
    for exchanged in await _refusals(node):
        if exchanged.answer.body and exchanged.answer.media_type != "application/json":
            yield exchanged.finding("Content-Type: application/json", content_type_of(exchanged.answer))


@check(
    "version-error-no-other-fields",
    Level.ADVICE,
    "2.3",
    demands="The error body has no field but message.",
    mend=f"Send {ERROR_BODY} alone; causes belong into the log of the node.",
    needs=("version-error-message",),
)
async def version_error_no_other_fields(node: Subject) -> Findings:
    for exchanged in await _refusals(node):
        if others := sorted(set(parsed(exchanged.answer).value) - {"message"}):
            yield exchanged.finding(ERROR_BODY, f"also {listed(list(map(shown, others)))}")


@check(
    "version-selected",
    Level.MUST,
    "9.1",
    demands=f"The identity that is asked for as version {VERSION} reports {VERSION} as its spec_version.",
    mend=f"Report {VERSION}, the version of the interface that answers, and not a version of the node or of a library.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_selected(node: Subject) -> Findings:
    exchanged = await node.get(FIXED[IDENTITY].path, f"version={VERSION}")
    if field_of(exchanged.answer, "spec_version") != VERSION:
        yield exchanged.finding(f'spec_version is "{VERSION}"', told(exchanged.answer))


@check(
    "version-reported-is-supported",
    Level.MUST,
    "9.1",
    demands="The version that spec_version reports can be asked for.",
    mend="Accept in the query parameter version what the node itself reports as spec_version, as it is spelt there.",
    needs=("version-supported-on-identity", "identity-fields", "identity-spec-version-form"),
)
async def version_reported_is_supported(node: Subject) -> Findings:
    _, fields = await node.identity()
    exchanged = await node.get(FIXED[IDENTITY].path, f"version={fields['spec_version']}")
    if exchanged.answer.code != 200:
        yield exchanged.finding("200")


# ---- other values


async def _heeding(node: Subject) -> list[Place]:
    """The endpoints that refuse a version that is not supported, and accept the one that is."""
    places = await node.places()
    refused = await node.ask_all(node.request(place.path, f"version={UNSUPPORTED}") for place in places)
    accepted = await node.ask_all(node.request(place.path, f"version={VERSION}") for place in places)
    heeding = [
        place
        for place, no, yes in zip(places, refused, accepted, strict=True)
        if no.answer.code == 404 and yes.answer.code in place.codes
    ]
    if not heeding:
        raise NotJudgedError("no endpoint heeds the version at all")
    return heeding


async def _refusal_findings(node: Subject, *queries: str) -> Findings:
    places = await _heeding(node)
    for exchanged in await node.ask_all(node.request(place.path, query) for place in places for query in queries):
        if exchanged.answer.code != 404:
            yield exchanged.finding(f"404 with {ERROR_BODY}")


async def _acceptance_findings(node: Subject, query: str) -> Findings:
    places = await _heeding(node)
    asked = await node.ask_all(node.request(place.path, query) for place in places)
    for place, exchanged in zip(places, asked, strict=True):
        if exchanged.answer.code not in place.codes:
            yield exchanged.finding(place.expected)


@check(
    "version-malformed",
    Level.SHOULD,
    "9.4",
    demands=f"What is no version at all ({listed(list(NOT_VERSIONS))}) is answered 404 too.",
    mend="Compare the whole value with the versions that the node has, and answer 404 for everything else.",
)
def version_malformed(node: Subject) -> Findings:
    return _refusal_findings(node, *(f"version={value}" for value in NOT_VERSIONS))


@check(
    "version-repeated",
    Level.SHOULD,
    SILENT,
    demands="Where version stands twice and one of the two is not supported, the answer is 404, whichever comes first.",
    mend="Look at every value of the query parameter version, and not only at the first or the last.",
)
def version_repeated(node: Subject) -> Findings:
    values = (VERSION, UNSUPPORTED)
    queries = (f"version={one}&version={other}" for one, other in (values, reversed(values)))
    return _refusal_findings(node, *queries)


@check(
    "version-among-others",
    Level.SHOULD,
    "9.2",
    demands="The version is heeded wherever it stands among other query parameters.",
    mend="Parse the query string into its parameters before looking for version.",
)
def version_among_others(node: Subject) -> Findings:
    return _refusal_findings(node, f"a=1&version={UNSUPPORTED}&b=2")


@check(
    "version-empty",
    Level.ADVICE,
    SILENT,
    demands="An empty version (?version=) is answered 404: it names none that is supported.",
    mend="Tell a version that is empty from one that is not there, and answer 404 for it.",
)
def version_empty(node: Subject) -> Findings:
    return _refusal_findings(node, "version=")


@check(
    "version-repeated-same",
    Level.ADVICE,
    SILENT,
    demands="A supported version that stands twice is answered as if it stood once.",
    mend="Look at each value of the query parameter version by itself, and refuse only what is not supported.",
)
def version_repeated_same(node: Subject) -> Findings:
    return _acceptance_findings(node, f"version={VERSION}&version={VERSION}")


@check(
    "version-without-v",
    Level.ADVICE,
    "9.5",
    demands=f"The version is accepted without its v too: {VERSION.removeprefix('v')}.",
    mend=f"Accept {VERSION.removeprefix('v')} beside {VERSION}: the interface does not say which of them clients send.",
)
def version_without_v(node: Subject) -> Findings:
    return _acceptance_findings(node, f"version={VERSION.removeprefix('v')}")


@check(
    "version-before-id",
    Level.ADVICE,
    SILENT,
    demands="The version is judged first: an unknown id under a version that is not supported is a version not found.",
    mend=f"Look at version before anything else about the request, and answer 404 with {ERROR_BODY}.",
    needs=("version-error-message", "service-unknown-refused"),
)
async def version_before_id(node: Subject) -> Findings:
    if SERVICE_HEALTH not in {place.endpoint for place in await _heeding(node)}:
        raise NotJudgedError("the health of services does not heed the version, or there is none to ask for")
    exchanged = await node.ask(node.health_request(node.unknown_id, f"version={UNSUPPORTED}"))
    if exchanged.answer.code != 404 or field_of(exchanged.answer, "message") != VERSION_NOT_FOUND:
        yield exchanged.finding(f"404 with {ERROR_BODY}")

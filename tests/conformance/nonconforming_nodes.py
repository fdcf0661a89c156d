"""For every check, nodes that are right in everything but what it demands."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tests.conformance.conforming_node import (
    CODES,
    ConformingNode,
    NodeServer,
    Request,
    Response,
    error,
    service,
    with_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Defect(NamedTuple):
    check: str
    name: str
    node: type[ConformingNode]


DEFECTS: list[Defect] = []
IDENTITY, HEALTH, SERVICES = "/svc/node", "/svc/node/health", "/svc/node/services"


def violates(check: str) -> Callable[[type[ConformingNode]], type[ConformingNode]]:
    def noted(node: type[ConformingNode]) -> type[ConformingNode]:
        DEFECTS.append(Defect(check, node.__name__, node))
        return node

    return noted


class ModifiedResponse(ConformingNode, ABC):
    """Right, but for what `change` makes of an answer."""

    def respond(self, asked: Request) -> Response:
        return self.change(asked, super().respond(asked))

    @abstractmethod
    def change(self, asked: Request, reply: Response) -> Response: ...


class ModifiedEndpoint(ConformingNode, ABC):
    """Right, but for the good answers to GET at one path."""

    path = ""

    def respond(self, asked: Request) -> Response:
        reply = super().respond(asked)
        is_meant = asked.path == self.path and asked.method in ("GET", "HEAD") and reply.code in CODES.values()
        return self.change(reply) if is_meant else reply

    @abstractmethod
    def change(self, reply: Response) -> Response: ...


class AtIdentity(ModifiedEndpoint):
    path = IDENTITY


class AtHealth(ModifiedEndpoint):
    path = HEALTH


class AtServices(ModifiedEndpoint):
    path = SERVICES


class AtServiceHealth(ConformingNode, ABC):
    def respond(self, asked: Request) -> Response:
        reply = super().respond(asked)
        return self.change(reply) if asked.is_service_health and reply.code in CODES.values() else reply

    @abstractmethod
    def change(self, reply: Response) -> Response: ...


def with_header(reply: Response, name: str, value: str) -> Response:
    return replace(reply, headers={**reply.headers, name: value})


def without_header(reply: Response, name: str) -> Response:
    return replace(reply, headers={key: value for key, value in reply.headers.items() if key != name})


# ---- identity


@violates("identity-answers")
class IdentityFails(AtIdentity):
    def change(self, reply: Response) -> Response:
        return error(500, "Internal server error")


@violates("identity-answers")
class IdentityRedirects(AtIdentity):
    def change(self, reply: Response) -> Response:
        return Response(code=301, headers={"Location": "/node"})


@violates("identity-answers")
class IdentityNeedsAPassword(AtIdentity):
    def change(self, reply: Response) -> Response:
        return Response(code=401, headers={"WWW-Authenticate": "Basic"})


@violates("identity-content-type")
class IdentityIsSentAsText(AtIdentity):
    def change(self, reply: Response) -> Response:
        return with_header(reply, "Content-Type", "text/plain; charset=utf-8")


@violates("identity-content-type")
class IdentityHasNoContentType(AtIdentity):
    def change(self, reply: Response) -> Response:
        return without_header(reply, "Content-Type")


@violates("identity-json")
class IdentityIsNotJson(AtIdentity):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=b"validator-7/v1.4.2")


@violates("identity-json")
class IdentityIsAString(AtIdentity):
    def change(self, reply: Response) -> Response:
        return with_json(reply, "validator-7/v1.4.2")


@violates("identity-json")
class IdentityIsNotUtf8(AtIdentity):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=reply.body.replace(b"validator", b"v\xe4lidator"))


@violates("identity-json")
class IdentityNamesAFieldTwice(AtIdentity):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=reply.body.replace(b"{", b'{"node_name": "another", '))


@violates("identity-fields")
class IdentityMisspeltAField(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity = {"node_name": "validator-7", "spec_verdsion": "v0.0.1", "node_version": "v1.4.2"}


@violates("identity-fields")
class IdentityHasANumber(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_version"] = 1.4


@violates("identity-fields")
class IdentityHasNoName(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_name"] = None


@violates("identity-spec-version-form")
class SpecVersionLacksItsV(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["spec_version"] = "0.0.1"


@violates("identity-node-version-form")
class NodeVersionHasASuffix(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_version"] = "v1.4.2-beta.1"


@violates("identity-name-not-empty")
class NodeNameIsEmpty(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_name"] = ""


@violates("identity-no-other-fields")
class IdentityHasMoreFields(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["uptime"] = 12


# ---- health


@violates("health-code")
class HealthIsNoContent(AtHealth):
    def change(self, reply: Response) -> Response:
        return replace(reply, code=204)


@violates("health-code")
class HealthIsMissing(ConformingNode):
    def has(self, path: str) -> bool:
        return super().has(path) and path != HEALTH


@violates("health-no-body")
class HealthHasABody(AtHealth):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"status": "ok"})


@violates("health-reflects-services")
class HealthIsStatic(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.health = 200


@violates("health-latency")
class HealthChecksOnRequest(AtHealth):
    """The test shortens what counts as quick."""

    def change(self, reply: Response) -> Response:
        time.sleep(0.3)
        return reply


# ---- services


@violates("services-answers")
class ServicesFail(AtServices):
    def change(self, reply: Response) -> Response:
        return error(500, "Internal server error")


@violates("services-content-type")
class ServicesAreSentAsText(AtServices):
    def change(self, reply: Response) -> Response:
        return with_header(reply, "Content-Type", "text/json")


@violates("services-json")
class ServicesAreNotJson(AtServices):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=reply.body[:-1])


@violates("services-list")
class ServicesAreABareArray(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(reply, reply.json["services"])


@violates("services-list")
class ServicesAreNull(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"services": None})


@violates("services-list")
class ServicesUseAnotherKey(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"backing_services": reply.json["services"]})


@violates("services-fields")
class ServiceHasNoDescription(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        del self.services[0]["description"]


@violates("services-fields")
class ServiceIdIsANumber(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append({**service("7", "Up"), "id": 7})


@violates("services-fields")
class ServiceIsAString(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"services": [*reply.json["services"], "cache"]})


@violates("services-status-value")
class StatusIsUppercase(AtServices):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=reply.body.replace(b'"Up"', b'"UP"'))


@violates("services-status-value")
class StatusIsNull(AtServices):
    def change(self, reply: Response) -> Response:
        return replace(reply, body=reply.body.replace(b'"Up"', b"null"))


@violates("services-status-present")
class StatusIsMissing(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(
            reply, {"services": [{key: one[key] for key in one if key != "status"} for one in reply.json["services"]]}
        )


@violates("services-ids-unique")
class TwoServicesHaveOneId(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("db", "Down"))


@violates("services-ids-not-empty")
class AnIdIsEmpty(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("", "Up"))


@violates("services-ids-in-paths")
class AnIdIsDots(ConformingNode):
    """And a proxy in front of it normalizes paths."""

    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("..", "Up"))

    def respond(self, asked: Request) -> Response:
        tidied = asked.path.replace("/services/../", "/").replace("/services/%2E%2E/", "/")
        return super().respond(asked._replace(path=tidied))


@violates("services-no-other-fields")
class AServiceHasMoreFields(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services[0]["since"] = "yesterday"


@violates("services-no-other-fields")
class TheListHasMoreFields(AtServices):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {**reply.json, "count": 4})


# ---- health of a service


@violates("service-health-code")
class AListedServiceIsNotFound(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return None if segment == "indexer" else super().status_of(segment)


@violates("service-health-code")
class NoListedServiceWithAPlainIdIsFound(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment) if "%" in segment else None


@violates("service-id-encoded")
class TheIdIsNotDecoded(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment.replace("%", "%25"))


@violates("service-id-encoded")
class ThePathIsDecodedBeforeItIsSplit(ConformingNode):
    def has(self, path: str) -> bool:
        return super().has(path.replace("%2F", "/"))


@violates("service-health-no-body")
class ServiceHealthHasABody(AtServiceHealth):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"healthy": True})


@violates("service-health-agrees")
class ServicesAreAlwaysHealthy(AtServiceHealth):
    def change(self, reply: Response) -> Response:
        return replace(reply, code=200)


@violates("service-health-agrees")
class DownIsPartial(AtServiceHealth):
    def change(self, reply: Response) -> Response:
        return replace(reply, code=206 if reply.code == 503 else reply.code)


@violates("service-unknown-refused")
class AnyIdIsHealthy(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment) or "Up"


@violates("service-unknown-distinct-message")
class AnUnknownIdIsAVersionNotFound(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        is_unknown = asked.is_service_health and reply.code == 404 and asked.method == "GET"
        return error(404, "API version not found") if is_unknown else reply


@violates("service-unknown-404")
class AnUnknownIdIs506(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        is_unknown = asked.is_service_health and b"Service not found" in reply.body
        return replace(reply, code=506) if is_unknown else reply


@violates("service-unknown-404")
class AnUnknownIdHasNoErrorBody(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        is_unknown = asked.is_service_health and b"Service not found" in reply.body
        return Response(code=404, headers=reply.headers) if is_unknown else reply


# ---- versions


class Unversioned(ConformingNode):
    """Takes no notice of the version at one endpoint."""

    path = ""

    def is_supported(self, asked: Request) -> bool:
        return asked.path == self.path or super().is_supported(asked)


class Overstrict(ConformingNode):
    """Refuses every version at one endpoint."""

    path = ""

    def is_supported(self, asked: Request) -> bool:
        return super().is_supported(asked) and not (asked.versions and asked.path == self.path)


@violates("version-supported-on-identity")
class IdentityRefusesEveryVersion(Overstrict):
    path = IDENTITY


@violates("version-supported-on-health")
class HealthRefusesEveryVersion(Overstrict):
    path = HEALTH


@violates("version-supported-on-services")
class ServicesRefuseEveryVersion(Overstrict):
    path = SERVICES


@violates("version-supported-on-service-health")
class ServiceHealthRefusesEveryVersion(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return super().is_supported(asked) and not (asked.versions and asked.is_service_health)


@violates("version-unsupported-on-identity")
class IdentityIgnoresTheVersion(Unversioned):
    path = IDENTITY


@violates("version-unsupported-on-health")
class HealthIgnoresTheVersion(Unversioned):
    path = HEALTH


@violates("version-unsupported-on-services")
class ServicesIgnoreTheVersion(Unversioned):
    path = SERVICES


@violates("version-unsupported-on-service-health")
class ServiceHealthIgnoresTheVersion(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return asked.is_service_health or super().is_supported(asked)


class AtVersionRefusal(ConformingNode, ABC):
    def respond(self, asked: Request) -> Response:
        reply = super().respond(asked)
        return self.change(reply) if b"API version not found" in reply.body else reply

    @abstractmethod
    def change(self, reply: Response) -> Response: ...


@violates("version-error-message")
class TheErrorHasAnotherMessage(AtVersionRefusal):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"message": "api version not found"})


@violates("version-error-message")
class TheErrorHasNoBody(AtVersionRefusal):
    def change(self, reply: Response) -> Response:
        return Response(code=404, headers=without_header(reply, "Content-Type").headers)


@violates("version-error-message")
class TheErrorHasAnotherField(AtVersionRefusal):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"error": "API version not found"})


@violates("version-error-content-type")
class TheErrorIsSentAsText(AtVersionRefusal):
    def change(self, reply: Response) -> Response:
        return with_header(reply, "Content-Type", "text/plain")


@violates("version-error-no-other-fields")
class TheErrorHasMoreFields(AtVersionRefusal):
    def change(self, reply: Response) -> Response:
        return with_json(reply, {"message": "API version not found", "code": 404})


@violates("version-selected")
class AnotherVersionIsReported(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["spec_version"] = "v1.4.2"
        self.supported.add("v1.4.2")


@violates("version-reported-is-supported")
class TheLatestVersionCannotBeAskedFor(ConformingNode):
    def endpoint(self, asked: Request) -> Response:
        reply = super().endpoint(asked)
        is_latest = asked.path == IDENTITY and not asked.versions
        return with_json(reply, {**self.identity, "spec_version": "v0.0.2"}) if is_latest else reply


@violates("version-malformed")
class TheBeginningOfAVersionIsEnough(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return all(one.startswith(("v0.0.1", "0.0.1")) for one in asked.versions)


@violates("version-malformed")
class AWordIsAVersion(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.add("latest")


@violates("version-repeated")
class OnlyTheFirstVersionCounts(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return set(asked.versions[:1]) <= self.supported


@violates("version-repeated")
class OnlyTheLastVersionCounts(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return set(asked.versions[-1:]) <= self.supported


@violates("version-among-others")
class TheVersionMustComeFirst(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return not asked.query.startswith("version=") or super().is_supported(asked)


@violates("version-empty")
class AnEmptyVersionIsNone(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.add("")


@violates("version-repeated-same")
class RepeatedVersionIsRefused(ConformingNode):
    def is_supported(self, asked: Request) -> bool:
        return super().is_supported(asked) and len(asked.versions) < 2


@violates("version-both-forms")
class AVersionNeedsItsV(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.remove("0.0.1")


@violates("version-both-forms")
class AVersionMustLackItsV(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.remove("v0.0.1")


@violates("version-before-id")
class IdIsCheckedBeforeVersion(ConformingNode):
    def respond(self, asked: Request) -> Response:
        is_unknown = asked.is_service_health and self.status_of(asked.path.split("/")[4]) is None
        return error(404, "Service not found") if is_unknown else super().respond(asked)


# ---- methods


@violates("head-code")
class HeadAlwaysSucceeds(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, code=200) if asked.method == "HEAD" else reply


@violates("head-code")
class HeadFails(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, code=500) if asked.method == "HEAD" else reply


@violates("head-no-body")
class HeadHasABody(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, has_body_after_head=True)


@violates("head-answered")
class HeadIsRefused(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return error(405, "Method not allowed", Allow="GET") if asked.method == "HEAD" else reply


@violates("methods-refused")
class PostIsTreatedLikeGet(ConformingNode):
    def respond(self, asked: Request) -> Response:
        return super().respond(asked._replace(method="GET") if asked.method == "POST" else asked)


@violates("methods-refused")
class DeleteIsAccepted(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return Response(code=202) if asked.method == "DELETE" else reply


@violates("options-refused")
class OptionsSucceeds(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return Response(code=204, headers={"Allow": "GET, HEAD"}) if asked.method == "OPTIONS" else reply


@violates("methods-405")
class OtherMethodsAreNotFound(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return error(404, "Not found") if reply.code == 405 else reply


@violates("methods-405")
class TheAllowedMethodsAreNotNamed(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return without_header(reply, "Allow")


# ---- paths


class AtUnknownPath(ConformingNode, ABC):
    def respond(self, asked: Request) -> Response:
        reply = super().respond(asked)
        return self.change(asked) if not self.has(asked.path) else reply

    @abstractmethod
    def change(self, asked: Request) -> Response: ...


@violates("path-unknown-refused")
class EveryPathSucceeds(AtUnknownPath):
    def change(self, asked: Request) -> Response:
        return Response(headers={"Content-Type": "text/html"}, body=b"<h1>Welcome</h1>")


@violates("path-unknown-404")
class UnknownPathsReturnHtml(AtUnknownPath):
    def change(self, asked: Request) -> Response:
        return Response(code=404, headers={"Content-Type": "text/html"}, body=b"<h1>Not found</h1>")


@violates("path-unknown-404")
class UnknownPathsAreForbidden(AtUnknownPath):
    def change(self, asked: Request) -> Response:
        return error(404 if asked.path.endswith("/") else 403, "Forbidden")


@violates("path-trailing-slash")
class ASlashRedirects(AtUnknownPath):
    def change(self, asked: Request) -> Response:
        bare = asked.path.rstrip("/")
        return Response(code=307, headers={"Location": bare}) if self.has(bare) else error(404, "Not found")


@violates("path-trailing-slash")
class ASlashIsIgnored(ConformingNode):
    def respond(self, asked: Request) -> Response:
        return super().respond(asked._replace(path=asked.path.rstrip("/")))


# ---- transport


@violates("keep-alive-order")
class ConnectionsCloseUnannounced(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, closes_unannounced=asked.index_on_connection == 1)


@violates("keep-alive-order")
class PipelinedResponseIsForAnotherRequest(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        if asked.index_on_connection == 4 and asked.path == IDENTITY:
            return super().endpoint(asked._replace(path=SERVICES))
        return reply


@violates("keep-alive-persistent")
class EveryResponseClosesTheConnection(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return with_header(reply, "Connection", "close")


@violates("keep-alive-persistent")
class ItIsHttp10(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, version="HTTP/1.0")


@violates("error-responses-framed")
class MethodNotAllowedHasNoLength(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, is_unframed=reply.code == 405)


@violates("error-responses-framed")
class NotFoundHasNoLength(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return replace(reply, is_unframed=reply.code == 404)


class ConcurrencyAware(ConformingNode):
    server: NodeServer  # the test sets it

    def is_concurrent(self) -> bool:
        """Waits for as long as more keep coming; nothing but the check in question sends more than a few at once."""
        seen = 0
        while (count := self.server.open_connections) > seen:
            seen = count
            time.sleep(0.01)
        return seen > 12


@violates("parallel-requests")
class ConcurrentRequestsAreRejected(ConcurrencyAware):
    def respond(self, asked: Request) -> Response:
        return error(500, "Too many") if self.is_concurrent() else super().respond(asked)


@violates("parallel-requests")
class ConcurrentResponsesAreSwapped(ConcurrencyAware):
    def respond(self, asked: Request) -> Response:
        is_mixed_up = self.is_concurrent() and asked.path == IDENTITY
        return super().respond(asked._replace(path=SERVICES) if is_mixed_up else asked)


@violates("not-cached")
class ResponsesLackNoStore(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return without_header(reply, "Cache-Control")


@violates("not-cached")
class ResponsesAreCacheable(ModifiedResponse):
    def change(self, asked: Request, reply: Response) -> Response:
        return with_header(reply, "Cache-Control", "public, max-age=60")


@violates("query-unknown-ignored")
class UnknownParametersAreRefused(ConformingNode):
    def endpoint(self, asked: Request) -> Response:
        return super().endpoint(asked) if asked.parameters <= {"version"} else error(400, "Unknown parameter")

"""For every check, nodes that are right in everything but what it demands."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tests.conformance.right import CODES, Asked, NodeServer, Reply, RightNode, error, service, with_json

if TYPE_CHECKING:
    from collections.abc import Callable


class Breakage(NamedTuple):
    check: str
    how: str
    node: type[RightNode]


BREAKAGES: list[Breakage] = []
IDENTITY, HEALTH, SERVICES = "/svc/node", "/svc/node/health", "/svc/node/services"


def breaks(check: str) -> Callable[[type[RightNode]], type[RightNode]]:
    def noted(node: type[RightNode]) -> type[RightNode]:
        BREAKAGES.append(Breakage(check, node.__name__, node))
        return node

    return noted


class Changed(RightNode, ABC):
    """Right, but for what `change` makes of an answer."""

    def answer(self, asked: Asked) -> Reply:
        return self.change(asked, super().answer(asked))

    @abstractmethod
    def change(self, asked: Asked, reply: Reply) -> Reply: ...


class ChangedAt(RightNode, ABC):
    """Right, but for the good answers to GET at one path."""

    path = ""

    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        is_meant = asked.path == self.path and asked.method in ("GET", "HEAD") and reply.code in CODES.values()
        return self.change(reply) if is_meant else reply

    @abstractmethod
    def change(self, reply: Reply) -> Reply: ...


class AtIdentity(ChangedAt):
    path = IDENTITY


class AtHealth(ChangedAt):
    path = HEALTH


class AtServices(ChangedAt):
    path = SERVICES


class AtServiceHealth(RightNode, ABC):
    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        return self.change(reply) if asked.is_service_health and reply.code in CODES.values() else reply

    @abstractmethod
    def change(self, reply: Reply) -> Reply: ...


def with_header(reply: Reply, name: str, value: str) -> Reply:
    return replace(reply, headers={**reply.headers, name: value})


def without_header(reply: Reply, name: str) -> Reply:
    return replace(reply, headers={key: value for key, value in reply.headers.items() if key != name})


# ---- identity


@breaks("identity-answers")
class IdentityFails(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return error(500, "Internal server error")


@breaks("identity-answers")
class IdentityIsElsewhere(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return Reply(code=301, headers={"Location": "/node"})


@breaks("identity-answers")
class IdentityNeedsAPassword(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return Reply(code=401, headers={"WWW-Authenticate": "Basic"})


@breaks("identity-content-type")
class IdentityIsSentAsText(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return with_header(reply, "Content-Type", "text/plain; charset=utf-8")


@breaks("identity-content-type")
class IdentityHasNoContentType(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return without_header(reply, "Content-Type")


@breaks("identity-json")
class IdentityIsNoJson(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=b"validator-7/v1.4.2")


@breaks("identity-json")
class IdentityIsAString(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, "validator-7/v1.4.2")


@breaks("identity-json")
class IdentityIsNotUtf8(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=reply.body.replace(b"validator", b"v\xe4lidator"))


@breaks("identity-json")
class IdentityNamesAFieldTwice(AtIdentity):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=reply.body.replace(b"{", b'{"node_name": "another", '))


@breaks("identity-fields")
class IdentityMisspeltAField(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity = {"node_name": "validator-7", "spec_verdsion": "v0.0.1", "node_version": "v1.4.2"}


@breaks("identity-fields")
class IdentityHasANumber(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_version"] = 1.4


@breaks("identity-fields")
class IdentityHasNoName(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_name"] = None


@breaks("identity-spec-version-form")
class SpecVersionLacksItsV(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["spec_version"] = "0.0.1"


@breaks("identity-node-version-form")
class NodeVersionHasASuffix(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_version"] = "v1.4.2-beta.1"


@breaks("identity-name-not-empty")
class NodeNameIsEmpty(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_name"] = ""


@breaks("identity-no-other-fields")
class IdentityHasMoreFields(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["uptime"] = 12


# ---- health


@breaks("health-code")
class HealthIsNoContent(AtHealth):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, code=204)


@breaks("health-code")
class HealthIsMissing(RightNode):
    def has(self, path: str) -> bool:
        return super().has(path) and path != HEALTH


@breaks("health-no-body")
class HealthHasABody(AtHealth):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"status": "ok"})


@breaks("health-heeds-services")
class HealthIsSetByHand(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.health = 200


@breaks("health-quick")
class HealthLooksWhenAsked(AtHealth):
    """The test shortens what counts as quick."""

    def change(self, reply: Reply) -> Reply:
        time.sleep(0.3)
        return reply


# ---- services


@breaks("services-answers")
class ServicesFail(AtServices):
    def change(self, reply: Reply) -> Reply:
        return error(500, "Internal server error")


@breaks("services-content-type")
class ServicesAreSentAsText(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_header(reply, "Content-Type", "text/json")


@breaks("services-json")
class ServicesAreNoJson(AtServices):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=reply.body[:-1])


@breaks("services-list")
class ServicesAreABareArray(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, reply.json["services"])


@breaks("services-list")
class ServicesAreNull(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"services": None})


@breaks("services-list")
class ServicesStandUnderAnotherName(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"backing_services": reply.json["services"]})


@breaks("services-fields")
class ServiceHasNoDescription(RightNode):
    def __init__(self) -> None:
        super().__init__()
        del self.services[0]["description"]


@breaks("services-fields")
class ServiceIdIsANumber(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append({**service("7", "Up"), "id": 7})


@breaks("services-fields")
class ServiceIsAString(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"services": [*reply.json["services"], "cache"]})


@breaks("services-status-value")
class StatusIsShouted(AtServices):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=reply.body.replace(b'"Up"', b'"UP"'))


@breaks("services-status-value")
class StatusIsNull(AtServices):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, body=reply.body.replace(b'"Up"', b"null"))


@breaks("services-status-present")
class StatusIsMissing(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(
            reply, {"services": [{key: one[key] for key in one if key != "status"} for one in reply.json["services"]]}
        )


@breaks("services-ids-unique")
class TwoServicesHaveOneId(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("db", "Down"))


@breaks("services-ids-not-empty")
class AnIdIsEmpty(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("", "Up"))


@breaks("services-ids-in-paths")
class AnIdIsDots(RightNode):
    """And whoever stands before it tidies paths."""

    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("..", "Up"))

    def answer(self, asked: Asked) -> Reply:
        tidied = asked.path.replace("/services/../", "/").replace("/services/%2E%2E/", "/")
        return super().answer(asked._replace(path=tidied))


@breaks("services-no-other-fields")
class AServiceHasMoreFields(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services[0]["since"] = "yesterday"


@breaks("services-no-other-fields")
class TheListHasMoreFields(AtServices):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {**reply.json, "count": 4})


# ---- health of a service


@breaks("service-health-code")
class AListedServiceIsNotFound(RightNode):
    def status_of(self, segment: str) -> str | None:
        return None if segment == "indexer" else super().status_of(segment)


@breaks("service-health-code")
class NoListedServiceWithAPlainIdIsFound(RightNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment) if "%" in segment else None


@breaks("service-id-encoded")
class TheIdIsNotDecoded(RightNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment.replace("%", "%25"))


@breaks("service-id-encoded")
class ThePathIsDecodedBeforeItIsSplit(RightNode):
    def has(self, path: str) -> bool:
        return super().has(path.replace("%2F", "/"))


@breaks("service-health-no-body")
class ServiceHealthHasABody(AtServiceHealth):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"healthy": True})


@breaks("service-health-agrees")
class ServicesAreAlwaysHealthy(AtServiceHealth):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, code=200)


@breaks("service-health-agrees")
class DownIsPartial(AtServiceHealth):
    def change(self, reply: Reply) -> Reply:
        return replace(reply, code=206 if reply.code == 503 else reply.code)


@breaks("service-unknown-refused")
class AnyIdIsHealthy(RightNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment) or "Up"


@breaks("service-unknown-told-apart")
class AnUnknownIdIsAVersionNotFound(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        is_unknown = asked.is_service_health and reply.code == 404 and asked.method == "GET"
        return error(404, "API version not found") if is_unknown else reply


@breaks("service-unknown-404")
class AnUnknownIdIs506(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        is_unknown = asked.is_service_health and b"Service not found" in reply.body
        return replace(reply, code=506) if is_unknown else reply


@breaks("service-unknown-404")
class AnUnknownIdHasNoErrorBody(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        is_unknown = asked.is_service_health and b"Service not found" in reply.body
        return Reply(code=404, headers=reply.headers) if is_unknown else reply


# ---- versions


class Unversioned(RightNode):
    """Takes no notice of the version at one endpoint."""

    path = ""

    def is_supported(self, asked: Asked) -> bool:
        return asked.path == self.path or super().is_supported(asked)


class Overstrict(RightNode):
    """Refuses every version at one endpoint."""

    path = ""

    def is_supported(self, asked: Asked) -> bool:
        return super().is_supported(asked) and not (asked.versions and asked.path == self.path)


@breaks("version-supported-on-identity")
class IdentityRefusesEveryVersion(Overstrict):
    path = IDENTITY


@breaks("version-supported-on-health")
class HealthRefusesEveryVersion(Overstrict):
    path = HEALTH


@breaks("version-supported-on-services")
class ServicesRefuseEveryVersion(Overstrict):
    path = SERVICES


@breaks("version-supported-on-service-health")
class ServiceHealthRefusesEveryVersion(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return super().is_supported(asked) and not (asked.versions and asked.is_service_health)


@breaks("version-unsupported-on-identity")
class IdentityIgnoresTheVersion(Unversioned):
    path = IDENTITY


@breaks("version-unsupported-on-health")
class HealthIgnoresTheVersion(Unversioned):
    path = HEALTH


@breaks("version-unsupported-on-services")
class ServicesIgnoreTheVersion(Unversioned):
    path = SERVICES


@breaks("version-unsupported-on-service-health")
class ServiceHealthIgnoresTheVersion(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return asked.is_service_health or super().is_supported(asked)


class AtVersionRefusal(RightNode, ABC):
    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        return self.change(reply) if b"API version not found" in reply.body else reply

    @abstractmethod
    def change(self, reply: Reply) -> Reply: ...


@breaks("version-error-message")
class TheErrorHasAnotherMessage(AtVersionRefusal):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"message": "api version not found"})


@breaks("version-error-message")
class TheErrorHasNoBody(AtVersionRefusal):
    def change(self, reply: Reply) -> Reply:
        return Reply(code=404, headers=without_header(reply, "Content-Type").headers)


@breaks("version-error-message")
class TheErrorHasAnotherField(AtVersionRefusal):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"error": "API version not found"})


@breaks("version-error-content-type")
class TheErrorIsSentAsText(AtVersionRefusal):
    def change(self, reply: Reply) -> Reply:
        return with_header(reply, "Content-Type", "text/plain")


@breaks("version-error-no-other-fields")
class TheErrorHasMoreFields(AtVersionRefusal):
    def change(self, reply: Reply) -> Reply:
        return with_json(reply, {"message": "API version not found", "code": 404})


@breaks("version-selected")
class AnotherVersionIsReported(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["spec_version"] = "v1.4.2"
        self.supported.add("v1.4.2")


@breaks("version-reported-is-supported")
class TheLatestVersionCannotBeAskedFor(RightNode):
    def endpoint(self, asked: Asked) -> Reply:
        reply = super().endpoint(asked)
        is_latest = asked.path == IDENTITY and not asked.versions
        return with_json(reply, {**self.identity, "spec_version": "v0.0.2"}) if is_latest else reply


@breaks("version-malformed")
class TheBeginningOfAVersionIsEnough(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return all(one.startswith(("v0.0.1", "0.0.1")) for one in asked.versions)


@breaks("version-malformed")
class AWordIsAVersion(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.add("latest")


@breaks("version-repeated")
class OnlyTheFirstVersionCounts(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return set(asked.versions[:1]) <= self.supported


@breaks("version-repeated")
class OnlyTheLastVersionCounts(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return set(asked.versions[-1:]) <= self.supported


@breaks("version-among-others")
class TheVersionMustComeFirst(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return not asked.query.startswith("version=") or super().is_supported(asked)


@breaks("version-empty")
class AnEmptyVersionIsNone(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.add("")


@breaks("version-repeated-same")
class AVersionMayStandOnlyOnce(RightNode):
    def is_supported(self, asked: Asked) -> bool:
        return super().is_supported(asked) and len(asked.versions) < 2


@breaks("version-without-v")
class AVersionNeedsItsV(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.supported.remove("0.0.1")


@breaks("version-before-id")
class TheIdIsJudgedFirst(RightNode):
    def answer(self, asked: Asked) -> Reply:
        is_unknown = asked.is_service_health and self.status_of(asked.path.split("/")[4]) is None
        return error(404, "Service not found") if is_unknown else super().answer(asked)


# ---- methods


@breaks("head-code")
class HeadIsAlwaysFine(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, code=200) if asked.method == "HEAD" else reply


@breaks("head-code")
class HeadFails(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, code=500) if asked.method == "HEAD" else reply


@breaks("head-no-body")
class HeadHasABody(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, has_body_after_head=True)


@breaks("head-answered")
class HeadIsRefused(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return error(405, "Method not allowed", Allow="GET") if asked.method == "HEAD" else reply


@breaks("methods-refused")
class PostIsAnsweredLikeGet(RightNode):
    def answer(self, asked: Asked) -> Reply:
        return super().answer(asked._replace(method="GET") if asked.method == "POST" else asked)


@breaks("methods-refused")
class DeleteIsAccepted(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return Reply(code=202) if asked.method == "DELETE" else reply


@breaks("options-refused")
class OptionsIsFine(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return Reply(code=204, headers={"Allow": "GET, HEAD"}) if asked.method == "OPTIONS" else reply


@breaks("methods-405")
class OtherMethodsAreNotFound(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return error(404, "Not found") if reply.code == 405 else reply


@breaks("methods-405")
class TheAllowedMethodsAreNotNamed(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return without_header(reply, "Allow")


# ---- paths


class AtNowhere(RightNode, ABC):
    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        return self.change(asked) if not self.has(asked.path) else reply

    @abstractmethod
    def change(self, asked: Asked) -> Reply: ...


@breaks("path-unknown-refused")
class EveryPathHasAPage(AtNowhere):
    def change(self, asked: Asked) -> Reply:
        return Reply(headers={"Content-Type": "text/html"}, body=b"<h1>Welcome</h1>")


@breaks("path-unknown-404")
class UnknownPathsHaveAPage(AtNowhere):
    def change(self, asked: Asked) -> Reply:
        return Reply(code=404, headers={"Content-Type": "text/html"}, body=b"<h1>Not found</h1>")


@breaks("path-unknown-404")
class UnknownPathsAreForbidden(AtNowhere):
    def change(self, asked: Asked) -> Reply:
        return error(404 if asked.path.endswith("/") else 403, "Forbidden")


@breaks("path-trailing-slash")
class ASlashRedirects(AtNowhere):
    def change(self, asked: Asked) -> Reply:
        bare = asked.path.rstrip("/")
        return Reply(code=307, headers={"Location": bare}) if self.has(bare) else error(404, "Not found")


@breaks("path-trailing-slash")
class ASlashIsIgnored(RightNode):
    def answer(self, asked: Asked) -> Reply:
        return super().answer(asked._replace(path=asked.path.rstrip("/")))


# ---- transport


@breaks("keep-alive-in-step")
class ConnectionsEndWithoutNotice(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, closes=asked.nth == 1)


@breaks("keep-alive-in-step")
class ALaterAnswerIsToAnotherRequest(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        if asked.nth == 4 and asked.path == IDENTITY:
            return super().endpoint(asked._replace(path=SERVICES))
        return reply


@breaks("keep-alive-kept")
class EveryAnswerIsTheLast(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return with_header(reply, "Connection", "close")


@breaks("keep-alive-kept")
class ItIsHttp10(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, version="HTTP/1.0")


@breaks("refusals-framed")
class AnotherMethodIsRefusedWithoutALength(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, is_unframed=reply.code == 405)


@breaks("refusals-framed")
class WhatIsNotThereIsRefusedWithoutALength(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return replace(reply, is_unframed=reply.code == 404)


class Crowded(RightNode):
    server: NodeServer  # the test sets it

    def is_crowded(self) -> bool:
        """Waits for as long as more keep coming; nothing but the check in question sends more than a few at once."""
        seen = 0
        while (count := self.server.open_connections) > seen:
            seen = count
            time.sleep(0.01)
        return seen > 12


@breaks("parallel-requests")
class ManyAtOnceAreTooMany(Crowded):
    def answer(self, asked: Asked) -> Reply:
        return error(500, "Too many") if self.is_crowded() else super().answer(asked)


@breaks("parallel-requests")
class ManyAtOnceAreMixedUp(Crowded):
    def answer(self, asked: Asked) -> Reply:
        is_mixed_up = self.is_crowded() and asked.path == IDENTITY
        return super().answer(asked._replace(path=SERVICES) if is_mixed_up else asked)


@breaks("not-cached")
class AnswersMayBeKept(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return without_header(reply, "Cache-Control")


@breaks("not-cached")
class AnswersAreToBeKept(Changed):
    def change(self, asked: Asked, reply: Reply) -> Reply:
        return with_header(reply, "Cache-Control", "public, max-age=60")


@breaks("query-unknown-ignored")
class UnknownParametersAreRefused(RightNode):
    def endpoint(self, asked: Asked) -> Reply:
        return super().endpoint(asked) if asked.parameters <= {"version"} else error(400, "Unknown parameter")

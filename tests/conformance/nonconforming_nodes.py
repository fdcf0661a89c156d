"""For every check, nodes that are right in everything but what it demands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.conformance.conforming_node import CODES, ConformingNode, Request, Response, error, service, with_json

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[[], ConformingNode]
    Change = Callable[[Response], Response]

IDENTITY, HEALTH, SERVICES = "/svc/node", "/svc/node/health", "/svc/node/services"
REFUSED_VERSION, UNKNOWN_SERVICE = b"API version not found", b"Service not found"


class Defect(NamedTuple):
    check: str
    name: str
    node: Factory


# ---- kinds of defects


def modified(change: Callable[[Request, Response], Response]) -> Factory:
    """Right, but for what `change` makes of a response."""

    class Modified(ConformingNode):
        def respond(self, asked: Request) -> Response:
            return change(asked, super().respond(asked))

    return Modified


def if_(condition: Callable[[Request, Response], bool], change: Change) -> Factory:
    return modified(lambda asked, reply: change(reply) if condition(asked, reply) else reply)


def at(path: str, change: Change) -> Factory:
    """Right, but for the good responses of one path."""
    methods, codes = ("GET", "HEAD"), CODES.values()
    return if_(lambda asked, reply: asked.path == path and asked.method in methods and reply.code in codes, change)


def at_service_health(change: Change) -> Factory:
    return if_(lambda asked, reply: asked.is_service_health and reply.code in CODES.values(), change)


def of_method(method: str, change: Change) -> Factory:
    return if_(lambda asked, _: asked.method == method, change)


def saying(text: bytes, change: Change) -> Factory:
    """Right, but for responses with this text."""
    return if_(lambda _, reply: text in reply.body, change)


def overriding(**methods: Callable[..., Any]) -> Factory:
    return type("Overriding", (ConformingNode,), methods)


def with_identity(**fields: object) -> Factory:
    def make() -> ConformingNode:
        node = ConformingNode()
        node.identity |= fields
        return node

    return make


def with_services(*more: dict[str, Any], **fields: object) -> Factory:
    """With more services, or with these fields in the first one."""

    def make() -> ConformingNode:
        node = ConformingNode()
        node.services[0] |= fields
        node.services += more
        return node

    return make


def with_versions(*supported: str, **identity: str) -> Factory:
    def make() -> ConformingNode:
        node = with_identity(**identity)()
        node.supported = set(supported)
        return node

    return make


def with_header(name: str, value: str) -> Change:
    return lambda reply: replace(reply, headers={**reply.headers, name: value})


def without_header(name: str) -> Change:
    return lambda reply: replace(reply, headers={key: value for key, value in reply.headers.items() if key != name})


def replacing(old: bytes, new: bytes) -> Change:
    return lambda reply: replace(reply, body=reply.body.replace(old, new))


def sending(value: object) -> Change:
    return lambda reply: with_json(reply, value)


def is_supported(self: ConformingNode, asked: Request) -> bool:
    """As a conforming node has it."""
    return ConformingNode.is_supported(self, asked)


def refusing_versions(condition: Callable[[Request], bool]) -> Factory:
    return overriding(
        is_supported=lambda self, asked: is_supported(self, asked) and not (asked.versions and condition(asked))
    )


def ignoring_versions(condition: Callable[[Request], bool]) -> Factory:
    return overriding(is_supported=lambda self, asked: condition(asked) or is_supported(self, asked))


def supporting(condition: Callable[[Request], bool]) -> Factory:
    """By another rule."""
    return overriding(is_supported=lambda _, asked: condition(asked))


def finding_services(find: Callable[[ConformingNode, str], str | None]) -> Factory:
    return overriding(status_of=find)


def at_unknown_path(change: Callable[[ConformingNode, Request], Response]) -> Factory:
    return overriding(
        respond=lambda self, asked: ConformingNode.respond(self, asked) if self.has(asked.path) else change(self, asked)
    )


def rewriting(rewrite: Callable[[Request], Request]) -> Factory:
    return overriding(respond=lambda self, asked: ConformingNode.respond(self, rewrite(asked)))


status_of = ConformingNode.status_of
STATUS_MISSING: Change = lambda reply: with_json(  # noqa: E731
    reply, {"services": [{key: one[key] for key in one if key != "status"} for one in reply.json["services"]]}
)


# ---- nodes that other tests use too


class IdentityMisspeltAField(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity = {"node_name": "validator-7", "spec_verdsion": "v0.0.1", "node_version": "v1.4.2"}


class NodeNameIsEmpty(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.identity["node_name"] = ""


class HealthIsStatic(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.health = 200


class ServiceHasNoDescription(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        del self.services[0]["description"]


class AnyIdIsHealthy(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return super().status_of(segment) or "Up"


class ConcurrencyAware(ConformingNode):
    server: Any  # the test sets it

    def is_concurrent(self) -> bool:
        """Nothing but the check in question sends more than a few requests at once."""
        return self.server.concurrent_connections() > 12  # type: ignore[no-any-return]


class ConcurrentRequestsAreRejected(ConcurrencyAware):
    def respond(self, asked: Request) -> Response:
        return error(500, "Too many") if self.is_concurrent() else super().respond(asked)


class ConcurrentResponsesAreSwapped(ConcurrencyAware):
    def respond(self, asked: Request) -> Response:
        is_mixed_up = self.is_concurrent() and asked.path == IDENTITY
        return super().respond(asked._replace(path=SERVICES) if is_mixed_up else asked)


class PathsAreNormalized(ConformingNode):
    """By a proxy in front of it, which misleads for the id ".."."""

    def __init__(self) -> None:
        super().__init__()
        self.services.append(service("..", "Up"))

    def respond(self, asked: Request) -> Response:
        tidied = asked.path.replace("/services/../", "/").replace("/services/%2E%2E/", "/")
        return super().respond(asked._replace(path=tidied))


class IdIsCheckedBeforeVersion(ConformingNode):
    def respond(self, asked: Request) -> Response:
        is_unknown = asked.is_service_health and self.status_of(asked.path.split("/")[4]) is None
        return error(404, "Service not found") if is_unknown else super().respond(asked)


class PipelinedResponseIsForAnotherRequest(ConformingNode):
    def respond(self, asked: Request) -> Response:
        is_mixed_up = asked.index_on_connection == 4 and asked.path == IDENTITY
        return super().respond(asked._replace(path=SERVICES) if is_mixed_up else asked)


def redirect_slash(node: ConformingNode, asked: Request) -> Response:
    bare = asked.path.rstrip("/")
    return Response(code=307, headers={"Location": bare}) if node.has(bare) else error(404, "Not found")


def latest_version(asked: Request, reply: Response) -> Response:
    """Reports a version that cannot be requested."""
    is_latest = asked.path == IDENTITY and asked.method in ("GET", "HEAD") and not asked.versions
    return with_json(reply, {**reply.json, "spec_version": "v0.0.2"}) if is_latest else reply


def html(code: int, title: str) -> Response:
    return Response(code=code, headers={"Content-Type": "text/html"}, body=f"<h1>{title}</h1>".encode())


# ---- the defects

DEFECTS = [
    Defect("identity-answers", "500", at(IDENTITY, lambda _: error(500, "Internal server error"))),
    Defect("identity-content-type", "text", at(IDENTITY, with_header("Content-Type", "text/plain; charset=utf-8"))),
    Defect("identity-content-type", "none", at(IDENTITY, without_header("Content-Type"))),
    Defect("identity-json", "text", at(IDENTITY, lambda reply: replace(reply, body=b"validator-7/v1.4.2"))),
    Defect("identity-json", "string", at(IDENTITY, sending("validator-7/v1.4.2"))),
    Defect("identity-json", "field twice", at(IDENTITY, replacing(b"{", b'{"node_name": "another", '))),
    Defect("identity-fields", "misspelt", IdentityMisspeltAField),
    Defect("identity-fields", "number", with_identity(node_version=1.4)),
    Defect("identity-fields", "null", with_identity(node_name=None)),
    Defect("identity-spec-version-form", "without v", with_identity(spec_version="0.0.1")),
    Defect("identity-node-version-form", "suffix", with_identity(node_version="v1.4.2-beta.1")),
    Defect("identity-name-not-empty", "empty", NodeNameIsEmpty),
    Defect("identity-no-other-fields", "uptime", with_identity(uptime=12)),
    # ---- health
    Defect("health-code", "204", at(HEALTH, lambda reply: replace(reply, code=204))),
    Defect(
        "health-code", "missing", overriding(has=lambda self, path: ConformingNode.has(self, path) and path != HEALTH)
    ),
    Defect("health-no-body", "JSON", at(HEALTH, sending({"status": "ok"}))),
    Defect("health-reflects-services", "always 200", HealthIsStatic),
    Defect("health-latency", "checks on request", at(HEALTH, lambda reply: replace(reply, delay_s=1.1))),
    # ---- services
    Defect("services-answers", "500", at(SERVICES, lambda _: error(500, "Internal server error"))),
    Defect("services-content-type", "text", at(SERVICES, with_header("Content-Type", "text/json"))),
    Defect("services-json", "truncated", at(SERVICES, lambda reply: replace(reply, body=reply.body[:-1]))),
    Defect("services-list", "bare array", at(SERVICES, lambda reply: with_json(reply, reply.json["services"]))),
    Defect("services-list", "null", at(SERVICES, sending({"services": None}))),
    Defect("services-fields", "no description", ServiceHasNoDescription),
    Defect("services-fields", "number as id", with_services({**service("7", "Up"), "id": 7})),
    Defect(
        "services-fields",
        "string as service",
        at(SERVICES, lambda reply: with_json(reply, {"services": [*reply.json["services"], "cache"]})),
    ),
    Defect("services-status-value", "upper case", at(SERVICES, replacing(b'"Up"', b'"UP"'))),
    Defect("services-status-value", "null", at(SERVICES, replacing(b'"Up"', b"null"))),
    Defect("services-status-present", "missing", at(SERVICES, STATUS_MISSING)),
    Defect("services-ids-unique", "one twice", with_services(service("db", "Down"))),
    Defect("services-ids-not-empty", "empty", with_services(service("", "Up"))),
    Defect("services-ids-in-paths", "dots", PathsAreNormalized),
    Defect("services-no-other-fields", "of a service", with_services(since="yesterday")),
    Defect(
        "services-no-other-fields", "of the list", at(SERVICES, lambda reply: with_json(reply, {**reply.json, "n": 4}))
    ),
    # ---- health of a service
    Defect(
        "service-health-code",
        "one not found",
        finding_services(lambda self, segment: None if segment == "indexer" else status_of(self, segment)),
    ),
    Defect(
        "service-health-code",
        "no plain id found",
        finding_services(lambda self, segment: status_of(self, segment) if "%" in segment else None),
    ),
    Defect(
        "service-id-encoded",
        "not decoded",
        finding_services(lambda self, segment: status_of(self, segment.replace("%", "%25"))),
    ),
    Defect(
        "service-id-encoded",
        "decoded before it is split",
        overriding(has=lambda self, path: ConformingNode.has(self, path.replace("%2F", "/"))),
    ),
    Defect("service-health-no-body", "JSON", at_service_health(sending({"healthy": True}))),
    Defect("service-health-agrees", "always 200", at_service_health(lambda reply: replace(reply, code=200))),
    Defect(
        "service-health-agrees",
        "Down is 206",
        at_service_health(lambda reply: replace(reply, code=206 if reply.code == 503 else reply.code)),
    ),
    Defect("service-unknown-refused", "any id is healthy", AnyIdIsHealthy),
    Defect(
        "service-unknown-distinct-message",
        "as a version",
        if_(
            lambda asked, reply: asked.is_service_health and reply.code == 404 and asked.method == "GET",
            lambda _: error(404, "API version not found"),
        ),
    ),
    Defect("service-unknown-404", "506", saying(UNKNOWN_SERVICE, lambda reply: replace(reply, code=506))),
    Defect("service-unknown-404", "no body", saying(UNKNOWN_SERVICE, lambda reply: replace(reply, body=b""))),
    Defect("service-unknown-404", "as text", saying(UNKNOWN_SERVICE, with_header("Content-Type", "text/plain"))),
    # ---- versions
    Defect("version-supported-on-identity", "refused", refusing_versions(lambda asked: asked.path == IDENTITY)),
    Defect("version-supported-on-health", "refused", refusing_versions(lambda asked: asked.path == HEALTH)),
    Defect("version-supported-on-services", "refused", refusing_versions(lambda asked: asked.path == SERVICES)),
    Defect("version-supported-on-service-health", "refused", refusing_versions(lambda asked: asked.is_service_health)),
    Defect("version-unsupported-on-identity", "ignored", ignoring_versions(lambda asked: asked.path == IDENTITY)),
    Defect("version-unsupported-on-health", "ignored", ignoring_versions(lambda asked: asked.path == HEALTH)),
    Defect("version-unsupported-on-services", "ignored", ignoring_versions(lambda asked: asked.path == SERVICES)),
    Defect(
        "version-unsupported-on-service-health", "ignored", ignoring_versions(lambda asked: asked.is_service_health)
    ),
    Defect(
        "version-error-message", "lower case", saying(REFUSED_VERSION, sending({"message": "api version not found"}))
    ),
    Defect("version-error-message", "no body", saying(REFUSED_VERSION, lambda reply: replace(reply, body=b""))),
    Defect(
        "version-error-message", "other field", saying(REFUSED_VERSION, sending({"error": "API version not found"}))
    ),
    Defect("version-error-content-type", "text", saying(REFUSED_VERSION, with_header("Content-Type", "text/plain"))),
    Defect(
        "version-error-no-other-fields",
        "code",
        saying(REFUSED_VERSION, sending({"message": "API version not found", "code": 404})),
    ),
    Defect("version-selected", "reports another", with_versions("v0.0.1", "0.0.1", "v1.4.2", spec_version="v1.4.2")),
    Defect("version-reported-is-supported", "latest", modified(latest_version)),
    Defect(
        "version-malformed",
        "its beginning is enough",
        supporting(lambda asked: all(one.startswith(("v0.0.1", "0.0.1")) for one in asked.versions)),
    ),
    Defect("version-malformed", "a word", with_versions("v0.0.1", "0.0.1", "latest")),
    Defect("version-repeated", "first counts", supporting(lambda asked: {*asked.versions[:1]} <= {"v0.0.1", "0.0.1"})),
    Defect("version-repeated", "last counts", supporting(lambda asked: {*asked.versions[-1:]} <= {"v0.0.1", "0.0.1"})),
    Defect(
        "version-among-others",
        "must come first",
        ignoring_versions(lambda asked: not asked.query.startswith("version=")),
    ),
    Defect("version-empty", "is none", with_versions("v0.0.1", "0.0.1", "")),
    Defect("version-repeated-same", "refused", refusing_versions(lambda asked: len(asked.versions) > 1)),
    Defect("version-both-forms", "needs its v", with_versions("v0.0.1")),
    Defect("version-both-forms", "must lack its v", with_versions("0.0.1")),
    Defect("version-before-id", "id first", IdIsCheckedBeforeVersion),
    # ---- methods
    Defect("head-code", "always 200", of_method("HEAD", lambda reply: replace(reply, code=200))),
    Defect("head-code", "500", of_method("HEAD", lambda reply: replace(reply, code=500))),
    Defect("head-no-body", "body", modified(lambda _, reply: replace(reply, has_body_after_head=True))),
    Defect("head-answered", "405", of_method("HEAD", lambda _: error(405, "Method not allowed", Allow="GET"))),
    Defect(
        "methods-refused",
        "POST is GET",
        rewriting(lambda asked: asked._replace(method="GET") if asked.method == "POST" else asked),
    ),
    Defect("methods-refused", "DELETE is accepted", of_method("DELETE", lambda _: Response(code=202))),
    Defect(
        "options-refused", "204", of_method("OPTIONS", lambda _: Response(code=204, headers={"Allow": "GET, HEAD"}))
    ),
    Defect("methods-405", "404", if_(lambda _, reply: reply.code == 405, lambda _: error(404, "Not found"))),
    Defect("methods-405", "no Allow", modified(lambda _, reply: without_header("Allow")(reply))),
    # ---- paths
    Defect("path-unknown-refused", "200", at_unknown_path(lambda *_: html(200, "Welcome"))),
    Defect("path-unknown-404", "HTML", at_unknown_path(lambda *_: html(404, "Not found"))),
    Defect(
        "path-unknown-404",
        "403",
        at_unknown_path(lambda _, asked: error(404 if asked.path.endswith("/") else 403, "Forbidden")),
    ),
    Defect("path-trailing-slash", "redirects", at_unknown_path(redirect_slash)),
    Defect("path-trailing-slash", "ignored", rewriting(lambda asked: asked._replace(path=asked.path.rstrip("/")))),
    # ---- transport
    Defect(
        "keep-alive-order",
        "closes unannounced",
        modified(lambda asked, reply: replace(reply, closes_unannounced=asked.index_on_connection == 1)),
    ),
    Defect("keep-alive-order", "response for another request", PipelinedResponseIsForAnotherRequest),
    Defect(
        "keep-alive-persistent", "always closes", modified(lambda _, reply: with_header("Connection", "close")(reply))
    ),
    Defect("keep-alive-persistent", "HTTP/1.0", modified(lambda _, reply: replace(reply, version="HTTP/1.0"))),
    Defect("error-responses-framed", "405", modified(lambda _, reply: replace(reply, is_unframed=reply.code == 405))),
    Defect("error-responses-framed", "404", modified(lambda _, reply: replace(reply, is_unframed=reply.code == 404))),
    Defect("parallel-requests", "rejected", ConcurrentRequestsAreRejected),
    Defect("parallel-requests", "swapped", ConcurrentResponsesAreSwapped),
    Defect("not-cached", "no header", modified(lambda _, reply: without_header("Cache-Control")(reply))),
    Defect(
        "not-cached", "public", modified(lambda _, reply: with_header("Cache-Control", "public, max-age=60")(reply))
    ),
    Defect(
        "query-unknown-ignored",
        "refused",
        if_(
            lambda asked, reply: not asked.parameters <= {"version"} and reply.code in CODES.values(),
            lambda _: error(400, "Unknown parameter"),
        ),
    ),
]

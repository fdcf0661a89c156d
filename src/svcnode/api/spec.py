"""The interface v0.0.1: its endpoints as data, and a pure function from request to handler.

`route` decides everything that does not depend on the node's state: endpoint, version and method. It returns a
handler, a function of the node only, so a server can cache the handler and call it again after each change.
Every server uses this module, so all of them send the same responses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import DEFAULT_PREFIX, DOT_SEGMENTS, Health
from svcnode.core.state_machine import service_health
from svcnode.core.strict_json import compact_json
from svcnode.core.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from svcnode.node.node_state import NodeState

SUPPORTED_VERSIONS = frozenset({"v0.0.1", "0.0.1"})
METHODS = ("GET", "HEAD")
PARTIAL_STATUS_PATTERN = re.compile(r"[2-5][0-9][0-9]", re.ASCII)
PREFIX_PATTERN = re.compile(r"(/[A-Za-z0-9._~-]+)*", re.ASCII)


class Request(NamedTuple):
    """The parts of a request that a response depends on. Path and query are raw.

    Header names are lowercase, repeated headers are joined with commas, and `host` is the authority of a target in
    absolute form. The interface reads no header.
    """

    method: str
    path: bytes
    query: bytes = b""
    headers: Mapping[bytes, bytes] = MappingProxyType({})
    body: bytes = b""  # as much of it as the application gets
    user: str = ""  # of the process that has sent it, if the application asks for it


Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Response:
    """A response without `Date`. For HEAD, the server leaves out the body and keeps all headers."""

    code: int
    body: bytes = b""
    headers: Headers = ()
    cause: Exception | None = field(default=None, compare=False)  # for the log only; never sent


# ---- JSON bodies; fields in the order of the interface document


def services_json(node: NodeState) -> bytes:
    services = ",".join(
        f'{_json_before_status(service.id, service.name, service.description)}"{state.status.value}"}}'
        for service, state in node
    )
    return f'{{"services":[{services}]}}'.encode()


@lru_cache(maxsize=16_384)
def _json_before_status(service_id: str, name: str, description: str) -> str:
    """The JSON object of a service up to its status, the only field that changes."""
    constant_fields = compact_json({"id": service_id, "name": name, "description": description})
    return f'{constant_fields.removesuffix("}")},"status":'


# ---- responses


def make_response(
    code: int, body: bytes = b"", *more_headers: tuple[str, str], content_type: str = "application/json"
) -> Response:
    headers = [*more_headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
    if body:
        headers.insert(0, ("Content-Type", content_type))
    if code != 204:  # RFC 9110, 8.6: no Content-Length
        headers.append(("Content-Length", str(len(body))))
    return Response(code, body, tuple(headers))


def error_response(code: int, message: str, *more_headers: tuple[str, str]) -> Response:
    return make_response(code, compact_json({"message": message}).encode(), *more_headers)


HEALTH_RESPONSES = {health: make_response(health) for health in Health}
VERSION_NOT_FOUND = error_response(404, "API version not found")
SERVICE_NOT_FOUND = error_response(404, "Service not found")
NOT_FOUND = error_response(404, "Not found")
METHOD_NOT_ALLOWED = error_response(405, "Method not allowed; use GET or HEAD", ("Allow", ", ".join(METHODS)))
BAD_PARTIAL_STATUS = error_response(400, "partial_status must be one status code from 200 to 599")
INTERNAL_ERROR = error_response(500, "Internal server error")


# ---- the four endpoints


class EndpointParams(NamedTuple):
    service_id: str | None = None
    partial_status: int | None = None


def _identity(node: NodeState, params: EndpointParams) -> Response:
    identity = node.identity
    document = {
        "node_name": identity.node_name,
        "spec_version": identity.spec_version,
        "node_version": identity.node_version,
    }
    return make_response(200, compact_json(document).encode())


def _node_health(node: NodeState, params: EndpointParams) -> Response:
    return _health_response(node.health, params)


def _services(node: NodeState, params: EndpointParams) -> Response:
    return make_response(200, services_json(node))


def _service_health(node: NodeState, params: EndpointParams) -> Response:
    status = None if params.service_id is None else node.status(params.service_id)
    return SERVICE_NOT_FOUND if status is None else _health_response(service_health(status), params)


def _health_response(health: Health, params: EndpointParams) -> Response:
    if health is Health.PARTIAL and params.partial_status is not None:
        return make_response(params.partial_status)
    return HEALTH_RESPONSES[health]


class Route(NamedTuple):
    path: str
    endpoint: Callable[[NodeState, EndpointParams], Response]
    failure: Response  # the response if the endpoint raises
    is_health: bool = False


SERVICE_HEALTH_ROUTE = Route(
    "/node/services/{service_ID}/health", _service_health, HEALTH_RESPONSES[Health.UNHEALTHY], is_health=True
)
ROUTES = (
    Route("/node", _identity, INTERNAL_ERROR),
    Route("/node/health", _node_health, HEALTH_RESPONSES[Health.UNHEALTHY], is_health=True),
    Route("/node/services", _services, INTERNAL_ERROR),
    SERVICE_HEALTH_ROUTE,
)


# ---- from a request to a handler


class Handler(Protocol):
    """Equal handlers return equal responses, so a cache can share them."""

    def __call__(self, node: NodeState, /) -> Response: ...


def parse_prefixes(prefix: str | Sequence[str]) -> tuple[str, ...]:
    """Validate one or more prefixes and remove trailing slashes."""
    prefixes = (prefix,) if isinstance(prefix, str) else tuple(prefix)
    if not prefixes:
        raise InvalidValueError(f'at least one prefix is required, for example "{DEFAULT_PREFIX}"')
    return tuple(map(_parse_prefix, prefixes))


def _parse_prefix(prefix: str) -> str:
    path = prefix.rstrip("/")
    if not PREFIX_PATTERN.fullmatch(path):
        raise InvalidValueError(f'invalid prefix "{prefix}": expected a path such as "{DEFAULT_PREFIX}"')
    if any(segment in DOT_SEGMENTS for segment in path.split("/")):
        raise InvalidValueError(
            f'invalid prefix "{prefix}": clients and proxies remove "." and ".." from paths; '
            f'use a path such as "{DEFAULT_PREFIX}"'
        )
    return path


def respond(node: NodeState, request: Request, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> Response:
    return route(request, prefixes)(node)


def route(request: Request, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> Handler:
    """The handler for a request. It does not depend on the state of the node."""
    segments = split_path(request.path)
    match = _find_route(segments, prefixes)
    if match is not None:
        return _route_endpoint(request, *match)
    service_id = _id_with_slashes(segments, prefixes)
    if service_id is None:
        return StaticResponse(NOT_FOUND)
    return SlashedIdHandler(service_id, _route_endpoint(request, SERVICE_HEALTH_ROUTE, service_id))


def _route_endpoint(request: Request, matched_route: Route, service_id: str | None) -> Handler:
    query = parse_query(request.query)
    if not _are_versions_supported(query.get("version", [])):
        return StaticResponse(VERSION_NOT_FOUND)
    if request.method not in METHODS:
        return StaticResponse(METHOD_NOT_ALLOWED)
    partial_status = query.get("partial_status", []) if matched_route.is_health else []
    if not _is_valid_partial_status(partial_status):
        return StaticResponse(BAD_PARTIAL_STATUS)
    code = int(partial_status[0]) if partial_status else None
    return EndpointHandler(matched_route, EndpointParams(service_id=service_id, partial_status=code))


class StaticResponse(NamedTuple):
    """A handler that always returns the same response."""

    response: Response

    def __call__(self, node: NodeState) -> Response:
        return self.response


class EndpointHandler(NamedTuple):
    """A handler: one endpoint with its parameters."""

    route: Route
    params: EndpointParams

    def __call__(self, node: NodeState) -> Response:
        try:
            return self.route.endpoint(node, self.params)
        except Exception as exc:  # noqa: BLE001  the cause goes to the log, not to the client
            return replace(self.route.failure, cause=exc)


class SlashedIdHandler(NamedTuple):
    """The health of a service whose id has slashes that a proxy has decoded; 404 unless such a service exists.

    Such proxies also merge slashes and remove dot segments, so the id must be the only one that becomes this path.
    """

    service_id: str
    handler: Handler

    def __call__(self, node: NodeState) -> Response:
        try:
            is_registered = node.status(self.service_id) is not None and self._is_unambiguous(node)
        except Exception as exc:  # noqa: BLE001  as above
            return replace(SERVICE_HEALTH_ROUTE.failure, cause=exc)
        return self.handler(node) if is_registered else NOT_FOUND

    def _is_unambiguous(self, node: NodeState) -> bool:
        path = normalized_path(self.service_id)
        return [service.id for service, _ in node if normalized_path(service.id) == path] == [self.service_id]


def normalized_path(path: str) -> tuple[str, ...]:
    """The segments that a proxy leaves: without empty segments, "." and "..", which removes the segment before it."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return tuple(segments)


class WithHeaders(NamedTuple):
    """A handler that adds headers to the response of another one."""

    handler: Handler
    headers: Headers

    def __call__(self, node: NodeState) -> Response:
        response = self.handler(node)
        return replace(response, headers=(*response.headers, *self.headers))


def parse_query(query: bytes) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in parse_qsl(query.decode("utf-8", "replace"), keep_blank_values=True):
        values.setdefault(name, []).append(value)
    return values


def parse_known_query(query: bytes, known: Sequence[str]) -> dict[str, list[str]]:
    """Refuses a parameter that does not exist: the client would take the response for what it has asked for."""
    values = parse_query(query)
    if unknown := [name for name in values if name not in known]:
        others = f"known: {', '.join(known)}" if known else "this path has none"
        raise InvalidValueError(f'unknown parameter "{excerpt(unknown[0])}"; {others}')
    return values


def split_path(path: bytes | str) -> list[str | None]:
    """The segments of a path, percent-decoded after splitting; None for a segment that is not UTF-8."""
    raw = path.encode() if isinstance(path, str) else path
    return [_decode_segment(segment) for segment in raw.split(b"/")]


def _decode_segment(segment: bytes) -> str | None:
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _find_route(segments: list[str | None], prefixes: Sequence[str]) -> tuple[Route, str | None] | None:
    for prefix in prefixes:
        for candidate in ROUTES:
            pattern = split_path(prefix + candidate.path)
            if _matches(pattern, segments):
                return candidate, segments[pattern.index(_ID_PARAM)] if _ID_PARAM in pattern else None
    return None


_ID_PARAM = "{service_ID}"


def _id_with_slashes(segments: list[str | None], prefixes: Sequence[str]) -> str | None:
    """Everything between `/services/` and `/health`: some proxies decode `%2F` in a path."""
    for prefix in prefixes:
        before, _, after = SERVICE_HEALTH_ROUTE.path.partition(_ID_PARAM)
        head, tail = split_path(prefix + before)[:-1], split_path(after)[1:]
        middle = segments[len(head) : -len(tail)]
        if segments[: len(head)] == head and segments[-len(tail) :] == tail and len(middle) > 1:
            parts = [part for part in middle if part is not None]
            return "/".join(parts) if len(parts) == len(middle) else None
    return None


def _matches(pattern: list[str | None], segments: list[str | None]) -> bool:
    return len(pattern) == len(segments) and all(
        expected in (_ID_PARAM, segment) for expected, segment in zip(pattern, segments, strict=True)
    )


def _are_versions_supported(versions: list[str]) -> bool:
    return all(version in SUPPORTED_VERSIONS for version in versions)


def _is_valid_partial_status(values: list[str]) -> bool:
    return not values or (len(values) == 1 and bool(PARTIAL_STATUS_PATTERN.fullmatch(values[0])))

"""The interface v0.0.1 as data, and one pure way from a request to an answer.

`route` settles everything that does not depend on the node: which endpoint, which version, which method. What it
returns is a reply, a function of the node alone, so a server may keep it and ask it again after every change.
All servers answer through here, so they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import DOT_SEGMENTS, Health
from svcnode.core.state_machine import service_health
from svcnode.core.strict_json import compact_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.core.model import Identity, Service, ServiceState, Status

DEFAULT_PREFIX = "/svc"
SUPPORTED_VERSIONS = frozenset({"v0.0.1", "0.0.1"})
METHODS = ("GET", "HEAD")
PARTIAL_STATUS_PATTERN = re.compile(r"[2-5][0-9][0-9]", re.ASCII)
PREFIX_PATTERN = re.compile(r"(/[A-Za-z0-9._~-]+)*", re.ASCII)


class NodeView(Protocol):
    """What an answer may be made from; `Node` is one."""

    @property
    def identity(self) -> Identity: ...

    @property
    def health(self) -> Health: ...

    def status(self, service_id: str) -> Status | None: ...

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that an answer depends on; path and query as they stood on the wire."""

    method: str
    path: bytes
    query: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer but for `Date`. HEAD is answered by leaving out the body, not the headers about it."""

    code: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cause: Exception | None = field(default=None, compare=False)  # for the log, never for the client


# ---- the JSON shapes; the fields stand in the order the interface lists them


def node_json(identity: Identity) -> bytes:
    return compact_json(
        {
            "node_name": identity.node_name,
            "spec_version": identity.spec_version,
            "node_version": identity.node_version,
        }
    ).encode()


def services_json(view: NodeView) -> bytes:
    listed = ",".join(
        f'{_json_before_status(service.id, service.name, service.description)}"{state.status.value}"}}'
        for service, state in view
    )
    return f'{{"services":[{listed}]}}'.encode()


@lru_cache(maxsize=16_384)
def _json_before_status(service_id: str, name: str, description: str) -> str:
    """All of a service's object but its status, which alone changes while it is registered."""
    unchanging = compact_json({"id": service_id, "name": name, "description": description})
    return f'{unchanging.removesuffix("}")},"status":'


def error_json(message: str) -> bytes:
    return compact_json({"message": message}).encode()


# ---- answers


def make_response(code: int, body: bytes = b"", *more_headers: tuple[str, str]) -> Response:
    headers = [*more_headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
    if body:
        headers.insert(0, ("Content-Type", "application/json"))
    if code != 204:  # the one answer that must not speak of a length
        headers.append(("Content-Length", str(len(body))))
    return Response(code, body, tuple(headers))


def error_response(code: int, message: str, *more_headers: tuple[str, str]) -> Response:
    return make_response(code, error_json(message), *more_headers)


HEALTH_RESPONSES = {health: make_response(health) for health in Health}
VERSION_NOT_FOUND = error_response(404, "API version not found")
SERVICE_NOT_FOUND = error_response(404, "Service not found")
NOT_FOUND = error_response(404, "Not found")
METHOD_NOT_ALLOWED = error_response(405, "Method not allowed; use GET or HEAD", ("Allow", ", ".join(METHODS)))
BAD_PARTIAL_STATUS = error_response(400, "partial_status must be one status code from 200 to 599")
INTERNAL_ERROR = error_response(500, "Internal server error")


# ---- the four endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointParams:
    """What a request says to an endpoint."""

    service_id: str | None = None
    partial_status: int | None = None


def _identity(view: NodeView, params: EndpointParams) -> Response:
    return make_response(200, node_json(view.identity))


def _node_health(view: NodeView, params: EndpointParams) -> Response:
    return _health_response(view.health, params)


def _services(view: NodeView, params: EndpointParams) -> Response:
    return make_response(200, services_json(view))


def _service_health(view: NodeView, params: EndpointParams) -> Response:
    status = None if params.service_id is None else view.status(params.service_id)
    return SERVICE_NOT_FOUND if status is None else _health_response(service_health(status), params)


def _health_response(health: Health, params: EndpointParams) -> Response:
    if health is Health.PARTIAL and params.partial_status is not None:
        return make_response(params.partial_status)
    return HEALTH_RESPONSES[health]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    endpoint: Callable[[NodeView, EndpointParams], Response]
    failure: Response  # what a client gets when answering itself fails
    is_health: bool = False


ROUTES = (
    Route("/node", _identity, INTERNAL_ERROR),
    Route("/node/health", _node_health, HEALTH_RESPONSES[Health.UNHEALTHY], is_health=True),
    Route("/node/services", _services, INTERNAL_ERROR),
    Route(
        "/node/services/{service_ID}/health",
        _service_health,
        HEALTH_RESPONSES[Health.UNHEALTHY],
        is_health=True,
    ),
)


# ---- from a request to a reply

Handler = Callable[["NodeView"], Response]


def parse_prefixes(prefix: str | Sequence[str]) -> tuple[str, ...]:
    """One prefix or several, checked, in a form that paths can be compared with."""
    given = (prefix,) if isinstance(prefix, str) else tuple(prefix)
    if not given:
        raise InvalidValueError(f'at least one prefix is needed, such as "{DEFAULT_PREFIX}"')
    return tuple(_parse_prefix(one) for one in given)


def _parse_prefix(prefix: str) -> str:
    bare = prefix.rstrip("/")
    if not PREFIX_PATTERN.fullmatch(bare):
        raise InvalidValueError(f'"{prefix}" is not a prefix; write a path such as "{DEFAULT_PREFIX}"')
    if any(segment in DOT_SEGMENTS for segment in bare.split("/")):
        raise InvalidValueError(
            f'"{prefix}" is not a prefix: "." and ".." name another place in a path, and clients and proxies would ask '
            f'for that instead; write a path such as "{DEFAULT_PREFIX}"'
        )
    return bare


def respond(view: NodeView, request: Request, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> Response:
    return route(request, prefixes)(view)


def route(request: Request, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> Handler:
    """The reply to a request, wherever no state of the node could change which one it is."""
    found = _find_route(request.path, prefixes)
    if found is None:
        return StaticResponse(NOT_FOUND)
    endpoint, service_id = found
    query = parse_query(request.query)
    if not _are_versions_supported(query.get("version", [])):
        return StaticResponse(VERSION_NOT_FOUND)
    if request.method not in METHODS:
        return StaticResponse(METHOD_NOT_ALLOWED)
    partial_status = query.get("partial_status", []) if endpoint.is_health else []
    if not _is_valid_partial_status(partial_status):
        return StaticResponse(BAD_PARTIAL_STATUS)
    code = int(partial_status[0]) if partial_status else None
    return BoundEndpoint(endpoint, EndpointParams(service_id=service_id, partial_status=code))


@dataclass(frozen=True, slots=True)
class StaticResponse:
    """The same answer whatever the node is like."""

    response: Response

    def __call__(self, view: NodeView) -> Response:
        return self.response


@dataclass(frozen=True, slots=True)
class BoundEndpoint:
    """An endpoint's answer to one call. Two that are equal give equal answers, so servers may keep one for both."""

    route: Route
    params: EndpointParams

    def __call__(self, view: NodeView) -> Response:
        try:
            return self.route.endpoint(view, self.params)
        except Exception as exc:  # noqa: BLE001  a client gets the endpoint's own failure, the log gets the cause
            failure = self.route.failure
            return Response(failure.code, failure.body, failure.headers, cause=exc)


def parse_query(query: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(query.decode("utf-8", "replace"), keep_blank_values=True):
        found.setdefault(name, []).append(value)
    return found


def split_path(path: bytes | str) -> list[str | None]:
    """The segments of a path, each percent-decoded once, after splitting; None where that is no text."""
    raw = path.encode() if isinstance(path, str) else path
    return [_decode_segment(segment) for segment in raw.split(b"/")]


def _decode_segment(segment: bytes) -> str | None:
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _find_route(path: bytes, prefixes: Sequence[str]) -> tuple[Route, str | None] | None:
    segments = split_path(path)
    for prefix in prefixes:
        for candidate in ROUTES:
            wanted = split_path(prefix + candidate.path)
            if _matches(wanted, segments):
                return candidate, segments[wanted.index(_ID_PARAM)] if _ID_PARAM in wanted else None
    return None


_ID_PARAM = "{service_ID}"


def _matches(wanted: list[str | None], segments: list[str | None]) -> bool:
    return len(wanted) == len(segments) and all(
        want in (_ID_PARAM, segment) for want, segment in zip(wanted, segments, strict=True)
    )


def _are_versions_supported(versions: list[str]) -> bool:
    return all(version in SUPPORTED_VERSIONS for version in versions)


def _is_valid_partial_status(values: list[str]) -> bool:
    return not values or (len(values) == 1 and bool(PARTIAL_STATUS_PATTERN.fullmatch(values[0])))

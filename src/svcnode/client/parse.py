"""The four operations: from an HTTP response to a value, or to an error that describes the response. Pure.

Many implementations deviate from the interface. A deviation with a clear meaning is accepted and reported with the
value.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.errors import (
    InvalidValueError,
    NodeFailedError,
    ServiceNotFoundError,
    UnexpectedResponseError,
    VersionNotFoundError,
)
from svcnode.core.model import VERSION_PATTERN, Health, Identity, Status, require_str
from svcnode.core.redaction import redacted
from svcnode.core.strict_json import json_error_detail, parse_strict_json
from svcnode.core.text import excerpt
from svcnode.core.url import redact_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class BackingService:
    """A service as a node lists it; `status` is None if it is missing or invalid."""

    id: str
    name: str
    description: str
    status: Status | None


def unvalidated_identity(node_name: str, spec_version: str, node_version: str) -> Identity:
    """An identity from another node; its values may have forms that `Identity` does not accept."""
    identity = object.__new__(Identity)
    object.__setattr__(identity, "node_name", node_name)
    object.__setattr__(identity, "spec_version", spec_version)
    object.__setattr__(identity, "node_version", node_version)
    return identity


T = TypeVar("T")

VERSION_NOT_FOUND = "API version not found"
# Messages of a 404 that are not about the id. None: no error body, so the 404 is not from the interface.
_OTHER_404_MESSAGES = (None, VERSION_NOT_FOUND, "Not found")
MIB = 1024 * 1024
MAX_DEVIATIONS = 100
MAX_ID_CHARS = 2048  # most servers reject a longer path
_STATUS_BY_NAME = {status.value.lower(): status for status in Status}
_IDENTITY_FIELDS = ("node_name", "spec_version", "node_version")
_SERVICE_FIELDS = ("id", "name", "description", "status")


class NodeResponse(NamedTuple):
    url: str  # without secrets
    code: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


class ParsedResponse(NamedTuple, Generic[T]):
    value: T
    deviations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[T]):
    """An operation: its path, and the parser."""

    path: str
    parser: Callable[[NodeResponse, _Deviations], T]

    def parse(self, response: NodeResponse) -> ParsedResponse[T]:
        deviations = _Deviations()
        value = self.parser(response, deviations)
        return ParsedResponse(value, tuple(map(redacted, deviations)))


class _Deviations(dict[str, None]):
    """Keeps each deviation once, in order, and only as many as people read: each service may deviate in its own way."""

    def add(self, text: str) -> None:
        if len(self) < MAX_DEVIATIONS:
            self[text] = None


# ---- the four operations


def _parse_identity(response: NodeResponse, deviations: _Deviations) -> Identity:
    document = _parse_json(response, deviations)
    if not isinstance(document, dict) or not document.keys() & set(_IDENTITY_FIELDS):
        _raise_unexpected(response, "an identity")
    texts = [_string_field(document, name, "the identity", deviations) for name in _IDENTITY_FIELDS]
    _note_unknown_fields(document, _IDENTITY_FIELDS, "the identity", deviations)
    for name, version in zip(_IDENTITY_FIELDS[1:], texts[1:], strict=True):
        if version and not VERSION_PATTERN.fullmatch(version):
            deviations.add(f'{name} is not "v" followed by dotted numbers: {excerpt(version)}')
    return unvalidated_identity(*texts)


def _parse_services(response: NodeResponse, deviations: _Deviations) -> tuple[BackingService, ...]:
    document = _parse_json(response, deviations)
    if isinstance(document, dict) and "services" in document:
        _note_unknown_fields(document, ("services",), "the list of services", deviations)
        services = document["services"]
    else:
        services = document
        if isinstance(services, list):
            deviations.add("the list of services is an array, not an object")
    if services is None and isinstance(document, dict):
        deviations.add("the list of services is null; read as empty")
        services = []
    if not isinstance(services, list):
        _raise_unexpected(response, "a list of services")
    parsed = tuple(_parse_service(response, service, deviations) for service in services)
    for service_id, count in Counter(service.id for service in parsed).items():
        if count > 1:
            deviations.add(f"several services have the id {excerpt(service_id)}")
    return parsed


def _parse_service(response: NodeResponse, service: object, deviations: _Deviations) -> BackingService:
    if not isinstance(service, dict) or not isinstance(service.get("id"), str | int | float):
        _raise_unexpected(response, "a list of services with ids")
    _note_unknown_fields(service, _SERVICE_FIELDS, "a service", deviations)
    return BackingService(
        id=_string_field(service, "id", "a service", deviations),
        name=_string_field(service, "name", "a service", deviations),
        description=_string_field(service, "description", "a service", deviations),
        status=_parse_status(service, deviations),
    )


def _parse_status(service: dict[str, Any], deviations: _Deviations) -> Status | None:
    if "status" not in service:
        deviations.add("a service has no status")
        return None
    value = service["status"]
    status = _STATUS_BY_NAME.get(value.lower()) if isinstance(value, str) else None
    if status is None:
        deviations.add(f"a service has an invalid status, which is ignored: {excerpt(_as_text(value))}")
    elif status.value != value:
        deviations.add(f"a service has the status {excerpt(value)}, read as {status.value}")
    return status


def _parse_health(response: NodeResponse, deviations: _Deviations) -> Health:
    try:
        health = Health(response.code)
    except ValueError:
        _raise_unexpected(response, "200, 206 or 503")
    if response.body:
        deviations.add("a health response has a body")
    return health


def _parse_service_health(response: NodeResponse, deviations: _Deviations, *, is_listed: bool) -> Health:
    """For an id that the list has named, a 404 is about the id, whatever its body says."""
    if response.code == 404 and (is_listed or not response.body or _error_message(response) not in _OTHER_404_MESSAGES):
        raise ServiceNotFoundError("the node has no service with this id", url=response.url, code=ReasonCode.NOT_FOUND)
    return _parse_health(response, deviations)


IDENTITY = Operation(path="/node", parser=_parse_identity)
HEALTH = Operation(path="/node/health", parser=_parse_health)
SERVICES = Operation(path="/node/services", parser=_parse_services)


def service_health_operation(service_id: str, *, is_listed: bool = False) -> Operation[Health]:
    require_str("service_id", service_id)
    if not service_id:
        raise InvalidValueError("service_id: must not be empty")
    if len(service_id) > MAX_ID_CHARS:
        raise InvalidValueError(f"service_id: must have at most {MAX_ID_CHARS} characters, not {len(service_id)}")
    try:
        segment = quote(service_id, safe="")
    except UnicodeEncodeError:
        raise InvalidValueError(f"service_id: {service_id!r} cannot be encoded in a URL") from None
    if not segment.strip("."):  # HTTP clients remove the segments "." and ".."
        segment = segment.replace(".", "%2E")
    parser = partial(_parse_service_health, is_listed=is_listed)
    return Operation(path=f"/node/services/{segment}/health", parser=parser)


# ---- parts of a response


def _parse_json(response: NodeResponse, deviations: _Deviations) -> object:
    if response.code != 200:
        _raise_unexpected(response, "200 with JSON")
    try:
        document = parse_strict_json(response.body)
    except ValueError as exc:
        _raise_unexpected(response, "200 with JSON", json_error=json_error_detail(response.body, exc))
    if (media_type := _media_type(response)) != "application/json":
        sent = (
            f"with the Content-Type {excerpt(media_type)}, not application/json"
            if media_type
            else "without a Content-Type"
        )
        deviations.add(f"JSON is sent {sent}")
    if encoding := _encoding(response):
        deviations.add(f"JSON is sent with the Content-Encoding {excerpt(encoding)}, which was not requested")
    if charset := _non_utf8_charset(response.body):
        deviations.add(f"JSON is {charset}")
    return document


def _non_utf8_charset(body: bytes) -> str:
    """As the json module detects it; empty for UTF-8."""
    match json.detect_encoding(body):
        case "utf-8":
            return ""
        case "utf-8-sig":
            return "UTF-8 with a byte order mark"
        case name:
            return f"{name[:6].upper()}, not UTF-8"


def _error_message(response: NodeResponse) -> str | None:
    try:
        document = parse_strict_json(response.body)
    except ValueError:
        return None
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else None


def _string_field(document: dict[str, Any], name: str, where: str, deviations: _Deviations) -> str:
    if name not in document:
        deviations.add(f"{where} has no {name}")
        return ""
    value = document[name]
    if isinstance(value, str):
        return value
    deviations.add(f"the {name} of {where} is not a string")
    return "" if value is None else _as_text(value)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _note_unknown_fields(document: dict[str, Any], known: tuple[str, ...], where: str, deviations: _Deviations) -> None:
    for name in document:
        if name not in known:
            deviations.add(f"{where} has an unknown field: {excerpt(name)}")


# ---- errors


def _raise_unexpected(response: NodeResponse, expected: str, json_error: str = "") -> NoReturn:
    message = _error_message(response)
    if response.code == 404 and message == VERSION_NOT_FOUND:
        if "?" not in response.url:
            raise UnexpectedResponseError(
                f'got "{VERSION_NOT_FOUND}", but no version was requested', url=response.url, code=ReasonCode.NOT_FOUND
            )
        raise VersionNotFoundError(
            "the node does not support this version of the interface", url=response.url, code=ReasonCode.NOT_SUPPORTED
        )
    if response.code == 500:
        detail = f": {excerpt(message)}" if message else ""
        raise NodeFailedError(f"the node answered 500{detail}", url=response.url, code=ReasonCode.SERVER_ERROR)
    got = f"{_describe_response(response)}{', invalid JSON: ' if json_error else ''}{json_error}"
    raise UnexpectedResponseError(
        f"expected {expected}, got {got}",
        url=response.url,
        hint=_status_hint(response),
        code=code_for_http_status(response.code),
    )


def _describe_response(response: NodeResponse) -> str:
    if location := response.headers.get("location"):
        return f"{response.code}, a redirect to {excerpt(redact_url(location))}"
    if not response.body:
        return f"{response.code} without a body"
    types = ", ".join(excerpt(name) for name in (_media_type(response), _encoding(response)) if name)
    return f"{response.code} with {f'{types}: ' if types else ''}{excerpt(response.body)}"


def _status_hint(response: NodeResponse) -> str:
    match response.code:
        case 400 if b"https" in response.body.lower() and response.url.startswith("http:"):
            return "if the server uses TLS, use https://"
        case 401 | 407:
            return "put a user name and a password into the URL"
        case 404:
            return "check the prefix"
        case _:
            return ""


def _media_type(response: NodeResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _encoding(response: NodeResponse) -> str:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding

"""What a node tells of itself, as values. Who it is and how it is are those of the core.

From an answer to what it means: a result, or an error that says what came instead. Pure; both clients read so.

What real implementations get wrong and still can be understood is understood, and told beside the result.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

from svcnode.client.address import redact_url, require_str
from svcnode.core.errors import (
    InvalidValueError,
    NodeFailedError,
    ServiceNotFoundError,
    UnexpectedResponseError,
    VersionNotFoundError,
)
from svcnode.core.model import VERSION_PATTERN, Health, Identity, Status
from svcnode.core.redaction import redacted
from svcnode.core.strict_json import json_error_detail, parse_strict_json
from svcnode.core.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class BackingService:
    """A service as a node lists it; `status` is None where the node tells none, or none that there is."""

    id: str
    name: str
    description: str
    status: Status | None


def unvalidated_identity(node_name: str, spec_version: str, node_version: str) -> Identity:
    """An identity in the words of another node, which may not keep to the forms that ours keeps to."""
    identity = object.__new__(Identity)
    object.__setattr__(identity, "node_name", node_name)
    object.__setattr__(identity, "spec_version", spec_version)
    object.__setattr__(identity, "node_version", node_version)
    return identity


T = TypeVar("T")

VERSION_NOT_FOUND = "API version not found"
# What a 404 may say that is not about the id; without an error body it comes from somebody else.
_OTHER_404_MESSAGES = (None, VERSION_NOT_FOUND, "Not found")
MIB = 1024 * 1024
MAX_ID_CHARS = 2048  # percent-encoded, most servers would refuse a longer one in any case
_STATUS_BY_NAME = {status.value.lower(): status for status in Status}
_IDENTITY_FIELDS = ("node_name", "spec_version", "node_version")
_SERVICE_FIELDS = ("id", "name", "description", "status")


class NodeResponse(NamedTuple):
    url: str  # fit to be shown
    code: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


class ParseResult(NamedTuple, Generic[T]):
    value: T
    deviations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[T]):
    """One of the four: where to ask, how much to listen to, how to read the answer."""

    path: str
    max_bytes: int
    parser: Callable[[NodeResponse, _Deviations], T]

    def parse(self, answer: NodeResponse) -> ParseResult[T]:
        notes = _Deviations()
        value = self.parser(answer, notes)
        return ParseResult(value, notes.texts)


@dataclass(slots=True)
class _Deviations:
    """What was deviations, each thing once, in order."""

    _texts: dict[str, None] = field(default_factory=dict)

    def add(self, sentence: str) -> None:
        self._texts[sentence] = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(map(redacted, self._texts))


# ---- the four


def _parse_identity(answer: NodeResponse, notes: _Deviations) -> Identity:
    document = _parse_json(answer, notes)
    if not isinstance(document, dict) or not document.keys() & set(_IDENTITY_FIELDS):
        _raise_unexpected(answer, "an identity")
    texts = [_string_field(document, name, "the identity", notes) for name in _IDENTITY_FIELDS]
    _note_unknown_fields(document, _IDENTITY_FIELDS, "the identity", notes)
    for name, version in zip(_IDENTITY_FIELDS[1:], texts[1:], strict=True):
        if version and not VERSION_PATTERN.fullmatch(version):
            notes.add(f'the {name} is not a "v" followed by dotted numbers: {excerpt(version)}')
    return unvalidated_identity(*texts)


def _parse_services(answer: NodeResponse, notes: _Deviations) -> tuple[BackingService, ...]:
    document = _parse_json(answer, notes)
    if isinstance(document, dict) and "services" in document:
        _note_unknown_fields(document, ("services",), "the list of services", notes)
        services = document["services"]
    else:
        services = document
        if isinstance(services, list):
            notes.add("the list of services is a bare array")
    if services is None and isinstance(document, dict):
        notes.add("the list of services is null, read as empty")
        services = []
    if not isinstance(services, list):
        _raise_unexpected(answer, "a list of services")
    read = tuple(_parse_service(answer, service, notes) for service in services)
    for service_id, count in Counter(service.id for service in read).items():
        if count > 1:
            notes.add(f"more than one service has the id {excerpt(service_id)}")
    return read


def _parse_service(answer: NodeResponse, service: object, notes: _Deviations) -> BackingService:
    if not isinstance(service, dict) or not isinstance(service.get("id"), str | int | float):
        _raise_unexpected(answer, "a list of services, each with an id")
    _note_unknown_fields(service, _SERVICE_FIELDS, "a service", notes)
    return BackingService(
        id=_string_field(service, "id", "a service", notes),
        name=_string_field(service, "name", "a service", notes),
        description=_string_field(service, "description", "a service", notes),
        status=_parse_status(service, notes),
    )


def _parse_status(service: dict[str, Any], notes: _Deviations) -> Status | None:
    if "status" not in service:
        notes.add("a service has no status")
        return None
    told = service["status"]
    status = _STATUS_BY_NAME.get(told.lower()) if isinstance(told, str) else None
    if status is None:
        notes.add(f"a service has a status that there is not, read as none: {excerpt(_as_text(told))}")
    elif status.value != told:
        notes.add(f"a service has the status {excerpt(told)}, read as {status.value}")
    return status


def _parse_health(answer: NodeResponse, notes: _Deviations) -> Health:
    try:
        health = Health(answer.code)
    except ValueError:
        _raise_unexpected(answer, "a health, which is 200, 206 or 503")
    if answer.body:
        notes.add("a health answer has a body")
    return health


def _parse_service_health(answer: NodeResponse, notes: _Deviations) -> Health:
    if answer.code == 404 and (not answer.body or _error_message(answer) not in _OTHER_404_MESSAGES):
        raise ServiceNotFoundError(f"no service has this id there: {answer.url}")
    return _parse_health(answer, notes)


IDENTITY = Operation(path="/node", max_bytes=MIB, parser=_parse_identity)
HEALTH = Operation(path="/node/health", max_bytes=MIB, parser=_parse_health)
SERVICES = Operation(path="/node/services", max_bytes=64 * MIB, parser=_parse_services)


def service_health_operation(service_id: str) -> Operation[Health]:
    require_str("a service id", service_id)
    if not service_id:
        raise InvalidValueError("a service id must not be empty")
    if len(service_id) > MAX_ID_CHARS:
        raise InvalidValueError(f"a service id of {len(service_id)} characters is too long to be asked for")
    try:
        segment = quote(service_id, safe="")
    except UnicodeEncodeError:
        raise InvalidValueError(f"{service_id!r} is no service id: it cannot stand in a URL") from None
    if not segment.strip("."):  # dots alone would name another place, not a service
        segment = segment.replace(".", "%2E")
    return Operation(path=f"/node/services/{segment}/health", max_bytes=MIB, parser=_parse_service_health)


# ---- their parts


def _parse_json(answer: NodeResponse, notes: _Deviations) -> object:
    if answer.code != 200:
        _raise_unexpected(answer, "a 200 with JSON")
    try:
        document = parse_strict_json(answer.body)
    except ValueError as exc:
        _raise_unexpected(answer, "a 200 with JSON", json_error=json_error_detail(answer.body, exc))
    if (kind := _media_type(answer)) != "application/json":
        notes.add(f"JSON comes as {excerpt(kind) or 'nothing'} instead of application/json")
    if encoding := _encoding(answer):
        notes.add(f"JSON comes encoded as {excerpt(encoding)}, which was not asked for")
    if charset := _non_utf8_charset(answer.body):
        notes.add(f"JSON comes {charset}")
    return document


def _non_utf8_charset(body: bytes) -> str:
    """Than UTF-8, as the module that reads JSON finds out as well."""
    match json.detect_encoding(body):
        case "utf-8":
            return ""
        case "utf-8-sig":
            return "with a byte order mark"
        case name:
            return f"in {name[:6].upper()} instead of UTF-8"


def _error_message(answer: NodeResponse) -> str | None:
    try:
        document = parse_strict_json(answer.body)
    except ValueError:
        return None
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else None


def _string_field(document: dict[str, Any], name: str, where: str, notes: _Deviations) -> str:
    if name not in document:
        notes.add(f"{where} has no {name}")
        return ""
    value = document[name]
    if isinstance(value, str):
        return value
    notes.add(f"the {name} of {where} is not a string")
    return "" if value is None else _as_text(value)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _note_unknown_fields(document: dict[str, Any], known: tuple[str, ...], where: str, notes: _Deviations) -> None:
    for name in document:
        if name not in known:
            notes.add(f"{where} has a field that is not of the interface: {excerpt(name)}")


# ---- what came instead


def _raise_unexpected(answer: NodeResponse, expected: str, json_error: str = "") -> NoReturn:
    message = _error_message(answer)
    if answer.code == 404 and message == VERSION_NOT_FOUND:
        if "?" not in answer.url:
            raise UnexpectedResponseError(f"got {VERSION_NOT_FOUND}, though none was asked for, at {answer.url}")
        raise VersionNotFoundError(f"the node does not have this version of the interface: {answer.url}")
    if answer.code == 500:
        said = f": {excerpt(message)}" if message else ""
        raise NodeFailedError(f"the node says that it failed inside (500){said} at {answer.url}")
    got = f"{_describe_response(answer)}{', which is no JSON: ' if json_error else ''}{json_error}"
    raise UnexpectedResponseError(f"expected {expected}, got {got} at {answer.url}{_status_hint(answer)}")


def _describe_response(answer: NodeResponse) -> str:
    if location := answer.headers.get("location"):
        return f"{answer.code}, a redirect to {excerpt(redact_url(location))}"
    if not answer.body:
        return f"{answer.code} without a body"
    kinds = ", ".join(excerpt(kind) for kind in (_media_type(answer), _encoding(answer)) if kind)
    return f"{answer.code} with {f'{kinds}: ' if kinds else ''}{excerpt(answer.body)}"


def _status_hint(answer: NodeResponse) -> str:
    match answer.code:
        case 400 if b"https" in answer.body.lower() and answer.url.startswith("http:"):
            return "; is it https://?"
        case 401 | 407:
            return "; a user name and a password may stand in the URL"
        case 404:
            return "; is the prefix right?"
        case _:
            return ""


def _media_type(answer: NodeResponse) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _encoding(answer: NodeResponse) -> str:
    encoding = answer.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding

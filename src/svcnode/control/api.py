"""The HTTP API of the control socket: JSON documents at paths, changed with PUT and DELETE.

Every request is idempotent. The response to a change is sent after the change is on the disk. `ETag` is the revision of
a document; with `If-Match`, a change is made only at that revision. An error is `{"message": …}`, with the JSON pointer
(RFC 6901) to the field if the body is wrong. openapi.json describes the API.
"""

from __future__ import annotations

import logging
import os
import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from svcnode.api.spec import Response, make_response, parse_query
from svcnode.control.changes import (
    ACK,
    DRAIN,
    MAINTENANCE,
    PLANNED_MAINTENANCE,
    ChangeRequest,
    Precondition,
    ack_path,
    issue_path,
    maintenance_path,
    planned_maintenance_path,
    service_path,
    status_path,
)
from svcnode.control.document_kind import MAX_PERSON_CHARS, author_of
from svcnode.control.service_documents import OUTCOMES, service_not_found
from svcnode.core.codes import known_code
from svcnode.core.errors import (
    MAX_SHOWN_ERRORS,
    ControlError,
    InvalidValueError,
    RegistryError,
    SvcnodeError,
    UnknownServiceError,
)
from svcnode.core.maintenance import MAX_MAINTENANCE_DAYS, parse_time_s
from svcnode.core.model import ChangeKind, validate_multiline, validate_service_id, validate_single_line, validate_text
from svcnode.core.strict_json import compact_json, parse_strict_json
from svcnode.core.text import MAX_REASON_CHARS, TYPE_NAMES, safe_reason, suggestion, type_name
from svcnode.core.units import iso_time, parse_duration_s
from svcnode.node.feed import changes_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from svcnode.api.spec import Request
    from svcnode.control.all_replicas import AllReplicas
    from svcnode.control.resources import Resources
    from svcnode.control.store import Document
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.work import WorkClient

MAX_NAME_CHARS = 100  # of an issue or a note
MAX_NOTE_NAMES = 1000  # that are known to be repeated
log = logging.getLogger("svcnode.control")

_ETAG = re.compile(rb'"([0-9]{1,18})"')
_WORSE_STATUS = re.compile(rb"""["']status["']\s*:\s*["'](initializing|down)["']""", re.IGNORECASE)


class ControlApi:
    """`reload` reads the configuration again and returns what has changed. `work` is None for a node on one machine."""

    def __init__(
        self,
        node: NodeState,
        resources: Resources,
        reload: Callable[[], Awaitable[str]],
        work: WorkClient | None = None,
        *,
        runs_with: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`runs_with` says which configuration the node runs with: its fields are those of the document of the node."""
        self._node = node
        self._runs_with = runs_with
        self.resources = resources
        self._reload = reload
        self._work = work
        self._notes: dict[str, dict[str, str]] = {}  # the last ones, by name

    async def handle(self, request: Request) -> Response:
        try:
            methods, name = _match(request.path)
            handler = methods.get("GET" if request.method == "HEAD" else request.method)
            if handler is None:
                allowed = ", ".join(sorted({*methods, *({"HEAD"} if "GET" in methods else ())}))
                return _error(ControlError(405, f"Method not allowed; use {allowed}"), ("Allow", allowed))
            return await handler(self, request, name)
        except ControlError as exc:
            return _error(exc)
        except RegistryError as exc:
            text = "nothing changes on any replica, unless the registry has received the request"
            hint = "repeat the request, or change each replica by itself"
            return _error(ControlError(503, f"the registry: {exc}; {text}; {hint}"))

    # ---- the node

    async def get_node(self, request: Request, _: str) -> Response:
        condition = self._node.condition
        return _json(
            200,
            {
                "node_name": self._node.identity.node_name,
                "node_version": self._node.identity.node_version,
                "process_id": os.getpid(),
                **self._runs_with(),
                "health": self._node.health.value,
                "draining": condition.draining,
                "issues": list(condition.issues),
                "maintenance": self.resources.maintenance(),
                "planned_maintenance": self.resources.planned_maintenance(),
                "acknowledged": self.resources.acknowledged(),
                "services": len(self._node),
                "revision": self.resources.revision,
            },
        )

    async def get_openapi(self, request: Request, _: str) -> Response:
        return make_response(200, _openapi())

    async def put_reload(self, request: Request, _: str) -> Response:
        author = author_of({"user": request.user, **_person(request)})
        log.info("reload requested by %s", author, extra={"event": "reload_requested", "by": author})
        try:
            return _json(200, {"message": await self._reload()})
        except SvcnodeError as exc:
            raise ControlError(422, str(exc), others=exc.texts[1:MAX_SHOWN_ERRORS]) from exc

    async def put_note(self, request: Request, name: str) -> Response:
        """A name that was used lately is the same note, sent again: it is not written down twice."""
        _check_name("the name of a note", name)
        value = _note(request)
        is_new = name not in self._notes
        if is_new:
            author = author_of({"user": request.user, **value, **_person(request)})
            self._announce(value, author)
            self._notes[name] = {"at": iso_time(self._node.wall_time_s(self._node.now_s())), **value}
            if len(self._notes) > MAX_NOTE_NAMES:
                del self._notes[next(iter(self._notes))]
        return _json(201 if is_new else 200, self._notes[name])

    def _announce(self, note: Mapping[str, str], author: str) -> None:
        try:
            with changes_by(author):
                self._node.announce(ChangeKind.NOTE, note["text"], note.get("service"))
        except UnknownServiceError:
            raise service_not_found(note["service"]) from None

    # ---- services

    async def get_services(self, request: Request, _: str) -> Response:
        return _json(200, {"services": self.resources.services(), "revision": self.resources.revision})

    async def get_service(self, request: Request, name: str) -> Response:
        service = self.resources.service(name)
        if service is None:
            raise service_not_found(name)
        return _service(200, service)

    async def put_service(self, request: Request, name: str) -> Response:
        options = _object(request)
        _check_service_id(name)
        change = _change(request, service_path(name), options)
        applied = await self.resources.change(change)
        service = self.resources.service(name, applied.document)
        if service is None:  # a later request has deleted it already
            raise service_not_found(name)
        return _service(201 if applied.is_new else 200, service)

    async def delete_service(self, request: Request, name: str) -> Response:
        return await self.delete_document(request, service_path(name))

    async def get_status(self, request: Request, name: str) -> Response:
        return self.get_document(status_path(name))

    async def put_status(self, request: Request, name: str) -> Response:
        _check_service_id(name)
        path, report = status_path(name), _report(request)
        # Most reports are those of the service itself: only a person is named in the status.
        change = _signed(request, path, report) if _person(request) else _change(request, path, report)
        await self.resources.change(change)
        return make_response(204)

    async def get_issues(self, request: Request, _: str) -> Response:
        fields = self.resources.public_fields
        issues = [{"name": name, **fields(document)} for name, document in self.resources.issues().items()]
        return _json(200, {"issues": issues})

    # ---- documents that are read, set and deleted as they are

    def get_document(self, path: str) -> Response:
        document = self.resources.get(path)
        if document is None:
            raise ControlError(404, "Not found")
        return self._document(200, document)

    async def put_document(self, change: ChangeRequest) -> Response:
        applied = await self.resources.change(change)
        assert applied.document is not None
        return self._document(201 if applied.is_new else 200, applied.document)

    async def delete_document(self, request: Request, path: str) -> Response:
        await self.resources.change(_change(request, path, None))
        return make_response(204)

    def all_replicas(self, request: Request) -> AllReplicas:
        """What is asked of all replicas."""
        if self._work is None:
            text = "this node runs on one machine only: without [sharing], it has no other replicas"
            raise ControlError(409, text)
        if request.headers.get(b"if-match") or request.headers.get(b"if-none-match"):
            raise ControlError(400, "If-Match and If-None-Match cannot be used with all_replicas")
        from svcnode.control.all_replicas import AllReplicas

        return AllReplicas(self._work)

    async def put_for_all(self, request: Request, path: str, value: dict[str, Any]) -> Response:
        change = _signed(request, path, value)
        assert change.value is not None
        fields = await self.all_replicas(request).put(path, change.value)
        _log_for_all(path, "set", author_of(change.value))
        return _json(200, fields)

    async def get_for_all(self, request: Request, path: str) -> Response:
        fields = await self.all_replicas(request).get(path)
        if fields is None:
            raise ControlError(404, "Not found")
        return _json(200, fields)

    async def delete_for_all(self, request: Request, path: str) -> Response:
        await self.all_replicas(request).delete(path)
        _log_for_all(path, "ended", _change(request, path, None).author)
        return make_response(204)

    def _document(self, code: int, document: Document) -> Response:
        return _json(code, self.resources.public_fields(document), ("ETag", f'"{document.revision}"'))


if TYPE_CHECKING:
    _Handler = Callable[[ControlApi, Request, str], Awaitable[Response]]


def _document_routes(
    path_of: Callable[[str], str],
    value_of: Callable[[Request], dict[str, Any]],
    check_name: Callable[[str], None] = lambda _: None,
    *,
    may_be_for_all: bool = False,
) -> dict[str, _Handler]:
    """Of documents that say who has set them, by the {name} in their path. A new one has a name that is checked.

    `may_be_for_all`: with `?all_replicas=true`, it is the one of all replicas.
    """

    def is_for_all(request: Request) -> bool:
        return may_be_for_all and _is_for_all(request)

    async def get(api: ControlApi, request: Request, name: str) -> Response:
        if is_for_all(request):
            return await api.get_for_all(request, path_of(name))
        return api.get_document(path_of(name))

    async def put(api: ControlApi, request: Request, name: str) -> Response:
        check_name(name)
        if is_for_all(request):
            return await api.put_for_all(request, path_of(name), value_of(request))
        return await api.put_document(_signed(request, path_of(name), value_of(request)))

    async def delete(api: ControlApi, request: Request, name: str) -> Response:
        if is_for_all(request):
            return await api.delete_for_all(request, path_of(name))
        return await api.delete_document(request, path_of(name))

    return {"GET": get, "PUT": put, "DELETE": delete}


_STATUS = {"status": str, "reason": str, "code": str}
_MAINTENANCE = {"duration": str, "by": str, "reason": str}
_PLANNED = {"from": str, "until": str, "by": str, "reason": str}
_ACK = {"until": str, "by": str, "reason": str}
_NOTE = {"text": str, "service": str, "by": str}


def _match(path: bytes) -> tuple[Mapping[str, _Handler], str]:
    """The methods of a path, and its decoded {name}."""
    segments = path.decode("latin-1").split("/")
    for route, pattern in _SEGMENTS.items():
        if len(pattern) == len(segments) and all(
            expected in (segment, "{name}") for expected, segment in zip(pattern, segments, strict=True)
        ):
            return ROUTES[route], _decoded(segments[3]) if "{name}" in pattern else ""
    raise ControlError(404, "Not found")


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise ControlError(400, "the path is not UTF-8") from None


def _check_service_id(name: str) -> None:
    _check(validate_service_id, name)


def _check_name(what: str, name: str) -> None:
    if len(name) > MAX_NAME_CHARS:
        raise ControlError(400, f"{what} must have at most {MAX_NAME_CHARS} characters")
    _check(validate_text, what, name)


_check_issue_name = partial(_check_name, "the name of an issue")


def _check(validate: Callable[..., None], *values: str) -> None:
    try:
        validate(*values)
    except InvalidValueError as exc:
        raise ControlError(400, str(exc)) from exc


def _change(request: Request, path: str, value: dict[str, Any] | None) -> ChangeRequest:
    """One whose document does not say who has set it."""
    author = author_of({"user": request.user, **_person(request)})
    reason = safe_reason(_query_text(request, "reason"))
    return ChangeRequest(path, value, _precondition(request), author=f"{author}: {reason}" if reason else author)


def _signed(request: Request, path: str, value: dict[str, Any]) -> ChangeRequest:
    """One whose document says who has set it."""
    user = {"user": request.user} if request.user else {}
    return ChangeRequest(path, {**value, **user, **_person(request)}, _precondition(request))


def _person(request: Request) -> dict[str, str]:
    """Who has asked for the change, if the request names somebody."""
    name = safe_reason(_query_text(request, "by"))
    return {"by": name} if name else {}


def _is_for_all(request: Request) -> bool:
    values = parse_query(request.query).get("all_replicas", []) if request.query else []
    if values not in ([], ["true"], ["false"]):
        raise ControlError(400, "all_replicas must be true or false")
    return values == ["true"]


def _log_for_all(path: str, verb: str, author: str) -> None:
    """Who has asked here. The change itself is logged by every replica when it reads it."""
    text = "%s of all replicas: %s by %s"
    log.info(text, path, verb, author, extra={"event": "all_replicas_asked", "path": path, "by": author})


def _query_text(request: Request, name: str) -> str:
    return parse_query(request.query).get(name, [""])[0] if request.query else ""


def _precondition(request: Request) -> Precondition:
    match, none_match = request.headers.get(b"if-match"), request.headers.get(b"if-none-match")
    if none_match not in (None, b"*"):
        raise ControlError(400, "If-None-Match must be *")
    if match in (None, b"*"):
        return Precondition(must_exist=match == b"*", must_not_exist=none_match == b"*")
    assert match is not None
    revision = _ETAG.fullmatch(match)
    if revision is None:
        raise ControlError(400, 'If-Match must be * or one ETag, such as "42"')
    return Precondition(revision=int(revision[1]), must_not_exist=none_match == b"*")


def _object(request: Request) -> dict[str, Any]:
    """The body, which is a JSON object. An empty body is an empty object."""
    if not request.body:
        return {}
    try:
        value = parse_strict_json(request.body)
        compact_json(value).encode()
    except UnicodeEncodeError as exc:
        raise ControlError(400, "the body has a lone surrogate, which is not a character", pointer="") from exc
    except ValueError as exc:
        raise ControlError(400, f"the body is not JSON: {exc}", pointer="") from exc
    if not isinstance(value, dict):
        raise ControlError(400, f"the body must be a JSON object, not {type_name(value)}", pointer="")
    return value


# Bad news is never refused for its form: the better state would stay, and it is not true. `Resources` makes a text of
# any reason.


def _bad_news(request: Request) -> dict[str, Any] | None:
    """The body, if it is a JSON object, with any texts."""
    try:
        value = parse_strict_json(request.body or b"{}", any_text=True)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _report(request: Request) -> dict[str, Any]:
    worse = _bad_news(request)
    if worse is None and (status := _WORSE_STATUS.search(request.body)):
        return {"status": status[1].decode().lower(), "reason": request.body}  # not quite JSON, but clear enough
    if worse is not None and (status_text := str(worse.get("status")).lower()) in ("initializing", "down"):
        value = {"status": status_text, "reason": worse.get("reason"), "code": known_code(worse.get("code"))}
        return {key: field for key, field in value.items() if worse.get(key) is not None}
    fields = _fields(request, _STATUS)
    if fields.get("status") not in OUTCOMES:
        listed = ", ".join(f'"{status}"' for status in OUTCOMES)
        raise ControlError(400, f"status must be one of {listed}", pointer="/status")
    if "code" in fields and known_code(fields["code"]) != fields["code"]:
        raise ControlError(400, "code must be a reason code, or begin with x_", pointer="/code")
    return fields


def _reason(request: Request) -> dict[str, Any]:
    """Of an issue or a drain. A body that is no JSON object is the reason itself."""
    fields = _bad_news(request)
    if fields is None:
        return {"reason": request.body}
    return {key: fields[key] for key in ("reason", "by") if fields.get(key) is not None}


def _fields(request: Request, types: Mapping[str, type]) -> dict[str, Any]:
    fields = _object(request)
    for key, value in fields.items():
        pointer = json_pointer(key)
        if key not in types:
            raise ControlError(400, f'unknown field "{key}"{suggestion(key, types)}', pointer=pointer)
        if type(value) is not types[key]:
            raise ControlError(400, f"{key} must be {TYPE_NAMES[types[key]]}, not {type_name(value)}", pointer=pointer)
    reason = fields.get("reason", "")
    if len(reason) > MAX_REASON_CHARS:
        raise ControlError(400, f"reason must have at most {MAX_REASON_CHARS} characters", pointer="/reason")
    try:
        validate_multiline("reason", reason)
    except InvalidValueError as exc:
        raise ControlError(400, str(exc), pointer="/reason") from exc
    return fields


def _maintenance(request: Request) -> dict[str, Any]:
    fields = _fields(request, _MAINTENANCE)
    if "duration" not in fields:
        raise ControlError(400, 'duration is required, such as "2h"', pointer="/duration")
    try:
        duration_s = parse_duration_s(fields["duration"])
    except InvalidValueError as exc:
        raise ControlError(400, str(exc), pointer="/duration") from exc
    if not 0 < duration_s <= MAX_MAINTENANCE_DAYS * 86_400:
        text = f"duration must be more than 0 and at most {MAX_MAINTENANCE_DAYS} days"
        raise ControlError(400, text, pointer="/duration")
    _check_by(fields)
    return fields


def _planned_maintenance(request: Request) -> dict[str, Any]:
    fields = _fields(request, _PLANNED)
    for key in ("from", "until"):
        if key not in fields:
            raise ControlError(400, f'{key} is required, such as "2026-12-01T22:00:00Z"', pointer=f"/{key}")
        _check_time(fields, key)
    _check_by(fields)
    return fields


def _ack(request: Request) -> dict[str, Any]:
    fields = _fields(request, _ACK)
    if "until" in fields:
        _check_time(fields, "until")
    _check_by(fields)
    return fields


def _note(request: Request) -> dict[str, str]:
    fields = _fields(request, _NOTE)
    text = safe_reason(fields.get("text", "").strip())
    if not text:
        raise ControlError(400, 'text is required, such as "deployed v1.4.3"', pointer="/text")
    _check_by(fields)
    return {**fields, "text": text}


def _check_time(fields: Mapping[str, Any], key: str) -> None:
    try:
        parse_time_s(fields[key])
    except InvalidValueError as exc:
        raise ControlError(400, f"{key} {exc}", pointer=f"/{key}") from exc


def _check_by(fields: Mapping[str, Any]) -> None:
    by = fields.get("by", "")
    if len(by) > MAX_PERSON_CHARS:
        raise ControlError(400, f"by must have at most {MAX_PERSON_CHARS} characters", pointer="/by")
    try:
        validate_single_line("by", by)
    except InvalidValueError as exc:
        raise ControlError(400, str(exc), pointer="/by") from exc


def json_pointer(*path: str | int) -> str:
    """RFC 6901."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


# ---- paths

ROUTES: dict[str, dict[str, _Handler]] = {
    "/v1": {"GET": ControlApi.get_node},
    "/v1/ack": _document_routes(lambda _: ACK, _ack),
    "/v1/drain": _document_routes(lambda _: DRAIN, _reason, may_be_for_all=True),
    "/v1/issues": {"GET": ControlApi.get_issues},
    "/v1/issues/{name}": _document_routes(issue_path, _reason, _check_issue_name),
    "/v1/maintenance": _document_routes(lambda _: MAINTENANCE, _maintenance, may_be_for_all=True),
    "/v1/notes/{name}": {"PUT": ControlApi.put_note},
    "/v1/openapi.json": {"GET": ControlApi.get_openapi},
    "/v1/planned_maintenance": _document_routes(
        lambda _: PLANNED_MAINTENANCE, _planned_maintenance, may_be_for_all=True
    ),
    "/v1/reload": {"PUT": ControlApi.put_reload},
    "/v1/services": {"GET": ControlApi.get_services},
    "/v1/services/{name}": {
        "GET": ControlApi.get_service,
        "PUT": ControlApi.put_service,
        "DELETE": ControlApi.delete_service,
    },
    "/v1/services/{name}/ack": _document_routes(ack_path, _ack, _check_service_id),
    "/v1/services/{name}/maintenance": _document_routes(
        maintenance_path, _maintenance, _check_service_id, may_be_for_all=True
    ),
    "/v1/services/{name}/planned_maintenance": _document_routes(
        planned_maintenance_path, _planned_maintenance, _check_service_id, may_be_for_all=True
    ),
    "/v1/services/{name}/status": {"GET": ControlApi.get_status, "PUT": ControlApi.put_status},
}
_SEGMENTS = {path: path.split("/") for path in ROUTES}


# ---- responses


@cache
def _openapi() -> bytes:
    from importlib import resources

    return resources.files("svcnode.control").joinpath("openapi.json").read_bytes()


def _json(code: int, value: Any, *headers: tuple[str, str]) -> Response:  # noqa: ANN401  any JSON value
    return make_response(code, compact_json(value).encode(), *headers)


def _service(code: int, service: Mapping[str, Any]) -> Response:
    return _json(code, service, *([("ETag", f'"{service["revision"]}"')] if "revision" in service else []))


def _error(exc: ControlError, *headers: tuple[str, str]) -> Response:
    fields: dict[str, Any] = {"message": str(exc)}
    if exc.pointer is not None:
        fields["pointer"] = exc.pointer
    if exc.others:
        fields["others"] = exc.others
    return _json(exc.status, fields, *headers)

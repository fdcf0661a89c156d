"""The JSON of etcd's gateway: its paths, values, requests and responses, its errors. No I/O.

The client of the registry and the probe of a member use it, each with an HTTP client of its own. Whole numbers are
strings, keys and values are Base64, and fields that are 0, false or empty are missing. An error has one of these forms:

{"error": "text", "message": "text", "code": 16}                   etcd 3.4 and 3.5
{"error": {"grpc_code": 16, "http_code": 401, "message": "text"}}  in a stream
{"code": 16, "message": "text", "details": []}                     etcd 3.6
{"error": {"code": 16, "message": "text", "details": []}}          in a stream
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from svcnode.core.errors import (
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryUnreachableError,
)
from svcnode.core.text import MAX_REASON_CHARS, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

RANGE_PATH, PUT_PATH, DELETE_PATH, TXN_PATH = "/v3/kv/range", "/v3/kv/put", "/v3/kv/deleterange", "/v3/kv/txn"
GRANT_PATH, KEEP_ALIVE_PATH, REVOKE_PATH = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
LOGIN_PATH, STATUS_PATH, WATCH_PATH = "/v3/auth/authenticate", "/v3/maintenance/status", "/v3/watch"


# No client of ours writes a larger value, and a registry full of those of others must fit into memory.
MAX_VALUE_BYTES = 1_000_000
OVERSIZED = b"larger than MAX_VALUE_BYTES"  # instead of such a value


class Header(NamedTuple):
    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


class KeyValue(NamedTuple):
    key: str  # bytes that are not UTF-8 are surrogates
    value: bytes  # or `OVERSIZED`
    create_revision: int
    mod_revision: int
    lease_id: int  # 0 without a lease


class Event(NamedTuple):
    key: str
    mod_revision: int
    put: KeyValue | None  # None if the key was deleted


class RangeResult(NamedTuple):
    header: Header  # of the first page; all pages are of its revision
    kvs: list[KeyValue]


class TxnResult(NamedTuple):
    header: Header
    succeeded: bool  # False if a compare failed; then nothing was written


class Lease(NamedTuple):
    id: int
    ttl_s: int  # etcd may grant a longer one than requested


class WatchBatch(NamedTuple):
    revision: int  # of the last event; everything up to it has been received
    events: list[Event]  # empty for a progress notification
    is_fragment: bool = False  # more events of the last revision may follow


class MemberStatus(NamedTuple):
    header: Header
    version: str
    db_bytes: int
    leader_id: int  # 0 without a leader
    errors: list[str]  # alarms among them
    is_learner: bool  # it does not vote yet


class Put(NamedTuple):
    key: str
    value: bytes
    lease_id: int = 0

    def encode(self) -> dict[str, Any]:
        if len(self.value) > MAX_VALUE_BYTES:
            raise RegistryError(f"{self.key}: the value has {len(self.value):,} bytes; at most {MAX_VALUE_BYTES:,}")
        return {"key": encode_key(self.key), "value": _base64(self.value), "lease": str(self.lease_id)}


class Delete(NamedTuple):
    key: str
    is_prefix: bool = False

    def encode(self) -> dict[str, Any]:
        return encode_prefix(self.key) if self.is_prefix else {"key": encode_key(self.key)}


class Range(NamedTuple):
    """All keys with the prefix; without their values if `keys_only`."""

    prefix: str
    keys_only: bool = False

    def encode(self) -> dict[str, Any]:
        return {**encode_prefix(self.prefix), "keys_only": self.keys_only}


class Compare(NamedTuple):
    """A condition of a transaction: the key was last written at this revision, or does not exist if it is 0."""

    key: str
    mod_revision: int

    def encode(self) -> dict[str, Any]:
        fields = {"target": "MOD", "result": "EQUAL", "mod_revision": str(self.mod_revision)}
        return {"key": encode_key(self.key), **fields}


class RangePage(NamedTuple):
    header: Header
    kvs: list[KeyValue]
    has_more: bool


class TokenError(RegistryLoginError):
    """The token is missing, has expired or was withdrawn; a member that has restarted does not know it."""


class LoginDisabledError(RegistryLoginError):
    pass


class GatewayError(NamedTuple):
    text: str  # empty if the response has none
    status: int | None  # of gRPC; None if the response has none


def parse_gateway_error(fields: Mapping[str, Any]) -> GatewayError | None:
    """None if the object is not an error. Fields of another type than expected are as if they were missing."""
    if not fields.keys() & {"error", "message", "code"}:
        return None
    error = fields.get("error", fields)
    if isinstance(error, dict):
        text, status = error.get("message"), error.get("grpc_code", error.get("code"))
    else:
        text, status = error, fields.get("code")
    return GatewayError(text if isinstance(text, str) else "", status if isinstance(status, int) else None)


def error_message(error: object) -> str:
    """The text of an alarm or of ill health: some versions of etcd send a string, others an object."""
    match error:
        case str(text) | {"message": str(text)}:
            return text
        case _:
            return ""


# By a part of the message of etcd: some are sent without a gRPC status, such as that of a watch.
_ERRORS: dict[str, type[RegistryError]] = {
    "invalid auth token": TokenError,
    "user name is empty": TokenError,
    "revision of auth store is old": TokenError,
    "revision in header is old": TokenError,
    "authentication is not enabled": LoginDisabledError,
    "authentication failed": RegistryLoginError,
    "permission denied": RegistryPermissionError,
    "database space exceeded": RegistryFullError,
    "has been compacted": RegistryCompactedError,
    "requested lease not found": RegistryLeaseLostError,
    "no leader": RegistryUnreachableError,
    "timed out": RegistryUnreachableError,
    "context deadline exceeded": RegistryUnreachableError,
    "too many requests": RegistryUnreachableError,
}
# By a gRPC status, for other messages: UNAVAILABLE, UNAUTHENTICATED.
_STATUS_ERRORS: dict[int | None, type[RegistryError]] = {14: RegistryUnreachableError, 16: TokenError}


def parse_message(content: str | bytes, endpoint: object, parse: Callable[[dict[str, Any]], T]) -> T:
    """A response, or a message of a stream. Raises the error that it says."""
    try:
        fields = json.loads(content)
        _raise_error(fields, endpoint)
        return parse(fields)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise RegistryUnreachableError(f"{endpoint}: not a response of etcd 3.4 or later: {excerpt(content)}") from exc


def _raise_error(fields: dict[str, Any], endpoint: object) -> None:
    match fields:
        case {"result": {"compact_revision": str(revision)}}:
            text = f"the requested revision has been compacted: the oldest is {revision}"
            error: GatewayError | None = GatewayError(text, None)
        case {"result": {"canceled": True, **result}}:
            error = GatewayError(str(result.get("cancel_reason", "the watch was canceled")), None)
        case _:
            error = parse_gateway_error(fields)
    if error is not None:
        default = _STATUS_ERRORS.get(error.status, RegistryError)
        error_type = next((found for part, found in _ERRORS.items() if part in error.text), default)
        text = error.text or f"an error without a text, gRPC status {error.status}"
        raise error_type(f"{endpoint}: {excerpt(text, MAX_REASON_CHARS)}")


def parse_batch(fields: dict[str, Any]) -> WatchBatch:
    result = fields["result"]
    events = [_parse_event(event) for event in result.get("events", ())]
    # While a watch catches up, the revision in the header is that of the member, which is ahead of the events.
    revision = events[-1].mod_revision if events else parse_header(result).revision
    return WatchBatch(revision, events, result.get("fragment", False))


def whole_revisions(before: list[Event], batch: WatchBatch) -> tuple[WatchBatch | None, list[Event]]:
    """The events of revisions that are complete, with those `before` that were not; and those that are not yet.

    etcd divides what is too large for one message, also between two events of one transaction.
    """
    events = [*before, *batch.events]
    if not batch.is_fragment:
        return WatchBatch(batch.revision, events), []
    whole = [event for event in events if event.mod_revision < batch.revision]
    rest = events[len(whole) :]
    return (WatchBatch(whole[-1].mod_revision, whole) if whole else None), rest


def _parse_event(event: dict[str, Any]) -> Event:
    found = _parse_key_value(event["kv"])
    return Event(found.key, found.mod_revision, None if event.get("type") == "DELETE" else found)


def parse_page(fields: dict[str, Any]) -> RangePage:
    return RangePage(
        parse_header(fields), [_parse_key_value(kv) for kv in fields.get("kvs", ())], fields.get("more", False)
    )


def parse_ranges(fields: dict[str, Any]) -> list[list[KeyValue]]:
    """Of a transaction that only reads."""
    results = [response.get("response_range", {}) for response in fields.get("responses", ())]
    return [[_parse_key_value(kv) for kv in result.get("kvs", ())] for result in results]


def _parse_key_value(fields: dict[str, Any]) -> KeyValue:
    return KeyValue(
        key=_decode_key(fields["key"]),
        value=_decode_value(fields.get("value", "")),
        create_revision=int(fields.get("create_revision", 0)),
        mod_revision=int(fields["mod_revision"]),
        lease_id=int(fields.get("lease", 0)),
    )


def _decode_value(value: str) -> bytes:
    return OVERSIZED if len(value) * 3 // 4 > MAX_VALUE_BYTES else base64.b64decode(value)


def parse_status(fields: dict[str, Any]) -> MemberStatus:
    errors = fields.get("errors")
    return MemberStatus(
        header=parse_header(fields),
        version=str(fields.get("version", "")),
        db_bytes=int(fields.get("dbSize", 0)),
        leader_id=int(fields.get("leader", 0)),
        errors=list(filter(None, map(error_message, errors))) if isinstance(errors, list) else [],
        is_learner=bool(fields.get("isLearner")),
    )


def parse_header(fields: dict[str, Any]) -> Header:
    header = fields["header"]
    return Header(*(int(header.get(name, 0)) for name in Header._fields))


def parse_token(fields: dict[str, Any]) -> str:
    """Of a login. It becomes part of a header."""
    token = fields["token"]
    if not isinstance(token, str) or not (token.isascii() and token.isprintable()):
        raise ValueError("not a token")
    return token


def encode_prefix(prefix: str) -> dict[str, str]:
    """All keys with the prefix: etcd takes the first key after them. The last byte of UTF-8 is never 255."""
    start = prefix.encode(errors="surrogateescape")
    return {"key": _base64(start), "range_end": _base64(start[:-1] + bytes([start[-1] + 1]))}


def encode_key(key: str) -> str:
    return _base64(key.encode(errors="surrogateescape"))


def _decode_key(key: str) -> str:
    return base64.b64decode(key).decode(errors="surrogateescape")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import (
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryUnreachableError,
)
from svcnode.net.etcd_json import (
    MAX_VALUE_BYTES,
    OVERSIZED,
    Compare,
    Delete,
    Event,
    Header,
    KeyValue,
    LoginDisabledError,
    Put,
    TokenError,
    WatchBatch,
    encode_prefix,
    parse_batch,
    parse_header,
    parse_message,
    parse_page,
    whole_revisions,
)

HEADER = {"cluster_id": "9072473218305301752", "member_id": "3", "revision": "9", "raft_term": "2"}
NO_LEADER = {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def parsed(message: object) -> Any:
    return parse_message(json.dumps(message), "host:2379", lambda fields: fields)


def test_fields_that_are_zero_are_missing() -> None:
    assert parse_header({"header": {"cluster_id": "1"}}) == Header(1, 0, 0, 0)
    page = parse_page({"header": HEADER, "kvs": [{"key": encoded(b"a"), "create_revision": "2", "mod_revision": "3"}]})
    assert page == (Header(9072473218305301752, 3, 9, 2), [KeyValue("a", b"", 2, 3, 0)], False)
    assert parse_page({"header": HEADER}).kvs == []


def test_a_batch_has_the_revision_of_its_last_event_and_not_that_of_the_member() -> None:
    put = {
        "kv": {"key": encoded(b"a"), "create_revision": "2", "mod_revision": "4", "value": encoded(b"x"), "lease": "5"}
    }
    deleted = {"type": "DELETE", "kv": {"key": encoded(b"b"), "mod_revision": "5"}}
    batch = parse_batch({"result": {"header": HEADER, "events": [put, deleted]}})
    assert batch == WatchBatch(5, [Event("a", 4, KeyValue("a", b"x", 2, 4, 5)), Event("b", 5, None)])


def test_the_events_of_a_revision_are_kept_until_it_is_complete() -> None:
    """etcd divides what is too large for one message, and not always between two revisions."""
    events = [Event("a", 4, None), Event("b", 5, None), Event("c", 5, None), Event("d", 6, None)]
    assert whole_revisions([], WatchBatch(4, events[:1], is_fragment=True)) == (None, events[:1])
    batch, rest = whole_revisions(events[:1], WatchBatch(5, events[1:2], is_fragment=True))
    assert (batch, rest) == (WatchBatch(4, events[:1]), events[1:2])
    assert whole_revisions(rest, WatchBatch(6, events[2:])) == (WatchBatch(6, events[1:]), [])


def test_a_value_that_is_too_large_is_not_kept_and_not_written() -> None:
    def value_of(size: int) -> bytes:
        kv = {"key": encoded(b"a"), "mod_revision": "3", "value": encoded(bytes(size))}
        return parse_page({"header": HEADER, "kvs": [kv]}).kvs[0].value

    assert len(value_of(MAX_VALUE_BYTES - 2)) == MAX_VALUE_BYTES - 2
    assert value_of(MAX_VALUE_BYTES + 1) == OVERSIZED
    with pytest.raises(RegistryError):
        Put("a", bytes(MAX_VALUE_BYTES + 1)).encode()


def test_a_progress_notification_has_the_revision_of_the_member() -> None:
    assert parse_batch({"result": {"header": HEADER}}) == WatchBatch(9, [])


@given(st.binary(min_size=1))
def test_keys_of_any_bytes_survive(key: bytes) -> None:
    page = parse_page({"header": HEADER, "kvs": [{"key": encoded(key), "mod_revision": "3"}]})
    assert Delete(page.kvs[0].key).encode() == {"key": encoded(key)}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.binary())
def test_a_prefix_selects_the_keys_that_begin_with_it(prefix: str, key: bytes) -> None:
    bounds = {name: base64.b64decode(text) for name, text in encode_prefix(prefix).items()}
    for candidate in (key, prefix.encode() + key):
        assert (bounds["key"] <= candidate < bounds["range_end"]) == candidate.startswith(prefix.encode())


def test_requests_have_whole_numbers_as_strings() -> None:
    assert Put("a", b"x", 5).encode() == {"key": encoded(b"a"), "value": encoded(b"x"), "lease": "5"}
    assert Compare("a", 3).encode()["mod_revision"] == "3"


@pytest.mark.parametrize(
    ("message", "error_type"),
    [
        ({"error": "etcdserver: permission denied", "code": 7}, RegistryPermissionError),
        ({"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}, RegistryLoginError),
        ({"error": "etcdserver: invalid auth token", "code": 16}, TokenError),
        ({"code": 16, "message": "etcdserver: invalid auth token", "details": []}, TokenError),
        ({"code": 16}, TokenError),
        ({"error": {"grpc_code": 16, "http_code": 401, "message": "etcdserver: invalid auth token"}}, TokenError),
        ({"code": 3, "message": "etcdserver: user name is empty"}, TokenError),
        ({"code": 3, "message": "etcdserver: revision of auth store is old"}, TokenError),
        ({"code": 2, "message": "auth: revision in header is old"}, TokenError),
        ({"code": 9, "message": "etcdserver: authentication is not enabled"}, LoginDisabledError),
        ({"error": "etcdserver: mvcc: database space exceeded", "code": 8}, RegistryFullError),
        ({"error": "etcdserver: mvcc: required revision has been compacted", "code": 11}, RegistryCompactedError),
        ({"error": "etcdserver: requested lease not found", "code": 5}, RegistryLeaseLostError),
        ({"error": "etcdserver: leader changed", "code": 14}, RegistryUnreachableError),
        ({"error": "etcdserver: too many requests", "code": 8}, RegistryUnreachableError),
        ({"error": "context deadline exceeded", "code": 2}, RegistryUnreachableError),
        ({"error": "etcdserver: request is too large", "code": 3}, RegistryError),
        ({"error": NO_LEADER}, RegistryUnreachableError),
        ({"result": {"header": HEADER, "canceled": True, "compact_revision": "6"}}, RegistryCompactedError),
        (
            {"result": {"created": True, "canceled": True, "cancel_reason": "permission denied"}},
            RegistryPermissionError,
        ),
        ({"result": {"canceled": True}}, RegistryError),
    ],
)
def test_the_errors_of_etcd(message: object, error_type: type[RegistryError]) -> None:
    with pytest.raises(RegistryError) as error:
        parsed(message)
    assert error.type is error_type
    assert "host:2379" in str(error.value)


@pytest.mark.parametrize("content", ["", "Not Found", "[]", "null", '{"header": 1}', '{"header": {"revision": "x"}}'])
def test_another_response_is_not_one_of_etcd(content: str) -> None:
    with pytest.raises(RegistryUnreachableError):
        parse_message(content, "host:2379", parse_header)

"""JSON-RPC 2.0: what a call looks like, and what an answer comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.redaction import register_secret
from svcnode.net.http_response import HttpResponse
from svcnode.probes.jsonrpc_protocol import RpcError, decode_result, encode_request

NO_REPLY = "with what is no JSON-RPC reply"


def answer(body: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def refusal(body: object, status: int = 200) -> str:
    with pytest.raises(RpcError) as caught:
        decode_result(answer(body, status))
    return str(caught.value)


@pytest.mark.parametrize("params", [[], ["latest", False], {"block": "latest"}])
def test_a_call_names_its_method_and_its_parameters(params: list[Any] | dict[str, Any]) -> None:
    call = json.loads(encode_request("eth_syncing", params))
    assert call == {"jsonrpc": "2.0", "id": 1, "method": "eth_syncing", "params": params}


@pytest.mark.parametrize("result", [True, False, None, 0, "0x1", [], {}, {"error": {"code": 1, "message": "x"}}])
@pytest.mark.parametrize("status", [200, 202, 299])
def test_whatever_the_result_is_it_is_the_result(result: object, status: int) -> None:
    assert decode_result(answer({"jsonrpc": "2.0", "id": 1, "result": result}, status)) == result


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_error_is_told_in_its_words_whatever_the_status(status: int) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "the method does not exist", "data": 1}}
    assert refusal(body, status) == "error -32601: the method does not exist"


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        (1, {"text": "it's late", "final": True}, 'error 1: {"text": "it\'s late", "final": true}'),
        (1, ["grün", None], 'error 1: ["grün", null]'),
        (None, None, "error null: null"),
        ("E_LATE", "too late", "error E_LATE: too late"),
    ],
)
def test_an_error_that_is_not_made_of_words_is_told_as_json(code: object, message: object, told: str) -> None:
    assert refusal({"id": 1, "error": {"code": code, "message": message}}) == told


def test_an_error_counts_beside_a_result() -> None:
    assert refusal({"id": 1, "result": True, "error": {"code": 1, "message": "no"}}) == "error 1: no"


def test_no_error_is_told_by_many_servers() -> None:
    assert decode_result(answer({"id": 1, "result": True, "error": None})) is True


def test_the_words_of_an_error_are_not_too_many_and_show_no_secret() -> None:
    register_secret("hunter22")
    assert len(refusal({"id": 1, "error": {"code": 1, "message": "x" * 1000}})) == 200
    assert refusal({"id": 1, "error": {"code": 1, "message": "no key hunter22"}}) == "error 1: no key ***"


@pytest.mark.parametrize(
    "body",
    [
        {"id": 2, "result": True},
        {"id": "1", "result": True},
        {"id": 1.0, "result": True},
        {"id": True, "result": True},
        {"id": None, "result": True},
        {"result": True},
        {"id": 1},
        {"id": 1, "error": "no"},
        [{"id": 1, "result": True}],
        "result",
        None,
        b"",
        b"\xff",
    ],
)
def test_anything_else_is_no_reply(body: object) -> None:
    assert refusal(body) == f"answered 200 {NO_REPLY}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"id": 1, "result": false, "result": true}', "the field result stands there twice"),
        (b'{"id": 1, "result": {"ok": false, "ok": true}}', "the field ok stands there twice"),
        (b'{"id": 1, "result": NaN}', "NaN is not of JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_reply_that_could_be_read_in_two_ways_is_none_and_the_reason_says_why(body: bytes, why: str) -> None:
    assert refusal(body) == f"answered 200 {NO_REPLY}: {why}"


@pytest.mark.parametrize("status", [199, 300, 404, 500])
def test_a_result_under_an_error_of_http_is_no_reply(status: int) -> None:
    assert refusal({"id": 1, "result": True}, status) == f"answered {status} {NO_REPLY}"


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_whatever_comes_it_is_a_result_or_refused_in_words(body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RpcError, match=NO_REPLY):
        decode_result(HttpResponse(200, {}, raw))

"""JSON-RPC 2.0: encoding a request and decoding its result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.redaction import register_secret
from svcnode.net.http_response import HttpResponse
from svcnode.probes.jsonrpc_protocol import RpcError, decode_result, encode_request, result_of


def response(body: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def error_of(body: object, status: int = 200) -> RpcError:
    with pytest.raises(RpcError) as caught:
        decode_result(response(body, status))
    return caught.value


def test_a_request_has_its_method_and_its_parameters() -> None:
    params: dict[str, Any] = {"block": "latest"}
    call = json.loads(encode_request("eth_syncing", params))
    assert call == {"jsonrpc": "2.0", "id": 1, "method": "eth_syncing", "params": params}


@pytest.mark.parametrize("result", [False, None, {"error": {"code": 1, "message": "x"}}])
@pytest.mark.parametrize("status", [200, 299])
def test_any_result_is_returned(result: object, status: int) -> None:
    assert decode_result(response({"jsonrpc": "2.0", "id": 1, "result": result}, status)) == result


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_error_with_any_http_status_has_its_number_and_message(status: int) -> None:
    message = "the method does not exist"
    error = error_of({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": message, "data": 1}}, status)
    assert error.code is ReasonCode.NOT_SUPPORTED
    assert "-32601" in str(error)
    assert message in str(error)


@pytest.mark.parametrize(
    ("status", "number", "data", "code"),
    [
        (200, -32005, None, ReasonCode.RATE_LIMITED),
        (200, -32005, {"see": "https://provider.example"}, ReasonCode.RATE_LIMITED),
        (200, -32029, None, ReasonCode.RATE_LIMITED),
        (200, -32097, None, ReasonCode.RATE_LIMITED),
        (200, 429, None, ReasonCode.RATE_LIMITED),
        (429, -32000, None, ReasonCode.RATE_LIMITED),
        (200, -32005, {"numSlotsBehind": 42}, ReasonCode.LAGGING),  # Solana
        (200, -32005, {"numSlotsBehind": None}, ReasonCode.LAGGING),
        (200, -32000, None, ReasonCode.SERVER_ERROR),
    ],
)
def test_an_error_about_too_many_requests_has_its_own_code(
    status: int, number: int, data: object, code: ReasonCode
) -> None:
    error = error_of({"id": 1, "error": {"code": number, "message": "slow down", "data": data}}, status)
    assert (error.code, error.number) == (code, number)


@pytest.mark.parametrize(
    ("code", "message", "shown"),
    [
        (1, {"text": "it's late", "final": True}, '1: {"text": "it\'s late", "final": true}'),
        (None, None, "null: null"),
        ("E_LATE", "too late", "E_LATE: too late"),
    ],
)
def test_an_error_message_that_is_not_a_string_is_shown_as_json(code: object, message: object, shown: str) -> None:
    error = error_of({"id": 1, "error": {"code": code, "message": message}})
    assert error.code is ReasonCode.SERVER_ERROR
    assert str(error).endswith(shown)


def test_an_error_beside_a_result_is_an_error_unless_it_is_null() -> None:
    assert error_of({"id": 1, "result": True, "error": {"code": 1, "message": "no"}}).code is ReasonCode.SERVER_ERROR
    assert decode_result(response({"id": 1, "result": True, "error": None})) is True


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("the method eth_call is not available", ReasonCode.NOT_SUPPORTED),
        ("execution reverted: method not found", ReasonCode.SERVER_ERROR),
        ("VM Exception while processing transaction: revert method not supported", ReasonCode.SERVER_ERROR),
        (" " * 2000 + "the method is disabled", ReasonCode.SERVER_ERROR),
    ],
)
def test_a_general_error_may_say_that_there_is_no_such_method_but_a_contract_does_not(
    message: str, code: ReasonCode
) -> None:
    assert error_of({"id": 1, "error": {"code": -32000, "message": message}}).code is code


def test_an_error_message_is_limited_and_redacted() -> None:
    register_secret("hunter22")
    assert len(str(error_of({"id": 1, "error": {"code": 1, "message": "x" * 1000}}))) == 200
    assert str(error_of({"id": 1, "error": {"code": 1, "message": "no key hunter22"}})).endswith("no key ***")


@pytest.mark.parametrize(
    "body",
    [
        {"id": 2, "result": True},
        {"id": 1.0, "result": True},
        {"id": True, "result": True},
        {"result": True},
        {"id": 1},
        {"id": 1, "error": "no"},
        {"id": 1, "result": True, "error": "no"},
        {"id": 1, "result": True, "error": {"code": 1}},
        {"id": 1, "result": True, "error": False},
        [{"id": 1, "result": True}],
        "result",
        b"\xff",
    ],
)
def test_anything_else_is_not_a_response(body: object) -> None:
    assert error_of(body).code is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("body", "detail"),
    [(b'{"id": 1, "result": false, "result": true}', "result"), (b'{"id": 1, "result": NaN}', "NaN")],
)
def test_ambiguous_json_is_not_a_response_and_the_error_has_the_detail(body: bytes, detail: str) -> None:
    error = error_of(body)
    assert error.code is ReasonCode.PROTOCOL_ERROR
    assert detail in str(error)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (199, ReasonCode.UNEXPECTED_RESPONSE),
        (300, ReasonCode.REDIRECTED),
        (404, ReasonCode.NOT_FOUND),
        (500, ReasonCode.SERVER_ERROR),
    ],
)
def test_a_result_with_an_http_error_is_not_a_response(status: int, code: ReasonCode) -> None:
    assert error_of({"id": 1, "result": True}, status).code is code


def test_a_response_without_http_is_judged_alike() -> None:
    assert result_of({"id": 1, "result": False}) is False
    for document, code in (
        ({"id": 1, "error": {"code": -32601, "message": "no"}}, ReasonCode.NOT_SUPPORTED),
        ({"id": 2, "result": True}, ReasonCode.PROTOCOL_ERROR),
        (None, ReasonCode.PROTOCOL_ERROR),
    ):
        with pytest.raises(RpcError) as caught:
            result_of(document)
        assert caught.value.code is code

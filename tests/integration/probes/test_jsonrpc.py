"""JSON-RPC probes against servers with correct, incorrect and missing responses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import (
    Backend,
    HttpBackend,
    ReceivedRequest,
    closed_port,
    http_response,
    server_tls,
    unresponsive,
)
from tests.support.verdicts import (
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    PROTOCOL_ERROR,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    failed,
)

if TYPE_CHECKING:
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner


MESSAGE = "Node is behind by 42 slots"


def result(value: object, *, id_: object = 1, status: int = 200) -> bytes:
    return http_response(
        status, json.dumps({"jsonrpc": "2.0", "id": id_, "result": value}), Content_Type="application/json"
    )


def error(code: object, message: object, *, status: int = 200) -> bytes:
    return http_response(status, json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}))


# ---- requests


def test_a_method_is_called_with_a_json_rpc_request(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        assert check(f"jsonrpc+http://{backend.address}/v1?net=main", method="getHealth") == READY
        request = backend.last_request
        assert (request.method, request.target) == ("POST", "/v1?net=main")
        assert request.headers["content-type"] == "application/json"
        assert json.loads(request.body) == {"jsonrpc": "2.0", "id": 1, "method": "getHealth", "params": []}


@pytest.mark.parametrize("params", [["latest", False, {"deep": [1, None]}], {"commitment": "finalized"}])
def test_parameters_are_a_list_or_a_table(check: CheckRunner, params: Any) -> None:
    with HttpBackend(result("ok")) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getBlock", params=params) == READY
        assert json.loads(backend.last_request.body)["params"] == params


def test_headers_and_bearer_are_sent(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", bearer="swordfish", headers={"X-Net": "main"}) == READY
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert backend.last_request.headers["x-net"] == "main"


# ---- responses


@pytest.mark.parametrize("value", ["ok", 0, None, False, [], {}])
def test_any_result_is_ready_if_none_is_expected(check: CheckRunner, value: object) -> None:
    with HttpBackend(result(value)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == READY


def test_the_result_must_be_the_expected_one(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", result={"": "ok"}) == READY
        verdict = check(url, method="getHealth", result={"": "fine"})
    assert verdict == UNEXPECTED_RESPONSE
    assert all(part in verdict.reason for part in ("getHealth", '"ok"', '"fine"'))


def test_the_result_must_have_the_values_at_json_pointers(check: CheckRunner) -> None:
    with HttpBackend(result({"sync": {"done": True}, "peers": [3, 4]})) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="status", result={"/sync/done": True, "/peers/1": 4}) == READY
        assert check(url, method="status", result={"/sync/done": 1}) == UNEXPECTED_RESPONSE
        assert check(url, method="status", result={"/sync/at": 1}) == UNEXPECTED_RESPONSE


@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_an_error_with_any_http_status_is_failed(check: CheckRunner, status: int) -> None:
    with HttpBackend(error(-32005, MESSAGE, status=status)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict == failed(ReasonCode.SERVER_ERROR)
    assert all(part in verdict.reason for part in ("getHealth", "-32005", MESSAGE))


@pytest.mark.parametrize(("code", "message"), [(1, "x" * 100_000), ("x" * 100_000, "m"), (1, ["x"] * 50_000)])
def test_a_long_error_is_shortened(check: CheckRunner, code: object, message: object) -> None:
    with HttpBackend(error(code, message)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict == failed(ReasonCode.SERVER_ERROR)
    assert len(verdict.reason) < 400


@pytest.mark.parametrize("id_", [2, "1", None, [1], {}])
def test_a_response_with_another_id_is_failed(check: CheckRunner, id_: object) -> None:
    with HttpBackend(result("ok", id_=id_)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == PROTOCOL_ERROR


@pytest.mark.parametrize("status", [201, 204, 299])
def test_a_result_with_any_2xx_status_is_ready(check: CheckRunner, status: int) -> None:
    with HttpBackend(result("ok", status=status)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict.outcome is (Outcome.FAILED if status == 204 else Outcome.READY)  # 204 has no body


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (302, ReasonCode.REDIRECTED),
        (404, ReasonCode.NOT_FOUND),
        (500, ReasonCode.SERVER_ERROR),
        (503, ReasonCode.SERVER_ERROR),
    ],
)
def test_a_result_with_another_status_is_failed(check: CheckRunner, status: int, code: ReasonCode) -> None:
    with HttpBackend(result("ok", status=status)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == failed(code)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "ok",
        "<html>",
        "null",
        "[]",
        '[{"id": 1, "result": "ok"}]',
        "{}",
        '{"id": 1}',
        '{"id": true, "result": "ok"}',
        '{"id": 1.0, "result": "ok"}',
        '{"result": "ok"}',
        '{"id": 1, "error": "no"}',
        '{"id": 1, "error": {"code": 1}}',
    ],
)
def test_a_body_that_is_not_json_rpc_is_failed(check: CheckRunner, body: str) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"id": 1, "result": "bad", "result": "ok"}', "result"),
        ('{"id": 1, "result": {"ok": false, "ok": true}}', "ok"),
        ('{"id": 1, "result": NaN}', "NaN"),
        ('{"id": 1, "result": "ok"', "(char 24)"),
        ("[" * 200_000, "nested"),
        ('{"id": 1, "result": ' + "[" * 200_000, "nested"),
        ('{"id": 1, "result": ' + "9" * 5000 + "}", "5000"),
    ],
)
def test_invalid_json_is_failed_and_the_reason_has_the_detail(check: CheckRunner, body: str, detail: str) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict == PROTOCOL_ERROR
    assert detail in verdict.reason


def test_a_response_of_any_depth_gives_a_verdict(check: CheckRunner) -> None:
    # The limit depends on the interpreter. Just below it, a body can be parsed but not formatted.
    forms = {
        "result": b'{"id": 1, "result": %s}',
        "message": b'{"error": {"code": 1, "message": %s}}',
        "code": b'{"error": {"message": 1, "code": %s}}',
    }
    depths = [*range(850, 1000), 9000, 99000]
    targets = [f"/{form}/{depth}" for form in forms for depth in depths]

    def respond(request: ReceivedRequest) -> bytes:
        _, form, depth = request.target.split("/")
        return http_response(200, forms[form] % (b"[" * int(depth) + b"]" * int(depth)))

    async def scenario(url: str) -> set[Outcome]:
        options = {"method": "getHealth", "result": {"": 1}}
        return {(await make_probe({"url": url + target, **options}).check()).outcome for target in targets}

    with HttpBackend(respond) as backend:
        assert check.run(scenario(f"jsonrpc+http://{backend.address}")) == {Outcome.FAILED}


def test_a_response_that_is_too_large_is_failed(check: CheckRunner) -> None:
    with HttpBackend(result("x" * 1024 * 1024)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == UNEXPECTED_RESPONSE


# ---- connection errors


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"jsonrpc+http://127.0.0.1:{port}", method="getHealth") == CONNECTION_REFUSED


def test_an_unresponsive_server_is_failed_at_the_deadline_and_leaves_nothing_open(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        verdict = check.times_out(f"jsonrpc+http://{backend.address}", "exchange", method="getHealth")
    assert verdict == failed(ReasonCode.TIMEOUT)


# ---- TLS


def test_a_method_is_called_with_tls(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(result("ok"), tls=server_tls(certificate)) as backend:
        url, ca = f"jsonrpc+https://{backend.address}", str(certificate.certificate)
        assert check(url, method="getHealth", ca=ca, result={"": "ok"}) == READY
        assert check(url, method="getHealth") == TLS_UNTRUSTED
        assert check(url, method="getHealth", ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(url, method="getHealth", ca=ca, min_cert_days=1, result={"": 1}) == UNEXPECTED_RESPONSE


# ---- configuration errors


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "method"),
        ({"method": 1}, "method"),
        ({"method": "x", "params": "latest"}, "params"),
        ({"method": "x", "result": {"status": "ok"}}, "result"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "jsonrpc+http://127.0.0.1:8545", **options})
    assert caught.value.option == name

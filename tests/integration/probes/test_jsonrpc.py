"""JSON-RPC probes against servers with correct, incorrect and missing responses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import HttpBackend, http_response, server_tls
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner


def result(value: object, *, id_: object = 1, status: int = 200) -> bytes:
    return http_response(
        status, json.dumps({"jsonrpc": "2.0", "id": id_, "result": value}), Content_Type="application/json"
    )


@pytest.mark.parametrize("params", [None, ["latest", {"deep": [1, None]}], {"commitment": "finalized"}])
def test_a_method_is_called_with_its_parameters(check: CheckRunner, params: Any) -> None:
    options = {} if params is None else {"params": params}
    with HttpBackend(result("ok")) as backend:
        assert check(f"jsonrpc+http://{backend.address}/v1?net=main", method="getHealth", **options) == READY
        request = backend.last_request
        assert (request.method, request.target) == ("POST", "/v1?net=main")
        assert request.headers["content-type"] == "application/json"
        assert json.loads(request.body) == {"jsonrpc": "2.0", "id": 1, "method": "getHealth", "params": params or []}


@pytest.mark.parametrize("number", [-32700, -32600, -32602])
def test_an_error_of_the_request_has_its_own_code(check: CheckRunner, number: int) -> None:
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": number, "message": "no"}}
    with HttpBackend(http_response(200, json.dumps(error))) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == failed(ReasonCode.BAD_REQUEST)


def test_the_result_must_be_the_expected_one(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", result={"": "ok"}) == READY
        verdict = check(url, method="getHealth", result={"": "fine"})
    assert verdict == UNEXPECTED_RESPONSE
    assert all(part in verdict.reason for part in ("getHealth", '"ok"', '"fine"'))


def test_conditions_judge_the_result(check: CheckRunner) -> None:
    with HttpBackend(result({"peers": 2, "isSyncing": False})) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="system_health", require=["/peers >= 2"], starting=["/isSyncing == true"]) == READY
        assert check(url, method="system_health", require=["/peers >= 3"]) == UNEXPECTED_RESPONSE
        starting = check(url, method="system_health", require=["/peers >= 3"], starting=["/isSyncing == false"])
        assert starting == not_ready(ReasonCode.STARTING)
        advances = check(url, method="system_health", require=["/peers advances within 1m"])
        assert advances == not_ready(ReasonCode.STARTING)


def test_a_method_is_called_with_tls(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(result("ok"), tls=server_tls(certificate)) as backend:
        url, ca = f"jsonrpc+https://{backend.address}", str(certificate.certificate)
        assert check(url, method="getHealth", ca=ca, result={"": "ok"}) == READY
        assert check(url, method="getHealth") == TLS_UNTRUSTED
        assert check(url, method="getHealth", ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(url, method="getHealth", ca=ca, min_cert_days=1, result={"": 1}) == UNEXPECTED_RESPONSE

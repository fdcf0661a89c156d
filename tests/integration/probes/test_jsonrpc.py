"""JSON-RPC probes against servers with correct, incorrect and missing responses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import HttpBackend, http_response, server_tls
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, UNEXPECTED_RESPONSE

if TYPE_CHECKING:
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner


def result(value: object, *, id_: object = 1, status: int = 200) -> bytes:
    return http_response(
        status, json.dumps({"jsonrpc": "2.0", "id": id_, "result": value}), Content_Type="application/json"
    )


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


def test_the_result_must_be_the_expected_one(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", result={"": "ok"}) == READY
        verdict = check(url, method="getHealth", result={"": "fine"})
    assert verdict == UNEXPECTED_RESPONSE
    assert all(part in verdict.reason for part in ("getHealth", '"ok"', '"fine"'))


def test_a_method_is_called_with_tls(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(result("ok"), tls=server_tls(certificate)) as backend:
        url, ca = f"jsonrpc+https://{backend.address}", str(certificate.certificate)
        assert check(url, method="getHealth", ca=ca, result={"": "ok"}) == READY
        assert check(url, method="getHealth") == TLS_UNTRUSTED
        assert check(url, method="getHealth", ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(url, method="getHealth", ca=ca, min_cert_days=1, result={"": 1}) == UNEXPECTED_RESPONSE

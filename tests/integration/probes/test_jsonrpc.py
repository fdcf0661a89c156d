"""jsonrpc+http:// against servers that answer as JSON-RPC 2.0 has it, nearly so, and not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
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

if TYPE_CHECKING:
    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
NO_REPLY = "getHealth: answered {status} with what is no JSON-RPC reply: {url}"


def result(value: object, *, id_: object = 1, status: int = 200) -> bytes:
    return http_response(
        status, json.dumps({"jsonrpc": "2.0", "id": id_, "result": value}), Content_Type="application/json"
    )


def error(code: object, message: object, *, status: int = 200) -> bytes:
    return http_response(status, json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}))


# ---- what is asked


def test_a_method_is_called_as_json_rpc_has_it(check: CheckRunner) -> None:
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


def test_who_asks_may_be_told(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", bearer="swordfish", headers={"X-Net": "main"}) == READY
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert backend.last_request.headers["x-net"] == "main"


# ---- what is answered


@pytest.mark.parametrize("value", ["ok", 0, None, False, [], {}])
def test_any_result_is_ready_when_none_is_expected(check: CheckRunner, value: object) -> None:
    with HttpBackend(result(value)) as backend:
        assert check(f"jsonrpc+http://{backend.address}", method="getHealth") == READY


def test_the_result_may_have_to_be_something(check: CheckRunner) -> None:
    with HttpBackend(result("ok")) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth", result={"": "ok"}) == READY
        assert check(url, method="getHealth", result={"": "fine"}) == Verdict.failed(
            f'getHealth: the whole is "ok", expected "fine": {url}'
        )


def test_the_result_may_have_to_hold_values_at_json_pointers(check: CheckRunner) -> None:
    with HttpBackend(result({"sync": {"done": True}, "peers": [3, 4]})) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="status", result={"/sync/done": True, "/peers/1": 4}) == READY
        assert check(url, method="status", result={"/sync/done": 1}) == Verdict.failed(
            f"status: /sync/done is true, expected 1: {url}"
        )
        assert check(url, method="status", result={"/sync/at": 1}) == Verdict.failed(
            f"status: there is no /sync/at: {url}"
        )


@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_an_error_is_failed_whatever_the_status(check: CheckRunner, status: int) -> None:
    with HttpBackend(error(-32005, "Node is behind by 42 slots", status=status)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth") == Verdict.failed(
            f"getHealth: error -32005: Node is behind by 42 slots: {url}"
        )


@pytest.mark.parametrize(("code", "message"), [(1, "x" * 100_000), ("x" * 100_000, "m"), (1, ["x"] * 50_000)])
def test_a_long_error_is_cut_short(check: CheckRunner, code: object, message: object) -> None:
    with HttpBackend(error(code, message)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("getHealth: error ")
    assert len(verdict.reason) < 400


@pytest.mark.parametrize("id_", [2, "1", None, [1], {}])
def test_a_reply_to_somebody_else_is_failed(check: CheckRunner, id_: object) -> None:
    with HttpBackend(result("ok", id_=id_)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth") == Verdict.failed(NO_REPLY.format(status=200, url=url))


@pytest.mark.parametrize("status", [201, 204, 299])
def test_a_result_counts_with_any_status_of_success(check: CheckRunner, status: int) -> None:
    with HttpBackend(result("ok", status=status)) as backend:
        verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth")
    assert verdict.outcome is (Outcome.FAILED if status == 204 else Outcome.READY)  # 204 has no body


@pytest.mark.parametrize("status", [302, 404, 500, 503])
def test_a_result_does_not_count_with_another_status(check: CheckRunner, status: int) -> None:
    with HttpBackend(result("ok", status=status)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth") == Verdict.failed(NO_REPLY.format(status=status, url=url))


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
def test_what_is_no_json_rpc_is_failed(check: CheckRunner, body: str) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth") == Verdict.failed(NO_REPLY.format(status=200, url=url))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"id": 1, "result": "bad", "result": "ok"}', "the field result stands there twice"),
        ('{"id": 1, "result": {"ok": false, "ok": true}}', "the field ok stands there twice"),
        ('{"id": 1, "result": NaN}', "NaN is not of JSON"),
        ('{"id": 1, "result": "ok"', "Expecting ',' delimiter: line 1 column 25 (char 24)"),
        ("[" * 200_000, "it is nested too deeply"),
        ('{"id": 1, "result": ' + "[" * 200_000, "it is nested too deeply"),
        ('{"id": 1, "result": ' + "9" * 5000 + "}", "a number has 5000 digits"),
    ],
)
def test_what_looks_like_json_and_is_none_is_failed_with_the_reason(check: CheckRunner, body: str, why: str) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        no_reply = "answered 200 with what is no JSON-RPC reply"
        assert check(url, method="getHealth") == Verdict.failed(f"getHealth: {no_reply}: {why}: {url}")


def test_a_reply_of_any_depth_gives_a_verdict(check: CheckRunner) -> None:
    # Where the limit lies depends on the interpreter; just below it, a reply can be read but hardly be shown.
    forms = {
        "result": b'{"id": 1, "result": %s}',
        "message": b'{"error": {"code": 1, "message": %s}}',
        "code": b'{"error": {"message": 1, "code": %s}}',
    }
    depths = [*range(850, 1000), 9000, 99000]
    targets = [f"/{form}/{depth}" for form in forms for depth in depths]

    def answer(request: ReceivedRequest) -> bytes:
        _, form, depth = request.target.split("/")
        return http_response(200, forms[form] % (b"[" * int(depth) + b"]" * int(depth)))

    async def story(url: str) -> set[Outcome]:
        words = {"method": "getHealth", "result": {"": 1}}
        return {(await make_probe({"url": url + target, **words}).check()).outcome for target in targets}

    with HttpBackend(answer) as backend:
        assert check.run(story(f"jsonrpc+http://{backend.address}")) == {Outcome.FAILED}


def test_a_reply_that_is_too_large_is_failed(check: CheckRunner) -> None:
    with HttpBackend(result("x" * 1024 * 1024)) as backend:
        url = f"jsonrpc+http://{backend.address}"
        assert check(url, method="getHealth") == Verdict.failed(
            f"the body of its answer is larger than 1024 KiB: {url}"
        )


# ---- no reply at all


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"jsonrpc+http://127.0.0.1:{port}"
        assert check(url, method="getHealth") == Verdict.failed(f"connection refused: {url}")


def test_a_mute_server_is_failed_at_the_deadline_and_left_closed(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.times_out(f"jsonrpc+http://{backend.address}", method="getHealth") == Verdict.failed(
            "no answer within 0.2 s, in its step exchange"
        )


# ---- TLS


def test_it_speaks_tls(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(result("ok"), tls=server_tls(certificate)) as backend:
        url, ca = f"jsonrpc+https://{backend.address}", str(certificate.certificate)
        assert check(url, method="getHealth", ca=ca, result={"": "ok"}) == READY
        assert check(url, method="getHealth") == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: {url}"
        )
        assert check(url, method="getHealth", ca=ca, min_cert_days=1) == Verdict.not_ready(
            "its certificate expires in 0.0 days, before min_cert_days is reached"
        )
        assert check(url, method="getHealth", ca=ca, min_cert_days=1, result={"": 1}).outcome is Outcome.FAILED


# ---- what is refused at once


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "method: is missing, and is needed here"),
        ({"method": 1}, "method: must be a string, not a whole number"),
        ({"method": "x", "params": "latest"}, "params: must be a list or a table, not a string"),
        ({"method": "x", "result": {"status": "ok"}}, 'result: "status" is not a JSON pointer'),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"^{words}"):
        make_probe({"url": "jsonrpc+http://127.0.0.1:8545", **options})

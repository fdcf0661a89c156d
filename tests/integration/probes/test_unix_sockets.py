"""http+unix, jsonrpc+unix and ethereum+unix: servers on Unix sockets, as Docker and Ethereum clients have them."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.probes import make_probe
from tests.support.backends import Backend, HttpBackend, Peer, ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend
from tests.support.verdicts import (
    CONNECTION_REFUSED,
    NO_DESCRIPTORS,
    PROTOCOL_ERROR,
    READY,
    UNEXPECTED_RESPONSE,
    failed,
    not_ready,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.check_runner import CheckRunner

SCHEMES = ["http+unix", "jsonrpc+unix", "ethereum+unix"]
OPTIONS: dict[str, dict[str, Any]] = {"jsonrpc+unix": {"method": "admin_nodeInfo"}}


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory() as folder:  # shorter than that of pytest: a socket has 107 bytes
        yield Path(folder) / "app.sock"


# ---- HTTP: what Docker's API answers for one container ("inspect a container")


def container(state: dict[str, Any]) -> Callable[[object], bytes]:
    document = json.dumps({"Id": "4fa6e0f0c678", "State": state})
    return lambda _: http_response(200, document, Content_Type="application/json")


DOCKER = {
    "require": ["/State/Running == true", '/State/Health/Status == "healthy"'],
    "starting": ['/State/Health/Status == "starting"'],
}


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ({"Running": True, "Health": {"Status": "healthy"}}, READY),
        ({"Running": True, "Health": {"Status": "starting"}}, not_ready(ReasonCode.STARTING)),
        ({"Running": True, "Health": {"Status": "unhealthy"}}, UNEXPECTED_RESPONSE),
        ({"Running": False, "Health": {"Status": "unhealthy"}}, UNEXPECTED_RESPONSE),
        ({"Running": True}, UNEXPECTED_RESPONSE),  # the image has no health check
    ],
)
def test_a_container_is_judged_by_its_state(check: CheckRunner, path: Path, state: Any, verdict: object) -> None:
    with HttpBackend(container(state), path=path) as backend:
        assert check(f"http+unix://{path}:/containers/ledger/json", **DOCKER) == verdict
        request = backend.last_request
    assert (request.target, request.headers["host"]) == ("/containers/ledger/json", "localhost")


def test_a_container_that_does_not_exist_is_failed(check: CheckRunner, path: Path) -> None:
    with HttpBackend(http_response(404, '{"message": "No such container: ledger"}'), path=path):
        assert check(f"http+unix://{path}:/containers/ledger/json", **DOCKER) == failed(ReasonCode.NOT_FOUND)


def test_the_parts_of_a_url_are_sent_as_with_a_port(check: CheckRunner, path: Path) -> None:
    strange = path.with_name("a b:c")
    with HttpBackend(http_response(204), path=strange) as backend:
        assert check(f"http+unix://{path.parent}/a%20b%3Ac") == READY
        assert backend.last_request.target == "/"
        assert check(f"http+unix:{path.parent}/a%20b%3Ac:/v1/x?token=y", bearer="t0ken-t0ken") == READY
        assert backend.last_request.target == "/v1/x?token=y"
        assert backend.last_request.headers["authorization"] == "Bearer t0ken-t0ken"
        assert check.leaks_nothing(f"http+unix://{path.parent}/a%20b%3Ac", reuse=True) == READY


def test_a_redirect_is_failed_and_names_its_target(check: CheckRunner, path: Path) -> None:
    with HttpBackend(http_response(302, Location="/login"), path=path):
        verdict = check(f"http+unix://{path}")
    assert verdict == failed(ReasonCode.REDIRECTED)
    assert "/login" in verdict.reason


@pytest.mark.parametrize("option", [{"proxy": "http://proxy:3128"}, {"redirects": 1}])
def test_options_that_need_a_network_are_rejected(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "http+unix:///run/app.sock", **option})
    assert caught.value.option in option


# ---- JSON-RPC


def ipc(answers: dict[str, Any], *, end: bytes = b"\n", pieces: int = 1) -> Callable[[Peer], None]:
    """As go-ethereum's IPC server: requests need no end, each answer is a line. Others send no line break."""

    def script(peer: Peer) -> None:
        while True:
            request = json.loads(peer.read_until(b"}"))
            answer = answers[request["method"]]
            document = {
                "jsonrpc": "2.0",
                "id": request["id"],
                **(answer if "error" in answer else {"result": answer["result"]}),
            }
            data = json.dumps(document).encode() + end
            size = -(-len(data) // pieces)
            for start in range(0, len(data), size):
                peer.send(data[start : start + size])
                time.sleep(0.01 if pieces > 1 else 0)

    return script


def result(value: object) -> dict[str, object]:
    return {"result": value}


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("pieces", [1, 7])
def test_an_answer_ends_with_its_last_brace(check: CheckRunner, path: Path, end: bytes, pieces: int) -> None:
    answer = {"admin_nodeInfo": result({"ports": {"a": {}}, "name": "Geth}"})}
    with Backend(ipc(answer, end=end, pieces=pieces), path=path):
        url = f"jsonrpc+unix://{path}"
        assert check(url, method="admin_nodeInfo", require=['/name == "Geth}"']) == READY
        assert check(url, method="admin_nodeInfo", result={"/name": "Besu"}) == UNEXPECTED_RESPONSE
        starting = check(url, method="admin_nodeInfo", starting=['/name == "Geth}"'])
        assert starting == not_ready(ReasonCode.STARTING)


def test_an_error_of_the_method_has_its_code(check: CheckRunner, path: Path) -> None:
    error = {"error": {"code": -32601, "message": "the method admin_nodeInfo does not exist/is not available"}}
    with Backend(ipc({"admin_nodeInfo": error}), path=path):
        assert check(f"jsonrpc+unix://{path}", method="admin_nodeInfo") == failed(ReasonCode.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":1,"result":2}\n', PROTOCOL_ERROR),
        (b'{"jsonrpc":"2.0","id":7,"result":1}\n', PROTOCOL_ERROR),
        (b"[]\n", PROTOCOL_ERROR),
        (b'{"id":1,"result":"' + b"}" * 2 * 1024**2, UNEXPECTED_RESPONSE),
        (b'{"jsonrpc":"2.0","id":1,"res', failed(ReasonCode.CONNECTION_CLOSED)),
    ],
)
def test_anything_else_is_failed(check: CheckRunner, path: Path, answer: bytes, verdict: object) -> None:
    def script(peer: Peer) -> None:
        peer.read_until(b"}")
        peer.send(answer)
        peer.shutdown_write()

    with Backend(script, path=path):
        assert check(f"jsonrpc+unix://{path}", method="m") == verdict


def test_an_execution_client_is_checked_through_its_ipc_socket(check: CheckRunner, path: Path) -> None:
    answers = {
        "eth_chainId": result("0x1"),
        "eth_syncing": result(False),
        "eth_getBlockByNumber": result({"timestamp": hex(int(time.time()))}),
        "net_peerCount": result("0x19"),
    }
    with Backend(ipc(answers), path=path) as backend:
        url = f"ethereum+unix://{path}"
        assert check.leaks_nothing(url, chain_id=1) == READY
        assert backend.connection_count == 3  # one for all calls of a check
        assert check(url, chain_id=10) == failed(ReasonCode.WRONG_CHAIN)
        assert check(url, min_peers=26) == not_ready(ReasonCode.TOO_FEW_PEERS)
        answers["eth_syncing"] = result({"currentBlock": "0x1", "highestBlock": "0x10"})
        assert check(url) == not_ready(ReasonCode.SYNCING)
        answers["eth_chainId"] = {"error": {"code": -32601, "message": "no"}}
        assert check(url) == unknown(ReasonCode.NOT_SUPPORTED)


def test_an_ipc_socket_is_compared_with_references_over_http(check: CheckRunner, path: Path) -> None:
    def respond(request: ReceivedRequest) -> bytes:
        method = json.loads(request.body)["method"]
        document = {"jsonrpc": "2.0", "id": 1, "result": {"eth_chainId": "0x1", "eth_blockNumber": "0x64"}[method]}
        return http_response(200, json.dumps(document))

    answers = {"eth_chainId": result("0x1"), "eth_syncing": result(False), "eth_blockNumber": result("0x10")}
    options = {"max_block_age": "off", "min_peers": 0}
    with Backend(ipc(answers), path=path), KeepAliveBackend(respond) as other:
        url, reference = f"ethereum+unix://{path}", [f"http://{other.address}"]
        assert check(url, reference=reference, **options) == not_ready(ReasonCode.LAGGING)
        answers["eth_blockNumber"] = result("0x64")
        assert check(url, reference=reference, **options) == READY


# ---- the socket


@contextmanager
def unaccepted(path: Path) -> Iterator[None]:
    """A socket whose queue is full."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        yield


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_socket_that_is_missing_or_has_no_server_is_failed(check: CheckRunner, path: Path, scheme: str) -> None:
    url, options = f"{scheme}://{path}", OPTIONS.get(scheme, {})
    assert check(url, **options) == failed(ReasonCode.FILE_NOT_FOUND)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert check(url, **options) == CONNECTION_REFUSED
    path.unlink()
    path.touch()
    assert check(url, **options) == CONNECTION_REFUSED


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_does_not_accept_is_failed_at_the_deadline(check: CheckRunner, path: Path, scheme: str) -> None:
    with unaccepted(path):
        verdict = check.times_out(f"{scheme}://{path}", "connect", **OPTIONS.get(scheme, {}))
    assert verdict == failed(ReasonCode.CONNECT_TIMEOUT)


def test_a_check_without_free_descriptors_is_unknown(check: CheckRunner, path: Path) -> None:
    with HttpBackend(http_response(200), path=path):
        assert check.without_descriptors(f"http+unix://{path}") == (NO_DESCRIPTORS, READY)


@pytest.mark.parametrize(
    "url",
    [
        "http+unix://127.0.0.1:80/health",
        "http+unix:",
        "http+unix:///",
        "http+unix:///run/app.sock:health",
        "http+unix://user:pw@/run/app.sock",
        "http+unix:///run/a%00b",
        f"http+unix:///run/{'x' * 103}",
        "ethereum+unix:///run/geth.ipc:/path",
        "ethereum+unix:///run/geth.ipc?x",
        "ethereum+unix:run/geth.ipc",
    ],
)
def test_a_url_without_a_socket_is_rejected(url: str) -> None:
    with pytest.raises(ProbeError):
        make_probe(url)


def test_the_query_is_not_shown() -> None:
    probe = make_probe("http+unix:///run/app.sock:/v1?key=abc")
    assert probe.display_url == "http+unix:///run/app.sock:/v1?***"
    assert make_probe("http+unix:/run/app.sock").display_url == "http+unix:///run/app.sock"
